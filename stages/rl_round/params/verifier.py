"""Parameters of `rl.verifier`: who decides in a round whether a response is correct."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class RuleVerifier(StrictParams):
    """The verifier of section `verifier`: exact rules and math-verify."""

    kind: Literal["rule"]


class WrittenJudgement(StrictParams):
    """The judge writes, and its last line `Judgement: correct` (or wrong, not_found) counts; none is undecided.

    For policies that follow instructions. It sees the gold answer and the last 20 lines of the response.
    """

    kind: Literal["written"]
    max_tokens: int = Field(ge=1)
    """Tokens that it may write (the paper: 1024)."""


class LikelierWord(StrictParams):
    """Asked whether prediction and gold answer are the same, the likelier of the words `yes` and `no` counts.

    The prediction is found by rule (a box or a marker), and a response without one is unparsed. For policies that are
    too small to write a judgement.
    """

    kind: Literal["likelier_word"]
    undecided_margin: float = Field(ge=0)
    """In nats: words whose log-probabilities are nearer to each other than this leave the response undecided."""


class NoTeaching(StrictParams):
    """The judge is the policy as it is: noise, unless the policy has learned to judge."""

    kind: Literal["none"]


class MadePairs(StrictParams):
    """A copy of the policy is first fine-tuned to tell equal answers from different ones.

    Half of the pairs are a gold answer of the round's problems with itself, half two different gold answers.
    """

    kind: Literal["made_pairs"]
    steps: int = Field(ge=1)
    pairs_per_step: int = Field(ge=2)
    learning_rate: float = Field(gt=0)
    """Of AdamW, constant."""


class ModelVerifier(StrictParams):
    """The policy that the round starts from, frozen, judges each response against the gold answer.

    It runs in the built-in sampler. Responses that it leaves undecided are never trained on and stop the round beyond
    `verifier.abort_undecided_fraction`, as with the rules, which judge the same responses only to be compared with.
    """

    kind: Literal["model"]
    reading: Annotated[WrittenJudgement | LikelierWord, Field(discriminator="kind")]
    teaching: Annotated[NoTeaching | MadePairs, Field(discriminator="kind")]


RoundVerifierParams = Annotated[RuleVerifier | ModelVerifier, Field(discriminator="kind")]
