"""What stage `code` runs with, and what others may ask of it."""

from __future__ import annotations

from stages.foundations.stage import About, Stage

# stages/code/graph.yaml is a link to dvc.yaml, which DVC takes for no dependency under its name.
STAGE = Stage(outputs={"out": "data/code"}, also_depends_on=("custom", "params.yaml", "stages"))


ABOUT = About(description="Fingerprints of the code that each stage runs with these parameters.")
