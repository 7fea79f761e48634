"""How many runs of an ablation share a card or a machine."""

from __future__ import annotations

from pipelines.ablating.session import FreeResources, jobs_that_fit, wants_one_gpu
from pipelines.graph.recipes import read_recipe, with_changes
from stages.foundations.machine import PROJECT

DIGITS = read_recipe(PROJECT, "digits")
CARD = {"0": 80e9}


def test_small_runs_fill_the_cores_of_a_machine_with_a_large_card():
    count, reason = jobs_that_fit(PROJECT, [DIGITS, {**DIGITS, "seed": 1}], FreeResources(16, 128e9, CARD))
    assert count == 16 and "16 cores" in reason


def test_a_small_card_is_the_limit_and_two_hold_twice_as_many():
    small, reason = jobs_that_fit(PROJECT, [DIGITS], FreeResources(64, 512e9, {"0": 12e9}))
    assert 1 < small < 12 and "on 1 GPUs" in reason
    assert jobs_that_fit(PROJECT, [DIGITS], FreeResources(64, 512e9, {"0": 12e9, "1": 12e9}))[0] == 2 * small


def test_vllm_takes_its_share_of_a_card_whatever_the_policy_needs():
    vllm = read_recipe(PROJECT, "gsm8k-smollm2-gpu")
    large = with_changes(vllm, {"sampler.memory_fraction": 0.6})
    assert jobs_that_fit(PROJECT, [large], FreeResources(64, 512e9, CARD))[0] == 1


def test_the_largest_run_decides():
    wide = with_changes(DIGITS, {"base.hidden_size": 2048, "base.layers": 12})
    both, _ = jobs_that_fit(PROJECT, [DIGITS, wide], FreeResources(64, 512e9, CARD))
    assert both == jobs_that_fit(PROJECT, [wide], FreeResources(64, 512e9, CARD))[0]
    assert both < jobs_that_fit(PROJECT, [DIGITS], FreeResources(64, 512e9, CARD))[0]


def test_without_a_gpu_threads_share_the_cores_and_little_memory_is_the_limit():
    two_threads = with_changes(DIGITS, {"trainer.threads": 2})
    assert jobs_that_fit(PROJECT, [DIGITS], FreeResources(8, 64e9, {}))[0] == 8
    assert jobs_that_fit(PROJECT, [DIGITS, two_threads], FreeResources(8, 64e9, {}))[0] == 4
    count, reason = jobs_that_fit(PROJECT, [DIGITS], FreeResources(8, 8e9, {}))
    assert count == 2 and "of memory" in reason


def test_one_run_at_a_time_is_tried_however_little_there_is():
    assert jobs_that_fit(PROJECT, [DIGITS], FreeResources(1, 1e9, {"0": 1e9}))[0] == 1


def test_a_run_that_takes_several_gpus_goes_alone_and_sees_all_of_them():
    machine = FreeResources(64, 512e9, {"0": 80e9, "1": 80e9})
    asynchronous = read_recipe(PROJECT, "laptop-asynchronous")
    ranks = with_changes(DIGITS, {"launch.gpus_per_node": 2})
    assert wants_one_gpu(DIGITS)
    for several in (ranks, asynchronous):
        assert not wants_one_gpu(several)
        assert jobs_that_fit(PROJECT, [DIGITS, several], machine) == (1, "a run takes several GPUs")
