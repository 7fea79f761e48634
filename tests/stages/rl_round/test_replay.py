"""Training a recorded round again from its schedule and rollouts: equal bytes, without a sampler or a verifier."""

import json
import os
import random
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from stages.__main__ import main
from stages.algorithms.answers.verdicts import Verdict
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from stages.foundations.tables import ROLLOUT, read_table, write_table
from stages.rl_round.loop import in_process
from stages.rl_round.loop.batch_source import SampledBatches
from stages.rl_round.schedule import find_rollouts
from tests.fakes.forks import killed_at_first_checkpoint
from tests.fakes.rounds import (
    COSINE,
    NONE,
    REPLAYED,
    assert_replayed,
    assert_rows_replayed,
    assert_same,
    copied,
    curve,
    kill_after_three_steps,
    replay_params,
)
from tests.fakes.taught_policy import rl_flags, write_params

SIX_STEPS = {"rl_rounds.rl_1.steps": 6}
UNEVEN = {
    "rl.reward": {**COSINE, "r0_correct": 1.0, "rL_correct": 0.3, "r0_wrong": -1.0, "rL_wrong": -0.7, "exceeded": -1.1},
    "rl.overlong": NONE,
    "rl.dynamic_sampling": NONE,
    "rl.advantage": {"kind": "reward"},
    "rl.policy_loss": {"kind": "reinforce"},
    **SIX_STEPS,
}
"""Rewards that float32 cannot hold; the loss gets them unrounded."""


def record(taught, tmp_path, changes, out="recorded"):
    main(rl_flags(taught, write_params(tmp_path / f"{out}.yaml", changes), tmp_path / out))
    return tmp_path / out


@pytest.fixture(scope="module")
def plain(taught, tmp_path_factory):
    """Runs and records a round of six steps with surplus that is carried over."""
    return record(taught, tmp_path_factory.mktemp("plain"), SIX_STEPS)


@pytest.fixture
def no_drawing(monkeypatch):
    """Makes both sampler and verifier unavailable."""
    monkeypatch.setattr(in_process, "build_sampler", None)
    monkeypatch.setattr(in_process, "Verifier", None)


def replay(taught, tmp_path, changes, recorded):
    params = replay_params(tmp_path, changes, copied(recorded, tmp_path / "kept"))
    main(rl_flags(taught, params, tmp_path / "replayed"))
    return tmp_path / "replayed"


def test_a_replay_gives_the_bytes_of_the_round(taught, tmp_path, monkeypatch):
    """Other choices are in test_stage.py."""
    recorded = record(taught, tmp_path, UNEVEN)
    monkeypatch.setattr(in_process, "build_sampler", None)
    monkeypatch.setattr(in_process, "Verifier", None)
    assert_replayed(replay(taught, tmp_path, UNEVEN, recorded), recorded)


def test_a_schedule_says_where_every_group_stands_once(plain):
    rows = curve(plain)
    assert max(int(row["groups/carried"]) for row in rows) > 0
    lines = [json.loads(line) for line in (plain / "schedules/rl_1/schedule.jsonl").read_text().splitlines()]
    assert [line.get("step") for line in lines] == [None, *range(1, 7), None]
    frame = read_table(plain / "rl_1.parquet", ROLLOUT)
    for line, row in zip(lines[1:-1], rows, strict=True):
        assert len(line["groups"]) == int(row["groups/trained"])
        assert len(line["drawn"]) == int(row["groups/drawn"])
    groups = [group for line in lines for fate in ("groups", "left_out", "leftover") for group in line.get(fate, [])]
    for group in groups:
        part = frame.iloc[group["first_row"] : group["first_row"] + group["rows"]]
        assert set(part["problem_id"]) == {group["problem_id"]}
        assert list(part["sample_index"]) == list(range(8))
    names = {(group["problem_id"], group["draw"]) for group in groups}
    assert len(names) == len(groups) == len(frame) / 8


def test_fewer_steps_replay_the_beginning(plain, taught, tmp_path, no_drawing):
    short = replay(taught, tmp_path, {"rl_rounds.rl_1.steps": 3}, plain)
    assert len(curve(short)) == 3
    assert_rows_replayed(short, plain)
    frame, whole = (read_table(out / "rl_1.parquet", ROLLOUT) for out in (short, plain))
    trained = whole[(whole["step"] <= 3) & whole["is_trained"]].reset_index(drop=True)
    assert frame[frame["is_trained"]].reset_index(drop=True).equals(trained)


