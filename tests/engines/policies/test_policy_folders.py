"""Policy folders: folders that do not fit raise errors with a remedy; tokenizers are AutoTokenizer's, without torch."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Qwen2Tokenizer

from stages.engines.policies.policy_folders import (
    count_policy,
    load_model,
    load_policy,
    model_without_weights,
    random_model,
    save_policy,
)
from stages.engines.policies.tokenizers import (
    KNOWN_CLASSES,
    decode_response,
    encode_prompt,
    encode_response,
    load_tokenizer,
    read_end_tokens,
)
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt
from tests.fakes.tiny_policy import byte_tokenizer, write_tiny_policy

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
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UserError, match="is not a policy"):
        load_policy(tmp_path, torch.float32)


@pytest.mark.parametrize(
    ("key", "size", "said"),
    [
        ("vocab_size", 10**9, r"describes [\d,]+ parameters, and the weights there have 98,752"),
        ("intermediate_size", 10**9, r"describes [\d,]+ parameters"),
        ("num_hidden_layers", 10**9, r"num_hidden_layers 1000000000, and the weights are \d+ tensors"),
        ("vocab_size", 10**18, "is not a policy"),
    ],
)
def test_sizes_without_weights_are_refused_before_they_are_allocated(tmp_path, key, size, said):
    write_tiny_policy(tmp_path)
    assert count_policy(tmp_path)["policy/vocabulary"] == 258
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: size}))
    with pytest.raises(UserError, match=said):
        count_policy(tmp_path)


def test_a_policy_which_brings_code_is_refused_and_runs_none(tmp_path):
    write_tiny_policy(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    classes = {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}
    (tmp_path / "config.json").write_text(json.dumps({**config, "model_type": "mystery", "auto_map": classes}))
    (tmp_path / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="which Retrace never runs: use a policy of a family"):
        load_policy(tmp_path, torch.float32)
    assert not (tmp_path / "ran").exists()


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


def test_a_model_without_weights_is_like_the_one_with_them(tmp_path):
    folder = write_tiny_policy(tmp_path / "policy", tie=True)
    whole, bare = load_model(folder, torch.float32), model_without_weights(folder, torch.float32)
    shapes = [{name: weight.shape for name, weight in model.named_parameters()} for model in (whole, bare)]
    assert shapes[0] == shapes[1], "also which of them are tied"
    for name, buffer in whole.named_buffers():
        assert torch.equal(bare.get_buffer(name), buffer), "such as the frequencies of positions"


TEXT = " Ab 12,345\n\t(x+1)  naïve don't"
WITHOUT_TORCH = """
import sys
from pathlib import Path
from stages.engines.policies.tokenizers import decode_response, encode_prompt, load_tokenizer
from stages.engines.samplers import build, params, protocol
from stages.foundations.params import ChatPrompt, PlainPrompt

tokenizer = load_tokenizer(Path(sys.argv[1]))
tokenizer.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
encode_prompt(tokenizer, PlainPrompt(kind="plain", template="Q: {problem}"), "1+1")
ids = encode_prompt(tokenizer, ChatPrompt(kind="chat", system="", suffix=""), "1+1")
assert decode_response(tokenizer, ids) == "<1+1>"
assert "torch" not in sys.modules, "torch"
from stages.engines.policies.policy_folders import load_policy, torch
assert load_policy(Path(sys.argv[1]), torch.float32)[0].generation_config is not None
"""


def test_a_process_that_needs_tokens_needs_no_torch_and_may_still_have_it(tmp_path):
    write_tiny_policy(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def qwen_tokenizer():
    """Returns a tokenizer with a merge, so that its pre-tokenizer matters."""
    vocabulary = byte_tokenizer().get_vocab()
    vocabulary |= {"Ġn": len(vocabulary), "12": len(vocabulary) + 1}
    return Qwen2Tokenizer(vocab=vocabulary, merges=[("Ġ", "n"), ("1", "2")], eos_token="<|end|>", pad_token="<|pad|>")


@pytest.mark.parametrize(("model_type", "named"), KNOWN_CLASSES)
def test_known_classes_are_those_that_transformers_takes(model_type, named, tmp_path):
    tokenizer = qwen_tokenizer() if named.startswith("Qwen2") else byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": named}))
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert type(ours) is type(theirs)
    assert ours.encode(TEXT) == theirs.encode(TEXT) and ours.eos_token_id == theirs.eos_token_id
    assert ours.backend_tokenizer.to_str() == theirs.backend_tokenizer.to_str()


def test_other_folders_are_left_to_transformers(tmp_path):
    write_tiny_policy(tmp_path)
    expected = load_tokenizer(tmp_path).encode(TEXT)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    assert load_tokenizer(tmp_path).encode(TEXT) == expected
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match="holds no usable tokenizer"):
        load_tokenizer(tmp_path)


def test_prompts_and_responses_are_tokens_of_the_text():
    tokenizer = byte_tokenizer()
    plain = encode_prompt(tokenizer, PlainPrompt(kind="plain", template="Q: {problem}\nA: "), "{1}+1?")
    assert tokenizer.decode(plain) == "Q: {1}+1?\nA: "
    response = encode_response(tokenizer, "2")
    assert response[-1] == tokenizer.eos_token_id and decode_response(tokenizer, response) == "2"


def test_chat_prompts_need_a_template_and_use_it():
    tokenizer = byte_tokenizer()
    with pytest.raises(UserError, match=r"prompt\.kind: plain"):
        encode_prompt(tokenizer, CHAT, "1+1?")
    tokenizer.chat_template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    assert tokenizer.decode(encode_prompt(tokenizer, CHAT, "1+1?")) == "<system>Be brief.<user>1+1? Box it.<assistant>"


CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|turn|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if thinking is defined and not thinking %}<no>{% endif %}{% endif %}"
)


@pytest.fixture
def chatting():
    """Returns a tokenizer whose template closes a turn with a different token than its end of sequence."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|turn|>"], special_tokens=True)
    tokenizer.chat_template = CHATML
    return tokenizer


