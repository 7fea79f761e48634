"""The output of `make repro`, and its forecast; DVC itself runs in another wording than its own."""

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
from pipelines.graph.graph import StageReport, run_told_repro
from pipelines.graph.recipes import recipe_text
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, load_yaml
from stages.foundations.machine import PROJECT
from stages.foundations.stage import about
from stages.foundations.stage_graph import GraphStage, read_definitions, stages_of

UNCHANGED = ["base", "collect_web", "curate", "extract_web", "filter_web", "demonstrate", "sft"]
UNCHANGED += ["collect@arithmetic_train", "collect@arithmetic_held_out"]
BEFORE_RL_3 = [
    *[("code", "begins"), ("code", "runs"), ("code", "ran")],
    *[(name, what) for name in UNCHANGED for what in ("begins", "unchanged")],
    *[("rl_round@rl_1", "begins"), ("rl_round@rl_1", "restored")],
    *[("rl_round@rl_2", "begins"), ("rl_round@rl_2", "unchanged")],
]
"""A step of `show`: a report, a line, or seconds that go by."""
RL_3 = [("rl_round@rl_3", "begins"), ("rl_round@rl_3", "runs"), "rl_round: resuming from step 6"]
PROGRESS = "rl_3: {} of 15 steps in {} s, 25 s left, reward 0.794, accuracy 0.897, loss -0.00209"


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
    params, definitions = load_yaml((root / "params.yaml").read_bytes()), read_definitions(root / "dvc.yaml")
    for stage in graph_stages(root):
        code = [dep for dep in stage.deps if dep.startswith("data/code/")]
        for path in (root / out for out in [*code, *stage.outs] if out != "data/code"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("1")

    def listed(path: str) -> dict:
        (root / path).exists() or (root / path).mkdir(parents=True)  # a folder that no stage of this recipe fills
        return {"path": path, "md5": dvc_md5(root / path), "size": (root / path).stat().st_size}

    def entry(stage: GraphStage) -> dict:
        sections = definitions[stage.name].get("do", definitions[stage.name]).get("params", [])
        named = {key: params[key] for key in sections if "$" not in key and "." not in key and key in params}
        files = {"deps": [*map(listed, stage.deps)], "outs": [*map(listed, stage.outs)]}
        return {"cmd": "python -m stages", "params": {"params.yaml": named}, **files}

    stages = {stage.address: entry(stage) for stage in graph_stages(root)}
    (root / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": stages}))
    return root


def console_of(root: Path, out: io.StringIO | None = None) -> tuple[Console, Clock, io.StringIO, io.StringIO]:
    """Returns a console, its clock, its output, and its log."""
    clock, out, log = Clock(), out or io.StringIO(), io.StringIO()
    return Console(root, out, log, clock), clock, out, log


def show(console: Console, clock: Clock, *steps: tuple | str | float) -> None:
    for step in steps:
        match step:
            case (stage, what, *rest):
                console.tell(StageReport(stage, what, *(rest or (None, ""))))
            case str():
                console.hear(step)
            case _:
                clock.now += step


def test_where_nothing_changed_two_lines_are_shown(finished: Path) -> None:
    console, clock, out, log = console_of(finished)
    stages = [stage.address for stage in graph_stages(finished)]
    show(console, clock, *[(name, what) for name in stages for what in ("begins", "unchanged")])
    console.end()
    first, second = out.getvalue().splitlines()
    assert first.startswith("recipe  laptop: the whole chain on two CPU cores in ")
    assert second == "everything is up to date: 24 stages"
    assert log.getvalue().splitlines()[:2] == ["code: begins", "code: unchanged"]


def test_a_stage_that_ran_has_one_line_with_place_time_and_headline(root: Path) -> None:
    (root / "data" / "metrics" / "rl_round").mkdir(parents=True)
    (root / "data" / "metrics" / "rl_round" / "rl_3.json").write_text('{"accuracy/mean_last": 0.9440298}')
    console, clock, out, _ = console_of(root)
    show(console, clock, *BEFORE_RL_3, *RL_3, 38, ("rl_round@rl_3", "ran"), ("mars", "begins"), ("mars", "ran"))
    show(console, clock, ("respond@sft", "begins"), ("respond@sft", "pulls"), 9, ("respond@sft", "unchanged"))
    console.end()
    console.close()
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("recipe  laptop: the whole chain")
    assert lines[1].startswith("stages  up to 23 of 24: base, collect (2), ")
    assert [" ".join(line.split()) for line in lines[4:]] == [
        "[13/24] rl_round@rl_3 38 s accuracy 94.4% of training samples",
        "[14/24] respond@sft pulls its files from the remote",
        "2 stages ran, 1 restored from DVC's run cache, 21 up to date",
    ]
    assert not (root / "state" / "stage_seconds.json").exists(), "38 s is what was left of a resumed stage"


def test_in_a_log_a_running_stage_gives_a_line_in_ten_seconds(root: Path) -> None:
    console, clock, out, _ = console_of(root)
    lines = [step for number in range(15) for step in (4, PROGRESS.format(number, 4 * number))]
    show(console, clock, *BEFORE_RL_3, *RL_3, *lines)
    lines = [line for line in out.getvalue().splitlines() if "rl_3" in line]
    assert len(lines) == 5, "60 seconds"
    assert lines[0] == "[13/24] rl_round@rl_3  2 of 15 steps, 25 s left, reward 0.794, accuracy 0.897, loss -0.00209"
    assert "\x1b" not in out.getvalue() and "\r" not in out.getvalue()


def test_on_a_terminal_the_line_is_rewritten_and_gone_in_the_end(root: Path) -> None:
    console, clock, out, _ = console_of(root, Terminal())
    lines = [step for number in range(3) for step in (1, PROGRESS.format(number, number))]
    show(console, clock, *BEFORE_RL_3, *RL_3, *lines, 1, "\x1b[31mmodel says \x07this\x1b]0;title")
    console.close()
    *_, last = out.getvalue().splitlines()[-1].split("\r")
    assert out.getvalue().endswith("\r\x1b[K") and last == "\x1b[K"
    assert out.getvalue().count("\r[13/24] rl_round@rl_3  ") >= 4
    assert "\x1b[31m" not in out.getvalue() and "\x07" not in out.getvalue()


@pytest.mark.parametrize("stage", ["code", "rl_round@rl_3"])
def test_the_warnings_of_a_stage_are_shown_once_with_their_further_lines(root: Path, stage: str) -> None:
    console, clock, out, _ = console_of(root)
    warning = ["WARNING: no step of rl_3 trained", "         raise rl.temperature"]
    python = ["x.py:3: UserWarning: old", "  warn()"]
    show(console, clock, (stage, "begins"), "loading", *warning, "loaded", *warning, *python, (stage, "ran"))
    assert out.getvalue().splitlines()[-4:] == [warning[0], warning[1] + " (2 times)", *python]


SAID = ["Traceback (most recent call last):", "  File 'x.py', line 1", "error: rl.group_size 0: must be 2 or more"]


@pytest.mark.parametrize(
    ("code", "reason", "told"),
    [(2, "in words", "exit code 2"), (-9, "", "killed by signal 9"), (None, "no such input", "no such input")],
)
def test_what_a_failed_stage_said_is_shown_whole_with_its_exit_code(
    root: Path, capsys: pytest.CaptureFixture[str], code: int | None, reason: str, told: str
) -> None:
    console, clock, out, log = console_of(root)
    failed = ("rl_round@rl_3", "failed", code, reason)
    show(console, clock, *BEFORE_RL_3, *RL_3, PROGRESS.format(1, 12), *SAID, 12, failed, "ERROR: DVC's words")
    expected = [f"[13/24] rl_round@rl_3  failed after 12 s, {told}", "rl_round: resuming from step 6", *SAID]
    assert capsys.readouterr().err.splitlines() == [*expected, "The whole output is in state/repro.log."]
    assert SAID[0] in log.getvalue() and log.getvalue().endswith("ERROR: DVC's words\n")
    assert "DVC's words" not in out.getvalue()


def test_a_dvc_that_failed_itself_is_heard(root: Path) -> None:
    console, clock, out, _ = console_of(root)
    show(console, clock, "ERROR: 'dvc.lock' is invalid.")
    assert "ERROR: 'dvc.lock' is invalid." in out.getvalue()


OTHER_WORDS = """
import logging, sys
if any(word.endswith("told_repro.py") for word in sys.orig_argv):
    from dvc.exceptions import DvcException
    from dvc.stage import exceptions
    make = logging.LogRecord
    logging.setLogRecordFactory(lambda name, level, path, line, text, *rest: make(
        name, level, path, line, "Étape" if name.startswith("dvc") else text, () if name.startswith("dvc") else rest[0],
        *rest[1:]))
    exceptions.StageCmdFailedError.__init__ = lambda self, *given: DvcException.__init__(self, "échec")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("words", "shell"), [("", "/bin/bash"), (OTHER_WORDS, "/bin/sh")])
def test_dvc_may_say_it_in_other_words(
    dvc_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, words: str, shell: str
) -> None:
    # bash becomes the command and dies of its signal; dash waits for it, says "Killed" and ends with 137.
    monkeypatch.setenv("SHELL", shell)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "sitecustomize.py").write_text(words)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "words"))

    def repro(*given: str) -> tuple[int, list[str]]:
        console, _, out, _ = console_of(dvc_project)
        code = run_told_repro(dvc_project, given, console.hear, console.tell)
        if not code:
            console.end()
        return code, [" ".join(line.split()) for line in out.getvalue().splitlines()[1:]]

    code, lines = repro()
    assert code == 0 and lines[-1] == "4 stages ran"
    assert [line.split()[1] for line in lines if line.startswith("[")] == ["first", "round@a", "round@b", "last"]
    assert repro() == (0, ["everything is up to date: 4 stages"])
    (dvc_project / "dvc.lock").unlink()
    code, lines = repro("--single-item", "first", "last")
    assert code == 0 and lines[-1] == "2 restored from DVC's run cache, 2 up to date"
    for failure, expected, told in (("sys.exit(3)", 3, "exit code 3"), ("os.kill(os.getpid(), 9)", 255, "signal 9")):
        (dvc_project / "first.py").write_text(f"import os, sys; print('the cause', end='', flush=True); {failure}")
        capsys.readouterr()
        assert repro()[0] == expected
        first, *rest = capsys.readouterr().err.splitlines()
        assert first.startswith("[1/4] first  failed after ") and first.endswith(told)
        assert [rest[0].removesuffix("Killed"), *rest[1:]] == ["the cause", "The whole output is in state/repro.log."]
    (dvc_project / "dvc.lock").write_text("stages: [")
    code, lines = repro()
    assert code == 255 and lines, "DVC's error is shown"


GRADES = tuple(f"grade@{name}" for name in ("base", "sft", "rl_1", "rl_2", "rl_3"))


@pytest.mark.parametrize(
    ("file", "before", "after", "expected"),
    [
        ("params.yaml", "", "", ()),
        ("params.yaml", "bootstrap_draws: 2000", "bootstrap_draws: 1500", (*GRADES, "report")),
        ("data/code/grade.json", "1", "2", (*GRADES, "report")),
        ("data/verdicts/sft.parquet", "1", None, ("grade@sft", "report")),
    ],
)
def test_a_change_runs_what_follows(
    finished: Path, file: str, before: str, after: str | None, expected: tuple[str, ...]
) -> None:
    if after is None:
        (finished / file).unlink()
    else:
        (finished / file).write_text((finished / file).read_text().replace(before, after))
    assert make_forecast(finished).running == expected


def test_a_number_in_dvcs_form_is_no_change(finished: Path) -> None:
    """DVC writes this one in a form that every other YAML reader takes for a text."""
    for name, before, after in (
        ("params.yaml", "adamw_learning_rate: 0.003", "adamw_learning_rate: 5.e-6"),
        ("dvc.lock", '"adamw_learning_rate": 0.003', '"adamw_learning_rate": 5e-06'),
    ):
        text = (finished / name).read_text()
        assert before in text
        (finished / name).write_text(text.replace(before, after))
    assert make_forecast(finished).running == ()


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
