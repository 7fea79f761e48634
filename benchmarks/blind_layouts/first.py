"""Renders exercises as pages in label styles by an author who had not seen the rules: the first blind group.

docs/extraction.md has the figures of the first look, before a rule was mended on them, and of today.
"""

from __future__ import annotations

import html
import random
import re
from collections.abc import Sequence

from benchmarks.extraction_styles import Gold, Style

USERS = ("tomasz_k", "mathgirl92", "Prof. Ellery", "quietbadger", "J. Okonkwo", "sigma-bob", "Ines R.")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Sep", "Oct", "Nov")
HINTS = ("Draw a sketch and label what you know.", "Write the definition down.", "Try a smaller case first.")
KEPT = re.compile(
    r"\$\$.+?\$\$|\\\[.+?\\\]|\\\(.+?\\\)|\\begin\{(\w+\*?)\}.+?\\end\{\1\}|\$[^$]+\$|!\[[^\]]*\]\([^)\s]+\)",
    re.DOTALL,
)
IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")


def _inline(text: str) -> str:
    """Escape a piece of text, with its markdown images as img elements."""
    out, end = [], 0
    for found in IMAGE.finditer(text):
        alt, src = (html.escape(part) for part in found.groups())
        out += [html.escape(text[end : found.start()], quote=False), f'<img src="{src}" alt="{alt}">']
        end = found.end()
    return "".join(out) + html.escape(text[end:], quote=False)


def _split(text: str, at: str) -> list[str]:
    """Split a text at a pattern, but never inside its formulas and images."""
    kept: list[str] = []

    def hide(found: re.Match[str]) -> str:
        kept.append(found.group())
        return f"\0{len(kept) - 1}\0"

    pieces = (piece.strip() for piece in re.split(at, KEPT.sub(hide, text.strip())))
    return [re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], piece) for piece in pieces if piece]


def _lines(text: str) -> str:
    """Give a text as one run, its line ends as br elements."""
    return "<br>\n".join(map(_inline, _split(text, r"\n+")))


def _paras(text: str, lead: str = "", at: str = r"\n\s*\n") -> str:
    """Give a text as p elements, the first of them opened by a run-in lead."""
    return "\n".join(f"<p>{'' if i else lead}{_lines(piece)}</p>" for i, piece in enumerate(_split(text, at)))


def _date(rng: random.Random) -> str:
    """Make up a date."""
    return f"{rng.choice(MONTHS)} {rng.randint(1, 28)}, {rng.randint(2009, 2024)}"


