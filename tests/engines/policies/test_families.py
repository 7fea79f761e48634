"""Families of models, each a tiny random one: trainer and torch sampler compared with transformers' forward pass.

The reference is always `model(...)` in float32 with plain attention on one sequence at a time. Windows have 16 tokens
and most sequences are longer.
"""

from dataclasses import replace

import pytest
import torch

from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.policy_folders import save_policy
from stages.engines.policies.statistics import policy_statistics
from stages.engines.samplers.decoder import represents
from stages.engines.samplers.protocol import SamplingSettings, Trajectory, sample_trajectories
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.samplers.transformers_decoding import TransformersDecoding
from stages.engines.trainers.protocol import TrainedModel
from stages.foundations.errors import UserError
from tests.algorithms.test_token_statistics import gradients, statistics_of_logits
from tests.engines.policies.test_forward_probe import (
    HEADS,
    MAMBA,
    MIXED,
    MIXTURE,
    ORIGINAL,
    WINDOW,
    family,
    rope,
    write_family,
)
from tests.engines.samplers.test_torch_decoding import assert_same, moved, run_out
from tests.fakes.engine_params import TORCH_SAMPLER, TORCH_TRAINER
from tests.fakes.tiny_policy import VOCABULARY_TOKENS, byte_tokenizer, plain_logprobs

TIED, UNTIED = {"tie_word_embeddings": True}, {"tie_word_embeddings": False}
LLAMA3 = rope("llama3", low_freq_factor=1.0, high_freq_factor=4.0, **ORIGINAL)
CAPPED = {"attn_logit_softcapping": 0.5, "final_logit_softcapping": 2.0}
SCALED = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.3, "logits_scaling": 0.25}
OWN = {
    "llama": ("Llama", TIED | LLAMA3),
    "llama gelu": ("Llama", TIED | {"hidden_act": "gelu"}),
    "llama relu": ("Llama", TIED | {"hidden_act": "relu"}),
    "qwen2": ("Qwen2", UNTIED | rope("yarn", **ORIGINAL)),
    "qwen3": ("Qwen3", TIED | HEADS | rope("linear")),
    "mistral": ("Mistral", UNTIED | HEADS | {"sliding_window": 128}),
}
"""Families that the sampler's decoder covers."""
OTHERS = {
    "llama with biases": ("Llama", TIED | {"attention_bias": True, "mlp_bias": True}),
    "mistral with a window": ("Mistral", UNTIED | HEADS | WINDOW),
    "qwen3 with windows": ("Qwen3", TIED | HEADS | MIXED | {"use_sliding_window": True}),
    "gemma2": ("Gemma2", TIED | HEADS | WINDOW | CAPPED),
    "gemma3": ("Gemma3Text", TIED | HEADS | MIXED),
    "phi3": ("Phi3", UNTIED | WINDOW),
    "olmo2": ("Olmo2", UNTIED),
    "smollm3": ("SmolLM3", TIED | {"no_rope_layers": [1, 0]} | rope("yarn", **ORIGINAL)),
    "granite": ("Granite", TIED | SCALED),
    "cohere": ("Cohere", TIED | {"logit_scale": 4.0}),
    "qwen3 mixture": ("Qwen3Moe", UNTIED | HEADS | MIXTURE),
}
"""Families that the sampler decodes through transformers."""
FAMILIES = OWN | OTHERS
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=30, log_threshold=None)
PROMPTS = [[5, 6, 7], list(range(20, 45)), [9], [30, 31, 32, 33]]


