"""Renders exercises as pages in label styles that no rule of extract_web was written against when first measured.

They were written before the rules (`FIRST`) or after them (`SECOND`), and measured before anyone looked at what a
reader gets wrong in them: docs/extraction.md has the figures of that first look and what was learnt from it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from benchmarks.extraction_styles import (
    COMMENTS,
    NAMES,
    PROSE,
    Gold,
    Style,
    each,
    formula,
    inline,
    paragraphs,
    wrong,
)


def lists_with_key(exercises: Sequence[Gold], rng: random.Random) -> str:
    """An ordered list of exercises and, after other prose, one of selected answers with explicit values."""
    asked = "\n".join(f"<li>{paragraphs(one.problem)}</li>" for one in exercises)
    key = "\n".join(
        f'<li value="{one.number}">{inline(one.solution)}</li>' for one in exercises if one.solution
    )
    return (
        f"<h2>Practice Problems</h2><ol>{asked}</ol>\n<h2>Summary</h2><p>{rng.choice(PROSE)}</p>\n"
        f"<h2>Answers to Selected Problems</h2><ol>{key}</ol>"
    )


def bulletin_board(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Threads in nested tables: replies quote the question, one is marked best, votes stand after the text."""
    threads = []
    for one in exercises:
        rows = [
            f"<tr><td class='who'>{rng.choice(NAMES)}<br>Posts: {rng.randint(1, 99)}</td><td><div class='subject'><b>"
            f"Question {one.number}</b></div><div class='body'>{paragraphs(one.problem)}</div></td></tr>"
        ]
        replies = []
        if one.solution:
            best = rng.randint(5, 30)
            replies = [(best, True, one.solution)]
            replies += [
                (rng.randint(0, best - 1), False, wrong(exercises, one, rng))
                for _ in range(rng.randint(0, 2))
            ]
            rng.shuffle(replies)
        for votes, is_best, text in replies:
            quote = f"<blockquote><cite>{NAMES[0]} wrote:</cite> {inline(one.problem)}</blockquote>"
            rows.append(
                f"<tr><td class='who'>{rng.choice(NAMES)}<br>Posts: {rng.randint(1, 99)}</td><td><div class='subject'>"
                f"<b>{'✔ Best answer' if is_best else 'Answer'}</b></div><div class='body'>"
                f"{quote if rng.random() < 0.3 else ''}{paragraphs(text)}</div>"
                f"<div class='rate'>▲ {votes} ▼</div></td></tr>"
            )
        threads.append(f"<table class='topic'>{''.join(rows)}</table>")
    return "\n".join(threads)


def linked_solutions(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Boxes with a link to the solution further down, solutions with a link back."""
    asked = "\n".join(
        f'<section id="ex{one.number}"><h4>{one.number}</h4>{paragraphs(one.problem)}'
        + (f'<a href="#sol{one.number}">Solution</a>' if one.solution else "")
        + "</section>"
        for one in exercises
    )
    solved = "\n".join(
        f'<section id="sol{one.number}"><h4>Solution to Exercise {one.number}</h4>{paragraphs(one.solution)}'
        f'<a href="#ex{one.number}">Back to the exercise ↩</a></section>'
        for one in exercises
        if one.solution
    )
    return f"<h2>Try these</h2>{asked}<h2>Worked solutions</h2>{solved}"


def questions_and_answers(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Marked up as questions and answers for search engines, with comments below each."""
    return "\n".join(
        f'<div itemscope itemtype="https://schema.org/Question"><h3 itemprop="name">Homework help {one.number}</h3>'
        f'<div itemprop="text">{paragraphs(one.problem)}</div>'
        + (
            f'<div itemprop="acceptedAnswer" itemscope itemtype="https://schema.org/Answer"><h4>Verified answer</h4>'
            f'<div itemprop="text">{paragraphs(one.solution)}</div><span itemprop="upvoteCount">{rng.randint(1, 50)}'
            f'</span><div class="comment">{rng.choice(COMMENTS)}</div></div>'
            if one.solution
            else ""
        )
        + "</div>"
        for one in exercises
    )


def worked_examples(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Boxes with a head in words that vary, the solution begun by an emphasised word."""
    words = ("Worked Example", "Practice Problem", "Sample Question")
    return "\n".join(
        f'<div class="thm"><p class="thm-head">{words[one.number % 3]} {one.number}</p>{paragraphs(one.problem)}'
        + (f"<p><em>Worked solution.</em> {inline(one.solution)}</p>" if one.solution else "")
        + "</div>"
        for one in exercises
    )


def key_in_table(exercises: Sequence[Gold], rng: random.Random) -> str:
    """Exercises numbered in parentheses, the key a table of numbers and answers."""
    asked = "\n".join(f"<p>({one.number}) {inline(one.problem)}</p>" for one in exercises)
    rows = "".join(
        f"<tr><td>{one.number}</td><td>{inline(one.solution)}</td></tr>" for one in exercises if one.solution
    )
    return f"{asked}\n<h3>Answer Key</h3><table><tr><th>No.</th><th>Answer</th></tr>{rows}</table>"


_EDIT = '<span class="mw-editsection">[<a href="/edit">edit</a>]</span>'
FIRST: dict[str, Style] = {
    "lines_of_one_paragraph": each(
        "<u>Problem {number}</u>: {problem}",
        "<br><br>\n<u>Solution</u>: {solution}",
        text=inline,
        between="<br><br>\n",
        around=("<div>", "</div>"),
    ),
    "cards": each(
        '<div class="card mb-3"><div class="card-header">Question {number} of {count}</div><div class="card-body">'
        '<div class="card-text">{problem}</div>',
        '<a class="btn btn-link" data-toggle="collapse" href="#c{number}" role="button">Reveal answer</a><div class='
        '"collapse" id="c{number}"><div class="card card-body">{solution}</div></div>',
        "</div></div>",
        without='<p class="text-muted">Difficulty: medium</p>',
    ),
    "lists_with_key": lists_with_key,
    "wiki": each(
        '<h2><span class="mw-headline" id="p{number}">Problem {number}</span>' + _EDIT + "</h2>\n{problem}",
        '<h3><span class="mw-headline">Solution</span>'
        + _EDIT
        + '</h3>\n<div class="mw-collapsible mw-collapsed">'
        "{solution}</div>",
    ),
    "bulletin_board": bulletin_board,
    "abbreviations": each("<p>EX. {number}  {problem}</p>", "\n<p>SOL.  {solution}</p>", text=formula),
    "linked_solutions": linked_solutions,
    "questions_and_answers": questions_and_answers,
}
SECOND: dict[str, Style] = {
    "worked_examples": worked_examples,
    "two_columns": each(
        "<tr><td>Q{number}</td><td>{problem}</td></tr>",
        "<tr><td>A{number}</td><td>{solution}</td></tr>",
        text=inline,
        around=("<table class='faq'>", "</table>"),
    ),
    "key_in_table": key_in_table,
    "spoilers": each(
        "<h4>Kata {number}</h4>{problem}",
        '<div class="spoiler"><div class="spoiler-head">Spoiler: solution</div><div class="spoiler-body">{solution}'
        "</div></div>",
    ),
    "classes_only": each(
        '<div class="row"><div class="exercise-text">{problem}</div>',
        '<div class="solution-text">{solution}</div>',
        "</div>",
    ),
}
HELD_OUT: dict[str, Style] = {**FIRST, **SECOND}
