"""The simulated panel and the quality control: exactly the planted careless annotators are found, with three seeds."""

import random
from collections import Counter

import pandas
import pytest

from stages.foundations.tables import RANKING
from stages.images.algorithms.shape_world import TrueScore
from stages.images.annotate.annotations import Known, checked_tables, set_tasks
from stages.images.annotate.panel import annotate_tasks, gold_tasks, seat_panel, slots_of
from stages.images.annotate.stage import PanelAnnotations
from stages.images.preferences.run import agreement_measures, judge_annotators, ratings_of
from stages.images.preferences.stage import AnnotatorRules
from tests.fakes.one_stage import recipe

RECIPE = recipe("t2i-shapes")
PANEL = PanelAnnotations.model_validate(RECIPE["annotate"] | {"noise": 0.12, "gold_tasks": 4})
RULES = AnnotatorRules.model_validate(RECIPE["preferences"]["annotator_rules"])


def world(prompts=150, count=12, seed=0):
    """Returns prompts with images of two generators; alignment and fidelity vary as for an imperfect generator."""
    drawn = random.Random(seed)
    images, truths, splits = [], {}, {}
    for number in range(prompts):
        prompt = f"p{number:03}"
        splits[prompt] = "test" if number % 5 == 0 else "train"
        for place in range(count):
            name = f"{prompt}/{place:02}"
            images.append({"prompt_id": prompt, "image_id": name, "generator": "base" if place % 2 else "other"})
            alignment, fidelity = drawn.betavariate(2, 1.2), drawn.betavariate(2, 1.6)
            truths[name] = TrueScore(0.6 * alignment + 0.4 * fidelity, alignment, fidelity)
    return pandas.DataFrame(images), truths, splits


def said_by_panel(params=PANEL, seed=0, **size):
    images, truths, splits = world(seed=seed, **size)
    tasks = set_tasks(images, params.images_per_task, params.tasks_per_prompt, seed)
    known = Known(dict.fromkeys(splits, ""), {name: name.split("/")[0] for name in truths})
    return *checked_tables(annotate_tasks(tasks, truths, splits, params, seed), known), tasks


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_exactly_the_planted_careless_are_found_and_alpha_rises_without_them(seed):
    rankings, ratings, funnel, warnings, _ = said_by_panel(seed=seed)
    assert funnel.dropped_frame().empty and not warnings  # the panel makes no formal mistakes
    judged = judge_annotators(rankings, ratings, RULES)
    planted = {one.annotator_id for one in seat_panel(PANEL, seed) if one.is_careless}
    assert len(planted) == 2
    assert set(judged.loc[~judged["is_kept"], "annotator_id"]) == planted
    assert judged.loc[~judged["is_kept"], "reason"].str.contains("low_agreement").all()
    assert not judged["reason"].str.contains("too_fast").any()  # their time does not reveal them
    kept = rankings[~rankings["annotator_id"].isin(planted)]
    before, after = agreement_measures(rankings, ratings), agreement_measures(kept, ratings_of(ratings, kept))
    assert after["alpha_rank"] - before["alpha_rank"] >= 0.15
    assert 0.55 < after["alpha_rank"] < 0.9  # people agree, but not perfectly


def test_a_panel_of_careful_annotators_loses_nobody():
    rankings, ratings, *_ = said_by_panel(PANEL.model_copy(update={"careless": 0}), seed=4)
    assert judge_annotators(rankings, ratings, RULES)["is_kept"].all()


def test_who_annotates_and_what_is_said_depends_on_the_seed_alone():
    first, again, other = (said_by_panel(seed=seed, prompts=20)[0] for seed in (1, 1, 2))
    pandas.testing.assert_frame_equal(first, again)
    assert not first["ranks"].equals(other["ranks"])
    more = said_by_panel(seed=1, prompts=25)[0]
    shared = first[first["prompt_id"] == "p001"].drop(columns="is_gold")
    longer = more[more["prompt_id"] == "p001"]
    assert len(shared) and shared["image_ids"].tolist() == longer["image_ids"].tolist()[: len(shared)]


def test_tasks_mix_generators_and_show_no_image_twice():
    *_, tasks = said_by_panel(seed=1, prompts=10)
    shown = Counter(name for task in tasks for name in task.image_ids)
    assert len(tasks) == 20 and max(shown.values()) == 1
    assert {sum(int(name[-2:]) % 2 for name in task.image_ids) for task in tasks} == {3}


def test_test_prompts_have_several_annotators_and_gold_tasks_all_of_them_with_an_answer():
    rankings, *_, tasks = said_by_panel(seed=1, prompts=20)
    own = rankings[~rankings["is_gold"]]
    _, truths, splits = world(prompts=20, seed=1)
    gold = {task.image_ids for task in gold_tasks(tasks, truths, splits, PANEL)}
    for images, count in Counter(map(tuple, own["image_ids"])).items():
        split = splits[images[0].split("/")[0]]
        assert count == (12 if images in gold else 3) or (split == "train" and count == 1)
    references = rankings[rankings["is_gold"]]
    assert set(map(tuple, references["image_ids"])) == gold and len(gold) == 4
    for row in references.to_dict("records"):
        best = max(row["image_ids"], key=lambda name: truths[name].overall)
        assert row["ranks"][row["image_ids"].index(best)] == 1 and max(row["ranks"]) <= 5
    assert list(rankings.columns) == RANKING.names


@pytest.mark.parametrize(
    ("values", "slots"),
    [
        ([0.9, 0.1], [1, 2]),
        ([0.5, 0.52], [1, 1]),  # alike
        ([0.1, 0.9, 0.5, 0.3, 0.7], [5, 1, 3, 4, 2]),
        ([0.9, 0.8, 0.6, 0.4, 0.25, 0.1], [1, 1, 2, 3, 4, 5]),  # six into five: the closest two
        ([0.515, 0.51, 0.5], [1, 1, 2]),  # at most two in a slot
    ],
)
def test_slots(values, slots):
    assert slots_of(values) == slots


@pytest.mark.parametrize("count", range(2, 11))
def test_slots_keep_the_order_and_hold_at_most_two(count):
    drawn = random.Random(count)
    values = [drawn.random() for _ in range(count)]
    slots = slots_of(values)
    assert max(Counter(slots).values()) <= 2 and set(slots) == set(range(1, max(slots) + 1)) and max(slots) <= 5
    assert all(slots[i] <= slots[j] for i in range(count) for j in range(count) if values[i] > values[j])
