"""preferences: annotators are judged by their annotations, and rankings become pairs of one split."""

import pandas
import pytest

from stages.foundations.errors import UserError
from stages.foundations.tables import ANNOTATOR, PAIR, PROMPT, RANKING, RATING, read_table, write_table
from stages.images.preferences.run import drawn_down, pairs_of, splits_of, vote_measures
from tests.fakes.one_stage import run_stage

PARAMS = {
    "annotator_rules": {
        "min_pairs": 3,
        "min_agreement_over_chance": 0.5,
        "min_consistency": 0.8,
        "min_gold_accuracy": 0.7,
        "min_median_seconds": 5.0,
    },
    "min_ranking_consistency": 0.5,
    "max_pairs_per_prompt": None,
    "validation_fraction": 0.0,
}
IMAGES = ["x1", "x2", "x3"]


def ranking(task, annotator, ranks, is_gold=False, weight=1.0, seconds=20.0, images=IMAGES, prompt=None):
    return {
        "task_id": task,
        "prompt_id": prompt or f"p{task}",
        "annotator_id": annotator,
        "source": "test",
        "is_gold": is_gold,
        "image_ids": images,
        "ranks": ranks,
        "weight": weight,
        "seconds": seconds,
    }


def ratings_of(row, overall):
    return [
        {**{name: row[name] for name in ("task_id", "prompt_id", "annotator_id", "source", "seconds")}}
        | {"image_id": image, "overall": float(points), "issues": [], "created": ""}
        for image, points in zip(row["image_ids"], overall, strict=True)
    ]


def run(tmp_path, rankings, ratings=(), splits=None, **changed):
    write_table(rankings, tmp_path / "annotations" / "rankings.parquet", RANKING)
    write_table(list(ratings), tmp_path / "annotations" / "ratings.parquet", RATING)
    ids = dict.fromkeys((row["prompt_id"] for row in rankings), "train") | (splits or {})
    prompts = [{"prompt_id": one, "prompt": one, "split": split, "source": "s"} for one, split in ids.items() if split]
    write_table(prompts, tmp_path / "prompts", PROMPT)
    round_1 = {"foreign": None, "annotations": None, "also": "round_1"}
    sections = {"seed": 1, "preferences": {**PARAMS, **changed}, "ranking_rounds": {"round_1": round_1}}
    metrics = run_stage("preferences@round_1", tmp_path, sections, earlier=tmp_path / "annotations")
    schemas = {"pairs": PAIR, "annotators": ANNOTATOR, "rankings": RANKING}
    return {name: read_table(tmp_path / "out" / f"{name}.parquet", one) for name, one in schemas.items()}, metrics


def panel(bad, tasks=4):
    """Returns three annotators with equal rankings, and a fourth with the rankings `bad`."""
    return [
        ranking(f"{task}", name, [1, 2, 3] if name != "odd" else bad)
        for task in range(tasks)
        for name in ("ann", "ben", "cat", "odd")
    ]


def test_who_disagrees_with_the_others_is_left_out_by_name(tmp_path, capsys):
    tables, metrics = run(tmp_path, panel([3, 2, 1]))
    reasons = dict(zip(tables["annotators"]["annotator_id"], tables["annotators"]["reason"], strict=True))
    assert reasons == {"ann": "", "ben": "", "cat": "", "odd": "low_agreement"}
    assert "annotator odd is left out: low_agreement" in capsys.readouterr().out
    assert set(tables["pairs"]["annotator_id"]) == {"ann", "ben", "cat"}
    assert metrics["annotators/dropped"] == metrics["annotators/low_agreement"] == 1
    assert metrics["dropped/annotator_dropped"] == 4 and metrics["pairs/all"] == 3 * 4 * 3
    assert metrics["agreement/alpha_rank"] == 1.0 > metrics["agreement_of_all/alpha_rank"]
    assert metrics["agreement/annotator_pairs"] == 1.0 and metrics["agreement_of_all/annotator_pairs"] == 0.5


def test_too_little_work_is_not_judged(tmp_path):
    tables, metrics = run(tmp_path, panel([3, 2, 1]), annotator_rules=PARAMS["annotator_rules"] | {"min_pairs": 13})
    assert metrics["annotators/dropped"] == 0 and tables["annotators"]["agreement"].isna().all()
    assert tables["annotators"]["agreement_pairs"].tolist() == [12] * 4


