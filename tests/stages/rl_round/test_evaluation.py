"""Held-out problems during a round: counts, the kept weights, and when it stops; nothing else changes."""

import json
import re

import pytest

from pipelines.graph.recipes import read_recipe
from pipelines.graph.schema import check_values
from pipelines.planning.work import WORK, Lengths
from stages.__main__ import main
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.tables import PROBLEM, ROLLOUT, read_table, write_table
from stages.rl_round.contradictions import loop_contradictions
from stages.rl_round.loop import synchronous, weight_sync
from stages.rl_round.loop.evaluation import best_evaluation, evaluation_row, is_over
from stages.rl_round.params import EvaluationParams
from tests.fakes.held_out import held_out_accuracy
from tests.fakes.rounds import JUDGED, assert_same, copied, curve, group, replay_params, settings
from tests.fakes.taught_policy import PARAMS, rl_flags, write_params

EVALUATION = {"every_steps": 2, "problems": 8, "samples": 4, "temperature": 1.0, "keep": "last", "patience": None}
SIX_STEPS = {"rl_rounds.rl_1.steps": 6}
COLLAPSE = {"seed": 1, "rl_rounds.rl_1.steps": 8, "rl.optimizer": {**PARAMS["rl"]["optimizer"], "learning_rate": 0.004}}
"""So fast that the policy forgets its training: its best weights are not its last."""


def evaluation(**changes):
    return {"rl.evaluation": {**EVALUATION, **changes}}


def run(taught, folder, changes, *flags):
    """Returns the folder of the outputs, and the round's metrics."""
    folder.mkdir(exist_ok=True)
    main([*rl_flags(taught, write_params(folder / "params.yaml", changes), folder), *flags])
    return json.loads((folder / "rl_1.json").read_text())


@pytest.mark.parametrize(
    ("accuracies", "best", "ends_with_patience"),
    [
        ([0.5], 0, []),
        ([0.2, 0.5, 0.4], 2, [1]),
        ([0.5, 0.5, 0.5], 0, [1, 2]),  # an equal accuracy is not better
        ([0.2, 0.5, 0.5, 0.4, 0.6], 8, []),
        ([0.6, 0.5, 0.4, 0.6], 0, [1, 2, 3]),
    ],
)
def test_the_first_of_the_best_is_kept_and_patience_counts_from_it(accuracies, best, ends_with_patience):
    rows = [{"step": 2 * number, "evaluation/accuracy": one} for number, one in enumerate(accuracies)]
    assert best_evaluation(rows)["step"] == best
    ends = [n for n in range(1, 6) if is_over(rows, EvaluationParams(**{**EVALUATION, "patience": n}))]
    assert ends == ends_with_patience
    assert not is_over(rows, EvaluationParams(**EVALUATION)) and not is_over([], None)


def test_problems_without_a_response_and_responses_without_a_verdict_count_as_wrong():
    row = evaluation_row(4, [group("cccu"), group("cttw")], problems=4, samples=4)
    assert row["evaluation/accuracy"] == (3 + 1) / 16 and row["step"] == 4
    assert row["evaluation/undecided_fraction"] == 2 / 8 and row["evaluation/truncated_fraction"] == 0
    assert row["evaluation/accuracy_low"] == 0 and 0.25 < row["evaluation/accuracy_high"] < 0.75
    # Two of two problems are correct: the bound of Clopper and Pearson.
    row = evaluation_row(0, [group("cc"), group("cc")], problems=2, samples=2)
    assert row["evaluation/accuracy"] == row["evaluation/accuracy_high"] == 1
    assert row["evaluation/accuracy_low"] == pytest.approx(0.025**0.5)


@pytest.fixture(scope="module")
def last(taught, tmp_path_factory):
    """Runs a round that evaluates and keeps its last weights."""
    folder = tmp_path_factory.mktemp("last")
    run(taught, folder, {**SIX_STEPS, **evaluation()})
    return folder


