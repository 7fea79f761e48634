"""Whole asynchronous rounds on a tiny policy, with real processes that die: a round learns, ends, and replays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from stages.__main__ import main
from stages.engines.trainers.checkpoints import Checkpoints
from stages.foundations.files import dvc_md5
from stages.foundations.machine import PROJECT
from stages.foundations.tables import ROLLOUT, read_table
from stages.rl_round.asynchronous.journal import Journal
from tests.fakes.held_out import held_out_accuracy
from tests.fakes.processes import assert_becomes, those_with, wait_until
from tests.fakes.rounds import ASYNCHRONOUS, WEIGHTS, copied, curve, replay_params
from tests.fakes.taught_policy import rl_flags, write_params
from tests.stages.rl_round.asynchronous.chrome_trace import problems_of

pytestmark = pytest.mark.timeout(1800)

STEPS = 8
LOOP = ASYNCHRONOUS | {"repack": {"kind": "best_fit", "every_seconds": 0.2, "batch_bound": 64}}
CHANGES = {"rl.proximal": "recompute", "rl.rollout_correction": WEIGHTS, "rl_rounds.rl_1.steps": STEPS}
TAUGHT = {**CHANGES, "rl_rounds.rl_1.distillation": {"coefficient": 0.01}}
CUSTOM = {**CHANGES, "rl.reward": {"kind": "function", "file": "custom/brevity.py", "name": "score"}}


EVALUATION = {"every_steps": 3, "problems": 8, "samples": 4, "temperature": 1.0, "keep": "last", "patience": None}


def asynchronous_params(path, replicas=2, settings=CHANGES, **loop):
    changes = {"rl.loop": {**LOOP, **loop}, "sampler.replicas": {"kind": "ray", "count": replicas}}
    changes["rl.evaluation"] = EVALUATION  # whatever dies, it has the same points
    return write_params(path, {**settings, **changes})


def environment(folder):
    settings = {"RETRACE_STATE": str(folder / "state"), "RETRACE_TRACKING": "off", "PYTHONPATH": str(PROJECT)}
    return {**os.environ, **settings}


def start(taught, params, folder):
    """Starts a round with its output in a file: no process reads a pipe meanwhile, and a full pipe would block it."""
    flags = rl_flags(taught, params, folder / "out")
    command = [sys.executable, "-X", "faulthandler", "-m", "stages", *flags]
    with open(folder / "said.log", "w") as said:
        return subprocess.Popen(command, env=environment(folder), stderr=said, cwd=folder)


def said(folder):
    return (folder / "said.log").read_text()


def replayed(taught, folder, settings):
    """Returns the weights that a replay of the round's schedule gives."""
    params = replay_params(folder, settings, copied(folder / "out", folder / "recorded"))
    main(rl_flags(taught, params, folder / "replayed"))
    return dvc_md5(folder / "replayed/rl_1")


def actors(process, name):
    family = psutil.Process(process.pid).children(recursive=True)
    return those_with(lambda child: (child.cmdline() or [""])[0].startswith(f"ray::{name}"), family)


def wait_for(condition, process, folder):
    """Raises AssertionError with the process's output if it ends early, and also with stacks after ten minutes."""
    try:
        wait_until(lambda: condition() or process.poll() is not None, 600)
    except AssertionError:
        process.send_signal(signal.SIGABRT)  # makes faulthandler print each thread's stack
        process.wait()
    assert condition(), said(folder)


def wait_for_end(process, folder):
    wait_for(lambda: process.poll() is not None, process, folder)
    assert process.returncode == 0, said(folder)


JOURNALS = "state/scratch/rl_round-*/journal/records"


def journal_bytes(folder):
    return sum(path.stat().st_size for path in folder.glob(JOURNALS))


def stepped(folder):
    return sum(path.read_bytes().count(b'"kind":"stepped"') for path in folder.glob(JOURNALS))


def first_checkpoint(folder):
    """Returns the lowest step that has a checkpoint."""
    found = folder.glob("state/scratch/rl_round-*/step-*")
    return min(int(checkpoint.name.rpartition("-")[2]) for checkpoint in found)


def check_round(taught, folder, window=2, settings=CHANGES):
    """Asserts the properties of every asynchronous round, whatever happened in it."""
    frame = read_table(folder / "out/rl_1.parquet", ROLLOUT)
    lines = [json.loads(line) for line in (folder / "out/schedules/rl_1/schedule.jsonl").open()]
    steps = [line for line in lines if "step" in line]
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    groups = [group for line in lines for fate in ("groups", "left_out", "leftover") for group in line.get(fate, [])]
    assert len({(group["problem_id"], group["draw"]) for group in groups}) == len(groups)
    assert sum(group["rows"] for group in groups) == len(frame)
    assert [len(line["groups"]) for line in steps] == [4] * STEPS
    trained = frame[frame["is_trained"]]
    assert (trained["step"] - 1 - trained["policy_version"]).between(0, window).all()
    assert replayed(taught, folder, settings) == dvc_md5(folder / "out/rl_1")
    trace = json.loads((folder / "out/schedules/rl_1/timeline.json").read_text())
    assert trace["otherData"]["seconds"]["trainer"]["train"] > 0
    assert problems_of(folder / "out/schedules/rl_1/timeline.json") == []
    return json.loads((folder / "out/rl_1.json").read_text())


