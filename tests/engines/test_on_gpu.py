"""Behaviour of a GPU that must equal a CPU's, or must differ. Sizes are small: no test measures speed.

`RETRACE_GPU_TESTS_ON=cpu pytest tests/engines/test_on_gpu.py` runs the part that a CPU can run, to keep it working.
"""

import importlib.util
import os
import signal
import subprocess
import sys
import time
import warnings

import pytest
import torch

from stages.engines.policies.language_model import language_model
from stages.engines.policies.lora import with_lora
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.policy_folders import save_policy
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.protocol import SamplingSettings, Trajectory, sample_trajectories
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.params import AdamwParams, DeepspeedTrainerParams, MuonParams, TorchTrainerParams
from stages.foundations.errors import gpu_failure
from tests.engines.policies import test_families as families
from tests.fakes.engine_params import LORA
from tests.fakes.tiny_policy import byte_tokenizer, plain_logprobs, tiny_model, write_tiny_policy

DEVICE = os.environ.get("RETRACE_GPU_TESTS_ON", "cuda")
pytestmark = pytest.mark.gpu
needs_cuda = pytest.mark.skipif(DEVICE == "cpu", reason="a CPU has no such thing")
ADAMW = AdamwParams(kind="adamw", learning_rate=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.0)
MUON = MuonParams(kind="muon", learning_rate=0.02, adamw_learning_rate=0.003, beta1=0.9, beta2=0.98, weight_decay=0.01)
SEQUENCES = [TokenSequence([5, 6, 7], [8, 9]), TokenSequence([10], [11, 12, 13]), TokenSequence([3, 4], [9])]
BATCH = pack(SEQUENCES)


def loss_of(statistics, batch):
    return -(statistics.logprobs * batch.response_mask).sum() / 6, {"tokens": batch.response_mask.sum()}


def trainer_on(folder, device=DEVICE, dtype="mixed", optimizer=ADAMW, checkpointing=False, lora=None, **deepspeed):
    own = {"threads": 1, "micro_batch_tokens": 64, "gradient_checkpointing": checkpointing, "dtype": dtype}
    if deepspeed:
        params = DeepspeedTrainerParams(kind="deepspeed", offload_optimizer=False, **own, **deepspeed)
    else:
        params = TorchTrainerParams(kind="torch", device=device, **own)
    model = language_model(folder, params)
    return build_trainer(params, optimizer, 1.0, with_lora(model, lora, 0) if lora else model)


def losses(trainer, updates=5):
    return [trainer.update([BATCH], loss_of, 1.0).loss for _ in range(updates)]


def weights_of(trainer):
    return {name: weight.float().cpu().clone() for name, weight in trainer.learned_weights()}


@needs_cuda
def test_a_full_card_is_told_in_one_sentence_and_nothing_stays_on_it():
    before = torch.cuda.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError) as found:
        torch.empty(1 << 42, dtype=torch.uint8, device="cuda")
    assert gpu_failure(found.value).startswith(("the card's memory is full", "the card is shared"))
    assert torch.cuda.memory_allocated() == before


@pytest.fixture
def policy(tmp_path):
    return write_tiny_policy(tmp_path / "policy")


def test_mixed_precision_learns_as_float32_does_on_a_cpu(policy):
    there, here = trainer_on(policy), trainer_on(policy, device="cpu", dtype="float32")
    before = weights_of(there)
    found, exact = losses(there, 20), losses(here, 20)
    assert found[-1] < found[0] and found == pytest.approx(exact, abs=1e-2 + 0.02 * abs(exact[0]))
    moved = [(weights_of(there)[name] != weight).float().mean() for name, weight in before.items()]
    seen = {"model.embed_tokens.weight", "lm_head.weight"}  # most tokens did not occur
    assert min(share for share, name in zip(moved, before, strict=True) if name not in seen) > 0.99


def test_a_tiny_learning_rate_moves_weights(policy):
    trainer = trainer_on(policy, optimizer=ADAMW.model_copy(update={"learning_rate": 1e-6}))
    before = weights_of(trainer)["model.layers.0.mlp.up_proj.weight"]
    losses(trainer, 10)
    assert (weights_of(trainer)["model.layers.0.mlp.up_proj.weight"] != before).float().mean() > 0.99


def test_gradient_checkpointing_changes_nothing_that_counts(policy):
    plain, saved = losses(trainer_on(policy)), losses(trainer_on(policy, checkpointing=True))
    assert plain == pytest.approx(saved, rel=1e-2)


def test_muon_lowers_the_loss(policy):
    found = losses(trainer_on(policy, optimizer=MUON), 8)
    assert found[-1] < found[0]


@pytest.mark.parametrize("optimizer", [ADAMW, MUON], ids=["adamw", "muon"])
def test_a_checkpoint_goes_on_where_it_was(policy, tmp_path, optimizer):
    first = trainer_on(policy, optimizer=optimizer)
    losses(first, 2)
    first.save_checkpoint(tmp_path)
    expected = losses(first, 2)
    second = trainer_on(policy, optimizer=optimizer)
    second.load_checkpoint(tmp_path)
    assert losses(second, 2) == pytest.approx(expected, rel=1e-3)


def test_a_broken_loss_leaves_the_weights_alone(policy):
    trainer = trainer_on(policy)
    before = weights_of(trainer)
    with pytest.raises(FloatingPointError, match="the weights were left as they were"):
        trainer.update([BATCH], lambda found, batch: (loss_of(found, batch)[0] * float("nan"), {}), 1.0)
    assert all(torch.equal(weight, before[name]) for name, weight in weights_of(trainer).items())


