"""Tokenizers of policy folders: the same as AutoTokenizer's, without torch."""

import json
import subprocess
import sys

import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from stages.engines.policies.tokenizers import (
    KNOWN_CLASSES,
    decode_response,
    encode_prompt,
    encode_response,
    load_tokenizer,
)
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt
from tests.fakes.tiny_policy import byte_tokenizer, write_tiny_policy

CHAT = ChatPrompt(kind="chat", system="Be brief.", suffix=" Box it.")
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
    """With a merge, so that its pre-tokenizer matters."""
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
