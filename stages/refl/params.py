"""Parameters of the `refl` stage: sections `refl` and `refl_rounds`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.engines.trainers.params import OptimizationParams
from stages.foundations.params import StrictParams


class ReflFeedback(StrictParams):
    """ReFL: the gradient goes through one step of the draw, at a position drawn from the window."""

    kind: Literal["refl"]
    window: tuple[int, int]
    """First and last position, from 0 for the noisiest; ReFL: 30 to 39 of 40. An image can be told from its guess only
    in late steps, and the last one alone is unstable."""
    bound: float
    """Images at this reward or above have no gradient; in units of the reward's spread on validation images (2)."""


class DraftFeedback(StrictParams):
    """DRaFT-K: the gradient goes through the last steps of the whole draw."""

    kind: Literal["draft"]
    gradient_steps: int = Field(ge=1)
    """K; memory grows with it."""
    bound: float | None
    """As for `refl`; null as in the paper."""


class PreferenceFeedback(StrictParams):
    """Diffusion-DPO on the pairs that the reward model learnt from; no image is drawn."""

    kind: Literal["dpo"]
    beta: float = Field(gt=0)
    """Pull to the start: the released code has 2,000 to 5,000."""


class ShapeWorldImages(StrictParams):
    """Pictures of the training prompts, rendered as the laptop's world does."""

    kind: Literal["shape_world"]


class ShardImages(StrictParams):
    """Pictures of a folder of image shards, such as an image pool of photographs."""

    kind: Literal["shards"]
    path: str
    """DVC does not watch it: give it another name when its content changes."""


class PretrainingParams(StrictParams):
    """The loss that the generator learnt with, on images that it did not draw. ReFL without it ends in noise."""

    weight: float = Field(gt=0)
    batch_images: int = Field(ge=1)
    """Of one update, over all ranks."""
    weight_cap: float | None = Field(gt=0)
    """Weight of a clean image's error is min(1 + SNR, cap); null leaves the error of what is predicted."""
    empty_prompt_fraction: float = Field(ge=0, lt=1)
    """Share of images without their prompt, which keeps guidance possible (usually 0.1)."""
    images: Annotated[ShapeWorldImages | ShardImages, Field(discriminator="kind")]


class MeasurementParams(StrictParams):
    """Pictures that are drawn to see how it goes."""

    validation_images: int = Field(ge=2)
    """Of every point of the curve: validation prompts in turn, the same noise at every point."""
    test_images: int = Field(ge=2)
    """Drawn at the end by the start and by the result from the same noise: test prompts in turn."""
    images_per_prompt: int = Field(ge=2)
    """Of which the diversity is that of one prompt."""
    guidance: float = Field(ge=0)
    """A gain at guidance 1 may be gone at 2.5: training is without guidance, and learns what guidance gives."""
    draw_images: int = Field(ge=1)
    """Drawn at once."""
    shown_images: int = Field(ge=0)
    """Pairs whose pictures are kept for the report: a third each of largest gain, largest loss, and the middle."""


class ReflParams(OptimizationParams):
    """Section `refl`: how every round learns."""

    feedback: Annotated[ReflFeedback | DraftFeedback | PreferenceFeedback, Field(discriminator="kind")]
    sampling_steps: int = Field(ge=1)
    """DDIM steps of a draw, in training and in measurement."""
    batch_images: int = Field(ge=1)
    """Images (or pairs) with feedback of one update, over all ranks."""
    micro_batch_images: int = Field(ge=1)
    """In one pass."""
    pretraining: PretrainingParams
    warmup_updates: int = Field(ge=0)
    ema_decay: float = Field(ge=0, lt=1)
    """Of the moving average of the weights, which is measured and saved; 0 takes the weights as they are."""
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
                    f"feedback.window [{first}, {last}] must lie in 0..{self.sampling_steps - 1}, the positions of "
                    "sampling_steps"
                )
        if isinstance(feedback, DraftFeedback) and feedback.gradient_steps > self.sampling_steps:
            raise ValueError(
                f"feedback.gradient_steps {feedback.gradient_steps} must be at most sampling_steps "
                f"{self.sampling_steps}"
            )
        return self


class HeldOutScorer(StrictParams):
    """A score that the round does not climb."""

    scorer: str
    """`base` or a ranking round, such as one whose annotators the reward model never saw."""
    variant: Literal["clip", "blip", "reward"]


class ReflRound(StrictParams):
    """One entry of section `refl_rounds`; its key names the generator that it makes."""

    start_from: str
    """`base` or another round."""
    reward_model: str
    """The ranking round whose reward model is climbed, or whose pairs are."""
    held_out: HeldOutScorer
    updates: int = Field(ge=1)
    reward_weight: float = Field(ge=0)
    """Of the feedback, beside `pretraining.weight`: their ratio decides. 0 is a control, which trains as long."""
    selection: Literal["held_out", "last"]
    """`held_out`: of the points of the curve, the start among them, the one with the best held-out score. Never the
    best reward, which rises in hacked runs too. `last`: the end, for a control that has trained as long."""
