"""Mismatch on purpose: which weights the sampler uses, by hand-worked rounding and by the log-probs that it reports."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stages.engines.samplers.params import Bfloat16Weights, Int8Weights, StaleWeights, TorchSamplerParams
from stages.engines.samplers.protocol import SamplingSettings
from stages.engines.samplers.torch_sampler import TorchSampler, rounded
from tests.fakes.drawing import sample_numbered

END = 1
BFLOAT16, INT8 = Bfloat16Weights(kind="bfloat16_weights"), Int8Weights(kind="int8_weights")
PROMPT, RESPONSE = [3, 4, 5], [6, 7, 8]
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=12, log_threshold=None)


def make(seed, tie=True):
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=40,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            initializer_range=0.3,
            pad_token_id=0,
            eos_token_id=END,
            bos_token_id=None,
            tie_word_embeddings=tie,
        )
    ).eval()


PARAMS = TorchSamplerParams(kind="torch", device="cpu", dtype="float32", threads=1, max_sequences=16)


def stale(versions):
    return StaleWeights(kind="stale_weights", versions=versions)


def scores(model):
    """Log-probs of RESPONSE after PROMPT by the model's own forward pass."""
    with torch.no_grad():
        logprobs = model(torch.tensor([[*PROMPT, *RESPONSE]])).logits.log_softmax(-1)[0, len(PROMPT) - 1 : -1]
    return pytest.approx(logprobs.gather(-1, torch.tensor(RESPONSE)[:, None])[:, 0].tolist(), abs=2e-5)


def scored(sampler):
    return sampler.logprobs([PROMPT], [RESPONSE])[0]


def load(sampler, model, version):
    sampler.load_weights(((name, weight.detach()) for name, weight in model.named_parameters()), version)


def test_int8_keeps_255_levels_of_each_row():
    # Row 0: step 12.7 / 127 = 0.1. Row 1: step 0.01. A row of zeros and a vector stay as they are.
    matrix = torch.tensor([[12.7, 0.14, -0.16], [1.27, 0.014, -0.006], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[12.7, 0.1, -0.2], [1.27, 0.01, -0.01], [0.0, 0.0, 0.0]])
    assert rounded(matrix, INT8).tolist() == [pytest.approx(row.tolist(), abs=1e-6) for row in expected]
    assert torch.equal(rounded(matrix[1], INT8), matrix[1])


def test_int8_errs_by_half_a_step_at_most_and_is_idempotent():
    matrix = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    once = rounded(matrix, INT8)
    steps = matrix.abs().amax(1, keepdim=True) / 127
    assert ((once - matrix).abs() <= steps * 0.5001).all()
    assert torch.allclose(rounded(once, INT8), once, atol=1e-6)


def test_bfloat16_keeps_eight_bits_of_every_weight():
    weight = torch.tensor([1.0, 1.0 + 2**-7, 1.0 + 2**-9])
    assert rounded(weight, BFLOAT16).tolist() == [1.0, 1.0 + 2**-7, 1.0]
    assert rounded(weight, BFLOAT16).dtype == torch.float32


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("mismatch", [BFLOAT16, INT8])
def test_the_sampler_uses_the_rounded_weights_from_the_start_and_after_a_sync(mismatch, tie):
    def perturbed(model):
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(rounded(weight, mismatch))
        return model

    sampler = TorchSampler(PARAMS, make(0, tie), END, mismatch)
    assert scored(sampler) == scores(perturbed(make(0, tie)))
    assert scored(sampler) != scores(make(0, tie))
    load(sampler, make(1, tie), 1)
    assert sampler.policy_version == 1
    assert scored(sampler) == scores(perturbed(make(1, tie)))
    assert scored(sampler) != scores(make(1, tie))
    sample = sample_numbered(sampler, [PROMPT], 1, SETTINGS, seed=0)[0][0]
    assert sampler.logprobs([PROMPT], [sample.token_ids])[0] == pytest.approx(sample.logprobs, abs=2e-5)


def test_stale_weights_are_those_of_so_many_versions_ago():
    models = [make(seed) for seed in range(5)]
    sampler = TorchSampler(PARAMS, make(0), END, stale(2))
    for version, served in enumerate([0, 0, 0, 1, 2]):
        load(sampler, models[version], version)
        with torch.no_grad():
            for weight in models[version].parameters():
                weight.mul_(2)  # the trainer goes on with its own
        assert sampler.policy_version == served
        assert scored(sampler) == scores(make(served))
    assert sorted(sampler.past.kept) == [2, 3, 4]


def test_stale_for_good_serves_the_first_weights_and_keeps_no_others():
    sampler = TorchSampler(PARAMS, make(0), END, stale(None))
    for version in range(4):
        load(sampler, make(version), version)
    assert sampler.policy_version == 0
    assert scored(sampler) == scores(make(0))
    assert list(sampler.past.kept) == [0]


def test_after_a_resume_the_oldest_known_weights_that_are_not_too_old_are_served():
    sampler = TorchSampler(PARAMS, make(0), END, stale(2))
    served = []
    for version in (7, 8, 9, 10):
        load(sampler, make(version), version)
        served.append(sampler.policy_version)
        assert scored(sampler) == scores(make(sampler.policy_version))
    assert served == [7, 7, 7, 8]


@pytest.mark.parametrize("versions", [2, None])
def test_a_sampler_that_gets_back_what_was_kept_serves_the_same_versions(versions):
    undisturbed = TorchSampler(PARAMS, make(0), END, stale(versions))
    for version in range(4):
        load(undisturbed, make(version), version)
    resumed = TorchSampler(PARAMS, make(0), END, stale(versions))
    resumed.restore_weights(undisturbed.kept_weights())
    load(resumed, make(3), 3)  # the newest version comes from the trainer's checkpoint
    for version in range(4, 7):
        assert resumed.policy_version == undisturbed.policy_version
        assert scored(resumed) == scored(undisturbed)
        for sampler in (resumed, undisturbed):
            load(sampler, make(version), version)


def test_samplers_that_are_not_stale_keep_nothing():
    for mismatch in (None, INT8):
        sampler = TorchSampler(PARAMS, make(0), END, mismatch)
        assert sampler.kept_weights() == {}
        sampler.restore_weights({})


def test_a_tied_head_by_its_own_name_is_the_embedding():
    for mismatch in (None, stale(1)):
        sampler = TorchSampler(PARAMS, make(0), END, mismatch)
        for version in (1, 2):
            weights = dict(make(version).named_parameters())
            weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
            sampler.load_weights(((name, weight.detach()) for name, weight in weights.items()), version)
        assert scored(sampler) == scores(make(sampler.policy_version))


@pytest.mark.parametrize("mismatch", [None, INT8, stale(1)])
def test_an_unknown_weight_is_refused(mismatch):
    sampler = TorchSampler(PARAMS, make(0), END, mismatch)
    with pytest.raises(KeyError, match="no weight nonsense"):
        sampler.load_weights([("nonsense", torch.zeros(1))], 5)
    assert sampler.policy_version == 0
