"""LoRA in both trainers: what is trained, kept, merged, sampled from and rejected."""

import importlib.util
import math
import sys

import pytest
import torch
from safetensors.torch import load_file

from stages.engines.policies.language_model import PolicyUnderAdapters, ReferencePolicy, language_model
from stages.engines.policies.lora import with_lora
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.trainers.deepspeed_trainer import DeepspeedTrainer
from stages.engines.trainers.params import adapter_contradictions
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.foundations.errors import UserError
from tests.engines.deepspeed_ranks import MAX_NORM, deepspeed_params, is_same, micro_batches, snapshot, weighted_loss
from tests.engines.policies.test_forward_probe import GPT2, HEADS, MIXTURE, write_family
from tests.engines.trainers.test_torch_trainer import (
    BATCHES,
    assert_same,
    broken_off_and_resumed,
    likelihood,
    make,
    weights_of,
)
from tests.fakes.engine_params import ADAMW, LORA, MUON, TORCH_SAMPLER, TORCH_TRAINER
from tests.fakes.tiny_policy import write_tiny_policy

# Searched, not imported: every worker collects this file, and the import takes a second.
pytestmark = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="peft is not installed")
NARROW = LORA.model_copy(update={"targets": ["q_proj", "down_proj"], "rslora": True})
BOTH = pytest.mark.parametrize("lora", [LORA, NARROW], ids=["all-linear", "two-targets"])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "mixed"])


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def policy(tmp_path, request):
    return write_tiny_policy(tmp_path / "policy", tie=request.param)


@pytest.fixture
def tied(tmp_path):
    return write_tiny_policy(tmp_path / "policy")


def make_lora(policy, lora=LORA, seed=0, dtype="float32", **changes):
    params = TORCH_TRAINER.model_copy(update={"dtype": dtype, **changes})
    return TorchTrainer(params, ADAMW, 1.0, with_lora(language_model(policy, params), lora, seed))


def trained(trainer, updates=3):
    for _ in range(updates):
        trainer.update(BATCHES, likelihood, 1.0)
    return trainer


def gap(trainer, other):
    return max(
        float((trainer.evaluate(batch).logprobs - other.evaluate(batch).logprobs).abs().max()) for batch in BATCHES
    )


@BOTH
def test_a_saved_policy_says_what_the_adapters_say(policy, tmp_path, lora):
    trainer = trained(make_lora(policy, lora))
    trainer.save_model(tmp_path / "saved")
    assert gap(trainer, make(policy)) > 0.01
    assert gap(trainer, make(tmp_path / "saved")) < 1e-5


@BOTH
def test_only_targets_change_and_by_the_product_of_their_two_matrices(policy, tmp_path, lora):
    trainer = trained(make_lora(policy, lora))
    trainer.save_model(tmp_path / "saved")
    before, after = load_file(policy / "model.safetensors"), load_file(tmp_path / "saved/model.safetensors")
    learned = dict(trainer.learned_weights())
    assert after.keys() == before.keys() == weights_of(trainer).keys()
    scale = lora.alpha / (math.sqrt(lora.rank) if lora.rslora else lora.rank)
    targets = set()
    for name, weight in before.items():
        place = name.removesuffix(".weight")
        if f"{place}.lora_A.default.weight" in learned:
            targets.add(place.rpartition(".")[2])
            up, down = (learned[f"{place}.lora_{one}.default.weight"].double() for one in "BA")
            torch.testing.assert_close(after[name].double(), weight.double() + scale * up @ down, atol=1e-6, rtol=0)
            assert not torch.equal(after[name], weight)
        else:
            assert torch.equal(after[name], weight), name
    layers = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert targets == (layers if lora is LORA else {"q_proj", "down_proj"})


