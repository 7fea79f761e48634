"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group K."""

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_ENV = r"\\begin\{(?P<env>\w+\*?)\}.+?\\end\{(?P=env)\}"
_DISPLAY = rf"\$\$.+?\$\$|(?<!\\)\\\[.+?\\\]|(?<!\\)\\\(.+?\\\)|{_ENV}"
_IMAGE = r"!\[(?P<alt>[^\]]*)\]\((?P<src>[^)\s]+)\)"
_PIECE = re.compile(rf"(?P<math>{_DISPLAY}|(?<!\\)\$(?:(?!!\[)[^$\n])+\$)|{_IMAGE}", re.DOTALL)
_BREAK = re.compile(rf"{_DISPLAY}|(?P<gap>\n[ \t]*(?:\n[ \t]*)+)", re.DOTALL)

_USERS = ["maths_mum", "Priya K.", "tobias1987", "quietowl", "DrHendricks", "euler_fan", "j.okafor", "sam_w"]
_GUESSES = [
    "I keep getting 42 but my friend has something else. Can someone check?",
    "Isn't it just zero? That is what my calculator shows.",
    "Not sure, I would guess 7/2. We had this in class last year but I lost my notes.",
    "My guess: it does not exist, because you would have to divide by zero.",
]
_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Sep", "Oct", "Nov", "Dec"]
_TOPICS = ["Algebra", "Geometry", "Mechanics", "Number theory", "Calculus", "Probability", "Thermodynamics"]


def _inline(text: str) -> str:
    """One paragraph as HTML: text escaped, formulas whole, images as elements."""
    out, at = [], 0
    for hit in _PIECE.finditer(text):
        out.append(html.escape(text[at : hit.start()], quote=False))
        if hit["math"] is not None:
            out.append(html.escape(hit["math"], quote=False))
        else:
            out.append(f'<img src="{html.escape(hit["src"])}" alt="{html.escape(hit["alt"])}">')
        at = hit.end()
    return "".join(out) + html.escape(text[at:], quote=False)


def _split(text: str) -> list[str]:
    """The paragraphs of a text, as HTML; a blank line inside a formula is no break."""
    parts, at = [], 0
    for hit in _BREAK.finditer(text):
        if hit["gap"] is not None:
            parts.append(text[at : hit.start()])
            at = hit.end()
    return [_inline(part) for part in [*parts, text[at:]] if part.strip()]


def _paras(text: str, lead: str = "") -> str:
    """The text as <p> elements, the first one beginning with the lead."""
    first, *rest = _split(text) or [""]
    return "\n".join([f"<p>{lead}{first}</p>", *(f"<p>{part}</p>" for part in rest)])


def _lines(text: str) -> str:
    """The text with paragraphs separated by line breaks, as old pages and cells have it."""
    return "<br>\n<br>\n".join(_split(text))


def _sol(gold: Gold, before: str, after: str) -> str:
    """The solution's paragraphs between two pieces of markup; nothing where there is no solution."""
    return "" if gold.solution is None else f"{before}{_paras(gold.solution)}{after}"


def _date(rng: random.Random) -> str:
    return f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def _wrong(gold: Gold, exercises: Sequence[Gold], rng: random.Random, most: int) -> list[str]:
    """Up to `most` wrong answers: solutions of other exercises and guesses."""
    others = [e.solution for e in exercises if e.solution is not None and e.solution != gold.solution]
    pool = rng.sample(_GUESSES, 2) + (rng.sample(others, 1) if others else [])
    return rng.sample(pool, rng.randint(1, min(most, len(pool))))


