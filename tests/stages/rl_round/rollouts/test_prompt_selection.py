"""Prompt selection: the pass rates of the policy that a round starts from decide, and are never sampled twice."""

import json
from types import SimpleNamespace

import pytest

from stages.__main__ import main
from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.build import DrawingShare
from stages.engines.samplers.protocol import Sample, StopReason
from stages.engines.trainers.one_rank import OneRank
from stages.foundations.errors import UserError
from stages.foundations.tables import ROLLOUT, read_table
from stages.rl_round.drawing import PassCount, count_passes, delete_pass_counts, select_by_pass_rate, selection_metrics
from stages.rl_round.methods import PassRateSelection
from stages.rl_round.params import RlParams
from stages.rl_round.records import Group, Problem, Rollout
from tests.engines.test_pieces import cut, flip, lose
from tests.fakes.taught_policy import PARAMS, rl_flags, write_params

PROBLEMS = [Problem(str(number), [1], "1") for number in range(6)]
COUNTS = [PassCount(0, 4), PassCount(1, 4), PassCount(2, 4), PassCount(3, 4), PassCount(4, 4), PassCount(0, 0)]
SELECTION = PassRateSelection(kind="pass_rate", samples=4, min=0.1, max=0.75)


def test_problems_of_middling_difficulty_are_kept_in_their_order():
    kept = select_by_pass_rate(PROBLEMS, COUNTS, SELECTION, 3)
    assert [problem.problem_id for problem in kept] == ["1", "2", "3"]


def test_the_histogram_and_the_kept_share():
    metrics = selection_metrics(COUNTS, 3)
    assert metrics["selection/kept_fraction"] == 0.5 and metrics["selection/pass_rate_mean"] == 0.5
    shares = {name: value for name, value in metrics.items() if name.startswith("selection/pass_rate_")}
    del shares["selection/pass_rate_mean"]
    filled = {f"selection/pass_rate_{name}_fraction" for name in ("0", "to_25", "to_50", "to_75", "100")}
    assert shares == {name: pytest.approx(1 / 6 if name in filled else 0) for name in shares}
    assert len(shares) == 6 and filled < set(shares)
    assert sum(shares.values()) + metrics["selection/undecided_fraction"] == pytest.approx(1)


def test_too_few_problems_are_told_with_the_histogram():
    with pytest.raises(
        UserError, match=r"keeps 3 of 6 problems .*fewer than rl.problems_per_step 4: widen min and max"
    ):
        select_by_pass_rate(PROBLEMS, COUNTS, SELECTION, 4)


def test_what_was_counted_is_not_sampled_again(tmp_path, monkeypatch):
    rl = RlParams.model_validate(PARAMS["rl"])
    asked = []

    def draw_groups(draws, params, *seed_path, group_size):
        problems = [draw.problem for draw in draws]
        asked.append(([problem.problem_id for problem in problems], group_size, seed_path))
        if len(asked) == 2 and not (tmp_path / "second").exists():
            (tmp_path / "second").touch()
            raise KeyboardInterrupt
        sample = Sample([5], [0.0], StopReason.END_OF_SEQUENCE, 0)
        verdicts = (Verdict.CORRECT, Verdict.WRONG, Verdict.TIMED_OUT)
        return [Group(p.problem_id, p.prompt, tuple(Rollout(sample, "", v, 0.0) for v in verdicts)) for p in problems]

    drawing = SimpleNamespace(draw=draw_groups, share=DrawingShare(OneRank()))
    monkeypatch.setattr("stages.rl_round.drawing.PROBLEMS_AT_ONCE", 4)

    def count():
        return count_passes(PROBLEMS, 3, rl, drawing, tmp_path, 0, "rl_1")

    with pytest.raises(KeyboardInterrupt):
        count()
    assert count() == [PassCount(1, 2)] * 6
    assert [names for names, _, _ in asked] == [["0", "1", "2", "3"], ["4", "5"], ["4", "5"]]
    assert {seed for _, _, seed in asked} == {(0, "rl_1", "pass_rates")} and asked[0][1] == 3
    count()
    assert len(asked) == 3
    for damage in (lose, flip, cut):
        [piece] = tmp_path.glob("pass_counts-0.json")
        damage(piece)
        assert count() == [PassCount(1, 2)] * 6 and asked.pop()[0] == ["0", "1", "2", "3"]
    assert len(asked) == 3
    delete_pass_counts(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["second"]


def test_a_round_draws_from_the_selected_problems_only(taught, tmp_path):
    selection = {"kind": "pass_rate", "samples": 8, "min": 0.05, "max": 0.6}
    changes = {
        "rl_rounds.rl_1.prompt_selection": selection,
        "rl_rounds.rl_1.steps": 2,
        "rl.problems_per_step": 1,
        "rl.dynamic_sampling": {"kind": "none"},
    }
    flags = rl_flags(taught, write_params(tmp_path / "params.yaml", changes), tmp_path)
    main(flags)
    metrics = json.loads((tmp_path / "rl_1.json").read_text())
    drawn = set(read_table(tmp_path / "rl_1.parquet", ROLLOUT)["problem_id"])
    assert metrics["selection/problems"] == 6
    assert 0 < metrics["selection/kept"] <= 6 and len(drawn) <= metrics["selection/kept"]
    again = rl_flags(taught, tmp_path / "params.yaml", tmp_path / "again")
    main(again)
    assert (tmp_path / "again/rl_1.json").read_bytes() == (tmp_path / "rl_1.json").read_bytes()