def test_a_replay_that_was_stopped_goes_on_from_its_checkpoint(plain, taught, tmp_path, monkeypatch, no_drawing):
    params = replay_params(tmp_path, SIX_STEPS, copied(plain, tmp_path / "kept"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        kill_after_three_steps(patch)
        main(rl_flags(taught, params, tmp_path / "replayed"))
    main(rl_flags(taught, params, tmp_path / "replayed"))
    assert_same(tmp_path / "replayed", plain, REPLAYED)


class LateBatches(SampledBatches):
    """Gives batches as an asynchronous loop may: mixed versions and ages, out of order, groups that lack a member."""

    late: ClassVar[list] = []

    def _draw(self):
        batch = super()._draw()
        fresh = [self._short(group) for group in batch.groups]
        waiting = [*fresh, *self.late]
        random.Random(self.state.cursor.place).shuffle(waiting)
        taken, LateBatches.late = waiting[:3], waiting[3:]
        drawn, left_out = ([self._short(group) for group in part] for part in (batch.drawn, batch.left_out))
        return replace(batch, groups=taken, drawn=drawn, left_out=left_out, newest_version=self.state.cursor.place % 3)

    def _short(self, group):
        return replace(group, rollouts=group.rollouts[: 8 - (group.draw + int(group.problem_id[1:])) % 2])

    def leftover(self):
        return [*self.late, *map(self._short, super().leftover())]


def test_a_schedule_that_no_rule_gives_is_replayed_too(taught, tmp_path, monkeypatch):
    changes = {**SIX_STEPS, "rl.checkpoint_every_steps": 100}
    monkeypatch.setattr(LateBatches, "late", [])
    monkeypatch.setattr(in_process, "SampledBatches", LateBatches)
    recorded = record(taught, tmp_path, changes)
    frame = read_table(recorded / "rl_1.parquet", ROLLOUT)
    trained = frame[frame["is_trained"]].groupby("step")["policy_version"]
    assert max(trained.nunique()) > 1 and set(frame.groupby(["problem_id", "step"]).size()) & {7, 14}
    assert_same(replay(taught, tmp_path, changes, recorded), recorded, ["rl_1"])
    for step in range(1, 7):
        there, here = (
            read_table(out / "rl_1.parquet", ROLLOUT).query(f"step == {step}").reset_index(drop=True)
            for out in (recorded, tmp_path / "replayed")
        )
        assert here.equals(there)


@pytest.mark.slow
def test_a_replay_that_was_killed_gives_the_same_weights(taught, tmp_path, capfd):
    recorded = record(taught, tmp_path, {})
    params = replay_params(tmp_path, {}, copied(recorded, tmp_path / "kept"))
    flags = rl_flags(taught, params, tmp_path / "replayed")
    command = [sys.executable, "-m", "stages", *flags]
    assert killed_at_first_checkpoint(command, dict(os.environ), tmp_path / "state")
    main(flags)
    assert "resuming from step" in capfd.readouterr().err
    assert_same(tmp_path / "replayed", recorded, REPLAYED)


class SlowVerifier(Verifier):
    """The rules, with a timeout on every fifth response."""

    def judge(self, pairs, truncated=None, require_marker=False):
        judged = super().judge(pairs, truncated, require_marker)
        return [replace(one, verdict=Verdict.TIMED_OUT) if n % 5 == 2 else one for n, one in enumerate(judged)]


def test_members_without_a_verdict_stay_out_of_training_again(taught, tmp_path, monkeypatch):
    changes = {**SIX_STEPS, "verifier.abort_undecided_fraction": 1.0}
    monkeypatch.setattr(in_process, "Verifier", SlowVerifier)
    recorded = record(taught, tmp_path, changes)
    monkeypatch.setattr(in_process, "Verifier", None)
    frame = read_table(recorded / "rl_1.parquet", ROLLOUT)
    trained = frame.groupby(["problem_id", "step"])["is_trained"].transform("any")
    undecided = frame["verdict"] == "timed_out"
    assert (trained & undecided).sum() > 5 and not (frame["is_trained"] & undecided).any()
    assert_replayed(replay(taught, tmp_path, changes, recorded), recorded)


def test_a_round_without_any_update_is_replayed(taught, tmp_path):
    """Every verdict is wrong, so dynamic sampling leaves out all groups."""
    changes = {"rl_rounds.rl_1.steps": 3, "rl.max_response_tokens": 3}
    recorded = record(taught, tmp_path, changes)
    assert all(row["groups/trained"] == 0 for row in curve(recorded))
    assert_replayed(replay(taught, tmp_path, changes, recorded), recorded)


def test_the_table_is_found_as_a_project_has_it_and_a_folder_may_hold_several_rounds(plain, taught, tmp_path):
    data = tmp_path / "kept"
    shutil.copytree(plain / "schedules" / "rl_1", data / "schedules" / "rl_1")
    (data / "rollouts").mkdir()
    shutil.copy(plain / "rl_1.parquet", data / "rollouts" / "rl_1.parquet")
    params = replay_params(tmp_path, {"rl_rounds.rl_1.steps": 1}, data / "schedules")
    main(rl_flags(taught, params, tmp_path / "replayed"))
    assert len(curve(tmp_path / "replayed")) == 1


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rl.minibatches": 1}, r"of another round: rl\.minibatches \(2 there, 1 here\) differ"),
        ({"seed": 1}, r"seed \(0 there, 1 here\)"),
        ({"trainer.threads": 2}, r"trainer\.threads \(1 there, 2 here\)"),
        (
            {"rl.minibatches": 1, "rl.temperature": 0.5, "rl.max_gradient_norm": 2.0, "rl_rounds.rl_1.warmup_steps": 2},
            r"rl\.minibatches \(2 there, 1 here\), rl\.temperature \(1\.0 there, 0\.5 here\) and 1 more differ",
        ),
        ({"rl_rounds.rl_1.steps": 7}, r"rl_rounds\.rl_1\.steps is 7, and .* has recorded 6: lower it"),
    ],
)
def test_a_schedule_of_another_recipe_says_in_what_it_differs(changes, told, plain, taught, tmp_path):
    params = replay_params(tmp_path, {**SIX_STEPS, **changes}, copied(plain, tmp_path / "kept"))
    with pytest.raises(UserError, match=told):
        main(rl_flags(taught, params, tmp_path / "replayed"))
    assert not (tmp_path / "replayed").exists()