def test_evaluation_changes_nothing_that_is_trained(taught, last, tmp_path):
    run(taught, tmp_path / "without", SIX_STEPS)
    assert_same(last, tmp_path / "without", ("rl_1", "rl_1.parquet", "schedules/rl_1", "rl_1_headline.json"))
    start, *rows = curve(last)
    assert start.keys() == {"step", *(name for name in start if name.startswith("evaluation/"))} and start["step"] == 0
    evaluated = [row["step"] for row in (start, *rows) if "evaluation/accuracy" in row]
    assert evaluated == [0, 2, 4, 6]
    plain = [{name: value for name, value in row.items() if not name.startswith("evaluation/")} for row in rows]
    assert plain == curve(tmp_path / "without")
    known, metrics = (json.loads((one / "rl_1.json").read_text()) for one in (tmp_path / "without", last))
    assert known.items() <= metrics.items() and metrics["evaluation/kept_step"] == 6


def test_the_accuracy_is_that_of_the_weights(taught, last):
    """Samples again from the folders of the policies: the start, and the end."""
    told = {row["step"]: row["evaluation/accuracy"] for row in curve(last) if "evaluation/accuracy" in row}
    for step, policy in ((0, taught / "sft"), (6, last / "rl_1")):
        assert told[step] == held_out_accuracy(taught, policy, 0, step)
    assert 0 < told[0] < 1, "else it would say little"


@pytest.fixture(scope="module")
def best(taught, tmp_path_factory):
    """Runs a round that ends with its best weights, which are not its last ones."""
    folder = tmp_path_factory.mktemp("best")
    metrics = run(taught, folder, {**COLLAPSE, **evaluation(keep="best")})
    assert 0 < metrics["evaluation/best_step"] < 8, metrics
    return folder


def test_the_best_weights_are_those_of_their_step(taught, best, tmp_path):
    metrics = json.loads((best / "rl_1.json").read_text())
    step = metrics["evaluation/best_step"]
    rows = {row["step"]: row["evaluation/accuracy"] for row in curve(best) if "evaluation/accuracy" in row}
    assert metrics["evaluation/kept_step"] == step and rows[step] == max(rows.values()) > rows[8]
    assert metrics["evaluation/accuracy_best"] == rows[step] and metrics["evaluation/accuracy_last"] == rows[8]
    assert metrics["progress/steps"] == 8 and metrics["evaluation/stopped_early"] == 0
    assert metrics["evaluation/accuracy_best_low"] < rows[step] < metrics["evaluation/accuracy_best_high"]
    short = {**COLLAPSE, "rl_rounds.rl_1.steps": step}
    run(taught, tmp_path / "short", short)
    assert_same(best, tmp_path / "short", ("rl_1",))
    # The recorded round replays to the same weights, without an evaluation.
    main(rl_flags(taught, replay_params(tmp_path, short, copied(best, tmp_path / "kept")), tmp_path / "replayed"))
    assert_same(best, tmp_path / "replayed", ("rl_1",))


