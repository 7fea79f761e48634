"""extract_web on threads of forums, read by their structure: no box here is named as the rules would like it."""

from pathlib import Path

import pytest

from stages.extract_web.markup import written_vote
from tests.stages.test_extract_web_blind import pairs
from tests.stages.test_extract_web_posts import ASKED, EXPECTED, WRONG

FORUMS = Path(__file__).resolve().parents[1] / "fakes" / "forums"
NAMES = ("ana", "Bo Lind", "c_d", "R2", "Ms. Ito")
WRONGS = (WRONG, "No idea, sorry.", "Perhaps 41, as my book says.")


def page(question, answer, thread="{question}{answers}", none="", order=(0, 1)):
    """Threads of two answers each: the right one, and a wrong one with fewer votes, in turns first and second."""
    shown = []
    for place, (n, problem, solution) in enumerate(ASKED):
        posts = [(solution, 12 + n, True), (WRONGS[place % 3], 3, False)] if solution else []
        posts = posts[:: -1 if place % 2 else 1]
        texts = [
            answer(text, votes, is_best).format(
                text=text, votes=votes, name=NAMES[(place + i) % 5], n=place + i
            )
            for i, (text, votes, is_best) in enumerate(posts, 1)
        ]
        asked = question.format(text=problem, name=NAMES[place % 5], n=n)
        shown.append(thread.format(question=asked, answers="".join(texts) or none, n=n, k=len(texts)))
    return "".join(shown)


def plain(form):
    return lambda text, votes, is_best: form


def marked(form, mark, votes=""):
    """The mark for the right answer only."""
    return lambda text, score, is_best: form.replace("(mark)", mark if is_best else "").replace(
        "(votes)", votes
    )


