"""The parameters and paths of stage `code`, and its description for other modules."""

from __future__ import annotations

from stages.foundations.stage import About, Stage

# stages/code/graph.yaml is a link to dvc.yaml, which DVC does not accept as a dependency under its own name.
STAGE = Stage(outputs={"out": "data/code"}, also_depends_on=("custom", "params.yaml", "stages"))


ABOUT = About(description="Fingerprints of the code that each stage runs with these parameters.")
