"""The evaluation of scorers: numbers by hand on made-up scores, and the stage on pictures of known order."""

import json

import numpy
import pandas
import pytest

from stages.foundations.errors import UserError
from stages.foundations.tables import IMAGE_SCORE, PAIR, read_table, write_table
from stages.reward_evaluation.run import HeldOut, annotator_agreement, by_prompt_accuracy, measure, pairs_by_truth
from tests.fakes.one_stage import pair_row, run_stage
from tests.fakes.ranked_pictures import PARAMS, SPLITS, ranked_inputs, write_ranked_pictures


def ranking(prompt, annotator, ranks):
    ids = [f"{prompt}{number}" for number in range(len(ranks))]
    return {"task_id": prompt, "prompt_id": prompt, "annotator_id": annotator, "image_ids": ids, "ranks": ranks}


def held_out(own=("a", "b")):
    pairs = [pair_row(one[0], one, other) for one, other in (("a0", "a1"), ("a0", "a2"), ("a1", "a2"), ("b2", "b0"))]
    ids = [f"{prompt}{number}" for prompt in "ab" for number in range(3)]
    return HeldOut(
        pandas.DataFrame(pairs),
        pandas.DataFrame([ranking("a", "one", [1, 2, 3]), ranking("b", "one", [2, 2, 1])]),
        pandas.Series(dict(zip(ids, ["x", "y", "z"] * 2, strict=True))),
        frozenset(name for name in ids if name[0] in own),
    )


def series(*values):
    return pandas.Series(values, index=["a0", "a1", "a2", "b0", "b1", "b2"], dtype=float)


def test_accuracy_by_pair_by_prompt_and_with_the_released_rule_for_ties():
    scores = series(3, 1, 2, 0, 0, 0)  # a: two of three right; b: a tie
    metrics = measure(held_out(), {"reward": scores, "clip": -scores}, [1], draws=50)
    assert metrics["preference/accuracy/reward"] == pytest.approx(2.5 / 4)
    assert metrics["preference/accuracy_as_released/reward"] == pytest.approx(2 / 4)
    assert metrics["preference/accuracy_by_prompt/reward"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert metrics["preference/accuracy/clip"] == pytest.approx(1.5 / 4)
    assert metrics["preference/accuracy/random"] == 0.5
    assert metrics["gain/reward_model_minus_clip/mean"] == pytest.approx((1 / 3 + 0) / 2)
    assert metrics["gain/reward_model_minus_clip/low"] < 0 < metrics["gain/reward_model_minus_clip/high"]
    assert metrics["recall_at_1/reward"] == pytest.approx((1 + 1 / 3) / 2)
    assert metrics["recall_at_1/random"] == pytest.approx(1 / 3)
    assert metrics["filter_at_1/random"] == pytest.approx((1 / 3 + 2 / 3) / 2)


def test_on_policy_counts_only_pairs_of_this_rounds_own_images():
    metrics = measure(held_out(own="b"), {"reward": series(3, 2, 1, 1, 0, 0), "clip": series(*range(6))}, [1], 50)
    assert metrics["pairs/on_policy"] == 1
    assert metrics["preference/accuracy/reward"] == pytest.approx(3 / 4)
    assert metrics["preference/on_policy_accuracy/reward"] == 0.0
    assert metrics["on_policy_gain/reward_model_minus_clip/mean"] == -1.0


def test_against_the_truth_all_pairs_count_that_differ_noticeably():
    truth = series(0.5, 0.52, 0.9, 0.1, 0.2, 0.3)  # a0 and a1 look alike
    pairs = pairs_by_truth(held_out().rankings, truth)
    told = set(zip(pairs["better_image_id"], pairs["worse_image_id"], strict=True))
    assert told == {("a2", "a0"), ("a2", "a1"), ("b1", "b0"), ("b2", "b0"), ("b2", "b1")}
    scores = {"reward": series(0, 2, 1, 0, 1, 2), "clip": series(2, 1, 0, 1, 0, 2), "truth": truth}
    metrics = measure(held_out(own="b"), scores, [1], 50)
    # reward: 1 of 2 and 3 of 3; clip: 0 of 2 and 2 of 3
    assert metrics["gain_by_truth/reward_model_minus_clip/mean"] == pytest.approx((1 / 2 + 1 / 3) / 2)
    assert metrics["on_policy_gain_by_truth/reward_model_minus_clip/mean"] == pytest.approx(1 / 3)
    assert "gain_by_truth/reward_model_minus_truth/mean" not in metrics


def test_one_annotator_against_another_by_hand():
    rankings = pandas.DataFrame(
        [ranking("a", "one", [1, 2, 3]), ranking("a", "two", [1, 3, 2]), ranking("b", "one", [1, 2])]
    )
    # each way two of three pairs; b has one annotator and says nothing
    assert annotator_agreement(rankings, 50).estimate == pytest.approx(2 / 3)
    rankings.at[1, "ranks"] = [1, 1, 2]
    # one's pairs by two: a tie and two right; two's pairs by one: both right
    assert annotator_agreement(rankings, 50).estimate == pytest.approx((2.5 + 2) / 5)
    assert annotator_agreement(rankings.iloc[2:], 50) is None


def test_accuracies_of_scorers_stand_side_by_side_for_each_prompt():
    accuracy = by_prompt_accuracy(held_out().pairs, series(1, 2, 3, 0, 0, 1))
    assert accuracy.to_dict() == {"a": 0.0, "b": 1.0}


def evaluate(folder, **places):
    models = {"start": folder / "base", "before": folder / "out", "scorer": folder / "out"}
    places = ranked_inputs(folder) | models | {"metrics": folder / "evaluation"} | places
    run_stage("reward_evaluation@round_1", folder, **places)
    return json.loads((folder / "evaluation").read_text())


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    write_ranked_pictures(folder)
    run_stage("reward_model@round_1", folder, PARAMS, **ranked_inputs(folder))
    return folder, evaluate(folder)


def test_the_trained_model_orders_held_out_pictures_and_generators(evaluated):
    folder, metrics = evaluated
    assert metrics["preference/accuracy/reward"] > 0.9
    assert metrics["preference/accuracy/annotator"] == 1.0
    assert metrics["model_ranking/spearman/reward"] == pytest.approx(1.0)
    assert metrics["prompts/test"] == SPLITS.count("test") and metrics["pairs/test"] == 3 * 6
    assert {"preference/accuracy/clip", "preference/accuracy/blip", "recall_at_2/blip/low"} <= metrics.keys()
    assert json.loads((folder / "headline").read_text())["accuracy"] > 0.9


def test_scores_are_kept_image_by_image_and_written_the_same_again(evaluated):
    folder, _ = evaluated
    scores = read_table(folder / "scores", IMAGE_SCORE)
    assert sorted(scores["scorer"].unique()) == ["blip", "clip", "reward", "truth"]
    assert scores.groupby("scorer").size().tolist() == [9, 9, 9, 9]
    assert numpy.isfinite(scores["score"]).all()
    before = (folder / "scores").read_bytes()
    evaluate(folder)
    assert (folder / "scores").read_bytes() == before


def test_no_test_pairs_is_an_error_with_the_remedy(evaluated, tmp_path):
    folder, _ = evaluated
    pairs = read_table(folder / "preferences/pairs.parquet", PAIR)
    write_table(pairs[pairs["split"] != "test"], tmp_path / "pairs.parquet", PAIR)
    with pytest.raises(UserError, match="no pairs of test prompts"):
        evaluate(folder, pairs=tmp_path)
