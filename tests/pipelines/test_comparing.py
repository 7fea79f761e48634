"""Which differences are called real, on tables whose answer is known."""

import json
import shutil
from dataclasses import replace

import pandas
import pytest

from pipelines.comparing.page import as_json, cells, format_seeds, notes, text_table
from pipelines.comparing.results import FAMILIES, compare, problem_scores, shared_benchmarks
from pipelines.comparing.sides import Answers, Side, read_sides
from stages.algorithms.estimators import compare_paired
from stages.foundations.errors import UserError
from stages.grade.scores import score_benchmarks
from stages.grade.stage import GradeParams
from tests.fakes.graded_project import answers, write_answers, write_lock, write_project


def nothing(text):
    return None


def side(name, *tables, first_seed=0):
    own = []
    for place, rows in enumerate(tables):
        frame = pandas.DataFrame(rows)
        own.append(Answers("here", name, first_seed + place, "", frame, frame))
    return Side(name, tuple(own))


def only(findings, metric="avg_at_4"):
    (one,) = (one for one in findings.comparisons if one.metric == metric)
    return one


def test_the_scores_are_those_of_grade():
    rows = pandas.DataFrame(answers([0.1, 0.5, 0.5, 0.9], samples=4, seed=3))
    params = GradeParams(bootstrap_draws=100, pass_at_k=[4], seed=0, emergence_keywords=[])
    graded = score_benchmarks(rows, rows, params)
    own = side("a", rows)
    (benchmark,), _ = shared_benchmarks([own, own], False)
    scores = problem_scores(own.answers[0], benchmark, FAMILIES).mean()
    for metric in ("greedy", "avg_at_4", "pass_at_4", "maj_at_4"):
        assert scores[metric] == pytest.approx(graded[f"sums/{metric}"]), metric


def test_a_large_difference_is_called_better_and_a_small_one_is_not():
    plain, good = side("plain", answers([0.3] * 40, seed=1)), side("good", answers([0.9] * 40, seed=2))
    again = side("again", answers([0.3] * 40, seed=5))
    found = compare([plain, good, again], ["avg"], False, False)
    words = {one.second: one.verdict for one in found.comparisons}
    assert words == {"good": "higher", "again": "not separated"}
    one, backwards = found.comparisons[0], compare([good, plain], ["avg"], False, False).comparisons[0]
    assert one.difference.problems == 40
    assert (
        backwards.verdict == "lower"
        and one.claim == "these two policies"
        and backwards.difference.wins == one.difference.losses
    )
    assert backwards.difference.interval.low == pytest.approx(-one.difference.interval.high)


def test_problems_are_the_clusters():
    first, second = answers([0.4] * 25, seed=1), answers([0.6] * 25, seed=2)
    one = only(compare([side("a", first), side("b", second)], ["avg"], False, False))
    frames = [pandas.DataFrame(rows).query("mode == 'sampled'") for rows in (first, second)]
    means = [(frame["verdict"] == "correct").groupby(frame["problem_id"]).mean() for frame in frames]
    assert one.difference == compare_paired(*means)


def test_more_comparisons_are_corrected_more():
    plain = side("plain", answers([0.45] * 30, seed=1))
    others = [side(f"other_{seed}", answers([0.55] * 30, seed=seed)) for seed in range(2, 8)]
    alone = only(compare([plain, others[0]], ["avg"], False, False))
    among = compare([plain, *others], ["avg"], False, False).comparisons
    assert alone.corrected == alone.difference.p_value and len(among) == 6
    assert among[0].corrected > among[0].difference.p_value
    assert len(compare([plain, *others], ["avg"], False, True).comparisons) == 21


def test_few_problems_are_never_called_better():
    one = only(compare([side("a", answers([0.0] * 8)), side("b", answers([1.0] * 8))], ["avg"], False, False))
    assert one.difference.interval.low > 0 and one.corrected < 0.05 and one.verdict == "not separated"