BOX = "<div class='cell-{n}'>"
PAGES = {
    "first post of a container asks": page(
        "<div class=card><b>{name}</b><div>{text}</div></div>",
        plain("<div class=card><b>{name}</b><div>{text}</div><p>{votes} likes</p></div>"),
        "<section class=talk>{question}{answers}</section>",
    ),
    "first post after a title asks, all have scores": page(
        "<div class=card><p>{text}</p><p>Score: 1</p></div>",
        plain("<div class=card><p>{text}</p><p>Score: {votes}</p></div>"),
        "<h3>Sheet {n}</h3>{question}{answers}",
    ),
    "only answers have scores": page(
        "<div class=card><p>{text}</p></div>", plain("<div class=card><p>{text}</p><p>👍 {votes}</p></div>")
    ),
    "posts before what counts them ask": page(
        "<div class=card><p>{text}</p><p>2 likes</p></div>",
        plain("<div class=card><p>{text}</p><p>{votes} likes</p></div>"),
        "{question}<p>{k} replies</p>{answers}",
    ),
    "question outside posts, without a box": page(
        "<h4 class=name>{name}</h4><p>{text}</p><div class=foot><a href=#>Like</a> · <a href=#>Reply</a></div>",
        plain(BOX + "<p>{text}</p><p>{votes} upvotes</p></div>"),
        "<li class=talk><div>{question}<p>{k} Answers</p><div>{answers}</div></div></li>",
    ),
    "chosen, no votes, boxes without names": page(
        "<div class=start><p>{text}</p></div>",
        marked(BOX + "<p>{text}</p>(mark)</div>", "<p>Best answer</p>"),
        "<article>{question}<h4>Responses</h4><div><div>{answers}</div></div></article>",
    ),
    "chosen by microdata": page(
        "<div class=start><p>{text}</p></div>",
        marked("<div class=cell (mark)><p>{text}</p></div>", "itemprop=acceptedAnswer"),
        "<h3>Stuck on number {n}</h3>{question}<h4>Answers</h4><ul class=list>{answers}</ul>",
    ),
    "chosen by a tooltip, with fewer votes": page(
        "<div class=start><p>{text}</p></div>",
        marked(
            "<div class=cell><span class=score>(votes)</span>(mark)<p>{text}</p></div>",
            "<span class=ok title='The asker accepted this answer'></span>",
            "1",
        ),
        "<div class=talk>{question}<div>{answers}</div></div>",
    ),
    "names, ranks and dates in a head of its own": page(
        "<div class=cell><div class=head><span>{name}</span> <time>3 May 2020</time> <a href=#p>#{n}</a></div>"
        "<div class=md>{text}</div></div>",
        plain(
            "<div class=cell><div class=head><span>{name}</span> <time>9 May 2020</time> <a href=#p>#{n}</a></div>"
            "<div class=md>{text}</div><div class=voting><a>▲</a><span>{votes}</span><a>▼</a></div></div>"
        ),
        "<section>{question}{answers}</section>",
    ),
    "authors as headings": page(
        "<article class=cell><div><h4 class=x>{name}</h4> Messages: 3{n}</div><div class=md>{text}</div></article>",
        plain(
            "<article class=cell><div><h4 class=x>{name}</h4> Messages: 1{n}</div><div class=md>{text}</div>"
            "<div class=vote-box><a>Upvote</a> <span>{votes}</span> <a>Downvote</a></div></article>"
        ),
        "<section class=talk><h2>Help, problem {n}</h2>{question}{answers}</section>",
    ),
    "a reply that quotes the question": page(
        "<div class=cell><p>{text}</p></div>",
        lambda text, votes, is_best: (
            "<div class=cell>"
            + ("<blockquote><p>Ms. Ito wrote:</p><p>something else</p></blockquote>" if is_best else "")
            + "<p>{text}</p><p>{votes} votes</p></div>"
        ),
        "<section>{question}{answers}</section>",
    ),
    "remarks under posts": page(
        "<div class=cell><p>{text}</p></div>",
        plain(
            "<div class=cell><p>{text}</p><p>{votes} votes</p><div class=replies><div>Is that so?</div></div></div>"
        ),
        "<section>{question}{answers}</section>",
    ),
    "posts in rows of a table": page(
        "<tr><td>{name}</td><td>{text}</td></tr>",
        plain("<tr><td>{name}</td><td>{text}<div class=rate>▲ {votes} ▼</div></td></tr>"),
        "<table class=topic>{question}{answers}</table>",
    ),
    "a table a post, scores in words": page(
        "<table class=b><tr><td>{name}<br>Joined: Mar 2014</td><td>{text}</td></tr></table>",
        plain(
            "<table class=b><tr><td>{name}<br>Joined: Mar 2014</td><td>{text}<p>{votes} people found this helpful</p>"
            "</td></tr></table>"
        ),
        "<h2>Exercise {n}: stuck</h2><div>{question}{answers}</div>",
    ),
    "scores on buttons": page(
        "<div class=cell><h5>{name} says:</h5><p>{text}</p></div>",
        plain("<div class=cell><h5>{name} says:</h5><p>{text}</p><button>Upvote · {votes}</button></div>"),
        "<section>{question}{answers}</section>",
    ),
    "a line that one answer of each thread has": page(
        "<div class=cell><div class=md>{text}</div></div>",
        marked(
            "<div class=cell>(mark)<div class=md>{text}</div><p>3 votes</p></div>",
            "<p class=f>Mentor's pick</p>",
        ),
        "<section>{question}<h4>What others replied</h4>{answers}</section>",
    ),
    "a badge that says solution": page(
        "<div class=cell><div class=md>{text}</div></div>",
        marked("<div class=cell>(mark)<div class=md>{text}</div></div>", "<div class=ribbon>Solution</div>"),
        "<section>{question}<p><b>{k} answers:</b></p>{answers}</section>",
    ),
    "prose between threads": page(
        "<div class=cell><div class=md>{text}</div></div>",
        plain("<div class=cell><div class=md>{text}</div><p>{votes} votes</p></div>"),
        "<section>{question}{answers}</section><p>Try the next one without help, and write down every step.</p>",
    ),
    "unanswered threads": page(
        "<div class=ask><p>{text}</p></div>",
        plain("<div class=cell><p>{text}</p><p>{votes} votes</p></div>"),
        "{question}<h4>{k} answers</h4>{answers}",
        "<p>Nobody has answered yet. Do you know?</p>",
    ),
    "all posts have a word of the first one in their names": page(
        "<div class=topic-post><p>{text}</p></div>",
        marked("<div class='topic-post(mark)'><p>{text}</p></div>", " accepted-answer"),
        "<section><h2>Number {n}</h2>{question}{answers}</section>",
        "<div class=topic-post><p>Following, I would like to know this too.</p></div>",
    ),
    "a table a thread, its first row a title": page(
        "<tr><td>{name}<br>Posts: 8{n}</td><td><small>#1, 2 May</small><div>{text}</div></td></tr>",
        marked(
            "<tr><td>{name}<br>Posts: 8{n}</td><td><small>#{n}, 3 May</small>(mark)<div>{text}</div></td></tr>",
            "<p>✔ Best answer, chosen by the thread starter</p>",
        ),
        "<table class=b><tr><td colspan=2><b>Help with number {n} please</b> <small>Replies: {k}</small></td></tr>"
        "{question}{answers}</table>",
        "<tr><td>Bo<br>Posts: 12</td><td><small>#2, 3 May</small><div>Same here, I am stuck too.</div></td></tr>",
    ),
    "the page's own elements, comments answer": page(
        "<post-credit>Posted by {name}</post-credit><h2>Stuck</h2><div class=md><p>{text}</p></div>",
        plain(
            "<thread-comment><div>u/bob • {votes} points</div><div class=md><p>{text}</p></div><thread-comment><div>"
            "u/al • 2 points</div><div class=md><p>Now I see.</p></div></thread-comment></thread-comment>"
        ),
        "<thread-post>{question}<comment-tree>{answers}</comment-tree></thread-post>",
        "<p>No comments yet</p>",
    ),
    "the page's own elements, comments are remarks": page(
        "<qa-question><p>{text}</p></qa-question><qa-comment><p>@al • 7 points</p><p>What did you do?</p></qa-comment>",
        plain(
            "<qa-answer><p>{text}</p><p>{votes} points</p><qa-comment><p>@bob • 3 points</p><p>Is that so?</p>"
            "</qa-comment></qa-answer>"
        ),
        "<qa-thread>{question}{answers}</qa-thread>",
    ),
    "comments with scores under other answers": page(
        "<div class=ask><p>{text}</p></div><div class=comment><p>@al • 7 points</p><p>What did you try?</p></div>",
        plain(
            "<div class=cell><p>{text}</p><p>{votes} points</p><div class=comment><p>@bob • 3 points</p>"
            "<p>Is that so?</p></div></div>"
        ),
        "<section>{question}{answers}</section>",
    ),
}


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("-5 points", -5),
        ("▲ −12 ▼", -12),
        ("▲ 3 ▼", 3),
        ("(-1 votes)", -1),
        ("Score: -2", -2),
        ("5 pointers", None),
    ],
)
def test_a_score_keeps_its_sign(text, score):
    assert written_vote(text) == score