def refusal(taught, tmp_path, folder, policy="sft"):
    flags = rl_flags(taught, replay_params(tmp_path, SIX_STEPS, folder), tmp_path / "replayed")
    flags[flags.index("--policy") + 1] = str(taught / policy)
    with pytest.raises(UserError) as told:
        main(flags)
    return str(told.value)


def test_a_schedule_that_is_missing_or_the_rounds_own_is_told(plain, taught, tmp_path):
    assert "holds neither schedule.jsonl nor rl_1/schedule.jsonl" in refusal(taught, tmp_path, tmp_path / "none")
    folder = copied(plain, tmp_path / "replayed" / "schedules" / "rl_1")
    assert "which this round writes: copy schedule and rollouts to another folder" in refusal(taught, tmp_path, folder)
    assert (folder / "schedule.jsonl").exists()


def test_another_policy_and_rollouts_that_are_missing_or_changed_are_told(plain, taught, tmp_path):
    folder = copied(plain, tmp_path / "kept" / "schedules" / "one")
    assert re.search(r"policy \(\w+\.dir there, \w+\.dir here\) differ", refusal(taught, tmp_path, folder, "base"))
    frame = read_table(folder / "rollouts.parquet", ROLLOUT)
    write_table(frame[::-1], folder / "rollouts.parquet", ROLLOUT)
    assert "is not the table that was written with" in refusal(taught, tmp_path, folder)
    (folder / "rollouts.parquet").unlink()
    assert "rollouts of" in (told := refusal(taught, tmp_path, folder)) and "are missing: put the table" in told


def shift_rows(lines):
    step = json.loads(lines[1])
    groups = [group | {"first_row": group["first_row"] + 1} for group in step["groups"]]
    return [lines[0], json.dumps(step | {"groups": groups, "drawn": []}), *lines[2:]]


@pytest.mark.parametrize(
    ("tear", "told"),
    [
        (lambda lines: [*lines[:-1], lines[-1][:5]], "torn or changed at line 8 (Unterminated string"),
        (lambda lines: lines[:-1], "torn or changed at line 7 (no line after it says"),
        (lambda lines: [*lines[:3], *lines[4:]], "torn or changed at line 4 (it is of step 4, not 3)"),
        (lambda lines: [lines[0].replace('"format": 1', '"format": 9'), *lines[1:]], "no schedule of format 1"),
        (lambda lines: [], "no schedule of format 1"),
        (lambda lines: [*lines[:2], '{"step": 2}', *lines[3:]], "torn or changed at line 3 (KeyError: 'groups')"),
        (shift_rows, "schedule and table are not of one round"),
    ],
)
def test_a_torn_schedule_names_the_line(tear, told, plain, taught, tmp_path):
    folder = copied(plain, tmp_path / "kept")
    file = folder / "schedule.jsonl"
    file.write_text("\n".join(tear(file.read_text().splitlines())))
    assert told in refusal(taught, tmp_path, folder)


def test_a_schedule_may_lie_in_a_folder_of_the_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    schedule = Path("recorded/schedule.jsonl")
    schedule.parent.mkdir()
    with pytest.raises(UserError, match=r"written at recorded/rollouts\.parquet"):
        find_rollouts(schedule, "rl_1")
    (table := schedule.with_name("rollouts.parquet")).touch()
    assert find_rollouts(schedule, "rl_1") == table
