"""Ablations: errors in a file are reported before anything runs, runs are packed, results equal hand-worked ones."""

import copy

import pandas
import pytest

from pipelines.ablating.definition import Ablation, Claim, ablation_names, read_ablation
from pipelines.ablating.plan import PlannedRun, check_ablation, in_order, next_run, params_of, plan_runs, targets_of
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
from pipelines.ablating.session import ActiveRun, FreeResources, jobs_that_fit, list_ablations, wants_one_gpu
from pipelines.ablating.writing import (
    CONTROL,
    DIRECTION,
    NUMBERED,
    Table,
    claims_by_world,
    count_claims,
    describe_missing,
    dot_plot,
    format_difference,
    metric_table,
    number,
    spread,
)
from pipelines.graph.recipes import read_recipe, with_changes
from pipelines.runtime.checkouts import Code, code_hashes, needed_stages
from stages.algorithms.estimators import Interval, compare_paired
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.tables import VERDICT, write_table
from tests.fakes.mini_ablation import mini_ablation, write_ablation


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
        (changed("seeds", [1, 1]), "list each seed once"),
        (changed("recipe", "desktop"), "unknown recipe 'desktop': there are .*laptop"),
        (changed("comparisons", 0, "direction", "same"), "direction `same` needs a margin"),
        (changed("clam", "x"), "ablation mini.clam: unknown key"),
    ],
)
def test_mistakes_are_told_before_anything_runs(root, content, told):
    with pytest.raises(UserError, match=told):
        checked(root, content)


def test_an_unknown_name_and_a_wrong_name_are_told(root):
    write_ablation(root, mini_ablation())
    with pytest.raises(UserError, match="unknown ablation 'mimi': did you mean 'mini'"):
        read_ablation(root, "mimi")
    (root / "pipelines/ablations/mini.yaml").rename(root / "pipelines/ablations/maxi.yaml")
    with pytest.raises(UserError, match="must be the name of its file: maxi"):
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


# With fewer rows the planner trains the tokenizer sooner.
DIGITS = with_changes(read_recipe(PROJECT, "digits"), {"base.corpus_rows": 100})
CARD = {"0": 80e9}


def jobs(runs, cores, memory, cards):
    return jobs_that_fit(PROJECT, runs, FreeResources(cores, memory, cards))


def test_small_runs_fill_the_cores_and_a_small_card_is_the_limit():
    count, reason = jobs([DIGITS, {**DIGITS, "seed": 1}], 16, 128e9, CARD)
    assert count == 16 and "16 cores" in reason
    small, reason = jobs([DIGITS], 64, 512e9, {"0": 12e9})
    assert 1 < small < 12 and "on 1 GPUs" in reason
    assert jobs([DIGITS], 64, 512e9, {"0": 12e9, "1": 12e9})[0] == 2 * small
    assert jobs([DIGITS], 1, 1e9, {"0": 1e9})[0] == 1, "one run at a time is tried however little there is"


def test_the_largest_run_decides_and_vllm_takes_its_share_of_a_card():
    large = with_changes(read_recipe(PROJECT, "gsm8k-smollm2-gpu"), {"sampler.memory_fraction": 0.6})
    assert jobs([large], 64, 512e9, CARD)[0] == 1
    wide = with_changes(DIGITS, {"base.hidden_size": 2048, "base.layers": 12})
    both, alone, small = (jobs(runs, 64, 512e9, CARD)[0] for runs in ([DIGITS, wide], [wide], [DIGITS]))
    assert both == alone < small


def test_without_a_gpu_threads_share_the_cores_and_little_memory_is_the_limit():
    two_threads = with_changes(DIGITS, {"trainer.threads": 2})
    assert jobs([DIGITS], 8, 64e9, {})[0] == 8 and jobs([DIGITS, two_threads], 8, 64e9, {})[0] == 4
    count, reason = jobs([DIGITS], 8, 8e9, {})
    assert count == 2 and "of memory" in reason


def test_a_run_that_takes_several_gpus_goes_alone_and_sees_all_of_them():
    assert wants_one_gpu(DIGITS)
    for several in (with_changes(DIGITS, {"launch.gpus_per_node": 2}), read_recipe(PROJECT, "laptop-asynchronous")):
        assert not wants_one_gpu(several)
        assert jobs([DIGITS, several], 64, 512e9, {"0": 80e9, "1": 80e9}) == (1, "a run takes several GPUs")


