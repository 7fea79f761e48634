"""What others may ask of stage `refl`."""

from __future__ import annotations

from typing import Any

from stages.foundations.about import About, Sections


def _sections() -> dict[str, Any]:
    from stages.refl.params import ReflParams, ReflRound

    return {"refl": ReflParams, "refl_rounds": dict[str, ReflRound]}


def _contradictions(sections: Sections) -> list[str]:
    rounds, found = sections["refl_rounds"], []
    for name, one in rounds.items():
        if one.held_out.scorer == one.reward_model and one.held_out.variant == "reward":
            found.append(
                f"refl_rounds.{name}.held_out is the reward that the round climbs: name another scorer or variant"
            )
        if one.control is None:
            continue
        control = rounds.get(one.control)
        if control is None or control.reward_weight != 0 or control.updates != one.updates:
            found.append(
                f"refl_rounds.{name}.control {one.control} must be a round with reward_weight 0 and updates "
                f"{one.updates}, or null"
            )
        elif control.start_from != one.start_from:
            found.append(f"refl_rounds.{one.control}.start_from must be that of {name}, {one.start_from}")
    return found


ABOUT = About(
    sections=_sections,
    contradictions=_contradictions,
    runs_model=True,
    named_after=("policy", "round"),
    is_varied=True,
    lane="Generators",
)
