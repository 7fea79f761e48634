"""Where the batch of a step comes from: an interface, and the source of the synchronous loop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from safetensors.torch import load_file, save_file
from torch import Tensor

from stages.engines.samplers.protocol import FullSample, Sampler
from stages.foundations.files import write_json
from stages.rl_round.loop.context import RoundContext
from stages.rl_round.params.verifier import ModelVerifier
from stages.rl_round.rollouts.dynamic_sampling import DrawState, draw_batch, problems_in_order
from stages.rl_round.rollouts.grouping import draw_groups
from stages.rl_round.rollouts.records import Batch, Group, Problem, Rollout, group_from_json, group_to_json
from stages.rl_round.rollouts.round_verifier import RoundVerifier
from stages.rl_round.rollouts.undecided import stop_when_undecided


class BatchSource(Protocol):
    """Gives every rank the batch of the next step. All methods are collective."""

    def next_batch(self) -> Batch:
        """What the next step trains on, the same on every rank."""

    def leftover(self) -> list[Group]:
        """Finished groups that no step has taken; empty on ranks that hold none."""

    def save(self, folder: Path) -> None:
        """Writes what `load` needs to go on bit for bit into a checkpoint's folder."""

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote."""


@dataclass(frozen=True)
class RolloutParts:
    """What rank 0 draws and scores with."""

    problems: Sequence[Problem]
    sampler: Sampler
    verifier: RoundVerifier
    tokenizer: object
    abort_undecided_fraction: float


class SampledBatches:
    """Rank 0's source: draws from the sampler's present weights, and tells the other ranks what it drew."""

    def __init__(self, context: RoundContext, parts: RolloutParts) -> None:
        self._context, self._parts = context, parts
        self.state = DrawState()

    def next_batch(self) -> Batch:
        """See the protocol. UserError when the verifier failed on too many responses."""
        return self._context.trainer.broadcast(self._draw())

    def _draw(self) -> Batch:
        context, parts = self._context, self._parts
        params, round_seed = context.params, (context.seed, context.name)

        def draw(first: int, count: int) -> list[Group]:
            draws = problems_in_order(parts.problems, first, count, *round_seed)
            return draw_groups(draws, parts.sampler, parts.verifier, parts.tokenizer, params, *round_seed)

        # The version is the sampler's: one that is stale on purpose draws with older weights than the trainer's, and
        # surplus then waits no longer than other surplus.
        version = parts.sampler.policy_version
        batch = draw_batch(params.dynamic_sampling, params.problems_per_step, version, self.state, draw)
        stop_when_undecided(batch.drawn, parts.abort_undecided_fraction, params.verifier)
        if isinstance(params.verifier, ModelVerifier):
            batch = replace(batch, agreement=parts.verifier.pop_agreement_metrics())
        return batch

    def leftover(self) -> list[Group]:
        """Surplus that still waits."""
        return self.state.carried

    def save(self, folder: Path) -> None:
        """Surplus as JSON, its distributions (where they are kept) as tensors beside it."""
        stored = {
            "cursor": self.state.cursor,
            "signal_fraction": self.state.signal_fraction,
            "carried": [group_to_json(group) for group in self.state.carried],
        }
        write_json(folder / "drawing.json", stored)
        save_file(_distributions(self.state.carried), folder / "distributions.safetensors")

    def load(self, folder: Path) -> None:
        """See the protocol."""
        stored = json.loads((folder / "drawing.json").read_text(encoding="utf-8"))
        carried = [group_from_json(group) for group in stored["carried"]]
        carried = _with_distributions(carried, load_file(folder / "distributions.safetensors"))
        self.state = DrawState(stored["cursor"], stored["signal_fraction"], carried)


class ReceivedBatches:
    """Every other rank's source: what rank 0 drew."""

    def __init__(self, context: RoundContext) -> None:
        self._trainer = context.trainer

    def next_batch(self) -> Batch:
        """See the protocol."""
        return self._trainer.broadcast(None)

    def leftover(self) -> list[Group]:
        """Nothing: rank 0 holds it."""
        return []

    def save(self, folder: Path) -> None:
        """Nothing to keep."""

    def load(self, folder: Path) -> None:
        """Nothing was kept."""


def _distributions(groups: Sequence[Group]) -> dict[str, Tensor]:
    """What the groups' samples keep, by number of group and rollout; empty where they keep none."""
    return {
        f"{number}/{index}": rollout.sample.distributions
        for number, group in enumerate(groups)
        for index, rollout in enumerate(group.rollouts)
        if isinstance(rollout.sample, FullSample)
    }


def _with_distributions(groups: Sequence[Group], kept: Mapping[str, Tensor]) -> list[Group]:
    """The inverse of `_distributions`, on groups that have lost theirs."""

    def whole(rollout: Rollout, key: str) -> Rollout:
        if key not in kept:
            return rollout
        return replace(rollout, sample=FullSample(**vars(rollout.sample), distributions=kept[key]))

    return [
        replace(
            group, rollouts=tuple(whole(one, f"{number}/{index}") for index, one in enumerate(group.rollouts))
        )
        for number, group in enumerate(groups)
    ]
