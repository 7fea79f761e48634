"""What a round draws: problems, rollouts, their groups, and the batch that a step takes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.samples import Sample, StopReason


@dataclass(frozen=True)
class Problem:
    """A problem, ready to be sampled."""

    problem_id: str
    prompt: list[int]
    answer: str


@dataclass(frozen=True)
class Rollout:
    """One response with its verdict and reward."""

    sample: Sample
    response: str
    verdict: Verdict
    reward: float
    """0 where the verdict is no opinion about the response (timed out, crashed): such a rollout is never trained on."""

    @property
    def is_decided(self) -> bool:
        """False when the verifier failed: the response is then neither good nor bad."""
        return not self.verdict.is_failure


@dataclass(frozen=True)
class Group:
    """The rollouts of one draw of one problem, each with the policy version that sampled it."""

    problem_id: str
    prompt: list[int]
    rollouts: tuple[Rollout, ...]
    """In the order of their sample numbers; at least one."""
    draw: int = 0
    """How often the round had drawn the problem before."""

    @property
    def has_signal(self) -> bool:
        """True when some decided rollouts are correct and some are not (DAPO filters on correctness, not reward)."""
        correct = sum(rollout.verdict is Verdict.CORRECT for rollout in self.rollouts)
        return 0 < correct < sum(rollout.is_decided for rollout in self.rollouts)

    @property
    def oldest_version(self) -> int:
        """The oldest policy version among its samples: what its staleness is counted from."""
        return min(rollout.sample.policy_version for rollout in self.rollouts)


@dataclass(frozen=True)
class Batch:
    """What one step trains on, and what else was drawn for it."""

    groups: list[Group]
    """At most `problems_per_step`, oldest first."""
    drawn: list[Group]
    """Every group drawn in this step, whatever became of it."""
    left_out: list[Group]
    """Groups that will never be trained on: drawn now without signal, or surplus that waited too long."""
    draws: int
    too_stale: int
    """Surplus groups that waited too long."""
    carried: int
    """Surplus groups that wait for the next step."""
    signal_fraction: float
    """Share of groups with signal, of the last step that drew any."""
    newest_version: int | None
    """What this version has drawn is fresh, the rest surplus of earlier steps; None where all of it is."""
    agreement: Mapping[str, float] = field(default_factory=dict)
    """How a model's verdicts compare with those of the rules; empty where the rules decide."""


def newest_version(groups: Sequence[Group]) -> int | None:
    """The newest policy version among the samples of `groups`; None when there are no groups."""
    versions = (rollout.sample.policy_version for group in groups for rollout in group.rollouts)
    return max(versions, default=None)


def group_to_json(group: Group) -> dict[str, Any]:
    """The group as JSON can hold it, without distributions; floats keep every bit."""
    return {
        "problem_id": group.problem_id,
        "prompt": group.prompt,
        "draw": group.draw,
        "rollouts": [
            {
                "token_ids": rollout.sample.token_ids,
                "logprobs": rollout.sample.logprobs,
                "stop_reason": rollout.sample.stop_reason.value,
                "policy_version": rollout.sample.policy_version,
                "response": rollout.response,
                "verdict": rollout.verdict.value,
                "reward": rollout.reward,
            }
            for rollout in group.rollouts
        ],
    }


def group_from_json(stored: dict[str, Any]) -> Group:
    """The inverse of `group_to_json`."""
    rollouts = tuple(
        Rollout(
            Sample(row["token_ids"], row["logprobs"], StopReason(row["stop_reason"]), row["policy_version"]),
            row["response"],
            Verdict(row["verdict"]),
            row["reward"],
        )
        for row in stored["rollouts"]
    )
    return Group(stored["problem_id"], stored["prompt"], rollouts, stored["draw"])