def test_a_round_that_is_killed_at_every_checkpoint_ends_the_same(taught, best, tmp_path, monkeypatch):
    """The kills come alternately during and after the writing of the checkpoint."""
    save, keep, lives = synchronous.save_state, weight_sync.keep_best, [0]

    def killed_inside(*arguments):
        keep(*arguments)
        if lives[0] % 2:
            raise KeyboardInterrupt

    def killed_behind(*arguments):
        save(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(weight_sync, "keep_best", killed_inside)
    monkeypatch.setattr(synchronous, "save_state", killed_behind)
    changes = {**COLLAPSE, **evaluation(keep="best"), "rl.checkpoint_every_steps": 3}
    while True:
        try:
            run(taught, tmp_path / "killed", changes)
            break
        except KeyboardInterrupt:
            lives[0] += 1
    assert lives[0] >= 6
    assert_same(tmp_path / "killed", best, ("rl_1", "rl_1.parquet", "schedules/rl_1", "rl_1.csv", "rl_1.json"))


def test_patience_stops_the_round_and_another_goes_on_from_it(taught, best, tmp_path, capfd):
    metrics = run(taught, tmp_path / "stopped", {**COLLAPSE, **evaluation(keep="best", patience=1)})
    steps, step = metrics["progress/steps"], metrics["evaluation/best_step"]
    rows = {row["step"]: row["evaluation/accuracy"] for row in curve(best) if "evaluation/accuracy" in row}
    ends = [n for n in (2, 4, 6, 8) if rows[n] <= max(rows[one] for one in rows if one < n)]
    assert steps == ends[0] < 8 and step == steps - 2 and metrics["evaluation/stopped_early"] == 1
    told = rf"rl_1 ends after step {steps} early, .*with the weights of step {step}\."
    assert re.search(told, capfd.readouterr().err)
    frame = read_table(tmp_path / "stopped/rl_1.parquet", ROLLOUT)
    assert frame.loc[frame["is_trained"], "step"].max() == steps
    lines = (tmp_path / "stopped/schedules/rl_1/schedule.jsonl").read_text().splitlines()
    assert len(lines) == steps + 2
    begun = run(taught, tmp_path / "next", evaluation_of_one_step(), "--policy", str(tmp_path / "stopped/rl_1"))
    assert begun["progress/steps"] == 1 and begun["evaluation/stopped_early"] == 0


def evaluation_of_one_step():
    return {"rl_rounds.rl_1.steps": 1, **evaluation(temperature=0.0, samples=1)}


def test_a_judge_of_a_step_does_not_see_what_was_held_out(taught, tmp_path):
    short = {**JUDGED, "rl_rounds.rl_1.steps": 2, "rl_rounds.rl_1.prompt_selection": {"kind": "all"}}
    run(taught, tmp_path / "with", {**short, **evaluation(every_steps=1)})
    run(taught, tmp_path / "without", short)
    agreement = "verdict/rule_agreement_fraction"
    rows = (curve(tmp_path / name) for name in ("with", "without"))
    with_it, without = ([row[agreement] for row in one if agreement in row] for one in rows)
    assert with_it == without and len(without) == 2


@pytest.mark.parametrize("fitting", [1, 0])
def test_a_prompt_that_does_not_fit_counts_as_wrong(taught, tmp_path, fitting):
    rows = read_table(taught / "held_out.parquet", PROBLEM).to_dict("records")[:2]
    for row in rows[fitting:]:
        row["problem"] = "1+" * 300 + row["problem"]
    write_table(rows, tmp_path / "held_out.parquet", PROBLEM)
    changes = {"rl_rounds.rl_1.steps": 1, **evaluation(problems=2, samples=64)}
    metrics = run(taught, tmp_path, changes, "--validation", str(tmp_path / "held_out.parquet"))
    assert metrics["evaluation/prompts_too_long"] == 2 - fitting
    assert (0 < metrics["evaluation/accuracy_best"] <= 0.5) if fitting else metrics["evaluation/accuracy_best"] == 0


def test_what_cannot_be_evaluated_is_refused(taught, tmp_path):
    with pytest.raises(UserError, match=r"has 10 problems to hold out, fewer than .* 11: .*curate.validation_rows"):
        run(taught, tmp_path / "many", evaluation(problems=11))
    with pytest.raises(UserError, match=r"has 0 problems to hold out"):
        run(taught, tmp_path / "none", evaluation(), "--validation", str(taught / "problems.parquet"))
    loop = {"kind": "replay", "schedule": "kept"}
    (told,) = loop_contradictions(settings(loop=loop, evaluation=EVALUATION), None, None)
    assert "which rl.loop.kind replay does not have: leave rl.evaluation out" in told
    mismatch = {"mismatch": {"kind": "stale_weights", "versions": 1}}
    (told,) = loop_contradictions(settings(evaluation=EVALUATION, study=mismatch), None, None)
    assert "synchronous with rl.study.mismatch does not have" in told


def test_a_recipe_is_checked_and_planned_before_it_runs():
    recipe = read_recipe(PROJECT, "laptop")
    rows, steps = recipe["curate"]["validation_rows"], recipe["rl_rounds"]["rl_1"]["steps"]
    recipe["rl"]["evaluation"] = {**EVALUATION, "problems": rows + 1}
    told = rf"curate\.validation_rows {rows} is less than rl\.evaluation\.problems {rows + 1}: raise it"
    with pytest.raises(UserError, match=told):
        check_values(recipe, "mine")
    recipe["rl"]["evaluation"] = {**EVALUATION, "problems": rows, "every_steps": 4}
    lengths = Lengths(prompt=20, response_share=0.3, drawn_per_trained=1.0, sources={"drawn_per_trained": "given"})
    _, held_out = WORK["rl_round"](check_values(recipe, "mine"), "rl_round@rl_1", lengths).sampling
    evaluated = {0, *range(0, steps, 4), steps}
    assert (held_out.calls, held_out.prompts, held_out.samples) == (len(evaluated), rows, 4)
