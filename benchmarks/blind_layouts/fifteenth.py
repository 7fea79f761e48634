"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 15."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_TOKEN = re.compile(
    r"!\[(?P<alt>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<src>[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)\)"
    r"|\\begin\{(?P<env>[a-z]+\*?)\}.*?\\end\{(?P=env)\}"
    r"|\\\[.*?\\\]|\\\(.*?\\\)|(?<!\\)\$\$.+?\$\$|(?<!\\)\$(?:(?!\n\s*\n)[^$])+\$",
    re.DOTALL,
)
_TOPICS = ["Algebra", "Functions", "Geometry", "Number theory", "Probability", "Mechanics", "Calculus"]
_LEVELS = ["Easy", "Medium", "Hard", "Challenging"]
_USERS = ["mira_k", "tomas83", "Prof. Lindqvist", "gauss_fan", "ellie.w", "dvd_n", "Ruth A.", "hanako"]
_GUESSES = [
    "I get 42, but I did it in my head and may have slipped a sign somewhere.",
    "Not sure, but isn't it just zero? Everything seems to cancel when I try it.",
    "Try drawing a picture first, then it should become obvious.",
    "My calculator says roughly 3.7 so I would go with that.",
    "We had something similar last week and the result was $2\\sqrt{3}$, so probably the same here.",
    "I don't think this can be done without more information.",
]
_COMMENTS = ["Thanks, this helped a lot!", "What have you tried so far?", "Nice one. +1", "Use MathJax."]


def _paragraphs(text: str) -> list[str]:
    """The paragraphs of a text as inline HTML, with formulas whole and images as img elements."""
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(html.escape(match[0], quote=False))
        if match["src"] is not None:
            kept[-1] = f'<img src="{html.escape(match["src"])}" alt="{html.escape(match["alt"])}">'
        return f"\ue000{len(kept) - 1}\ue001"

    parts = re.split(r"\n[ \t]*\n\s*", _TOKEN.sub(keep, text).strip())
    return [re.sub("\ue000(\\d+)\ue001", lambda m: kept[int(m[1])], html.escape(p, False)) for p in parts]


def _block(text: str, lead: str = "") -> str:
    """The text as p elements, with a label before its first words."""
    return f"<p>{lead}" + "</p>\n<p>".join(_paragraphs(text)) + "</p>"


def _flow(text: str) -> str:
    """The text as inline HTML, paragraphs parted by line breaks."""
    return "<br>\n<br>\n".join(_paragraphs(text))


def _date(rng: random.Random) -> str:
    """A date for people."""
    return f"{rng.choice(['Jan', 'Mar', 'Sep', 'Nov'])} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def heading_contest_wiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A contest wiki: mw-headline headings with edit links, a contents box and a navigation box."""

    def heading(level: int, anchor: str, text: str) -> str:
        edit = '<span class="mw-editsection">[<a href="/wiki/index.php?action=edit">edit</a>]</span>'
        return f'<h{level}><span class="mw-headline" id="{anchor}">{text}</span>{edit}</h{level}>'

    toc = "\n".join(f'<li><a href="#Problem_{e.number}">Problem {e.number}</a></li>' for e in exercises)
    out = [f'<div class="mw-parser-output"><div id="toc" class="toc"><h2>Contents</h2><ul>{toc}</ul></div>']
    for gold in exercises:
        out += [heading(2, f"Problem_{gold.number}", f"Problem {gold.number}"), _block(gold.problem)]
        if gold.solution is not None:
            out += [heading(3, f"Solution_{gold.number}", "Solution"), _block(gold.solution)]
            if rng.random() < 0.4:
                out.append(f'<p>~<a href="/wiki/User:X" class="new">{rng.choice(_USERS)}</a></p>')
    year = rng.randint(1990, 2020)
    out.append(f"""{heading(2, "See_also", "See also")}<ul>
<li><a href="/wiki/{year}">{year} Contest</a></li></ul>
<table class="navbox"><tr><td>Preceded by {year - 1}</td><td>Followed by {year + 1}</td></tr></table></div>
<div id="catlinks">Category: <a href="/wiki/Cat">Problem sets</a></div>""")
    return "\n".join(out)


