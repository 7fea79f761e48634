"""Further dimensions of extraction_combinations: what sites put into, beside and under labels, and where labels stand.

The rules were learnt from `SECOND`. A page is drawn as before: every dimension
apart from the others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.extraction_styles import Gold, Style, inline, paragraphs

Markup = Callable[[str, str, int], str]
"""(label, text or its HTML, number) -> HTML."""
ROMAN = (
    "",
    "I",
    "II",
    "III",
    "IV",
    "V",
    "VI",
    "VII",
    "VIII",
    "IX",
    "X",
    "XI",
    "XII",
    "XIII",
    "XIV",
    "XV",
    "XVI",
)

PROBLEM_WORDS = (
    "Try it yourself",
    "Your turn",
    "Drill",
    "Puzzle",
    "Check your understanding",
    "Exercise",
    "Problem",
    "Question",
    "Task",
    "Example",
    "Challenge",
    "Self-test",
    "Practice exercise",
    "Exam question",
    "Quick question",
    "Now you try",
    "Study question",
    "Review question",
    "Homework problem",
    "Past paper question",
    "Test item",
    "Have a go",
    "Brain teaser",
    "Assignment",
    "Worked problem",
    "Ex",
    "Q",
    "Prob.",
)
SOLUTION_WORDS = (
    "Worked answer",
    "Explanation",
    "Reasoning",
    "Walkthrough",
    "Model response",
    "How to do it",
    "Our answer",
    "Here's how",
    "Solution",
    "Answer",
    "Show worked solution",
    "See the reasoning",
    "Full answer",
    "Show me how",
    "Let's solve it",
    "Step by step",
    "Working out",
    "Teacher's answer",
    "Possible solution",
    "Sample response",
    "Complete working",
    "Check answer",
    "Peek at the answer",
    "Show steps",
    "Response",
    "Approach",
    "Method",
    "Detailed explanation",
    "How we got there",
    "What we did",
)
NUMBERING = (
    "{word} {n}",
    "{word} {n}",
    "{word} {roman}",
    "{word} #{n}",
    "{word} {n:02d}",
    "{word} 4.{n}",
    "{word} {n} –",
    "{word} {n} —",
    "{word} ({n})",
    "{word} № {n}",
    "{word} {n})",
    "{word} {n}:",
    "{word}: {n}",
    "{n}. {word}",
    "{word} 4-{n}",
    "{word} 3.2.{n}",
    "{word}-{n}",
    "({n}) {word}",
    "{word} no {n}",
    "{word} {n}/{count}",
)
TAGS = (
    "{points} pts",
    "Core",
    "{points} marks",
    "[{points} marks]",
    "Difficulty: ★★☆",
    "Level {points}",
    "{topic}",
    "{topic} · {points} pt",
    "Easy",
    "Non-calculator",
    "Grade 9",
    "⏱ {points} min",
    "Time: {points} min",
    "(worth {points} points)",
    "Skill: {topic}",
    "{topic} {points} pt",
    "Exam board: AQA",
    "HSA.REI.{points}",
)
TOPICS = ("Core", "Stretch", "Revision", "Exam practice")
TAG_PLACES: dict[str, tuple[str, str, str]] = {
    "none": ("", "", ""),
    "span in label": (" <span class='t'>{tag}</span>", "", ""),
    "small in label": (" <small>{tag}</small>", "", ""),
    "text in label": (" {tag}", "", ""),
    "dash in label": (" – {tag}", "", ""),
    "second line": ("<br><small>{tag}</small>", "", ""),
    "line under label": ("", "<p class='m'>{tag}</p>", ""),
    "box under label": ("", "<div><span>{tag}</span></div>", ""),
    "line under text": ("", "", "<p>{tag}</p>"),
    "box under text": ("", "", "<div class='badges'>{tag}</div>"),
}
"""What follows the label, stands before the text and after it."""
UNDER = {
    "none": "",
    "link": "<div class='x'><a href='#' class='bm'>Save for later</a></div>",
    "print": "<p><a href='/print/{n}'>Print this question</a></p>",
    "tutor": "<p><a href='/ask'>Ask a tutor</a></p>",
    "button": "<button class='b1'>Add to my list</button>",
    "discuss": "<div><a href='/d/{n}'>Discuss ({n})</a></div>",
    "span": "<div><span class='lnk'>Copy link</span></div>",
    "app": "<p><em>Try this in the app</em></p>",
    "report": "<p><a href='/r'>Report a mistake</a></p>",
    "two": "<p><a href='#'>Bookmark</a> | <a href='#'>Print</a></p>",
    "lines": "<div><a href='#'>Watch the video</a></div><div><a href='#'>Send to a friend</a></div>",
}
HINTS = {
    "none": "",
    "bold": "<p><b>Hint:</b> Read the text twice.</p>",
    "details": "<details><summary>Hint</summary><p>Read the text twice.</p></details>",
    "button": "<button onclick='h({n})'>Need a hint?</button><div hidden><p>Read the text twice.</p></div>",
    "heading": "<h5>Hint</h5><p>Read the text twice.</p>",
    "clue": "<p><i>Clue:</i> Read the text twice.</p>",
    "numbered": "<details><summary>Hint 1</summary><p>Read it.</p></details>"
    "<details><summary>Hint 2</summary><p>Read it twice.</p></details>",
}
SEPARATORS = {
    "none": "",
    "rule": "<hr>",
    "stars": "<p>* * *</p>",
    "dashes": "<p>———</p>",
    "blank": "<p>&nbsp;</p>",
    "dots": "<div>•••</div>",
    "tilde": "<p>~</p>",
    "asterism": "<p>⁂</p>",
    "box": "<div class='sep'></div>",
    "underscores": "<p>__________</p>",
}
PROBLEM_MARKUP: dict[str, Markup] = {
    "h3": lambda label, body, n: f"<h3>{label}</h3>\n{body}",
    "h2": lambda label, body, n: f"<h2>{label}</h2>\n{body}",
    "span in bar": lambda label, body, n: (
        f"<div class='bar'><span class='no'>{label}</span></div><div class='txt'>{body}</div>"
    ),
    "bold": lambda label, body, n: f"<p><b>{label}</b></p>{body}",
    "icon": lambda label, body, n: f"<div><i class='fa fa-pencil'></i> <span>✎ {label}</span></div>{body}",
    "emoji": lambda label, body, n: f"<h4>📝 {label}</h4>{body}",
    "font": lambda label, body, n: (
        f"<p><font size='4' color='navy'><b>{label}</b></font></p><font size='3'>{body}</font>"
    ),
    "old table": lambda label, body, n: (
        f"<table width='100%' border='0'><tr><td><b>{label}</b></td></tr><tr><td>{body}</td></tr></table>"
    ),
    "custom element": lambda label, body, n: (
        f"<x-exercise><x-title>{label}</x-title><x-body>{body}</x-body></x-exercise>"
    ),
    "minified": lambda label, body, n: (
        f"<div class='css-1x8yz'><div class='sc-ab3 kQz'>{label}</div><div class='sc-xy9'>{body}</div></div>"
    ),
    "fieldset": lambda label, body, n: f"<fieldset><legend>{label}</legend>{body}</fieldset>",
    "link": lambda label, body, n: f"<h3><a href='/x/{n}'>{label}</a></h3>{body}",
    "anchor": lambda label, body, n: f"<p><a name='x{n}'></a><strong>{label}</strong></p>{body}",
    "paragraph": lambda label, body, n: f"<p>{label}</p>{body}",
}
SOLUTION_MARKUP: dict[str, Markup] = {
    "h4": lambda label, text, n: f"<h4>{label}</h4>\n{paragraphs(text)}",
    "bold line": lambda label, text, n: f"<p><b>{label}</b></p>{paragraphs(text)}",
    "run-in": lambda label, text, n: f"<p><b>{label}:</b> {inline(text)}</p>",
    "details": lambda label, text, n: f"<details><summary>{label}</summary>{paragraphs(text)}</details>",
    "anchor": lambda label, text, n: (
        f"<a href='#a{n}' class='js-x'>{label}</a><div id='a{n}' class='is-hidden'>{paragraphs(text)}</div>"
    ),
    "button": lambda label, text, n: (
        f"<button type='button' onclick='f({n})'>{label}</button><div id='k{n}' style='display:none'>"
        f"{paragraphs(text)}</div>"
    ),
    "checkbox": lambda label, text, n: (
        f"<input type='checkbox' id='c{n}'><label for='c{n}'>{label}</label><div class='pane'>{paragraphs(text)}</div>"
    ),
    "data attribute": lambda label, text, n: (
        f"<span data-target='#d{n}' data-toggle='collapse'>{label}</span><div id='d{n}'>{paragraphs(text)}</div>"
    ),
    "clickable box": lambda label, text, n: (
        f"<div class='r' onclick='g({n})'>{label}</div><div class='s' hidden>{paragraphs(text)}</div>"
    ),
    "icon": lambda label, text, n: (
        f"<div class='css-9q'><span class='ic'>💡</span> <span>{label}</span></div><div>{paragraphs(text)}</div>"
    ),
    "custom element": lambda label, text, n: f"<x-sol><x-head>{label}</x-head>{paragraphs(text)}</x-sol>",
    "aria-label": lambda label, text, n: f"<div aria-label='{_quoted(label)}'>{paragraphs(text)}</div>",
    "data-label": lambda label, text, n: f"<div data-label='{_quoted(label)}'>{paragraphs(text)}</div>",
    "title": lambda label, text, n: f"<div class='k' title='{_quoted(label)}'>{paragraphs(text)}</div>",
    "font": lambda label, text, n: f"<p><font color='red'><b>{label}</b></font><br>{inline(text)}</p>",
    "old table": lambda label, text, n: (
        f"<table border='0' bgcolor='#eee'><tr><td><i>{label}</i></td></tr><tr><td>{inline(text)}</td></tr></table>"
    ),
    "in brackets": lambda label, text, n: f"<p>[{label}: {inline(text)}]</p>",
    "minified": lambda label, text, n: (
        f"<div class='css-77'><div class='sc-q1'>{label}</div><div class='sc-q2'>{paragraphs(text)}</div></div>"
    ),
    "paragraph": lambda label, text, n: f"<p>{label}</p>{paragraphs(text)}",
}
WRAPPERS = {
    "none": ("", ""),
    "box": ("<div class='css-z1'>", "</div>"),
    "item": ("<li>", "</li>"),
    "custom element": ("<app-card>", "</app-card>"),
    "article": ("<article class='a9'>", "</article>"),
}
BEFORE = {
    "none": "",
    "section number": "<h2>9.9 Exercises</h2>",
    "span section number": ("<h2><span class='header-section-number'>4.9</span> Exercises</h2>"),
    "section": "<h2>Section 3.2 Exercises</h2>",
    "exercises 3.2": "<h2>Exercises 3.2</h2><p>Take your time.</p>",
    "part": "<h2>Part A</h2><p>Short questions first.</p>",
    "lettered": "<h2>A. Practice problems</h2>",
    "questions and answers": "<h1>Questions and Answers</h1>",
    "with solutions": "<h2>7.3 Exercises with solutions</h2>",
}
BETWEEN = {
    "none": "",
    "part": "<h2>Part {letter}</h2>",
    "set": "<h2>Set {part}: Mixed practice</h2>",
    "level": "<h3>Level {part}</h3><p>These are a bit harder.</p>",
    "section": "<h2>4.{part} Exercises</h2>",
}
"""Stands before every fifth exercise."""


def _quoted(text: str) -> str:
    return text.replace("'", "&#39;")


@dataclass(frozen=True, slots=True)
class Dimensions:
    """What a page draws from."""

    choices: Mapping[str, Sequence[str]]
    problem_markup: Mapping[str, Markup]
    solution_markup: Mapping[str, Markup]
    tag_places: Mapping[str, tuple[str, str, str]]
    fragments: Mapping[str, Mapping[str, str]]
    """Dimension -> choice -> HTML with the fields n, letter and part."""
    wrappers: Mapping[str, tuple[str, str]]


def _often_none(kinds: Mapping[str, object]) -> list[str]:
    """The kinds, and none as often as all of them together: a site has a few peculiarities, not all."""
    return ["none"] * (len(kinds) - 2) + list(kinds)


_FRAGMENTS = {
    "under problem": UNDER,
    "under solution": UNDER,
    "hint": HINTS,
    "separator": SEPARATORS,
    "before": BEFORE,
    "between": BETWEEN,
}
SECOND = Dimensions(
    choices={
        "problem word": PROBLEM_WORDS,
        "solution word": SOLUTION_WORDS,
        "numbering": NUMBERING,
        "tag": TAGS,
        "tag place": _often_none(TAG_PLACES),
        "problem markup": list(PROBLEM_MARKUP),
        "solution markup": list(SOLUTION_MARKUP),
        "wrapper": _often_none(WRAPPERS),
        **{name: _often_none(kinds) for name, kinds in _FRAGMENTS.items()},
    },
    problem_markup=PROBLEM_MARKUP,
    solution_markup=SOLUTION_MARKUP,
    tag_places=TAG_PLACES,
    fragments=_FRAGMENTS,
    wrappers=WRAPPERS,
)


def varied(dimensions: Dimensions, drawn: Mapping[str, str]) -> Style:
    """The style of one combination."""

    def style(exercises: Sequence[Gold], rng: random.Random) -> str:
        shown = []
        for place, one in enumerate(exercises):
            fields = {"n": one.number, "letter": "ABCDEF"[place // 5], "part": str(place // 5 + 1)}
            name = "between" if place and place % 5 == 0 else "before" if not place else ""
            title = dimensions.fragments[name][drawn[name]].format(**fields) if name else ""
            shown.append((title, _exercise(dimensions, drawn, one, len(exercises), rng)))
        if drawn["wrapper"] != "item":
            return "\n".join(title + exercise for title, exercise in shown)
        lists = "".join(f"</ul>{title}<ul>{exercise}" if title else exercise for title, exercise in shown)
        return lists.removeprefix("</ul>") if shown[0][0] else f"<ul>{lists}</ul>"

    return style


def _exercise(
    dimensions: Dimensions, drawn: Mapping[str, str], one: Gold, count: int, rng: random.Random
) -> str:
    opening, closing = dimensions.wrappers[drawn["wrapper"]]
    fields = {"n": one.number, "letter": "", "part": ""}
    fragment = {name: kinds[drawn[name]].format(**fields) for name, kinds in dimensions.fragments.items()}
    tag = drawn["tag"].format(points=rng.randint(2, 6), topic=rng.choice(TOPICS))
    beside, before, after = (form.format(tag=tag) for form in dimensions.tag_places[drawn["tag place"]])
    roman = ROMAN[one.number] if one.number < len(ROMAN) else str(one.number)
    label = drawn["numbering"].format(word=drawn["problem word"], n=one.number, roman=roman, count=count)
    body = before + paragraphs(one.problem) + after
    problem = dimensions.problem_markup[drawn["problem markup"]](label + beside, body, one.number)
    problem += fragment["under problem"]
    parts = [opening, problem]
    if one.solution:
        markup = dimensions.solution_markup[drawn["solution markup"]]
        parts += [fragment["hint"], markup(drawn["solution word"], one.solution, one.number)]
        parts.append(fragment["under solution"])
    return "".join(parts) + closing + fragment["separator"]