@pytest.mark.parametrize("name", PAGES)
def test_the_best_answer_of_each_thread(name):
    assert pairs(PAGES[name]) == EXPECTED


def test_a_page_of_one_thread():
    post = "<div class=cell><b>{}</b><div class=md>{}</div>{}</div>"
    answers = post.format("c_d", WRONG, "<p>4 points</p>") + post.format(
        "ana", "It is 23.", "<p>9 points</p>"
    )
    for asked in (
        post.format("bo", "What is 11 and 12?", ""),
        "<div class=ask><p>What is 11 and 12?</p></div>",
    ):
        assert pairs(f"<div>{asked}<p>2 replies</p>{answers}</div>") == [("What is 11 and 12?", "It is 23.")]


def test_a_reply_to_a_reply_is_another_answer():
    nested = (
        "<li class=c><div class=md>{}</div><p>{} points</p><ul class=k><li class=c><div class=md>{}</div>"
        "<p>{} points</p></li></ul></li>"
    )
    middle = "".join(
        f"<div class=ask><p>{problem}</p></div><ul class=k>{nested.format(WRONG, 3, solution, 8)}</ul>"
        for _, problem, solution in ASKED
        if solution
    )
    assert pairs(middle) == EXPECTED


def test_the_chosen_one_of_a_list_answers_the_first():
    cell = "<li><p><em>ana, 2 weeks ago</em></p>{}<p>{} votes</p></li>"
    chosen = "<span class=ok aria-label='Accepted answer'></span>It is 23."
    posts = cell.format("What is 11 and 12?", 9) + cell.format(WRONG, 7) + cell.format(chosen, 2)
    assert pairs(f"<ol>{posts}</ol>") == [("What is 11 and 12?", "It is 23.")]


