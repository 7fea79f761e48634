"""Attention within sequences that lie one after another in a row without padding, for GPUs.

A mask [tokens, tokens] would keep flash kernels away, and take tokens^2 instead of the sum of the squared lengths. The
kernel is torch's (`torch.nn.attention.varlen`, 16-bit numbers only), called as transformers calls an attention.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel

NAME = "retrace_varlen"
_PARAMETERS = inspect.signature(varlen_attn).parameters
CAUSAL = {"window_size": (-1, 0)} if "window_size" in _PARAMETERS else {"is_causal": True}
"""By what torch 2.13 and torch 2.10 call it: a window without a right side."""
KNOWS_GROUPS = "enable_gqa" in _PARAMETERS
"""Whether fewer keys than queries may be given; torch 2.11 has no such argument."""


def use_varlen_attention(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
    """Has a model that computes in 16 bits on a GPU attend so; any other keeps what it has."""
    if device.type == "cuda" and dtype.itemsize == 2:
        model.config._attn_implementation = NAME


def uses_varlen_attention(model: PreTrainedModel) -> bool:
    """True where the model takes rows without padding."""
    return model.config._attn_implementation == NAME


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    ends: Tensor,
    longest: int,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention in each sequence. `query` [1, heads, tokens, head size], `key` and `value` of as many heads or
    fewer; `ends` [sequences + 1], int32: where each begins and the last ends; `longest` in tokens.

    Returns [1, tokens, heads, head size]. On a CPU, which has no such kernel, one sequence after the other.
    """
    queries, keys, values = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))
    has_groups = query.shape[1] != key.shape[1]
    if query.device.type == "cuda":
        from torch.nn.attention.varlen import varlen_attn

        # A window without a right side is causal.
        mixed = varlen_attn(
            queries,
            keys,
            values,
            ends,
            ends,
            longest,
            longest,
            scale=scaling,
            window_size=(-1, 0),
            enable_gqa=has_groups,
        )
        return mixed[None], None
    sizes = ends.diff().tolist()
    parts = zip(*(part.split(sizes) for part in (queries, keys, values)), strict=True)
    mixed = [
        F.scaled_dot_product_attention(
            *(part.transpose(0, 1)[None] for part in of_one),
            is_causal=True,
            scale=scaling,
            enable_gqa=has_groups,
        )[0].transpose(0, 1)
        for of_one in parts
    ]
    return torch.cat(mixed)[None], None


AttentionInterface.register(NAME, attend)
