"""What a round draws: problems, rollouts, their groups, and the batch of a step; and groups as JSON and as arrays.

Groups lie in checkpoints as JSON and travel between ranks as arrays. An array has about 6 bytes for a token, its id
and its log-prob together. As lists of Python numbers they were 13 bytes, and 64 in memory.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import FullSample, Sample, StopReason


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


@dataclass(frozen=True)
class PackedTokens:
    """Token ids below 2^24 and float32 log-probs, byte by byte.

    The lowest byte of all ids, then the next, and so on. The highest bytes, which hardly differ from token to token
    (of an id, and sign and exponent of a log-prob), are compressed; the others are noise.
    """

    count: int
    plain: bytes
    compressed: bytes

    @classmethod
    def of(cls, token_ids: Sequence[int], logprobs: Sequence[float]) -> PackedTokens:
        """Packs them; log-probs are rounded to float32, which samplers and trainers compute in."""
        ids = numpy.asarray(token_ids, dtype="<u4").view(numpy.uint8).reshape(-1, 4)
        values = numpy.asarray(logprobs, dtype="<f4").view(numpy.uint8).reshape(-1, 4)
        plain = numpy.concatenate((ids[:, :2], values[:, :3]), axis=1).T.tobytes()
        rare = numpy.stack((ids[:, 2], values[:, 3])).tobytes()
        return cls(len(ids), plain, zlib.compress(rare, level=1))

    def unpacked(self) -> tuple[numpy.ndarray, numpy.ndarray]:
        """Ids (int64) and log-probs (float64)."""
        plain = numpy.frombuffer(self.plain, numpy.uint8).reshape(5, self.count)
        rare = numpy.frombuffer(zlib.decompress(self.compressed), numpy.uint8).reshape(2, self.count)
        zeros = numpy.zeros((1, self.count), numpy.uint8)
        ids = numpy.ascontiguousarray(numpy.concatenate((plain[:2], rare[:1], zeros)).T)
        values = numpy.ascontiguousarray(numpy.concatenate((plain[2:], rare[1:])).T)
        return ids.view("<u4")[:, 0].astype(numpy.int64), values.view("<f4")[:, 0].astype(numpy.float64)

    @property
    def bytes(self) -> int:
        """What travels."""
        return len(self.plain) + len(self.compressed)


@dataclass(frozen=True)
class GroupColumns:
    """Some groups; of the rollouts that are not held only the token counts, verdicts and rewards are known."""

    problem_ids: list[str]
    draws: numpy.ndarray
    prompts: list[numpy.ndarray]
    sizes: numpy.ndarray
    """Rollouts of each group."""
    lengths: numpy.ndarray
    """Tokens of each rollout's response."""
    is_truncated: numpy.ndarray
    policy_versions: numpy.ndarray
    verdicts: list[str]
    rewards: numpy.ndarray
    is_held: numpy.ndarray
    tokens: PackedTokens
    """Of the held rollouts, one after another."""
    responses: list[str] | None
    """Their texts; None where nobody reads them."""
    distributions: list[numpy.ndarray | None]
    """What samples keep of the held rollouts."""


def to_columns(groups: Sequence[Group], is_held: Sequence[bool] | None = None, with_texts: bool = True) -> GroupColumns:
    """The groups as arrays; `is_held` says, for each rollout, whether its tokens are to be among them (None: all)."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    held = [True] * len(rollouts) if is_held is None else list(is_held)
    kept = list(itertools.compress(rollouts, held))
    samples = [rollout.sample for rollout in rollouts]
    return GroupColumns(
        [group.problem_id for group in groups],
        numpy.array([group.draw for group in groups], dtype=numpy.int64),
        [numpy.array(group.prompt, dtype=numpy.int32) for group in groups],
        numpy.array([len(group.rollouts) for group in groups], dtype=numpy.int64),
        numpy.array([len(sample.token_ids) for sample in samples], dtype=numpy.int64),
        numpy.array([sample.is_truncated for sample in samples], dtype=bool),
        numpy.array([sample.policy_version for sample in samples], dtype=numpy.int64),
        [rollout.verdict.value for rollout in rollouts],
        numpy.array([rollout.reward for rollout in rollouts], dtype=numpy.float64),
        numpy.array(held, dtype=bool),
        PackedTokens.of(*(_flat(kept, name) for name in ("token_ids", "logprobs"))),
        [rollout.response for rollout in kept] if with_texts else None,
        [rollout.sample.distributions.numpy() if isinstance(rollout.sample, FullSample) else None for rollout in kept],
    )


def _flat(rollouts: Sequence[Rollout], name: str) -> list:
    return list(itertools.chain.from_iterable(getattr(rollout.sample, name) for rollout in rollouts))


def to_groups(columns: GroupColumns) -> list[Group]:
    """The inverse of `to_columns`; the tokens of a rollout that is not held are zeros that take no memory."""
    token_ids, logprobs = columns.tokens.unpacked()
    rollouts: list[Rollout] = []
    first = held = 0
    for index, length in enumerate(columns.lengths.tolist()):
        text = ""
        distributions = None
        if columns.is_held[index]:
            own = slice(first, first + length)
            tokens = token_ids[own].tolist(), logprobs[own].tolist()
            text = columns.responses[held] if columns.responses else ""
            distributions = columns.distributions[held]
            first, held = first + length, held + 1
        else:
            tokens = numpy.broadcast_to(0, length), numpy.broadcast_to(0.0, length)
        stop = StopReason.MAX_TOKENS if columns.is_truncated[index] else StopReason.END_OF_SEQUENCE
        sample = Sample(*tokens, stop, int(columns.policy_versions[index]))
        if distributions is not None:
            from torch import from_numpy  # only here: the hub of the asynchronous loop has no torch

            sample = FullSample(**vars(sample), distributions=from_numpy(distributions))
        verdict, reward = Verdict(columns.verdicts[index]), float(columns.rewards[index])
        rollouts.append(Rollout(sample, text, verdict, reward))
    ends = numpy.cumsum(columns.sizes).tolist()
    return [
        Group(name, prompt.tolist(), tuple(rollouts[end - size : end]), draw)
        for name, prompt, size, end, draw in zip(
            columns.problem_ids, columns.prompts, columns.sizes.tolist(), ends, columns.draws.tolist(), strict=True
        )
    ]
