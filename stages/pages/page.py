"""The kit of every page: its frame, tables, notes and numbers; `drawing` has the charts.

A part of a page is `Markup`. All other text that is put into one is escaped, so that no text of a run can become HTML.
A page works from a file, without a network: one stylesheet is inside, and the content policy allows only the scripts
beside the page, and one script inside by its hash. `visible_text` is for texts from unknown authors.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, LiteralString, NamedTuple

from markupsafe import Markup, escape

from stages.algorithms.estimators import Interval

if TYPE_CHECKING:
    # Commands that write only a Markdown table do without matplotlib.
    from stages.pages.drawing import Chart

FOLDER = Path(__file__).parent
ABSENT = "–"
"""What stands for a number that is not there."""
Part = Markup | None
"""Content of a section; None for a section that this page does not have."""
Section = tuple[str, str, str, Part]
"""Its id, its word in the navigation, its heading ("" for none), and its content."""
_FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'{}; \
base-uri 'none'; form-action 'none'">
<link rel="icon" href="data:,">
<title>{}</title>
<style>
{}</style>
</head>
<body>
<a class="skip" href="#result">Skip to the result</a>
<header>
<p class="eyebrow">{}</p>
<h1>{}</h1>
{}</header>
<nav aria-label="Sections"><ul>
{}</ul></nav>
<main>
{}</main>
{}</body>
</html>
"""


def page(
    title: str,
    kind: str,
    sections: Iterable[Section],
    *,
    about: Part = None,
    window: str = "",
    scripts: Sequence[str] = (),
    inline: str = "",
) -> str:
    """Returns a page as HTML; equal arguments give equal text. The first section's id is `result`.

    `kind` is the line above the `title`, `about` is what stands below it, `window` is the title of the browser's window
    if it is another one. `scripts` are files beside the page, which run before the script `inline`.
    """
    shown = [section for section in sections if section[-1] is not None]
    places = [html('<li><a href="#{}">{}</a></li>\n', place, word) for place, word, _, _ in shown]
    bodies = [
        html('\n<section id="{}">\n{}{}</section>\n', place, heading and html("<h2>{}</h2>\n", heading), content)
        for place, _, heading, content in shown
    ]
    loaded = [html('<script src="{}"></script>\n', name) for name in scripts]
    allowed = "; script-src 'self' file:" if scripts else ""
    if inline:
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        loaded.append(html("<script>{}</script>\n", Markup(inline)))
        allowed += f" 'sha256-{digest}'"
    style = Markup((FOLDER / "page.css").read_text(encoding="utf-8"))
    return str(html(_FRAME, Markup(allowed), window or title, style, kind, title, about, places, bodies, loaded))


def html(text: LiteralString, *values: object) -> Markup:
    """Puts the values into the `{}` of an HTML text, each as `join` shows it.

    The text is HTML as it stands, so it must come from this project's code: texts of a run are values.
    """
    return Markup(text).format(*map(join, values))


def join(*parts: object) -> Markup:
    """Returns the parts one after another, those of a list likewise; None is nothing, and all but Markup is escaped."""
    shown = []
    for part in parts:
        is_list = isinstance(part, Iterable) and not isinstance(part, str)
        shown.append(join(*part) if is_list else escape("" if part is None else part))
    return Markup("").join(shown)


def paragraph(text: LiteralString, *values: object, kind: str = "") -> Markup:
    """Returns a paragraph of a class, its text as in `html`: `quiet` is small and grey, `absent` names missing data."""
    return html("<p{}>{}</p>\n", _class(kind), html(text, *values))


def details(summary: object, *content: object) -> Markup:
    """Returns content that opens with a click."""
    return html("<details><summary>{}</summary>\n{}</details>\n", summary, content)


def note(paragraphs: Iterable[object], heading: str = "", role: str = "") -> Markup:
    """Returns paragraphs in a box of their own; nothing where there are none."""
    lines = [html("<p>{}</p>\n", one) for one in paragraphs]
    attribute = html(' role="{}"', role) if role else ""
    shown = html('<aside class="note"{}>{}\n{}</aside>\n', attribute, heading and html("<h3>{}</h3>", heading), lines)
    return shown if lines else Markup("")


def charts(some: Iterable[Chart]) -> Markup:
    """Returns charts side by side, each under its title and its summary; nothing where there are none."""
    shown = [
        html(
            '<figure class="chart">\n<figcaption><b>{}</b>{}</figcaption>\n{}\n</figure>\n',
            one.title,
            one.summary and html("<small>{}</small>", one.summary),
            one.svg,
        )
        for one in some
    ]
    return html('<div class="charts">\n{}</div>\n', shown) if shown else Markup("")


def wide_chart(one: Chart | None) -> Markup:
    """Returns a chart over the whole width, under a heading of the page's own."""
    return html('<div class="card wide">{}</div>\n', one.svg) if one else Markup("")


