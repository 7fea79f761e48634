"""Parameters and paths of stage `refl`, and its description for other modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.engines.trainers.params import OptimizationParams, TrainerParams
from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Sections, Stage


class DraftFeedback(StrictParams):
    """DRaFT-K: the gradient goes through the last steps of the complete sampling."""

    kind: Literal["draft"]
    gradient_steps: int = Field(ge=1)
    """K; memory grows with it."""
    bound: float | None
    """As for `refl`; null as in the paper."""


class MeasurementParams(StrictParams):
    """Pictures that are generated to monitor the training."""

    validation_images: int = Field(ge=2)
    """Pictures at every point of the curve: validation prompts in turn, the same noise at every point."""
    test_images: int = Field(ge=2)
    """Generated at the end by the start and by the result from the same noise: test prompts in turn."""
    images_per_prompt: int = Field(ge=2)
    """Pictures per prompt, between which diversity is measured."""
    guidance: float = Field(ge=0)
    """Guidance of the measurement: training uses none, and a gain at guidance 1 may be gone at 2.5."""
    draw_images: int = Field(ge=1)
    """Pictures generated at once."""
    shown_images: int = Field(ge=0)
    """Pairs whose pictures are kept for the report: a third each of largest gain, largest loss, and the middle."""


class PreferenceFeedback(StrictParams):
    """Diffusion-DPO on the pairs that the reward model learnt from; no image is generated."""

    kind: Literal["dpo"]
    beta: float = Field(gt=0)
    """Strength of the pull to the start: the released code has 2,000 to 5,000."""


class DrawnPictures(StrictParams):
    """Pictures that the generator draws, without guidance, of training prompts in turn; the reward chooses or weighs
    them, and the pre-training loss learns them."""

    prompts: int = Field(ge=1)
    """Prompts that pictures are drawn of, in every round where there are several."""
    pictures_per_prompt: int = Field(ge=1)
    """Pictures that are drawn of each of these prompts."""

    def place_in_round(self, update: int) -> tuple[int, int]:
        """Returns the round of `update` and its place in it, both from 0."""
        return 0, update


class DatasetFiltering(DrawnPictures):
    """Dataset filtering: the best of the start's own pictures are learnt like data."""

    kind: Literal["dataset_filtering"]
    top_share: float = Field(gt=0, lt=1)
    """Share of all drawn pictures that is kept, by the reward; at least one picture."""


class RewardWeighted(DrawnPictures):
    """Reward-weighted training: the start's own pictures are learnt, each weighted by its reward, scaled to 0..1."""

    kind: Literal["reward_weighted"]


class RaftFeedback(DrawnPictures):
    """RAFT: in every round, pictures are drawn anew and the best one of each prompt is learnt."""

    kind: Literal["raft"]
    pictures_per_prompt: int = Field(ge=2)
    """Pictures of each prompt, the best of which is learnt (K)."""
    updates_per_round: int = Field(ge=1)
    """Updates before the generator draws again."""

    def place_in_round(self, update: int) -> tuple[int, int]:
        return divmod(update, self.updates_per_round)


class ShapeWorldImages(StrictParams):
    """Pictures of the training prompts, rendered in the laptop's world."""

    kind: Literal["shape_world"]


class ShardImages(StrictParams):
    """Pictures of a folder of image shards, such as an image pool of photographs."""

    kind: Literal["shards"]
    path: str
    """DVC does not watch it: give it another name when its content changes."""


class PretrainingParams(StrictParams):
    """The generator's original loss, on images that it did not generate. ReFL without it ends in noise."""

    weight: float = Field(gt=0)
    batch_images: int = Field(ge=1)
    """Images of one update, over all ranks."""
    weight_cap: float | None = Field(gt=0)
    """Weight of a clean image's error is min(1 + SNR, cap); null keeps the error of the predicted quantity."""
    empty_prompt_fraction: float = Field(ge=0, lt=1)
    """Share of images without their prompt, which keeps guidance possible (usually 0.1)."""
    images: Annotated[ShapeWorldImages | ShardImages, Field(discriminator="kind")]


class ReflFeedback(StrictParams):
    """ReFL: the gradient goes through one step of the sampling, at a random position in the window."""

    kind: Literal["refl"]
    window: tuple[int, int]
    """First and last position, from 0 for the noisiest; ReFL: 30 to 39 of 40. Only in late steps the prediction shows
    the image, and the last step alone is unstable."""
    bound: float
    """Images with at least this reward have no gradient; in units of the reward's spread on validation images (2)."""
    clamped: Literal[True] | None = Field(default=None, exclude_if=lambda value: value is None)
    """True: pixels are cut to 0..1 before the reward, and have no gradient beyond (the released code). Absent: they are
    not cut, so the reward can pull them back."""