def test_a_seed_that_says_the_opposite_forbids_the_word():
    plain = side("plain", answers([0.5] * 60, seed=1), answers([0.5] * 60, seed=2))
    mixed = side("mixed", answers([1.0] * 60, seed=3), answers([0.4] * 60, seed=4))
    one = only(compare([plain, mixed], ["avg"], False, False))
    assert one.difference.interval.low > 0 and one.corrected < 0.05 and one.verdict == "not separated"
    assert len(one.by_seed) == 2 and one.second_seed_sd > 0.2
    steady = side("steady", answers([0.9] * 60, seed=3), answers([0.9] * 60, seed=4))
    one = only(compare([plain, steady], ["avg"], False, False))
    assert one.verdict == "higher" and one.over_seeds is not None and " to " in format_seeds(one)


def test_seeds_that_are_not_shared_are_compared_unpaired():
    plain = side("plain", answers([0.2] * 30, seed=1), answers([0.2] * 30, seed=2))
    other = side("other", answers([0.8] * 30, seed=3), answers([0.8] * 30, seed=4), first_seed=5)
    one = only(compare([plain, other], ["avg"], False, False))
    assert one.by_seed == {} and one.over_seeds is not None and one.verdict == "better"


def test_other_problems_are_refused_or_left_out_loudly():
    more, less = side("more", answers([0.5] * 20)), side("less", answers([0.5] * 15))
    with pytest.raises(UserError, match=r"(?s)5 of more's 20 problems.*--common"):
        compare([more, less], ["avg"], False, False)
    found = compare([more, less], ["avg"], True, False)
    assert only(found).difference.problems == 15
    assert any("RESTRICTED" in line and "5 of more's 20" in line for line in notes(found))
    assert "RESTRICTED" in text_table(found)


def test_problems_of_the_training_data_are_told_and_left_out_on_demand():
    known = frozenset({("sums", "sums/3"), ("sums", "sums/4"), ("sums", "gone"), ("words", "sums/5")})

    def with_leaks(name, leaked, chance):
        own = side(name, answers([chance] * 20))
        return Side(name, (replace(own.answers[0], leaked=leaked),))

    sides = [with_leaks("a", known, 0.4), with_leaks("b", frozenset({("sums", "sums/4"), ("sums", "sums/9")}), 0.9)]
    found = compare(sides, ["avg"], False, False)
    assert only(found).difference.problems == 20 and found.benchmarks[0].leaked == 3
    assert "TRAINED ON: 3 of 20 problems of sums are in a side's training tables; --clean leaves them out." in notes(
        found
    )
    cleaned = compare(sides, ["avg"], False, False, is_clean=True)
    assert only(cleaned).difference.problems == 17 and any(
        line.startswith("CLEAN: 3 problems of sums") for line in notes(cleaned)
    )
    assert as_json(cleaned)["clean"] and as_json(cleaned)["benchmarks"][0]["in_training_tables"] == 3
    untouched = [with_leaks(name, frozenset(), 0.5) for name in "ab"]
    found = compare(untouched, ["avg"], False, False, is_clean=True)
    assert only(found).difference.problems == 20 and "match a source" not in text_table(found)
    everything = frozenset(("sums", f"sums/{number}") for number in range(20))
    with pytest.raises(UserError, match="a, b share no clean problem"):
        compare([sides[0], with_leaks("b", everything, 0.5)], ["avg"], False, False, is_clean=True)
    with pytest.raises(UserError, match="--clean: what c was trained on is not known"):
        compare([sides[0], side("c", answers([0.5] * 20))], ["avg"], False, False, is_clean=True)


def test_a_problem_with_the_same_id_and_another_text_is_another_problem():
    rows = answers([0.5] * 20)
    changed = [dict(row, answer="7") if row["problem_id"] == "sums/3" else row for row in rows]
    with pytest.raises(UserError, match="1 problems have the same id and another text"):
        compare([side("a", rows), side("b", changed)], ["avg"], False, False)
    assert only(compare([side("a", rows), side("b", changed)], ["avg"], True, False)).difference.problems == 19


def test_samples_and_benchmarks_must_match():
    four, two = answers([0.5] * 12), answers([0.5] * 12, samples=2)
    with pytest.raises(UserError, match=r"sampled responses.*differ \(four 4, two 2\)"):
        compare([side("four", four), side("two", two)], ["avg"], False, False)
    one = only(compare([side("four", four), side("two", two)], ["avg"], True, False), "avg_at_2")
    assert one.difference.problems == 12
    with pytest.raises(UserError, match="words: not answered by a"):
        compare([side("a", four), side("b", four + answers([0.5] * 4, name="words"))], ["avg"], False, False)
    with pytest.raises(UserError, match="share no problem"):
        compare([side("a", four), side("b", answers([0.5] * 4, name="words"))], ["avg"], True, False)