def test_answers_that_words_label_keep_their_labels():
    middle = "".join(
        f"<div class=cell><h3>Question {n}</h3><p>{problem}</p></div><div class=cell><h4>Solution by ana</h4>"
        f"<p>{solution}</p><p>4 votes</p></div><hr><p>Work from left to right and write down every step.</p><hr>"
        for n, problem, solution in ASKED
        if solution
    )
    assert pairs(middle) == EXPECTED


def test_questions_that_wait_for_answers_are_no_sign_of_labels():
    """All threads but one say "No answers yet"."""
    page = (FORUMS / "no_answers_yet.html").read_text()
    assert [pair for pair in pairs(page) if pair[1]] == [("Compute 2+2.", "It is 4.")]


def test_titles_of_threads_ask_nothing_and_a_modifier_marks_the_chosen_post():
    post = "<article class='msg{kind}'><dl><dt>Posts</dt><dd>{n}7</dd></dl><p>{text}</p>{vote}</article>"
    vote = "<div class=vote><span class=score>3</span></div>"
    middle = ""
    for n, problem, solution in ASKED:
        posts = [
            (problem, "", ""),
            *([(WRONG, "", vote), (solution, " msg--solution", vote)] if solution else []),
        ]
        shown = "".join(post.format(n=n, text=text, kind=kind, vote=own) for text, kind, own in posts)
        middle += f"<h1><span class=label>Question</span> Stuck with sums, sheet {n}</h1><div class=block>{shown}</div>"
    assert pairs(middle) == EXPECTED


def test_a_score_in_the_foot_of_a_post_and_a_text_in_a_box_named_for_its_user():
    post = (
        "<article class=msg><h4>{name}</h4>{mark}<div class='msg-userContent'><div>{text}</div></div>"
        "<footer class=msg-footer>{vote}<a>Reply</a></footer></article>"
    )
    middle = ""
    for place, (n, problem, solution) in enumerate(ASKED):
        posts = (
            [(WRONGS[place % 3], 3, ""), (solution, 8, "<div>Solution</div>" * (n % 2))] if solution else []
        )
        up = "<div><a>Up</a> <span class=score>{}</span></div>"
        shown = "".join(
            post.format(name=NAMES[i], text=text, mark=mark, vote=up.format(votes))
            for i, (text, votes, mark) in enumerate(posts, 1)
        )
        asked = post.format(name="Bo", text=problem, mark="", vote="")
        middle += f"<div class=block><h1>Sheet {n}: where do I start?</h1>{asked}{shown}<a>Log in</a></div>"
    assert pairs(middle) == EXPECTED


def test_points_of_users_are_no_scores():
    answer = (
        "<div class=cell><div><b class=count>{votes:+d}</b> votes</div><div class=main><p>{text}</p>"
        "<span>answered by Bo <i class=user-points>({points} points)</i></span></div></div>"
    )
    middle = ""
    for place, (n, problem, solution) in enumerate(ASKED):
        posts = [(WRONGS[place % 3], 3, 900), (solution, 8, 20 + n)] if solution else []
        shown = "".join(answer.format(text=text, votes=votes, points=points) for text, votes, points in posts)
        middle += f"<h1>Question {n}</h1><div class=ask><p>{problem}</p></div><div><h2>{len(posts)} Answers</h2>{shown}"
        middle += "</div>"
    assert pairs(middle) == EXPECTED


def test_who_commented_answers_nothing():
    """Remarks in boxes inside answers that only say "commented"."""
    page = (FORUMS / "who_commented.html").read_text()
    assert "commented" in page and pairs(page) == EXPECTED