def test_in_mixed_precision_the_saved_policy_is_exact_and_the_sampled_one_rounded(tied, tmp_path):
    trainer = trained(make_lora(tied, NARROW, dtype="mixed"))
    trainer.save_model(tmp_path / "saved")
    before, after = load_file(tied / "model.safetensors"), load_file(tmp_path / "saved/model.safetensors")
    pushed = weights_of(trainer)
    assert any((weight != weight.bfloat16()).any() for weight in before.values())
    for name, weight in before.items():
        assert after[name].dtype == torch.float32 and pushed[name].dtype == torch.bfloat16
        is_target = "q_proj" in name or "down_proj" in name
        assert torch.equal(after[name], weight) == torch.equal(pushed[name], weight.bfloat16()) == (not is_target)
    # Only the network has a copy for computing; the optimizer and its masters have only the adapters.
    assert all(".lora_" in name for name in trainer.learned)


def test_before_the_first_update_nothing_has_changed(policy, tmp_path):
    trainer = make_lora(policy)
    assert gap(trainer, make(policy)) == 0
    trainer.save_model(tmp_path / "saved")
    assert_same(load_file(tmp_path / "saved/model.safetensors"), load_file(policy / "model.safetensors"))


def test_adapters_come_from_their_seed_alone(tied):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = make_lora(tied), make_lora(tied), make_lora(tied, seed=1)
    assert torch.equal(torch.rand(3), expected), "torch's global stream is left alone"
    assert_same(dict(first.learned_weights()), dict(again.learned_weights()))
    drawn = [dict(one.learned_weights())["model.layers.0.mlp.up_proj.lora_A.default.weight"] for one in (first, other)]
    assert not torch.equal(*drawn)


@DTYPES
def test_a_checkpoint_continues_bit_for_bit_and_holds_adapters_alone(tied, tmp_path, dtype):
    straight, resumed = broken_off_and_resumed(
        lambda: make_lora(tied, dtype=dtype),
        lambda trainer: trainer.update(BATCHES, likelihood, 0.7),
        tmp_path / "checkpoint",
    )
    assert_same(straight.learned, resumed.learned)
    assert_same(weights_of(straight), weights_of(resumed))
    kept = load_file(tmp_path / "checkpoint/trainer.safetensors")
    # Two layers of 4 squares of 64 and three matrices of 64 by 128; each of the 28 tensors also has its step count.
    adapters = 2 * LORA.rank * (4 * (64 + 64) + 3 * (64 + 128))
    assert sum(tensor.numel() for tensor in kept.values()) == 3 * adapters + 28


@pytest.mark.parametrize("changes", [{"gradient_checkpointing": True}, {"dtype": "mixed"}])
def test_the_reference_is_the_policy_without_its_adapters(tied, changes):
    params = TORCH_TRAINER.model_copy(update=changes)
    trainer, undisturbed = make_lora(tied, **changes), make_lora(tied, **changes)
    copy, own = ReferencePolicy.from_folder(tied, params.dtype, trainer.device), PolicyUnderAdapters(trainer)
    for batch in BATCHES:
        assert torch.equal(own.logprobs(batch), trainer.evaluate(batch).logprobs), "the KL at step 0 is exactly 0"
    for _ in range(3):
        assert trainer.update(BATCHES, likelihood, 1.0) == undisturbed.update(BATCHES, likelihood, 1.0)
        for batch in BATCHES:
            assert torch.equal(own.logprobs(batch), copy.logprobs(batch))
            assert not torch.equal(own.logprobs(batch), trainer.evaluate(batch).logprobs)
    own.close(), copy.close()


def test_the_torch_sampler_says_what_the_trainer_says(policy):
    trainer, sampler = trained(make_lora(policy)), TorchSampler.from_folder(TORCH_SAMPLER, policy)
    prompts, responses = [[5, 6, 7]], [[8, 9]]
    expected = trainer.evaluate(BATCHES[0]).logprobs[0].tolist()
    assert sampler.logprobs(prompts, responses)[0] != pytest.approx(expected, abs=1e-2)
    sampler.load_weights(trainer.named_weights(), 1)
    assert sampler.logprobs(prompts, responses)[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"targets": ["q_proj", "c_attn"]}, r"has no linear layer c_attn, it has down_proj, gate_proj, k_proj,"),
        ({"targets": ["lm_head"]}, "no linear layer lm_head"),
        ({"rank": 65}, "rank 65 is larger than .*_proj, which has a side of 64: set rank to at most 64"),
    ],
)
def test_what_the_policy_does_not_have_is_refused(policy, changes, said):
    with pytest.raises(UserError, match=said):
        make_lora(policy, LORA.model_copy(update=changes))


