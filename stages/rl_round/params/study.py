"""Section `rl.study`: settings that only a study needs. Off is what an absent one means; docs/recipes.md lists them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stages.engines.samplers.params import Mismatch
from stages.foundations.params import StrictParams


def _is_discount(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(
            f"a discount must lie in (0, 1], not {value}: set 1.0 for none, or a little less, like 0.99"
        )
    return value


Discount = Annotated[float, AfterValidator(_is_discount)]
"""Factor by which a reward shrinks with each token that lies before it."""


class NgramPenalty(StrictParams):
    """Demystify's repetition penalty: a reward stream of its own, on the tokens that repeat, with its own discount."""

    kind: Literal["ngram"]
    n: int = Field(ge=1)
    """Tokens of an n-gram (the paper: 40)."""
    penalty: float = Field(le=0)
    """Reward of each token of an n-gram that occurred before in the response (-0.05)."""
    discount: Discount
    """Below 1 the penalty meets the tokens just before the repetition (0.99; 0.999 did best in the paper)."""


class WholeDistributions(StrictParams):
    """The distribution that each token was drawn from is kept until its rollout is trained on, for the exact KL.

    Log-probs in float32: vocabulary times 4 bytes a token, in memory and (surplus groups) in checkpoints. They are not
    part of the rollouts table.
    """

    kind: Literal["whole"]
    max_gib: float = Field(gt=0)
    """A round whose batch could need more than this, were every response as long as allowed, is refused."""


class SafeSet(StrictParams):
    """Sampler and trainer renormalise over the tokens with log(p / largest p) >= `log_threshold` (Taming the Tail)."""

    kind: Literal["safe_set"]
    log_threshold: float = Field(lt=0)
    """In nats, after the temperature (-13: p below 2e-6 of the likeliest token's)."""
    outside: Literal["drop_token", "drop_response"]
    """What a sampled token outside the trainer's set costs: its own gradient, or that of its whole response."""


class StudyParams(StrictParams):
    """Section `rl.study`."""

    mismatch: Mismatch | None = None
    """A sampler that differs from the trainer on purpose; absent: it uses the weights that it is given."""
    vocabulary_pruning: SafeSet | None = None
    """Absent: the whole vocabulary."""
    repetition_penalty: NgramPenalty | None = None
    """Absent: repetition costs nothing."""
    reward_discount: Discount | None = None
    """Of the reward at the response's end; absent: 1 (Demystify: less made responses impatient and worse)."""
    rollout_distributions: WholeDistributions | None = None
    """What `rollout_correction.divergence: exact` needs; absent: log-probs of the sampled tokens are kept."""
