"""The verifier and its workers: responses that attack, hang, fill memory or die do not cost others their verdict."""

import resource
import threading
from unittest.mock import patch

import psutil
import pytest
from pydantic import ValidationError

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.distributed.ray_session import ray_session
from stages.engines.verifier.params import ThoughtMarkers, VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from tests.fakes import worker_functions
from tests.fakes.hostile_answers import hostile_pairs
from tests.fakes.processes import assert_all_end, wait_until

PARAMS = VerifierParams(timeout_seconds=2, memory_mib=768, workers=2, abort_undecided_fraction=0.1)
SUM = r"\sum_{k=1}^{5} k"
"""An answer that only math-verify can compute, so a worker gets it."""
EQUAL = (SUM, "15")
HANG = r"\boxed{7777}"


@pytest.fixture(scope="module", autouse=True)
def one_formula_hangs():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.engines.verifier.verifier.compare", worker_functions.compare_or_hang)
        yield


@pytest.fixture(scope="module")
def verifier():
    with Verifier(PARAMS) as verifier:
        verifier.judge([EQUAL, (SUM, "15+2-2")])  # two questions start both workers
        yield verifier


def verdicts(judgements):
    return [judgement.verdict for judgement in judgements]


def test_plain_answers_start_no_worker():
    with Verifier(PARAMS) as verifier:
        pairs = [("12", r"\boxed{12}"), ("12", r"\boxed{13}"), ("12", r"\boxed{1"), ("12", ""), ("12", "#### 12")]
        assert verdicts(verifier.judge(pairs)) == ["correct", "wrong", "unparsed", "unparsed", "correct"]
        assert verifier.worker_pids() == []


@pytest.mark.parametrize(
    "tower",
    [
        *("9^(9^(9^9))", "5^(5^(5^(5^5)))", "9^{9^{9^{9}}}", "9**9**9**9", "((99999999!)!)!", r"9^\infty"),
        *(r"\binom{10^9}{5 \cdot 10^8}", "9" + "(" * 1000, r"9\frac", "9\x00", "9; import os", r"\sqrt[9]{" * 99),
    ],
)
@pytest.mark.parametrize("form", [r"\boxed{%s}", "%s", "The answer is %s."])
def test_hostile_answers_are_never_correct(verifier, tower, form):
    judged = verifier.judge([(tower[0], form % tower), ("2", r"\boxed{2}")])
    assert judged[0].verdict is not Verdict.CORRECT
    assert judged[1].verdict is Verdict.CORRECT


def test_the_thought_markers_of_the_section_are_read():
    """By hand: the first is closed and followed by 12, the second ends inside the thought, the third never answers."""
    texts = [
        r"[THINK]\boxed{13}[/THINK] \boxed{12}",
        r"[THINK]\boxed{12}",
        r"\boxed{12}[/THINK]",
        r"<think>\boxed{12}</think>",
    ]
    pairs = [("12", text) for text in texts]
    thought = ThoughtMarkers(open="[THINK]", close="[/THINK]")
    with Verifier(PARAMS.model_copy(update={"thought": thought})) as verifier:
        judged = verifier.judge(pairs, truncated=[False, True, False, False], require_marker=True)
    assert verdicts(judged) == ["correct", "unparsed", "unparsed", "correct"]
    assert [one.reason for one in judged[1:3]] == ["unfinished_thought"] * 2
    with Verifier(PARAMS) as verifier:
        assert verdicts(verifier.judge(pairs)) == ["correct", "correct", "correct", "unparsed"]


@pytest.mark.parametrize(("opening", "closing"), [("", "b"), ("think", "/think"), ("<t>", "<t>")])
def test_thought_markers_that_cannot_be_told_apart_are_refused(opening, closing):
    with pytest.raises(ValidationError, match=r"must not contain each other|at least 1 character"):
        ThoughtMarkers(open=opening, close=closing)


def test_an_item_that_hangs_costs_the_others_nothing(verifier):
    pairs = [(SUM, HANG), *[(SUM, rf"\boxed{{15+{n}-{n}}}") for n in range(10)]]
    judged = verifier.judge(pairs)
    assert (judged[0].verdict, judged[0].reason) == (Verdict.EXHAUSTED, "over_2_seconds")
    assert verdicts(judged[1:]) == ["correct"] * 10


def test_a_comparison_without_memory_is_exhausted(monkeypatch):
    monkeypatch.setattr("stages.engines.verifier.verifier.compare", worker_functions.compare_without_memory)
    with Verifier(PARAMS) as verifier:
        [judged] = verifier.judge([EQUAL])
    assert (judged.verdict, judged.reason) == ("exhausted", "memory_limit")


def test_workers_that_are_killed_from_outside_are_an_error_not_a_verdict(monkeypatch):
    monkeypatch.setattr("stages.engines.verifier.verifier.compare", worker_functions.compare_and_be_killed)
    with Verifier(PARAMS) as verifier, pytest.raises(UserError, match="killed from outside"):
        verifier.judge([EQUAL])


