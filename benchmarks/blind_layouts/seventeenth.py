"""Renders exercises as pages in label styles by an author who had not seen the rules: blind group 17."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

_IMAGE = re.compile(r"!\[([^\[\]\n]*)\]\((?=[^\s]*[./])((?:[^()\s]|\([^()\s]*\))+)\)")
_DISPLAY = re.compile(r"\$\$.+?\$\$|(?<!\\)\\\[.+?(?<!\\)\\\]", re.DOTALL)
_BREAK = re.compile(r"\n[ \t]*\n\s*")
_USERS = ("mathilda_k", "Tobias R.", "epsilon0", "PhysFan88", "n_okafor", "Guest4417", "LenaW", "prof.b")
_TOPICS = ("Sequences", "Kinematics", "Linear Algebra", "Probability", "Trigonometry", "Optics", "Limits")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_GUESSES = (
    "I think the answer should be {n}, but I am not sure about the sign.",
    "My calculator says {n}. Can somebody confirm?",
    "Isn't it simply zero by symmetry?",
    "I would guess {n}, since nothing else fits the pattern.",
)


def _inline(text: str) -> str:
    """Escapes a run of text and turns its images into tags."""
    out, last = [], 0
    for match in _IMAGE.finditer(text):
        out.append(html.escape(text[last : match.start()], quote=False))
        out.append(f'<img src="{html.escape(match[2])}" alt="{html.escape(match[1])}" loading="lazy">')
        last = match.end()
    out.append(html.escape(text[last:], quote=False))
    return "".join(out)


def _parts(text: str) -> list[str]:
    """The paragraphs of a text; a blank line inside a displayed formula does not break it."""
    spans = [match.span() for match in _DISPLAY.finditer(text)]
    out, last = [], 0
    for match in _BREAK.finditer(text):
        if not any(start < match.start() < end for start, end in spans):
            out.append(text[last : match.start()])
            last = match.end()
    out.append(text[last:])
    return [_inline(part.strip()) for part in out if part.strip()]


def _paras(text: str, lead: str = "") -> str:
    """The paragraphs as p elements, a label in front of the first."""
    return "\n".join(f"<p>{lead if i == 0 else ''}{part}</p>" for i, part in enumerate(_parts(text)))


def _lines(text: str) -> str:
    """The paragraphs parted by double line breaks."""
    return "<br><br>\n".join(_parts(text))


def _date(rng: random.Random) -> str:
    return f"{rng.choice(_MONTHS)} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def _answers(gold: Gold, every: Sequence[Gold], rng: random.Random) -> list[tuple[str, int, bool]]:
    """A thread's answers in page order: text, votes, whether accepted."""
    if gold.solution is None:
        return []
    others = [g.solution for g in every if g.solution is not None and g.solution != gold.solution]
    accepted = rng.random() < 0.6
    found = [(gold.solution, best := rng.randint(3, 19), accepted)]
    for guess in rng.sample(_GUESSES, rng.randint(1, 2)):
        text = guess.format(n=rng.randint(2, 14))
        if others and rng.random() < 0.5:
            text = others.pop(rng.randrange(len(others)))
        votes = rng.randint(-2, best + 4) if accepted else rng.randint(-2, best - 1)
        found.append((text, votes, False))
    rng.shuffle(found)
    return found