COMMENT = (
    "<div class='thing comment'><p class=tagline>{name} <b class=score>{votes} points</b></p>"
    "<div class=md>{text}</div></div>"
)


def commented(n, problem, posts):
    shown = "".join(
        COMMENT.format(name=NAMES[i], text=text, votes=votes) for i, (text, votes) in enumerate(posts)
    )
    title = f"<div class=commentarea><p class=title>all {len(posts)} comments</p>{shown}</div>"
    asked = f"<p class=title>[Exercise {n}] Need help</p><div class=md><p>{problem}</p></div>"
    return f"<div class=link>{asked}</div>{title}"


def test_comments_answer_where_nothing_else_does():
    middle = "".join(
        commented(n, problem, [(WRONGS[place % 3], 3), (solution, 12 + n)] if solution else [])
        for place, (n, problem, solution) in enumerate(ASKED)
    )
    assert pairs(middle) == EXPECTED


def test_comments_are_remarks_where_something_else_answers():
    middle = "".join(
        f"<h3>Exercise {n}</h3><p>{problem}</p>"
        + (f"<h4>Solution</h4><p>{solution}</p>" if solution else "")
        + COMMENT.format(name="ana", text="Thanks, that helped. Is it not 99?", votes=4 + n)
        for n, problem, solution in ASKED
    )
    assert pairs(middle) == EXPECTED


@pytest.mark.parametrize(
    "post",
    [
        "".join(f"<h3>Exercise {n}</h3><p>{problem}</p>" for n, problem, _ in ASKED),
        "<h1>Why sums matter</h1><p>How would you add without them? This post explains it all in a few lines.</p>",
    ],
)
def test_comments_under_one_post_answer_nothing(post):
    remarks = (
        "I love this sheet, thanks for posting.",
        "Is number 3 right? I get 9.",
        "Could you add more of them?",
    )
    comments = "".join(COMMENT.format(name=NAMES[i], text=text, votes=i) for i, text in enumerate(remarks))
    assert pairs(f"{post}<section class=comments><h2>3 Comments</h2>{comments}</section>") == []


def test_titles_and_missing_scores_together_tell_where_threads_begin():
    """Question and answers stand in boxes of their own, and a list that asks nothing between title and question."""
    post = "<article class=msg><h4>{name}</h4>{vote}<div class=md>{text}</div></article>"
    middle = ""
    for n, problem, solution in ASKED:
        posts = [(WRONG, 3), (solution, 8)] if solution else []
        shown = [
            post.format(name="ana", text=t, vote=f"<div><a>Up</a><b class=score>{v}</b></div>")
            for t, v in posts
        ]
        middle += (
            f"<h1>Sheet {n}</h1><ul><li>Thread starter Bo</li><li>Start date May 3, 2020</li></ul>"
            f"<div class=block>{post.format(name='Bo', text=problem, vote='')}</div>"
            + (f"<div class=block>{''.join(shown)}</div>" if shown else "")
        )
    assert pairs(middle) == EXPECTED


def test_a_list_of_terms_is_no_thread_because_it_has_answers():
    middle = "".join(
        f"<dt><b>Exercise {n}</b></dt><dd>{problem}<p></dd><dt><b>Answer</b></dt><dd>{solution}<p></dd>"
        for n, problem, solution in ASKED
        if solution
    )
    assert pairs(f"<p class='points'>Of 20 points</p><h2>Review</h2><dl>{middle}</dl>") == EXPECTED


@pytest.mark.parametrize(
    "form",
    [
        "<div class=card><h3>{problem}</h3><p>Seen by many, liked by some.</p><p>{n}1 likes</p></div>",
        "<article><p>{problem}</p><p>{n} votes</p><p>{n} answers</p></article>",
        "<li class=row><a href=/q/{n}>{problem}</a> <span class=score>{n}</span></li>",
    ],
)
def test_a_list_of_rated_texts_is_no_thread(form):
    assert pairs("".join(form.format(n=n, problem=problem) for n, problem, _ in ASKED)) == []
