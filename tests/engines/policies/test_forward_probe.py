"""The probe of a loaded policy: covered families pass, and others are rejected with the measured gap.

Small random models of transformers' classes. The expected answers do not come from the probe: `plain_gap` compares
training's log-probs with transformers' on separate sequences.
"""

import re

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM

from stages.engines.policies import forward_probe
from stages.engines.policies.forward_probe import check_sampler_forward, check_training_forward, probe_sequences
from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.policy_folders import count_policy, load_policy, save_policy
from stages.engines.policies.statistics import NAME, policy_statistics
from stages.engines.samplers.torch_sampler import read_logprobs
from stages.foundations.errors import UserError
from tests.fakes.engine_params import TORCH_TRAINER
from tests.fakes.tiny_policy import VOCABULARY_TOKENS, byte_tokenizer, plain_logprobs, tiny_model, write_tiny_policy

CPU = torch.device("cpu")
USUAL = {
    "vocab_size": VOCABULARY_TOKENS + 6,  # Qwen 2 adds a token to the tokenizer
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 1,
}
GPT2 = {"vocab_size": VOCABULARY_TOKENS, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 48}
WINDOW = {"sliding_window": 16}
MIXED = WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}
HEADS = {"head_dim": 16}
MIXTURE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
MAMBA = {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}


def rope(kind, **settings):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10_000.0, "factor": 4.0, **settings}}


ORIGINAL = {"original_max_position_embeddings": 32}
LONGROPE = rope("longrope", short_factor=[1.0] * 8, long_factor=[4.0] * 8, **ORIGINAL)

