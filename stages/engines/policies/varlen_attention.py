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
GROUPED = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
"""What allows fewer keys than queries. torch 2.11 has no such argument and takes fewer as it is, with equal results."""


def use_varlen_attention(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
    """Has a model with torch's usual attention (`sdpa`) that computes in 16 bits on a GPU attend so.

    Any other keeps what it has.
    """
    if device.type == "cuda" and dtype.itemsize == 2 and model.config._attn_implementation == "sdpa":
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
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Causal attention in each sequence. `query` [1, heads, tokens, head size], `key` and `value` of as many heads or
    fewer; `ends` [sequences + 1], int32: where each begins and the last ends; `longest` in tokens. With a
    `sliding_window` a token sees that many tokens, itself included.

    Returns [1, tokens, heads, head size]. The kernel takes 16-bit numbers on a GPU; otherwise one sequence follows the
    other.
    """
    queries, keys, values = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))
    has_groups = query.shape[1] != key.shape[1]
    if query.device.type == "cuda" and query.dtype.itemsize == 2:
        # A window without a right side is causal; its left side does not count the token itself.
        mixed = varlen_attn(
            queries,
            keys,
            values,
            ends,
            ends,
            longest,
            longest,
            scale=scaling,
            window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
            **(GROUPED if has_groups else {}),
        )
        return mixed[None], None
    sizes = ends.diff().tolist()
    parts = zip(*(part.split(sizes) for part in (queries, keys, values)), strict=True)
    mixed = []
    for size, of_one in zip(sizes, parts, strict=True):
        mask = None
        if sliding_window is not None and size > sliding_window:
            seen = torch.ones(size, size, dtype=torch.bool, device=query.device)
            mask = seen.tril().triu(1 - sliding_window)
        one = F.scaled_dot_product_attention(
            *(part.transpose(0, 1)[None] for part in of_one),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=has_groups,
        )
        mixed.append(one[0].transpose(0, 1))
    return torch.cat(mixed)[None], None


AttentionInterface.register(NAME, attend)
