"""Responses that attack: no time, no memory, no file, no verdict `correct`, and a pool at full strength afterwards."""

import multiprocessing
import threading
import time

import psutil
import pytest

from benchmarks.hostile_answers import GOLDS, hostile_pairs
from stages.engines.verifier import Verifier, VerifierParams

PARAMS = VerifierParams(timeout_seconds=1, memory_mib=768, workers=2, abort_undecided_fraction=0.1)
SLOW = (r"\lfloor x \rfloor+1", r"1+\lfloor x \rfloor")
HANG = r"\boxed{\lfloor 9^{9^{99}} \rfloor}"


def judge_hostile(count, directory, monkeypatch):
    monkeypatch.chdir(directory)
    with Verifier(PARAMS) as verifier:
        verifier.judge([SLOW, (SLOW[0], SLOW[1] + "+0")])
        started = time.monotonic()
        judged = verifier.judge(hostile_pairs(count, seed=11))
        seconds = time.monotonic() - started
        deadline = time.monotonic() + 20
        while len(verifier.worker_pids()) < PARAMS.workers and time.monotonic() < deadline:
            time.sleep(0.05)
        workers = len(verifier.worker_pids())
        assert verifier.judge([SLOW])[0].verdict == "correct"
    assert workers == PARAMS.workers
    assert "correct" not in {one.verdict for one in judged}
    assert not list(directory.iterdir())
    return judged, seconds


def test_hostile_responses_cost_little(tmp_path, monkeypatch):
    before = psutil.Process().memory_info().rss
    judged, _ = judge_hostile(150, tmp_path, monkeypatch)
    assert sum(one.path == "math_verify" for one in judged) < 75
    assert psutil.Process().memory_info().rss - before < 300 * 2**20


def test_the_generator_draws_every_gold_answer():
    assert {gold for gold, _ in hostile_pairs(500, seed=1)} == set(GOLDS)
    assert hostile_pairs(20, seed=3) == hostile_pairs(20, seed=3)


def judge_elsewhere(answers):
    with Verifier(PARAMS) as verifier:
        answers.put([one.verdict.value for one in verifier.judge([("x+1", HANG), SLOW])])


def test_limits_hold_in_a_spawned_process_and_in_a_thread():
    """As in a Ray actor: a process that another program started, and there perhaps not its main thread."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=judge_elsewhere, args=(answers,))
    process.start()
    assert answers.get(timeout=100) == ["timed_out", "correct"]
    process.join()
    thread = threading.Thread(target=judge_elsewhere, args=(answers,))
    thread.start()
    assert answers.get(timeout=60) == ["timed_out", "correct"]
    thread.join()


def test_limits_hold_in_a_ray_actor():
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:

        @ray.remote
        class Grader:
            def judge(self, pairs):
                with Verifier(PARAMS) as verifier:
                    return [one.verdict.value for one in verifier.judge(pairs)]

        assert ray.get(Grader.remote().judge.remote([("x+1", HANG), SLOW])) == ["timed_out", "correct"]
    finally:
        ray.shutdown()
