"""Renders exercises as pages in label styles by an author who had not seen the rules: the third blind group."""

from __future__ import annotations

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
WHOLE = re.compile(r"\$\$.*?\$\$|\$[^$]*\$|\\\(.*?\\\)|\\\[.*?\\\]|!\[[^\]]*\]\([^)\s]+\)", re.DOTALL)
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])|\s*\n\s*")
PARAGRAPH = re.compile(r"\s*\n\s*\n\s*")
NEWLINE = re.compile(r"[ \t]*\n[ \t]*")

AUTHORS = ("M. Okafor", "Lena Brandt", "J. Whitfield", "Priya N.", "Tomasz K.", "S. Delgado")
USERS = ("quietfern", "dan_1987", "algebraist", "mkowal", "Rosie T", "nullspace", "hugo.b", "teacherjane")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Sep", "Oct", "Nov")


def split(text: str, pattern: re.Pattern[str]) -> list[str]:
    """Split a text at a pattern, but never inside a formula or an image."""
    spans = [match.span() for match in WHOLE.finditer(text)]
    parts, start = [], 0
    for match in pattern.finditer(text):
        if any(low < match.end() and match.start() < high for low, high in spans):
            continue
        parts.append(text[start : match.start()])
        start = match.end()
    return [part for part in (*parts, text[start:]) if part.strip()]


def inline(text: str) -> str:
    """Escape a text for HTML and turn its markdown images into img elements."""
    parts, start = [], 0
    for match in IMAGE.finditer(text):
        parts.append(html.escape(text[start : match.start()], quote=False))
        parts.append(f'<img src="{html.escape(match[2])}" alt="{html.escape(match[1])}">')
        start = match.end()
    return "".join((*parts, html.escape(text[start:], quote=False)))


def lines(text: str) -> str:
    """Render a text as one run of HTML whose newlines are br elements."""
    return "<br>\n".join(inline(part) for part in split(text, NEWLINE))


def paras(text: str) -> str:
    """Render a text as p elements, one for each of its paragraphs."""
    return "\n".join(f"<p>{lines(part)}</p>" for part in split(text, PARAGRAPH))


def steps(text: str) -> str:
    """Render a text as p elements, one for each of its sentences."""
    return "\n".join(f"<p>{inline(part)}</p>" for part in split(text, SENTENCE))


def run_in(label: str, text: str) -> str:
    """Render a text as p elements with a label's HTML at the start of the first."""
    first, *rest = split(text, PARAGRAPH) or [""]
    return "\n".join((f"<p>{label} {lines(first)}</p>", *(f"<p>{lines(part)}</p>" for part in rest)))


def date(rng: random.Random) -> str:
    """Draw a date as sites print it."""
    return f"{rng.choice(MONTHS)} {rng.randint(1, 28)}, {rng.randint(2012, 2024)}"