def check_evaluations(taught, folder):
    """Asserts one point for each evaluation, and that the last is of the round's policy."""
    points = {row["step"]: row["evaluation/accuracy"] for row in curve(folder / "out") if "evaluation/accuracy" in row}
    assert list(points) == [0, 3, 6, STEPS]
    assert points[0] == held_out_accuracy(taught, taught / "sft", 0, 0)
    assert points[STEPS] == held_out_accuracy(taught, folder / "out/rl_1", 0, STEPS)


def cut_journal(folder):
    """Cuts the journal as a kill just after the first checkpoint would; returns the checkpoint's step."""
    [scratch] = folder.glob("state/scratch/rl_round-*")
    step = first_checkpoint(folder)
    with Journal(scratch / "journal") as journal:
        records = list(journal.records())
        kinds = [record["kind"] for record in records]
        last = [place for place, kind in enumerate(kinds) if kind == "stepped"][step - 1]
        journal.clear()
        for record in records[: kinds.index("finished", last) + 1 if "finished" in kinds[last:] else last + 1]:
            journal.append(record)
    return step


def damage_pieces(folder):
    """Loses the first step's rollouts, cuts the last step's fates, and flips a bit of the checkpoint's weights.

    The journal has all data to make them again.
    """
    tables = sorted(folder.glob("state/scratch/rl_round-*/rollouts/*.parquet"))
    tables[0].unlink()
    fates = tables[-1].with_suffix(".json")
    fates.write_bytes(fates.read_bytes()[:-9])
    [weights] = folder.glob("state/scratch/rl_round-*/step-*/trainer.safetensors")
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(bytes(content))


def check_nothing_is_left(process):
    assert_becomes(lambda: list(Path("/dev/shm").glob(f"retrace-{process.pid}.*")), [])


@pytest.mark.slow
def test_a_round_whose_actors_are_killed_ends_and_replays(taught, tmp_path, monkeypatch):
    """It begins with the rest of an attempt that was killed during clean-up: checkpoints without a journal.

    The round has a teacher, which each trainer loads from another folder.
    """
    monkeypatch.chdir(tmp_path)
    shutil.copytree(taught / "sft", "data/teachers/rl_1/policy")
    params = asynchronous_params(tmp_path / "params.yaml", settings=TAUGHT)
    process = start(taught, params, tmp_path)
    wait_for(lambda: list(tmp_path.glob("state/scratch/rl_round-*/journal/lock")), process, tmp_path)
    process.kill()
    process.wait()
    [scratch] = tmp_path.glob("state/scratch/rl_round-*")
    shutil.copytree(taught / "sft", scratch / "step-000000002")  # complete, but no trainer could load it
    Checkpoints(scratch).keep_last()
    process = start(taught, params, tmp_path)
    for victim in ("ReplicaActor", "TrainerActor", "Relay"):
        before = journal_bytes(tmp_path)
        grown = lambda: journal_bytes(tmp_path) > before + 20_000  # noqa: B023, E731 - waited for at once
        wait_for(grown, process, tmp_path)
        actors(process, victim)[0].kill()
    wait_for_end(process, tmp_path)
    metrics = check_round(taught, tmp_path, settings=TAUGHT)
    check_evaluations(taught, tmp_path)
    assert metrics["fault/restarts"] >= 2
    # The teacher is the policy that the round starts from, which every step measures, and which the policy leaves.
    name = "distillation/reverse_kl"
    kls = [row[name] for row in curve(tmp_path / "out") if name in row]
    assert len(kls) == STEPS and abs(kls[0]) < 1e-4 < max(map(abs, kls[1:]))  # estimates, of either sign
    assert "Traceback" not in said(tmp_path)
    check_nothing_is_left(process)


@pytest.mark.slow
def test_a_round_that_is_killed_goes_on_from_its_journal(taught, tmp_path):
    """The window is zero: with its trajectories, the synchronous loop gives the same weights.

    The checkpoint is damaged, so after the first kill nothing can be sampled until the trainer has repeated all steps.
    The second kill comes when the outputs are written, while Ray's processes end. A custom function computes rewards.
    """
    params = asynchronous_params(tmp_path / "params.yaml", 1, CUSTOM, window=0, repack={"kind": "none"})
    process = start(taught, params, tmp_path)
    saved = "state/scratch/rl_round-*/step-*/manifest.json"
    # The journal has a step after the trainer has written that step's checkpoint.
    wait_for(lambda: list(tmp_path.glob(saved)) and stepped(tmp_path) >= first_checkpoint(tmp_path), process, tmp_path)
    process.kill()
    process.wait()
    check_nothing_is_left(process)
    step = cut_journal(tmp_path)
    damage_pieces(tmp_path)
    process = start(taught, params, tmp_path)
    wait_for(lambda: (tmp_path / "out/rl_1.json").exists(), process, tmp_path)
    process.kill()
    assert process.wait() == -signal.SIGKILL and f"resuming from step {step}, with" in said(tmp_path)
    assert "is not used: trainer.safetensors changed since it was written" in said(tmp_path)
    process = start(taught, params, tmp_path)
    wait_for_end(process, tmp_path)
    assert f"resuming from step {STEPS}, with" in said(tmp_path)
    assert check_round(taught, tmp_path, 0, CUSTOM)["staleness/max"] == 0
    check_evaluations(taught, tmp_path)


def test_the_hub_has_no_torch():
    code = "import sys, stages.rl_round.run, stages.rl_round.asynchronous.round; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