def test_who_contradicts_own_ratings_is_left_out_and_so_is_one_such_ranking(tmp_path):
    rows = panel([1, 2, 3])
    contrary = [row for row in rows if row["annotator_id"] == "odd"] + [rows[0]]
    rated = [one for row in rows for one in ratings_of(row, [1, 2, 3] if row in contrary else [7, 4, 1])]
    tables, metrics = run(tmp_path, rows, rated)
    judged = tables["annotators"].set_index("annotator_id")
    assert judged["consistency"].to_dict() == {"ann": 0.75, "ben": 1.0, "cat": 1.0, "odd": 0.0}
    rules = PARAMS["annotator_rules"] | {"min_consistency": 0.7}
    _, metrics = run(tmp_path, rows, rated, annotator_rules=rules)
    assert metrics["annotators/contradicts_own_ratings"] == 1
    assert metrics["dropped/rank_contradicts_rating"] == 1  # ann's


def test_gold_tasks_check_annotators_and_are_not_learned_from(tmp_path):
    rows = [*panel([1, 2, 3], tasks=5), *(ranking(f"{task}", "boss", [3, 2, 2], is_gold=True) for task in range(4))]
    tables, metrics = run(tmp_path, rows, annotator_rules=PARAMS["annotator_rules"] | {"min_gold_accuracy": 0.0})
    # The reference says x2 = x3 before x1; annotators say x1 x2 x3: both ordered pairs are wrong.
    assert tables["annotators"]["gold_accuracy"].tolist() == [0.0] * 4
    assert metrics["dropped/gold_task"] == 20 and set(tables["pairs"]["prompt_id"]) == {"p4"}
    with pytest.raises(UserError, match="no pair of images to train on"):
        run(tmp_path, rows)


def test_who_is_too_fast_is_left_out(tmp_path):
    rows = [row | {"seconds": 2.0 if row["annotator_id"] == "odd" else None} for row in panel([1, 2, 3])]
    tables, _ = run(tmp_path, rows)
    assert tables["annotators"].set_index("annotator_id")["reason"].to_dict()["odd"] == "too_fast"


def test_rankings_that_say_nothing_and_unknown_prompts_are_counted(tmp_path):
    rows = [*panel([1, 2, 3]), ranking("9", "ann", [2, 2, 2]), ranking("8", "ann", [1, 2, 3])]
    _, metrics = run(tmp_path, rows, splits={"p8": None, "p1": "test"})
    assert metrics["dropped/all_tied"] == metrics["dropped/unknown_prompt"] == 1
    assert metrics["rows/in"] == 18 and metrics["rows/kept"] == 16
    assert metrics["pairs/test"] == 12 and metrics["pairs/train"] == 36


def test_equal_annotations_give_equal_bytes(tmp_path):
    run(tmp_path, panel([3, 2, 1]), max_pairs_per_prompt=5)
    first = [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())]
    _, metrics = run(tmp_path, panel([3, 2, 1]), max_pairs_per_prompt=5)
    assert [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())] == first
    assert metrics["pairs/all"] == 5 * 4


def test_validation_is_a_share_of_the_train_prompts_and_takes_no_notice_of_others():
    prompts = pandas.DataFrame({"prompt_id": [f"p{i}" for i in range(2_000)], "split": ["train", "test"] * 1_000})
    splits = splits_of(prompts, 0.1, seed=3)
    assert {splits[f"p{i}"] for i in range(1, 2_000, 2)} == {"test"}
    assert 70 < list(splits.values()).count("validation") < 130
    few = splits_of(prompts.head(50), 0.1, seed=3)
    assert few == {name: splits[name] for name in few}


def test_pairs_are_drawn_down_by_prompt():
    pairs = pairs_of([ranking("1", "a", [1, 2, 3]), ranking("2", "a", [1, 1, 2])], {"p1": "train", "p2": "test"})
    assert len(pairs) == 5 and len(drawn_down(pairs, 2, seed=0)) == 4
    assert drawn_down(pairs, None, seed=0) is pairs


def test_votes_have_a_ceiling_and_circles():
    votes = [ranking("t", "", [1, 2], images=["a", "b"], prompt="p", weight=w) for w in (1.0, 2.0)]
    votes += [ranking("t", "", [2, 1], images=["a", "b"], prompt="p", weight=1.0)]
    assert vote_measures(votes) == {
        "votes": 3,
        "circular_triads": 0,
        "ceiling": 0.75,
        "agreement_of_two": pytest.approx(1 / 3),
    }
    circle = [ranking(t, "", [1, 2], images=list(t), prompt="p") for t in ("ab", "bc", "ca")]
    assert vote_measures(circle)["circular_triads"] == 1
