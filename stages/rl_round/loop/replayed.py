"""The source of a replay: the batches that a recorded round trained on, from its schedule and its rollouts table.

No sampler, verifier, environment or custom function is used. Rewards are computed again from verdict and length,
because the table rounds them to float32; those of custom functions and environments are in the schedule. Log-probs and
tokens come from the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pandas

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.episodes import episode_of
from stages.engines.samplers.protocol import Sample, StopReason
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of, write_json
from stages.foundations.tables import ROLLOUT, read_table
from stages.rl_round.drawing import recorded_rollout
from stages.rl_round.loop.batch_source import BatchSource
from stages.rl_round.loop.round_log import identity_of
from stages.rl_round.params import RlParams
from stages.rl_round.records import Batch, Group, Rollout
from stages.rl_round.round import Round
from stages.rl_round.schedule import PlacedGroup, Schedule, ScheduledStep, read_schedule, refuse_other_round


class ReplayedBatches(BatchSource):
    """The source on rank 0: batches of the recorded round."""

    def __init__(self, this_round: Round, schedule: Schedule, rollouts: pandas.DataFrame) -> None:
        self._params, self._schedule, self._rollouts = this_round.params, schedule, rollouts
        self._prompts = {problem.problem_id: problem.prompt for problem in this_round.problems}
        used = [group for step in schedule.steps for group in (*step.groups, *step.left_out)]
        self._by_first_row = {group.first_row: group for group in (*used, *schedule.leftover)}
        self._steps = 0
        self._waiting: dict[int, PlacedGroup] = {}
        """Groups drawn in these steps and not yet used, by first row, oldest first."""

    def next_batch(self) -> Batch:
        step = self._schedule.steps[self._steps]
        # Counted before the step is passed: of the groups it left out, only surplus of earlier steps waits already.
        too_stale = sum(placed.first_row in self._waiting for placed in step.left_out)
        self._go_past(step)
        return Batch(
            [self._group(placed) for placed in step.groups],
            [self._group(self._by_first_row[first_row]) for first_row in step.drawn],
            [self._group(placed) for placed in step.left_out],
            draws=step.draws,
            too_stale=too_stale,
            carried=len(self._waiting),
            signal_fraction=step.signal_fraction,
            newest_version=step.newest_version,
        )

    def leftover(self) -> list[Group]:
        """Returns the groups that the recorded round had drawn by this step and not yet used."""
        return [self._group(placed) for placed in self._waiting.values()]

    def save(self, folder: Path) -> None:
        """Writes only the step: everything else is read again from the recorded files."""
        write_json(folder / "replay.json", {"steps": self._steps})

    def load(self, folder: Path) -> None:
        steps = json.loads((folder / "replay.json").read_text(encoding="utf-8"))["steps"]
        # The groups that wait after these steps follow from the schedule, so a checkpoint only has the steps' number.
        for step in self._schedule.steps[:steps]:
            self._go_past(step)

    def _go_past(self, step: ScheduledStep) -> None:
        self._steps += 1
        # Added first, then removed: a step uses most of the groups that it draws.
        self._waiting |= {first_row: self._by_first_row[first_row] for first_row in step.drawn}
        for placed in (*step.groups, *step.left_out):
            self._waiting.pop(placed.first_row, None)

    def _group(self, placed: PlacedGroup) -> Group:
        rows = self._rollouts.iloc[placed.first_row : placed.first_row + placed.rows].to_dict("records")
        there = [(row["problem_id"], row["sample_index"]) for row in rows]
        if there != [(placed.problem_id, index) for index in range(placed.rows)]:
            raise UserError(
                f"the schedule's group of {placed.problem_id} is not in rows {placed.first_row} to "
                f"{placed.first_row + placed.rows} of the rollouts: schedule and table are not of one round, copy both "
                "again"
            )
        custom = placed.custom or [{}] * placed.rows
        rollouts = tuple(_rollout(row, self._params, one) for row, one in zip(rows, custom, strict=True))
        return Group(placed.problem_id, self._prompts[placed.problem_id], rollouts, placed.draw)


def _rollout(row: Mapping, params: RlParams, custom: Mapping) -> Rollout:
    # Without an episode, a table only says whether the limit truncated a response; training uses no other stop reason.
    stop, episode = StopReason.MAX_TOKENS if row["is_truncated"] else StopReason.END_OF_SEQUENCE, episode_of(row)
    stop = StopReason(row["ending"]) if episode else stop
    tokens = row["token_ids"].tolist(), row["rollout_logprobs"].tolist()
    sample = Sample(*tokens, stop, row["policy_version"], episode)
    return recorded_rollout(sample, row["response"], Verdict(row["verdict"]), params, custom)


def open_replay(this_round: Round) -> ReplayedBatches:
    """Returns the source for the schedule and the table that `rl.loop.schedule` names.

    UserError when the schedule is from another round, has fewer steps than this one, or is torn. Also when the table
    was not written with the schedule.
    """
    path, rollouts = this_round.attempt.inputs["schedule"], this_round.attempt.inputs["rollouts"]
    schedule = read_schedule(path)
    refuse_other_round(path, schedule.identity, identity_of(this_round))
    steps = this_round.settings.steps
    if len(schedule.steps) < steps:
        raise UserError(
            f"rl_rounds.{this_round.name}.steps is {steps}, and {path} has recorded {len(schedule.steps)}: "
            "lower it, or name a longer schedule"
        )
    if sha256_of(rollouts) != schedule.rollouts_sha256:
        raise UserError(f"{rollouts} is not the table that was written with {path}: copy both again from one round")
    return ReplayedBatches(this_round, schedule, read_table(rollouts, ROLLOUT))
