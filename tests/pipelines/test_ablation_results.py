"""The arithmetic of ablation results, worked by hand."""

import pandas
import pytest

from pipelines.ablating.definition import Ablation, Claim
from pipelines.ablating.plan import PlannedRun
from pipelines.ablating.results import (
    Difference,
    MeasuredVariant,
    difference,
    is_one_code,
    judge_claims,
    measure,
    rows_of,
    spent_to_reach,
    verdict,
)
from pipelines.ablating.writing import (
    claims_by_world,
    describe_missing,
    dot_plot,
    format_difference,
    metric_table,
    number,
    spread,
)
from pipelines.runtime.checkouts import Code, code_hashes, needed_stages
from stages.algorithms.estimators import Interval, compare_paired
from stages.foundations.params import read_yaml
from tests.fakes.mini_ablation import mini_ablation
from tests.fakes.miniature import PROJECT

BASE = MeasuredVariant({0: 0.25, 1: 0.50}, {0: {"a": 0.5, "b": 0.0}, 1: {"a": 1.0, "b": 0.0}})
BETTER = MeasuredVariant({0: 0.50, 1: 0.625}, {0: {"a": 0.5, "b": 0.5}, 1: {"a": 1.0, "b": 0.25}})


def claim(direction, margin=None):
    return Claim(metric="accuracy", variant="slow", against="plain", direction=direction, margin=margin)


def found(by_seed, low, high, over_seeds=None):
    seeds = Interval((low + high) / 2, *(over_seeds or (low, high)))
    return Difference(by_seed, Interval((low + high) / 2, low, high), seeds)


def test_means_and_deviations_over_seeds():
    assert BASE.mean == 0.375
    assert BASE.seed_sd == pytest.approx(0.125 * 2**0.5)  # deviations of 0.125 on both sides, divided by n - 1 = 1
    assert MeasuredVariant({0: 0.5}, {}).seed_sd is None
    assert MeasuredVariant({0: 0.5, 1: None}, {}).mean is None, "a mean of the seeds that got there would flatter"


def test_a_difference_is_paired_by_seed_and_by_problem():
    own = difference(BETTER, BASE)
    assert own.by_seed == {0: 0.25, 1: 0.125} and own.mean == 0.1875
    # Problem a: 0.75 and 0.75, problem b: 0 and 0.375.
    assert own.over_problems == compare_paired([0.75, 0.0], [0.75, 0.375]).interval
    # t(1) = 12.706, standard deviation 0.0884, over the root of 2: 12.706 * 0.0625
    assert own.over_seeds.low == pytest.approx(0.1875 - 12.7062 * 0.0625)


def test_a_difference_uses_the_seeds_that_both_have():
    more = MeasuredVariant({**BETTER.by_seed, 2: 0.9}, {**BETTER.problems, 2: {"a": 1.0, "b": 0.8}})
    assert difference(more, BASE) == difference(BETTER, BASE)
    assert difference(MeasuredVariant({7: 1.0}, {}), BASE).mean is None
    assert difference(MeasuredVariant({0: None, 1: 0.5}, {}), BASE).mean is None
    unreached = [MeasuredVariant({0: None, 1: value}, {}) for value in (0.75, 0.5)]
    assert difference(*unreached).by_seed == {1: 0.25}, "neither got there with seed 0"
    assert difference(MeasuredVariant({0: 0.5, 1: 0.5}, {0: {"a": 1.0}, 1: {"a": 1.0}}), BASE).over_problems is None


