"""A policy folder small enough for any test: a random two-layer Llama (0.1M parameters) and a byte tokenizer.

The head size of 32 is the smallest that vLLM's CPU attention takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

END_OF_SEQUENCE = "<|end|>"
PADDING = "<|pad|>"
VOCABULARY_TOKENS = 258
"""256 bytes and the two special tokens."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with one token per byte: ids 0 (end of sequence), 1 (padding), then the bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([END_OF_SEQUENCE, PADDING, *alphabet])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END_OF_SEQUENCE, pad_token=PADDING, model_max_length=512
    )


def tiny_model(
    seed: int = 0,
    tie: bool = True,
    vocab: int = VOCABULARY_TOKENS,
    hidden: int = 64,
    layers: int = 2,
    initializer_range: float = 0.08,
) -> LlamaForCausalLM:
    """Returns the random model; equal seeds give equal weights. Leaves torch's random stream unchanged."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 32,
        max_position_embeddings=512,
        tie_word_embeddings=tie,
        initializer_range=initializer_range,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).eval()


def write_tiny_policy(
    folder: Path,
    seed: int = 0,
    tie: bool = True,
    vocab: int = VOCABULARY_TOKENS,
    hidden: int = 64,
    layers: int = 2,
    initializer_range: float = 0.08,
) -> Path:
    """Writes model and tokenizer into `folder` and returns it.

    `vocab` below 258 makes a policy whose tokenizer does not fit. A larger `initializer_range` makes the
    distribution over tokens more peaked.
    """
    folder.mkdir(parents=True, exist_ok=True)
    model = tiny_model(seed, tie, vocab, hidden, layers, initializer_range)
    model.save_pretrained(folder, safe_serialization=True)
    byte_tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def plain_logits(model: PreTrainedModel, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """Returns logits [tokens, vocabulary] before each token of a response: one sequence, transformers' plain attention.

    What trainers and samplers compute in their ways is compared with it.
    """
    usual = model.config._attn_implementation
    model.config._attn_implementation = "eager"
    logits = model(torch.tensor([[*prompt, *response]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    model.config._attn_implementation = usual
    return logits.float()


def plain_logprobs(model: PreTrainedModel, prompt: Sequence[int], response: Sequence[int]) -> torch.Tensor:
    """Returns the log-probs [tokens] of the response's tokens by `plain_logits`."""
    logprobs = plain_logits(model, prompt, response).log_softmax(-1)
    return logprobs.gather(-1, torch.tensor(response, dtype=torch.long)[:, None])[:, 0]
