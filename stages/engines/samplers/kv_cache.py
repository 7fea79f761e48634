"""Keys and values of prompts and responses, and attention over both.

A prompt is held once for all its open responses: their queries meet its keys in one matrix product. Each response has
a cache of its own, which holds nothing of the prompt and so is small to grow and to compact. One softmax runs over the
scores of both.

Responses stand at places [groups, width]: a group is up to `width` responses of one prompt. Ended responses leave empty
places behind, which cost a little attention and nothing else, until a compaction closes the ranks.

All of it is in float32, whatever the policy's precision: products of lower precision would round the scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from stages.engines.samplers.decoder import Decoder

FIRST_COLUMNS = 16
"""Columns of a response's cache at first; they double when they are full."""
SMALL_PRODUCT = 400
"""Below this many multiplications a matrix, torch's batched product takes a loop that is three times as slow."""
OPEN_SHARE = 0.75
"""Share of open places below which the cache is compacted."""
SPARE_PLACES = 1.2
"""Places for each open response that a compaction may leave, to keep groups wide."""


class PromptReading:
    """Attention within prompts [prompts, width], padded on the right; keeps their keys and values by layer."""

    def __init__(self, decoder: Decoder, prompts: int, width: int) -> None:
        self.decoder, self.shape = decoder, (prompts, width)
        self.turns = decoder.turns(width)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        """See `decoder.Attention`. Padding comes last, so nothing real looks at it."""
        decoder = self.decoder
        by_head = heads.view(*self.shape, *heads.shape[1:]).transpose(1, 2)
        query, key, value = by_head.split([decoder.heads, decoder.kv_heads, decoder.kv_heads], dim=1)
        query, key = (_turned(part, turn) for part, turn in zip((query, key), self.turns, strict=True))
        self.keys.append(key)
        self.values.append(value.contiguous())
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=1.0, enable_gqa=decoder.heads != decoder.kv_heads
        )
        return mixed.transpose(1, 2).reshape(len(heads), -1)


