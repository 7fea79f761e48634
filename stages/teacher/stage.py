"""Parameters and paths of stage `teacher`, and its description for other modules."""

from __future__ import annotations

from stages.foundations.stage import About, Stage

STAGE = Stage(
    sections={"teachers": dict[str, str]},
    inputs={"policy": "data/policies/${item}"},
    outputs={"out": "data/teachers/${key}/policy", "metrics": "data/metrics/teacher/${key}.json"},
    foreach="teachers",
)
ABOUT = About(
    description="The policy that teaches a round, in the folder on which the round depends.",
    named_after=("round",),
    headline=("files/copied", "{:,.0f} files of the teacher"),
    is_varied=True,
)
