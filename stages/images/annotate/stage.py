"""Stage `annotate`: its section, its paths, and its description for other modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Sections, Stage
from stages.images.engines.pictures.params import RankingRoundParams


class PanelAnnotations(StrictParams):
    """Simulated annotators who see the truth of the shape world through individual taste and noise."""

    kind: Literal["panel"]
    annotators: int = Field(ge=2)
    careless: int = Field(ge=0)
    """Number of these annotators who answer most tasks without looking."""
    careless_share: float = Field(ge=0, le=1)
    """Share of a careless annotator's tasks that are answered at random; ranks and ratings independently."""
    noise: float = Field(ge=0)
    """Standard deviation of an annotator's view of alignment and fidelity, which are in [0, 1]."""
    images_per_task: int = Field(ge=2, le=9)
    """Images that are ranked side by side; the paper has 4 to 9."""
    tasks_per_prompt: int = Field(ge=1)
    """Most tasks per prompt, each with other images."""
    annotators_per_task: int = Field(ge=1)
    """Annotators of a shared task, and of every task of a test prompt."""
    shared_fraction: float = Field(ge=0, le=1)
    """Tasks of other prompts that are shared; the rest have one annotator each, as in the paper."""
    gold_tasks: int = Field(ge=0)
    """Tasks that every annotator does and whose answer is known: those of train prompts whose truths differ most."""
    gold_margin: float = Field(ge=0)
    """Truths with a smaller difference are a tie in the known answer."""

    @model_validator(mode="after")
    def _has_enough_annotators(self) -> PanelAnnotations:
        if max(self.careless, self.annotators_per_task) > self.annotators:
            raise ValueError("careless and annotators_per_task must not exceed annotators")
        return self


class LabelStudioAnnotations(StrictParams):
    """The full JSON export of Label Studio, of tasks that `retrace annotations export` has written."""

    kind: Literal["label_studio"]


class RankingFile(StrictParams):
    """JSON or JSON lines in the paper's form: `prompt`, `generations` (images), `ranking` (1 is best); `annotator`."""

    kind: Literal["rankings"]


class VoteFile(StrictParams):
    """JSON or JSON lines in Rapidata's form: `prompt`, `image_a`, `image_b`, `votes` of {votedFor, userScore}."""

    kind: Literal["votes"]


AnnotateParams = Annotated[
    PanelAnnotations | LabelStudioAnnotations | RankingFile | VoteFile, Field(discriminator="kind")
]
"""Section `annotate`."""


STAGE = Stage(
    sections={"seed": int, "annotate": AnnotateParams, "ranking_rounds": dict[str, RankingRoundParams]},
    inputs={"pool": "data/images/pool/${key}", "prompts": "data/t2i/prompts.parquet"},
    outputs={
        "out": "data/annotations/${key}",
        "dropped": "data/dropped/annotate__${key}.parquet",
        "metrics": "data/metrics/annotate/${key}.json",
        "headline": "data/headline/annotate/${key}.json",
    },
    foreach="ranking_rounds",
)


def _contradictions(sections: Sections) -> list[str]:
    is_panel = sections["annotate"].kind == "panel"
    return [
        f"ranking_rounds.{name}.annotations must be null with annotate.kind panel"
        if is_panel
        else f"ranking_rounds.{name}.annotations is null, annotate.kind {sections['annotate'].kind} needs a file"
        for name, one in sections["ranking_rounds"].items()
        if (one.annotations is None) != is_panel
    ]


ABOUT = About(
    description="Checked annotations of a round's images, by people or by simulated annotators.",
    headline=("rows/kept", "{:,.0f} annotations"),
    contradictions=_contradictions,
)
