"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 6."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_ATOM = re.compile(
    r"!\[(?P<alt>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<src>[^()\n]*(?:\([^()\n]*\)[^()\n]*)*)\)"
    r"|(?<!\\)\$\$.+?\$\$|\\\(.+?\\\)|\\\[.+?\\\]"
    r"|(?<!\\)\$(?:(?!\n[ \t]*\n|!\[)(?:\\.|[^$\\]))+\$",
    re.DOTALL,
)
_AUTHORS = ("mira_k", "T. Okafor", "jlind", "Pavel", "sunnyday7", "R. Castellanos", "Hana B.", "oldowl")
_TOPICS = ("Algebra", "Revision", "Week 6", "Mechanics", "Mixed practice", "Core skills", "Past papers")
_LEVELS = ("Easy", "Medium", "Hard")
_HINTS = ("Write down what is given before you start.", "Look back at the second example of this section.")
_GUESSES = (
    "I think everything cancels so it has to be 0, but I have not checked.",
    "Just plug the numbers into the formula from the book. I got 12.",
    "Not sure, my calculator says 3.7 so I would go with that.",
    "You can skip all the steps and read it off the graph, it is clearly negative.",
    "It cannot be done, there is not enough information given.",
)


def _paragraphs(text: str) -> list[str]:
    """Gives the HTML of each paragraph of a text, formulas whole and images as elements."""
    atoms: list[str] = []

    def keep(match: re.Match[str]) -> str:
        if match["src"] is None:
            atoms.append(html.escape(match[0], quote=False))
        else:
            atoms.append(f'<img src="{html.escape(match["src"])}" alt="{html.escape(match["alt"])}">')
        return f"\x00{len(atoms) - 1}\x00"

    kept = html.escape(_ATOM.sub(keep, text.strip()), quote=False)
    parts = [part.strip().replace("\n", "<br>\n") for part in re.split(r"\n[ \t]*\n\s*", kept)]
    return [re.sub("\x00(\\d+)\x00", lambda found: atoms[int(found[1])], part) for part in parts]


def _ps(text: str, lead: str = "") -> str:
    """Gives a text as paragraph elements, the first one opening with the lead."""
    first, *rest = _paragraphs(text)
    return "\n".join(f"<p>{part}</p>" for part in [lead + first, *rest]) + "\n"


def _flow(text: str) -> str:
    """Gives a text with its paragraphs parted by line breaks only."""
    return "<br><br>\n".join(_paragraphs(text))


def _date(rng: random.Random) -> str:
    """Gives a date as blogs and forums write it."""
    return f"{rng.randint(1, 28)} {rng.choice(('March', 'June', 'October'))} {rng.randint(2009, 2024)}"


def _wrong(exercises: Sequence[Gold], item: Gold, rng: random.Random) -> list[str]:
    """Gives one to three wrong answers to an exercise."""
    others = [e.solution for e in exercises if e.solution and e.solution != item.solution]
    pool = rng.sample(others, min(2, len(others))) + rng.sample(_GUESSES, 2)
    return rng.sample(pool, rng.randint(1, min(3, len(pool))))


