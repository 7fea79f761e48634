"""A sampler that computes nothing: in each decode step it sleeps as long as a device would take. No torch.

It sleeps until consecutive deadlines, not for durations. So time that the caller spends between two steps (reports, a
journal, Ray's messages) shortens the next sleep, as it would overlap with a computing device. Delays beyond a whole
step are not made up for: they count as lateness, and the deadlines start again from there.

    sequence       its length, tokens and log-probs depend only on the trajectory's seed and prompt
    step           sleeps; every running sequence gets one more token
    lateness       must be checked by a benchmark: a machine that is too busy to sleep on time distorts the result

`main` runs a stage whose replicas sample with this sampler. Its random tokens are in that round's table like a policy's
responses, so no recipe can select it; it is only available by starting the stage through this module.
"""

from __future__ import annotations

import heapq
import math
import os
import sys
import time
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy

from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import (
    Load,
    PartialResponse,
    Sample,
    SamplingSettings,
    StopReason,
    Trajectory,
    check_begun,
    uniform,
)
from stages.foundations.seeds import derive_seed

if TYPE_CHECKING:
    from torch import Tensor

NORMAL = NormalDist()
NOTE_SECONDS = 1.0
"""Planned time between two notes of the lateness: a replica is killed, and says nothing at its end."""


def main() -> None:
    """Runs a stage. Arguments: the folder for notes of lateness, then the arguments of `python -m stages`."""
    from stages.__main__ import main as stage_main
    from stages.engines.replicas import fleet
    from stages.observe.command import run_stage

    notes, *words = sys.argv[1:]
    # Pickled by name: each replica's process imports this module and builds its sampler here.
    fleet.build_replica_sampler = partial(build_virtual_sampler, Path(notes).absolute())
    run_stage(lambda: stage_main(words))


def build_virtual_sampler(notes: Path, params: SamplerParams, policy_folder: Path) -> VirtualSampler:
    """Returns a sampler that draws tokens of the policy in `policy_folder` but does not read its weights."""
    from stages.engines.policies.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(policy_folder)
    return VirtualSampler(DEVICE, params.max_sequences, tokenizer.eos_token_id, len(tokenizer), notes)


@dataclass(frozen=True)
class Device:
    """A memory-bound device: reading the weights takes a fixed time, and every sequence adds to it."""

    step_seconds: float
    sequence_seconds: float
    median: float
    """Tokens of a response without a limit; lengths are log-normal."""
    p99_over_median: float
    within_group: float
    """Share of the logarithm's variance among responses to one prompt; the rest is the prompt's."""

    def length(self, trajectory: Trajectory) -> int:
        """Returns the response's number of tokens without a limit."""
        deviation = math.log(self.p99_over_median) / NORMAL.inv_cdf(0.99)
        of_group = _normal(derive_seed("prompt", *trajectory.prompt))
        of_response = _normal(derive_seed("length", trajectory.seed))
        share = math.sqrt(1 - self.within_group) * of_group + math.sqrt(self.within_group) * of_response
        return max(1, round(self.median * math.exp(deviation * share)))


def _normal(seed: int) -> float:
    """Returns a standard normal number from a seed of 63 bits."""
    return NORMAL.inv_cdf((seed + 0.5) / 2**63)


# 17 ms alone and 41 ms with 64 sequences.
SEQUENCE_SECONDS = (0.041 - 0.017) / 63
DEVICE = Device(0.017 - SEQUENCE_SECONDS, SEQUENCE_SECONDS, median=40, p99_over_median=10.0, within_group=0.7)


class VirtualSampler:
    """The part of `stages.engines.samplers.protocol.Sampler` that a replica needs."""

    def __init__(self, device: Device, max_sequences: int, end_token: int, vocabulary: int, notes: Path | None) -> None:
        """Draws token ids below `vocabulary`, at least two. Notes its lateness in a file of the folder `notes`."""
        self.device, self.max_sequences = device, max_sequences
        self.end_token, self.vocabulary = end_token, vocabulary
        self.policy_version, self.is_asleep = 0, False
        self.logprob = -math.log(vocabulary)
        self.clock = DeviceClock()
        self._notes, self._noted_at = notes, 0.0

    def open(self, settings: SamplingSettings) -> VirtualDecoding:
        return VirtualDecoding(self, settings)

    def response(self, trajectory: Trajectory, limit: int) -> list[int]:
        """Returns all tokens of a trajectory; the last one is the end token if the length is below the limit."""
        length = self.device.length(trajectory)
        numbers = uniform(numpy.array([trajectory.seed], dtype=numpy.uint64), numpy.arange(min(length, limit)))
        ids = (numbers * (self.vocabulary - 1)).astype(numpy.int64)
        ids += ids >= self.end_token
        if length <= limit:
            ids[-1] = self.end_token
        return ids.tolist()

    def logprobs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns a constant; the probe of the weights must be off (weight_sync_check.max_logprob_gap null)."""
        return [[self.logprob] * len(response) for response in responses]

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Sets the version; takes no time and reads no weights."""
        self.policy_version = policy_version

    def note_lateness(self) -> None:
        if self._notes and self.clock.planned_seconds >= self._noted_at + NOTE_SECONDS:
            self._noted_at = self.clock.planned_seconds
            (self._notes / str(os.getpid())).write_text(f"{self.clock.lateness:.4f}")

    def close(self) -> None:
        """Does nothing: there is nothing to free."""


