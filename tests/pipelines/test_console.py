"""The output of `make repro`, from lines that DVC printed in runs of the laptop recipe, and its forecast."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from pipelines.graph.console import (
    MEASURED,
    Console,
    Forecast,
    forecast_lines,
    graph_stages,
    keep_as_measured,
    make_forecast,
    remember_seconds,
)
from pipelines.graph.recipes import recipe_text
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, load_yaml
from stages.foundations.machine import PROJECT
from stages.foundations.stage import about
from stages.foundations.stage_graph import read_definitions, stages_of

CODE = """Running stage 'code':
> python -m stages.code --params params.yaml --out data/code

"""
BEFORE_RL_3 = """Stage 'base' didn't change, skipping
Stage 'collect@arithmetic_train' didn't change, skipping
Stage 'collect@arithmetic_held_out' didn't change, skipping
Stage 'collect_web' didn't change, skipping
Stage 'curate' didn't change, skipping
Stage 'extract_web' didn't change, skipping
Stage 'filter_web' didn't change, skipping
Stage 'demonstrate' didn't change, skipping
Stage 'sft' didn't change, skipping
Stage 'rl_round@rl_1' is cached - skipping run, checking out outputs
Updating lock file 'dvc.lock'

Stage 'rl_round@rl_2' didn't change, skipping
"""
RL_3 = """Running stage 'rl_round@rl_3':
> python -m pipelines.launching -m stages.rl_round --params params.yaml --round rl_3
rl_round: resuming from step 6
"""
AFTER_RL_3 = """Updating lock file 'dvc.lock'

"""
LAST = """
To track the changes with git, run:

\tgit add dvc.lock

To enable auto staging, run:

