"""Where the batch of a step comes from: an interface, and the source of the synchronous loop."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from stages.algorithms.answers.verdicts import Verdict
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.rl_round.drawing import DrawState, GroupDrawing, abort_on_verifier_failures, draw_batch, problems_in_order
from stages.rl_round.methods import ModelVerifier
from stages.rl_round.records import Batch, Group, pack_groups, unpack_groups
from stages.rl_round.round import Round


class BatchSource:
    """Gives rank 0 the batch of the next step. All methods are collective.

    As it is, it is that of a rank which draws nothing and waits for its share of what rank 0 brings.
    """

    def next_batch(self) -> Batch | None:
        """What the next step trains on; None on every rank but 0."""
        return None

    def leftover(self) -> list[Group]:
        """Finished groups that no step has taken; empty on ranks that hold none."""
        return []

    def save(self, folder: Path) -> None:
        """Writes what `load` needs to go on bit for bit into a checkpoint's folder."""

    def load(self, folder: Path) -> None:
        """Takes back what `save` wrote."""


class SampledBatches(BatchSource):
    """The source of the synchronous loop: every rank draws a share of the problems from its sampler's present weights.

    Rank 0 says which problems are drawn and makes the batch; the others follow.
    """

    def __init__(self, this_round: Round, drawing: GroupDrawing) -> None:
        self._round, self._drawing, self._trainer = this_round, drawing, this_round.trainer
        self.state = DrawState()
        """Rank 0's."""
        self._judged: list[tuple[Verdict, Verdict]] = []
        """Rank 0's: verdicts of a model and of the rules, of this step."""

    def next_batch(self) -> Batch | None:
        """UserError when the verifier failed on too many responses."""
        sampler, trainer = self._drawing.sampler, self._trainer
        # Asleep still: the last step has changed no weights, so `WeightSync.push` has brought none.
        if sampler.is_asleep:
            sampler.load_weights(trainer.named_weights(), sampler.policy_version)
        batch = self._lead() if trainer.rank == 0 else self._follow()
        # Training has the memory now.
        sampler.sleep()
        return batch

    def _lead(self) -> Batch:
        """Rank 0 asks for draws until it has a batch, and says so; or why there is none."""
        batch, most = self._draw(), self._round.verifier_params.abort_undecided_fraction
        try:
            abort_on_verifier_failures(batch.drawn, most, self._round.params.verifier)
        # Told to the others first: they wait for the next draw, and would wait for ever.
        except UserError as error:
            self._trainer.broadcast(error)
            raise
        self._trainer.broadcast(None)
        return batch

    def _follow(self) -> None:
        # A pair asks for draws, None says that the batch is whole, an error ends the round on every rank.
        while (request := self._trainer.broadcast(None)) is not None:
            if isinstance(request, UserError):
                raise request
            self._draw_share(*request)

    def _draw(self) -> Batch:
        params = self._round.params

        def draw(first: int, count: int) -> list[Group]:
            # Two numbers are enough: every rank has the problems and their order.
            self._trainer.broadcast((first, count))
            return self._draw_share(first, count)

        # The version is the sampler's. One that is stale on purpose draws with older weights than the trainer's, so its
        # surplus expires at the same age as everyone else's.
        version = self._drawing.sampler.policy_version
        batch = draw_batch(params.dynamic_sampling, params.problems_per_step, version, self.state, draw)
        # A batch that surplus alone has filled asked no judge: its row then has no agreement.
        judged, self._judged = self._judged, []
        return replace(batch, agreement=agreement_metrics(judged))

    def _draw_share(self, first: int, count: int) -> list[Group]:
        """This rank's share of the draws `first` to `first + count` of the round; on rank 0 the groups of all."""
        seed_path = self._round.seed, self._round.name
        draws = problems_in_order(self._round.problems, first, count, *seed_path)
        groups = self._drawing.draw(draws, self._round.params, *seed_path)
        if isinstance(self._round.params.verifier, ModelVerifier):
            pairs = self._drawing.verifier.pop_judged()
            self._judged += [pair for of_rank in self._trainer.gather_to_first(pairs) for pair in of_rank]
        return groups

    def leftover(self) -> list[Group]:
        """Surplus that still waits."""
        return self.state.carried

    def save(self, folder: Path) -> None:
        if self._trainer.rank != 0:
            return
        # The signal fraction too: it sizes the next draw, and another size would be another round.
        stored = {"cursor": self.state.cursor, "signal_fraction": self.state.signal_fraction}
        write_json(folder / "drawing.json", stored)
        (folder / "carried.parquet").write_bytes(pack_groups(self.state.carried))

    def load(self, folder: Path) -> None:
        if self._trainer.rank != 0:
            return
        stored = json.loads((folder / "drawing.json").read_text(encoding="utf-8"))
        carried = unpack_groups((folder / "carried.parquet").read_bytes())
        self.state = DrawState(**stored, carried=carried)


def agreement_metrics(pairs: Sequence[tuple[Verdict, Verdict]]) -> dict[str, float]:
    """How a judge's verdicts compare with those of the rules; empty when none was asked.

    Agreement is on correct or not, among those that both have decided.
    """
    decided = [pair for pair in pairs if not any(verdict.is_failure for verdict in pair)]
    # Wrong and unparsed are one here: what counts is whether a reward for "correct" was earned.
    correct = [tuple(verdict is Verdict.CORRECT for verdict in pair) for pair in decided]
    if not decided:
        return {}
    return {
        "verdict/rule_agreement_fraction": sum(one == other for one, other in correct) / len(correct),
        "verdict/false_correct_fraction": sum(one and not other for one, other in correct) / len(correct),
        "verdict/false_wrong_fraction": sum(other and not one for one, other in correct) / len(correct),
    }
