"""TensorBoard and W&B get the data of the kept logs, each run once."""

import gzip
import importlib.util
import json

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands.mirroring import tracked_runs

TAGS = {"stage": "sft", "seed": "3", "stage_hash": "ab" * 32}


def write_log(state, ms, *messages, name="sft"):
    start = {"kind": "start", "ms": ms, "name": name, "params": {"sft": {"steps": 2}}, "inputs": {}, "tags": TAGS}
    tags = {"kind": "tags", "tags": {"seed": "4"}}
    lines = "\n".join(json.dumps(line) for line in (start, tags, *messages))
    place = state / "runs" / f"{ms}-{'ab' * 8}.jsonl.gz"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(gzip.compress(lines.encode()))
    return place


def values(ms, step, **metrics):
    return {"kind": "values", "ms": ms, "step": step, "values": metrics}


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Makes a run that was killed in step 2 and continued from step 1, and one that failed."""
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path))
    again = {"kind": "start", "ms": 3000, "name": "sft", "params": {"sft": {"steps": 2}}, "inputs": {}, "tags": TAGS}
    points = values(1100, 1, loss=2.0), values(1200, 2, loss=9.0), again, values(3100, 2, loss=1.0)
    write_log(tmp_path, 1000, *points, values(3200, 0, best=1.0), {"kind": "end", "ms": 3300, "status": "FINISHED"})
    write_log(tmp_path, 5000, values(5100, 1, loss=4.0), {"kind": "end", "ms": 5200, "status": "FAILED"}, name="a/b")
    return tmp_path


def test_of_two_attempts_the_later_value_counts(state):
    problems = []
    first, second = tracked_runs(state, problems)
    assert (first.name, first.params, first.is_finished) == ("sft s4", {"sft.steps": "2"}, True)
    assert first.points == {0: {"best": (1.0, 3200)}, 1: {"loss": (2.0, 1100)}, 2: {"loss": (1.0, 3100)}}
    assert not second.is_finished and not problems


def test_a_broken_log_is_told_and_the_others_go_on(state):
    (state / "runs/9000-cdcdcdcdcdcdcdcd.jsonl.gz").write_bytes(b"no gzip")
    torn = write_log(state, 7000)
    torn.write_bytes(torn.read_bytes()[:-8])
    problems = []
    assert len(list(tracked_runs(state, problems))) == 2
    assert len(problems) == 2 and all("is no kept log" in problem for problem in problems)


@pytest.mark.skipif(not importlib.util.find_spec("tensorboard"), reason="tensorboard is an extra: not installed here")
def test_tensorboard_reads_each_run_once(state):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    said = CliRunner().invoke(app, ["mirror", "--to", "tensorboard"]).output
    assert said == f"2 runs were added to tensorboard: tensorboard --logdir {state / 'tensorboard'}\n"
    first, second = sorted((state / "tensorboard").iterdir())
    assert second.name.endswith(" a_b s4"), "a name is no path"
    events = EventAccumulator(str(first))
    events.Reload()
    assert [(one.step, one.value, one.wall_time) for one in events.Scalars("loss")] == [(1, 2.0, 1.1), (2, 1.0, 3.1)]
    assert CliRunner().invoke(app, ["mirror", "--to", "tensorboard"]).output.startswith("0 runs were added")


@pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="wandb is an extra: not installed here")
def test_wandb_gets_each_run_once(state, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert CliRunner().invoke(app, ["mirror", "--to", "wandb"]).output.endswith("2 runs were added to wandb\n")
    assert len(list((state / "wandb").glob("offline-run-*"))) == 2
    assert CliRunner().invoke(app, ["mirror", "--to", "wandb"]).output.endswith("0 runs were added to wandb\n")
    said = CliRunner().invoke(app, ["mirror", "--to", "wandb", "--project", "other"]).output
    assert said.endswith("2 runs were added to wandb\n"), "another project has none of them"


@pytest.mark.skipif(bool(importlib.util.find_spec("wandb")), reason="wandb is installed here")
def test_a_missing_package_is_named(state):
    done = CliRunner().invoke(app, ["mirror", "--to", "wandb"])
    assert done.exit_code == 2 and "group wandb, which is not installed: run " in done.output