def test_all_end_tokens_are_known(chatting, tmp_path):
    eos, closing = chatting.eos_token_id, chatting.convert_tokens_to_ids("<|turn|>")
    assert read_end_tokens(tmp_path, chatting) == (eos, closing)
    for named, expected in ((7, (eos, 7, closing)), ([9, eos, 9], (eos, 9, closing)), (None, (eos, closing))):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
        assert read_end_tokens(tmp_path, chatting) == expected
    for wrong in ("</s>", [True], [10**9], {"a": 1}):
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
        with pytest.raises(UserError, match="which is no token of the policy: correct it"):
            read_end_tokens(tmp_path, chatting)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match="is not readable"):
        read_end_tokens(tmp_path, chatting)


def test_a_template_gets_arguments_may_be_replaced_and_may_raise(chatting, tmp_path):
    def text(**changes):
        return chatting.decode(encode_prompt(chatting, CHAT.model_copy(update=changes), "1+1?"))

    assert text().endswith("Box it.<|turn|><|assistant|>")
    assert text(template_arguments={"thinking": False}).endswith("<|assistant|><no>")
    (tmp_path / "mine.jinja").write_text("[{{ messages[-1].content }}]")
    assert text(template=str(tmp_path / "mine.jinja")) == "[1+1? Box it.]"
    (tmp_path / "mine.jinja").write_text("{{ raise_exception('no system message here') }}")
    with pytest.raises(UserError, match=r"raises TemplateError: no system message here\. Correct prompt\.template"):
        text(template=str(tmp_path / "mine.jinja"))
    with pytest.raises(UserError, match=r"no-such\.jinja cannot be read"):
        text(template=str(tmp_path / "no-such.jinja"))


def test_special_tokens_that_mark_a_thought_stay_in_the_text():
    """Magistral's are special, DeepSeek-R1's are not; other special tokens are removed."""
    tokenizer = byte_tokenizer()
    plain = tokenizer.encode("2", add_special_tokens=False)
    assert decode_response(tokenizer, [*plain, tokenizer.eos_token_id]) == "2"
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["[THINK]", "[/THINK]", "<|turn|>"], special_tokens=True)
    opening, closing, turn = tokenizer.convert_tokens_to_ids(["[THINK]", "[/THINK]", "<|turn|>"])
    ids = [opening, *tokenizer.encode(" 1é", add_special_tokens=False), turn, closing, *plain, tokenizer.eos_token_id]
    assert decode_response(tokenizer, ids) == "[THINK] 1é[/THINK]2"


def test_experts_are_saved_apart_as_the_hub_has_them(tmp_path):
    """transformers holds them together; for some families, such as Mixtral, vLLM knows only the hub's names."""
    sizes = dict(vocab_size=258, hidden_size=32, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = random_model("mixtral", **sizes, num_key_value_heads=2, num_local_experts=3)
    weights = dict(model.named_parameters())
    save_policy(model, byte_tokenizer(), tmp_path, weights)
    stored = load_file(tmp_path / "model.safetensors")
    # By hand: w1 is the gate, w3 the upper half after it, and w2 the projection back.
    experts = "model.layers.0.block_sparse_moe.experts.2"
    together = weights["model.layers.0.mlp.experts.gate_up_proj"][2]
    assert torch.equal(torch.cat((stored[f"{experts}.w1.weight"], stored[f"{experts}.w3.weight"])), together)
    assert torch.equal(stored[f"{experts}.w2.weight"], weights["model.layers.0.mlp.experts.down_proj"][2])
    again, _ = load_policy(tmp_path, torch.float32)
    assert all(torch.equal(weight, weights[name]) for name, weight in again.named_parameters())
