"""One sampler made of many: it assigns trajectories to replicas with free slots, and again when a replica is lost.

A trajectory has its own random numbers, so every replica generates the same tokens for it. Only the order of float
sums may differ, because different trajectories are decoded beside it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from stages.engines.distributed.ray_session import ray_session, this_node, total_gpus
from stages.engines.distributed.waiting import MOST_BUSY_SECONDS, MOST_IDLE_SECONDS, Watch
from stages.engines.relays.published_weights import PublishedWeights, weights_folder
from stages.engines.relays.relay import RelayChain
from stages.engines.replicas.fleet import Died, Fleet, Reported, Started, gpus_each, spec_of
from stages.engines.replicas.replica import Name, Orders, Report
from stages.engines.samplers.params import SamplerParams
from stages.engines.samplers.protocol import Decoding, Sample, SamplingSettings, Trajectory, equal_prompts
from stages.foundations.params import ChatPrompt, PlainPrompt

if TYPE_CHECKING:
    from torch import Tensor

STALLED_SECONDS = 30.0
"""Seconds of silence after which a replica or a relay counts as hung."""
REPORT_SECONDS = 0.25
"""Longest time until a replica reports: the end of a response is noticed up to this much later."""
POLL_SECONDS = 1.0
KEPT_VERSIONS = 2
"""Versions kept: the newest, and the one before for replicas that still read it."""
PACKAGES = ("torch", "transformers", "safetensors", "pydantic")
"""Packages that each node of a cluster needs to build a sampler."""


class ReplicatedSampler:
    """See `stages.engines.samplers.protocol.Sampler`."""

    def __init__(
        self, params: SamplerParams, policy_folder: Path, prompt: PlainPrompt | ChatPrompt | None = None
    ) -> None:
        """Starts `params.replicas.count` replicas, in a new Ray session unless there is one."""
        assert params.replicas is not None
        self.params, self.policy_version, self.is_asleep = params, 0, False
        self._calls = count()
        self._published = 0
        """Number of the newest weights in the folder, one more per `load_weights`; 0 are the initial weights."""
        self._ordered: dict[int, int] = {}
        """The version of weights that each replica has, or was ordered to pull."""
        self._pulled: dict[int, int | None] = {}
        """The version of weights that each replica has, by its last report."""
        self._in_flight: dict[int, int] = {}
        self._watch, self._decoded = Watch("sampler.replicas"), 0
        replicas = params.replicas.count
        with ExitStack() as stack:
            cpus = getattr(params, "threads", getattr(params, "tensor_parallel", 1))
            run = stack.enter_context(ray_session(replicas * cpus, PACKAGES))
            self._node = this_node()
            self._weights = PublishedWeights(weights_folder(run, self._node))
            # The trainer may be in this process: it takes none of Ray's GPUs, but uses one.
            gpus = gpus_each(params, replicas, 0, total_gpus())
            spec = spec_of(params, policy_folder, run, gpus, 0, prompt)
            self._fleet = Fleet(spec, replicas, STALLED_SECONDS, REPORT_SECONDS)
            # In this order, so that they are closed in reverse: relays, replicas, then Ray.
            stack.callback(self._fleet.close)
            self._chain = RelayChain(run, KEPT_VERSIONS, STALLED_SECONDS, has_guards=True)
            stack.callback(self._chain.close)
            while len(self._fleet.started()) < replicas:
                self._poll()
            self._stack = stack.pop_all()

    def stream(self, trajectories: Sequence[Trajectory], settings: SamplingSettings) -> Iterator[tuple[int, Sample]]:
        call = next(self._calls)
        waiting = deque(equal_prompts(trajectories, range(len(trajectories))))
        open_names: dict[Name, int] = {}
        # With few trajectories no replica takes more than its share, and the last ones end together.
        most = min(self.params.max_sequences, -(-len(trajectories) // self.params.replicas.count))
        try:
            while waiting or open_names:
                self._deal(waiting, open_names, trajectories, settings, most, call)
                for replica, ended, lost in self._poll():
                    for name, sample in ended.items():
                        if open_names.get(name) == replica:
                            del open_names[name]
                            yield name[1], replace(sample, policy_version=self.policy_version)
                    again = [name[1] for name in lost if open_names.get(name) == replica]
                    for index in again:
                        del open_names[call, index]
                    # At the front: they have waited longest.
                    waiting.extendleft(equal_prompts(trajectories, again))
        finally:
            # Also when the caller stopped early: trajectories that still decode would take the slots of the next call.
            for replica in self._fleet.started():
                left = tuple(name for name, where in open_names.items() if where == replica)
                if left:
                    self._fleet.order(replica, Orders(withdraw=left))

    def _deal(
        self,
        waiting: deque[list[int]],
        open_names: dict[Name, int],
        trajectories: Sequence[Trajectory],
        settings: SamplingSettings,
        most: int,
        call: int,
    ) -> None:
        """Assigns groups of equal prompts to the replicas with the most free slots."""
        # Only replicas that were ordered to pull the newest weights: a replica carries out its orders in sequence.
        able = [replica for replica, ordered in self._ordered.items() if ordered == self._published]
        dealt: dict[int, dict[Name, Trajectory]] = {}
        while waiting and able:
            replica = min(able, key=self._in_flight.__getitem__)
            if self._in_flight[replica] >= most:
                break
            group = {(call, index): trajectories[index] for index in waiting.popleft()}
            dealt.setdefault(replica, {}).update(group)
            open_names |= dict.fromkeys(group, replica)
            self._in_flight[replica] += len(group)
        for replica, begin in dealt.items():
            self._fleet.order(replica, Orders(under=self._published, settings=settings, begin=begin))

    def open(self, settings: SamplingSettings) -> Decoding:
        """Not for replicas: callers that step decodings use the fleet directly."""
        raise NotImplementedError("replicas are not stepped from outside: leave sampler.replicas out")

    def logprobs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[list[float]]:
        """Returns log-probs of given responses, from one replica; see the protocol."""
        from ray.exceptions import GetTimeoutError, RayActorError

        while True:
            for replica, pulled in self._pulled.items():
                if pulled == self._published:
                    try:
                        return self._fleet.logprobs(replica, prompts, responses)
                    # The next replica answers as well; this one cannot be used for sampling either.
                    except (RayActorError, GetTimeoutError) as error:
                        self._forget(self._fleet.end(replica, f"it gave no log-probs ({type(error).__name__})"))
                        break
            self._poll()

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Publishes the weights once and returns; every replica pulls them before it generates again."""
        self._published += 1
        self._weights.publish(self._published, named_tensors)
        self._weights.prune(KEPT_VERSIONS)
        self.policy_version = policy_version
        self._chain.announce(self._published)
        self._poll(0.0)

    def sleep(self) -> None:
        """Does nothing: replicas share no device with other processes."""

    def kept_weights(self) -> dict[str, Tensor]:
        """Does nothing: replicas use the weights that they received last."""
        return {}

    def restore_weights(self, kept: Mapping[str, Tensor]) -> None:
        """Does nothing: see `kept_weights`."""

    def close(self) -> None:
        """Ends the replicas, and Ray if it was started for them."""
        self._stack.close()

    def _poll(self, timeout: float = POLL_SECONDS) -> list[tuple[int, Mapping[Name, Sample], Iterable[Name]]]:
        """Returns ended trajectories, and those to assign again, by replica; has free replicas pull new weights."""
        news = []
        for event in self._fleet.poll(timeout):
            match event:
                # A replica that was replaced has the initial weights again, which are number 0.
                case Started(replica=replica, node=node):
                    self._ordered[replica] = self._pulled[replica] = self._in_flight[replica] = 0
                    if node != self._node:
                        self._chain.ensure([self._node, node])
                case Reported(replica=replica, report=report):
                    self._note(replica, report)
                    news.append((replica, report.ended, report.withdrawn))
                case Died(replica=replica, lost=lost):
                    self._forget(event)
                    news.append((replica, {}, lost))
        self._chain.poll()
        self._check_progress()
        for replica, ordered in self._ordered.items():
            if ordered != self._published and not self._in_flight[replica] and self._is_near(replica):
                self._fleet.order(replica, Orders(pull=self._published))
                self._ordered[replica] = self._published
        return news

    def _check_progress(self) -> None:
        """Logs the state while nothing changes; StuckError at the limit of the wait."""
        in_flight, started = sum(self._in_flight.values()), self._fleet.started()
        standing = (
            f"{len(started)} of {self.params.replicas.count} replicas have started, with weights "
            f"{list(self._pulled.values())} of {self._published}, and {in_flight} responses are under way after "
            f"{self._decoded} decode steps"
        )
        is_busy = in_flight or len(started) < self.params.replicas.count
        self._watch.look(standing, MOST_BUSY_SECONDS if is_busy else MOST_IDLE_SECONDS)

    def _note(self, replica: int, report: Report) -> None:
        self._decoded += report.decode_steps
        self._in_flight[replica] -= len(report.ended) + len(report.withdrawn)
        self._pulled[replica] = report.version
        # -1 is not a number of weights, so the next poll orders the pull again.
        if report.pull_failed:
            self._ordered[replica] = -1

    def _forget(self, died: Died) -> None:
        for known in (self._ordered, self._pulled, self._in_flight):
            known.pop(died.replica, None)

    def _is_near(self, replica: int) -> bool:
        """True if the newest weights are on the replica's node."""
        node = self._fleet.node(replica)
        return node == self._node or self._published in self._chain.have.get(node, [])
