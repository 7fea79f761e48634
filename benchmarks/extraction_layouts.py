"""The last dimensions of extraction_combinations: keys at the end by section, lists of terms, tables, answers in line.

Written when the rules had been mended on the dimensions of extraction_variations.py and measured before a rule was
mended on these; learnt from since.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from benchmarks.extraction_styles import Gold, Style, inline, paragraphs

GROUP = 5
"""Exercises of a section."""
TITLES = (
    "Exercises",
    "Problem set",
    "Review exercises",
    "Homework",
    "Questions",
    "2.4 Problems",
    "Exercise set {part}",
    "Section {part} exercises",
    "Chapter review",
    "Practice {part}",
)
KEY_TITLES = (
    "Solutions",
    "Answers",
    "Answer key",
    "Solutions to the exercises",
    "Worked answers",
    "Answers to selected questions",
    "B.1 Solutions",
    "Appendix A: Answers",
    "Hints and answers",
    "Answers and explanations",
    "Model answers",
    "Solutions to problem set",
    "Check your answers",
)
ASKED = {
    "numbered": "<p>{n}. {p}</p>",
    "bold number": "<p><b>{n}.</b> {p}</p>",
    "bracket": "<p>({n}) {p}</p>",
    "word": "<p><strong>Exercise {n}.</strong> {p}</p>",
    "heading": "<h4>Problem {n}</h4><p>{p}</p>",
    "hash": "<p><b>#{n}</b> {p}</p>",
    "linked": "<p><a id='e{n}' href='#s{n}'>{n}.</a> {p}</p>",
    "row": "<table><tr><td valign='top'>{n}.</td><td>{p}</td></tr></table>",
    "box": "<div><span>{n}</span><div>{p}</div></div>",
    "colon": "<p>Q{n}: {p}</p>",
}
ENTRIES = {
    "numbered": "<p>{n}. {s}</p>",
    "bold number": "<p><b>{n}.</b> {s}</p>",
    "bracket": "<p>({n}) {s}</p>",
    "word": "<p><strong>Exercise {n}.</strong> {s}</p>",
    "heading": "<h4>Problem {n}</h4><p>{s}</p>",
    "solution word": "<p><b>Solution {n}.</b> {s}</p>",
    "answer to": "<p><b>Answer to {n}:</b> {s}</p>",
    "term": "<dl><dt>{n}</dt><dd>{s}</dd></dl>",
    "linked": "<p><a id='s{n}' href='#e{n}'>{n}</a>. {s}</p>",
    "row": "<table><tr><td>{n}.</td><td>{s}</td></tr></table>",
}
SECTION_TITLES = ("Section {part}", "4.{part}", "Set {part}", "Exercises {part}", "Part {letter}")
TERMS = {
    "question": ("<dt>{n}. {p}</dt>", "<dd>{s}</dd>"),
    "question and word": ("<dt>Q{n}. {p}</dt>", "<dd><b>A.</b> {s}</dd>"),
    "label first": ("<dt>Exercise {n}</dt><dd>{p}</dd>", "<dd><b>Our solution:</b> {s}</dd>"),
    "two terms": ("<dt>Task {n}</dt><dd>{p}</dd>", "<dt>Reasoning</dt><dd>{s}</dd>"),
    "bold question": ("<dt><b>{p}</b></dt>", "<dd>{s}</dd>"),
}
COLUMNS = {
    "plain": ("Question", "Answer"),
    "task": ("Task", "Worked answer"),
    "number": ("No.", "Problem", "Solution"),
    "marks": ("#", "Question", "Marks", "Mark scheme"),
    "model": ("Exercise", "Model response"),
    "prompt": ("Prompt", "Explanation"),
    "how": ("Problem", "How to do it"),
    "try": ("Your turn", "Our answer"),
    "item": ("Item", "Question", "Correct answer"),
    "bare": ("What is asked", "Answer"),
}
IN_LINE = {
    "brackets": "<p>{n}. {p} [Answer: {s}]</p>",
    "round": "<p><b>{n}.</b> {p} (Ans. {s})</p>",
    "bold": "<p>{n}) {p} <b>Answer:</b> {s}</p>",
    "italic": "<p>{n}) {p} <i>Solution.</i> {s}</p>",
    "break": "<p>{n}. {p}<br><i>Ans:</i> {s}</p>",
    "dash": "<p><b>Q{n}</b> {p}<br>— Answer: {s}</p>",
    "span": "<p>{n}. {p} <span class='a'>Answer: {s}</span></p>",
    "item": "<li>{p} <em>[Answer: {s}]</em></li>",
    "arrow": "<p>{n}. {p}<br>→ Solution: {s}</p>",
    "line": "<div>{n}. {p}</div><div>Ans: {s}</div>",
}
NOISE = {
    "none": "",
    "prose": "<p>Take a short break before you go on with the next ones.</p>",
    "rule": "<hr>",
    "links": "<p><a href='/p'>Previous</a> | <a href='/n'>Next</a></p>",
    "print": "<p><a href='/x'>Print this page</a></p>",
}
UNDER = {
    "none": "",
    "tag": "<p class='z'>Skill: {topic}</p>",
    "link": "<p><a href='#'>Flag this item</a></p>",
    "points": "<p>({points} points)</p>",
}
LAYOUTS: dict[str, Sequence[str]] = {
    "layout": ["key", "key", "key by section", "key by section", "terms", "rows", "in line", "in line"],
    "title": TITLES,
    "key title": KEY_TITLES,
    "asked": list(ASKED),
    "entry": list(ENTRIES),
    "section title": SECTION_TITLES,
    "terms": list(TERMS),
    "columns": list(COLUMNS),
    "in line": list(IN_LINE),
    "noise": ["none"] * 4 + list(NOISE),
    "under": ["none"] * 4 + list(UNDER),
}


def laid_out(drawn: Mapping[str, str]) -> Style:
    """The style of one combination."""

    def style(exercises: Sequence[Gold], rng: random.Random) -> str:
        write = {
            "key": _key,
            "key by section": _key_by_section,
            "terms": _terms,
            "rows": _rows,
            "in line": _in_line,
        }
        return write[drawn["layout"]](drawn, exercises, rng)

    return style


def _title(drawn: Mapping[str, str], part: int) -> str:
    return f"<h2>{drawn['title'].format(part=part)}</h2>"


def _under(drawn: Mapping[str, str], rng: random.Random) -> str:
    return UNDER[drawn["under"]].format(topic=rng.choice(("Number", "Algebra")), points=rng.randint(2, 5))


def _key(drawn: Mapping[str, str], exercises: Sequence[Gold], rng: random.Random) -> str:
    ask, answer = ASKED[drawn["asked"]], ENTRIES[drawn["entry"]]
    asked = [ask.format(n=one.number, p=inline(one.problem)) + _under(drawn, rng) for one in exercises]
    entries = [answer.format(n=one.number, s=inline(one.solution)) for one in exercises if one.solution]
    return "\n".join(
        [_title(drawn, 1), *asked, NOISE[drawn["noise"]], f"<h2>{drawn['key title']}</h2>", *entries]
    )


def _key_by_section(drawn: Mapping[str, str], exercises: Sequence[Gold], rng: random.Random) -> str:
    """Numbers start again in every section and in every part of the key."""
    asked, entries = [], []
    for part, first in enumerate(range(0, len(exercises), GROUP), 1):
        group = exercises[first : first + GROUP]
        name = drawn["section title"].format(part=part, letter="ABCDEF"[part - 1])
        asked += [f"<h2>{name}</h2>", NOISE[drawn["noise"]]]
        asked += [ASKED[drawn["asked"]].format(n=n, p=inline(one.problem)) for n, one in enumerate(group, 1)]
        solved = [(n, one.solution) for n, one in enumerate(group, 1) if one.solution]
        entries.append(f"<h3>{name}</h3>" if solved else "")
        entries += [ENTRIES[drawn["entry"]].format(n=n, s=inline(solution)) for n, solution in solved]
    return "\n".join([*asked, f"<h2>{drawn['key title']}</h2>", *entries])


def _terms(drawn: Mapping[str, str], exercises: Sequence[Gold], rng: random.Random) -> str:
    question, answer = TERMS[drawn["terms"]]
    shown = [
        question.format(n=one.number, p=inline(one.problem))
        + _under(drawn, rng).replace("<p", "<dd").replace("</p", "</dd")
        + (
            answer.format(s=paragraphs(one.solution) if "<b>" not in answer else inline(one.solution))
            if one.solution
            else ""
        )
        for one in exercises
    ]
    return _title(drawn, 1) + "<dl>" + "\n".join(shown) + "</dl>" + NOISE[drawn["noise"]]


def _rows(drawn: Mapping[str, str], exercises: Sequence[Gold], rng: random.Random) -> str:
    names = COLUMNS[drawn["columns"]]
    rows = []
    for one in exercises:
        cells = [inline(one.problem), inline(one.solution or "")]
        cells = [str(one.number), *cells] if len(names) > 2 else cells
        cells = [*cells[:-1], str(rng.randint(2, 5)), cells[-1]] if len(names) == 4 else cells
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{name}</th>" for name in names)
    return _title(drawn, 1) + f"<table><tr>{head}</tr>" + "\n".join(rows) + "</table>" + NOISE[drawn["noise"]]


def _in_line(drawn: Mapping[str, str], exercises: Sequence[Gold], rng: random.Random) -> str:
    form = IN_LINE[drawn["in line"]]
    shown = []
    for one in exercises:
        text = form.format(n=one.number, p=inline(one.problem), s=inline(one.solution or "\0"))
        shown.append(text if one.solution else _without_answer(form, one))
    middle = "\n".join(shown)
    return _title(drawn, 1) + (f"<ol>{middle}</ol>" if "<li>" in form else middle) + NOISE[drawn["noise"]]


def _without_answer(form: str, one: Gold) -> str:
    head = form[: form.index("{p}") + 3].format(n=one.number, p=inline(one.problem))
    return head + ("</li>" if "<li>" in form else "</div>" if head.startswith("<div>") else "</p>")