@pytest.mark.parametrize(
    ("claimed", "own", "expected"),
    [
        (claim("higher"), found({0: 0.1, 1: 0.2}, 0.05, 0.25), "agrees"),
        (claim("lower"), found({0: 0.1, 1: 0.2}, 0.05, 0.25), "disagrees"),
        (claim("higher"), found({0: 0.1, 1: 0.2}, -0.01, 0.25), "not separated"),
        (claim("higher"), found({0: -0.1, 1: 0.4}, 0.05, 0.25), "not separated"),
        (claim("lower"), found({0: -0.1, 1: -0.2}, -0.2, -0.1), "agrees"),
        (claim("same", 0.1), found({0: 0.05, 1: -0.05}, -0.04, 0.06), "agrees"),
        (claim("same", 0.1), found({0: 0.05, 1: -0.05}, -0.11, 0.06), "not separated"),
        (claim("same", 0.1), found({0: 0.15, 1: 0.3}, 0.12, 0.4), "disagrees"),
        (claim("higher"), Difference({}, None, None), "not separated"),
        (claim("higher"), Difference({0: 1.0}, None, None), "not separated"),
        (claim("higher"), Difference({0: 0.1}, Interval(0.1, 0.05, 0.15), None), "leans for"),
        (claim("lower"), Difference({0: 0.1}, Interval(0.1, 0.05, 0.15), None), "leans against"),
        (claim("higher"), Difference({0: 1.0, 1: 2.0}, None, Interval(1.5, 0.5, 2.5)), "agrees"),
        (claim("higher"), found({0: 0.1, 1: 0.2}, 0.05, 0.25, (-0.5, 0.8)), "leans for"),
        (claim("lower"), found({0: 0.1, 1: 0.2}, 0.05, 0.25, (-0.5, 0.8)), "leans against"),
        (claim("higher"), found({0: 0.1, 1: 0.2}, -0.01, 0.25, (0.05, 0.2)), "not separated"),
        (claim("same", 0.1), found({0: 0.05, 1: -0.05}, -0.04, 0.06, (-0.3, 0.3)), "leans for"),
    ],
)
def test_verdicts(claimed, own, expected):
    assert verdict(claimed, own) == expected


def test_tokens_to_reach_an_accuracy():
    accuracies, tokens = [0.2, 0.6, 0.4, 0.8, 0.9], [100, 90, 80, 70, 60]
    # Means of two steps: .4, .5, .6, .85: the third pair ends with step 4, after 340 tokens.
    assert spent_to_reach(accuracies, tokens, 0.55, 2) == 340
    assert spent_to_reach(accuracies, tokens, 0.5, 1) == 190
    assert spent_to_reach(accuracies, tokens, 0.99, 2) is None
    assert spent_to_reach([0.9], [1], 0.5, 2) is None


def test_rows_claims_and_wording():
    content = mini_ablation() | {"is_ladder": True}
    content["variants"]["third"] = {"says": "one more"}
    ablation = Ablation.model_validate(content)
    measured = {"plain": BASE, "slow": BETTER, "third": BETTER}
    rows = rows_of(ablation, "accuracy", measured)
    assert rows[0].to_baseline is None and rows[1].to_previous is None and rows[2].to_previous.mean == 0
    assert [row.published for row in rows] == [30.0, 36.0, None]
    table = metric_table(ablation, "accuracy", rows)
    assert table.rows[0] == ["plain", "37.5 ± 17.7", "–", "–", "30"]
    assert table.rows[1][2].startswith("+18.8 [-100.0 to +100.0] (")
    judged = judge_claims(ablation, {"accuracy": measured})
    assert (judged[0].published, judged[0].verdict) == (6.0, "not separated")
    assert judge_claims(ablation, {})[0].verdict == "not tried"
    assert dot_plot(ablation.metrics["accuracy"], rows).svg.count("plain 37.5, slow 56.2, third 56.2") == 1


def test_claims_of_one_paper_stand_in_one_row_with_a_column_for_each_world():
    content = mini_ablation()
    sums = Ablation.model_validate(content)
    (claimed,) = [{**content["comparisons"][0], "metric": "accuracy"}]
    digits = Ablation.model_validate({**content, "recipe": "digits", "comparisons": [claimed]})
    measured = {"accuracy": {"plain": BASE, "slow": BETTER}}
    judged = judge_claims(digits, measured)
    table = claims_by_world([(digits, judged), (sums, []), (sums, judged[:1])])
    assert table.head == ["paper", "claim", "there", "digits", "laptop"] and len(table.rows) == 1
    paper, told, _, in_digits, in_sums = table.rows[0]
    assert paper == sums.paper.reference and told.startswith("held out avg@2: slow")
    assert in_digits == in_sums and in_digits.endswith(f": {judged[0].verdict}")


def test_numbers_as_people_read_them():
    assert number(0.7123, "percent") == "71.2" and number(-0.01, "percent", True) == "-1.0"
    assert number(1_250_000, "tokens", True) == "+1.25M" and number(340_400, "tokens") == "340k"
    assert spread(MeasuredVariant({0: None, 1: 2.0}, {}), "number") == "– (in 1 of 2 seeds)"
    assert format_difference(None, "number") == "–"