def sampler_params(device=DEVICE, dtype="float32"):
    return TorchSamplerParams(kind="torch", device=device, dtype=dtype, threads=1, max_sequences=8)


def sampler_on(device, dtype="float32"):
    return TorchSampler(sampler_params(device, dtype), tiny_model().to(getattr(torch, dtype)), [0])


def drawn(sampler, temperature):
    settings = SamplingSettings(temperature, 1.0, 0, 12, None)
    asked = [Trajectory([5, 6, 7 + number], number) for number in range(4)]
    return asked, dict(sampler.stream(asked, settings))


def test_the_most_probable_tokens_are_the_cpus():
    _, there = drawn(sampler_on(DEVICE), 0.0)
    _, here = drawn(sampler_on("cpu"), 0.0)
    assert {n: one.token_ids for n, one in there.items()} == {n: one.token_ids for n, one in here.items()}


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-3), ("bfloat16", 0.1)])
def test_sampled_log_probs_are_the_trainers(policy, dtype, most):
    asked, found = drawn(sampler_on(DEVICE, dtype), 1.0)
    trainer = trainer_on(policy, dtype="float32")
    for number, one in found.items():
        batch = pack([TokenSequence(asked[number].prompt, one.token_ids)])
        own = trainer.evaluate(batch).logprobs[0].cpu()
        torch.testing.assert_close(own, torch.tensor(one.logprobs), rtol=0, atol=most)
    assert {n: one.token_ids for n, one in drawn(sampler_on(DEVICE, dtype), 1.0)[1].items()} == {
        n: one.token_ids for n, one in found.items()
    }, "equal seeds give equal responses"


@needs_cuda
def test_a_pass_makes_the_host_wait_once(policy):
    """It waits when `token_statistics` counts the tokens that have a gradient."""
    trainer = trainer_on(policy)
    losses(trainer, 2)  # kernels are compiled
    batch = BATCH.to(torch.device(DEVICE))
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            share, _ = loss_of(trainer.model.forward(trainer.model.module, batch), batch)
            share.backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [str(one.message) for one in told if "synchronizing CUDA operation" in str(one.message)]
    assert len(waits) == 1


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_zero_on_one_device_trains_as_the_torch_trainer(policy, stage):
    pytest.importorskip("deepspeed")
    trainer = trainer_on(policy, dtype="float32", zero_stage=stage)
    found = losses(trainer, 4)
    trainer.close()  # the next one starts another group
    assert found == pytest.approx(losses(trainer_on(policy, dtype="float32"), 4), rel=1e-3)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "granite", "qwen3 mixture"])
def test_a_family_computes_what_transformers_computes_on_a_cpu(tmp_path, name):
    """Capped and scaled heads, windows shorter than the sequences, experts."""
    made = families.family(*families.FAMILIES[name])
    save_policy(made, byte_tokenizer(), tmp_path)
    trainer, sampler = trainer_on(tmp_path, dtype="float32"), TorchSampler.from_folder(sampler_params(), tmp_path)
    jobs = [Trajectory(prompt, seed) for seed, prompt in enumerate(families.PROMPTS)]
    for job, sample in zip(jobs, sample_trajectories(sampler, jobs, families.SETTINGS), strict=True):
        expected = plain_logprobs(made, job.prompt, sample.token_ids)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, rtol=0, atol=1e-3)
        trained = trainer.evaluate(pack([TokenSequence(job.prompt, sample.token_ids)])).logprobs[0].cpu()
        torch.testing.assert_close(trained, expected, rtol=0, atol=1e-3)
    packed = trainer.evaluate(pack(families.sequences(), row_tokens=90)).logprobs.cpu()
    for one, ours in zip(families.sequences(), packed, strict=True):
        expected = plain_logprobs(made, one.prompt, one.response)
        torch.testing.assert_close(ours[: len(expected)], expected, rtol=0, atol=1e-3)


needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")


@needs_peft
def test_adapters_in_mixed_precision_learn_as_float32_does_on_a_cpu(policy, tmp_path):
    there, here = trainer_on(policy, lora=LORA), trainer_on(policy, device="cpu", dtype="float32", lora=LORA)
    found, exact = losses(there, 20), losses(here, 20)
    assert found[-1] < found[0] - 0.05 and found == pytest.approx(exact, abs=1e-2 + 0.02 * abs(exact[0]))
    there.save_model(tmp_path / "merged")
    merged = trainer_on(tmp_path / "merged", dtype="float32").evaluate(BATCH).logprobs.cpu()
    torch.testing.assert_close(there.evaluate(BATCH).logprobs.float().cpu(), merged, rtol=0, atol=0.1)


@needs_peft
def test_a_checkpoint_of_adapters_goes_on_where_it_was(policy, tmp_path):
    first, second = (trainer_on(policy, lora=LORA) for _ in range(2))
    losses(first, 2)
    first.save_checkpoint(tmp_path)
    expected = losses(first, 2)
    second.load_checkpoint(tmp_path)
    assert losses(second, 2) == pytest.approx(expected, rel=1e-3)


HOLDER = "import torch, time; held = torch.empty(2**30, device='cuda'); print('held', flush=True); time.sleep(600)"


@needs_cuda
def test_a_killed_process_leaves_nothing_on_the_card():
    torch.zeros(1, device="cuda")
    free = torch.cuda.mem_get_info()[0]
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    assert torch.cuda.mem_get_info()[0] < free - 2**31
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    until = time.monotonic() + 30
    while torch.cuda.mem_get_info()[0] < free - 2**27:
        assert time.monotonic() < until, "memory of a killed process is still taken"
        time.sleep(0.2)
