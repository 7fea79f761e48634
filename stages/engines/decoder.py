"""A decoder forward pass for sampling: Llama-family weights of a transformers model, with our own key-value cache.

Covers the model types in `MODEL_TYPES`: rotary positions, RMS norms, gated feed-forward, grouped key-value heads,
biases on the query, key and value projections (Qwen2), norms on queries and keys (Qwen3).
It reads the live weights, so a copied-in weight is used by the next call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from stages.foundations.errors import UserError

MODEL_TYPES = ("llama", "qwen2", "qwen3")
Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries, keys, values), each [sequences, heads, tokens, head size] -> mixed values like the queries."""


@dataclass(frozen=True)
class _Layer:
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    down: Tensor
    norm: Tensor
    norm_after: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None


class Decoder:
    """The forward pass of one policy, with fused projections. Make a new one after the weights have changed."""

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        if config.model_type not in MODEL_TYPES or getattr(config, "use_sliding_window", False):
            raise UserError(
                f"the torch sampler reads {', '.join(MODEL_TYPES)} models, not {config.model_type}: "
                "set `sampler.kind: vllm`"
            )
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.epsilon = config.rms_norm_eps
        self.body = model.base_model
        self.head = model.get_output_embeddings().weight
        self.layers = [_fuse(layer) for layer in self.body.layers]

    def hidden(self, token_ids: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Final normalised hidden states [sequences, tokens, hidden] of `token_ids` [sequences, tokens]."""
        states = F.embedding(token_ids, self.body.embed_tokens.weight)
        cosine, sine = (part[:, None] for part in self.body.rotary_emb(states, positions))
        for number, layer in enumerate(self.layers):
            states = self._layer(number, layer, states, cosine, sine, attention)
        return self._norm(states, self.body.norm.weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits of hidden states."""
        return F.linear(hidden, self.head).float()

    def _layer(
        self, number: int, layer: _Layer, states: Tensor, cosine: Tensor, sine: Tensor, attention: Attention
    ) -> Tensor:
        sequences, tokens = states.shape[:2]
        fused = F.linear(self._norm(states, layer.norm), layer.qkv, layer.qkv_bias)
        fused = fused.view(sequences, tokens, self.heads + 2 * self.kv_heads, self.head_size).transpose(1, 2)
        query, key, value = fused.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        if layer.query_norm is not None:
            query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        mixed = attention(number, _rotate(query, cosine, sine), _rotate(key, cosine, sine), value)
        mixed = mixed.transpose(1, 2).reshape(sequences, tokens, self.heads * self.head_size)
        states = states + F.linear(mixed, layer.out, layer.out_bias)
        gate, up = F.linear(self._norm(states, layer.norm_after), layer.gate_up).chunk(2, dim=-1)
        return states + F.linear(F.silu(gate) * up, layer.down)

    def _norm(self, states: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(states, (states.shape[-1],), weight, self.epsilon)


def _fuse(layer: torch.nn.Module) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    if any(projection.bias is not None for projection in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        raise UserError(
            "the torch sampler reads feed-forward layers without biases: set `sampler.kind: vllm`"
        )
    biases = [projection.bias for projection in projections]
    return _Layer(
        qkv=torch.cat([projection.weight for projection in projections]),
        qkv_bias=None if biases[0] is None else torch.cat(biases),
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
        norm=layer.input_layernorm.weight,
        norm_after=layer.post_attention_layernorm.weight,
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
    )


def _rotate(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return states * cosine + torch.cat((-second, first), dim=-1) * sine
