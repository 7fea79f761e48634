import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from tests.fakes import worker_functions
from tests.fakes.processes import wait_until

PARAMS = VerifierParams(timeout_seconds=2, memory_mib=768, workers=2, abort_undecided_fraction=0.1)
SUM = r"\sum_{k=1}^{5} k"
"""Something that only math-verify works out, so that a worker is asked."""
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


def test_an_item_that_hangs_costs_the_others_nothing(verifier):
    pairs = [(SUM, HANG), *[(SUM, rf"\boxed{{15+{n}-{n}}}") for n in range(10)]]
    judged = verifier.judge(pairs)
    assert (judged[0].verdict, judged[0].reason) == (Verdict.EXHAUSTED, "over_2_seconds")
    assert verdicts(judged[1:]) == ["correct"] * 10


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_killed_from_outside_changes_no_verdict(times):
    """One death is made good; a second one stops the stage instead of costing the verdict."""
    params = PARAMS.model_copy(update={"workers": 1, "timeout_seconds": 6.0})
    with Verifier(params) as verifier, ThreadPoolExecutor() as threads:
        verifier.judge([EQUAL])
        start = psutil.Process(verifier.worker_pids()[0]).cpu_times().user
        judging = threads.submit(verifier.judge, [(SUM, HANG), EQUAL])
        killed = set()
        for _ in range(times):
            wait_until(lambda: set(verifier.worker_pids()) - killed)
            [pid] = verifier.worker_pids()
            wait_until(lambda pid=pid: psutil.Process(pid).cpu_times().user > 1.5 * start + 1)
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        if times == 2:
            with pytest.raises(UserError, match="killed from outside"):
                judging.result()
        else:
            assert verdicts(judging.result()) == ["exhausted", "correct"]


def test_a_comparison_without_memory_is_exhausted(monkeypatch):
    monkeypatch.setattr("stages.engines.verifier.verifier.compare", worker_functions.compare_without_memory)
    with Verifier(PARAMS) as verifier:
        [judged] = verifier.judge([EQUAL])
    assert (judged.verdict, judged.reason) == ("exhausted", "memory_limit")


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


def test_a_busy_machine_turns_no_verdict():
    params = PARAMS.model_copy(update={"workers": 1, "timeout_seconds": 0.5})
    with Verifier(params) as verifier:
        verifier.judge([EQUAL])
        (pid,) = verifier.worker_pids()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.5, os.kill, (pid, signal.SIGCONT)).start()
        assert verdicts(verifier.judge([(SUM, "15+2-2")])) == ["correct"]


def test_half_a_character_is_a_question_mark(verifier):
    halved, marked = verifier.judge([(gold, EQUAL[1]) for gold in (EQUAL[0] + "\ud800", EQUAL[0] + "?")])
    assert (halved.verdict, halved.reason) == (marked.verdict, marked.reason)
