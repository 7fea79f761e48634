"""Makes base policies that do not come in transformers' layout: random ones, and GGUF files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils.quantization_config import GgufConfig

from stages.engines.policies.new_tokenizers import END, PAD, byte_level_tokenizer
from stages.engines.policies.policy_folders import save_policy


class LlamaSizes(Protocol):
    """What a random Llama is made of; see `stages.base.params.RandomBase`."""

    hidden_size: int
    layers: int
    heads: int
    feed_forward_size: int
    max_position_tokens: int
    initializer_range: float
    vocabulary_size: int


def random_policy(
    sizes: LlamaSizes, corpus: Iterable[str], seed: int
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """A Llama with random weights and tied embeddings, and a byte-level BPE tokenizer trained on `corpus`.

    Equal arguments give equal weights and equal token ids.
    """
    tokenizer = train_tokenizer(corpus, sizes.vocabulary_size)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=sizes.hidden_size,
        intermediate_size=sizes.feed_forward_size,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        max_position_embeddings=sizes.max_position_tokens,
        initializer_range=sizes.initializer_range,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        tie_word_embeddings=True,
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config), tokenizer


def train_tokenizer(corpus: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """`byte_level_tokenizer` as transformers uses it."""
    tokenizer = byte_level_tokenizer(corpus, vocabulary_size)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, padding_side="left"
    )


def dequantise_policy(gguf_file: Path, folder: Path) -> None:
    """Writes the policy of a GGUF file into `folder` in float32; ValueError when transformers cannot read it."""
    place, name = gguf_file.parent, gguf_file.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(
        place, gguf_file=name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    save_policy(model, tokenizer, folder)
