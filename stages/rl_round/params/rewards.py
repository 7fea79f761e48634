"""Parameters of `rl` that turn a verdict and a length into rewards."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class VerdictReward(StrictParams):
    """Reward of a response by its verdict. Responses that the verifier could not decide are never rewarded."""

    kind: Literal["by_verdict"]
    correct: float
    """Any finite number (DAPO: 1)."""
    wrong: float
    """0, or less to punish (DAPO: -1)."""
    unparsed: float
    """A response without a final answer, or one that exhausts the verifier's limits."""


class CosineReward(StrictParams):
    """Demystify's length reward, half a cosine from length 0 to `max_response_tokens`; unparsed counts as wrong.

    Without dynamic sampling a group that is all wrong, or all correct, is trained on too: for its lengths alone.
    """

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


RewardParams = Annotated[VerdictReward | CosineReward, Field(discriminator="kind")]
OverlongParams = Annotated[NoOverlong | SoftOverlong, Field(discriminator="kind")]