def heading_sphinx(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Course notes built by Sphinx: numbered headings with permalinks, a sub-heading for the answer."""
    week, word = rng.randint(2, 11), rng.choice(("Worked answer", "Model solution", "Solution"))
    page = f'<section id="practice"><h1>{week}. Practice<a class="headerlink" href="#practice">¶</a></h1>\n'
    page += "<p>Attempt each item on paper before you read on. Starred items are optional.</p>\n"
    for item in exercises:
        key, star = f"practice-{week}-{item.number}", rng.choice(("", "", " *"))
        page += f'<section id="{key}">\n<h2><span class="section-number">{week}.{item.number}. </span>'
        page += f'Practice item{star}<a class="headerlink" href="#{key}" title="Permalink">¶</a></h2>\n'
        if rng.random() < 0.4:
            page += f'<p class="meta"><em>About {rng.randint(1, 6) * 5} minutes</em></p>\n'
        page += _ps(item.problem)
        if item.solution is not None:
            page += f'<section id="{key}-answer">\n<h3>{word}<a class="headerlink" href="#{key}-answer">'
            page += f"¶</a></h3>\n{_ps(item.solution)}</section>\n"
        page += "</section>\n"
    return page + '<div class="prev-next"><a href="#">previous</a> | <a href="#">next</a></div></section>'


def heading_wiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A wiki page: a contents box, for each task the headings Statement, Hint and Full solution."""

    def head(level: int, name: str, key: str) -> str:
        edit = '<span class="mw-editsection">[<a href="/index.php?action=edit">edit</a>]</span>'
        return f'<h{level}><span class="mw-headline" id="{key}">{name}</span>{edit}</h{level}>\n'

    page = '<p>These are the tasks of the <a href="/wiki/Unit">unit</a>. Please add what is missing.</p>\n'
    toc = "".join(f'<li><a href="#Task_{e.number}">Task {e.number}</a></li>' for e in exercises)
    page += f'<div id="toc" class="toc"><h2>Contents</h2><ul>{toc}</ul></div>\n'
    for item in exercises:
        page += head(2, f"Task {item.number}", f"Task_{item.number}")
        page += head(3, "Statement", f"Statement_{item.number}") + _ps(item.problem)
        if rng.random() < 0.3:
            page += head(3, "Hint", f"Hint_{item.number}") + f"<p>{rng.choice(_HINTS)}</p>\n"
        if item.solution is not None:
            page += head(3, "Full solution", f"Full_solution_{item.number}") + _ps(item.solution)
        if rng.random() < 0.25:
            page += head(3, "See also", f"See_also_{item.number}")
            page += f'<ul><li><a href="/wiki/T">{rng.choice(_TOPICS)}</a></li></ul>\n'
    return page + f'<div class="catlinks">Category: <a href="/wiki/C">{rng.choice(_TOPICS)}</a></div>'


def dl_review(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Notes of a static site: one definition list, questions as terms and answers as definitions."""
    page = f"<h2>{rng.choice(('Review questions with answers', 'Self-test: questions and answers'))}</h2>\n"
    page += f'<p class="post-meta">Last updated {_date(rng)} · <a href="#">Improve this page</a></p>\n'
    page += "<p>Each question is in bold; its answer is indented below it. Some are left for you.</p>\n"
    page += '<dl class="review">\n'
    for item in exercises:
        tag = f' <small class="tag">{rng.choice(_LEVELS).lower()}</small>' if rng.random() < 0.4 else ""
        page += f'<dt id="rq{item.number}"><b>{item.number}.</b>{tag} {_flow(item.problem)}</dt>\n'
        if item.solution is not None:
            page += f"<dd>{_ps(item.solution)}</dd>\n"
    return page + "</dl>"


def dl_item_bank(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An item bank: a definition list for each record, with fields for its topic, task and answer."""
    prefix = rng.choice(("MA", "PH", "Q", "BANK"))
    page = f'<p class="results">Showing {len(exercises)} of {rng.randint(120, 900)} items</p>\n'
    for item in exercises:
        code = f'{prefix}-{item.number:04d} <a href="#" class="save">Add to my test</a>'
        fields = [("Item", code), ("Topic", rng.choice(_TOPICS)), ("Difficulty", rng.choice(_LEVELS))]
        fields += [("Task text", _ps(item.problem)), ("Marks", str(rng.randint(1, 8)))]
        if item.solution is not None:
            fields.append(("Model answer", _ps(item.solution)))
        if rng.random() < 0.5:
            fields.append(("Contributed by", rng.choice(_AUTHORS)))
        rows = "".join(f'<dt class="col-3">{key}</dt>\n<dd class="col">{body}</dd>\n' for key, body in fields)
        page += f'<article class="record">\n<dl class="row">\n{rows}</dl>\n</article>\n'
    return page + '<ul class="pagination"><li>1</li><li><a href="?page=2">2</a></li></ul>'


def table_worksheet(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A worksheet, teacher's copy: one table, a row for each task, the answer in the last column."""
    name = rng.choice(("Answer with working", "Expected answer", "Teacher's key"))
    page = f"<h2>Worksheet {rng.randint(1, 30)} (teacher copy)</h2>\n"
    page += f'<p><a href="sheet.pdf">Print</a> | <a href="s.doc">Word</a> | {rng.randint(9, 45)} min</p>\n'
    page += '<table class="table bordered">\n<thead><tr><th scope="col">No.</th><th scope="col">Task</th>'
    page += f'<th scope="col">Marks</th><th scope="col">{name}</th></tr></thead>\n<tbody>\n'
    for item in exercises:
        answer = "&nbsp;" if item.solution is None else _flow(item.solution)
        page += f"<tr><td>{item.number}</td>\n<td>{_flow(item.problem)}</td>\n"
        page += f'<td class="c">{rng.randint(1, 6)}</td>\n<td>{answer}</td></tr>\n'
    return page + "</tbody></table>\n<p><small>Free for classroom use.</small></p>"


def table_old_course(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A hand-made course page of the nineties: a bordered table for each problem, rows with names."""
    page = f"<center><h2>Homework {rng.randint(1, 12)}</h2><i>{rng.choice(_AUTHORS)}</i></center><hr>\n"
    page += f"<p>Due {_date(rng)}. Solutions are posted after the due date.</p>\n"
    for item in exercises:
        page += f'<a name="p{item.number}"></a>\n<table border="1" cellpadding="6" width="95%">\n'
        page += f'<tr bgcolor="#ccddee"><td colspan="2"><b>Problem #{item.number}</b> '
        page += f'<font size="-1">({rng.randint(2, 20)} pts)</font></td></tr>\n'
        page += f'<tr><td valign="top" width="12%"><b>Problem</b></td><td>{_ps(item.problem)}</td></tr>\n'
        if item.solution is not None:
            page += f'<tr><td valign="top"><b>Solution</b></td><td>{_ps(item.solution)}</td></tr>\n'
        page += '</table>\n<font size="-2"><a href="#top">Back to top</a></font><br><br>\n'
    return page


def forum_solved_topics(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A help board: topics with replies, of which the one that solved it bears the solution mark."""

    def post(place: int, author: str, body: str, mark: str = "") -> str:
        out = f'<div class="topic-post{" accepted-answer" if mark else ""}">\n'
        out += f'<div class="names"><span class="username">{author}</span> <time>{9 - place} days ago</time> '
        out += f'<a class="nr" href="#">#{place}</a></div>\n{mark}<div class="cooked">\n{body}</div>\n'
        out += f'<div class="post-controls"><button>♡ {rng.randint(0, 9)}</button> <button>Share</button> '
        return out + "<button>Bookmark</button> <button>Reply</button></div>\n</div>\n"

    page = ""
    for item in exercises:
        asker, *helpers = rng.sample(_AUTHORS, 6)
        page += f'<section class="topic">\n<h2><a href="/t">Need help with no. {item.number}</a></h2>\n'
        page += f'<div class="topic-tags">Homework help · <a href="/tag/t">{rng.choice(_TOPICS)}</a></div>\n'
        page += post(1, asker, _ps(item.problem))
        if item.solution is None:
            if rng.random() < 0.5:
                page += post(2, helpers[0], "<p>Following, I would like to know this too.</p>\n")
            page += '<p class="topic-status">This topic has no solution yet.</p>\n</section>\n'
            continue
        replies = [(text, "") for text in _wrong(exercises, item, rng)]
        mark = '<div class="accepted-label">✓ Marked as the solution by the topic author</div>\n'
        replies.insert(rng.randint(0, len(replies)), (item.solution, mark))
        for place, (text, label) in enumerate(replies, start=2):
            page += post(place, helpers[place - 2], _ps(text), label)
        if rng.random() < 0.5:
            page += post(len(replies) + 2, asker, "<p>Thank you so much, now I get it!</p>\n")
        page += "</section>\n"
    return page


def forum_votes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question and answer software without accepted marks: answers by date, votes tell the best."""
    day, topic, page = _date(rng), rng.choice(_TOPICS), ""

    def entry(kind: str, votes: int, text: str, remark: str) -> str:
        out = f'<div class="qa-{kind}-item">\n<div class="qa-voting"><button>+</button>'
        out += f'<span class="qa-netvote-count">{votes:+d}</span> votes<button>–</button></div>\n'
        out += f'<div class="qa-{kind}-content">\n{_ps(text)}</div>\n<div class="qa-meta">{day} by '
        out += f'<a href="/user">{rng.choice(_AUTHORS)}</a> (240 points) <a href="#">flag</a></div>\n'
        if remark:
            out += f'<div class="qa-comment"><p>{remark}</p> – <i>{rng.choice(_AUTHORS)}</i></div>\n'
        return out + "</div>\n"

    for item in exercises:
        page += f'<div class="qa-view">\n<h2>Question {item.number} of the set: {topic}</h2>\n'
        page += entry("q", rng.randint(1, 5), item.problem, rng.choice(("", "What have you tried so far?")))
        if item.solution is None:
            page += "<h3>0 Answers</h3>\n<p>Please log in or register to answer this question.</p>\n</div>\n"
            continue
        doubts = ("", "This is not right, check it again.")
        wrong = _wrong(exercises, item, rng)
        answers = [(rng.choice((-4, -2, -1, 1, 2)), text, rng.choice(doubts)) for text in wrong]
        right = (rng.randint(7, 38), item.solution, rng.choice(("", "Very clear, thanks!")))
        answers.insert(rng.randint(0, len(answers)), right)
        page += f'<h3>{len(answers)} Answers</h3>\n<p>Sorted by: <b>oldest</b> | <a href="#">votes</a></p>\n'
        page += "".join(entry("a", *answer) for answer in answers) + "</div>\n"
    return page


def end_publisher_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An open textbook: the chapter's numbered problems, linked to the Answer Key after them."""
    chapter = rng.randint(2, 14)
    page = f'<section class="os-exercises"><h2>Chapter {chapter} Problems</h2>\n'
    page += "<p>Numbers in blue have an entry in the answer key.</p>\n"
    key = f'<section class="os-solutions"><h2>Answer Key</h2>\n<h3>Chapter {chapter}</h3>\n'
    for item in exercises:
        number = f'<span class="os-number">{item.number}</span>'
        if item.solution is not None:
            number = f'<a class="os-number" href="#k{item.number}">{item.number}</a>'
            key += f'<div data-type="solution" id="k{item.number}"><a href="#e{item.number}">{item.number}'
            key += f'</a><span class="os-divider">. </span>\n<div>{_ps(item.solution)}</div></div>\n'
        page += f'<div data-type="exercise" id="e{item.number}"><div data-type="problem">{number}'
        page += f'<span class="os-divider">. </span>\n<div>{_ps(item.problem)}</div></div></div>\n'
    turn = '<nav class="prev-next"><a href="#">Previous</a> <a href="#">Order a print copy</a></nav>'
    return f"{page}</section>\n{turn}\n{key}</section>"


def end_problem_sheet(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutor's problem sheet: bold question numbers, a rule, and the answers by number below it."""
    page = f"<h1>Problem Sheet {rng.randint(1, 9)}: {rng.choice(_TOPICS)}</h1>\n"
    page += '<p>[<a href="#answers">Jump to answers</a>] [<a href="s.pdf">PDF</a>]</p>\n<h2>Questions</h2>\n'
    key = '<hr>\n<a name="answers"></a><h2>Answers to Questions</h2>\n<p>Mail me if you find a mistake.</p>\n'
    for item in exercises:
        marks = f"<i>[{rng.randint(1, 9)} marks]</i> " if rng.random() < 0.5 else ""
        page += _ps(item.problem, f'<a name="q{item.number}"></a><b>Q{item.number}</b>&nbsp; {marks}')
        if item.solution is not None:
            key += _ps(item.solution, f'<a name="a{item.number}"></a><b>A{item.number}</b>&nbsp; ')
            key += f'<p><small><a href="#q{item.number}">back to Q{item.number}</a></small></p>\n'
    return page + key


def toggle_bootstrap(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A course site of cards: buttons that open a hint or the solution of each challenge."""
    word, page = rng.choice(("Reveal solution", "View solution", "Solution")), ""
    for item in exercises:
        panes = [("hint", "Hint", f"<p>{rng.choice(_HINTS)}</p>")] if rng.random() < 0.35 else []
        if item.solution is not None:
            panes.append(("sol", word, _ps(item.solution)))
        page += f'<div class="card" id="c{item.number}">\n<div class="card-header">Challenge {item.number} '
        page += f'<span class="badge">{rng.choice(_LEVELS)}</span> <span class="xp">+20 XP</span></div>\n'
        page += f'<div class="card-body">\n{_ps(item.problem)}</div>\n<div class="card-footer">'
        page += '<button class="btn btn-link" type="button">☆ Bookmark</button>'
        for kind, name, _ in panes:
            page += '<button class="btn btn-primary" type="button" data-bs-toggle="collapse" '
            page += f'data-bs-target="#{kind}{item.number}" aria-expanded="false">{name}</button>'
        page += "</div>\n"
        for kind, _, body in panes:
            page += f'<div class="collapse card-body" id="{kind}{item.number}">\n{body}</div>\n'
        page += "</div>\n"
    return page


def toggle_show_hide_link(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutorial page with its own script: a show/hide link under each problem opens a hidden block."""
    text = rng.choice(("[show/hide answer]", "Click here to see how it is done", "Show/Hide my work"))
    page = "<script>function flip(id){var b=document.getElementById(id);"
    page += "b.style.display=b.style.display=='none'?'block':'none';}</script>\n"
    page += "<p>Now try these yourself. Click the link under a problem to check your work.</p>\n"
    for item in exercises:
        page += f'<div class="try"><h4>Try it {item.number}</h4>\n{_ps(item.problem)}'
        if item.solution is not None:
            page += f'<p><a href="javascript:void(0)" onclick="flip(\'w{item.number}\')">{text}</a></p>\n'
            page += f'<div id="w{item.number}" style="display:none">\n{_ps(item.solution)}</div>\n'
        page += "</div>\n"
        if rng.random() < 0.2:
            page += '<div class="adbox"><small>Advertisement</small></div>\n'
    return page + '<p><a href="l1.htm">&lt;&lt; Previous</a> | <a href="l3.htm">Next lesson &gt;&gt;</a></p>'


def inline_coaching(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A coaching site's post: bold Que. and Ans. labels in paragraphs, ads and share links between."""
    page = f'<h1 class="entry-title">{rng.choice(_TOPICS)}: Important Questions with Answers</h1>\n'
    page += f'<div class="entry-meta">By {rng.choice(_AUTHORS)} | {_date(rng)} | 14 Comments</div>\n'
    page += "<p>Students must practise these important questions before the exam.</p>\n"
    for item in exercises:
        year = f' <span class="exam">[{rng.randint(2008, 2023)}]</span>' if rng.random() < 0.3 else ""
        page += _ps(item.problem, f"<strong>Que. {item.number}:</strong>{year} ")
        if item.solution is not None:
            page += _ps(item.solution, '<span style="color: #008000;"><strong>Ans.</strong></span> ')
        if rng.random() < 0.2:
            page += '<div class="code-block ad-slot"><!-- ad --></div>\n'
    return page + '<div class="share">Share this: <a href="#">WhatsApp</a> <a href="#">Telegram</a></div>'


def inline_blogspot(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A hobby blog: one post body held together by line breaks, plain labels in the running text."""
    ask, tell = rng.choice((("Problem", "Soln:"), ("Puzzle", "My solution:"), ("Ex", "Sol:")))
    page = f'<h2 class="date-header">{_date(rng)}</h2>\n<h3>{rng.choice(_TOPICS)}, part II</h3>\n'
    page += '<div class="post-body">\nHere are the ones we did in the club this month.<br /><br />\n'
    for item in exercises:
        page += f"{ask} {item.number}) {_flow(item.problem)}<br /><br />\n"
        if item.solution is not None:
            page += f"{tell} {_flow(item.solution)}<br /><br />\n"
        page += rng.choice(("<br />\n", "* * *<br /><br />\n"))
    page += f'</div>\n<div class="post-footer">Posted by {rng.choice(_AUTHORS)} at 9:42 PM '
    return page + '<a href="#">Email This</a> <a href="#">BlogThis!</a> Labels: <a href="#">club</a></div>'


LAYOUTS: dict[str, Style] = {
    "heading_sphinx": heading_sphinx,
    "heading_wiki": heading_wiki,
    "dl_review": dl_review,
    "dl_item_bank": dl_item_bank,
    "table_worksheet": table_worksheet,
    "table_old_course": table_old_course,
    "forum_solved_topics": forum_solved_topics,
    "forum_votes": forum_votes,
    "end_publisher_key": end_publisher_key,
    "end_problem_sheet": end_problem_sheet,
    "toggle_bootstrap": toggle_bootstrap,
    "toggle_show_hide_link": toggle_show_hide_link,
    "inline_coaching": inline_coaching,
    "inline_blogspot": inline_blogspot,
}
