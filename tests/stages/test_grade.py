import json

import pytest

from stages.foundations.errors import UserError
from stages.foundations.tables import RESPONSE, VERDICT, read_table, write_table
from tests.fakes import worker_functions
from tests.fakes.one_stage import run_stage

PARAMS = {
    "verifier": {"timeout_seconds": 1.0, "memory_mib": 768, "workers": 1, "abort_undecided_fraction": 0.2},
    "grade": {"bootstrap_draws": 200, "pass_at_k": [1, 2], "seed": 0, "emergence_keywords": ["wait", "re-check"]},
}


def response(problem, text, mode="sampled", index=0, benchmark="sums", answer="4", truncated=False):
    named = {"problem_id": problem, "benchmark": benchmark, "mode": mode, "sample_index": index}
    said = {"response": text, "response_tokens": len(text), "is_truncated": truncated}
    return {**named, "problem": "2+2?", "answer": answer, **said}


@pytest.fixture
def grade(tmp_path):
    def run(rows, params=PARAMS):
        write_table(rows, tmp_path / "responses", RESPONSE)
        metrics = run_stage("grade@sft", tmp_path, params)
        return metrics, read_table(tmp_path / "verdicts", VERDICT)

    return run


ROWS = [
    response("p1", r"\boxed{4}", "greedy"),
    response("p1", r"wait, \boxed{4}", index=0),
    response("p1", r"\boxed{4.0}", index=1),
    response("p1", r"\boxed{5}", index=2),
    response("p1", "no idea", index=3),
    response("p2", r"\boxed{5}", "greedy"),
    response("p2", r"Alternatively, \boxed{4}", index=0),
    response("p2", r"\boxed{5}", index=1),
    response("p2", r"\boxed{5}", index=2),
    response("p2", r"\boxed{4", index=3, truncated=True),
]