# Those of test_families.py pass as well: `language_model` checks them there.
RIGHT = {
    "llama": ("Llama", {}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2 window": ("Qwen2", WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    "mistral window": ("Mistral", HEADS | WINDOW),
    "gemma 2 without its cap on logits": (
        "Gemma2",
        HEADS | WINDOW | {"attn_logit_softcapping": 0.5, "final_logit_softcapping": None},
    ),
    "gemma 3": ("Gemma3Text", HEADS | MIXED),
    "olmo 3": ("Olmo3", MIXED),
    "starcoder 2 window": ("Starcoder2", WINDOW),
    "gpt 2": ("GPT2", GPT2),
    "gpt neox": ("GPTNeoX", {}),
}
WRONG = {
    "llama dynamic": ("Llama", rope("dynamic") | {"max_position_embeddings": 48}),
    "phi 3 long rope": ("Phi3", LONGROPE | ORIGINAL | {"sliding_window": None}),
    "phi 2": ("Phi", {}),
    "falcon h1": ("FalconH1", MAMBA | {"lm_head_multiplier": 0.5}),
    "falcon h1 without its multiplier": ("FalconH1", MAMBA),
    "qwen3 next": (
        "Qwen3Next",
        HEADS
        | MIXTURE
        | {"layer_types": ["linear_attention", "full_attention"], "shared_expert_intermediate_size": 32}
        | {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
        | {"linear_key_head_dim": 16, "linear_value_head_dim": 16},
    ),
}


def family(kind, settings, initializer_range=0.2):
    settings = settings if kind == "GPT2" else USUAL | settings
    config = getattr(transformers, f"{kind}Config")(**settings, initializer_range=initializer_range)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("bias"):  # transformers initialises them with zeros
                    weight.normal_(0, 0.3)
    return model


def write_family(folder, kind, settings):
    save_policy(family(kind, settings), byte_tokenizer(), folder)
    return folder


@torch.no_grad()
def plain_gap(model):
    """Returns the largest difference between training's log-probs of packed sequences and transformers' of each."""
    numbers = torch.Generator().manual_seed(1)
    ids = [torch.randint(2, VOCABULARY_TOKENS, (length,), generator=numbers).tolist() for length in (44, 7, 30)]
    packed = policy_statistics(model, pack([TokenSequence(row[:1], row[1:]) for row in ids], row_tokens=90)).logprobs
    usual, model.config._attn_implementation = model.config._attn_implementation, "eager"
    expected = [plain_logprobs(model, row[:1], row[1:]) for row in ids]
    model.config._attn_implementation = usual
    return max(float((ours[: len(one)] - one).abs().max()) for one, ours in zip(expected, packed, strict=True))


ON_GPUS = ["llama", "qwen2 window", "mistral window", "gemma 3", "olmo 3", "gpt 2"]


@pytest.mark.parametrize(("name", "attention"), [*((one, None) for one in RIGHT), *((one, NAME) for one in ON_GPUS)])
def test_families_that_training_represents_pass_and_are_right(tmp_path, name, attention):
    """The attention of GPUs keeps sliding windows too; a CPU computes it for one sequence after another."""
    model, _ = load_policy(write_family(tmp_path, *RIGHT[name]), torch.float32)
    model.config._attn_implementation = attention or model.config._attn_implementation
    check_training_forward(model, tmp_path, CPU)
    assert plain_gap(model) < 1e-4


@pytest.mark.parametrize("attention", ["sdpa", NAME])
@pytest.mark.parametrize("initializer_range", [0.02, 0.2])
@pytest.mark.parametrize("name", WRONG)
def test_families_that_training_does_not_represent_are_refused(tmp_path, name, initializer_range, attention):
    """This also holds for initial random weights, where wrong log-probs differ by less than a thousandth."""
    kind, settings = WRONG[name]
    model = family(kind, settings, initializer_range)
    model.config._attn_implementation = attention
    with pytest.raises(UserError, match=rf"training cannot represent \w+ \(\w+\) of {re.escape(str(tmp_path))}"):
        check_training_forward(model, tmp_path, CPU)


def test_a_forward_pass_that_fails_is_refused(tmp_path):
    """The attention for GPUs needs arguments that this family does not pass on."""
    model = family("StableLm", {})
    model.config._attn_implementation = NAME
    with pytest.raises(UserError, match="its forward pass fails"):
        check_training_forward(model, tmp_path, CPU)


def test_a_sampler_whose_log_probs_are_off_is_refused(tmp_path):
    def off(model, prompts, responses):
        return [[value + 0.01 for value in row] for row in read_logprobs(model, prompts, responses)]

    check_sampler_forward(tiny_model(), tmp_path, CPU, read_logprobs)
    with pytest.raises(UserError, match=r"0\.01 in given responses \(allowed: 0\.000\d+\)"):
        check_sampler_forward(tiny_model(), tmp_path, CPU, off)


@pytest.mark.parametrize(
    ("kind", "settings", "name"),
    [("Phi", {}, "phi"), ("GptOss", HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}, "gpt_oss")],
)
def test_stages_that_train_a_policy_refuse_it_and_base_says_so(tmp_path, capsys, kind, settings, name):
    """Base does not reject it, because vLLM alone can sample it."""
    folder = write_family(tmp_path, kind, settings)
    said = rf"{kind}ForCausalLM \({name}\).*[\d.]+ in a row with both sequences"
    with pytest.raises(UserError, match=said):
        language_model(folder, TORCH_TRAINER)
    assert count_policy(folder)["policy/vocabulary"] == VOCABULARY_TOKENS
    assert re.search(f"stages that train will reject it: .*{said}", capsys.readouterr().err)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_probe_changes_nothing(tmp_path, dtype):
    model, _ = load_policy(write_tiny_policy(tmp_path), dtype)
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    state, attention = torch.get_rng_state(), model.config._attn_implementation
    check_training_forward(model, tmp_path, CPU)
    check_sampler_forward(model, tmp_path, CPU, read_logprobs)
    assert torch.equal(torch.get_rng_state(), state) and model.config._attn_implementation == attention
    for name, tensor in tensors.items():
        assert tensor.dtype == before[name].dtype and torch.equal(tensor, before[name])
        assert tensor.grad is None


@pytest.mark.parametrize(
    ("kind", "settings", "tokens"),
    [
        ("Llama", {}, 64),
        ("Llama", {"max_position_embeddings": 24}, 24),
        ("Mistral", {"sliding_window": 90}, 122),
        ("Mistral", {"sliding_window": 120}, 128),
        ("Mistral", {"sliding_window": 4096}, 64),
        ("Llama", rope("dynamic"), 160),
        ("Phi3", LONGROPE | {"original_max_position_embeddings": 40, "sliding_window": None}, 72),
        ("GPT2", GPT2, 48),
    ],
)
def test_the_long_sequence_passes_each_change(kind, settings, tokens):
    long, short = probe_sequences(family(kind, settings))
    assert (long.tokens, short.tokens) == (tokens, 16)


def test_a_probe_that_is_too_long_is_cut_and_says_so(monkeypatch, capsys):
    model = family("Mistral", {"sliding_window": 90})
    monkeypatch.setitem(forward_probe.MOST_WORK, "cpu", 70 * model.num_parameters())
    long, _ = probe_sequences(model)
    assert long.tokens == 70
    assert "after 90 tokens; only 70 tokens were compared" in "".join(capsys.readouterr())