BASE = MeasuredVariant({0: 0.25, 1: 0.50}, {0: {"a": 0.5, "b": 0.0}, 1: {"a": 1.0, "b": 0.0}})
BETTER = MeasuredVariant({0: 0.50, 1: 0.625}, {0: {"a": 0.5, "b": 0.5}, 1: {"a": 1.0, "b": 0.25}})


def claim(direction, margin=None):
    return Claim(metric="accuracy", variant="slow", against="plain", direction=direction, margin=margin)


def found(by_seed, low, high, over_seeds=None):
    seeds = Interval((low + high) / 2, *(over_seeds or (low, high)))
    return Difference(by_seed, Interval((low + high) / 2, low, high), seeds)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("sft: 575 of 700 steps in 131 s, 29 s left, loss 0.243, validation loss 0.262", ""),
        ("sft: 14 of 15 steps in 95 s, " + "reward 0.8251234, " * 6, "..."),
    ],
)
def test_no_number_of_a_progress_line_loses_a_digit(tmp_path, root, line, told):
    (tmp_path / "log").write_text(f"{line}\n\n")
    run = plan_runs(root, checked(root, mini_ablation()), None, None)[0]
    words = str(ActiveRun(run, tmp_path, tmp_path / "log", None, None)).partition(" s: ")[2]
    assert words.endswith(told) and line.startswith(words.removesuffix("..."))


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
    # t(1) = 12.706, standard deviation 0.0884, divided by the root of 2: 12.706 * 0.0625
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


def rows_of_page(text, *head):
    """The rows of the table whose head begins with these words."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    start = next(place for place, cells in enumerate(lines) if cells[: len(head)] == [*head])
    end = next(place for place in range(start, len(lines)) if len(lines[place]) == 1)
    return lines[start], lines[start + 2 : end]


def claims_of_page(text):
    """The page's table of claims, which names a paper in a row of its own, as `claims_by_world` makes it."""
    head, rows = rows_of_page(text, "claim", "paper")
    paper, claims = "", []
    for claim, *cells in rows:
        if claim.startswith("**"):
            paper = claim
        else:
            claims.append([paper, claim, *cells])
    return Table("", ["paper", "claim", "there", *head[2:]], claims)


def test_claims_are_counted_by_what_the_paper_says_of_them():
    rows = [
        ["DAPO", "a", "+6", "+1.0: agrees", "+2.0: leans for"],
        ["DAPO", "b", "–", "–", "-1.0: **disagrees**"],
        ["no paper: a control", "c", "–", "+1.0: not separated", "–"],
    ]
    counts = count_claims(Table("", ["paper", "claim", "there", "digits", "sums"], rows)).rows
    assert [row[:3] for row in counts] == [
        ["digits", "the paper has a number", "1"],
        ["digits", "control, no paper", "1"],
        ["sums", "the paper has a number", "1"],
        ["sums", "the paper has a direction", "1"],
    ]
    assert [row[3:].index("1") for row in counts] == [0, 2, 1, 4]


def test_the_pages_say_how_many_claims_hold_as_the_table_of_claims_does():
    page = (PROJECT / "docs/evidence/ablations.md").read_text()
    counts = count_claims(claims_of_page(page))
    assert rows_of_page(page, "world", "claims") == (counts.head, counts.rows)
    found = {kind: (tried, agrees) for world, kind, tried, agrees, *_ in counts.rows if world == "digits"}
    said = " ".join((PROJECT / "README.md").read_text().split())
    assert f"{sum(int(tried) for tried, _ in found.values())} claims are tried in the digits world." in said
    assert f"{found[NUMBERED][0]} claims have a number of a paper, and {found[NUMBERED][1]} of them agree" in said
    assert f"{found[DIRECTION][0]} have a direction alone, and {found[DIRECTION][1]} of them agree" in said
    assert f"{found[CONTROL][0]} are controls" in said


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
    table = table.assign(benchmark="arithmetic_held_out", sample_index=0, extracted="", path="", reason="")
    write_table(table, tmp_path / "verdicts" / "rl_1.parquet", VERDICT)
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
    laptop = read_recipe(PROJECT, "laptop")
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
