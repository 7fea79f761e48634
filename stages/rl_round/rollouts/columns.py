"""Groups as arrays: how they travel between ranks.

Of a token travel its id and its log-prob, about 6 bytes; as lists of Python numbers they were 13, and 64 in memory.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import FullSample
from stages.engines.samplers.samples import Sample, StopReason
from stages.rl_round.rollouts.records import Group, Rollout


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


def to_columns(
    groups: Sequence[Group], is_held: Sequence[bool] | None = None, with_texts: bool = True
) -> GroupColumns:
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
        [
            rollout.sample.distributions.numpy() if isinstance(rollout.sample, FullSample) else None
            for rollout in kept
        ],
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
            columns.problem_ids,
            columns.prompts,
            columns.sizes.tolist(),
            ends,
            columns.draws.tolist(),
            strict=True,
        )
    ]
