"""Reads pages made of random combinations: words, numbering, markup, identifiers and noise of sites, drawn apart.

A site's style is a combination that nobody chose for the reader's sake. Each page draws one and shows the beginning of
a book's page in it; a page fails below recall 0.85 or precision 0.90 (a page has 4 to 14 solved exercises, so that one
wrong pair in ten passes). What goes with failures is listed, the worst first.

Command: python -m benchmarks.extraction_combinations --data ../shared/data [--pages 600 --seed 0 --set first]

`--set second` draws from the dimensions of extraction_variations.py instead: what stands in, beside and under labels;
`--set third` from those of extraction_layouts.py: keys by section, lists of terms, tables, answers in line.
"""

from __future__ import annotations

import argparse
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from benchmarks.extraction import BOOKS, extracted, pairs, require_pages, rows, score
from benchmarks.extraction_layouts import LAYOUTS, laid_out
from benchmarks.extraction_styles import Gold, Style, inline, paragraphs, render
from benchmarks.extraction_variations import SECOND, varied

LEAST_RECALL, LEAST_PRECISION = 0.85, 0.90
PAGE_EXERCISES, MIN_SOLVED, MOST_PAGES = 14, 4, 12
SHARE_NESTED = 0.3

Markup = Callable[[str, str, str], str]
"""(label, text, attributes) -> HTML."""

