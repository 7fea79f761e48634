"""Problems, rollouts, their groups, and the batch of a step; and groups as bytes.

Groups are packed in checkpoints and for sending between ranks: about 6 bytes for the id and the log-prob of a token.
Pickled lists of Python numbers take 13 bytes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy
import pyarrow
from pyarrow import parquet

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.episodes import episode_from_json, episode_to_json
from stages.engines.samplers.protocol import FullSample, Sample, StopReason


@dataclass(frozen=True)
class Problem:
    problem_id: str
    prompt: list[int]
    answer: str
    row: Mapping[str, Any] = field(default_factory=dict)
    """Other columns of its row that a custom function may read; empty when there is no such function."""
    for_environment: Mapping[str, Any] = field(default_factory=dict)
    """The columns that an environment may read; empty without one."""


@dataclass(frozen=True)
class Rollout:
    sample: Sample
    response: str
    verdict: Verdict
    reward: float
    """0 when the verdict is undecided (timed out, crashed): such a rollout is never trained on."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The named parts of the reward; empty when it has none."""
    fault: str = ""
    """The reason why a custom function or an environment gave no reward. Such a rollout is never trained on either."""
    is_custom: bool = False
    """True when a custom function or an environment contributed to the reward."""

    @property
    def is_decided(self) -> bool:
        """Returns False when verifier, environment or custom reward failed: the response is neither good nor bad."""
        return not self.verdict.is_failure and not self.fault

    @property
    def failure(self) -> str:
        """Returns the reason why it is undecided: the environment's, a custom function's, or the verdict."""
        episode = self.sample.episode
        return (episode.fault if episode else "") or self.fault or self.verdict.value

    @property
    def custom(self) -> dict[str, Any]:
        """Returns reward, parts and fault for JSON when `is_custom`; else empty."""
        return {"reward": self.reward, "parts": dict(self.parts), "fault": self.fault} if self.is_custom else {}

    @property
    def outcome(self) -> float:
        """Returns the value for comparing members of a group: correctness, or the reward when `is_custom`."""
        return self.reward if self.is_custom else float(self.verdict is Verdict.CORRECT)


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
        """Returns True when some decided rollouts are correct and some are not (DAPO filters on correctness, not
        reward). With custom rewards: when they differ.
        """
        # Undecided rollouts do not count: "correct" and "timed out" cannot be compared.
        return len({rollout.outcome for rollout in self.rollouts if rollout.is_decided}) > 1

    @property
    def oldest_version(self) -> int:
        """Returns the oldest policy version among its samples, from which its staleness is counted."""
        return min(rollout.sample.policy_version for rollout in self.rollouts)


@dataclass(frozen=True)
class Batch:
    """The groups that one step trains on, and the other groups that were drawn for it."""

    groups: list[Group]
    """At most `problems_per_step`, oldest first."""
    drawn: list[Group]
    """Every group drawn in this step, used or not."""
    left_out: list[Group]
    """Groups that will never be trained on: drawn now without signal, or surplus that waited too long."""
    draws: int
    too_stale: int
    """Surplus groups that waited too long."""
    carried: int
    """Surplus groups that wait for the next step."""
    signal_fraction: float
    """Share of groups with signal in the last step that drew groups."""
    newest_version: int | None
    """Rollouts of this version are fresh, the others are surplus of earlier steps; None when all are surplus."""
    agreement: Mapping[str, float] = field(default_factory=dict)
    """How a model's verdicts compare with those of the rules; empty when the rules decide."""


def newest_version(groups: Sequence[Group]) -> int | None:
    """Returns the newest policy version among the samples of `groups`; None when there are no groups."""
    versions = (rollout.sample.policy_version for group in groups for rollout in group.rollouts)
    return max(versions, default=None)


_ROWS = pyarrow.schema(
    {
        "problem_id": pyarrow.string(),
        "draw": pyarrow.int64(),
        "prompt": pyarrow.list_(pyarrow.int32()),
        "tokens": pyarrow.int32(),
        "stop_reason": pyarrow.string(),
        "policy_version": pyarrow.int64(),
        "verdict": pyarrow.string(),
        "reward": pyarrow.float64(),
        "parts": pyarrow.string(),  # JSON
        "fault": pyarrow.string(),
        "is_custom": pyarrow.bool_(),
        "episode": pyarrow.string(),  # JSON
        "token_ids": pyarrow.list_(pyarrow.int32()),
        "logprobs": pyarrow.list_(pyarrow.float64()),
        "response": pyarrow.string(),
        "distributions": pyarrow.list_(pyarrow.large_binary()),
    }
)
"""One row per rollout. The first three columns describe its group, and are null in all but the group's first row. The
last four are null when a rollout is not held. Log-probs keep every bit; bits beyond float32 cost nothing if unused."""
_SPLIT = ["token_ids.list.element", "logprobs.list.element"]
"""Columns whose first bytes are stored together, then the second bytes, and so on: the highest bytes hardly differ."""