def test_policies_of_a_project_another_checkout_and_seeds(tmp_path):
    first, second = (write_project(tmp_path / str(seed), seed) for seed in (0, 1))
    left, right = read_sides(["sft", f"rl_1,{second}:rl_1"], first, nothing)
    assert (left.name, [own.seed for own in left.answers]) == ("sft", [0])
    assert (right.name, [own.seed for own in right.answers]) == ("rl_1", [0, 1])
    assert right.answers[1].where == str(second) and right.answers[0].responses is not None
    digests = [own.digest for own in right.answers]
    assert len(set(digests)) == 2 and all(len(digest) == 32 for digest in digests)


def test_mistakes_are_told_with_the_remedy(tmp_path):
    root = write_project(tmp_path / "p")
    for given, told in (
        (["sft"], "two to compare"),
        (["sft", "nope"], r"'nope' is no policy of this project \(sft, rl_1\)"),
        (["sft", "sft"], "given twice: sft"),
        (["sft", "v9:sft"], "no git revision 'v9'"),
        (["sft", f"{root}:nope"], r"no verdicts on a policy 'nope': it has sft, rl_1"),
        (["sft", str(root)], "FOLDER:POLICY"),
        (["sft", f"rl_1,{root}:rl_1"], "different seeds"),
    ):
        with pytest.raises(UserError, match=told):
            read_sides(given, root, nothing)
    (root / "data/verdicts/rl_1.parquet").unlink()
    with pytest.raises(UserError, match=r"dvc repro grade@rl_1"):
        read_sides(["sft", "rl_1"], root, nothing)


def test_responses_of_another_run_are_not_shown_beside_verdicts(tmp_path):
    root = write_project(tmp_path / "p")
    verdicts = (root / "data/verdicts/sft.parquet").read_bytes()
    write_answers(root, "sft", answers([0.5] * 12))
    (root / "data/verdicts/sft.parquet").write_bytes(verdicts)
    write_lock(root)
    assert read_sides(["sft", "rl_1"], root, nothing)[0].answers[0].responses is None


def test_the_results_of_an_ablation_are_variants_with_seeds(tmp_path):
    results = tmp_path / "state" / "ablations" / "mini" / "results"
    for variant, chance in (("slow", 0.9), ("plain", 0.2)):
        for seed in (0, 1):
            made = write_project(tmp_path / "made", seed, {"sft": [0.1] * 20, "rl_1": [chance] * 20})
            place = results / f"{variant}-{seed}"
            for kind in ("verdicts", "metrics", "curves"):
                shutil.copytree(made / "data" / kind, place / kind)
            shutil.copy(made / "dvc.lock", place / "dvc.lock")
            about = {"ablation": "mini", "variant": variant, "seed": seed, "policy": "rl_1", "commit": "c"}
            (place / "run.json").write_text(json.dumps(about))
            shutil.rmtree(made)
    sides = read_sides([str(results.parent)], tmp_path, nothing)
    assert [(own.name, len(own.answers)) for own in sides] == [("plain", 2), ("slow", 2)]
    one = only(compare(sides, ["avg"], False, False))
    assert (one.first, one.verdict) == ("plain", "better") and set(one.by_seed) == {0, 1}
    assert read_sides([str(results / "plain-0"), str(results / "slow-1")], tmp_path, nothing)[1].answers[0].seed == 1


def test_json_and_text_say_the_same():
    sides = [side("a", answers([0.2] * 20, seed=1)), side("b", answers([0.9] * 20, seed=2))]
    found = compare(sides, FAMILIES, False, False)
    content = json.loads(json.dumps(as_json(found)))
    assert [one["metric"] for one in content["comparisons"]] == ["avg_at_4", "greedy", "pass_at_4", "maj_at_4"]
    first = content["comparisons"][0]
    assert first["low"] <= first["difference"] <= first["high"] and (first["finding"], first["claim"]) == (
        "higher",
        "these two policies",
    )
    assert "higher" in cells(found.comparisons[0]) and "One seed each" in text_table(found)
