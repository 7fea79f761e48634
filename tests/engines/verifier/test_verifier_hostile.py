"""Responses that attack: no time, no memory, no file, no verdict `correct`, and a pool at full strength afterwards."""

import multiprocessing
import resource
import threading
from unittest.mock import patch

import psutil

from stages.engines.distributed.ray_session import ray_session
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from tests.fakes import worker_functions
from tests.fakes.hostile_answers import hostile_pairs
from tests.fakes.processes import PATIENCE_SECONDS, assert_all_end, wait_until

PARAMS = VerifierParams(timeout_seconds=1, memory_mib=768, workers=2, abort_undecided_fraction=0.1)
SLOW = (r"\sum_{k=1}^{5} k", "15")
HANG = (SLOW[0], r"\boxed{7777}")


def judge_hostile(count, directory, monkeypatch):
    monkeypatch.chdir(directory)
    with Verifier(PARAMS) as verifier:
        verifier.judge([SLOW, (SLOW[0], "15+2-2")])
        judged = verifier.judge(hostile_pairs(count, seed=11))
        wait_until(lambda: len(verifier.worker_pids()) == PARAMS.workers)
        assert verifier.judge([SLOW])[0].verdict == "correct"
    assert "correct" not in {one.verdict for one in judged}
    assert not list(directory.iterdir())
    return judged


def test_hostile_responses_cost_little(tmp_path, monkeypatch):
    before = psutil.Process().memory_info().rss
    judged = judge_hostile(150, tmp_path, monkeypatch)
    assert sum(one.path == "math_verify" for one in judged) < 75
    assert psutil.Process().memory_info().rss - before < 300 * 2**20


def one_formula_hangs():
    return patch("stages.engines.verifier.verifier.compare", worker_functions.compare_or_hang)


def judge_elsewhere(answers):
    with one_formula_hangs(), Verifier(PARAMS) as verifier:
        answers.put([one.verdict.value for one in verifier.judge([HANG, SLOW])])


def test_limits_hold_in_a_spawned_process_and_in_a_thread():
    """As in a Ray actor: a process that another program started, and there perhaps not its main thread."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=judge_elsewhere, args=(answers,))
    process.start()
    assert answers.get(timeout=PATIENCE_SECONDS) == ["exhausted", "correct"]
    process.join()
    thread = threading.Thread(target=judge_elsewhere, args=(answers,))
    thread.start()
    assert answers.get(timeout=PATIENCE_SECONDS) == ["exhausted", "correct"]
    thread.join()


class Grader:
    """What runs in the actor: a verifier, asked from the actor's own thread and from another."""

    def __init__(self):
        with one_formula_hangs():
            self.verifier = Verifier(PARAMS)

    def judge(self, pairs):
        found = [one.verdict.value for one in self.verifier.judge(pairs)]
        more = []
        thread = threading.Thread(target=lambda: more.extend(self.verifier.judge(pairs)))
        thread.start()
        thread.join()
        return found + [one.verdict.value for one in more]

    def workers(self):
        return {pid: resource.prlimit(pid, resource.RLIMIT_AS) for pid in self.verifier.worker_pids()}


def test_limits_hold_in_a_ray_actor():
    """A real one: its process belongs to Ray, its methods run where Ray likes, and its end ends the workers."""
    with ray_session(processes=1):
        import ray

        grader = ray.remote(num_cpus=1)(Grader).remote()
        assert ray.get(grader.judge.remote([HANG, SLOW])) == ["exhausted", "correct"] * 2
        confined = (PARAMS.memory_mib << 20,) * 2

        def workers():
            return ray.get(grader.workers.remote())

        # The worker in the place of the killed one confines itself before it takes a question.
        wait_until(lambda: set(workers().values()) == {confined})
        pids = list(workers())
        ray.kill(grader)
        assert_all_end(pids)
