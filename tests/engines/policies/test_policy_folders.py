"""Policies as folders: what does not fit is refused with the remedy; prompts are put as the section says."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages.engines.policies.policy_folders import count_policy, load_model, load_policy, model_without_weights
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt
from tests.fakes.tiny_policy import write_tiny_policy

CHAT = ChatPrompt(kind="chat", system="Be brief.", suffix=" Box it.")


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path):
    write_tiny_policy(tmp_path, vocab=200)
    with pytest.raises(UserError, match="has 258 tokens but the model embeds 200"):
        load_policy(tmp_path, torch.float32)


def test_a_folder_that_is_no_policy_is_refused(tmp_path):
    with pytest.raises(UserError, match="is not a policy"):
        load_policy(tmp_path, torch.float32)
    write_tiny_policy(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="holds no usable tokenizer"):
        load_policy(tmp_path, torch.float32)


def test_a_truncated_weights_file_is_refused(tmp_path):
    write_tiny_policy(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="is not a policy"):
        load_policy(tmp_path, torch.float32)


def rewrite_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def remove(count):
    def change(weights):
        for name in sorted(name for name in weights if "layers" in name)[:count]:
            del weights[name]

    return change


def rename_all(weights):
    for name in list(weights):
        weights[f"wrong.{name}"] = weights.pop(name)


def fill(value, dtype=torch.float32):
    def change(weights):
        for name in list(weights):
            weights[name] = weights[name].to(dtype)
        weights["model.norm.weight"][-1] = value

    return change


FIRST = "model.layers.0."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (remove(1), rf"1 missing \({FIRST}input_layernorm.weight\)\."),
        (remove(5), r"5 missing \((model\S+, ){3}\.\.\.\)\."),
        (rename_all, r"21 missing \(.*\); 20 unexpected \((wrong\S+, ){3}\.\.\.\)\."),
        (lambda weights: weights.update(x=torch.ones(2)), r"1 unexpected \(x\)\."),
        (
            lambda weights: weights.update({"model.norm.weight": torch.ones(7)}),
            r"1 of another shape \(model.norm.weight\)\.",
        ),
        (fill(float("nan")), r"1 not finite \(model.norm.weight\)\."),
        (fill(float("-inf")), r"1 not finite \(model.norm.weight\)\."),
        (fill(float("inf"), torch.bfloat16), r"1 not finite \(model.norm.weight\)\."),
    ],
)
def test_weights_that_are_not_the_architectures_are_refused_by_name(tmp_path, change, said):
    write_tiny_policy(tmp_path)
    rewrite_weights(tmp_path, change)
    with pytest.raises(UserError, match=rf"do not fit LlamaForCausalLM: {said} Use the complete weights"):
        load_policy(tmp_path, torch.float32)


@pytest.mark.parametrize("tie", [True, False])
def test_a_tied_head_may_be_in_the_file_or_not_and_an_untied_one_must_be(tmp_path, tie):
    write_tiny_policy(tmp_path, tie=tie)

    def set_head(weights):
        if tie:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        else:
            del weights["lm_head.weight"]

    rewrite_weights(tmp_path, set_head)
    if tie:
        load_policy(tmp_path, torch.float32)
    else:
        with pytest.raises(UserError, match=r"1 missing \(lm_head.weight\)"):
            load_policy(tmp_path, torch.float32)


def test_the_unused_frequencies_of_old_files_are_no_fault(tmp_path):
    write_tiny_policy(tmp_path)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite_weights(tmp_path, lambda weights: weights.update({name: torch.ones(16)}))
    load_policy(tmp_path, torch.float32)


def test_counts_are_those_of_the_policy(tmp_path):
    write_tiny_policy(tmp_path)
    assert count_policy(tmp_path)["policy/vocabulary"] == 258


def test_a_model_without_weights_is_like_the_one_with_them(tmp_path):
    folder = write_tiny_policy(tmp_path / "policy", tie=True)
    whole, bare = load_model(folder, torch.float32), model_without_weights(folder, torch.float32)
    shapes = [{name: weight.shape for name, weight in model.named_parameters()} for model in (whole, bare)]
    assert shapes[0] == shapes[1], "also which of them are tied"
    for name, buffer in whole.named_buffers():
        assert torch.equal(bare.get_buffer(name), buffer), "such as the frequencies of positions"