def heading_tutor_blog(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A WordPress tutoring post: example headings, solution headings, advertisements and sharing links."""
    word = rng.choice(["Example", "Practice Problem", "Exercise"])
    answer = rng.choice(["Solution", "Step-by-Step Solution", "Worked Solution"])
    out = [
        f"""<article class="post type-post hentry"><header class="entry-header">
<h1 class="entry-title">{rng.choice(_TOPICS)}: Worked Problems</h1><div class="entry-meta">Posted on
<time>{_date(rng)}</time> by <span class="author vcard">{rng.choice(_USERS)}</span> &middot;
{rng.randint(2, 40)} Comments</div></header><div class="entry-content">"""
    ]
    for gold in exercises:
        out.append(f'<h3 class="wp-block-heading" id="h-{gold.number}">{word} {gold.number}</h3>')
        out.append(_block(gold.problem))
        if gold.solution is not None:
            out.append(f'<h4 class="wp-block-heading">{answer}</h4>\n' + _block(gold.solution))
        if rng.random() < 0.3:
            out.append('<div class="adsbygoogle"><span class="ad-label">Advertisement</span></div>')
        out.append('<hr class="wp-block-separator has-alpha-channel-opacity">')
    out.append("""</div><div class="sharedaddy"><h3 class="sd-title">Share this:</h3><ul>
<li><a href="#">Facebook</a></li><li><a href="#">Twitter</a></li></ul></div><div id="jp-relatedposts">
<h3><em>Related</em></h3><p><a href="/fractions">How to add fractions</a></p></div></article>""")
    return "\n".join(out)


def dl_item_record(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An item bank: a description list of a record's details for every item."""
    asked = rng.choice(["Statement", "Problem", "Question"])
    answered = rng.choice(["Model answer", "Solution", "Worked answer"])
    out = [f'<div class="container"><p>Showing {len(exercises)} of {rng.randint(200, 900)} items</p>']
    for gold in exercises:
        rows = [("Item no.", str(gold.number)), ("Subject", rng.choice(_TOPICS))]
        rows += [(asked, _block(gold.problem)), ("Difficulty", rng.choice(_LEVELS))]
        if gold.solution is not None:
            rows.append((answered, _block(gold.solution)))
        rows += [("Contributed by", rng.choice(_USERS)), ("Last revised", _date(rng))]
        cells = "\n".join(f'<dt class="col-sm-3">{k}</dt>\n<dd class="col-sm-9">{v}</dd>' for k, v in rows)
        out.append(f'<dl class="row item-record" id="item-{gold.number}">\n{cells}\n</dl>')
        out.append('<p class="actions"><a class="btn" href="#">Add to quiz</a> <a href="#">Report</a></p>')
    return "\n".join([*out, '<nav class="pagination"><a href="?p=1">1</a> <a href="?p=2">2</a></nav></div>'])


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A Drupal school portal: nodes of labelled fields."""

    def field(name: str, label: str, item: str) -> str:
        return f"""<div class="field field--name-field-{name} field--label-above">
<div class="field__label">{label}</div><div class="field__item">{item}</div></div>"""

    out = ['<div class="view view-problems view-id-problems"><div class="view-content">']
    for gold in exercises:
        out.append('<div class="views-row"><article class="node node--type-problem node--view-mode-full">')
        out.append(field("number", "Number", str(gold.number)))
        out.append(field("grade", "Grade", f'<a href="/grade">{rng.randint(7, 12)}</a>'))
        out.append(field("problem", "Problem", _block(gold.problem)))
        if gold.solution is not None:
            out.append(field("solution", "Solution", _block(gold.solution)))
        out.append(field("tags", "Tags", ", ".join(f'<a href="/t">{t}</a>' for t in rng.sample(_TOPICS, 2))))
        out.append('<ul class="links inline"><li><a href="/user/login">Log in</a> to post comments</li></ul>')
        out.append("</article></div>")
    return "\n".join([*out, "</div></div>"])


def table_rows_bank(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A question bank: one table, a row an exercise."""
    asked, answered = rng.choice([("Question", "Answer"), ("Problem", "Solution"), ("Task", "Model answer")])
    rows = []
    for i, gold in enumerate(exercises):
        solution = "&mdash;" if gold.solution is None else _flow(gold.solution)
        rows.append(f'''<tr class="{"odd" if i % 2 else "even"}"><td class="num">{gold.number}</td>
<td>{_flow(gold.problem)}</td><td>{rng.choice(_TOPICS)}</td><td class="num">{rng.randint(1, 8)}</td>
<td>{solution}</td></tr>''')
    return f"""<h1>Question bank</h1><p>Last updated {_date(rng)}. <a href="bank.csv">Export as CSV</a></p>
<table class="table table-striped dataTable" id="bank">
<thead><tr><th>No.</th><th>{asked}</th><th>Topic</th><th>Marks</th><th>{answered}</th></tr></thead>
<tbody>{"".join(rows)}</tbody></table>
<div class="dataTables_info">Showing 1 to {len(rows)} of {len(rows)} entries</div>"""


def table_mark_scheme(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An exam board's report: a bordered table for each question, with labelled rows."""
    answered = rng.choice(["Solution", "Answer", "Suggested solution"])
    out = [
        f"""<div id="content"><h2>Paper {rng.randint(1, 3)}, {rng.choice(["June", "November"])}
{rng.randint(2010, 2023)}</h2><p><a href="paper.pdf">Download PDF ({rng.randint(90, 900)} kB)</a></p>"""
    ]
    for gold in exercises:
        out.append(f"""<table border="1" cellpadding="6" width="100%">
<tr bgcolor="#dde6f0"><th align="left" colspan="2">Question {gold.number}
<span style="float:right">[{rng.randint(2, 12)} marks]</span></th></tr>
<tr><td valign="top"><b>Problem</b></td><td>{_block(gold.problem)}</td></tr>""")
        if gold.solution is not None:
            out.append(f'<tr><td valign="top"><b>{answered}</b></td><td>{_block(gold.solution)}</td></tr>')
        out.append(f"""<tr><td valign="top"><b>Statistics</b></td><td>{rng.randint(21, 88)}% of
candidates gained full marks; mean {rng.randint(11, 49) / 10}</td></tr></table><br>""")
    return "\n".join([*out, '<p align="center"><a href="#top">Back to top</a></p></div>'])


def _replies(gold: Gold, exercises: Sequence[Gold], rng: random.Random) -> list[tuple[str, int, bool]]:
    """A thread's answers as (text, votes, accepted), shuffled; none where there is no gold solution."""
    if gold.solution is None:
        return []
    others = [e.solution for e in exercises if e.solution is not None and e.solution != gold.solution]
    wrong = rng.sample(_GUESSES, rng.randint(1, 2))
    if others and rng.random() < 0.6:
        wrong[0] = rng.choice(others)
    accepted, votes = rng.random() < 0.6, rng.randint(4, 19)
    top = votes + 5 if accepted else votes - 1
    replies = [(gold.solution, votes, accepted), *((text, rng.randint(0, top), False) for text in wrong)]
    rng.shuffle(replies)
    return replies


def forum_q2a(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Threads of the Question2Answer software: vote boxes, a selected answer, comments."""

    def votes(count: int) -> str:
        return f"""<div class="qa-voting qa-voting-net"><input title="Vote up" type="submit" value="+">
<div class="qa-vote-count"><span class="qa-netvote-count">{count}</span><span> votes</span></div></div>"""

    def meta(what: str) -> str:
        return f"""<span class="qa-a-item-meta"><span class="qa-item-what">{what}</span>
<time>{_date(rng)}</time> by
<a href="/user" class="qa-user-link">{rng.choice(_USERS)}</a> ({rng.randint(20, 9000)} points)</span>"""

    out = []
    for gold in exercises:
        replies = _replies(gold, exercises, rng)
        out.append(f"""<h1 class="qa-title"><a href="/{gold.number}">Problem {gold.number}</a></h1>
<div class="qa-q-view" id="q{gold.number}">{votes(rng.randint(0, 9))}<div class="qa-q-view-main">
<div class="qa-q-view-content">{_block(gold.problem)}</div><ul class="qa-q-view-tag-list"><li>
<a class="qa-tag-link">{rng.choice(_TOPICS).lower()}</a></li></ul>{meta("asked")}</div></div>
<div class="qa-part-a-list"><h2>{len(replies)} Answers</h2><div class="qa-a-list">""")
        for text, count, accepted in replies:
            out.append(f'<div class="qa-a-list-item{" qa-a-list-item-selected" * accepted}">{votes(count)}')
            if accepted:
                out.append('<div class="qa-a-selection qa-a-selected-text">Best answer</div>')
            out.append(f'<div class="qa-a-item-content">{_block(text)}</div>{meta("answered")}')
            if rng.random() < 0.4:
                out.append(f"""<div class="qa-c-list-item">
<div class="qa-c-item-content">{rng.choice(_COMMENTS)}</div>{meta("commented")}</div>""")
            out.append("</div>")
        out.append("</div></div>")
    return "\n".join(out)


def forum_discourse(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Discourse topics in the crawler view: posts with likes and an accepted-answer mark."""
    out = []
    for gold in exercises:
        out.append(f"""<div itemscope itemtype="http://schema.org/QAPage"><div id="topic-title">
<h1><a href="/t/{gold.number}">Exercise {gold.number}</a></h1>
<div class="topic-category">Homework help</div></div>""")
        posts = [(gold.problem, rng.randint(0, 3), False), *_replies(gold, exercises, rng)]
        for i, (text, likes, accepted) in enumerate(posts, 1):
            prop = "mainEntity" if i == 1 else "acceptedAnswer" if accepted else "suggestedAnswer"
            mark = '<span class="accepted-answer"><svg></svg> Solution</span>' if accepted else ""
            out.append(f'''<div id="post_{i}" class="topic-body crawler-post" itemprop="{prop}" itemscope
itemtype="http://schema.org/{"Question" if i == 1 else "Answer"}"><div class="crawler-post-meta">
<span class="creator"><a href="/u/x"><span itemprop="name">{rng.choice(_USERS)}</span></a></span>
<time class="post-time">{_date(rng)}</time><span itemprop="position">{i}</span>{mark}</div>
<div class="post" itemprop="text">{_block(text)}</div>
<meta itemprop="upvoteCount" content="{likes}">
<span class="post-likes">{likes} Like{"s" * (likes != 1)}</span></div>''')
        if len(posts) == 1:
            out.append('<p class="no-replies">No replies yet. <a href="/login">Log in to reply</a></p>')
        out.append("</div>")
    return "\n".join(out)


def end_textbook_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A textbook companion: a numbered list of exercises and, below, a numbered list of answers."""
    chapter = f"{rng.randint(1, 12)}.{rng.randint(1, 9)}"
    tasks = "\n".join(f'<li value="{e.number}">{_block(e.problem)}</li>' for e in exercises)
    solved = [(e.number, e.solution) for e in exercises if e.solution is not None]
    key = "\n".join(f'<li value="{n}">{_block(solution)}</li>' for n, solution in solved)
    return f"""<div class="section"><h2>Exercises {chapter}</h2><ol class="exercises">{tasks}</ol></div>
<div class="answers"><h2>{rng.choice(["Answers to Exercises", "Solutions", "Answers", "Answer Key"])}</h2>
<ol class="answers">{key}</ol></div>
<p class="license">This page titled {chapter} is shared under a <a href="/cc">CC BY-NC-SA</a> license.</p>"""


def end_print_worksheet(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A printable worksheet with writing lines, and an answer key on its last page."""
    out = [
        f"""<div class="worksheet"><div class="ws-head">Name: ________________ &nbsp; Date: ________</div>
<h1>{rng.choice(_TOPICS)} Worksheet {rng.randint(1, 30)}</h1>"""
    ]
    for e in exercises:
        out.append(f"""<div class="ws-q"><span class="ws-num">{e.number})</span> <div class="ws-text">
{_block(e.problem)}</div><div class="ws-lines">____________________________</div></div>""")
    out.append("""<button onclick="window.print()">Print this worksheet</button></div>
<div class="worksheet answer-key" style="page-break-before:always"><h1>Answer Key</h1>""")
    for e in exercises:
        if e.solution is not None:
            out.append(f"""<div class="ws-a"><span class="ws-num">{e.number})</span> <div class="ws-text">
{_block(e.solution)}</div></div>""")
    return "\n".join([*out, f'</div><div class="ws-foot">&copy; {rng.randint(2008, 2024)} FreeSheets</div>'])


def toggle_bootstrap_card(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Bootstrap cards: the solution in a collapse panel behind a button."""
    label = rng.choice(["Show solution", "View Solution", "Show / hide solution", "Reveal answer"])
    out = ['<main class="container">']
    for gold in exercises:
        n = gold.number
        out.append(f"""<div class="card mb-4" id="problem{n}"><div class="card-header d-flex">Problem {n}
<span class="badge bg-warning ms-2">{rng.choice(_LEVELS)}</span></div><div class="card-body">
<div class="card-text">{_block(gold.problem)}</div>""")
        if gold.solution is not None:
            out.append(f"""<button class="btn btn-outline-primary" type="button" data-bs-toggle="collapse"
data-bs-target="#sol{n}" aria-expanded="false" aria-controls="sol{n}">{label}</button>
<div class="collapse" id="sol{n}"><div class="card card-body mt-2">{_block(gold.solution)}</div></div>""")
        out.append(f'</div><div class="card-footer small">{rng.randint(12, 4000)} attempts</div></div>')
    return "\n".join([*out, "</main>"])


def toggle_sphinx_dropdown(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A Jupyter Book: exercise admonitions, and dropdown solutions that link back to them."""
    out = ['<section id="exercises"><h2>Exercises<a class="headerlink" href="#exercises">#</a></h2>']
    for gold in exercises:
        n, name = gold.number, f" ({rng.choice(_TOPICS)})" if rng.random() < 0.4 else ""
        out.append(f"""<div class="exercise admonition" id="ex-{n}">
<p class="admonition-title"><span class="caption-number">Exercise {n}</span>{name}</p>
<section id="exercise-content">{_block(gold.problem)}</section></div>""")
        if gold.solution is not None:
            out.append(f"""<details class="solution dropdown admonition" id="sol-{n}">
<summary class="admonition-title">Solution to<a
class="reference internal" href="#ex-{n}"> Exercise {n}</a></summary>
<section id="solution-content">{_block(gold.solution)}</section></details>""")
    return "\n".join([*out, '</section><div class="prev-next-area"><a href="a.html">previous</a></div>'])


def inline_bold_qa(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A homework help page: bold question and answer labels that open plain paragraphs."""
    asked, answered = rng.choice([("Q{}.", "Ans:"), ("Question {}:", "Answer:"), ("Que {}.", "Solution:")])
    out = [f'<div class="post-body"><p>Important questions on {rng.choice(_TOPICS).lower()} for exams.</p>']
    for gold in exercises:
        out.append(_block(gold.problem, f"<strong>{asked.format(gold.number)}</strong> "))
        if gold.solution is not None:
            out.append(_block(gold.solution, f'<strong style="color:#c00">{answered}</strong> '))
        if rng.random() < 0.2:
            out.append('<p><em>Also read: <a href="/notes">Chapter notes and formulas PDF</a></em></p>')
    return "\n".join([*out, f'<p>Labels: <a href="/c">class {rng.randint(6, 12)}</a></p></div>'])


def inline_lecture_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lecture notes: list items in which the solution runs on behind an italic label."""
    word = rng.choice(["Exercise", "Problem", "Example"])
    out = [f"<h1>Problem Sheet {rng.randint(1, 10)}</h1><p><i>Dept. of Mathematics, {_date(rng)}</i></p><ul>"]
    for gold in exercises:
        out.append(f"<li><b>{word} {gold.number}.</b> {_flow(gold.problem)}")
        if gold.solution is not None:
            out.append(f'<br><i>Solution.</i> {_flow(gold.solution)} <span class="qed">&#9633;</span>')
        out.append("</li>")
    return "\n".join([*out, '</ul><hr><address><a href="index.html">Course home</a></address>'])


LAYOUTS: dict[str, Style] = {
    "heading_contest_wiki": heading_contest_wiki,
    "heading_tutor_blog": heading_tutor_blog,
    "dl_item_record": dl_item_record,
    "dl_drupal_fields": dl_drupal_fields,
    "table_rows_bank": table_rows_bank,
    "table_mark_scheme": table_mark_scheme,
    "forum_q2a": forum_q2a,
    "forum_discourse": forum_discourse,
    "end_textbook_key": end_textbook_key,
    "end_print_worksheet": end_print_worksheet,
    "toggle_bootstrap_card": toggle_bootstrap_card,
    "toggle_sphinx_dropdown": toggle_sphinx_dropdown,
    "inline_bold_qa": inline_bold_qa,
    "inline_lecture_list": inline_lecture_list,
}
