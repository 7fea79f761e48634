"""What others may ask of stage `refl_control`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, Sections


def _sections() -> dict[str, Any]:
    return {"refl_controls": dict[str, str]}


def _contradictions(sections: Sections) -> list[str]:
    rounds, found = sections.get("refl_rounds", {}), []
    for name, control in sections["refl_controls"].items():
        one, other = rounds.get(name), rounds.get(control)
        if one is None or other is None:
            continue  # the gap in the graph is told
        if other.reward_weight != 0 or other.selection != "last":
            found.append(f"refl_rounds.{control} is a control: set reward_weight 0 and selection last")
        if (other.updates, other.start_from) != (one.updates, one.start_from):
            found.append(
                f"refl_rounds.{control} must train as long and from the same start as {name}: updates {one.updates}, "
                f"start_from {one.start_from}"
            )
    return found


ABOUT = About(
    headline=("score", "gain over control {:+.3f}"),
    sections=_sections,
    contradictions=_contradictions,
    named_after=("round",),
    is_varied=True,
    lane="Generators",
)