def test_scores_of_problems_come_from_the_verdicts(tmp_path):
    """Two problems, two samples each: a 1/2, b 0/2; a greedy response counts only for greedy."""
    rows = [
        ("a", "sampled", "correct"),
        ("a", "sampled", "wrong"),
        ("b", "sampled", "unparsed"),
        ("b", "sampled", "wrong"),
        ("b", "greedy", "correct"),
    ]
    table = pandas.DataFrame(rows, columns=["problem_id", "mode", "verdict"])
    (tmp_path / "verdicts").mkdir()
    table.assign(benchmark="arithmetic_held_out").to_parquet(tmp_path / "verdicts" / "rl_1.parquet")
    (tmp_path / "metrics" / "grade").mkdir(parents=True)
    (tmp_path / "metrics/grade/rl_1.json").write_text('{"arithmetic_held_out/avg_at_2": 0.25}')
    (tmp_path / "curves" / "rl_round").mkdir(parents=True)
    (tmp_path / "curves/rl_round/rl_1.csv").write_text("step,length/response_tokens_mean\n1,10\n2,\n3,30\n")
    ablation = Ablation.model_validate(mini_ablation())
    run = PlannedRun("plain", 0, {"rl_rounds": {"rl_1": {}}, "policies": ["rl_1"]}, (), "", "")
    own = measure(ablation, {run: tmp_path})
    assert own["accuracy"]["plain"].problems == {0: {"a": 0.5, "b": 0.0}}
    assert own["accuracy"]["plain"].by_seed == {0: 0.25}
    assert own["length"]["plain"].by_seed == {0: 30.0}


def test_needed_stages_are_those_that_the_targets_may_depend_on():
    stages = {
        "code": {"cmd": "x", "outs": ["data/code/a.json"]},
        "a": {"cmd": "x", "deps": ["data/code/a.json"], "outs": ["data/policies/base"]},
        "round": {"do": {"cmd": "x", "deps": ["data/policies/${item.start}"], "outs": ["data/policies/${key}"]}},
        "folder": {"cmd": "x", "deps": ["data/policies"], "metrics": [{"data/folder.json": {"cache": False}}]},
        "other": {"cmd": "x", "outs": ["data/images"]},
    }
    assert needed_stages(stages, ["round"]) == ["a", "code", "round"]
    assert needed_stages(stages, ["folder"]) == ["a", "code", "folder", "round"]
    assert needed_stages(stages, ["other"]) == ["other"]


def test_a_run_has_the_code_of_its_own_parameters():
    laptop = read_yaml(PROJECT / "pipelines" / "recipes" / "laptop.yaml")
    other = {**laptop, "trainer": {**laptop["trainer"], "kind": "deepspeed"}}
    code = Code(PROJECT, "", is_with_changes=True, changed=())
    torch, again, deepspeed = code_hashes(code, ["rl_round@rl_1"], [laptop, {**laptop, "seed": 7}, other])
    engines = "stages.engines.trainers"
    trainers = {f"{engines}.torch_trainer TorchTrainer", f"{engines}.deepspeed_trainer DeepspeedTrainer"}
    assert torch == again and "stages.curate.run curate" in torch
    assert trainers & torch.keys() == {f"{engines}.torch_trainer TorchTrainer"}
    assert trainers & deepspeed.keys() == {f"{engines}.deepspeed_trainer DeepspeedTrainer"}
    assert not [name for name in torch if name.startswith("stages.observe.")]
    assert is_one_code([{"code": torch}, {"code": deepspeed}, {"code": torch}])
    edited = {**torch, f"{engines}.torch_trainer TorchTrainer": "other"}
    assert is_one_code([{"code": deepspeed}, {"code": edited}]), "what the other does not run"
    assert not is_one_code([{"code": torch}, {"code": edited}])


def test_missing_runs_are_told_by_their_seeds():
    planned = [(variant, seed) for seed in range(4) for variant in ("a", "b", "c")]
    done = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert describe_missing(planned, done) == ["seeds 2, 3 of every variant", "seeds 0, 1 of c"]
    assert describe_missing(planned, [*done, ("b", 2)]) == [
        "seed 3 of every variant",
        "seed 2 of a",
        "seeds 0, 1, 2 of c",
    ]
    assert describe_missing([("a", 0)], []) == ["seed 0 of a"] and describe_missing(planned, planned) == []