def wikibook_headings(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A wiki book's exercise page: a heading with an edit link an exercise, a lower one its solution."""
    word = rng.choice(("Exercise", "Problem"))
    answer = rng.choice(("Solution", "Answer", "Worked solution"))

    def heading(level: int, text: str, suffix: str = "") -> str:
        ident = text.replace(" ", "_") + suffix
        return (
            f'<h{level}><span class="mw-headline" id="{ident}">{text}</span><span class="mw-editsection">'
            f'[<a href="?action=edit&amp;section={ident}">edit</a>]</span></h{level}>'
        )

    out = [heading(2, f"{word}s"), "<p>Work through these after reading the chapter.</p>"]
    for ex in exercises:
        out += [heading(3, f"{word} {ex.number}"), _paras(ex.problem)]
        if ex.solution is not None:
            out += [heading(4, answer, f"_{ex.number}"), _paras(ex.solution)]
    out.append(f'<div class="catlinks">This page was last edited on {_date(rng)}.</div>')
    return "\n".join(out)


def course_notes_details(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Lecture notes built from markdown: a titled box, a folded hint at times and a folded solution."""
    chapter = rng.randint(1, 9)
    word = rng.choice(("Exercise", "Question", "Check your understanding"))
    answer = rng.choice(("Show answer", "Solution", "Click for the solution", "Reveal answer"))
    out = ["<p>Attempt each of the following on paper before you unfold anything.</p>"]
    for ex in exercises:
        out += [
            f'<div class="callout callout-exercise" id="exr-{chapter}-{ex.number}">',
            f'<p class="callout-title">{word} {chapter}.{ex.number} '
            f'<span class="badge">{rng.choice(("easy", "medium", "hard"))}</span></p>',
            f'<div class="callout-body">\n{_paras(ex.problem)}\n</div>',
        ]
        if ex.solution is not None and rng.random() < 0.5:
            out.append(f"<details><summary>Hint</summary><p>{rng.choice(HINTS)}</p></details>")
        if ex.solution is not None:
            out.append(f"<details>\n<summary>{answer}</summary>\n{_paras(ex.solution)}\n</details>")
        out.append("</div>")
    return "\n".join(out)


def tutor_definition_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A tutor's revision page: the term is the numbered question, the definition its labelled answer."""
    word, answer = rng.choice((("Example", "Solution"), ("Question", "Answer")))
    out = ["<h2>Revision questions</h2>"]
    for ex in exercises:
        out.append(f'<dl class="revision">\n<dt><b>{word} {ex.number}:</b> {_lines(ex.problem)}</dt>')
        if ex.solution is not None:
            out.append(f"<dd>{_paras(ex.solution, f'<em>{answer}:</em> ')}</dd>")
        out.append("</dl>")
        if rng.random() < 0.5:
            out.append('<p class="share"><a href="#">Pin it</a> | <a href="#">Email</a></p>')
    return "\n".join(out)


def exam_archive_table(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An exam archive's paper beside its mark scheme: a row a question, with marks and an answer cell."""
    heads = rng.choice((("No.", "Question", "Marks", "Answer"), ("#", "Problem", "Pts", "Model solution")))
    year = rng.randint(1998, 2023)
    out = [
        f"<h2>Paper {rng.randint(1, 3)}, {rng.choice(('June', 'November'))} {year}</h2>",
        '<table class="paper" border="1" cellpadding="6">',
        "<thead><tr>" + "".join(f"<th>{head}</th>" for head in heads) + "</tr></thead>\n<tbody>",
    ]
    for ex in exercises:
        solution = "" if ex.solution is None else _lines(ex.solution)
        out.append(
            f"<tr><td>{ex.number}</td><td>{_lines(ex.problem)}</td>"
            f'<td align="center">{rng.randint(1, 8)}</td><td>{solution}</td></tr>'
        )
    out.append('</tbody></table>\n<p><a href="paper.pdf">Download as PDF</a></p>')
    return "\n".join(out)


def homework_forum(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A homework forum: a thread an exercise, its replies with votes, one of them at times accepted."""
    out = ['<div class="forum-list">']
    for ex in exercises:
        others = sorted({e.solution for e in exercises if e.solution and e.solution != ex.solution})
        wrong = rng.sample(others, min(len(others), rng.randint(1, 3))) if ex.solution is not None else []
        accepted = rng.random() < 0.5
        best = rng.randint(4, 30)
        replies = [(text, rng.randint(-3, best + 4 if accepted else best - 1), False) for text in wrong]
        if ex.solution is not None:
            replies.append((ex.solution, best, accepted))
        rng.shuffle(replies)
        out += [
            '<article class="thread">',
            f'<header><h2 class="thread-title">Question {ex.number} from my problem sheet</h2>',
            f'<div class="byline">Asked by <a href="#u" class="user">{rng.choice(USERS)}</a> on {_date(rng)}'
            f" &middot; viewed {rng.randint(20, 900)} times</div></header>",
            f'<div class="post-text">\n{_paras(ex.problem)}\n</div>',
            f'<h3 class="reply-count">{len(replies)} {"Answer" if len(replies) == 1 else "Answers"}</h3>',
        ]
        for text, votes, mark in replies:
            tick = '<div class="accepted-mark">&#10004; Accepted answer</div>' if mark else ""
            out += [
                f'<div class="reply{" reply-accepted" if mark else ""}">',
                f'<div class="votebox"><span class="vote-count">{votes}</span> votes</div>{tick}',
                f'<div class="post-text">\n{_paras(text)}\n</div>',
                f'<div class="byline">by <a href="#u" class="user">{rng.choice(USERS)}</a></div>\n</div>',
            ]
        out.append("</article>")
    return "\n".join(out) + "\n</div>"


def worksheet_answer_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A printable school worksheet: numbered questions first, the key by number at the page's end."""
    title = rng.choice(("Answer Key", "Answers", "Solutions", "Answers to selected questions"))
    dot = rng.choice((".", ")"))
    out = ['<div class="worksheet">', '<p class="nameline">Name: ____________ Date: ________ Score: ____</p>']
    for ex in exercises:
        out += [
            f'<div class="item"><span class="item-no">{ex.number}{dot}</span>',
            f'<div class="item-text">{_paras(ex.problem)}</div>\n<div class="rule"></div></div>',
        ]
    out += [f'</div>\n<p class="site">Free worksheets, updated {_date(rng)}</p>', f"<hr>\n<h2>{title}</h2>"]
    for ex in exercises:
        if ex.solution is not None:
            out.append(_paras(ex.solution, f"<b>{ex.number}{dot}</b> "))
    return "\n".join(out)


def practice_reveal_button(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A practice site: a button with aria-controls reveals a hidden div, which holds a sentence a p."""
    word = rng.choice(("Practice", "Try it", "Your turn"))
    shown = rng.choice(("Show solution", "Show answer", "See the answer", "Check answer"))
    out = []
    for ex in exercises:
        ident = f"ans{rng.randint(1000, 9999)}-{ex.number}"
        out += [
            '<section class="tryit">',
            f'<div class="tryit-bar"><h4>{word} #{ex.number}</h4> <span class="stars">Difficulty: '
            f"{'&#9733;' * rng.randint(1, 3)}</span></div>",
            f'<div class="tryit-task">{_paras(ex.problem)}</div>',
        ]
        if ex.solution is not None:
            out += [
                f'<button type="button" class="reveal" aria-controls="{ident}">{shown}</button>',
                f'<div id="{ident}" style="display:none">',
                _paras(ex.solution, at=r"\n+|(?<=[a-z\0][.!?]) (?=[A-Z])"),
                "</div>",
            ]
        out.append("</section>")
        if rng.random() < 0.3:
            out.append('<div class="ad-slot"><small>Advertisement</small></div>')
    out.append(
        "<script>document.querySelectorAll('.reveal').forEach(b => b.onclick = () => {"
        "document.getElementById(b.getAttribute('aria-controls')).style.display = 'block';});</script>"
    )
    return "\n".join(out)


def blog_inline_qa(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A teacher's blog post: plain paragraphs that open with Q and number, then a line with A."""
    ask, reply = rng.choice((("Q{}. ", "A. "), ("Q{}: ", "A: "), ("Que {}. ", "Ans. "), ("Q.{} ", "Ans: ")))
    out = [
        f'<p class="post-meta">Posted by {rng.choice(USERS)} on {_date(rng)}</p>',
        "<p>Here are the questions my class asked for. Let me know in the comments if you spot a slip!</p>",
    ]
    for ex in exercises:
        text = ask.format(ex.number) + _lines(ex.problem)
        if ex.solution is not None:
            text += f"<br>\n{reply}{_lines(ex.solution)}"
        out.append(f"<p>{text}</p>")
    out.append('<div class="sharedaddy">Share this: <a href="#">Facebook</a> <a href="#">Twitter</a></div>')
    return "\n".join(out)


def problem_set_nested_list(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A department's homework page: an ordered list whose items nest the answer as a list of its own."""
    answer = rng.choice(("Solution:", "Answer:", "Ans."))
    out = [f"<h2>Homework {rng.randint(1, 12)}</h2>", '<ol class="hw">']
    for ex in exercises:
        out.append(f'<li value="{ex.number}"><div class="worth">({rng.randint(2, 10)} points)</div>')
        out.append(f'<div class="stem">{_lines(ex.problem)}</div>')
        if ex.solution is not None:
            out.append(f'<ul class="soln"><li><u>{answer}</u> {_lines(ex.solution)}</li></ul>')
        out.append("</li>")
    out.append("</ol>\n<p><i>Please hand in your work at the start of the Thursday lecture.</i></p>")
    return "\n".join(out)


def university_bold_labels(exercises: Sequence[Gold], rng: random.Random) -> str:
    """A problem set converted from LaTeX: bold run-in labels, the points within the problem's label."""
    word = rng.choice(("Problem", "Exercise", "Question"))
    answer = rng.choice(("Solution.", "Worked solution.", "Answer."))
    sheet, points = rng.randint(1, 9), rng.random() < 0.5
    out = [f'<p class="center">Problem Set {sheet}<br>Due {_date(rng)}</p>']
    for ex in exercises:
        worth = f" ({rng.choice((3, 5, 10, 15))} points)" if points else ""
        out.append(_paras(ex.problem, f"<strong>{word} {sheet}.{ex.number}{worth}.</strong> "))
        if ex.solution is not None:
            out.append(_paras(ex.solution, f"<strong>{answer}</strong> "))
    return "\n".join(out)


def lms_quiz_cards(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An exported quiz review: a box a question with its state and marks, the explanation as feedback."""
    label = rng.choice(("Explanation", "Correct answer", "Worked solution"))
    out = [f'<table class="quizreviewsummary"><tr><th>Completed on</th><td>{_date(rng)}</td></tr></table>']
    for ex in exercises:
        out += [
            f'<div class="que essay" id="question-{ex.number}">\n<div class="info">',
            f'<h3 class="no">Question <span class="qno">{ex.number}</span></h3>',
            f'<div class="state">{rng.choice(("Complete", "Not answered"))}</div>',
            f'<div class="grade">Marked out of {rng.randint(1, 5)}.00</div>\n</div>',
            f'<div class="content">\n<div class="qtext">{_paras(ex.problem)}</div>',
        ]
        if ex.solution is not None:
            out.append(
                f'<div class="feedback"><div class="feedback-label">{label}</div>\n'
                f'<div class="generalfeedback">{_paras(ex.solution)}</div></div>'
            )
        out.append("</div>\n</div>")
    return "\n".join(out)


def open_textbook_knowls(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An open textbook of the PreTeXt kind: checkpoints with hint, answer links and hidden contents."""
    word = rng.choice(("Checkpoint", "Activity", "Exercise", "Example"))
    section, answer = f"{rng.randint(1, 9)}.{rng.randint(1, 6)}", rng.choice(("Solution", "Answer"))

    def knowl(kind: str, number: int, body: str) -> str:
        ident = f"{kind.lower()}-{section}-{number}"
        return (
            f'<div class="{kind.lower()} hidden-knowl-wrapper"><a href="#" data-knowl data-refid="{ident}" '
            f'class="id-ref"><span class="type">{kind}</span>.</a>\n'
            f'<div class="hidden-content tex2jax_ignore" id="{ident}">{body}</div></div>'
        )

    out = [f'<h2 class="heading">{section} Exercises</h2>']
    for ex in exercises:
        out += [
            f'<article class="exercise-like" id="ck-{ex.number}">',
            f'<h3 class="heading"><span class="type">{word}</span> '
            f'<span class="codenumber">{section}.{ex.number}</span>.</h3>\n{_paras(ex.problem)}',
        ]
        if ex.solution is not None:
            hinted = rng.random() < 0.4
            out += [knowl("Hint", ex.number, f"<p>{rng.choice(HINTS)}</p>")] if hinted else []
            out.append(knowl(answer, ex.number, _paras(ex.solution)))
        out.append(f'</article>\n<a class="permalink" href="#ck-{ex.number}" title="Copy link">&#128279;</a>')
    return "\n".join(out)


LAYOUTS: dict[str, Style] = {
    "wikibook_headings": wikibook_headings,
    "course_notes_details": course_notes_details,
    "tutor_definition_list": tutor_definition_list,
    "exam_archive_table": exam_archive_table,
    "homework_forum": homework_forum,
    "worksheet_answer_key": worksheet_answer_key,
    "practice_reveal_button": practice_reveal_button,
    "blog_inline_qa": blog_inline_qa,
    "problem_set_nested_list": problem_set_nested_list,
    "university_bold_labels": university_bold_labels,
    "lms_quiz_cards": lms_quiz_cards,
    "open_textbook_knowls": open_textbook_knowls,
}
