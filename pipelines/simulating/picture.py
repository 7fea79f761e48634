"""The gain of each policy over the first one as an SVG file: lines over the number of GPUs, or bars of one setting."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import escape

from pipelines.simulating.cells import Cell

PANEL, HEIGHT, GAP, LEFT, TOP, BOTTOM, LEGEND = 280, 240, 44, 46, 76, 40, 204
"""Pixels: a panel's width and height, the room between and around them, and for the names on the right."""
BAR, BAR_GAP, NAMES = 20, 12, 170
COLORS = ("#56606d", "#8a5a00", "#7a3fa0", "#0a7048", "#c2571a", "#1d5fbf", "#b3261e")
STYLE = """
text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; fill: #161a20; }
.title { font-size: 18px; font-weight: 650; } .name { font-weight: 650; } .quiet { fill: #56606d; }
.right { text-anchor: end; } .middle { text-anchor: middle; } .grid { stroke: #dde2e8; }
path { fill: none; stroke-width: 2; }
"""


def draw(cells: Sequence[Cell], title: str) -> str:
    """The picture; equal cells give equal text. All text is escaped."""
    models = list(dict.fromkeys(cell.setting.model.name for cell in cells))
    scales = {(cell.setting.model.name, cell.setting.gpus) for cell in cells}
    if len(scales) == 1:
        return _bars(cells, title)
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    width = LEFT + len(models) * (PANEL + GAP) - GAP + LEGEND
    height = TOP + HEIGHT + BOTTOM
    seconds = {
        (cell.setting.model.name, cell.setting.gpus, cell.policy): cell.seconds_per_step for cell in cells
    }
    gains = {key: seconds[key[0], key[1], policies[0]] / value for key, value in seconds.items()}
    most = math.ceil(max(gains.values()))

    def y(gain: float) -> float:
        return TOP + HEIGHT * (1 - gain / most)

    parts = _head(width, height, title, f"times as fast as {policies[0]}, over the number of GPUs")
    for place, model in enumerate(models):
        left = LEFT + place * (PANEL + GAP)
        sizes = sorted({gpus for name, gpus in scales if name == model})
        parts += _axes(left, model, sizes, most, y)
        for number, policy in enumerate(policies):
            points = [
                (left + _share(sizes, gpus) * PANEL, y(gains[model, gpus, policy]))
                for gpus in sizes
                if (model, gpus, policy) in gains
            ]
            parts += _line(points, COLORS[number % len(COLORS)], f"{model}, {policy}")
    right = LEFT + len(models) * (PANEL + GAP) - GAP + 18
    for number, policy in enumerate(policies):
        parts.append(_key(right, TOP + 10 + 22 * number, COLORS[number % len(COLORS)], policy))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _head(width: float, height: float, title: str, about: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<rect x="0" y="0" width="{width}" height="{height}" style="fill:#f6f7f9"/>',
        f'<text class="title" x="24" y="30">{escape(title)}</text>',
        f'<text class="quiet" x="24" y="50">{escape(about)}</text>',
    ]


def _share(sizes: Sequence[int], gpus: int) -> float:
    first, last = math.log2(sizes[0]), math.log2(sizes[-1])
    return 0.5 if first == last else (math.log2(gpus) - first) / (last - first)


def _axes(left: float, model: str, sizes: Sequence[int], most: int, y) -> list[str]:
    parts = [f'<text class="name" x="{left}" y="{TOP - 8}">{escape(model)}</text>']
    for gain in range(0, most + 1, 1 if most <= 8 else 2):
        parts.append(
            f'<line class="grid" x1="{left}" x2="{left + PANEL}" y1="{y(gain):.1f}" y2="{y(gain):.1f}"/>'
        )
        parts.append(f'<text class="quiet right" x="{left - 8}" y="{y(gain) + 4:.1f}">{gain}</text>')
    for gpus in sizes:
        x = left + _share(sizes, gpus) * PANEL
        parts.append(f'<text class="quiet middle" x="{x:.1f}" y="{TOP + HEIGHT + 20}">{gpus}</text>')
    return parts


def _line(points: Sequence[tuple[float, float]], color: str, told: str) -> list[str]:
    way = " ".join(f"{'L' if place else 'M'}{x:.1f},{y:.1f}" for place, (x, y) in enumerate(points))
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill:{color}"/>' for x, y in points]
    return [f'<path d="{way}" style="stroke:{color}"><title>{escape(told)}</title></path>', *dots]


def _key(x: float, y: float, color: str, name: str) -> str:
    return (
        f'<line x1="{x}" x2="{x + 18}" y1="{y}" y2="{y}" style="stroke:{color};stroke-width:3"/>'
        f'<text x="{x + 26}" y="{y + 4}">{escape(name)}</text>'
    )


def _bars(cells: Sequence[Cell], title: str) -> str:
    first = cells[0].seconds_per_step
    gains = [first / cell.seconds_per_step for cell in cells]
    width, height = 24 + NAMES + 420 + 140, 70 + len(cells) * (BAR + BAR_GAP) + 16
    parts = _head(width, height, title, f"times as fast as {cells[0].policy}, and seconds a step")
    for place, (cell, gain) in enumerate(zip(cells, gains, strict=True)):
        top = 70 + place * (BAR + BAR_GAP)
        length = 420 * gain / max(gains)
        color = COLORS[place % len(COLORS)]
        parts.append(f'<text class="right" x="{NAMES + 14}" y="{top + 14}">{escape(cell.policy)}</text>')
        parts.append(
            f'<rect x="{NAMES + 24}" y="{top}" width="{length:.1f}" height="{BAR}" rx="3" style="fill:{color}"/>'
        )
        told = f"{gain:.2f}  ({cell.seconds_per_step:.3g} s)"
        parts.append(
            f'<text class="quiet" x="{NAMES + 32 + length:.1f}" y="{top + 14}">{escape(told)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