def pack_groups(groups: Sequence[Group], is_held: Sequence[bool] | None = None, with_texts: bool = True) -> bytes:
    """Returns the groups as a Parquet file, bit for bit.

    `is_held` says for each rollout whether the file has its tokens (None: all). For the others it has only the number
    of tokens, the verdict and the reward.
    """
    # One iterator for the rollouts of all groups, hence not strict. Rollouts come first in `zip`, so that it does not
    # consume one flag too many.
    held = itertools.repeat(True) if is_held is None else iter(is_held)
    rows: list[dict[str, Any]] = []
    for group in groups:
        # A prompt may be longer than its responses, so it is stored once, in the group's first row.
        first: dict[str, Any] = {"problem_id": group.problem_id, "draw": group.draw, "prompt": group.prompt}
        for rollout, has_tokens in zip(group.rollouts, held, strict=False):
            sample = rollout.sample
            row = first | {
                "tokens": len(sample.token_ids),
                "stop_reason": sample.stop_reason.value,
                "policy_version": sample.policy_version,
                "verdict": rollout.verdict.value,
                "reward": rollout.reward,
            }
            if rollout.is_custom:
                row |= {"parts": json.dumps(dict(rollout.parts)), "fault": rollout.fault, "is_custom": True}
            # Of rollouts that are not held too: their lengths are the policy's tokens.
            if sample.episode is not None:
                row["episode"] = json.dumps(episode_to_json(sample.episode))
            if has_tokens:
                row |= {"token_ids": sample.token_ids, "logprobs": sample.logprobs}
                row |= {"response": rollout.response} if with_texts else {}
            if has_tokens and isinstance(sample, FullSample):
                row["distributions"] = [values.tobytes() for values in sample.distributions.numpy()]
            rows.append(row)
            first = {}
    file = pyarrow.BufferOutputStream()
    # No dictionaries: if both are on, Parquet uses them instead of the split.
    table = pyarrow.Table.from_pylist(rows, schema=_ROWS)
    parquet.write_table(table, file, compression="zstd", use_dictionary=False, use_byte_stream_split=_SPLIT)
    return file.getvalue().to_pybytes()


def _rollout(row: Mapping[str, Any], sample: Sample) -> Rollout:
    custom = {"parts": json.loads(row["parts"]), "fault": row["fault"], "is_custom": True} if row["is_custom"] else {}
    return Rollout(sample, row["response"] or "", Verdict(row["verdict"]), row["reward"], **custom)


def unpack_groups(packed: bytes) -> list[Group]:
    """Returns the inverse of `pack_groups`; the tokens of a rollout that is not held are zeros that take no memory."""
    table = parquet.read_table(pyarrow.BufferReader(packed))
    rows = table.drop_columns(["token_ids", "logprobs"]).to_pylist()
    groups: list[tuple[dict[str, Any], list[Rollout]]] = []
    for row, token_ids, logprobs in zip(rows, table["token_ids"], table["logprobs"], strict=True):
        if token_ids.is_valid:
            tokens = token_ids.values.to_numpy().tolist(), logprobs.values.to_numpy().tolist()
        else:
            # Divisors and the plan of the step still need the lengths, so there are as many zeros as tokens.
            tokens = numpy.broadcast_to(0, row["tokens"]), numpy.broadcast_to(0.0, row["tokens"])
        episode = episode_from_json(json.loads(row["episode"] or "null"))
        sample = Sample(*tokens, StopReason(row["stop_reason"]), row["policy_version"], episode)
        if row["distributions"]:
            # Imported only here: the hub of the asynchronous loop unpacks groups too, and does not import torch.
            from torch import from_numpy

            values = [numpy.frombuffer(one, numpy.float32) for one in row["distributions"]]
            sample = FullSample(**vars(sample), distributions=from_numpy(numpy.stack(values)))
        if row["problem_id"] is not None:
            groups.append((row, []))
        groups[-1][1].append(_rollout(row, sample))
    return [Group(row["problem_id"], row["prompt"], tuple(rollouts), row["draw"]) for row, rollouts in groups]