class KeyValueCache:
    """The prompts of `reading` and `width` responses of each, empty at first. Row i of a step is place `places[i]`."""

    def __init__(
        self, reading: PromptReading, prompt_lengths: Sequence[int], width: int, max_columns: int
    ) -> None:
        decoder = self.decoder = reading.decoder
        device = decoder.device
        self.queries_of_one = decoder.heads // decoder.kv_heads
        products = decoder.head_size * self.queries_of_one
        self.columns_at_least = min(-(-SMALL_PRODUCT // products), FIRST_COLUMNS)
        self.groups, self.width, self.columns = len(prompt_lengths), width, 0
        self.lengths = torch.tensor(prompt_lengths, device=device)
        self.prompts = torch.arange(self.groups, device=device)
        self.turns = decoder.turns(max(prompt_lengths) + max_columns)
        is_padding = torch.arange(max(prompt_lengths), device=device) >= self.lengths[:, None]
        bias = torch.zeros(is_padding.shape, device=device).masked_fill(is_padding, -torch.inf)
        self.bias = bias.repeat_interleave(decoder.kv_heads, 0)[:, None]
        self.prompt_keys, self.prompt_values = (
            [part.flatten(0, 1) for part in parts] for parts in (reading.keys, reading.values)
        )
        shape = (self.groups * decoder.kv_heads * width, FIRST_COLUMNS, decoder.head_size)
        self.keys, self.values = ([torch.zeros(shape, device=device) for _ in reading.keys] for _ in range(2))
        self._stand(torch.arange(self.groups * width, device=device))

    def _stand(self, places: Tensor) -> None:
        """The open places, in the order of the rows of a step."""
        self.places = places
        self.is_full = len(places) == self.groups * self.width
        if self.is_full:
            return
        self.row_of_place = torch.zeros(self.groups * self.width, dtype=torch.long, device=places.device)
        self.row_of_place[places] = torch.arange(len(places), device=places.device)
        self.heads_of_row = self._heads(places, self.width)

    def _heads(self, places: Tensor, width: int) -> Tensor:
        """Index [places, key-value heads] into what is laid out as [groups, key-value heads, width]."""
        group, slot = places // width, places % width
        heads = torch.arange(self.decoder.kv_heads, device=places.device)
        return (group[:, None] * self.decoder.kv_heads + heads) * width + slot[:, None]

    def keep(self, rows: Tensor) -> None:
        """Only these rows of the last step go on, in this order (ascending)."""
        places = self.places[rows]
        if len(places) < OPEN_SHARE * self.groups * self.width:
            self._compact(places)
        else:
            self._stand(places)

    def _compact(self, places: Tensor) -> None:
        """Closes the ranks: groups as wide as they can be without many empty places."""
        kv_heads = self.decoder.kv_heads
        group = places // self.width
        _, counts = self.prompts[group].unique_consecutive(return_counts=True)
        width, groups_of_prompt = _narrowed(counts)
        first_group = groups_of_prompt.cumsum(0) - groups_of_prompt
        first_row = counts.cumsum(0) - counts
        rank = torch.arange(len(places), device=places.device) - first_row.repeat_interleave(counts)
        moved = first_group.repeat_interleave(counts) * width + rank
        kept = group[first_row].repeat_interleave(groups_of_prompt)
        head = torch.arange(kv_heads, device=places.device)
        kept_heads = (kept[:, None] * kv_heads + head).flatten()
        source = torch.zeros(len(kept) * kv_heads * width, dtype=torch.long, device=places.device)
        source[self._heads(moved, width)] = self._heads(places, self.width)
        self.groups, self.width = len(kept), width
        self.prompts, self.lengths, self.bias = self.prompts[kept], self.lengths[kept], self.bias[kept_heads]
        self.prompt_keys, self.prompt_values = (
            [part[kept_heads] for part in parts] for parts in (self.prompt_keys, self.prompt_values)
        )
        self._copy(source, self.keys[0].shape[1])
        self._stand(moved)

    def _copy(self, source: Tensor | slice, capacity: int) -> None:
        for parts in (self.keys, self.values):
            for layer, part in enumerate(parts):
                kept = part[source, : self.columns]
                # Zeros where a step may read past the newest column: anything else could be NaN.
                parts[layer] = part.new_empty(len(kept), capacity, part.shape[2])
                parts[layer][:, self.columns : self.columns_at_least] = 0
                parts[layer][:, : self.columns] = kept

    def add_column(self) -> None:
        """Makes room for one more token of each response."""
        capacity = self.keys[0].shape[1]
        if self.columns == capacity:
            self._copy(slice(None), 2 * capacity)
        position = self.lengths + self.columns
        self.turn_query, self.turn_key = (turn[position][:, None, None] for turn in self.turns)
        self.columns += 1
        self.used = max(self.columns, self.columns_at_least)

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        """See `decoder.Attention`; writes keys and values of the rows into the newest column."""
        decoder, width, newest = self.decoder, self.width, self.columns - 1
        if not self.is_full:
            heads = heads.index_select(0, self.row_of_place)
        by_place = heads.view(self.groups, width, -1, decoder.head_size).transpose(1, 2)
        query, key, value = by_place.split([decoder.heads, decoder.kv_heads, decoder.kv_heads], dim=1)
        shape = (self.groups, decoder.kv_heads, width, -1, decoder.head_size)
        keys, values = self.keys[layer].view(shape), self.values[layer].view(shape)
        _turn(key, self.turn_key, keys[:, :, :, newest])
        values[:, :, :, newest] = value
        grouped = torch.empty((*shape[:3], self.queries_of_one, shape[4]), device=heads.device)
        _turn(query.unflatten(1, (decoder.kv_heads, -1)), self.turn_query[:, None], grouped.transpose(2, 3))
        mixed = self._mix(layer, grouped)
        if self.is_full:
            return mixed.transpose(1, 2).reshape(len(self.places), -1)
        return mixed.view(-1, self.queries_of_one * decoder.head_size)[self.heads_of_row].flatten(1)

    def _mix(self, layer: int, query: Tensor) -> Tensor:
        """Mixed values of `query` [groups, key-value heads, width, queries of one, head size], in its shape."""
        groups, kv_heads, width, queries, size = query.shape
        key, value = self.keys[layer][:, : self.used], self.values[layer][:, : self.used]
        columns = self.bias.shape[-1]
        of_prompt = torch.baddbmm(
            self.bias,
            query.view(groups * kv_heads, width * queries, size),
            self.prompt_keys[layer].transpose(1, 2),
        )
        of_response = torch.bmm(query.view(-1, queries, size), key.transpose(1, 2))
        if self.used > self.columns:
            of_response[:, :, self.columns :] = -torch.inf
        scores = torch.cat((of_prompt, of_response.view(groups * kv_heads, width * queries, -1)), dim=-1)
        weights = scores.softmax(-1)
        mixed = torch.bmm(weights[:, :, :columns], self.prompt_values[layer]).view(-1, queries, size)
        mixed.baddbmm_(weights.view(-1, queries, columns + self.used)[:, :, columns:], value)
        return mixed.view(query.shape)


def _narrowed(counts: Tensor) -> tuple[int, Tensor]:
    """Width of groups for prompts with so many open responses each, and the number of groups of each prompt."""
    width, total = int(counts.max()), int(counts.sum())
    while True:
        groups = -(-counts // width)
        if width == 1 or width * int(groups.sum()) <= SPARE_PLACES * total:
            return width, groups
        width = -(-width // 2)


def _turned(part: Tensor, turn: Tensor) -> Tensor:
    target = torch.empty(part.shape, device=part.device)
    _turn(part, turn, target)
    return target


def _turn(part: Tensor, turn: Tensor, target: Tensor) -> None:
    """Turns the pairs of `part` [..., head size] by the complex `turn` [..., head size / 2] into `target`."""
    torch.mul(_as_complex(part), turn, out=_as_complex(target))


def _as_complex(part: Tensor) -> Tensor:
    return torch.view_as_complex(part.unflatten(-1, (-1, 2)))
