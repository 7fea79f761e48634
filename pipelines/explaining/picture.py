"""The chain as one SVG file: raw bytes on top, the target at the bottom, a box for each stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from markupsafe import escape

from pipelines.explaining.chain import Chain, Step
from pipelines.explaining.spending import Spent
from pipelines.explaining.wording import told_time, totals

WIDTH, HEIGHT, GAP, ROW_GAP, MARGIN, TITLE = 250, 82, 26, 44, 24, 64
"""Boxes and the room between them, in pixels."""
CHARACTERS = 36
"""Of a line in a box."""
STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #161a20; }
.title { font-size: 18px; font-weight: 650; } .name { font-size: 14px; font-weight: 650; } .quiet { fill: #56606d; }
rect { fill: #fff; stroke: #b9c1cc; } .raw rect { stroke: #0a7048; } .target rect { stroke: #1d5fbf; stroke-width: 2; }
path { fill: none; stroke: #9aa4b1; stroke-width: 1.3; } .stale { stroke: #b3261e; stroke-dasharray: 5 4; }
"""


def draw(chain: Chain, spent: Mapping[str, Spent]) -> str:
    """The picture; equal arguments give equal text. All text is escaped."""
    places = _layout(chain)
    columns = max(column for column, _ in places.values()) + 1
    rows = max(row for _, row in places.values()) + 1
    width = max(2 * MARGIN + columns * (WIDTH + GAP) - GAP, 620)
    height = TITLE + MARGIN + rows * (HEIGHT + ROW_GAP) - ROW_GAP + MARGIN

    def corner(name: str) -> tuple[float, float]:
        column, row = places[name]
        inside = sum(1 for _, other in places.values() if other == row)
        left = (width - inside * (WIDTH + GAP) + GAP) / 2
        return left + column * (WIDTH + GAP), TITLE + MARGIN + row * (HEIGHT + ROW_GAP)

    total = totals(chain, spent)
    about = f"{total['stages']} stages, {told_time(total['seconds'])}, {total['gpu_hours']:.3g} GPU-hours"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(chain.told)}: from raw bytes</title><style>{STYLE}</style>",
        f'<rect x="0" y="0" width="{width}" height="{height}" style="fill:#f6f7f9;stroke:none"/>',
        f'<text class="title" x="{MARGIN}" y="34">{escape(_cut(chain.told, 60))}</text>',
        f'<text class="quiet" x="{MARGIN}" y="56">{escape(f"{about}; {chain.place.told}")}</text>',
    ]
    for step in chain.steps:
        parts += _edges(step, corner)
    for step in chain.steps:
        kind = "target" if step.entry.name in chain.targets else "raw" if step.raw else ""
        parts += _box(step, spent[step.entry.name], kind, *corner(step.entry.name))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _layout(chain: Chain) -> dict[str, tuple[int, int]]:
    """Column and row of each stage. A row holds stages of one depth, each near the middle of what it depends on.

    Stages without inputs stand right above the first one that needs them, so that lines stay short.
    """
    depths = chain.depth()
    users: dict[str, list[int]] = {}
    for step in chain.steps:
        for one in step.inputs:
            for maker in one.makers:
                users.setdefault(maker, []).append(depths[step.entry.name])
    rows = {name: min(users[name]) - 1 if name in users else depth for name, depth in depths.items()}
    places: dict[str, tuple[int, int]] = {}
    for row in sorted(set(rows.values())):
        inside = [step for step in chain.steps if rows[step.entry.name] == row]
        inside.sort(key=lambda step: _middle(step, places))
        places |= {step.entry.name: (column, row) for column, step in enumerate(inside)}
    return places


def _middle(step: Step, places: Mapping[str, tuple[int, int]]) -> float:
    above = [places[maker][0] for one in step.inputs for maker in one.makers if maker in places]
    return sum(above) / len(above) if above else 99.0


def _edges(step: Step, corner: Any) -> list[str]:
    x, y = corner(step.entry.name)
    lines = []
    for one in step.inputs:
        for maker in one.makers:
            left, top = corner(maker)
            x1, y1, x2, y2 = left + WIDTH / 2, top + HEIGHT, x + WIDTH / 2, y
            bend = (y2 - y1) / 2
            kind = ' class="stale"' if one.is_stale else ""
            way = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"
            if y2 - y1 > ROW_GAP and abs(x2 - x1) > WIDTH / 2:  # past other boxes, and in from the side
                side, middle = (x if x1 < x2 else x + WIDTH), y + HEIGHT / 2
                way = (
                    f"M{x1:.0f},{y1:.0f} C{x1:.0f},{middle:.0f} {x1:.0f},{middle:.0f} {side:.0f},{middle:.0f}"
                )
            lines.append(
                f'<path{kind} d="{way}"><title>{escape(one.path)} {escape(one.digest)}</title></path>'
            )
    return list(dict.fromkeys(lines))


def _box(step: Step, own: Spent, kind: str, x: float, y: float) -> list[str]:
    entry = step.entry
    path, digest = min(entry.outs.items(), key=lambda out: _rank(out[0]), default=("", ""))
    if step.raw:
        first = step.raw[0]
        origin = next((first[key] for key in ("url", "path", "repository", "package") if first.get(key)), "")
        more = f" and {len(step.raw) - 1} more" if len(step.raw) > 1 else ""
        origin = origin or f"{first['kind']} with seed {first.get('seed', '?')}"
        lines = [f"raw: {str(origin).rsplit('/', 1)[-1]}{more}"]
    else:
        lines = [path.removeprefix("data/")]
    code = f"code {entry.code[:8]}" if entry.code else ""
    commit = f"commit {own.commit[:8]}" + ("+" if own.is_dirty else "") if own.commit else ""
    time = told_time(own.seconds) if own.seconds is not None else "no time on record"
    hours = f", {own.gpu_hours:.3g} GPU-h" if own.gpu_hours else ""
    lines += [f"md5 {digest[:8]}  {code}", "  ".join(filter(None, [commit, time + hours]))]
    parts = [
        f'<g class="{kind}"><title>{escape(entry.command)}</title>',
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{WIDTH}" height="{HEIGHT}" rx="9"/>',
        f'<text class="name" x="{x + 12:.0f}" y="{y + 21:.0f}">{escape(_cut(entry.name, 30))}</text>',
    ]
    for number, line in enumerate(lines):
        parts.append(
            f'<text class="quiet" x="{x + 12:.0f}" y="{y + 39 + 16 * number:.0f}">'
            f"{escape(_cut(line, CHARACTERS))}</text>"
        )
    return [*parts, "</g>"]


def _rank(path: str) -> int:
    """Of several outputs the first of these is shown; numbers and dropped rows come last."""
    kind = path.split("/")[1] if path.startswith("data/") else ""
    order = (
        "policies",
        "verdicts",
        "responses",
        "problems",
        "web",
        "demonstrations",
        "",
        "metrics",
        "curves",
        "dropped",
    )
    return order.index(kind) if kind in order else order.index("")


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"