class ReflParams(OptimizationParams):
    """Section `refl`: how every round learns."""

    feedback: Annotated[
        ReflFeedback | DraftFeedback | PreferenceFeedback | DatasetFiltering | RewardWeighted | RaftFeedback,
        Field(discriminator="kind"),
    ]
    sampling_steps: int = Field(ge=1)
    """DDIM steps of the sampling, in training and in measurement."""
    batch_images: int = Field(ge=1)
    """Images (or pairs) with feedback of one update, over all ranks."""
    micro_batch_images: int = Field(ge=1)
    """Images in one pass."""
    pretraining: PretrainingParams
    warmup_updates: int = Field(ge=0)
    ema_decay: float = Field(ge=0, lt=1)
    """Decay of the moving average of the weights, which is measured and saved; 0 uses the current weights."""
    ema_ramp: Literal[True] | None = Field(default=None, exclude_if=lambda value: value is None)
    """True: the decay after n updates is at most n / (9 + n), as diffusers has it (the released code). Absent: the
    decay is constant."""
    evaluate_every_updates: int = Field(ge=1)
    checkpoint_every_updates: int = Field(ge=1)
    """A killed run resumes from the last checkpoint."""
    measurement: MeasurementParams

    @model_validator(mode="after")
    def _steps_fit(self) -> ReflParams:
        feedback = self.feedback
        if isinstance(feedback, ReflFeedback):
            first, last = feedback.window
            if not 0 <= first <= last < self.sampling_steps:
                raise ValueError(
                    f"feedback.window [{first}, {last}] must be in 0..{self.sampling_steps - 1}, the positions of "
                    "sampling_steps"
                )
        if isinstance(feedback, DraftFeedback) and feedback.gradient_steps > self.sampling_steps:
            raise ValueError(
                f"feedback.gradient_steps {feedback.gradient_steps} must be at most sampling_steps "
                f"{self.sampling_steps}"
            )
        return self


class HeldOutScorer(StrictParams):
    """A score that the round does not optimise."""

    scorer: str
    """`base` or a ranking round, such as one whose annotators the reward model never saw."""
    variant: Literal["clip", "blip", "reward"]


class ReflRound(StrictParams):
    """One entry of section `refl_rounds`; its key is the name of the resulting generator."""

    start_from: str
    """`base` or another round."""
    reward_model: str
    """The ranking round whose reward model is optimised, or whose pairs are used."""
    held_out: HeldOutScorer
    updates: int = Field(ge=1)
    reward_weight: float = Field(ge=0)
    """Weight of the feedback; its ratio to `pretraining.weight` decides. 0 is a control, which trains as long."""
    selection: Literal["held_out", "last"]
    """`held_out`: the point of the curve, including the start, with the best held-out score. Never by the best reward,
    which also rises in hacked runs. `last`: the end, for a control that has trained as long."""


STAGE = Stage(
    sections={"seed": int, "trainer": TrainerParams, "refl": ReflParams, "refl_rounds": dict[str, ReflRound]},
    inputs={
        "generator": "data/generators/${item.start_from}",
        "prompts": "data/t2i/prompts.parquet",
        "scorer": "data/image_scorers/${item.reward_model}",
        "held_out": "data/image_scorers/${item.held_out.scorer}",
        "pairs": "data/preferences/${item.reward_model}",
        "pool": "data/images/pool/${item.reward_model}",
    },
    outputs={
        "out": "data/generators/${key}",
        "pictures": "data/images/feedback/${key}.parquet",
        "curves": "data/curves/refl/${key}.csv",
        "metrics": "data/metrics/refl/${key}.json",
        "headline": "data/headline/refl/${key}.json",
    },
    foreach="refl_rounds",
    is_launched=True,
    depends_on_ranks=True,
    quick_imports=True,
)


def _contradictions(sections: Sections) -> list[str]:
    lines, feedback = [], sections["refl"].feedback
    for name, one in sections["refl_rounds"].items():
        # If the optimised reward chose, a hacked round would choose its worst hack.
        if one.held_out.scorer == one.reward_model and one.held_out.variant == "reward":
            lines.append(
                f"refl_rounds.{name}.held_out is the reward that the round climbs: name another scorer or variant"
            )
        if feedback.kind == "raft" and one.reward_weight and one.updates <= feedback.updates_per_round:
            lines.append(
                f"refl_rounds.{name}.updates {one.updates} is a single round of RAFT: lower "
                f"refl.feedback.updates_per_round {feedback.updates_per_round}, or set kind dataset_filtering"
            )
    return lines


ABOUT = About(
    description="Trains a generator on a reward model or on preferences, and compares it with its start.",
    plot=("validation/reward", "Reward feedback ${key}"),
    headline=("score", "score {:.3f}"),
    contradictions=_contradictions,
    runs_model=lambda params: True,
    named_after=("policy", "round"),
    is_varied=True,
)
