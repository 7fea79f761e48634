"""Attention within texts that are read whole: prompts, and prompts with what was begun of a response."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.engines.samplers.decoder import Decoder


class PromptReading:
    """Attention within prompts [prompts, width], padded on the right; keeps their keys and values by layer."""

    def __init__(self, decoder: Decoder, prompts: int, width: int) -> None:
        self.decoder, self.shape = decoder, (prompts, width)
        self.turns = [factors[:width] for factors in decoder.turns(width)]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        """See `decoder.Attention`. Padding comes last, so nothing real looks at it."""
        decoder = self.decoder
        by_head = heads.view(*self.shape, *heads.shape[1:]).transpose(1, 2)
        query, key, value = by_head.split([decoder.heads, decoder.kv_heads, decoder.kv_heads], dim=1)
        query, key = (_turned(part, factors) for part, factors in zip((query, key), self.turns, strict=True))
        self.keys.append(key)
        self.values.append(value.contiguous())
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=1.0, enable_gqa=decoder.heads != decoder.kv_heads
        )
        return mixed.transpose(1, 2).reshape(len(heads), -1)


def _turned(part: Tensor, factors: Tensor) -> Tensor:
    target = torch.empty(part.shape, device=part.device)
    turn(part, factors, target)
    return target


def turn(part: Tensor, factors: Tensor, target: Tensor) -> None:
    """Turns the pairs of `part` [..., head size] by the complex `factors` [..., head size / 2] into `target`."""
    torch.mul(_as_complex(part), factors, out=_as_complex(target))


def _as_complex(part: Tensor) -> Tensor:
    return torch.view_as_complex(part.unflatten(-1, (-1, 2)))