def headings_practice(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Wiki page with an h3 a question and an h4 above its explanation."""
    out = ["<h2>Practice questions</h2>", "<p>Work through these before moving on to the next unit.</p>"]
    for gold in exercises:
        edit = f'<span class="editsection">[<a href="/edit?section={gold.number + 2}">edit</a>]</span>'
        out.append(f'<h3 id="pq-{gold.number}">Practice question {gold.number} {edit}</h3>')
        out.append(paras(gold.problem))
        if gold.solution is not None:
            out += [f'<h4 id="pq-{gold.number}-ans">Answer and explanation</h4>', steps(gold.solution)]
        out.append(f'<div class="page-tools"><a href="#top">Back to top</a> | Last edited {date(rng)}</div>')
    return "\n".join(out)


def details_walkthrough(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Cards with the problem in the open and a walkthrough folded into details."""
    out = []
    for gold in exercises:
        level = rng.choice(("Easy", "Medium", "Hard"))
        out.append(f'<article class="drill" id="drill-{gold.number}">')
        out.append(f'<header><span class="drill-title">Try it #{gold.number}</span>')
        out.append(f'<span class="badge badge-{level.lower()}">{level}</span></header>')
        out.append(paras(gold.problem))
        if gold.solution is not None:
            out.append("<details>\n<summary>Show walkthrough</summary>")
            out += [paras(gold.solution), "</details>"]
        out.append(
            '<footer><button type="button" class="share-btn">Share</button> '
            '<button type="button" class="flag-btn">Report a mistake</button></footer>'
        )
        out.append("</article>")
    return "\n".join(out)


def dl_checkpoint(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Definition list whose terms are the numbered questions and whose descriptions answer them."""
    out = [
        "<h2>Check your understanding</h2>",
        f'<p class="byline">Compiled by {rng.choice(AUTHORS)}</p>',
        '<dl class="checkpoint">',
    ]
    for gold in exercises:
        out.append(
            f'<dt id="cp{gold.number}"><span class="no">{gold.number})</span> {lines(gold.problem)}</dt>'
        )
        if gold.solution is None:
            out.append("<dd></dd>")
        else:
            out.append(f"<dd>{run_in('<em>Ans.</em>', gold.solution)}</dd>")
    return "\n".join((*out, "</dl>", '<p class="updated">Page updated ' + date(rng) + "</p>"))


def table_mark_scheme(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Mark scheme table with columns for the question, the model answer and the marks."""
    out = [
        '<table class="scheme">',
        f"<caption>Paper {rng.randint(1, 3)}, Section B</caption>",
        "<thead><tr><th>No.</th><th>Question</th><th>Model answer</th><th>Marks</th></tr></thead>",
        "<tbody>",
    ]
    for gold in exercises:
        answer = "" if gold.solution is None else lines(gold.solution)
        out.append(
            f"<tr><td>{gold.number}</td>\n<td>{lines(gold.problem)}</td>\n<td>{answer}</td>\n"
            f'<td class="marks">{rng.randint(1, 8)}</td></tr>'
        )
    return "\n".join((*out, "</tbody>", "</table>"))


def replies(exercises: Sequence[Gold], gold: Gold, rng: random.Random) -> list[tuple[str, bool]]:
    """Draw a thread's answers in random order, the right one and wrong ones from other exercises."""
    if gold.solution is None:
        return []
    others = sorted({other.solution for other in exercises if other.solution} - {gold.solution})
    wrong = rng.sample(others, min(len(others), rng.randint(1, 3)))
    drawn = [(gold.solution, True), *((text, False) for text in wrong)]
    rng.shuffle(drawn)
    return drawn


def forum_accepted(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Question board where the asker's accepted answer is ticked, whatever the scores are."""
    out = []
    for gold in exercises:
        answers = replies(exercises, gold, rng)
        out.append(f'<section class="thread" id="t{4100 + gold.number}">\n<div class="post post-question">')
        out.append(f'<div class="score">{rng.randint(0, 20)}</div>')
        out.append(f'<div class="post-text">\n{paras(gold.problem)}\n</div>')
        out.append(
            f'<div class="post-meta">asked {date(rng)} by <a href="/u/{rng.randint(100, 999)}">'
            f"{rng.choice(USERS)}</a></div>\n</div>"
        )
        out.append(f'<h3 class="count">{len(answers)} Answer{"" if len(answers) == 1 else "s"}</h3>')
        for text, right in answers:
            score = rng.randint(-1, 12)
            mark = '<span class="tick" title="The asker accepted this answer">&#10003; Accepted</span>'
            out.append(f'<div class="post post-answer{" is-accepted" if right else ""}">')
            out.append(f'<div class="score">{score}{mark if right else ""}</div>')
            out.append(f'<div class="post-text">\n{paras(text)}\n</div>')
            out.append(
                f'<div class="post-meta">answered {date(rng)} by {rng.choice(USERS)} '
                '<a href="#">share</a> <a href="#">improve</a></div>\n</div>'
            )
        out.append("</section>")
    return "\n".join(out)


def forum_votes(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Homework forum without accepted marks where the right answer has the most votes."""
    out = []
    for gold in exercises:
        answers = replies(exercises, gold, rng)
        best = rng.randint(6, 40)
        out.append(
            f'<div class="topic">\n<div class="topic-head">Topic #{gold.number} &middot; '
            f"{rng.choice(USERS)} &middot; {date(rng)} &middot; {rng.randint(40, 900)} views</div>"
        )
        out.append(f'<div class="topic-body">{paras(gold.problem)}</div>')
        out.append('<ul class="replies">' if answers else '<p class="no-replies">No replies yet.</p>')
        for text, right in answers:
            votes = best if right else rng.randint(0, best - 2)
            out.append(f'<li class="reply" data-votes="{votes}">')
            out.append(f'<div class="reply-head"><b>{rng.choice(USERS)}</b> replied on {date(rng)}</div>')
            out.append(f'<div class="reply-body">{paras(text)}</div>')
            out.append(
                f'<div class="reply-foot"><button class="up">&#9650;</button> {votes} votes '
                '<button class="down">&#9660;</button> <a href="#">Quote</a></div>\n</li>'
            )
        out.append("</ul>\n</div>" if answers else "</div>")
    return "\n".join(out)


def answers_at_end(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Textbook section whose answers to selected exercises stand at the end under their numbers."""
    chapter = rng.randint(2, 9)
    out = [f"<h2>Exercises for Section {chapter}</h2>"]
    for gold in exercises:
        stars = f'<span class="stars" title="difficulty">{"&#9733;" * rng.randint(1, 3)}</span>'
        out.append(f'<div class="exercise">\n<div class="ex-tag">{stars}</div>')
        out.append(run_in(f"<b>{chapter}.{gold.number}</b>", gold.problem) + "\n</div>")
    out.append(f'<p class="credit">Section written by {rng.choice(AUTHORS)}.</p>')
    out.append("<h2>Answers to Selected Exercises</h2>")
    for gold in exercises:
        if gold.solution is not None:
            out.append(run_in(f"<b>{chapter}.{gold.number}</b>", gold.solution))
    return "\n".join(out)


def toggle_reveal(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Quiz blog whose link opens a hidden div by script."""
    out = [
        "<script>function flip(id) { var e = document.getElementById(id); "
        "e.style.display = e.style.display === 'none' ? 'block' : 'none'; return false; }</script>"
    ]
    for gold in exercises:
        key = f"work{gold.number}"
        out.append(
            f'<div class="puzzle">\n<p class="puzzle-no">Puzzle {gold.number} '
            f"<small>({rng.randint(1, 10)} points)</small></p>"
        )
        out.append(f'<div class="puzzle-text">{paras(gold.problem)}</div>')
        if gold.solution is not None:
            out.append(
                f'<a href="#{key}" class="reveal" onclick="return flip(\'{key}\')">Reveal the working</a>'
            )
            out.append(f'<div id="{key}" class="hidden-part" style="display:none">')
            out.append(f"{steps(gold.solution)}\n</div>")
        out.append('<p class="social"><a href="#">Tweet</a> <a href="#">Pin it</a></p>\n</div>')
    return "\n".join(out)


def inline_q_a(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Study notes with plain numbered Q and A letters at the start of the paragraphs."""
    out = [
        f'<p class="postinfo">Posted by {rng.choice(AUTHORS)} on {date(rng)}</p>',
        "<h2>Revision questions</h2>",
    ]
    for gold in exercises:
        out.append(run_in(f"Q{gold.number}.", gold.problem))
        if gold.solution is not None:
            out.append(run_in(f"A{gold.number}.", gold.solution))
        if rng.random() < 0.4:
            out.append('<div class="ad-slot"><small>Advertisement</small></div>')
    return "\n".join(out)


def list_assignment(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Assignment as an ordered list with the solution as a nested one-item list."""
    out = [
        f"<h2>Homework {rng.randint(1, 12)} with solutions</h2>",
        f"<p>Due {date(rng)}, in class.</p>",
        '<ol class="assignment">',
    ]
    for gold in exercises:
        out.append(f'<li value="{gold.number}">\n{paras(gold.problem)}')
        if gold.solution is not None:
            out.append(f'<ul class="soln">\n<li>{run_in("<i>Solution:</i>", gold.solution)}</li>\n</ul>')
        out.append("</li>")
    return "\n".join((*out, "</ol>"))


def bold_your_turn(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lecture notes with bold labels run into the first line of problem and working."""
    chapter = rng.randint(1, 9)
    out = [f"<h2>{chapter}. Further examples</h2>"]
    for gold in exercises:
        out.append(run_in(f"<strong>Your turn {chapter}.{gold.number}.</strong>", gold.problem))
        if gold.solution is not None:
            out.append(run_in("<strong>Working.</strong>", gold.solution))
        out.append(
            f'<div class="permalink"><a href="#yt-{gold.number}">link to this item</a> &middot; '
            f"level {rng.choice('ABC')}</div>"
        )
    return "\n".join(out)


def boxes_panel(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Course page with a coloured panel for the challenge and another for the suggested answer."""
    out = []
    for gold in exercises:
        minutes = f'<span class="panel-time">{rng.randint(2, 25)} min</span>'
        out.append(
            '<div class="panel panel-task">\n'
            f'<div class="panel-title">Challenge {gold.number} {minutes}</div>'
        )
        out.append(f'<div class="panel-body">\n{paras(gold.problem)}\n</div>\n</div>')
        if gold.solution is not None:
            out.append('<div class="panel panel-answer">\n<div class="panel-title">Suggested answer</div>')
            out.append(f'<div class="panel-body">\n{steps(gold.solution)}\n</div>\n</div>')
        out.append(
            f'<div class="panel-links"><a href="#">Discuss ({rng.randint(0, 30)})</a> '
            '<a href="#">Bookmark</a></div>'
        )
    return "\n".join(out)


LAYOUTS: dict[str, Style] = {
    "headings_practice": headings_practice,
    "details_walkthrough": details_walkthrough,
    "dl_checkpoint": dl_checkpoint,
    "table_mark_scheme": table_mark_scheme,
    "forum_accepted": forum_accepted,
    "forum_votes": forum_votes,
    "answers_at_end": answers_at_end,
    "toggle_reveal": toggle_reveal,
    "inline_q_a": inline_q_a,
    "list_assignment": list_assignment,
    "bold_your_turn": bold_your_turn,
    "boxes_panel": boxes_panel,
}
