"""`retrace compare`: differences judged real on tables with a known answer, the page, and the command."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import pandas
import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.comparing.page import CHARACTERS, as_json, cells, format_seeds, notes, render_page, text_table
from pipelines.comparing.results import FAMILIES, compare, problem_scores, shared_benchmarks
from pipelines.comparing.sides import Answers, Side, read_answers, read_sides
from pipelines.records.lock_snapshots import cached_object, working_snapshot
from pipelines.records.trained_on import trained_problems
from stages.algorithms.estimators import compare_paired
from stages.foundations.errors import UserError
from stages.grade.scores import score_benchmarks
from stages.grade.stage import GradeParams
from tests.fakes.graded_project import answers, commit_all, write_answers, write_kept_run, write_lock, write_project


def nothing(text):
    return None


def side(name, *tables, first_seed=0):
    own = []
    for place, rows in enumerate(tables):
        frame = pandas.DataFrame(rows)
        own.append(Answers("here", name, first_seed + place, "", frame, frame))
    return Side(name, tuple(own))


def compared(*sides, is_common=False, is_clean=False):
    return compare(sides, ["avg"], is_common, False, is_clean)


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
    found = compared(plain, good, again)
    words = {one.second: one.verdict for one in found.comparisons}
    assert words == {"good": "higher", "again": "not separated"}
    one, backwards = found.comparisons[0], compared(good, plain).comparisons[0]
    assert one.difference.problems == 40
    assert (
        backwards.verdict == "lower"
        and one.claim == "these two policies"
        and backwards.difference.wins == one.difference.losses
    )
    assert backwards.difference.interval.low == pytest.approx(-one.difference.interval.high)


def test_problems_are_the_clusters():
    first, second = answers([0.4] * 25, seed=1), answers([0.6] * 25, seed=2)
    one = only(compared(side("a", first), side("b", second)))
    frames = [pandas.DataFrame(rows).query("mode == 'sampled'") for rows in (first, second)]
    means = [(frame["verdict"] == "correct").groupby(frame["problem_id"]).mean() for frame in frames]
    assert one.difference == compare_paired(*means)


def test_more_comparisons_are_corrected_more():
    plain = side("plain", answers([0.45] * 30, seed=1))
    others = [side(f"other_{seed}", answers([0.55] * 30, seed=seed)) for seed in range(2, 8)]
    alone = only(compared(plain, others[0]))
    among = compared(plain, *others).comparisons
    assert alone.corrected == alone.difference.p_value and len(among) == 6
    assert among[0].corrected > among[0].difference.p_value
    assert len(compare([plain, *others], ["avg"], False, True).comparisons) == 21


def test_few_problems_are_never_called_better():
    one = only(compared(side("a", answers([0.0] * 8)), side("b", answers([1.0] * 8))))
    assert one.difference.interval.low > 0 and one.corrected < 0.05 and one.verdict == "not separated"


def test_a_seed_that_says_the_opposite_forbids_the_word():
    plain = side("plain", answers([0.5] * 60, seed=1), answers([0.5] * 60, seed=2))
    mixed = side("mixed", answers([1.0] * 60, seed=3), answers([0.4] * 60, seed=4))
    one = only(compared(plain, mixed))
    assert one.difference.interval.low > 0 and one.corrected < 0.05 and one.verdict == "not separated"
    assert len(one.by_seed) == 2 and one.second_seed_sd > 0.2
    steady = side("steady", answers([0.9] * 60, seed=3), answers([0.9] * 60, seed=4))
    one = only(compared(plain, steady))
    assert one.verdict == "higher" and one.over_seeds is not None and " to " in format_seeds(one)


def test_seeds_that_are_not_shared_are_compared_unpaired():
    plain = side("plain", answers([0.2] * 30, seed=1), answers([0.2] * 30, seed=2))
    other = side("other", answers([0.8] * 30, seed=3), answers([0.8] * 30, seed=4), first_seed=5)
    one = only(compared(plain, other))
    assert one.by_seed == {} and one.over_seeds is not None and one.verdict == "better"


def test_other_problems_are_refused_or_left_out_loudly():
    more, less = side("more", answers([0.5] * 20)), side("less", answers([0.5] * 15))
    with pytest.raises(UserError, match=r"(?s)5 of more's 20 problems.*--common"):
        compared(more, less)
    found = compared(more, less, is_common=True)
    assert only(found).difference.problems == 15
    assert any("RESTRICTED" in line and "5 of more's 20" in line for line in notes(found))
    assert "RESTRICTED" in text_table(found)


def test_problems_of_the_training_data_are_told_and_left_out_on_demand():
    known = frozenset({("sums", "sums/3"), ("sums", "sums/4"), ("sums", "gone"), ("words", "sums/5")})

    def with_leaks(name, leaked, chance):
        own = side(name, answers([chance] * 20))
        return Side(name, (replace(own.answers[0], leaked=leaked),))

    sides = [with_leaks("a", known, 0.4), with_leaks("b", frozenset({("sums", "sums/4"), ("sums", "sums/9")}), 0.9)]
    found = compared(*sides)
    assert only(found).difference.problems == 20 and found.benchmarks[0].leaked == 3
    assert "TRAINED ON: 3 of 20 problems of sums are in a side's training tables; --clean leaves them out." in notes(
        found
    )
    cleaned = compared(*sides, is_clean=True)
    assert only(cleaned).difference.problems == 17 and any(
        line.startswith("CLEAN: 3 problems of sums") for line in notes(cleaned)
    )
    assert as_json(cleaned)["clean"] and as_json(cleaned)["benchmarks"][0]["in_training_tables"] == 3
    untouched = [with_leaks(name, frozenset(), 0.5) for name in "ab"]
    found = compared(*untouched, is_clean=True)
    assert only(found).difference.problems == 20 and "match a source" not in text_table(found)
    everything = frozenset(("sums", f"sums/{number}") for number in range(20))
    with pytest.raises(UserError, match="a, b share no clean problem"):
        compared(sides[0], with_leaks("b", everything, 0.5), is_clean=True)
    with pytest.raises(UserError, match="--clean: the training data of c are unknown"):
        compared(sides[0], side("c", answers([0.5] * 20)), is_clean=True)


def test_a_problem_with_the_same_id_and_another_text_is_another_problem():
    rows = answers([0.5] * 20)
    changed = [dict(row, answer="7") if row["problem_id"] == "sums/3" else row for row in rows]
    with pytest.raises(UserError, match="1 problems have the same id but another text"):
        compared(side("a", rows), side("b", changed))
    assert only(compared(side("a", rows), side("b", changed), is_common=True)).difference.problems == 19


def test_samples_and_benchmarks_must_match():
    four, two = answers([0.5] * 12), answers([0.5] * 12, samples=2)
    with pytest.raises(UserError, match=r"sampled responses.*differ \(four 4, two 2\)"):
        compared(side("four", four), side("two", two))
    one = only(compared(side("four", four), side("two", two), is_common=True), "avg_at_2")
    assert one.difference.problems == 12
    with pytest.raises(UserError, match="words: not answered by a"):
        compared(side("a", four), side("b", four + answers([0.5] * 4, name="words")))
    with pytest.raises(UserError, match="share no problem"):
        compared(side("a", four), side("b", answers([0.5] * 4, name="words")), is_common=True)


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
        (["sft", "v9:sft"], "no git revision or DVC experiment 'v9'"),
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
            write_kept_run(results, made, variant, seed)
            shutil.rmtree(made)
    sides = read_sides([str(results.parent)], tmp_path, nothing)
    assert [(own.name, len(own.answers)) for own in sides] == [("plain", 2), ("slow", 2)]
    one = only(compared(*sides))
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


HOSTILE = '</pre><script>alert("x")</script><img src=x onerror=alert(1)>'


@pytest.fixture
def project(tmp_path, monkeypatch):
    root = write_project(tmp_path / "project")
    monkeypatch.setattr("pipelines.comparing.command.PROJECT", root)
    return root


def page_of(root, problems=20):
    findings = compare(read_sides(["sft", "rl_1"], root, nothing), ["avg", "greedy"], False, False)
    return render_page(findings, ["avg", "greedy"], problems)


def test_the_page_shows_problems_won_with_their_responses(project):
    text = page_of(project)
    assert "rl_1 scores higher than sft" in text and "The answer is 4." in text
    assert "sums/1" in text and text.count("<details>") >= 20
    assert "only the 20 with the largest difference are shown" in text
    assert page_of(project) == text, "equal arguments, equal bytes"


def test_hostile_texts_are_escaped_and_long_ones_are_cut(project):
    rows = answers([0.9] * 30, seed=2)
    for row in rows:
        row["response"] = HOSTILE + "9" * (3 * CHARACTERS) + "\u202e"
        row["problem_id"] += HOSTILE
    write_answers(project, "rl_1", rows)
    old = answers([0.1] * 30, seed=3)
    for row in old:
        row["problem_id"] += HOSTILE
    write_answers(project, "sft", old)
    write_lock(project)
    text = page_of(project)
    assert "<script" not in text and "<img" not in text and "&lt;script&gt;" in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "\u202e" not in text and "[cut:" in text
    assert len(text) < 20 * 3 * 4 * CHARACTERS


def test_the_number_of_problems_is_bounded(project):
    assert page_of(project, problems=2).count('class="id"') == 2
    assert 'class="id"' not in page_of(project, problems=0)


def test_without_responses_the_scores_are_shown(project):
    shutil.rmtree(project / "data/responses")
    assert "No responses are kept of sft, rl_1" in page_of(project)


def run(*arguments):
    return CliRunner().invoke(app, ["compare", *arguments])


def test_the_command_prints_a_table_and_writes_page_and_record(project, tmp_path):
    done = run("sft", "rl_1", "--metrics", "avg", "--out", str(tmp_path / "c.html"))
    assert done.exit_code == 0 and "higher" in done.stdout
    assert "rl_1" in (tmp_path / "c.html").read_text()
    (kept,) = (tmp_path / "state" / "comparisons").glob("*.json")
    assert json.loads(kept.read_text())["content"]["comparisons"][0]["finding"] == "higher"
    again = run("sft", "rl_1", "--metrics", "avg", "--json", "--out", str(tmp_path / "c.html"))
    assert json.loads(again.stdout)["comparisons"][0]["second"] == "rl_1"
    assert len(list((tmp_path / "state" / "comparisons").glob("*.json"))) == 1, "equal results are kept once"


def test_a_mistake_is_exit_code_2(project, tmp_path):
    metrics = ["sft", "rl_1", "--metrics", "best"]
    for arguments, told in ((["sft", "nope"], "is no policy"), (metrics, "there are avg, greedy, pass, maj")):
        done = run(*arguments, "--out", str(tmp_path / "c.html"))
        assert done.exit_code == 2 and told in done.stderr and not (tmp_path / "c.html").exists()


def test_a_policy_of_a_commit_comes_out_of_the_cache(project):
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=project, check=True)
    commit = commit_all(project, "first")
    before = read_sides(["sft", "rl_1"], project, nothing)[0].answers[0]
    kept = project / "data/verdicts/sft.parquet"
    place = cached_object(project, before.digest)
    place.parent.mkdir(parents=True)
    shutil.copy(kept, place)
    write_answers(project, "sft", answers([0.8] * 30, seed=9))
    write_lock(project)
    now, then = read_sides(["sft", f"{commit[:8]}:sft"], project, nothing)
    assert then.answers[0].digest == before.digest != now.answers[0].digest
    assert then.answers[0].verdicts.equals(before.verdicts) and then.answers[0].responses is None
    place.unlink()
    with pytest.raises(Exception, match="dvc fetch --all-commits"):
        read_sides(["sft", f"{commit[:8]}:sft"], project, nothing)


HELD_OUT = {"b/0": "What is 2+2?", "b/1": "What is 3+3?", "b/2": "What is 4+4?"}


def stage(deps, outs):
    files = {"deps": deps, "outs": outs}
    return {"cmd": "true", **{kind: [{"path": path, "md5": "0"} for path in paths] for kind, paths in files.items()}}


@pytest.fixture
def root(tmp_path):
    """2+2 was in the source and was dropped; 3+3 is a demonstration; 4+4 is in a slice that the round did not take."""
    tables = {
        "problems/train": {"problem_id": ["t/1", "t/2"], "problem": ["What is 4 + 4?", "What is 9+1?"]},
        "demonstrations/train": {"problem_id": ["t/3"], "problem": ["what is 3+3?"], "response": ["6"]},
        "demonstrations/validation": {"problem_id": ["t/4"], "problem": ["What is 2+2?"], "response": ["4"]},
        "rollouts/rl_1": {"problem_id": ["t/2", "t/1"], "is_trained": [True, False]},
        "responses/rl_1": {
            **{"benchmark": ["b"] * 3, "problem_id": list(HELD_OUT), "problem": list(HELD_OUT.values())},
            **{"mode": ["greedy"] * 3, "sample_index": [0] * 3, "answer": ["4", "6", "8"], "response": ["r"] * 3},
            **{"response_tokens": [1] * 3, "is_truncated": [False] * 3},
        },
        "verdicts/rl_1": {
            **{"benchmark": ["b"] * 3, "problem_id": list(HELD_OUT), "mode": ["greedy"] * 3, "sample_index": [0] * 3},
            **{"verdict": ["correct"] * 3, "extracted": ["4"] * 3, "path": ["p"] * 3, "reason": [""] * 3},
        },
    }
    for name, columns in tables.items():
        file = tmp_path / "data" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(columns).to_parquet(file)
    stages = {
        "base": stage([], ["data/policies/base"]),
        "sft": stage(
            [f"data/{name}" for name in ("demonstrations/train.parquet", "demonstrations/validation.parquet")]
            + ["data/policies/base"],
            ["data/policies/sft"],
        ),
        "rl_round@rl_1": stage(
            ["data/policies/sft", "data/problems/train.parquet"], ["data/policies/rl_1", "data/rollouts/rl_1.parquet"]
        ),
        "grade@rl_1": stage(["data/responses/rl_1.parquet"], ["data/verdicts/rl_1.parquet"]),
    }
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
    return tmp_path


def test_only_what_trained_the_policy_or_one_before_it_counts(root):
    place = working_snapshot(root)
    assert trained_problems(place, "base") == frozenset()
    assert len(trained_problems(place, "sft")) == 1
    assert len(trained_problems(place, "rl_1")) == 2
    assert read_answers(place, "rl_1").leaked == {("b", "b/1")}


def test_without_rollouts_the_whole_table_of_the_round_counts(root):
    (root / "data/rollouts/rl_1.parquet").unlink()
    assert read_answers(working_snapshot(root), "rl_1").leaked == {("b", "b/1"), ("b", "b/2")}


def test_nothing_is_claimed_where_a_table_or_the_policy_is_gone(root):
    assert trained_problems(working_snapshot(root), "rl_9") is None
    (root / "data/demonstrations/train.parquet").unlink()
    assert read_answers(working_snapshot(root), "rl_1").leaked is None
