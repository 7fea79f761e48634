"""The frame of every page: templates that escape everything, styles, and a script that the content policy knows."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from stages.foundations.stage import about
from stages.foundations.stage_graph import GraphStage

FOLDER = Path(__file__).parent


def page_environment(folder: Path) -> Environment:
    """Templates of `folder` and, under the same loader, the parts that pages share (`parts.html`)."""
    environment = Environment(
        loader=FileSystemLoader([folder, FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"percent": percent, "points": points, "count": lambda number: f"{number:,}"}
    return environment


def page_frame(styles: Iterable[Path]) -> dict[str, Markup | str]:
    """`style` (the shared one, then `styles`), `script`, which shows the run's times, and its `script_hash`."""
    script = (FOLDER / "time_table.js").read_text(encoding="utf-8")
    style = "".join(file.read_text(encoding="utf-8") for file in (FOLDER / "page.css", *styles))
    return {"style": Markup(style), "script": Markup(script), "script_hash": _source_hash(script)}


def percent(fraction: float | None) -> str:
    """A fraction as people read it; a dash when there is none."""
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def points(fraction: float) -> str:
    """A difference of fractions in percentage points, with its sign."""
    return f"{100 * fraction:+.1f}".replace("-", "−")


def _source_hash(script: str) -> str:
    """The hash by which the page's content policy knows its own script, so that no other inline script can run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def graph_lanes(stages: Iterable[GraphStage], rounds: Collection[str]) -> list[tuple[str, list[list[str]]]]:
    """The graph as lanes of stages: each list of names runs after the one before it; `rounds` follow each other."""
    lanes: dict[str, dict[str, list[str]]] = {}
    for stage in stages:
        group = stage.address if stage.item in rounds and stage.curves else stage.name
        if about(stage.name).lane:
            lanes.setdefault(about(stage.name).lane, {}).setdefault(group, []).append(stage.address)
    return [(lane, list(groups.values())) for lane, groups in lanes.items()]