\tdvc config core.autostage true
Use `dvc push` to send your updates to remote storage.
"""
FAILURE = (
    "ERROR: failed to reproduce 'rl_round@rl_3': failed to run: python -m pipelines.launching "
    "-m stages.rl_round --params params.yaml --round rl_3, exited with 2\n"
)
PROGRESS = "rl_3: {} of 15 steps in {} s, 25 s left, reward 0.794, accuracy 0.897, loss -0.00209\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def finished(root: Path) -> Path:
    """Makes a project in which every stage has run: each output has a byte, and dvc.lock matches."""
    params, stages = load_yaml((root / "params.yaml").read_bytes()), {}
    definitions = read_definitions(root / "dvc.yaml")
    for stage in graph_stages(root):
        code = [dep for dep in stage.deps if dep.startswith("data/code/")]
        for path in (root / out for out in [*code, *stage.outs] if out != "data/code"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("1")
        for path in (root / dep for dep in stage.deps if not (root / dep).exists()):
            path.mkdir(parents=True)  # a folder that no stage of this recipe fills
        listed = definitions[stage.name].get("do", definitions[stage.name]).get("params", [])
        named = [key for key in listed if "$" not in key and "." not in key and key in params]
        stages[stage.address] = {
            "cmd": "python -m stages",
            "params": {"params.yaml": {key: params[key] for key in named}},
            "deps": [{"path": path, "md5": "of a folder"} for path in stage.deps],
            "outs": [{"path": path, "md5": "", "size": 1000} for path in stage.outs],
        }
    for stage in stages.values():
        for file in stage["deps"]:
            if (root / file["path"]).is_file():
                file |= {"md5": dvc_md5(root / file["path"]), "size": (root / file["path"]).stat().st_size}
        for file in stage["outs"]:
            file |= {"md5": dvc_md5(root / file["path"]), "size": 1}
    (root / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    return root


def show(console: Console, text: str, clock: Clock, seconds: float = 0.0) -> None:
    for line in text.splitlines():
        console(line)
        clock.now += seconds


def console_of(root: Path, out: io.StringIO | None = None) -> tuple[Console, Clock, io.StringIO, io.StringIO]:
    """Returns a console, its clock, its output, and its log."""
    clock, out, log = Clock(), out or io.StringIO(), io.StringIO()
    return Console(root, out, log, clock), clock, out, log


def test_where_nothing_changed_two_lines_are_shown(finished: Path) -> None:
    console, clock, out, log = console_of(finished)
    skipped = [f"Stage '{one.address}' didn't change, skipping\n" for one in graph_stages(finished)]
    text = "".join(skipped) + "Use `dvc push` to send your updates to remote storage.\n"
    show(console, text, clock)
    assert console.end(0) == 0
    first, second = out.getvalue().splitlines()
    assert first.startswith("recipe  laptop: the whole chain on two CPU cores in ")
    assert second == "everything is up to date: 24 stages"
    assert log.getvalue() == text


def test_a_stage_that_ran_has_one_line_with_place_time_and_headline(root: Path) -> None:
    (root / "data" / "metrics" / "rl_round").mkdir(parents=True)
    (root / "data" / "metrics" / "rl_round" / "rl_3.json").write_text('{"accuracy/mean_last": 0.9440298}')
    console, clock, out, _ = console_of(root)
    show(console, CODE + BEFORE_RL_3 + RL_3, clock)
    clock.now += 38
    show(console, AFTER_RL_3 + LAST, clock)
    assert console.end(0) == 0
    console.close()
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("recipe  laptop: the whole chain")
    assert lines[1].startswith("stages  up to 23 of 24: base, collect (2), ")
    assert [" ".join(line.split()) for line in lines[4:]] == [
        "[13/24] rl_round@rl_3 38 s accuracy 94.4% of training samples",
        "2 stages ran, 1 restored from DVC's run cache, 21 up to date",
    ]
    assert not (root / "state" / "stage_seconds.json").exists(), "38 s is what was left of a resumed stage"


def test_in_a_log_a_running_stage_gives_a_line_in_ten_seconds(root: Path) -> None:
    console, clock, out, _ = console_of(root)
    show(console, CODE + BEFORE_RL_3 + RL_3, clock)
    for step in range(15):
        clock.now += 4
        show(console, PROGRESS.format(step, 4 * step), clock)
    lines = [line for line in out.getvalue().splitlines() if "rl_3" in line]
    assert len(lines) == 5, "60 seconds"
    assert lines[0] == ("[13/24] rl_round@rl_3  2 of 15 steps, 25 s left, reward 0.794, accuracy 0.897, loss -0.00209")
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()


def test_on_a_terminal_the_line_is_rewritten_and_gone_in_the_end(root: Path) -> None:
    console, clock, out, _ = console_of(root, Terminal())
    show(console, CODE + BEFORE_RL_3 + RL_3, clock, seconds=1)
    for step in range(3):
        show(console, PROGRESS.format(step, step), clock, seconds=1)
    show(console, "\x1b[31mmodel says \x07this\x1b]0;title\n", clock)
    console.close()
    *_, last = out.getvalue().splitlines()[-1].split("\r")
    assert out.getvalue().endswith("\r\x1b[K") and last == "\x1b[K"
    assert out.getvalue().count("\r[13/24] rl_round@rl_3  ") >= 4
    assert "\x1b[31m" not in out.getvalue() and "\x07" not in out.getvalue()


@pytest.mark.parametrize("stage", ["code", "rl_round@rl_3"])
def test_the_warnings_of_a_stage_are_shown_once_with_their_further_lines(root: Path, stage: str) -> None:
    console, clock, out, _ = console_of(root)
    show(console, f"Running stage '{stage}':\n> python -m stages\nloading\n", clock)
    warning = "WARNING: no step of rl_3 trained\n         raise rl.temperature\n"
    show(console, warning + "loaded\n" + warning + "x.py:3: UserWarning: old\n  warn()\n", clock)
    show(console, AFTER_RL_3 + LAST, clock)
    assert out.getvalue().splitlines()[-4:] == [
        "WARNING: no step of rl_3 trained",
        "         raise rl.temperature (2 times)",
        "x.py:3: UserWarning: old",
        "  warn()",
    ]


def test_what_a_failed_stage_said_is_shown_whole_with_its_exit_code(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console, clock, _, log = console_of(root)
    said = "Traceback (most recent call last):\n  File 'x.py', line 1\nerror: rl.group_size 0: must be 2 or more\n"
    show(console, CODE + BEFORE_RL_3 + RL_3 + PROGRESS.format(1, 12) + said, clock)
    clock.now += 12
    show(console, FAILURE, clock)
    assert console.end(255) == 2
    assert capsys.readouterr().err == (
        "[13/24] rl_round@rl_3  failed after 12 s, exit code 2\n"
        f"rl_round: resuming from step 6\n{said}The whole output is in state/repro.log.\n"
    )
    assert log.getvalue().endswith(said + FAILURE)


def test_a_stage_that_was_killed_and_a_dvc_that_failed_itself(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console, clock, out, _ = console_of(root)
    show(console, CODE + BEFORE_RL_3 + RL_3 + FAILURE.replace("with 2", "with -9"), clock)
    assert console.end(255) == 255 and "killed by signal 9" in capsys.readouterr().err
    console, clock, out, _ = console_of(root)
    show(console, "ERROR: 'dvc.lock' is invalid.\n", clock)
    assert console.end(255) == 255 and "ERROR: 'dvc.lock' is invalid." in out.getvalue()


def test_a_line_that_looks_like_dvcs_does_not_begin_an_unknown_stage(root: Path) -> None:
    console, clock, out, _ = console_of(root)
    show(console, CODE + BEFORE_RL_3 + RL_3 + "Running stage 'mars':\n" + AFTER_RL_3 + LAST, clock)
    assert console.end(0) == 0 and "mars" not in out.getvalue() and "2 stages ran" in out.getvalue()


def test_a_finished_project_runs_nothing_and_a_late_change_only_what_follows(finished: Path) -> None:
    assert make_forecast(finished).running == ()
    params, lock = finished / "params.yaml", finished / "dvc.lock"
    # DVC writes this number in a form that every other YAML reader takes for a text.
    params.write_text(params.read_text().replace("adamw_learning_rate: 0.003", "adamw_learning_rate: 5.e-6"))
    lock.write_text(lock.read_text().replace('"adamw_learning_rate": 0.003', '"adamw_learning_rate": 5e-06'))
    assert make_forecast(finished).running == ()
    params.write_text(params.read_text().replace("bootstrap_draws: 2000", "bootstrap_draws: 1500"))
    expected = (*(f"grade@{name}" for name in ("base", "sft", "rl_1", "rl_2", "rl_3")), "report")
    assert make_forecast(finished).running == expected


def test_changed_code_and_a_lost_output_run_a_stage(finished: Path) -> None:
    (finished / "data" / "code" / "respond.json").write_text("2")
    running = make_forecast(finished).running
    assert running[0] == "respond@base" and len(running) == 11
    (finished / "data" / "code" / "respond.json").write_text("1")
    (finished / "data" / "verdicts" / "sft.parquet").unlink()
    assert make_forecast(finished).running == ("grade@sft", "report")


def test_times_are_those_of_this_recipe_and_else_not_known(finished: Path) -> None:
    ledger = [
        {"name": "grade@sft", "recipe": "svamp-smollm2", "started": "2026-01-02", "seconds": 900},
        {"name": "report", "recipe": "laptop+changes", "started": "2026-01-01", "seconds": 60},
    ]
    (finished / "state" / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in ledger))
    (finished / "data" / "verdicts" / "sft.parquet").unlink()
    forecast = make_forecast(finished)
    assert forecast.seconds == 60 and forecast.without_time == ("grade@sft",)
    assert forecast_lines(forecast, finished)[1] == "time    about 1 min 0 s, not known yet for grade@sft"
    remember_seconds(finished, {"grade@sft": 3.25, "report": 4})
    forecast = make_forecast(finished)
    assert forecast.seconds == pytest.approx(7.2) and forecast.without_time == ()


def test_a_first_run_knows_neither_time_nor_disk(root: Path) -> None:
    forecast = make_forecast(root)
    assert len(forecast.running) == 23 and forecast.without_time == forecast.without_size == forecast.running
    _, time, disk = forecast_lines(forecast, root)
    assert time == "time    not known before the first run"
    assert disk.startswith("disk    not known before the first run, ")
    assert forecast_lines(Forecast(24, (), 0.0, (), 0, ()), root) == []


def test_a_first_run_has_the_figures_of_the_recipes_measured_run(finished: Path) -> None:
    with pytest.raises(UserError, match="no time is known for base, collect@"):
        keep_as_measured(finished, "two cores")
    names = [stage.address for stage in graph_stages(finished) if stage.name != "code"]
    remember_seconds(finished, dict.fromkeys(names, 10.0))
    keep_as_measured(finished, "two cores")
    (finished / "state" / "stage_seconds.json").unlink()
    (finished / "dvc.lock").unlink()
    lines = forecast_lines(make_forecast(finished), finished)
    assert lines[1] == "time    about 3 min 50 s, measured on two cores"
    assert re.match(r"disk    about \d+ bytes of results, ", lines[2])
    remember_seconds(finished, dict.fromkeys(names, 1.0))
    assert forecast_lines(make_forecast(finished), finished)[1] == "time    about 23 s"


def test_the_kept_figures_are_of_the_stages_that_the_recipes_have() -> None:
    kept = json.loads((PROJECT / MEASURED).read_text())
    assert "laptop" in kept
    for name, measured in kept.items():
        params = load_yaml(recipe_text(PROJECT, name))
        stages = {stage.address for stage in stages_of(read_definitions(PROJECT / "dvc.yaml"), params)}
        assert measured["stages"].keys() == stages - {"code"}, f"{name}: run it, then pipelines.graph.console"


def test_every_stage_with_numbers_has_a_headline() -> None:
    named = {name for name in read_definitions(PROJECT / "dvc.yaml") if about(name).headline}
    assert named == set(read_definitions(PROJECT / "dvc.yaml")) - {"code", "report", "t2i_report"}