def sequences():
    numbers = torch.Generator().manual_seed(1)
    ids = [torch.randint(2, VOCABULARY_TOKENS, (length,), generator=numbers).tolist() for length in (44, 7, 30, 2)]
    return [TokenSequence(row[: len(row) // 3 + 1], row[len(row) // 3 + 1 :]) for row in ids]


@pytest.mark.parametrize("name", FAMILIES)
def test_trainer_and_sampler_compute_what_transformers_computes(tmp_path, name, capsys):
    """The weights are sharded."""
    made = family(*FAMILIES[name])
    save_policy(made, byte_tokenizer(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    made.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    trained = language_model(tmp_path, TORCH_TRAINER).module.eval()
    sampler = TorchSampler.from_folder(TORCH_SAMPLER, tmp_path)
    asked = sequences()
    for row_tokens in (None, 90):
        with torch.no_grad():
            statistics = policy_statistics(trained, pack(asked, row_tokens=row_tokens))
        for one, ours in zip(asked, statistics.logprobs, strict=True):
            expected = plain_logprobs(made, one.prompt, one.response)
            torch.testing.assert_close(ours[: len(expected)], expected, rtol=0, atol=1e-4)
    read = sampler.logprobs([one.prompt for one in asked], [one.response for one in asked])
    drawn = sample_trajectories(sampler, [Trajectory(prompt, seed) for seed, prompt in enumerate(PROMPTS)], SETTINGS)
    found = [*zip([one.prompt for one in asked], [one.response for one in asked], read, strict=True)]
    found += [(prompt, one.token_ids, one.logprobs) for prompt, one in zip(PROMPTS, drawn, strict=True)]
    for prompt, response, ours in found:
        torch.testing.assert_close(torch.tensor(ours), plain_logprobs(made, prompt, response), rtol=0, atol=1e-4)
    assert represents(made) == (name in OWN)
    assert ("through transformers, which is slow" in capsys.readouterr().err) == (name in OTHERS)


@pytest.mark.parametrize("log_threshold", [None, -2.0])
@pytest.mark.parametrize("name", ["gemma2", "granite", "cohere"])
def test_gradients_of_capped_and_scaled_heads_are_plain_autograds(name, log_threshold):
    """All three statistics at once, in float64."""
    model = family(*OTHERS[name]).double()
    model.config._attn_implementation = "eager"
    (one,) = sequences()[:1]
    batch = pack([one], temperature=0.7, log_threshold=log_threshold)
    weights = list(model.parameters())
    ours = policy_statistics(model, batch)
    logits = model(torch.tensor([[*one.prompt, *one.response]]), use_cache=False).logits[:, len(one.prompt) - 1 : -1]
    plain = statistics_of_logits(logits / 0.7, torch.tensor([one.response]), log_threshold)
    for found, expected in zip(ours, plain, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for found, expected in zip(gradients(ours, weights), gradients(plain, weights), strict=True):
        assert (found - expected).norm() <= 1e-5 * expected.norm() and expected.norm() > 0


@pytest.mark.parametrize("name", ["gemma2", "granite"])
def test_divergences_from_a_capped_or_scaled_policy_itself_are_zero(name):
    model, asked = family(*OTHERS[name]), sequences()
    batch = pack(asked, temperature=0.7)
    with torch.no_grad():
        rows = [
            model(torch.tensor([[*one.prompt, *one.response]])).logits[0, len(one.prompt) - 1 : -1] for one in asked
        ]
        kept = tuple((row / 0.7).log_softmax(-1) for row in rows)
        divergence = policy_statistics(model, replace(batch, rollout_distributions=kept)).divergence
        off = policy_statistics(model, replace(batch, temperature=0.8, rollout_distributions=kept)).divergence
    assert divergence.max() < 1e-8 < off.max()


@pytest.mark.parametrize("name", OTHERS)
def test_greedy_responses_equal_transformers_generate(name):
    model = family(*OTHERS[name])
    model.config._attn_implementation = "eager"
    sampler = TorchSampler(TORCH_SAMPLER, model, [0])
    greedy = replace(SETTINGS, temperature=0.0)
    drawn = sample_trajectories(sampler, [Trajectory(prompt, 0) for prompt in PROMPTS], greedy)
    for prompt, sample in zip(PROMPTS, drawn, strict=True):
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        whole = model.generate(ids, attention_mask=mask, max_new_tokens=30, do_sample=False, eos_token_id=0)
        assert sample.token_ids == whole[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", ["gemma3", "mistral with a window", "llama with biases"])
def test_a_response_does_not_depend_on_what_is_sampled_beside_it(name):
    """Arrivals at different times, moves to another decoding, equal prompts, one lane per thread."""
    model = family(*OTHERS[name], initializer_range=0.1)
    ends = list(range(0, VOCABULARY_TOKENS, 12))  # so that responses end at different times
    asked = {
        (place, seed): Trajectory(prompt, 10 * place + seed)
        for place, prompt in enumerate(PROMPTS)
        for seed in (1, 2, 3)
    }
    sampler = TorchSampler(TORCH_SAMPLER, model, ends)
    alone = {key: sample_trajectories(sampler, [one], SETTINGS)[0] for key, one in asked.items()}
    assert len({len(one.token_ids) for one in alone.values()}) > 4
    lanes = TorchSampler(TORCH_SAMPLER.model_copy(update={"threads": 2}), model, ends)
    assert_same(dict(zip(asked, sample_trajectories(lanes, list(asked.values()), SETTINGS), strict=True)), alone)
    here, there = sampler.open(SETTINGS), sampler.open(SETTINGS)
    assert isinstance(here, TransformersDecoding)
    waiting, ended, moves = list(asked.items()), {}, 0
    for number in range(60):
        if number % 2 == 0 and waiting:
            here.admit(dict(waiting[:3]))
            waiting = waiting[3:]
        ended |= here.step() | there.step()
        if number in (3, 9):
            gone = here.withdraw(list(asked)[number - 3 : number])
            moves += sum(len(begun.token_ids) > 0 for begun in gone.values())
            there.admit({key: moved(asked[key], begun) for key, begun in gone.items()})
    assert_same(ended | run_out(here) | run_out(there), alone)
    assert moves > 1 and here.is_idle and here.load.kv_tokens == 0


def test_kept_distributions_are_those_of_the_model():
    model = family(*OTHERS["gemma2"])
    settings = replace(SETTINGS, temperature=0.8, keeps_distributions=True)
    sampler = TorchSampler(TORCH_SAMPLER, model, [0])
    for prompt in PROMPTS:
        (sample,) = sample_trajectories(sampler, [Trajectory(prompt, 3)], settings)
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *sample.token_ids]])).logits[0, len(prompt) - 1 : -1] / 0.8
        torch.testing.assert_close(sample.distributions, logits.log_softmax(-1), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["Olmo2", "Apertus"])
def test_new_weights_reach_a_family_that_is_decoded_through_transformers(kind):
    """The test loads everything that a trainer holds: Apertus also keeps buffers in its checkpoints."""
    model, other = (family(kind, {}, initializer_range=size) for size in (0.2, 0.1))
    for name, buffer in other.named_buffers():
        buffer.mul_(0.9 if name in other.state_dict() else 1.0)
    sampler = TorchSampler(TORCH_SAMPLER, model, [0])
    trained = TrainedModel(other, policy_statistics, lambda *_: None, pack(sequences()))
    sampler.load_weights(((name, weight.detach()) for name, weight in trained.named_weights()), 3)
    (one,) = sequences()[:1]
    found = torch.tensor(sampler.logprobs([one.prompt], [one.response])[0])
    torch.testing.assert_close(found, plain_logprobs(other, one.prompt, one.response), rtol=0, atol=1e-4)


REFUSED = {
    "phi": ("Phi", {}, "training"),
    "falcon_h1": ("FalconH1", MAMBA, "training and sampling"),
    "qwen3": ("Qwen3", HEADS | MIXED | {"sliding_window": None}, "training and sampling"),
    "llama": ("Llama", rope("dynamic") | {"max_position_embeddings": 48}, "training and sampling"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_the_family_and_an_alternative(tmp_path, name):
    kind, settings, what = REFUSED[name]
    folder = write_family(tmp_path, kind, settings)
    with pytest.raises(UserError, match=rf"training cannot represent \w+ \({name}\) of .* Train a policy of another"):
        language_model(folder, TORCH_TRAINER)
    if what == "training":
        TorchSampler.from_folder(TORCH_SAMPLER, folder)
        return
    with pytest.raises(UserError, match=rf"sampler cannot represent \w+ \({name}\) of .* Set `sampler.kind: vllm`"):
        TorchSampler.from_folder(TORCH_SAMPLER, folder)
