"""The reward model learns human preferences and keeps its best epoch; scorers are compared with people."""

import json
from types import SimpleNamespace

import numpy
import pandas
import pytest
import torch
from safetensors.torch import load_file

from stages.foundations.errors import UserError
from stages.foundations.tables import IMAGE_SCORE, PAIR, RATING, read_table, write_table
from stages.images.engines.image_scorers.aesthetic import load_aesthetic
from stages.images.engines.image_scorers.config import AestheticParams
from stages.images.engines.image_scorers.scorer import load_pictures, load_scorer
from stages.images.reward_evaluation.run import HeldOut, annotator_agreement, measure, pairs_by_truth
from stages.images.reward_model.run import (
    RewardBatch,
    RewardOutputs,
    add_reward_head,
    freeze,
    groups_of,
    micro_batches,
    reward_batch,
    reward_loss,
    reward_outputs,
    standardised,
)
from stages.images.reward_model.run import reward_model as reward_learner
from tests.fakes.one_stage import curve_of, pair_row, run_stage
from tests.fakes.published_aesthetic import published_aesthetic, write_aesthetic
from tests.fakes.ranked_pictures import PARAMS, PROMPTS, SPLITS, ranked_inputs, tiny_scorer, write_ranked_pictures


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranked")
    write_ranked_pictures(folder)
    return folder