class Cell(NamedTuple):
    """A cell of a table with a class."""

    content: object
    kind: str


def table(
    label: str,
    head: Sequence[object],
    rows: Iterable[Sequence[object]],
    caption: str = "",
    kind: str = "dense",
    marked: Collection[object] = (),
) -> Markup:
    """Returns a table that scrolls in its own box; the first cell of a row is its heading, None shows as a dash.

    A screen reader reads `label`; without a `head` there are no column headings. Rows whose heading is `marked` stand
    out. `kind` is `dense`, `scores` (cells do not wrap), `words` (aligned to the left), or several.
    """
    lines = [
        html(
            "<tr{}>{}{}</tr>\n",
            _class("last" if row[0] in marked else ""),
            _cell('th scope="row"', row[0]),
            [_cell("td", cell) for cell in row[1:]],
        )
        for row in rows
    ]
    names = [html('<th scope="col">{}</th>', name) for name in head]
    return html(
        '<div class="scroll{}" role="region" aria-label="{}" tabindex="0"><table>\n{}{}<tbody>\n{}'
        "</tbody></table></div>\n",
        kind and f" {kind}",
        label,
        caption and html("<caption><span>{}</span></caption>\n", caption),
        names and html("<thead><tr>{}</tr></thead>\n", names),
        lines,
    )


def _cell(tag: str, cell: object) -> Markup:
    content, kind = cell if isinstance(cell, Cell) else (cell, "")
    shown = ABSENT if content is None else content
    return html("<{}{}>{}</{}>", Markup(tag), _class(kind), shown, tag.partition(" ")[0])


def _class(kind: str) -> Markup:
    return html(' class="{}"', kind) if kind else Markup("")


def verdict_class(verdict: str) -> str:
    """Returns the class that colours a verdict."""
    return verdict.replace(" ", "-")


def estimate(own: Interval | None, form: Callable[[float], str], kind: str = "") -> Part:
    """Returns a number with its interval below it, for a cell of a table."""
    return own and html("<b{}>{}</b><small>{}</small>", _class(kind), form(own.estimate), span(own, form))


def span(own: Interval, form: Callable[[float], str]) -> str:
    """Writes an interval: `83.0 to 90.1%`."""
    return f"{form(own.low).removesuffix('%')} to {form(own.high)}"


def count(number: float) -> str:
    """Writes a whole number with separators."""
    return f"{number:,}"


def number(value: float | None, form: str) -> str:
    """Writes a number in a format of Python's; a dash when there is none."""
    return ABSENT if value is None or math.isnan(value) else format(value, form)


def percent(fraction: float | None) -> str:
    """Writes a fraction in percent; a dash when there is none."""
    return ABSENT if fraction is None or math.isnan(fraction) else f"{100 * fraction:.1f}%"


def signed(value: float, digits: int = 3) -> str:
    """Writes a difference with its sign, which is U+2212 below 0: as wide as the plus sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def points(fraction: float) -> str:
    """Writes a difference of fractions in percentage points, with its sign unless it is 0."""
    text = signed(100 * fraction, 1)
    return "0.0" if text in ("+0.0", "−0.0") else text


def p_value(value: float) -> str:
    """Writes three digits; small values as a bound."""
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def metric_label(metric: str) -> str:
    """Writes `avg_at_8` in the usual form: avg@8."""
    return metric.replace("_at_", "@")


def answer(title: object, chip: str, is_right: bool, *content: object) -> Markup:
    """Returns a response under its title, with a mark and words of its verdict."""
    mark = html('<span class="chip">{} {}</span>', "✓" if is_right else "✗", chip)
    look = "right" if is_right else "wrong"
    return html('<div class="answer {}">\n<h4>{} {}</h4>\n{}</div>\n', look, title, mark, content)


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], is_of_numbers: bool = False) -> list[str]:
    """Returns the lines of a Markdown table; `is_of_numbers` aligns all columns except the first to the right."""
    rules = ["---", *(["--:" if is_of_numbers else "---"] * (len(head) - 1))]
    lines = [head, *rows]
    # A bar inside a text would start another cell.
    cells = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    first, *others = (f"| {line} |" for line in cells)
    return [first, f"|{'|'.join(rules)}|", *others]


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Control characters, and characters that change the direction of text or take no room."""


def visible_text(text: object, characters: int) -> str:
    """Returns at most `characters` of the text, with invisible characters as their code points (`⟨U+200B⟩`).

    An empty cell of a table, which is no text in pandas, gives an empty text.
    """
    lines = text.replace("\r\n", "\n") if isinstance(text, str) else ""
    # Cut before the replacement: a replaced character takes eight places, and must not displace others.
    seen = _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", lines[:characters])
    return seen if len(lines) <= characters else f"{seen} … [cut: {len(text):,} characters in all]"