PROBLEM_WORDS = (
    "Exercise",
    "Problem",
    "Question",
    "Example",
    "Practice",
    "Try It",
    "Task",
    "Checkpoint",
    "Challenge",
    "Your turn",
    "Practice question",
    "Worked example",
    "Ex.",
    "Q",
    "Puzzle",
    "Activity",
    "Practice Problem",
)
SOLUTION_WORDS = (
    "Solution",
    "Answer",
    "Show solution",
    "Answer and explanation",
    "Working",
    "Worked solution",
    "Explanation",
    "Sol.",
    "Ans.",
    "Model answer",
    "Reveal answer",
    "Suggested answer",
    "View answer",
    "Show Answer",
    "Our solution",
    "Walkthrough",
    "Final answer",
    "Correct answer",
    "Answer:",
    "Solution:",
)
NUMBERING = (
    "{word} {n}",
    "{word} 5.{n}",
    "{word} #{n}",
    "{word} {n}.",
    "{word} {n}:",
    "{word} No. {n}",
    "{word} {n} of 24",
    "{word} {n} (3 points)",
    "{word} {n} [easy]",
)
PROBLEM_MARKUP: dict[str, Markup] = {
    "h2": lambda label, text, given: f"<h2{given}>{label}</h2>\n{paragraphs(text)}",
    "h3": lambda label, text, given: f"<h3{given}>{label}</h3>\n{paragraphs(text)}",
    "h4 with edit link": lambda label, text, given: (
        f"<h4{given}>{label} <span class='editsection'>[<a href='/e'>edit</a>]</span></h4>\n{paragraphs(text)}"
    ),
    "run-in bold": lambda label, text, given: f"<p{given}><strong>{label}</strong> {inline(text)}</p>",
    "bold line": lambda label, text, given: f"<p{given}><b>{label}</b></p><p>{inline(text)}</p>",
    "bold, line break": lambda label, text, given: f"<p{given}><b>{label}</b><br>{inline(text)}</p>",
    "span": lambda label, text, given: f"<p{given}><span class='lbl'>{label}</span> {inline(text)}</p>",
    "title box": lambda label, text, given: (
        f"<div{given}><div class='title'>{label}</div><div class='body'>{paragraphs(text)}</div></div>"
    ),
    "admonition": lambda label, text, given: (
        f"<div{given}><p class='admonition-title'>{label}</p>{paragraphs(text)}</div>"
    ),
    "section": lambda label, text, given: (
        f"<section{given}><header><h5>{label}</h5></header>{paragraphs(text)}</section>"
    ),
}
SOLUTION_MARKUP: dict[str, Markup] = {
    "h4": lambda label, text, given: f"<h4{given}>{label}</h4>\n{paragraphs(text)}",
    "h5": lambda label, text, given: f"<h5{given}>{label}</h5>\n{paragraphs(text)}",
    "run-in bold": lambda label, text, given: f"<p{given}><strong>{label}</strong> {inline(text)}</p>",
    "run-in italic": lambda label, text, given: f"<p{given}><em>{label}</em> {inline(text)}</p>",
    "underlined line": lambda label, text, given: f"<p{given}><u>{label}</u></p>{paragraphs(text)}",
    "details": lambda label, text, given: (
        f"<details{given}><summary>{label}</summary>{paragraphs(text)}</details>"
    ),
    "details, bold": lambda label, text, given: (
        f"<details{given}><summary><b>{label}</b></summary><div>{paragraphs(text)}</div></details>"
    ),
    "button": lambda label, text, given: (
        f"<button type='button' class='btn' onclick='t(this)'>{label}</button>"
        f"<div{given} style='display:none'>{paragraphs(text)}</div>"
    ),
    "link": lambda label, text, given: (
        f"<p><a href='#' class='toggle'>{label}</a></p><div{given} hidden>{paragraphs(text)}</div>"
    ),
    "title box": lambda label, text, given: (
        f"<div{given}><div class='title'>{label}</div><div class='body'>{paragraphs(text)}</div></div>"
    ),
    "box": lambda label, text, given: f"<div{given}><p><strong>{label}</strong></p>{paragraphs(text)}</div>",
    "quotation": lambda label, text, given: (
        f"<blockquote{given}><p><b>{label}</b> {inline(text)}</p></blockquote>"
    ),
}
RUN_IN = frozenset(["run-in bold", "run-in italic", "span", "quotation"])
IDENTIFIERS = {
    "none": ("", ""),
    "q-1-ans": (" id='q-{n}'", " id='q-{n}-ans'"),
    "ex1, sol1": (" id='ex{n}'", " id='sol{n}'"),
    "item-1-b": (" id='item-{n}'", " id='item-{n}-b'"),
}
CLASSES = {
    "none": ("", ""),
    "parts": (" class='problem'", " class='solution'"),
    "parts of exercise": (" class='exercise__prompt'", " class='exercise__answer'"),
    "layout": (" class='card mb-3'", " class='card-body bg-light'"),
    "panels": (" class='panel panel-task'", " class='panel panel-answer'"),
}
NOISE = {
    "none": "",
    "rule": "<hr>",
    "points": "<p class='meta'>3 points</p>",
    "tools": "<div class='page-tools'><a href='#top'>Back to top</a> | Last edited May {day}, 2022</div>",
    "share": "<div class='share'><a href='#'>Share</a> <a href='#'>Tweet</a></div>",
    "level": "<div class='permalink'><a href='#x'>link to this item</a> &middot; level {letter}</div>",
    "byline": "<p class='byline'>Posted by lena_k on 3 March 2021</p>",
    "comments": "<p><a href='/c'>{day} comments</a></p>",
    "advertisement": "<div class='ad-slot'>Advertisement</div>",
}
WRAPPERS = {
    "none": ("", ""),
    "article": ("<article>", "</article>"),
    "box": ("<div class='item'>", "</div>"),
    "card": ("<div class='card'><div class='card-body'>", "</div></div>"),
    "list": ("<li>", "</li>"),
}
BEFORE = {
    "nothing": "",
    "heading": "<h2>Practice questions</h2>",
    "numbered heading": "<h2>5. Further examples</h2>",
    "heading and prose": "<h2>Check your understanding</h2><p>Work through these before you go on.</p>",
}
CHOICES: dict[str, Sequence[str]] = {
    "problem word": PROBLEM_WORDS,
    "solution word": SOLUTION_WORDS,
    "numbering": NUMBERING,
    "problem markup": list(PROBLEM_MARKUP),
    "solution markup": list(SOLUTION_MARKUP),
    "identifiers": list(IDENTIFIERS),
    "classes": list(CLASSES),
    "noise": list(NOISE),
    "wrapper": list(WRAPPERS),
    "before": list(BEFORE),
}
SETS: dict[str, tuple[Mapping[str, Sequence[str]], Callable[[Mapping[str, str]], Style]]] = {
    "second": (SECOND.choices, partial(varied, SECOND)),
    "third": (LAYOUTS, laid_out),
}


