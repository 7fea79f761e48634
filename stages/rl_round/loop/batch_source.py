"""Sources of the batch of a step: the interface, and the source of the synchronous loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.rl_round.drawing import DrawState, GroupDrawing, abort_on_verifier_failures, draw_batch
from stages.rl_round.methods import ModelVerifier
from stages.rl_round.problem_order import ProblemCursor, problems_at
from stages.rl_round.records import Batch, Group, pack_groups, unpack_groups
from stages.rl_round.round import Round


class BatchSource:
    """Gives rank 0 the batch of the next step. All methods are collective.

    This base class serves ranks that draw nothing and wait for their share of rank 0's batch.
    """

    def next_batch(self) -> Batch | None:
        """Returns the batch of the next step; None on every rank but 0."""
        return None

    def leftover(self) -> list[Group]:
        """Returns finished groups that no step has taken; empty on ranks that hold none."""
        return []

    def save(self, folder: Path) -> None:
        """Writes the state that `load` needs to resume bit for bit into a checkpoint's folder."""

    def load(self, folder: Path) -> None:
        """Restores the state that `save` wrote."""


class SampledBatches(BatchSource):
    """The source of the synchronous loop: every rank samples its share of the groups with its sampler's weights.

    Rank 0 decides which problems are drawn and makes the batch; the others follow.
    """

    def __init__(self, this_round: Round, drawing: GroupDrawing) -> None:
        self._round, self._drawing, self._trainer = this_round, drawing, this_round.trainer
        self.state = DrawState()
        """Of rank 0."""
        self._judged: list[tuple[Verdict, Verdict]] = []
        """Of rank 0: verdicts of a model and of the rules in this step."""

    def next_batch(self) -> Batch | None:
        """Samples and returns the batch. UserError when the verifier failed on too many responses."""
        sampler, trainer = self._drawing.sampler, self._trainer
        # Still asleep: the last step changed no weights, so `WeightSync.push` loaded none.
        if sampler.is_asleep:
            sampler.load_weights(trainer.named_weights(), sampler.policy_version)
        batch = self._lead() if trainer.rank == 0 else self._follow()
        # Frees the sampler's memory for training.
        sampler.sleep()
        return batch

    def _lead(self) -> Batch:
        """Requests draws on rank 0 until the batch is complete, then broadcasts that, or the error."""
        batch, most = self._draw(), self._round.verifier_params.abort_undecided_fraction
        try:
            abort_on_verifier_failures(batch.drawn, most, self._round.params.verifier)
        # Broadcast before raising: the other ranks wait for the next draw, and would wait forever.
        except UserError as error:
            self._trainer.broadcast(error)
            raise
        self._trainer.broadcast(None)
        return batch

    def _follow(self) -> None:
        # Places request draws, None means that the batch is complete, an error ends the round on every rank.
        while (request := self._trainer.broadcast(None)) is not None:
            if isinstance(request, UserError):
                raise request
            self._draw_share(request)

    def _draw(self) -> Batch:
        params = self._round.params

        def draw(count: int) -> list[Group]:
            places = self.state.cursor.advance(count, self._round.problems, self._round.seed, self._round.name)
            # Numbers are enough: every rank has the problems and their order.
            self._trainer.broadcast(places)
            groups = self._draw_share(places)
            self.state.cursor.count(groups, self._round.settings.prompt_selection)
            return groups

        # The version is the sampler's: a sampler that is stale on purpose has older weights than the trainer. So its
        # surplus groups expire at the same age as those of other samplers.
        version = self._drawing.sampler.policy_version
        batch = draw_batch(params.dynamic_sampling, params.problems_per_step, version, self.state, draw)
        # A batch that only surplus filled called no judge: its row then has no agreement.
        judged, self._judged = self._judged, []
        return replace(batch, agreement=agreement_metrics(judged))

    def _draw_share(self, places: Sequence[int]) -> list[Group]:
        """Samples this rank's share of the draws at these places of the round; rank 0 gets all groups."""
        seed_path = self._round.seed, self._round.name
        draws = problems_at(self._round.problems, places, *seed_path)
        groups = self._drawing.draw(draws, self._round.params, *seed_path)
        if isinstance(self._round.params.verifier, ModelVerifier):
            pairs = self._drawing.verifier.pop_judged()
            self._judged += [pair for of_rank in self._trainer.gather_to_first(pairs) for pair in of_rank]
        return groups

    def leftover(self) -> list[Group]:
        return self.state.carried

    def save(self, folder: Path) -> None:
        if self._trainer.rank != 0:
            return
        # The signal fraction too: it decides the size of the next draw, and another size would change the round.
        stored = {"cursor": asdict(self.state.cursor), "signal_fraction": self.state.signal_fraction}
        write_json(folder / "drawing.json", stored)
        (folder / "carried.parquet").write_bytes(pack_groups(self.state.carried))

    def load(self, folder: Path) -> None:
        if self._trainer.rank != 0:
            return
        stored = json.loads((folder / "drawing.json").read_text(encoding="utf-8"))
        carried = unpack_groups((folder / "carried.parquet").read_bytes())
        self.state = DrawState(ProblemCursor(**stored["cursor"]), stored["signal_fraction"], carried)


def agreement_metrics(pairs: Sequence[tuple[Verdict, Verdict]]) -> dict[str, float]:
    """Returns how a judge's verdicts compare with those of the rules; empty when the judge was not called.

    Agreement means that both say correct or both do not, among responses that both have decided.
    """
    decided = [pair for pair in pairs if not any(verdict.is_failure for verdict in pair)]
    # Wrong and unparsed count as the same: agreement is on whether the response earns the reward for "correct".
    correct = [tuple(verdict is Verdict.CORRECT for verdict in pair) for pair in decided]
    if not decided:
        return {}
    return {
        "verdict/rule_agreement_fraction": sum(one == other for one, other in correct) / len(correct),
        "verdict/false_correct_fraction": sum(one and not other for one, other in correct) / len(correct),
        "verdict/false_wrong_fraction": sum(other and not one for one, other in correct) / len(correct),
    }
