"""Where the batch of a step comes from: an interface, and the source of the synchronous loop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from safetensors.torch import load_file, save_file
from torch import Tensor

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import FullSample
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.rl_round.methods import ModelVerifier
from stages.rl_round.rollouts.dynamic_sampling import DrawState, draw_batch, problems_in_order
from stages.rl_round.rollouts.group_drawing import GroupDrawing, stop_when_undecided
from stages.rl_round.rollouts.records import Batch, Group, Problem, Rollout, group_from_json, group_to_json
from stages.rl_round.task import RoundContext


class BatchSource(Protocol):
    """Gives rank 0 the batch of the next step. All methods are collective."""

    def next_batch(self) -> Batch | None:
        """What the next step trains on; None on every rank but 0."""

    def leftover(self) -> list[Group]:
        """Finished groups that no step has taken; empty on ranks that hold none."""

    def save(self, folder: Path) -> None:
        """Writes what `load` needs to go on bit for bit into a checkpoint's folder."""

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote."""


@dataclass(frozen=True)
class RolloutParts:
    """What a round draws from, and what it draws with."""

    problems: Sequence[Problem]
    drawing: GroupDrawing
    abort_undecided_fraction: float


class SampledBatches:
    """The source of the synchronous loop: every rank draws a share of the problems from its sampler's present weights.

    Rank 0 says which problems are drawn and makes the batch; the others do as they are told.
    """

    def __init__(self, context: RoundContext, parts: RolloutParts) -> None:
        self._context, self._parts = context, parts
        self.state = DrawState()
        """Rank 0's."""
        self._judged: list[tuple[Verdict, Verdict]] = []
        """Rank 0's: verdicts of a model and of the rules, of this step."""

    def next_batch(self) -> Batch | None:
        """See the protocol. UserError when the verifier failed on too many responses."""
        sampler, trainer = self._parts.drawing.sampler, self._context.trainer
        if sampler.is_resting:  # the last step has changed no weights, so none were brought
            sampler.load_weights(trainer.named_weights(), sampler.policy_version)
        batch = self._lead() if trainer.rank == 0 else self._follow()
        sampler.rest()  # training has the memory now
        return batch

    def _lead(self) -> Batch:
        """Rank 0 asks for draws until it has a batch, and says so; or why there is none."""
        trainer, parts = self._context.trainer, self._parts
        batch = self._draw()
        try:
            stop_when_undecided(batch.drawn, parts.abort_undecided_fraction, self._context.params.verifier)
        except UserError as error:
            trainer.broadcast(error)
            raise
        trainer.broadcast(None)
        return batch

    def _follow(self) -> None:
        while (asked := self._context.trainer.broadcast(None)) is not None:
            if isinstance(asked, UserError):
                raise asked
            self._draw_share(*asked)

    def _draw(self) -> Batch:
        params, parts = self._context.params, self._parts

        def draw(first: int, count: int) -> list[Group]:
            self._context.trainer.broadcast((first, count))
            return self._draw_share(first, count)

        # The version is the sampler's: one that is stale on purpose draws with older weights than the trainer's, and
        # surplus then waits no longer than other surplus.
        version = parts.drawing.sampler.policy_version
        batch = draw_batch(params.dynamic_sampling, params.problems_per_step, version, self.state, draw)
        judged, self._judged = self._judged, []
        return replace(batch, agreement=agreement_metrics(judged))

    def _draw_share(self, first: int, count: int) -> list[Group]:
        """This rank's share of the draws `first` to `first + count` of the round; on rank 0 the groups of all."""
        context, drawing = self._context, self._parts.drawing
        seed_parts = context.seed, context.name
        draws = problems_in_order(self._parts.problems, first, count, *seed_parts)
        groups = drawing.draw(draws, context.params, *seed_parts)
        if isinstance(context.params.verifier, ModelVerifier):
            pairs = drawing.verifier.pop_judged()
            self._judged += [pair for of_rank in context.trainer.gather_to_first(pairs) for pair in of_rank]
        return groups

    def leftover(self) -> list[Group]:
        """Surplus that still waits."""
        return self.state.carried

    def save(self, folder: Path) -> None:
        """Surplus as JSON, its distributions (where they are kept) as tensors beside it."""
        if self._context.trainer.rank != 0:
            return
        stored = {
            "cursor": self.state.cursor,
            "signal_fraction": self.state.signal_fraction,
            "carried": [group_to_json(group) for group in self.state.carried],
        }
        write_json(folder / "drawing.json", stored)
        save_file(_distributions(self.state.carried), folder / "distributions.safetensors")

    def load(self, folder: Path) -> None:
        """See the protocol."""
        if self._context.trainer.rank != 0:
            return
        stored = json.loads((folder / "drawing.json").read_text(encoding="utf-8"))
        carried = [group_from_json(group) for group in stored["carried"]]
        carried = _with_distributions(carried, load_file(folder / "distributions.safetensors"))
        self.state = DrawState(stored["cursor"], stored["signal_fraction"], carried)


class NoBatches:
    """The source of a rank that draws nothing and waits for its share of what rank 0 brings."""

    def next_batch(self) -> None:
        """See the protocol."""

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
        replace(group, rollouts=tuple(whole(one, f"{number}/{index}") for index, one in enumerate(group.rollouts)))
        for number, group in enumerate(groups)
    ]


def agreement_metrics(pairs: Sequence[tuple[Verdict, Verdict]]) -> dict[str, float]:
    """How a judge's verdicts compare with those of the rules; empty when none was asked.

    Agreement is on correct or not, among those that both have decided.
    """
    decided = [pair for pair in pairs if not any(verdict.is_failure for verdict in pair)]
    correct = [tuple(verdict is Verdict.CORRECT for verdict in pair) for pair in decided]
    if not decided:
        return {}
    return {
        "verdict/rule_agreement_fraction": sum(one == other for one, other in correct) / len(correct),
        "verdict/false_correct_fraction": sum(one and not other for one, other in correct) / len(correct),
        "verdict/false_wrong_fraction": sum(other and not one for one, other in correct) / len(correct),
    }
