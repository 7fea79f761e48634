"""What others may ask of stage `refl`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, Sections


def _sections() -> dict[str, Any]:
    from stages.refl.params import ReflParams, ReflRound

    return {"refl": ReflParams, "refl_rounds": dict[str, ReflRound]}


def _contradictions(sections: Sections) -> list[str]:
    found = []
    for name, one in sections["refl_rounds"].items():
        if one.held_out.scorer == one.reward_model and one.held_out.variant == "reward":
            found.append(
                f"refl_rounds.{name}.held_out is the reward that the round climbs: name another scorer or variant"
            )
    return found


ABOUT = About(
    sections=_sections,
    contradictions=_contradictions,
    runs_model=True,
    named_after=("policy", "round"),
    is_varied=True,
    lane="Generators",
)