class DeviceClock:
    """Consecutive steps of a device while it has work."""

    def __init__(self) -> None:
        self.planned_seconds = self._lost_seconds = 0.0
        self._due: float | None = None
        self._woke = 0.0

    def work(self, seconds: float) -> None:
        """Sleeps until the step that takes `seconds` is over."""
        now = time.perf_counter()
        if self._due is None:
            self._due = now
        elif now - self._due > seconds:
            self._lost_seconds += now - self._due
            self._due = now
        self._due += seconds
        self.planned_seconds += seconds
        time.sleep(max(0.0, self._due - now))
        self._woke = time.perf_counter()

    def rest(self) -> None:
        """Marks the device as idle until its next step."""
        if self._due is not None:
            self._lost_seconds += max(0.0, self._woke - self._due)
            self._due = None

    @property
    def lateness(self) -> float:
        """Returns seconds lost / seconds planned."""
        behind = 0.0 if self._due is None else max(0.0, self._woke - self._due)
        return (self._lost_seconds + behind) / self.planned_seconds if self.planned_seconds else 0.0


@dataclass
class _Sequence:
    trajectory: Trajectory
    token_ids: list[int]
    """All that it will have."""
    first_step: int
    """Steps taken when it had no token, maybe below zero."""
    reported: int
    """Tokens that `new_tokens` has returned, those begun elsewhere included."""


class VirtualDecoding:
    """See `stages.engines.samplers.protocol.Decoding`."""

    def __init__(self, sampler: VirtualSampler, settings: SamplingSettings) -> None:
        self._sampler, self._settings = sampler, settings
        self._version = sampler.policy_version
        self._steps = self._kv_tokens = self._admitted = 0
        self._waiting: dict[Hashable, Trajectory] = {}
        self._running: dict[Hashable, _Sequence] = {}
        self._ends: list[tuple[int, int, Hashable]] = []
        """Heap of (last step, order of admission, name); may hold withdrawn ones."""

    def admit(self, trajectories: Mapping[Hashable, Trajectory]) -> None:
        check_begun(trajectories, self._waiting.keys() | self._running.keys(), self._settings)
        self._waiting.update(trajectories)

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._running

    @property
    def load(self) -> Load:
        return Load(len(self._running), len(self._waiting), self._kv_tokens)

    def step(self) -> dict[Hashable, Sample]:
        if self.is_idle:
            return {}
        sampler = self._sampler
        self._let_in(sampler.max_sequences - len(self._running))
        self._steps += 1
        self._kv_tokens += len(self._running)
        sampler.clock.work(sampler.device.step_seconds + sampler.device.sequence_seconds * len(self._running))
        ended = self._ended()
        if self.is_idle:
            sampler.clock.rest()
        sampler.note_lateness()
        return ended

    def _let_in(self, room: int) -> None:
        for name in list(self._waiting)[:room]:
            trajectory = self._waiting.pop(name)
            token_ids = self._sampler.response(trajectory, self._settings.max_response_tokens)
            begun = len(trajectory.begun.token_ids)
            first_step = self._steps - begun
            self._running[name] = _Sequence(trajectory, token_ids, first_step, begun)
            self._kv_tokens += len(trajectory.prompt) + begun
            self._admitted += 1
            heapq.heappush(self._ends, (first_step + len(token_ids), self._admitted, name))

    def _ended(self) -> dict[Hashable, Sample]:
        ended: dict[Hashable, Sample] = {}
        while self._ends and self._ends[0][0] <= self._steps:
            last_step, _, name = heapq.heappop(self._ends)
            one = self._running.get(name)
            if one is None or one.first_step + len(one.token_ids) != last_step:
                continue
            begun = self._leave(name)
            is_ended = begun.token_ids[-1] == self._sampler.end_token
            reason = StopReason.END_OF_SEQUENCE if is_ended else StopReason.MAX_TOKENS
            ended[name] = Sample(begun.token_ids, begun.logprobs, reason, self._version)
        return ended

    def _leave(self, name: Hashable) -> PartialResponse:
        one = self._running.pop(name)
        count = self._steps - one.first_step
        self._kv_tokens -= len(one.trajectory.prompt) + count
        return self._begun(one, 0, count)

    def _begun(self, one: _Sequence, start: int, stop: int) -> PartialResponse:
        return PartialResponse(one.token_ids[start:stop], [self._sampler.logprob] * (stop - start))

    def new_tokens(self) -> dict[Hashable, PartialResponse]:
        grown: dict[Hashable, PartialResponse] = {}
        for name, one in self._running.items():
            count = self._steps - one.first_step
            if one.reported < count:
                grown[name] = self._begun(one, one.reported, count)
                one.reported = count
        return grown

    def withdraw(self, names: Iterable[Hashable]) -> dict[Hashable, PartialResponse]:
        withdrawn: dict[Hashable, PartialResponse] = {}
        for name in names:
            if name in self._waiting:
                withdrawn[name] = self._waiting.pop(name).begun
            elif name in self._running:
                withdrawn[name] = self._leave(name)
        if self.is_idle:
            self._sampler.clock.rest()
        return withdrawn

    def close(self) -> None:
        self.withdraw([*self._waiting, *self._running])