def test_the_experts_of_a_mixture_stay(tmp_path):
    policy = write_family(tmp_path / "policy", "Qwen3Moe", HEADS | MIXTURE)
    trainer = trained(make_lora(policy))
    trainer.save_model(tmp_path / "saved")
    assert gap(trainer, make(policy)) > 0.01
    assert gap(trainer, make(tmp_path / "saved")) < 1e-5
    before, after = load_file(policy / "model.safetensors"), load_file(tmp_path / "saved/model.safetensors")
    assert before.keys() == after.keys()
    assert {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])} == {
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
    }


def test_a_policy_without_linear_layers_is_refused(tmp_path):
    policy = write_family(tmp_path / "policy", "GPT2", GPT2)
    with pytest.raises(UserError, match="GPT2LMHeadModel has none: leave it out"):
        make_lora(policy)


def test_without_peft_the_error_names_the_package(tied, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match="needs the package peft of group lora, which is not installed"):
        make_lora(tied)


def test_muon_and_spread_weights_contradict_it():
    assert not list(adapter_contradictions("rl", None, MUON, deepspeed_params(3)))
    assert not list(adapter_contradictions("rl", LORA, ADAMW, deepspeed_params(2)))
    muon, spread = adapter_contradictions("rl", LORA, MUON, deepspeed_params(3))
    assert "set optimizer.kind adamw" in muon and "set zero_stage 2" in spread


def make_deepspeed(policy, zero_stage, dtype):
    params = deepspeed_params(zero_stage, dtype)
    return DeepspeedTrainer(params, ADAMW, MAX_NORM, with_lora(language_model(policy, params), LORA, 0))


@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")
@pytest.mark.parametrize(("zero_stage", "dtype"), [(0, "float32"), (1, "mixed"), (2, "float32"), (2, "mixed")])
def test_deepspeed_learns_saves_and_resumes_as_the_torch_trainer(tied, tmp_path, zero_stage, dtype):
    alone = make_lora(tied, dtype=dtype)
    trainer = make_deepspeed(tied, zero_stage, dtype)
    exactness = 1e-5 if dtype == "float32" else 0.02
    for step in range(3):
        batches = micro_batches(step)
        own, expected = (one.update(batches, weighted_loss, 1.0) for one in (trainer, alone))
        assert own.loss == pytest.approx(expected.loss, abs=exactness)
    base = PolicyUnderAdapters(trainer).logprobs(BATCHES[0])
    assert torch.equal(base, PolicyUnderAdapters(alone).logprobs(BATCHES[0]))
    trainer.save_model(tmp_path / "saved"), alone.save_model(tmp_path / "alone")
    saved, expected = (load_file(tmp_path / name / "model.safetensors") for name in ("saved", "alone"))
    start = load_file(tied / "model.safetensors")
    assert saved.keys() == expected.keys()
    for name, weight in saved.items():
        torch.testing.assert_close(weight, expected[name], atol=exactness, rtol=0, msg=name)
        assert torch.equal(weight, start[name]) == ("_proj" not in name), name
    (tmp_path / "checkpoint").mkdir()
    trainer.save_checkpoint(tmp_path / "checkpoint")
    kept = load_file(tmp_path / "checkpoint/rank-00000.safetensors")
    assert all(".lora_" in name for name in kept)
    trainer.update(micro_batches(3), weighted_loss, 1.0)
    straight = snapshot(trainer)
    trainer.close()
    resumed = make_deepspeed(tied, zero_stage, dtype)
    resumed.load_checkpoint(tmp_path / "checkpoint")
    resumed.update(micro_batches(3), weighted_loss, 1.0)
    assert is_same(straight, snapshot(resumed))
    resumed.close()
