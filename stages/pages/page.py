"""The frame of every page: one Jinja environment that escapes everything, one stylesheet, one content policy.

A page's template extends `frame.html`; `parts.html` has the parts that several pages show. `visible_text` is for texts
from unknown authors.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stages.foundations.stage_graph import GraphStage
from stages.pages.shown_stages import shown

FOLDER = Path(__file__).parent


def fill_page(
    folder: Path,
    content: Mapping[str, Any],
    filters: Mapping[str, Callable],
    has_times: bool = False,
    has_files: bool = False,
) -> str:
    """Renders `folder`/template.html with `content` as a page; equal arguments give equal text.

    A page that `has_times` loads `timings.js` beside it, with the script that shows the run's times. The content policy
    knows the script by its hash, so that no other inline script can run. A page that `has_files` loads scripts
    beside it, and its template names them in the block `scripts`.
    """
    environment = Environment(
        loader=FileSystemLoader([folder, FOLDER]),
        autoescape=True,
        # A misspelt name in a template is an error, not an empty place on the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "class": lambda verdict: verdict.replace(" ", "-"),
        "count": lambda number: f"{number:,}",
        "metric": metric_label,
        "percent": percent,
        "points": points,
        **filters,
    }
    script = (FOLDER / "time_table.js").read_text(encoding="utf-8") if has_times else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("template.html").render(
        content,
        style=Markup((FOLDER / "page.css").read_text(encoding="utf-8")),
        script=Markup(script),
        has_files=has_files,
        script_hash=f"sha256-{digest}",
    )


def percent(fraction: float | None) -> str:
    """Formats a fraction for readers; a dash when there is none."""
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def points(fraction: float) -> str:
    """Formats a difference of fractions in percentage points, with its sign unless it is 0."""
    # U+2212 is as wide as the plus sign; a hyphen is not.
    text = f"{100 * fraction:+.1f}".replace("-", "−")
    return "0.0" if text in ("+0.0", "−0.0") else text


def metric_label(metric: str) -> str:
    """Writes `avg_at_8` in the usual form: avg@8."""
    return metric.replace("_at_", "@")


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]], is_of_numbers: bool = False) -> list[str]:
    """Returns the lines of a Markdown table; `is_of_numbers` aligns all columns except the first to the right."""
    rules = ["---", *(["--:" if is_of_numbers else "---"] * (len(head) - 1))]
    lines = [head, *rows]
    # A bar inside a text would start another cell.
    cells = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    first, *others = (f"| {line} |" for line in cells)
    return [first, f"|{'|'.join(rules)}|", *others]


def graph_lanes(stages: Iterable[GraphStage], rounds: Collection[str]) -> list[tuple[str, list[list[str]]]]:
    """The graph as lanes of stages: each list of names runs after the one before; `rounds` follow each other."""
    lanes: dict[str, dict[str, list[str]]] = {}
    for stage in stages:
        # Rounds follow each other, so each is a separate step. Other items of a stage run side by side.
        group = stage.address if stage.item in rounds and stage.curves else stage.name
        if shown(stage.name).lane:
            lanes.setdefault(shown(stage.name).lane, {}).setdefault(group, []).append(stage.address)
    return [(lane, list(groups.values())) for lane, groups in lanes.items()]


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Control characters, and characters that change the direction of text or take no room."""


def visible_text(text: str, characters: int) -> str:
    """Returns at most `characters` of the text, with invisible characters as their code points (`⟨U+200B⟩`)."""
    lines = text.replace("\r\n", "\n")
    # Cut before the replacement: a replaced character takes eight places, and must not displace others.
    seen = _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", lines[:characters])
    return seen if len(lines) <= characters else f"{seen} … [cut: {len(text):,} characters in all]"