def test_scores_by_hand(grade):
    metrics, verdicts = grade(ROWS)
    assert metrics["sums/problems"] == 2
    assert metrics["sums/greedy"] == 0.5
    assert metrics["sums/avg_at_4"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert metrics["sums/pass_at_1"] == pytest.approx(metrics["sums/avg_at_4"])
    # p1: 2 of 4 correct, 1 - C(2,2)/C(4,2) = 5/6; p2: 1 of 4, 1 - C(3,2)/C(4,2) = 1/2.
    assert metrics["sums/pass_at_2"] == pytest.approx((5 / 6 + 1 / 2) / 2)
    assert metrics["sums/maj_at_4"] == 0.5
    assert metrics["sums/undecided_fraction"] == pytest.approx(2 / 10)
    assert metrics["sums/verifier_failed_fraction"] == 0
    assert metrics["sums/truncated_fraction"] == pytest.approx(1 / 8)
    assert metrics["sums/keyword_rate_wait"] == metrics["sums/branching_frequency"] == pytest.approx(1 / 8)
    assert metrics["sums/keyword_rate_re_check"] == 0
    assert metrics["sums/greedy_low"] <= 0.5 <= metrics["sums/greedy_high"]
    assert " ".join(verdicts["verdict"]) == (
        "correct correct correct wrong unparsed wrong correct wrong wrong unparsed"
    )


def in_turns(problem, text, final, index, is_correct=None, fault=""):
    known = {"observed": [2, 4], "turns": 2, "calls": 1, "failed_calls": 0, "final_response": final}
    said = {"ending": "end_of_sequence", "environment_reward": None, "environment_correct": is_correct}
    return {**response(problem, text, index=index), **known, **said, "environment_fault": fault}


def test_of_several_turns_the_answer_counts_and_the_environment_may_decide(grade):
    printed = r"print('\boxed{4}')[output: \boxed{4}]"
    rows = [
        in_turns("p1", printed, "I do not know", 0),
        in_turns("p1", r"[output: \boxed{5}]\boxed{4}", r"\boxed{4}", 1),
        in_turns("p1", r"[output: 4]\boxed{5}", r"\boxed{5}", 2, is_correct=True),
        in_turns("p1", r"[output: 4]\boxed{4}", r"\boxed{4}", 3, is_correct=False),
        in_turns("p2", printed, r"\boxed{4}", 0, fault="its process ended"),
        # A prompt that left no room has no episode.
        response("p2", "", index=1),
        *(in_turns("p2", "", "", index) for index in (2, 3)),
    ]
    _, verdicts = grade(rows)
    unparsed = ["unparsed"] * 3
    assert list(verdicts["verdict"]) == ["unparsed", "correct", "correct", "wrong", "crashed", *unparsed]
    assert verdicts["reason"][4] == "its process ended" and verdicts["path"][3] == "environment"


def test_wrong_answers_that_begin_alike_do_not_vote_together(grade):
    texts = [rf"\boxed{{{answer}}}" for answer in (137, 12, 15, 4, 4)]
    metrics, verdicts = grade([response("p1", text, index=index) for index, text in enumerate(texts)])
    assert metrics["sums/maj_at_5"] == 1 and verdicts["extracted"].tolist() == ["137", "12", "15", "4", "4"]


def test_trials_are_counted_where_all_problems_are_digits(grade):
    question = "Digits 8 6 7 4: 2A+5B=43. What is AB?"
    texts = [
        "8,4:16+20=36 low\n4,7:8+35=43 yes\nThe answer is \\boxed{47}.",
        "7,6:14+30=44 high\n7,6:14+30=43 yes\nThe answer is \\boxed{76}.",  # repeated, wrong, a false claim
        "The answer is \\boxed{47}.",
        "8,6:16+30=46 high",
    ]
    rows = [response("p1", text, index=index, answer="47") | {"problem": question} for index, text in enumerate(texts)]
    metrics, _ = grade(rows)
    found = {name.removeprefix("sums/"): value for name, value in metrics.items()}
    assert found["trials_mean"] == 5 / 4 and found["without_trials_fraction"] == 1 / 4
    assert found["repeated_trial_fraction"] == found["wrong_trial_fraction"] == 1 / 5
    assert found["false_claim_fraction"] == 1 / 2
    others = [response("p2", "4", index=index) for index in range(4)]  # 2+2? is not such a problem
    assert "sums/trials_mean" not in grade([*rows, *others])[0]


def test_problems_that_all_or_none_of_the_samples_solve(grade):
    rows = [
        response(name, rf"\boxed{{{answer}}}", index=index)
        for name, answers in (("p1", (4, 4)), ("p2", (4, 5)), ("p3", (5, 5)))
        for index, answer in enumerate(answers)
    ]
    metrics, _ = grade(rows)
    assert metrics["sums/always_solved_fraction"] == metrics["sums/never_solved_fraction"] == pytest.approx(1 / 3)


def test_a_headline_is_the_score_of_all_samples_or_else_the_greedy_one(grade, tmp_path):
    metrics, _ = grade([*ROWS, response("p2", r"\boxed{4}", "greedy", benchmark="other")])
    for name, score in (("sums", "avg_at_4"), ("other", "greedy")):
        assert json.loads((tmp_path / "headline" / f"{name}.json").read_text()) == {
            "score": metrics[f"{name}/{score}"],
            "low": metrics[f"{name}/{score}_low"],
            "high": metrics[f"{name}/{score}_high"],
            "tokens": metrics[f"{name}/response_tokens_mean"],
        }


def test_a_failing_verifier_fails_the_stage_and_leaves_no_scores(grade, tmp_path, monkeypatch):
    hang = response("p3", r"\boxed{10}", "greedy", answer=r"\sum_{k=1}^{4} k")
    monkeypatch.setattr("stages.engines.verifier.verifier.compare", worker_functions.compare_and_die)
    with pytest.raises(UserError, match=r"1 crashed.*abort_undecided_fraction"):
        grade([hang, *ROWS[:1]])
    assert not (tmp_path / "metrics").exists() and not (tmp_path / "verdicts").exists()
    metrics, verdicts = grade([hang, *ROWS])
    assert verdicts["verdict"][0] == "crashed"
    assert metrics["sums/verifier_failed_fraction"] == pytest.approx(1 / 11)


def test_a_response_that_exhausts_its_limits_is_counted_and_stops_nothing(grade, monkeypatch):
    monkeypatch.setattr("stages.engines.verifier.verifier.compare", worker_functions.compare_without_memory)
    metrics, verdicts = grade([response("p3", r"\boxed{10}", "greedy", answer=r"\sum_{k=1}^{4} k"), *ROWS])
    assert verdicts["verdict"][0] == "exhausted"
    assert metrics["sums/exhausted_fraction"] == pytest.approx(1 / 11)
    assert metrics["sums/verifier_failed_fraction"] == 0


@pytest.mark.parametrize(
    ("rows", "params", "message"),
    [
        ([], PARAMS, "no rows"),
        (ROWS, {**PARAMS, "grade": {**PARAMS["grade"], "pass_at_k": [8]}}, "pass_at_k needs 8 samples"),
        (ROWS[:-1], PARAMS, "different numbers of samples"),
        (ROWS, {**PARAMS, "grade": {**PARAMS["grade"], "draws": 3}}, "grade.draws: unknown key"),
        (ROWS, {"grade": PARAMS["grade"]}, "verifier"),
    ],
)
def test_a_users_mistake_is_told_in_a_sentence(grade, rows, params, message):
    with pytest.raises(UserError, match=message):
        grade(rows, params=params)


def test_greedy_alone_has_no_sampled_scores(grade):
    metrics, _ = grade([row for row in ROWS if row["mode"] == "greedy"])
    assert "sums/greedy" in metrics
    assert not any("_at_" in name for name in metrics)
    assert metrics["sums/response_tokens_mean"] == 9


OWN = {"kind": "function", "file": "custom/mine.py", "name": "is_right", "arguments": {"least": 2}}


@pytest.fixture
def own_verifier(grade, tmp_path, monkeypatch):
    """Grades ROWS by a user's function with this source."""
    (tmp_path / "custom").mkdir()
    monkeypatch.setattr("stages.engines.custom_functions.custom_file", lambda name: tmp_path / name)

    def run(source, verifier=OWN, rows=ROWS, **limits):
        (tmp_path / "custom/mine.py").write_text(source)
        params = {"grade": {**PARAMS["grade"], "verifier": verifier}, "verifier": {**PARAMS["verifier"], **limits}}
        return grade(rows, params)

    return run


def test_a_function_of_the_users_judges_in_place_of_the_rules(own_verifier, grade):
    metrics, verdicts = own_verifier("def is_right(response, mode, least): return response.count('e') + least > 3")
    right = [response["response"].count("e") > 1 for response in ROWS]
    assert verdicts["verdict"].tolist() == ["correct" if one else "wrong" for one in right] and any(right)
    assert set(verdicts["path"]) == {"custom/mine.py: is_right"} and set(verdicts["reason"]) == {""}
    assert verdicts["extracted"].tolist() == grade(ROWS)[1]["extracted"].tolist(), "as the rules extract, for votes"
    assert metrics["sums/avg_at_4"] == sum(right) / 8


def test_a_function_of_the_users_reads_the_course_of_several_turns(own_verifier):
    source = "def is_right(turns, calls, final_response, environment_reward, response, least):\n"
    source += "    return (turns, calls, final_response, environment_reward) == (2, 1, 'yes', None)"
    rows = [in_turns("p1", "call yes", "yes", 0), in_turns("p1", "call no", "no", 1), response("p1", "yes", index=2)]
    rows.append(in_turns("p1", "call no", "no", 3, is_correct=True))
    _, verdicts = own_verifier(source, rows=rows)
    assert list(verdicts["verdict"]) == ["correct", "wrong", "wrong", "correct"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [("0.5", "it returned 0.5, which is neither True nor False"), ("1 / 0", "ZeroDivisionError: division by zero")],
)
def test_what_a_verifier_of_the_users_cannot_say_is_a_crash_with_its_reason(own_verifier, said, reason):
    source = f"def is_right(response, least):\n    return {said} if 'wait' in response else True"
    metrics, verdicts = own_verifier(source)
    row = verdicts.iloc[1]
    assert (row["verdict"], row["reason"], row["extracted"]) == ("crashed", reason, "4")
    assert (verdicts["verdict"].drop(1) == "correct").all() and metrics["sums/verifier_failed_fraction"] == 0.1
    with pytest.raises(UserError, match=rf"failed on 1 of 10 .* correct custom/mine.py \(the first: {reason[:12]}"):
        own_verifier(source, abort_undecided_fraction=0.05)


@pytest.mark.parametrize(
    ("source", "verifier", "message"),
    [
        ("def is_right(gold): return 1", {**OWN, "arguments": None}, "wants gold, which no row has"),
        ("", {**OWN, "file": "custom/../mine.py", "name": "is right"}, "grade.verifier.name: String should match"),
        ("", {**OWN, "kind": "rule"}, "grade.verifier.kind: Input should be 'function'"),
    ],
)
def test_a_mistake_in_a_verifier_of_the_users_stops_the_stage(own_verifier, source, verifier, message):
    with pytest.raises(UserError, match=message):
        own_verifier(source, verifier)