def test_a_worker_that_cannot_start_is_an_error_not_a_verdict(monkeypatch):
    monkeypatch.setattr("stages.engines.verifier.verifier.prepare", worker_functions.refuse)
    told = r"could not be started \(exit code 1: ImportError: no such library here\).*memory_mib is 768"
    with Verifier(PARAMS) as verifier, pytest.raises(RuntimeError, match=told):
        verifier.judge([EQUAL])


def test_rewards_demand_a_marked_answer(verifier):
    prose = "First 3, and then the total would be 7"
    assert verdicts(verifier.judge([("7", prose)])) == ["correct"]
    assert verdicts(verifier.judge([("7", prose)], require_marker=True)) == ["unparsed"]
    assert verdicts(verifier.judge([("7", "7")], require_marker=True)) == ["correct"]


def test_a_truncated_response_counts_only_its_closed_box(verifier):
    pairs = [("1", "The answer is 1"), ("1", r"\boxed{1} so we"), ("1", r"\boxed{1")]
    assert verdicts(verifier.judge(pairs, truncated=[True] * 3)) == ["unparsed", "correct", "unparsed"]


def test_equal_questions_are_asked_once(verifier):
    wait_until(lambda: len(verifier.worker_pids()) == PARAMS.workers)
    before = set(verifier.worker_pids())
    judged = verifier.judge([(SUM, HANG)] * 50)
    assert verdicts(judged) == ["exhausted"] * 50
    assert len(before - set(verifier.worker_pids())) == 1, "each that is asked costs a worker its life"


def test_half_a_character_is_a_question_mark(verifier):
    halved, marked = verifier.judge([(gold, EQUAL[1]) for gold in (EQUAL[0] + "\ud800", EQUAL[0] + "?")])
    assert (halved.verdict, halved.reason) == (marked.verdict, marked.reason)


def test_hostile_responses_cost_little(tmp_path, monkeypatch):
    before = psutil.Process().memory_info().rss
    monkeypatch.chdir(tmp_path)
    with Verifier(PARAMS) as verifier:
        verifier.judge([EQUAL, (SUM, "15+2-2")])
        judged = verifier.judge(hostile_pairs(150, seed=11))
        wait_until(lambda: len(verifier.worker_pids()) == PARAMS.workers)
        assert verifier.judge([EQUAL])[0].verdict == "correct"
    assert "correct" not in {one.verdict for one in judged}
    assert not list(tmp_path.iterdir())
    assert sum(one.path == "math_verify" for one in judged) < 75
    assert psutil.Process().memory_info().rss - before < 300 * 2**20


class Grader:
    """The actor's program: a verifier that the actor's thread and another one call."""

    def __init__(self):
        with patch("stages.engines.verifier.verifier.compare", worker_functions.compare_or_hang):
            self.verifier = Verifier(PARAMS)

    def judge(self, pairs):
        judged = self.verifier.judge(pairs)
        thread = threading.Thread(target=lambda: judged.extend(self.verifier.judge(pairs)))
        thread.start()
        thread.join()
        return [one.verdict.value for one in judged]

    def workers(self):
        return {pid: resource.prlimit(pid, resource.RLIMIT_AS) for pid in self.verifier.worker_pids()}


def test_limits_hold_in_a_ray_actor():
    """The actor is real: its process belongs to Ray, its methods run in any thread, and its end ends the workers."""
    with ray_session(processes=1):
        import ray

        grader = ray.remote(num_cpus=1)(Grader).remote()
        assert ray.get(grader.judge.remote([(SUM, HANG), EQUAL])) == ["exhausted", "correct"] * 2
        confined = (PARAMS.memory_mib << 20,) * 2

        def workers():
            return ray.get(grader.workers.remote())

        # The worker that replaces the killed one confines itself before it takes a question.
        wait_until(lambda: set(workers().values()) == {confined})
        pids = list(workers())
        ray.kill(grader)
        assert_all_end(pids)


def test_mentioning_and_hedging_are_not_paid(verifier):
    """Gold answer 5, judged as rewards are. A short text is its own answer; others need a marker and one value."""
    paid = ["The answer is 5.", "5"]
    unpaid = [
        "So 2 and 3 make 5",
        r"\boxed{5} or \boxed{6}",
        "Answer: 5 or 6",
        r"\boxed{6}. Answer: 5 was my first thought",
        r"\boxed{4} \boxed{5}",
        "<answer>5</answer><answer>6</answer>",
        r"\boxed{2+3}",
        r"\boxed{5} % \boxed{6}",
    ]
    judged = verifier.judge([("5", text) for text in paid + unpaid], require_marker=True)
    assert [text for text, one in zip(paid + unpaid, judged, strict=True) if one.verdict == "correct"] == paid
