"""Policies as folders: what does not fit is refused with the remedy; prompts are put as the section says."""

import pytest
import torch

from stages.engines.policies.policy_folders import (
    count_policy,
    load_model,
    load_policy,
    model_without_weights,
)
from stages.foundations.errors import UserError
from stages.foundations.prompts import ChatPrompt
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
