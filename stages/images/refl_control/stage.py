"""Parameters and paths of stage `refl_control`, and its description for other modules."""

from __future__ import annotations

from stages.foundations.stage import About, Sections, Stage

STAGE = Stage(
    sections={"refl_controls": dict[str, str]},
    inputs={"pictures": "data/images/feedback/${key}.parquet", "control": "data/images/feedback/${item}.parquet"},
    outputs={"metrics": "data/metrics/refl_control/${key}.json", "headline": "data/headline/refl_control/${key}.json"},
    foreach="refl_controls",
)


def _contradictions(sections: Sections) -> list[str]:
    rounds, lines = sections.get("refl_rounds", {}), []
    for name, control in sections["refl_controls"].items():
        one, other = rounds.get(name), rounds.get(control)
        if one is None or other is None:
            # A missing round is already an error of the graph.
            continue
        if other.reward_weight != 0 or other.selection != "last":
            lines.append(f"refl_rounds.{control} is a control: set reward_weight 0 and selection last")
        if (other.updates, other.start_from) != (one.updates, one.start_from):
            lines.append(
                f"refl_rounds.{control} must train as long and from the same start as {name}: updates {one.updates}, "
                f"start_from {one.start_from}"
            )
    return lines


ABOUT = About(
    description="Compares a feedback round with its control, which trained as long without a reward.",
    headline=("score", "gain over control {:+.3f}"),
    contradictions=_contradictions,
    named_after=("round",),
    is_varied=True,
)
