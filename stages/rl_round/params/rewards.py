"""Parameters of `rl` that turn a verdict and a length into rewards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stages.foundations.params import StrictParams


def _is_discount(value: float) -> float:
    if not 0 < value <= 1:
        raise ValueError(
            f"a discount must lie in (0, 1], not {value}: set 1.0 for none, or a little less, like 0.99"
        )
    return value


Discount = Annotated[float, AfterValidator(_is_discount)]
"""Factor by which a reward shrinks with each token that lies before it."""


class VerdictReward(StrictParams):
    """Reward of a response by its verdict. Responses that the verifier could not decide are never rewarded."""

    kind: Literal["by_verdict"]
    correct: float
    """Any finite number (DAPO: 1)."""
    wrong: float
    """0, or less to punish (DAPO: -1)."""
    unparsed: float
    """A response without a final answer."""


class CosineReward(StrictParams):
    """Demystify's length reward, half a cosine from length 0 to `max_response_tokens`; unparsed counts as wrong."""

    kind: Literal["cosine"]
    r0_correct: float
    """Reward of a correct response of length 0 (the paper: 2)."""
    rL_correct: float
    """Of a correct one just below the limit (1): less than `r0_correct` makes short answers better."""
    r0_wrong: float
    """Of a wrong response of length 0 (-10)."""
    rL_wrong: float
    """Of a wrong one just below the limit (0): more than `r0_wrong` makes longer attempts better."""
    exceeded: float
    """Of any response that reaches the limit (-10)."""


class NoOverlong(StrictParams):
    """Long responses are rewarded like others."""

    kind: Literal["none"]


class SoftOverlong(StrictParams):
    """DAPO's soft overlong punishment: from 0 down to -1 over the last `buffer_tokens` before the limit."""

    kind: Literal["soft_punishment"]
    buffer_tokens: int = Field(ge=1)


class NoRepetitionPenalty(StrictParams):
    """Repetition costs nothing."""

    kind: Literal["none"]


class NgramPenalty(StrictParams):
    """Demystify's repetition penalty: a reward stream of its own, on the tokens that repeat, with its own discount."""

    kind: Literal["ngram"]
    n: int = Field(ge=1)
    """Tokens of an n-gram (the paper: 40)."""
    penalty: float = Field(le=0)
    """Reward of each token of an n-gram that occurred before in the response (-0.05)."""
    discount: Discount
    """Below 1 the penalty meets the tokens just before the repetition (0.99; 0.999 did best in the paper)."""


RewardParams = Annotated[VerdictReward | CosineReward, Field(discriminator="kind")]
OverlongParams = Annotated[NoOverlong | SoftOverlong, Field(discriminator="kind")]
RepetitionPenaltyParams = Annotated[NoRepetitionPenalty | NgramPenalty, Field(discriminator="kind")]