def heading_wikiversity(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A MediaWiki course page: an h2 an exercise, an h3 for its solution, edit links behind both."""
    word, answer = rng.choice(("Exercise", "Problem")), rng.choice(("Solution", "Answer", "Worked solution"))
    page = (topic := rng.choice(_TOPICS)).replace(" ", "_")

    def head(level: int, text: str, anchor: str) -> str:
        return f"""<div class="mw-heading mw-heading{level}"><h{level} id="{anchor}">{text}</h{level}>
<span class="mw-editsection">[<a href="/w/index.php?title={page}&amp;action=edit">edit</a>]</span></div>"""

    toc = "".join(f'<li><a href="#{word}_{g.number}">{word} {g.number}</a></li>' for g in exercises)
    out = [
        f"""<div id="mw-content-text" class="mw-body-content"><div class="mw-content-ltr mw-parser-output">
<div role="note" class="hatnote">Part of the course <a href="/wiki/{page}">{topic}</a>.</div>
<div id="toc" class="toc" role="navigation"><h2 id="mw-toc-heading">Contents</h2><ul>{toc}</ul></div>"""
    ]
    for g in exercises:
        out += [head(2, f"{word} {g.number}", f"{word}_{g.number}"), _paras(g.problem)]
        if g.solution is not None:
            out += [head(3, answer, f"{answer.replace(' ', '_')}_{g.number}"), _paras(g.solution)]
    out.append(f'</div><div id="catlinks">Category: <a href="/wiki/{page}">{topic}</a></div></div>')
    return "\n".join(out)


def heading_weekly_archive(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A WordPress archive of problems of the week: a post each, its solution under a subheading."""
    series = rng.choice(("Problem of the Week", "Weekly Challenge", "Puzzle of the Week"))
    out = [f'<main id="main" class="site-main"><h1 class="page-title">{series}: Archive</h1>']
    for g in exercises:
        out.append(f"""<article id="post-{rng.randint(300, 9000)}" class="post type-post hentry">
<h2 class="entry-title"><a href="/potw/{g.number}/" rel="bookmark">{series} #{g.number}</a></h2>
<div class="entry-meta">Posted on <time class="entry-date">{_date(rng)}</time> by {rng.choice(_USERS)}</div>
<div class="entry-content">{_paras(g.problem)}""")
        if g.solution is not None:
            out += [f'<h3 class="wp-block-heading">Solution to {series} #{g.number}</h3>', _paras(g.solution)]
        out.append(f"""</div><footer class="entry-footer">Posted in <a rel="tag">{rng.choice(_TOPICS)}</a>
<span class="comments-link"><a href="#respond">Leave a comment</a></span></footer></article>""")
    out.append('<nav class="posts-navigation"><a href="/potw/page/2/">Older posts</a></nav></main>')
    return "\n".join(out)


def dl_item_bank(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A question bank's records as Bootstrap description lists."""
    ask, reply = rng.choice((("Question", "Model answer"), ("Problem statement", "Sample solution")))
    out = [f'<div class="container item-bank"><p class="text-muted">Showing {len(exercises)} items</p>']

    def row(name: str, value: str) -> str:
        return f'<dt class="col-sm-3">{name}</dt>\n<dd class="col-sm-9">{value}</dd>'

    for g in exercises:
        out += [
            f'<div class="card" id="item-{g.number}"><div class="card-body"><dl class="row mb-0">',
            row("Item no.", str(g.number)),
            row("Topic", rng.choice(_TOPICS)),
            row("Difficulty", rng.choice(("easy", "medium", "hard"))),
            row(ask, _paras(g.problem)),
            row("Marks", str(rng.randint(1, 8))),
        ]
        if g.solution is not None:
            out.append(row(reply, _paras(g.solution)))
        out.append(f"""{row("Last reviewed", _date(rng))}</dl></div>
<div class="card-footer"><a class="btn" href="#">Add to test</a> <a>Report an error</a></div></div>""")
    return "\n".join([*out, "</div>"])


def dl_drupal_fields(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Drupal nodes with labelled fields."""
    ask, reply = rng.choice((("Exercise", "Solution"), ("Question", "Answer"), ("Problem", "Full solution")))

    def field(name: str, label: str, value: str) -> str:
        return f"""<div class="field field--name-field-{name} field--label-above">
<div class="field__label">{label}</div>\n<div class="field__item">{value}</div>\n</div>"""

    out = ['<div class="region region-content"><div class="view"><div class="view-content">']
    for g in exercises:
        out += [
            '<div class="views-row"><article class="node"><div class="node__content">',
            field("number", "Number", str(g.number)),
            field("exercise", ask, _paras(g.problem)),
        ]
        if g.solution is not None:
            out.append(field("solution", reply, _paras(g.solution)))
        out += [
            field("tags", "Tags", f'<a href="/taxonomy/term/8">{rng.choice(_TOPICS)}</a>'),
            '<p><a href="/user/login">Log in</a> to post comments</p></div></article></div>',
        ]
    return "\n".join([*out, "</div></div></div>"])


def table_mark_scheme(exercises: Sequence[Gold], rng: random.Random) -> str:
    """One table, a row an exercise: number, question, worked answer, marks."""
    heads = rng.choice((("No.", "Question", "Model answer", "Marks"), ("#", "Task", "Solution", "Points")))
    cells = "".join(f'<th scope="col">{head}</th>' for head in heads)
    out = [
        f"""<p>{rng.choice(_TOPICS)}: revision sheet with answers. Calculators may be used.</p>
<div class="table-responsive"><table class="table table-bordered table-striped" border="1">
<thead><tr>{cells}</tr></thead>\n<tbody>"""
    ]
    for g in exercises:
        reply = _lines(g.solution) if g.solution is not None else "&nbsp;"
        out.append(f"""<tr>\n<td align="center">{g.number}</td>\n<td valign="top">{_lines(g.problem)}</td>
<td valign="top">{reply}</td>\n<td align="right">{rng.randint(1, 9)}</td>\n</tr>""")
    out.append('</tbody></table></div>\n<p class="small"><a href="print.pdf">Download as PDF</a></p>')
    return "\n".join(out)


def table_exercise_sheet(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A table an exercise: a caption row with its number, then a labelled row each."""
    word = rng.choice(("Exercise", "Question", "Example"))
    ask, reply = rng.choice((("Given", "Solution"), ("Problem", "Solution"), ("Question", "Answer")))
    out = []
    for g in exercises:
        out.append(f"""<table class="exercise" width="100%" cellpadding="6" id="ex{g.number}">
<tbody><tr class="head" bgcolor="#dde6f0"><th colspan="2" align="left">{word} {g.number}</th></tr>
<tr><th width="15%">{ask}</th><td>{_paras(g.problem)}</td></tr>""")
        if g.solution is not None:
            out.append(f'<tr><th width="15%">{reply}</th><td>{_paras(g.solution)}</td></tr>')
        out.append(f"""<tr class="foot"><th>Level</th><td>{"&#9733;" * rng.randint(1, 4)}</td></tr>
</tbody></table>\n<p align="right"><a href="#top">Back to top</a></p>""")
    return "\n".join(out)


def forum_question2answer(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question2Answer threads with votes, some with an answer selected as best."""

    def votes(count: int) -> str:
        return f"""<div class="qa-voting qa-voting-net"><span class="qa-netvote-count-data">{count}</span>
<span class="qa-netvote-count-pad"> votes</span></div>"""

    def meta(prefix: str, what: str) -> str:
        return f"""<span class="{prefix}-meta"><a class="{prefix}-what" href="#">{what}</a>
<span class="{prefix}-when-data">{_date(rng)}</span> by <a class="user">{rng.choice(_USERS)}</a></span>"""

    out = []
    for g in exercises:
        answers = _answers(g, exercises, rng)
        count = f"<span>{len(answers)}</span> {'Answer' if len(answers) == 1 else 'Answers'}"
        out.append(f"""<div class="qa-main"><h1><a href="#q{g.number}">Exercise {g.number}</a></h1>
<div class="qa-part-q-view"><div class="qa-q-view" id="q{g.number}">{votes(rng.randint(0, 6))}
<div class="qa-q-view-main"><div class="qa-q-view-content qa-post-content"><div class="entry-content">
{_paras(g.problem)}</div></div><a class="qa-tag-link">{rng.choice(_TOPICS).lower()}</a>
{meta("qa-q-view", "asked")}</div></div></div>
<div class="qa-part-a-list"><h2 id="a_list_title">{count}</h2><div class="qa-a-list">""")
        for text, score, accepted in answers:
            badge = '<div class="qa-a-selected-text">Best answer</div>' if accepted else ""
            chosen = " qa-a-list-item-selected" if accepted else ""
            out.append(f"""<div class="qa-a-list-item{chosen}" id="a{rng.randint(1000, 99999)}">{votes(score)}
<div class="qa-a-item-main">{badge}<div class="qa-a-item-content qa-post-content"><div class="entry-content">
{_paras(text)}</div></div>{meta("qa-a-item", "answered")}</div></div>""")
        out.append("</div></div></div>")
    return "\n".join(out)


def forum_xenforo(exercises: Sequence[Gold], rng: random.Random) -> str:
    """XenForo question threads: the solution post is marked, or the votes decide."""

    def post(name: str, body: str, index: int, extra: str, badge: str, vote: str) -> str:
        return f"""<article class="message message--post js-post{extra}" data-author="{name}">
<div class="message-cell"><h4 class="message-name">{name}</h4><h5 class="userTitle">Member</h5></div>
<div class="message-cell message-cell--main"><header class="message-attribution">
<time class="u-dt">{_date(rng)}</time> {badge}<a href="#post-{index}" rel="nofollow">#{index}</a></header>
<div class="message-content"><div class="bbWrapper">{body}</div></div>
{vote}<footer class="message-footer"><a class="actionBar-action">Report</a>
<a class="actionBar-action">Reply</a></footer></div></article>"""

    out = []
    for g in exercises:
        names = rng.sample(_USERS, 4)
        answers = _answers(g, exercises, rng)
        label = '<span class="label label--green">Solved</span> ' if any(a[2] for a in answers) else ""
        out.append(f"""<div class="p-body-content"><h1 class="p-title-value">{label}Problem {g.number}</h1>
<div class="p-description">Thread starter {names[0]}</div><div class="block-body">""")
        out.append(post(names[0], _lines(g.problem), 1, " message--question", "", ""))
        for i, (text, score, accepted) in enumerate(answers):
            mark = '<span class="message-attribution-solution">Marked as solution</span> ' if accepted else ""
            vote = f"""<div class="contentVote"><a class="contentVote-vote">Upvote</a>
<span class="contentVote-score">{score}</span> <a class="contentVote-vote">Downvote</a></div>\n"""
            extra = " message--answer is-solution" if accepted else " message--answer"
            out.append(post(names[i + 1], _lines(text), i + 2, extra, mark, vote))
        out.append('</div><div class="blockMessage">You must log in or register to reply here.</div></div>')
    return "\n".join(out)


def end_openstax_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Textbook section exercises with the book's answer key below."""
    title = rng.choice(("Section Exercises", "Review Exercises", "Practice Problems"))
    out = [
        f"""<section data-depth="1" class="section-exercises"><h2 data-type="title">{title}</h2>
<p>For the following exercises, show all steps of your work.</p>"""
    ]
    for g in exercises:
        out.append(f"""<div data-type="exercise" id="fs-{g.number}"><div data-type="problem">
<a class="os-number" href="#fs-{g.number}-solution">{g.number}</a><span class="os-divider">. </span>
<div class="os-problem-container">{_paras(g.problem)}</div></div></div>""")
    out.append(f"""</section>\n<div class="os-eob os-solution-container" data-type="composite-page">
<h2 data-type="document-title">Answer Key</h2>\n<h3 data-type="title">{title}</h3>""")
    for g in exercises:
        if g.solution is not None:
            out.append(f"""<div data-type="solution" id="fs-{g.number}-solution">
<a class="os-number" href="#fs-{g.number}">{g.number}</a><span class="os-divider">. </span>
<div class="os-solution-container">{_paras(g.solution)}</div></div>""")
    out.append(f'</div>\n<p class="citation">Access for free. Last updated {_date(rng)}.</p>')
    return "\n".join(out)


def end_printed_worksheet(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A worksheet for printing: numbered lists with values, the answers after a page break."""
    title = rng.choice(("Answers", "Solutions", "Answers to the exercises", "Teacher's key"))
    out = [
        f"""<div class="worksheet"><h1>{rng.choice(_TOPICS)}: Worksheet {rng.randint(1, 12)}</h1>
<p class="name-line">Name: ________________ Date: ____________ Class: ______</p>
<h2>Exercises</h2>\n<ol class="questions">"""
    ]
    out += [f'<li value="{g.number}">{_paras(g.problem)}</li>' for g in exercises]
    out.append(f'</ol>\n<hr class="page-break">\n<h2 id="answers">{title}</h2>\n<ol class="answers">')
    out += [f'<li value="{g.number}">{_paras(g.solution)}</li>' for g in exercises if g.solution is not None]
    out.append('</ol></div>\n<p class="footer">You may copy this sheet for use in your classroom.</p>')
    return "\n".join(out)


def toggle_jupyter_book(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Jupyter Book's exercise directive with its solution in a dropdown admonition."""
    out = [f'<section id="exercises"><h1>{rng.choice(_TOPICS)}<a href="#exercises">#</a></h1>']
    for g in exercises:
        out.append(f"""<div class="exercise admonition" id="ex-{g.number}">
<p class="admonition-title"><span class="caption-number">Exercise {g.number} </span></p>
<section id="exercise-content">\n{_paras(g.problem)}\n</section>\n</div>""")
        if g.solution is not None:
            out.append(f"""<div class="solution dropdown admonition toggle-hidden" id="sol-{g.number}">
<p class="admonition-title">Solution to <a class="reference" href="#ex-{g.number}">Exercise {g.number}</a>
<button class="toggle-button" aria-label="Toggle hidden content"></button></p>
<section id="solution-content">\n{_paras(g.solution)}\n</section>\n</div>""")
    out.append('</section>\n<div class="prev-next-area"><a href="intro.html">previous</a></div>')
    return "\n".join(out)


def toggle_collapse_button(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Practice cards whose hint and solution open with Bootstrap collapse buttons."""
    word, show = rng.choice(("Question", "Exercise")), rng.choice(("Show solution", "View answer"))
    out = ['<div class="practice"><p class="lead">Try each one before you open the solution.</p>']
    for g in exercises:
        out.append(f"""<div class="card practice-card"><div class="card-header">
<span class="badge bg-secondary">{word} {g.number}</span> <small>{rng.randint(2, 15)} min</small></div>
<div class="card-body"><div class="prompt">{_paras(g.problem)}</div>""")
        if rng.random() < 0.4:
            out.append(f"""<button data-bs-toggle="collapse" data-bs-target="#hint{g.number}">Hint</button>
<div class="collapse" id="hint{g.number}"><p>Write down first what is given and what is wanted.</p></div>""")
        if g.solution is not None:
            out.append(f"""<button class="btn btn-primary" type="button" data-bs-toggle="collapse"
data-bs-target="#sol{g.number}" aria-expanded="false" aria-controls="sol{g.number}">{show}</button>
<div class="collapse" id="sol{g.number}"><div class="card card-body">{_paras(g.solution)}</div></div>""")
        out.append("</div></div>")
    return "\n".join([*out, "</div>"])


def inline_tutor_blog(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutoring blog's running text: bold question and answer labels in the paragraphs."""
    ask, reply = rng.choice((("Q{}.", "Ans:"), ("Question {}:", "Answer:"), ("Q.{})", "Solution:")))
    out = [
        f"""<div class="post-body entry-content"><p>Hello students, here are important questions of
the chapter {rng.choice(_TOPICS)}. Prepare them well for your exam.</p>"""
    ]
    for g in exercises:
        out.append(_paras(g.problem, f"<strong>{ask.format(g.number)}</strong> "))
        if g.solution is not None:
            out.append(_paras(g.solution, f"<strong>{reply}</strong> "))
    out.append('<p>Share this post: <a href="#">WhatsApp</a> | <a href="#">Facebook</a></p></div>')
    return "\n".join(out)


def inline_lecture_items(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lecture notes: a list item an example, italic labels, line breaks for paragraphs."""
    word, reply = rng.choice(("Example", "Exercise")), rng.choice(("Solution.", "Solution:", "Answer."))
    out = [
        f"""<p>We close this lecture on {rng.choice(_TOPICS).lower()} with some examples.</p>
<ul class="examples" style="list-style-type:none">"""
    ]
    for g in exercises:
        item = f'<li id="e{g.number}"><b>{word} {g.number}.</b> {_lines(g.problem)}'
        if g.solution is not None:
            item += f'\n<br><i>{reply}</i> {_lines(g.solution)} <span class="qed">&#9633;</span>'
        out.append(item + "</li>")
    out.append('</ul>\n<hr>\n<address>Maintained by the lecturer. <a href="index.html">Up</a></address>')
    return "\n".join(out)


LAYOUTS: dict[str, Style] = {
    "heading_wikiversity": heading_wikiversity,
    "heading_weekly_archive": heading_weekly_archive,
    "dl_item_bank": dl_item_bank,
    "dl_drupal_fields": dl_drupal_fields,
    "table_mark_scheme": table_mark_scheme,
    "table_exercise_sheet": table_exercise_sheet,
    "forum_question2answer": forum_question2answer,
    "forum_xenforo": forum_xenforo,
    "end_openstax_key": end_openstax_key,
    "end_printed_worksheet": end_printed_worksheet,
    "toggle_jupyter_book": toggle_jupyter_book,
    "toggle_collapse_button": toggle_collapse_button,
    "inline_tutor_blog": inline_tutor_blog,
    "inline_lecture_items": inline_lecture_items,
}
