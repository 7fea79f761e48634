"""A decoder forward pass for sampling: Llama-family weights of a transformers model, attention left to the caller.

Covers the model types in `MODEL_TYPES`: rotary positions, RMS norms, gated feed-forward, grouped key-value heads,
biases on the query, key and value projections (Qwen2), norms on queries and keys (Qwen3).

Rotary positions turn pairs of a head's numbers as complex numbers, one multiplication each. For that the two numbers of
a pair are put side by side: the rows of the query and key projections are reordered, which leaves every product of a
query and a key as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from stages.foundations.errors import UserError

MODEL_TYPES = ("llama", "qwen2", "qwen3")
Attention = Callable[[int, Tensor], Tensor]
"""(layer, query, key and value heads [rows, heads, head size], not turned yet) -> mixed values [rows, -1]; float32."""


class _Norm:
    """RMS norm over the last dimension.

    On a CPU in float32 it is sqrt(n) x / hypot(|x|, sqrt(n epsilon)), with sqrt(n) in the weight: half the time of
    `rms_norm`, which is a longer chain of plain operations there.
    """

    def __init__(self, weight: Tensor, epsilon: float) -> None:
        self.weight, self.epsilon = weight, epsilon
        self.by_length = weight.device.type == "cpu" and weight.dtype == torch.float32
        if self.by_length:
            self.scaled = weight * len(weight) ** 0.5
            self.least = weight.new_tensor((len(weight) * epsilon) ** 0.5)

    def __call__(self, states: Tensor) -> Tensor:
        if not self.by_length:
            return F.rms_norm(states, self.weight.shape, self.weight, self.epsilon)
        length = torch.linalg.vector_norm(states, dim=-1, keepdim=True)
        return states.div(length.hypot_(self.least)).mul_(self.scaled)


@dataclass(frozen=True)
class _Layer:
    qkv: Tensor
    qkv_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    gate_up: Tensor
    down: Tensor
    activation: nn.Module
    norm: _Norm
    norm_after: _Norm
    query_norm: _Norm | None
    key_norm: _Norm | None


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
        self.body = model.base_model
        self.head = model.get_output_embeddings().weight
        self.device = self.head.device
        self.layers = [
            _fuse(layer, self.heads, self.kv_heads, self.head_size, config.rms_norm_eps)
            for layer in self.body.layers
        ]
        self.norm = _Norm(self.body.norm.weight, config.rms_norm_eps)
        self._turns = self._turns_of(1)

    def turns(self, positions: int) -> tuple[Tensor, Tensor]:
        """Factors of queries and of keys [at least `positions`, head size / 2], complex.

        Attention's scale is in the former.
        """
        turns = self._turns
        if len(turns[0]) < positions:
            turns = self._turns = self._turns_of(positions)
        return turns

    def _turns_of(self, positions: int) -> tuple[Tensor, Tensor]:
        places = torch.arange(positions, device=self.device)[None]
        like = torch.empty(0, dtype=torch.float32, device=self.device)
        cosine, sine = (part[0, :, : self.head_size // 2] for part in self.body.rotary_emb(like, places))
        turns = torch.complex(cosine.float(), sine.float())
        return turns / math.sqrt(self.head_size), turns

    def hidden(self, token_ids: Tensor, attention: Attention) -> Tensor:
        """Final normalised hidden states [rows, hidden] of `token_ids` [rows]; rows meet in `attention` only."""
        states = F.embedding(token_ids, self.body.embed_tokens.weight)
        for number, layer in enumerate(self.layers):
            states = self._layer(number, layer, states, attention)
        return self.norm(states)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits of hidden states."""
        return F.linear(hidden, self.head).float()

    def _layer(self, number: int, layer: _Layer, states: Tensor, attention: Attention) -> Tensor:
        fused = F.linear(layer.norm(states), layer.qkv, layer.qkv_bias)
        heads = fused.view(len(states), -1, self.head_size)
        if layer.query_norm is not None:
            query, key, value = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
            query, key = layer.query_norm(query), layer.key_norm(key)
            heads = torch.cat((query, key, value), dim=1)
        states.addmm_(attention(number, heads.float()).to(states.dtype), layer.out.t())
        if layer.out_bias is not None:
            states += layer.out_bias
        gate, up = F.linear(layer.norm_after(states), layer.gate_up).chunk(2, dim=-1)
        return states.addmm_(layer.activation(gate).mul_(up), layer.down.t())


def _fuse(layer: nn.Module, heads: int, kv_heads: int, head_size: int, epsilon: float) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    if any(projection.bias is not None for projection in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)):
        raise UserError(
            "the torch sampler reads feed-forward layers without biases: set `sampler.kind: vllm`"
        )
    device = attention.q_proj.weight.device
    pairs = torch.arange(head_size, device=device).view(2, -1).t().reshape(-1)
    turned = (torch.arange(heads + kv_heads, device=device)[:, None] * head_size + pairs).reshape(-1)

    def fused(parts: list[Tensor | None]) -> Tensor | None:
        if parts[0] is None:
            return None
        return torch.cat((torch.cat(parts[:2])[turned], parts[2]))

    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    has_norms = hasattr(attention, "q_norm")
    return _Layer(
        qkv=fused([projection.weight for projection in projections]),
        qkv_bias=fused([projection.bias for projection in projections]),
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
        activation=mlp.act_fn,
        norm=_Norm(layer.input_layernorm.weight, epsilon),
        norm_after=_Norm(layer.post_attention_layernorm.weight, epsilon),
        query_norm=_Norm(attention.q_norm.weight[pairs], epsilon) if has_norms else None,
        key_norm=_Norm(attention.k_norm.weight[pairs], epsilon) if has_norms else None,
    )
