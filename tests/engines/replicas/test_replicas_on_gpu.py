"""Two vLLM replicas and a trainer on one GPU: weights are pulled, a trajectory moves, a killed replica frees its
memory. No test measures speed, because both sides share one device.
"""

import os
import signal
import time
from importlib.util import find_spec

import pytest
import torch

from stages.engines.distributed.ray_session import ray_session, this_node
from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.relays.published_weights import PublishedWeights, weights_folder
from stages.engines.replicas.fleet import Died, Fleet, Reported, Started, spec_of
from stages.engines.replicas.replica import Orders, Probe
from stages.engines.samplers.params import RayReplicas, VllmSamplerParams
from stages.engines.samplers.protocol import SamplingSettings, Trajectory
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.params import AdamwParams, TorchTrainerParams
from tests.fakes.tiny_policy import write_tiny_policy

# Searched by name: importing vLLM takes two seconds in each worker that collects this file and has no GPU.
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]
GAP = 0.05
"""Gap of a token's mean log-prob, in bfloat16, between an engine and the trainer."""
SAMPLER = VllmSamplerParams(
    kind="vllm",
    dtype="bfloat16",
    max_model_tokens=512,
    max_sequences=16,
    memory_fraction=0.25,
    kv_cache_gib=1.0,
    tensor_parallel=1,
    enforce_eager=True,
    replicas=RayReplicas(kind="ray", count=2),
)
SETTINGS = SamplingSettings(1.0, 1.0, 0, 256, None)
JOBS = {number: Trajectory([5, 6, 7 + number], 100 + number) for number in range(4)}


def logprobs_of(trainer, prompts, responses):
    batch = pack([TokenSequence(*pair) for pair in zip(prompts, responses, strict=True)])
    return trainer.evaluate(batch).logprobs.cpu()[batch.response_mask.bool()].tolist()


def until(fleet, events, condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, events
        events += fleet.poll(0.5)


def reports(events, replica):
    return [event.report for event in events if isinstance(event, Reported) and event.replica == replica]


def test_replicas_pull_hand_over_and_come_back_on_one_gpu(tmp_path):
    policy = write_tiny_policy(tmp_path / "policy", hidden=512, layers=4)
    torch_params = TorchTrainerParams(
        kind="torch", device="cuda", dtype="mixed", threads=2, micro_batch_tokens=4096, gradient_checkpointing=False
    )
    adamw = AdamwParams(kind="adamw", learning_rate=1e-5, beta1=0.9, beta2=0.95, weight_decay=0.0)
    trainer = build_trainer(torch_params, adamw, 1.0, language_model(policy, torch_params))
    prompts, answers = [[5, 6], [7, 8]], [[9, 10, 11], [12, 13]]
    with ray_session(4) as run:
        probe = Probe(prompts, answers, logprobs_of(trainer, prompts, answers), 0.5)
        folder = PublishedWeights(weights_folder(run, this_node()))
        folder.publish(1, trainer.named_weights(), probe.to_metadata())
        fleet = Fleet(spec_of(SAMPLER, policy, run, gpus=0.3), 2, stalled_seconds=10.0, report_seconds=0.05)
        events = []
        try:
            until(fleet, events, lambda: len(fleet.started()) == 2)
            for replica in (0, 1):
                fleet.order(replica, Orders(pull=1))
            until(fleet, events, lambda: all(any(r.pulled for r in reports(events, n)) for n in (0, 1)))
            assert max(report.probe_gap or 0.0 for event in (0, 1) for report in reports(events, event)) < 0.5

            fleet.order(0, Orders(begin=JOBS, settings=SETTINGS))
            until(fleet, events, lambda: any(report.new_tokens for report in reports(events, 0)))
            fleet.order(0, Orders(withdraw=tuple(JOBS)))
            until(fleet, events, lambda: any(report.withdrawn for report in reports(events, 0)))
            (moved,) = [report.withdrawn for report in reports(events, 0) if report.withdrawn]
            begun = {name: Trajectory(JOBS[name].prompt, JOBS[name].seed, part) for name, part in moved.items()}
            assert begun and all(one.begun.token_ids for one in begun.values())
            fleet.order(1, Orders(begin=begun, under=1, settings=SETTINGS))
            ended = {}

            def all_ended():
                ended.update({k: v for report in reports(events, 1) for k, v in report.ended.items()})
                return ended.keys() >= begun.keys()

            until(fleet, events, all_ended)
            for name, sample in ended.items():
                assert sample.policy_version == 1
                assert sample.token_ids[: len(moved[name].token_ids)] == list(moved[name].token_ids)
                own = logprobs_of(trainer, [JOBS[name].prompt], [sample.token_ids])
                gap = sum(abs(a - b) for a, b in zip(own, sample.logprobs, strict=True)) / len(own)
                assert gap < GAP

            free = torch.cuda.mem_get_info()[0]
            victim = next(event.pid for event in events if isinstance(event, Started) and event.replica == 0)
            os.kill(victim, signal.SIGKILL)
            until(fleet, events, lambda: any(isinstance(event, Died) for event in events))
            until(fleet, events, lambda: len(fleet.started()) == 2)
            fleet.order(0, Orders(pull=1))
            before = len(reports(events, 0))
            until(fleet, events, lambda: any(report.pulled for report in reports(events, 0)[before:]))
            assert torch.cuda.mem_get_info()[0] > free - (2 << 30), "the killed replica's memory is still taken"
        finally:
            fleet.close()
            trainer.close()
