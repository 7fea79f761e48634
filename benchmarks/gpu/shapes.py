"""Policies with random weights in published sizes, and their training data: fixed lengths, without an end token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from benchmarks.gpu.measuring import Bench
from pipelines.planning.sizes import PUBLISHED, Shape
from stages.engines.policies.packing import ResponseBatch, TokenSequence, pack
from stages.engines.policies.policy_folders import train_tokenizer
from stages.engines.policies.statistics import policy_statistics
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.params import AdamwParams, TorchTrainerParams
from stages.engines.trainers.protocol import TrainedModel, Trainer

PROMPT_TOKENS, SEQUENCE_TOKENS = 50, 512
OPTIMIZER = AdamwParams(kind="adamw", learning_rate=1e-6, beta1=0.9, beta2=0.95, weight_decay=0.0)


def shape_of(bench: Bench, name: str) -> Shape:
    """Returns a published shape; in miniature, two narrow layers of it."""
    if not bench.is_miniature:
        return PUBLISHED[name.lower()]
    narrow = {"hidden": 64, "layers": 2, "heads": 2, "kv_heads": 1, "head_size": 32, "feed_forward": 96}
    return replace(PUBLISHED[name.lower()], **narrow, vocabulary=320)


def qwen2_config(shape: Shape) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.feed_forward,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.is_tied,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )


def random_model(bench: Bench, shape: Shape, dtype: torch.dtype) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    with bench.device:
        return Qwen2ForCausalLM._from_config(qwen2_config(shape), dtype=dtype)


def write_policy(bench: Bench, shape: Shape, folder: Path) -> Path:
    """Writes and returns a policy folder with a byte tokenizer."""
    tokenizer = train_tokenizer(["0 1 2 3"], 258)
    random_model(bench, shape, bench.dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def trainer_params(bench: Bench, tokens: int, is_checkpointed: bool) -> TorchTrainerParams:
    return TorchTrainerParams(
        kind="torch",
        device=bench.device.type,
        dtype="float32" if bench.device.type == "cpu" else "mixed",
        threads=torch.get_num_threads(),
        micro_batch_tokens=tokens,
        gradient_checkpointing=is_checkpointed,
    )


def random_trainer(bench: Bench, shape: Shape, params: TorchTrainerParams) -> Trainer:
    """Returns a trainer of a random policy, which cannot be saved."""
    model = random_model(bench, shape, torch.float32)
    if params.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})

    def save(weights: object, folder: Path) -> None:
        raise NotImplementedError("a random policy is not kept")

    filler = pack([TokenSequence([0], [0])])
    ends = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return build_trainer(params, OPTIMIZER, 1.0, TrainedModel(model, policy_statistics, save, filler, ends))


def micro_batch(shape: Shape, tokens: int) -> ResponseBatch:
    """Returns sequences of equal length, one per row, as with rollouts of similar length."""
    generator = torch.Generator().manual_seed(0)
    length = min(SEQUENCE_TOKENS, tokens)
    prompt = min(PROMPT_TOKENS, length // 2)
    drawn = torch.randint(2, shape.vocabulary, (tokens // length, length), generator=generator).tolist()
    return pack([TokenSequence(one[:prompt], one[prompt:]) for one in drawn])
