"""extract_web on threads whose posts have parts of their own, bylines and scores beside the mark of acceptance."""

from tests.stages.test_extract_web_blind import SUMS, pairs

WRONG = "I would guess 99."


def thread(n, problem, replies):
    body = "".join(
        f"<li class='reply'><div class='reply-head'><b>{name}</b> replied on Oct {day}, 2021</div>"
        f"<div class='reply-body'><p>{text}</p></div>"
        f"<div class='reply-foot'><button>▲</button> {votes} votes <button>▼</button></div></li>"
        for name, day, text, votes in replies
    )
    return (
        f"<div class='topic'><div class='topic-head'>Topic #{n} · ana · Sep 10, 2023 · 9{n} views</div>"
        f"<div class='topic-body'><p>{problem}</p></div>"
        + (f"<ul class='replies'>{body}</ul>" if replies else "<p>No replies yet.</p>")
        + "</div>"
    )


ASKED = [
    (n, problem, solution)
    for n, problem, solution in [*SUMS, (5, "Find 3+4.", "7"), (6, "Compute 9-1.", "8")]
]
EXPECTED = [(problem, solution) for _, problem, solution in ASKED if solution]


def test_the_reply_with_most_votes_answers_its_own_topic():
    page = "".join(
        thread(
            n,
            problem,
            [("bo", 3, WRONG, 4), ("c_d", 4, solution, 20 + n), ("e", 5, WRONG, 2)] if solution else [],
        )
        for n, problem, solution in ASKED
    )
    assert pairs(page) == EXPECTED


def test_acceptance_beside_the_score_counts_more_than_votes():
    def post(kind, score, text):
        score = f"<div class='score'>{score}</div>"
        return f"<div class='post {kind}'>{score}<div class='post-text'><p>{text}</p></div></div>"

    page = "".join(
        "<section class='thread'>"
        + post("post-question", n, problem)
        + (
            f"<h3>2 Answers</h3>{post('post-answer', 40, WRONG)}{post('post-answer', '3 ✓ Accepted', solution)}"
            if solution
            else "<h3>0 Answers</h3>"
        )
        + "</section>"
        for n, problem, solution in ASKED
    )
    assert pairs(page) == EXPECTED


def test_an_empty_box_of_an_answer_stays_empty():
    page = "".join(
        f"<div class='card'><p class='question'>{problem}</p><div class='answer'><div>Answer and explanation</div>"
        + (f"<p>{solution}</p>" if solution else "")
        + f"</div><p><a href='/f'>Discuss</a> Save 6{n}2 views</p></div>"
        for n, problem, solution in ASKED
    )
    assert pairs(page) == EXPECTED


def test_a_check_mark_alone_chooses_and_is_no_text():
    def reply(votes, mark, text):
        return (
            f"<div class='answer'>{mark}<div class='author'>ana</div><p>{text}</p><p>Score: {votes}</p></div>"
        )

    page = "".join(
        f"<div class='thread'><div class='question'><p>{problem}</p></div><h3>Replies (2)</h3>"
        + (reply(9, "", WRONG) + reply(2, "<div title='accepted'>✔</div>", solution) if solution else "")
        + "</div>"
        for n, problem, solution in ASKED
    )
    assert pairs(page) == EXPECTED


def test_the_first_post_asks_where_replies_have_a_name_of_their_own():
    page = "".join(
        f"<section class='topic'><div class='post op'><p>{problem}</p></div>"
        + (
            f"<div class='reply'><div class='score'>1</div><p>{WRONG}</p></div>"
            f"<div class='reply'><div class='score'>7</div><p>{solution}</p></div>"
            if solution
            else ""
        )
        + "</section>"
        for n, problem, solution in ASKED
    )
    assert pairs(page) == EXPECTED


def test_a_plain_title_over_posts_is_no_answer():
    page = "".join(
        f"<div class='question'><p>{problem}</p></div>"
        + (
            f"<h3>Answers</h3><div class='answer'><p>{WRONG}</p><p>3 votes</p></div>"
            f"<div class='answer'><p>{solution}</p><p>8 votes</p></div>"
            if solution
            else ""
        )
        for n, problem, solution in ASKED
    )
    assert pairs(page) == EXPECTED