@pytest.fixture(scope="module")
def trained(ranked, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    return folder, run_stage("reward_model@round_1", folder, PARAMS, **ranked_inputs(ranked))


def evaluate(ranked, trained, folder, params=PARAMS, **places):
    models = {"start": ranked / "base", "before": trained[0] / "out", "scorer": trained[0] / "out"}
    return run_stage("reward_evaluation@round_1", folder, params, **ranked_inputs(ranked) | models | places)


@pytest.fixture(scope="module")
def evaluated(ranked, trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    return folder, evaluate(ranked, trained, folder)


def validation_ids(ranked):
    pairs = read_table(ranked / "preferences/pairs.parquet", PAIR)
    own = pairs[pairs["split"] == "validation"]
    return sorted({*own["better_image_id"], *own["worse_image_id"]})


def groups_and_pictures(ranked):
    pairs = read_table(ranked / "preferences/pairs.parquet", PAIR)
    ratings = standardised(read_table(ranked / "preferences/ratings.parquet", RATING), set(pairs["better_image_id"]))
    ids = {*pairs["better_image_id"], *pairs["worse_image_id"]}
    return groups_of(pairs, ratings), load_pictures([ranked / "pool"], ids, 8)


def test_the_aesthetic_score_is_compared_where_its_weights_are_given(ranked, trained, evaluated, tmp_path):
    section = write_aesthetic(tmp_path, *published_aesthetic())
    params = PARAMS | {"reward_evaluation": PARAMS["reward_evaluation"] | {"aesthetic": section}}
    metrics = evaluate(ranked, trained, tmp_path / "out", params)
    assert 0 <= metrics["preference/accuracy/aesthetic"] <= 1
    assert "gain/reward_model_minus_aesthetic/mean" in metrics
    # Nothing else moves.
    assert {name: metrics[name] for name in evaluated[1]} == evaluated[1]
    scores = read_table(tmp_path / "out/scores", IMAGE_SCORE)
    judge = load_aesthetic(AestheticParams.model_validate(section), torch.device("cpu"))
    own = scores[scores["scorer"] == "aesthetic"]
    alone = judge.score(load_pictures([ranked / "pool"], own["image_id"].tolist(), 8).images(own["image_id"]))
    assert own["score"].tolist() == pytest.approx(alone.tolist(), abs=1e-5)


def test_it_learns_to_prefer_the_brighter_picture(trained):
    folder, metrics = trained
    rows = curve_of(folder)
    assert len(rows) == 15 * 2  # epochs of 8 prompts, 4 at a time
    assert rows[0]["loss/train"] == pytest.approx(0.69, abs=0.3)
    assert metrics["accuracy/validation_best"] > 0.9
    assert metrics["groups/train"] == 8 and metrics["pairs/validation"] == 3 * 6


def test_the_best_epoch_is_kept_and_normalised_on_validation_pictures(ranked, trained):
    folder, metrics = trained
    losses = {row["step"]: row["loss/validation"] for row in curve_of(folder) if "loss/validation" in row}
    assert sorted(losses) == list(range(2, 31, 2))
    assert metrics["progress/best_step"] == min(losses, key=losses.get)
    scorer, ids = load_scorer(folder / "out", "cpu"), validation_ids(ranked)
    pictures = load_pictures([ranked / "pool"], ids, 8)
    with torch.no_grad():
        rewards = scorer.score(pictures.images(ids), pictures.prompts(ids))
    assert rewards.mean().item() == pytest.approx(0, abs=1e-4)
    assert rewards.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_the_frozen_half_and_the_other_heads_stay_as_they_were(ranked, trained):
    before, after = (load_file(folder / "model.safetensors") for folder in (ranked / "base", trained[0] / "out"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    for name in before:
        is_frozen = (".0." in name and "encoder" in name) or "embeddings" in name
        is_frozen |= name.startswith(("vision_projection", "text_projection", "matching_head", "temperature"))
        assert (name in changed) == (not is_frozen), name


def test_the_loss_by_hand_with_weights_and_ratings():
    none = torch.zeros(3, 0)
    ratings = torch.tensor([[1.0, torch.nan, 0.0], [0.0, 0.0, torch.nan], [torch.nan] * 3])
    index = torch.tensor
    batch = RewardBatch(none, none, none, index([0, 2]), index([1, 1]), torch.tensor([1.0, 3.0]), ratings, 0)
    outputs = RewardOutputs(torch.tensor([1.0, 0.0, 0.0]), torch.zeros(3, 3))
    share, shown = reward_loss(8.0, 4, 2.0)(outputs, batch)
    # pairs: 1 x log(1 + e^-1) + 3 x log 2, of a batch whose weights sum to 8; ratings: one error of 1 among four
    assert float(shown["ranking"]) == pytest.approx((0.3132617 + 3 * 0.6931472) / 8)
    assert float(share) == pytest.approx((0.3132617 + 3 * 0.6931472) / 8 + 2.0 * 1 / 4)
    assert float(shown["right"]) == pytest.approx(1 / 8)  # a tie is not right


def test_micro_batches_and_ranks_add_up_to_the_whole_batch(ranked):
    groups, pictures = groups_and_pictures(ranked)
    scorer = tiny_scorer().eval()
    learner = reward_learner(scorer, 0).module.eval()
    loss = reward_loss(18.0, 27, 0.5)
    whole = reward_batch(groups[:3], pictures, scorer, 0)
    expected = loss(reward_outputs(learner, whole), whole)[0].item()
    for ranks in (1, 2):
        mine = [
            micro_batches(groups[:3], pictures, scorer, 6, SimpleNamespace(rank=rank, world_size=ranks), 0)
            for rank in range(ranks)
        ]
        assert len({len(batches) for batches in mine}) == 1
        batches = [batch for of_rank in mine for batch in of_rank if not batch.is_empty]
        assert sum(len(batch.images) for batch in batches) == 9  # each picture once
        shares = [loss(reward_outputs(learner, batch), batch)[0].item() for batch in batches]
        assert sum(shares) == pytest.approx(expected, rel=1e-5)


def test_the_released_initialisation_has_no_gradient_to_speak_of():
    """ImageReward#45: with a learning rate of 1e-5 nothing changes: Adam's epsilon is larger than the gradient."""
    norms = {}
    for kind in ("fan_in", "released"):
        scorer = tiny_scorer(
            text={"hidden_size": 64, "layers": 1, "heads": 1, "feed_forward_size": 64}, text_dropout=0.0
        )
        sizes = scorer.config.reward_head.model_copy(update={"widths": [1024, 128, 64, 16], "dropouts": []})
        add_reward_head(scorer, sizes, kind, seed=0)
        images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        scores = scorer.score(images, ["a red circle", "a red circle"])
        (scores[0] - scores[1]).backward()
        norms[kind] = float(scorer.reward_head[0].weight.grad.abs().max())
    assert norms["released"] < 1e-3 * norms["fan_in"]


def test_a_head_may_start_from_the_matching_head():
    scorer = tiny_scorer().eval()
    sizes = scorer.config.reward_head.model_copy(update={"widths": [], "dropouts": []})
    add_reward_head(scorer, sizes, "matching", seed=0)
    images = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    rewards, odds = (scorer.score(images, PROMPTS, variant).tolist() for variant in ("reward", "blip"))
    assert rewards == pytest.approx([0.2 * one for one in odds], abs=1e-6)
    with pytest.raises(UserError, match="take a base scorer that has a matching head"):
        add_reward_head(scorer, tiny_scorer().config.reward_head, "matching", seed=0)


def test_freezing_rounds_down_and_nothing_freezes_at_zero():
    scorer = tiny_scorer()
    freeze(scorer, 0.0)
    assert scorer.vision.embeddings.class_embedding.requires_grad
    freeze(scorer, 0.49)
    assert not scorer.vision.embeddings.class_embedding.requires_grad
    assert all(weight.requires_grad for weight in scorer.text.encoder.layer[0].parameters())


def test_a_split_without_pairs_is_an_error_with_the_remedy(ranked, trained, tmp_path):
    pairs = read_table(ranked / "preferences/pairs.parquet", PAIR)
    (tmp_path / "ratings.parquet").write_bytes((ranked / "preferences/ratings.parquet").read_bytes())
    write_table(pairs[pairs["split"] == "train"], tmp_path / "pairs.parquet", PAIR)
    with pytest.raises(UserError, match=r"no pairs of split validation.*validation_fraction"):
        run_stage("reward_model@round_1", tmp_path, PARAMS, **ranked_inputs(ranked) | {"pairs": tmp_path})
    with pytest.raises(UserError, match="no pairs of test prompts"):
        evaluate(ranked, trained, tmp_path, pairs=tmp_path)


def test_an_image_that_the_pool_lacks_is_told(ranked):
    with pytest.raises(UserError, match="lack 1 of 1 images that were ranked"):
        load_pictures([ranked / "pool"], ["no such image"], 8)


def ranking_row(prompt, annotator, ranks):
    ids = [f"{prompt}{number}" for number in range(len(ranks))]
    return {"task_id": prompt, "prompt_id": prompt, "annotator_id": annotator, "image_ids": ids, "ranks": ranks}


def held_out(own=("a", "b")):
    pairs = [pair_row(one[0], one, other) for one, other in (("a0", "a1"), ("a0", "a2"), ("a1", "a2"), ("b2", "b0"))]
    ids = [f"{prompt}{number}" for prompt in "ab" for number in range(3)]
    return HeldOut(
        pandas.DataFrame(pairs),
        pandas.DataFrame([ranking_row("a", "one", [1, 2, 3]), ranking_row("b", "one", [2, 2, 1])]),
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
        [ranking_row("a", "one", [1, 2, 3]), ranking_row("a", "two", [1, 3, 2]), ranking_row("b", "one", [1, 2])]
    )
    # each way two of three pairs; b has one annotator and says nothing
    assert annotator_agreement(rankings, 50).estimate == pytest.approx(2 / 3)
    rankings.at[1, "ranks"] = [1, 1, 2]
    # one's pairs by two: a tie and two right; two's pairs by one: both right
    assert annotator_agreement(rankings, 50).estimate == pytest.approx((2.5 + 2) / 5)
    assert annotator_agreement(rankings.iloc[2:], 50) is None


def test_the_trained_model_orders_held_out_pictures_and_generators(evaluated):
    folder, metrics = evaluated
    assert metrics["preference/accuracy/reward"] > 0.9
    assert metrics["preference/accuracy/annotator"] == 1.0
    assert metrics["model_ranking/spearman/reward"] == pytest.approx(1.0)
    assert metrics["prompts/test"] == SPLITS.count("test") and metrics["pairs/test"] == 3 * 6
    assert {"preference/accuracy/clip", "preference/accuracy/blip", "recall_at_2/blip/low"} <= metrics.keys()
    assert json.loads((folder / "headline").read_text())["accuracy"] > 0.9


def test_scores_are_kept_image_by_image_and_written_the_same_again(ranked, trained, evaluated):
    folder, _ = evaluated
    scores = read_table(folder / "scores", IMAGE_SCORE)
    assert sorted(scores["scorer"].unique()) == ["blip", "clip", "reward", "truth"]
    assert scores.groupby("scorer").size().tolist() == [9, 9, 9, 9]
    assert numpy.isfinite(scores["score"]).all()
    before = (folder / "scores").read_bytes()
    evaluate(ranked, trained, folder)
    assert (folder / "scores").read_bytes() == before