def style_of(drawn: dict[str, str], is_nested: bool) -> Style:
    """The style of one combination."""

    def style(exercises: Sequence[Gold], rng: random.Random) -> str:
        opening, closing = WRAPPERS[drawn["wrapper"]]
        noise = NOISE[drawn["noise"]]
        shown = [
            opening
            + _exercise(drawn, one, is_nested)
            + noise.format(day=rng.randint(1, 28), letter=rng.choice("ABC"))
            + closing
            for one in exercises
        ]
        middle = "\n".join(shown)
        return BEFORE[drawn["before"]] + (f"<ul>{middle}</ul>" if drawn["wrapper"] == "list" else middle)

    return style


def _exercise(drawn: dict[str, str], one: Gold, is_nested: bool) -> str:
    given = [
        identifier.format(n=one.number) + name
        for identifier, name in zip(IDENTIFIERS[drawn["identifiers"]], CLASSES[drawn["classes"]], strict=True)
    ]
    label = _ended(
        drawn["numbering"].format(word=drawn["problem word"], n=one.number), drawn["problem markup"], "."
    )
    problem = PROBLEM_MARKUP[drawn["problem markup"]](label, one.problem, given[0])
    if not one.solution:
        return problem
    label = _ended(drawn["solution word"], drawn["solution markup"], ":")
    solution = SOLUTION_MARKUP[drawn["solution markup"]](label, one.solution, given[1])
    if is_nested and problem.endswith("</div>"):
        return problem.removesuffix("</div>") + solution + "</div>"
    return problem + solution


def _ended(label: str, markup: str, sign: str) -> str:
    return label + sign if markup in RUN_IN and label[-1] not in ".:" else label


def gold_pages(data: Path) -> list[tuple[str, list[dict]]]:
    """Beginnings of pages of the books, as rows of their gold."""
    found = []
    for book in BOOKS:
        by_page: dict[str, list[dict]] = defaultdict(list)
        for row in rows(data / "pages" / f"{book}.gold.jsonl.gz"):
            by_page[row["page"]].append(row)
        found += [(name, gold[:PAGE_EXERCISES]) for name, gold in list(by_page.items())[::7]]
    return [page for page in found if sum(bool(row["solution"]) for row in page[1]) >= MIN_SOLVED][
        :MOST_PAGES
    ]


def tell_worst(
    failed: int, arguments: argparse.Namespace, seen: Mapping[tuple[str, str], Sequence[bool]]
) -> None:
    """Prints how many pages failed, and the choices that failed most often; `seen` has each choice's failures."""
    print(f"{failed} of {arguments.pages} pages failed (seed {arguments.seed})")
    worst = sorted(seen.items(), key=lambda item: -sum(item[1]) / len(item[1]))
    for (name, choice), outcomes in worst[:12]:
        if any(outcomes):
            print(f"  {name} {choice}: {sum(outcomes)} of {len(outcomes)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder with pages/*.gold.jsonl.gz")
    parser.add_argument("--pages", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", choices=["first", *SETS], default="first", help="what is drawn from")
    arguments = parser.parse_args()
    require_pages(parser, arguments.data)
    rng = random.Random(arguments.seed)
    pages = gold_pages(arguments.data)
    seen: dict[tuple[str, str], list[bool]] = defaultdict(list)
    failed = 0
    for index in range(arguments.pages):
        choices = CHOICES if arguments.set == "first" else SETS[arguments.set][0]
        drawn = {name: rng.choice(kinds) for name, kinds in choices.items()}
        name, gold = pages[index % len(pages)]
        exercises = [Gold(row["number"], row["problem"], row["solution"]) for row in gold]
        is_nested = rng.random() < SHARE_NESTED
        style = style_of(drawn, is_nested) if arguments.set == "first" else SETS[arguments.set][1](drawn)
        html = render(style, exercises, name)
        recall, precision, _ = score(pairs(extracted(name, html, "html")), pairs(gold))
        has_failed = recall < LEAST_RECALL or precision < LEAST_PRECISION
        failed += has_failed
        for choice in drawn.items():
            seen[choice].append(has_failed)
    tell_worst(failed, arguments, seen)


if __name__ == "__main__":
    main()