def heading_tutor_blog(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutoring blog in WordPress blocks: "Practice Question 3", then "Worked solution"."""
    word = rng.choice(["Practice Question", "Question", "Worked Example"])
    answer = rng.choice(["Worked solution", "Solution", "Answer"])
    out = f"""<article id="post-{rng.randint(900, 9000)}" class="post type-post status-publish hentry">
<header class="entry-header"><h1 class="entry-title">Revision pack: practice with full working</h1>
<div class="entry-meta">Posted on <time>{_date(rng)}</time> by <a class="url" href="/claire/">Claire</a>
<a href="#comments">{rng.randint(2, 40)} Comments</a></div></header><div class="entry-content">\n"""
    for i, gold in enumerate(exercises):
        out += f"""<h2 class="wp-block-heading" id="h-{gold.number}">{word} {gold.number}</h2>
{_paras(gold.problem)}
{_sol(gold, f'<h3 class="wp-block-heading">{answer}</h3>', "")}
<hr class="wp-block-separator has-alpha-channel-opacity"/>\n"""
        if i == len(exercises) // 2:
            out += """<div class="wp-block-buttons"><div class="wp-block-button">
<a class="wp-block-button__link" href="/book-a-lesson/">Book a free trial lesson</a></div></div>\n"""
    return (
        out
        + """</div><footer class="entry-footer"><div class="sharedaddy sd-sharing-enabled">
<h3 class="sd-title">Share this:</h3><ul><li><a href="#">Twitter</a></li></ul></div><span
class="cat-links">Filed under: <a href="/revision/">Revision</a></span></footer></article>"""
    )


def heading_mediawiki(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A MediaWiki problem collection: section headings with edit links and a table of contents."""

    def head(level: int, title: str, anchor: str) -> str:
        return f"""<div class="mw-heading mw-heading{level}"><h{level} id="{anchor}">{title}</h{level}>
<span class="mw-editsection"><span class="mw-editsection-bracket">[</span><a href="/w/?action=edit">edit</a>
<span class="mw-editsection-bracket">]</span></span></div>\n"""

    out = """<h1 id="firstHeading" class="firstHeading">Problem collection/Exercises</h1>
<div id="bodyContent"><div id="siteSub">From the open course wiki</div>
<div id="mw-content-text" class="mw-body-content"><div class="mw-parser-output">
<div id="toc" class="toc" role="navigation"><div class="toctitle"><h2>Contents</h2></div><ul>\n"""
    for i, gold in enumerate(exercises, 1):
        out += f"""<li class="toclevel-1"><a href="#Problem_{gold.number}"><span class="tocnumber">{i}</span>
<span class="toctext">Problem {gold.number}</span></a></li>\n"""
    out += "</ul></div>\n"
    for gold in exercises:
        out += head(2, f"Problem {gold.number}", f"Problem_{gold.number}") + _paras(gold.problem) + "\n"
        out += _sol(gold, head(3, "Solution", f"Solution_{gold.number}"), "\n")
    return (
        out
        + f"""</div><div class="printfooter">Retrieved from "<a href="/wiki/Ex">/wiki/Ex</a>"</div>
</div><div id="catlinks">Category: <a href="/wiki/Category:Stubs">{rng.choice(_TOPICS)} problems</a></div>
<ul id="footer-info"><li>This page was last edited on {_date(rng)}.</li></ul></div>"""
    )


def dl_item_bank(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An item bank's record view: one description list a record, Bootstrap columns."""
    stem, model = rng.choice([("Question text", "Model answer"), ("Question", "Worked answer")])

    def row(name: str, value: str) -> str:
        return f'<dt class="col-sm-3">{name}</dt>\n<dd class="col-sm-9">{value}</dd>\n'

    out = f"""<nav><ol class="breadcrumb"><li class="breadcrumb-item active">Item bank</li></ol></nav>
<p class="text-muted">Showing {len(exercises)} items</p>\n"""
    for gold in exercises:
        out += f'<div class="card item-record" id="i{gold.number}"><div class="card-body"><dl class="row">\n'
        out += row("Item no.", str(gold.number)) + row("Topic", rng.choice(_TOPICS))
        out += row("Difficulty", rng.choice(["Easy", "Medium", "Hard"])) + row(stem, _paras(gold.problem))
        out += "" if gold.solution is None else row(model, _paras(gold.solution))
        out += row("Marks", str(rng.randint(1, 8))) + row("Last reviewed", _date(rng))
        out += """</dl><a class="btn btn-sm btn-outline-primary" href="#">Add to test</a>
<a class="btn btn-sm btn-outline-secondary" href="#">Report a problem</a></div></div>\n"""
    return out


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A Drupal problem-of-the-week archive: labelled fields, one node a problem."""

    def field(name: str, value: str) -> str:
        return f"""<div class="field field--name-{name.lower()} field--type-text-long field--label-above">
<div class="field__label">{name}</div>
<div class="field__item">{value}</div></div>\n"""

    out = '<div class="views-element-container"><div class="view view-potw"><div class="view-content">\n'
    for gold in exercises:
        out += f"""<div class="views-row"><article role="article" class="node node--type-potw">
<h2 class="node__title"><a href="/p/{gold.number}" rel="bookmark">Problem of the Week #{gold.number}</a></h2>
<div class="node__content">\n"""
        out += field("Posted", f"<time>{_date(rng)}</time>") + field("Problem", _paras(gold.problem))
        if gold.solution is not None:
            solvers = ", ".join(rng.sample(_USERS, 3))
            out += field("Solution", _paras(gold.solution)) + field("Solvers", solvers)
        out += '</div><ul class="links"><li><a href="/login">Log in</a></li></ul></article></div>\n'
    return out + '</div><nav class="pager"><a href="?page=1">Next ›</a></nav></div></div>'


def table_rows(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A teacher's sheet: one table, a row an exercise, question and answer in columns."""
    out = f"""<h2>Quiz {rng.randint(2, 9)} review sheet</h2>
<table class="table" border="1" cellpadding="6"><caption>Printable: <a href="s.pdf">PDF</a></caption>
<thead><tr><th scope="col">No.</th><th scope="col">Question</th><th scope="col">Answer</th>
<th scope="col">Points</th></tr></thead><tbody>\n"""
    for gold in exercises:
        answer = "" if gold.solution is None else _lines(gold.solution)
        out += f"""<tr><td align="center">{gold.number}</td><td>{_lines(gold.problem)}</td>
<td>{answer}</td><td align="center">{rng.randint(1, 6)}</td></tr>\n"""
    return out + "</tbody></table><p><small>Mr. Alvarez, room 214. Retakes on Thursdays.</small></p>"


def table_problem_cards(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An old physics department's database: a small table an exercise, row headers at the left."""
    name = rng.choice(["Problem", "Exercise"])
    out = '<p align="center"><a href="index.html">Up</a> | <a href="ch5.html">Next chapter</a></p>\n'
    for gold in exercises:
        out += f"""<table class="problem" width="90%" border="0" cellspacing="0" cellpadding="4">
<tr bgcolor="#ccccff"><th colspan="2" align="left"><a name="p{gold.number}"></a>{name} {gold.number}</th></tr>
<tr><th valign="top" align="left">Topic:</th><td>{rng.choice(_TOPICS)}</td></tr>
<tr><th valign="top" align="left">{name}:</th><td>{_paras(gold.problem)}</td></tr>
{_sol(gold, '<tr><th valign="top" align="left">Solution:</th><td>', "</td></tr>")}
<tr><th align="left">Source:</th><td>Qualifying exam, {rng.randint(1988, 2012)}</td></tr></table><br>\n"""
    return out + f"<address>Last modified: {_date(rng)}, webmaster</address>"


def forum_question2answer(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads with vote counts; a selected answer or else the one with the most votes."""

    def votes(count: int) -> str:
        return f"""<div class="qa-voting"><div class="qa-vote-count"><span class="qa-netvote-count-data">
{count:+d}</span><span class="qa-netvote-count-pad"> votes</span></div></div>"""

    def meta(verb: str) -> str:
        return f"""<span class="qa-meta">{verb} <span class="qa-meta-when">{_date(rng)}</span> by
<a href="#" class="qa-user-link">{rng.choice(_USERS)}</a> ({rng.randint(100, 9900)} points)</span>"""

    out = '<div class="qa-main">\n'
    for gold in exercises:
        answers: list[tuple[int, bool, str]] = []
        best, chosen = rng.randint(4, 15), rng.random() < 0.6
        if gold.solution is not None:
            most = best + 3 if chosen else best - 2
            answers = [(rng.randint(-1, most), False, text) for text in _wrong(gold, exercises, rng, 2)]
            answers.append((best, True, gold.solution))
            rng.shuffle(answers)
        out += f"""<div class="qa-part-q-view"><h1><a href="/{gold.number}">Exercise {gold.number}</a></h1>
<div class="qa-q-view" id="q{gold.number}">{votes(rng.randint(0, 5))}
<div class="qa-q-view-main"><div class="qa-q-view-content">{_paras(gold.problem)}</div>
<ul class="qa-q-view-tag-list"><li><a class="qa-tag-link" href="#">homework</a></li></ul>{meta("asked")}</div>
</div></div><div class="qa-part-a-list"><h2>{len(answers)} Answer{"s" if len(answers) != 1 else ""}</h2>\n"""
        for i, (count, right, text) in enumerate(answers):
            css = " qa-a-list-item-selected" if right and chosen else ""
            mark = ""
            if right and chosen:
                mark = '<div class="qa-a-selection"><div class="qa-a-selected-text">Best answer</div></div>'
            out += f"""<div class="qa-a-list-item{css}" id="a{gold.number}{i}">{votes(count)}
<div class="qa-a-item-main">{mark}<div class="qa-a-item-content">{_paras(text)}</div>{meta("answered")}
</div></div>\n"""
        out += "</div>\n"
    return out + '<div class="qa-suggest-next">Please <a href="/login">log in</a> to answer.</div></div>'


def forum_discourse(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Discourse topics with the solved plugin: the accepted post carries the "Solution" mark."""

    def post(nr: int, text: str, likes: int, accepted: bool) -> str:
        user, mark, css = rng.choice(_USERS), "", ""
        if accepted:
            css, mark = " accepted-answer", '<span class="accepted-text"><svg></svg>Solution</span>'
        return f"""<div class="topic-post clearfix{css}"><article class="boxed onscreen-post" id="post_{nr}">
<div class="topic-meta-data"><span class="first username"><a href="#">{user}</a></span>
<div class="post-infos"><span class="relative-date">{_date(rng)}</span></div></div>
<div class="cooked">{_paras(text)}</div>
<section class="post-menu-area">{mark}<button class="like-count">{likes}</button>
<button class="reply">Reply</button></section></article></div>\n"""

    out = ""
    for gold in exercises:
        title = rng.choice(["Stuck on problem {}", "Problem {}", "Help with problem {}"]).format(gold.number)
        out += f"""<div id="topic-title"><h1><a href="/t/{gold.number}" class="fancy-title">{title}</a></h1>
<div class="topic-category"><span class="badge-category__name">Homework help</span></div></div>
<section class="topic-area"><div class="post-stream">{post(1, gold.problem, rng.randint(0, 3), False)}"""
        if gold.solution is not None:
            posts = [(text, False) for text in _wrong(gold, exercises, rng, 3)]
            posts.insert(rng.randint(0, len(posts)), (gold.solution, True))
            for nr, (text, right) in enumerate(posts, 2):
                out += post(nr, text, rng.randint(0, 6), right)
        out += f'</div><div class="topic-map"><span>{rng.randint(30, 900)} views</span></div></section>\n'
    return out


def end_openstax(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A textbook companion: numbered section exercises, an answer key at the end of the page."""
    sec, base = f"{rng.randint(1, 9)}.{rng.randint(1, 6)}", f"fs-id{rng.randint(1167000, 1169999)}"
    out = f'<section class="section-exercises"><h2 data-type="title">Section {sec} Exercises</h2>\n'
    for gold in exercises:
        out += f"""<div data-type="exercise" id="{base}{gold.number}"><div data-type="problem">
<a class="os-number" href="#{base}{gold.number}-solution">{gold.number}</a><span class="os-divider">. </span>
<div class="os-problem-container">{_paras(gold.problem)}</div></div></div>\n"""
    out += f"""</section><div class="os-eob os-solutions-container" data-type="composite-page">
<h2 data-type="document-title">Answer Key</h2><h3>Section {sec}</h3>\n"""
    for gold in exercises:
        out += _sol(
            gold,
            f"""<div data-type="solution" id="{base}{gold.number}-solution">
<a class="os-number" href="#{base}{gold.number}">{gold.number}</a><span class="os-divider">. </span>
<div class="os-solution-container">""",
            "</div></div>\n",
        )
    return out + '</div><div class="citation-license"><p>CC BY. <a href="/errata">Report errata</a></p></div>'


def end_worksheet(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A printable worksheet: an ordered list of problems, then an ordered list of solutions."""
    title = rng.choice(["Solutions", "Answers", "Solutions to the problems"])
    out = f"""<h1>Worksheet {rng.randint(3, 20)}: {rng.choice(_TOPICS)}</h1>
<p class="namebar">Name: ______________ &nbsp; Date: __________</p><h2>Problems</h2><ol class="problems">\n"""
    for gold in exercises:
        out += f'<li value="{gold.number}" id="q{gold.number}">{_paras(gold.problem)}</li>\n'
    out += f'</ol><hr class="page-break"><h2 id="key">{title}</h2><ol class="solutions">\n'
    for gold in exercises:
        out += _sol(gold, f'<li value="{gold.number}">', f'\n<a href="#q{gold.number}">↑ back</a></li>\n')
    return out + f"</ol><footer>© {rng.randint(2010, 2024)} Free worksheets for classrooms</footer>"


def toggle_docusaurus(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A documentation generator's course notes: details elements for hint and solution."""
    label = rng.choice(["Show solution", "Solution", "Click to see the solution"])
    fold = """<details class="details_lb9f alert alert--info details_b_Ee" data-collapsed="true">
<summary>{}</summary><div><div class="collapsibleContent_i85q">\n"""
    end = "\n</div></div></details>\n"
    out = '<div class="theme-doc-markdown markdown"><header><h1>Exercises</h1></header>\n'
    for gold in exercises:
        out += f"""<h3 class="anchor" id="ex-{gold.number}">Exercise {gold.number}
<a class="hash-link" href="#ex-{gold.number}" title="Direct link">&#8203;</a></h3>
{_paras(gold.problem)}\n"""
        if rng.random() < 0.4:
            out += fold.format("Hint") + "<p>Go back to the definitions in this chapter.</p>" + end
        out += _sol(gold, fold.format(label), end)
    return (
        out
        + f"""</div><footer class="theme-doc-footer"><a href="#">Edit this page</a>
<span class="theme-last-updated">Last updated on <b>{_date(rng)}</b></span></footer>"""
    )


def toggle_collapse_card(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A school portal's question cards: the solution in a Bootstrap collapse panel below a button."""
    button = rng.choice(["Reveal answer", "View solution", "Show answer"])
    out = '<div class="container question-list">\n'
    for gold in exercises:
        key = f"sol-{rng.randint(1000, 9999)}-{gold.number}"
        out += f"""<div class="card mb-3 question-card"><div class="card-header">
<span class="q-number">Question {gold.number}</span> <span class="badge">{rng.choice(_TOPICS)}</span>
<span class="badge bg-info">{rng.randint(1, 6)} marks</span></div>
<div class="card-body"><div class="question-text">{_paras(gold.problem)}</div>\n"""
        out += _sol(
            gold,
            f"""<button class="btn btn-primary btn-sm" type="button" data-bs-toggle="collapse"
data-bs-target="#{key}" aria-expanded="false" aria-controls="{key}">{button}</button>
<div class="collapse" id="{key}"><div class="card card-body answer-text">""",
            "</div></div>",
        )
        out += '</div><div class="card-footer"><a href="#" class="flag">Report an error</a></div></div>\n'
    return out + "</div>"


def inline_exam_portal(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An exam-preparation portal: bold "Q3." and "Ans:" opening plain paragraphs."""
    ask, reply = rng.choice(["Q{}.", "Q.{}", "Question {}:"]), rng.choice(["Ans:", "Ans.", "Answer:", "Sol:"])
    out = f'<p>Important questions, Class {rng.randint(8, 12)}. <a href="/pdf">Download PDF</a></p>\n'
    for i, gold in enumerate(exercises):
        out += _paras(gold.problem, f"<strong>{ask.format(gold.number)}</strong> ") + "\n"
        if gold.solution is not None:
            out += _paras(gold.solution, f"<strong>{reply}</strong> ") + "\n"
        out += '<div class="code-block ad"><span>Advertisement</span></div>\n' if i % 4 == 2 else ""
    return out + '<p class="also-read">Also read: <a href="/notes">Notes</a> | <a href="/mcq">MCQs</a></p>'


def inline_lecture_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A professor's home page: list items with italic "Problem 3." and "Solution." inside the text."""
    word = rng.choice(["Problem", "Exercise"])
    out = f"<p>Math {rng.randint(101, 450)}, homework with solutions. Office hours: Tue 2&ndash;4.</p>\n<ul>"
    for gold in exercises:
        out += f"<li><b><i>{word} {gold.number}.</i></b> {_lines(gold.problem)}"
        if gold.solution is not None:
            out += f"<br>\n<b><i>Solution.</i></b> {_lines(gold.solution)}"
        out += "</li>\n"
    return out + f'</ul><p><font size="-1">Updated {_date(rng)}. <a href="../">Back</a></font></p>'


_STYLES: list[Style] = [
    heading_tutor_blog,
    heading_mediawiki,
    dl_item_bank,
    dl_drupal_fields,
    table_rows,
    table_problem_cards,
    forum_question2answer,
    forum_discourse,
    end_openstax,
    end_worksheet,
    toggle_docusaurus,
    toggle_collapse_card,
    inline_exam_portal,
    inline_lecture_list,
]
LAYOUTS: dict[str, Style] = {style.__name__: style for style in _STYLES}
