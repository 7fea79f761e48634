"""Ablation files: mistakes are told with ablation, variant and key before anything runs; the project's are valid."""

import copy
from pathlib import Path

import pytest

from pipelines.ablating.definition import ablation_names, read_ablation
from pipelines.ablating.plan import check_ablation, in_order, next_run, params_of, plan_runs, targets_of
from pipelines.ablating.session import list_ablations
from stages.foundations.errors import UserError
from tests.fakes.mini_ablation import mini_ablation, write_ablation

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "recipes").symlink_to(PROJECT / "pipelines" / "recipes")
    return tmp_path


def checked(root, content):
    write_ablation(root, content)
    ablation = read_ablation(root, content["name"])
    check_ablation(root, ablation)
    return ablation


def changed(*path_and_value):
    *path, last, value = path_and_value
    content = copy.deepcopy(mini_ablation())
    place = content
    for part in path:
        place = place[part]
    place[last] = value
    return content


@pytest.mark.parametrize("name", ablation_names(PROJECT))
def test_every_ablation_of_the_project_is_valid(name):
    ablation = read_ablation(PROJECT, name)
    check_ablation(PROJECT, ablation)
    assert len(ablation.seeds) >= 3


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (changed("variants", "slow", "rl.optimizer.learning_rat", 1), "slow: rl.opt.*learning_rat: unknown key"),
        (changed("variants", "slow", "rll.x", 1), "variant slow: rll: unknown section"),
        (changed("variants", "slow", "rl.minibatches", 0), r"slow: rl\.minibatches: .*greater than or equal to 1"),
        (changed("overrides", "grade.pass_at_k", [9]), r"variant plain: grade\.pass_at_k \[9\] exceeds"),
        (changed("variants", "slow", "builds_on", "quick"), "builds_on: no earlier variant 'quick'"),
        (changed("variants", "slow", None), "variants.slow: .*mapping"),
        (changed("baseline", "fast"), "no variant 'fast'; there are plain, slow"),
        (changed("published", "fast", {"accuracy": 1}), "no variant 'fast'"),
        (changed("published", "slow", {"speed": 1}), "no metric 'speed'; there are accuracy, length"),
        (changed("metrics", "accuracy", "key", "arithmetic_held_out/avg_at_8"), "accuracy.key: there is no .*avg_at_2"),
        (changed("metrics", "accuracy", "file", "grade/rl_7"), "metrics.accuracy.file: there is no 'grade/rl_7'"),
        (changed("metrics", "length", "file", "rl_round/rl_7"), "metrics.length.file: there is no 'rl_round/rl_7'"),
        (changed("policy", "rl_7"), "policy 'rl_7' is not measured; policies are sft, rl_1"),
        (changed("seeds", []), "ablation mini.seeds: .*at least 1"),
        (changed("seeds", [1, 1]), "each may stand there once"),
        (changed("recipe", "desktop"), "unknown recipe 'desktop'; there are .*laptop"),
        (changed("comparisons", 0, "direction", "same"), "margin belongs to direction `same`"),
        (changed("clam", "x"), "ablation mini.clam: unknown key"),
    ],
)
def test_mistakes_are_told_before_anything_runs(root, content, told):
    with pytest.raises(UserError, match=told):
        checked(root, content)


def test_an_unknown_name_and_a_wrong_name_are_told(root):
    write_ablation(root, mini_ablation())
    with pytest.raises(UserError, match="unknown ablation 'mimi': there are mini"):
        read_ablation(root, "mimi")
    (root / "pipelines/ablations/mini.yaml").rename(root / "pipelines/ablations/maxi.yaml")
    with pytest.raises(UserError, match="must be that of its file: maxi"):
        read_ablation(root, "maxi")
    assert "BROKEN" in list_ablations(root)[0]


def test_variants_build_on_others_and_the_seed_is_set(root):
    content = mini_ablation()
    content["variants"]["more"] = {"says": "also more updates", "builds_on": "slow", "rl.minibatches": 4}
    ablation = checked(root, content)
    params = params_of(root, ablation, "more", 1)
    assert (params["rl"]["optimizer"]["learning_rate"], params["rl"]["minibatches"], params["seed"]) == (0.00025, 4, 1)
    assert params_of(root, ablation, "plain", 0)["rl"]["minibatches"] == 2
    assert targets_of(ablation, "more", params) == ["grade@rl_1", "rl_round@rl_1"]


def test_a_variant_without_an_rl_round_measures_what_it_has(root):
    content = mini_ablation()
    content["variants"]["sft_only"] = {"says": "no RL", "policy": "sft"}
    ablation = checked(root, content)
    assert targets_of(ablation, "sft_only", params_of(root, ablation, "sft_only", 0)) == ["grade@sft"]


def test_shared_stages_are_made_by_one_run_of_each_seed_before_the_others(root):
    content = mini_ablation()
    content["variants"] = {"long_sft": {"says": "its own sft", "sft.steps": 20}, **content["variants"]}
    ablation = checked(root, content)
    runs = plan_runs(root, ablation, None, None)
    ordered = [run.name for run in in_order(runs, "plain")]
    assert ordered[:4] == ["plain-0", "plain-1", "long_sft-0", "long_sft-1"]
    assert set(ordered[4:]) == {"slow-0", "slow-1"}
    by_name = {run.name: run for run in runs}
    plain, slow, other = by_name["plain-0"], by_name["slow-0"], by_name["slow-1"]
    assert next_run([slow, other], [plain], set()) is other, "slow-0 needs what plain-0 is making"
    assert next_run([slow], [plain], {plain.prefix}) is slow
    assert next_run([slow], [plain], set()) is None


def test_choices_of_variants_and_seeds(root):
    ablation = checked(root, mini_ablation())
    assert [run.name for run in plan_runs(root, ablation, ["slow"], [1])] == ["slow-1"]
    with pytest.raises(UserError, match="no variant fast: there are plain, slow"):
        plan_runs(root, ablation, ["fast"], None)
    with pytest.raises(UserError, match="no seed 7: there are 0, 1"):
        plan_runs(root, ablation, None, [7])
