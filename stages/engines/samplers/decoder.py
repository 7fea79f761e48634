"""The forward pass of the built-in sampler: a decoder (Llama family), prompt reading and the key-value cache.

**Decoder.** Covers the model types in `MODEL_TYPES` without sliding windows: rotary positions, RMS norms, gated
feed-forward, grouped key-value heads, biases on the query, key and value projections (Qwen2), norms on queries and keys
(Qwen3). Attention is a function that the caller passes in.

Rotary positions rotate pairs of a head's numbers as complex numbers, with one multiplication for each pair. For that,
the rows of the query and key projections are reordered so that the two numbers of a pair are neighbours. The product of
a query and a key does not change.

**Cache.** A prompt is held once for all its open responses: one matrix product multiplies their queries by its keys.
Each response also has a small cache without the prompt, which is cheap to grow and to compact. One softmax runs over
the scores of both.

Responses have places [groups, width]: a group is up to `width` responses of one prompt. Ended responses leave empty
places, which cost a little attention and nothing else, until a compaction removes them.

The cache is in float32, whatever the policy's precision: products in lower precision would round the scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
Attention = Callable[[int, Tensor], Tensor]
"""(layer, unrotated query, key and value heads [rows, heads, head size]) -> mixed values [rows, -1]; float32."""


def represents(model: PreTrainedModel) -> bool:
    """Returns True if `Decoder` covers the model. The code that starts a sampler also measures it: `forward_probe`."""
    config = model.config
    window = getattr(config, "sliding_window", None)
    # A window as long as the positions hides nothing. Qwen configs name the layers that have a window.
    has_window = window is not None and window < config.max_position_embeddings
    if has_window and getattr(config, "layer_types", None):
        has_window = "sliding_attention" in config.layer_types
    return config.model_type in MODEL_TYPES and not has_window and not getattr(config, "mlp_bias", False)


class _Norm:
    """RMS norm over the last dimension.

    On a CPU in float32 it is computed as sqrt(n) x / hypot(|x|, sqrt(n epsilon)), with sqrt(n) in the weight. It takes
    half the time of `rms_norm`, which is a longer chain of plain operations on a CPU.
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
    """The forward pass, with fused projections, of a policy that passes `represents`.

    A change of the weights requires a new `Decoder`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        config = model.config
        self.positions = config.max_position_embeddings
        self.heads = config.num_attention_heads
        self.kv_heads = config.num_key_value_heads
        self.head_size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.body = model.base_model
        self.head = model.get_output_embeddings().weight
        self.device = self.head.device
        self.layers = [
            _fuse(layer, self.heads, self.kv_heads, self.head_size, config.rms_norm_eps) for layer in self.body.layers
        ]
        self.norm = _Norm(self.body.norm.weight, config.rms_norm_eps)
        self._turns = self._turns_of(1)

    def turns(self, positions: int) -> tuple[Tensor, Tensor]:
        """Returns the complex factors of queries and of keys [at least `positions`, head size / 2].

        The scale of attention is in the factors of queries.
        """
        turns = self._turns
        if len(turns[0]) < positions:
            turns = self._turns = self._turns_of(positions)
        return turns

    def _turns_of(self, positions: int) -> tuple[Tensor, Tensor]:
        # transformers repeats the angles for the second half of a head: half of the columns hold all of them.
        places = torch.arange(positions, device=self.device)[None]
        like = torch.empty(0, dtype=torch.float32, device=self.device)
        cosine, sine = (part[0, :, : self.head_size // 2] for part in self.body.rotary_emb(like, places))
        turns = torch.complex(cosine.float(), sine.float())
        # Queries are used only in products with keys, so the scale can be part of their factor at no cost.
        return turns / math.sqrt(self.head_size), turns

    def hidden(self, token_ids: Tensor, attention: Attention) -> Tensor:
        """Returns final normalised hidden states [rows, hidden] of `token_ids` [rows]; only `attention` mixes rows."""
        states = F.embedding(token_ids, self.body.embed_tokens.weight)
        for number, layer in enumerate(self.layers):
            states = self._layer(number, layer, states, attention)
        return self.norm(states)

    def logits(self, hidden: Tensor) -> Tensor:
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
    device = attention.q_proj.weight.device
    # 0, n/2, 1, n/2 + 1, ...: transformers rotates number i together with number i + n/2. As neighbours, the two are
    # one complex number. Values are not rotated, so their rows stay.
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


class PromptReading:
    """Attention within prompts [prompts, width], padded on the right; keeps their keys and values by layer."""

    def __init__(self, decoder: Decoder, prompts: int, width: int) -> None:
        self.decoder, self.shape = decoder, (prompts, width)
        self.turns = [factors[:width] for factors in decoder.turns(width)]
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        """Implements `Attention`. Padding comes last, so no real token attends to it."""
        decoder = self.decoder
        by_head = heads.view(*self.shape, *heads.shape[1:]).transpose(1, 2)
        query, key, value = by_head.split([decoder.heads, decoder.kv_heads, decoder.kv_heads], dim=1)
        query, key = (_turned(part, factors) for part, factors in zip((query, key), self.turns, strict=True))
        self.keys.append(key)
        # A view would keep the queries and keys of the whole forward pass in memory.
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
    """Rotates the pairs of `part` [..., head size] by the complex `factors` [..., head size / 2] into `target`."""
    torch.mul(_as_complex(part), factors, out=_as_complex(target))


def _as_complex(part: Tensor) -> Tensor:
    return torch.view_as_complex(part.unflatten(-1, (-1, 2)))


FIRST_COLUMNS = 16
"""Initial number of columns of a response's cache; it doubles when they are full."""
SMALL_PRODUCT = 400
"""Below this many multiplications per matrix, torch's batched product uses a loop that is three times as slow."""
OPEN_SHARE = 0.75
"""Share of open places below which the cache is compacted."""
SPARE_PLACES = 1.2
"""Places per open response that a compaction may leave, so that groups stay wide."""


class Layout:
    """The places of responses: `counts` responses of each prompt, in groups of one prompt; all have the same width."""

    def __init__(self, counts: Tensor) -> None:
        self.width, groups_of_prompt = _narrowed(counts)
        first_group = groups_of_prompt.cumsum(0) - groups_of_prompt
        first_row = counts.cumsum(0) - counts
        rank = torch.arange(int(counts.sum()), device=counts.device) - first_row.repeat_interleave(counts)
        self.places = first_group.repeat_interleave(counts) * self.width + rank
        """Places of the responses, ordered by prompt."""
        self.prompts = torch.arange(len(counts), device=counts.device).repeat_interleave(groups_of_prompt)


class KeyValueCache:
    """Keys and values of prompts and of their responses' tokens so far. Row i of a step is place `places[i]`.

    All responses end at the same column. A younger response begins at a later column; earlier columns are masked.
    """

    def __init__(self, decoder: Decoder, layout: Layout, lengths: Tensor, columns: int, first: Tensor) -> None:
        """Takes the `lengths` of the prompts and the `first` column of each response, 0 to `columns`.

        The caller sets keys and values: `prompt_keys` and `prompt_values` by layer [groups * key-value heads, prompt
        columns, head size], `keys` and `values` [groups * key-value heads * width, `capacity`, head size].
        """
        self.decoder, device = decoder, decoder.device
        self.queries_of_one = decoder.heads // decoder.kv_heads
        products = decoder.head_size * self.queries_of_one
        # Rounded up to enough columns that a product is never a small one, but no more than a new cache has.
        self.columns_at_least = min(-(-SMALL_PRODUCT // products), FIRST_COLUMNS)
        self.groups, self.width, self.columns = len(layout.prompts), layout.width, columns
        self.capacity = max(FIRST_COLUMNS, 2 * columns)
        self.prompts, self.lengths = layout.prompts, lengths[layout.prompts]
        self.longest = int(lengths.max())
        is_padding = torch.arange(self.longest, device=device) >= self.lengths[:, None]
        self.bias = _mask(is_padding).repeat_interleave(decoder.kv_heads, 0)[:, None]
        self.first = torch.zeros(self.groups * self.width, dtype=torch.long, device=device)
        self.first[layout.places] = first
        self.is_ragged = bool((first > 0).any())
        self._mask_columns()
        self.prompt_keys: list[Tensor] = []
        self.prompt_values: list[Tensor] = []
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._stand(layout.places)

    @classmethod
    def of_reading(
        cls,
        reading: PromptReading,
        lengths: Sequence[int],
        read: Sequence[int],
        counts: Sequence[int],
        begun: Sequence[tuple[int, int]],
    ) -> KeyValueCache:
        """Returns the cache of a reading.

        For each prompt: its length, its row in the reading, and the number of its responses. For each response: the
        number of its tokens after the prompt, and the row of the reading that has them.
        """
        decoder, device = reading.decoder, reading.decoder.device
        layout = Layout(torch.tensor(counts, device=device))
        begun_tokens, rows = torch.tensor(begun, device=device).unbind(1)
        columns = max(tokens for tokens, _ in begun)
        cache = cls(decoder, layout, torch.tensor(lengths, device=device), columns, columns - begun_tokens)
        source = torch.tensor(read, device=device)[layout.prompts]
        # The usual case is one group for each prompt of the reading: then the prompts' keys need no copy.
        is_same = reading.shape == (cache.groups, cache.longest) and source.tolist() == list(range(cache.groups))
        # Positions in the reading of the cache's columns. Columns before a response's first are masked; any value does.
        group = layout.places // layout.width
        at = cache.lengths[group][:, None] + torch.arange(columns, device=device) - (columns - begun_tokens)[:, None]
        for prompt_parts, parts, read_parts in (
            (cache.prompt_keys, cache.keys, reading.keys),
            (cache.prompt_values, cache.values, reading.values),
        ):
            for part in read_parts:
                prompt_parts.append((part if is_same else part[source, :, : cache.longest]).flatten(0, 1))
                shape = (cache.groups, layout.width, decoder.kv_heads, cache.capacity, decoder.head_size)
                whole = torch.zeros(shape[0], shape[2], shape[1], *shape[3:], device=device)
                if columns:
                    taken = part[rows].gather(
                        2, at.clamp(0)[:, None, :, None].expand(-1, part.shape[1], -1, part.shape[3])
                    )
                    whole.transpose(1, 2)[group, layout.places % layout.width, :, :columns] = taken
                parts.append(whole.flatten(0, 2))
        return cache

    @classmethod
    def joined(cls, caches: Sequence[KeyValueCache]) -> KeyValueCache:
        """Returns one cache of the open responses of all caches, in order, and frees the memory of those caches.

        Groups are as wide as possible without many empty places. Columns that no open response needs are left out.
        """
        kept = [_Kept(cache) for cache in caches]
        counts = torch.cat([one.counts for one in kept])
        layout, columns = Layout(counts), max(one.columns for one in kept)
        first = torch.cat([one.first + (columns - one.columns) for one in kept])
        joined = cls(caches[0].decoder, layout, torch.cat([one.lengths for one in kept]), columns, first)
        kv_heads, size, device = joined.decoder.kv_heads, joined.decoder.head_size, counts.device
        head = torch.arange(kv_heads, device=device)
        pieces: list[tuple[Tensor, Tensor, slice, slice]] = []
        prompt = row = 0
        for one in kept:
            groups = (layout.prompts >= prompt) & (layout.prompts < prompt + len(one.counts))
            first_group, group_count = int(groups.int().argmax()), int(groups.sum())
            group = one.groups[layout.prompts[groups] - prompt]
            of_prompts = (group[:, None] * kv_heads + head).flatten()
            heads = slice(first_group * kv_heads, (first_group + group_count) * kv_heads)
            places = layout.places[row : row + len(one.first)] - first_group * layout.width
            of_rows = torch.zeros(group_count * kv_heads * layout.width, dtype=torch.long, device=device)
            of_rows[_heads(places, layout.width, kv_heads)] = _heads(one.cache.places, one.cache.width, kv_heads)
            pieces.append((of_prompts, of_rows, heads, slice(heads.start * layout.width, heads.stop * layout.width)))
            prompt, row = prompt + len(one.counts), row + len(one.first)
        taken = torch.empty(0, device=device)
        for name in ("keys", "values"):
            for layer in range(len(getattr(caches[0], name))):
                of_prompts = torch.empty(joined.groups * kv_heads, joined.longest, size, device=device)
                of_rows = torch.empty(len(of_prompts) * joined.width, joined.capacity, size, device=device)
                # Zeros where a step may read columns not yet written: uninitialised memory could hold NaN.
                of_rows[:, columns : joined.columns_at_least] = 0
                for one, (prompt_source, row_source, heads, rows) in zip(kept, pieces, strict=True):
                    old_prompts, old_rows = getattr(one.cache, f"prompt_{name}"), getattr(one.cache, name)
                    longest, start = min(joined.longest, one.cache.longest), columns - one.columns
                    _take(old_prompts[layer][:, :longest], prompt_source, of_prompts[heads, :longest])
                    of_prompts[heads, longest:] = 0
                    _take(old_rows[layer][:, one.skipped : one.cache.columns], row_source, of_rows[rows, start:columns])
                    of_rows[rows, :start] = 0
                    old_prompts[layer] = old_rows[layer] = taken
                getattr(joined, f"prompt_{name}").append(of_prompts)
                getattr(joined, name).append(of_rows)
        return joined

    def __len__(self) -> int:
        return len(self.places)

    @property
    def cells(self) -> int:
        """Number of keys that a step reads, for each layer and key-value head."""
        return self.groups * (self.longest + self.width * self.columns)

    @staticmethod
    def cells_joined(caches: Sequence[KeyValueCache]) -> int:
        """Returns about the `cells` of these caches after they are joined."""
        longest, columns = (max(getattr(one, name) for one in caches) for name in ("longest", "columns"))
        return sum(one.groups for one in caches) * longest + sum(map(len, caches)) * columns

    @property
    def is_sparse(self) -> bool:
        """True when the cache should be compacted with `joined([cache])`."""
        return len(self.places) < OPEN_SHARE * self.groups * self.width

    def _stand(self, places: Tensor) -> None:
        """Sets the open places, in the order of the rows of a step."""
        self.places = places
        self.is_full = len(places) == self.groups * self.width
        if self.is_full:
            return
        self.row_of_place = torch.zeros(self.groups * self.width, dtype=torch.long, device=places.device)
        self.row_of_place[places] = torch.arange(len(places), device=places.device)
        self.heads_of_row = _heads(places, self.width, self.decoder.kv_heads)

    def _mask_columns(self) -> None:
        """Sets scores to -inf on columns before a response's first: [places * key-value heads, 1, capacity]."""
        self.response_bias: Tensor | None = None
        if self.is_ragged:
            is_before = torch.arange(self.capacity, device=self.first.device) < self.first[:, None]
            by_group = _mask(is_before).view(self.groups, 1, self.width, -1)
            self.response_bias = by_group.expand(-1, self.decoder.kv_heads, -1, -1).reshape(-1, 1, self.capacity)

    def keep(self, rows: Tensor) -> None:
        """Keeps only these rows of the last step, in this order (ascending)."""
        self._stand(self.places[rows])

    def _grow(self) -> None:
        # With doubling, each token is copied once on average, however long responses become.
        self.capacity *= 2
        self._mask_columns()
        for parts in (self.keys, self.values):
            for layer, part in enumerate(parts):
                parts[layer] = part.new_empty(len(part), self.capacity, part.shape[2])
                parts[layer][:, : self.columns] = part

    def add_column(self) -> None:
        """Makes room for one more token of each response."""
        if self.columns == self.capacity:
            self._grow()
        position = (self.lengths + self.columns)[:, None]
        if self.is_ragged:
            position = position - self.first.view(self.groups, -1)
        turns = self.decoder.turns(self.longest + self.columns + 1)
        self.turn_query, self.turn_key = (factors[position][:, None] for factors in turns)
        self.columns += 1
        self.used = max(self.columns, self.columns_at_least)

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        """Implements `Attention`; writes keys and values of the rows into the newest column."""
        decoder, width, newest = self.decoder, self.width, self.columns - 1
        if not self.is_full:
            # Empty places are computed too, and not used: one product over all places is quicker than many.
            heads = heads.index_select(0, self.row_of_place)
        by_place = heads.view(self.groups, width, -1, decoder.head_size).transpose(1, 2)
        query, key, value = by_place.split([decoder.heads, decoder.kv_heads, decoder.kv_heads], dim=1)
        shape = (self.groups, decoder.kv_heads, width, -1, decoder.head_size)
        keys, values = self.keys[layer].view(shape), self.values[layer].view(shape)
        turn(key, self.turn_key, keys[:, :, :, newest])
        values[:, :, :, newest] = value
        grouped = torch.empty((*shape[:3], self.queries_of_one, shape[4]), device=heads.device)
        turn(query.unflatten(1, (decoder.kv_heads, -1)), self.turn_query[:, None], grouped.transpose(2, 3))
        mixed = self._mix(layer, grouped)
        if self.is_full:
            return mixed.transpose(1, 2).reshape(len(self.places), -1)
        return mixed.view(-1, self.queries_of_one * decoder.head_size)[self.heads_of_row].flatten(1)

    def _mix(self, layer: int, query: Tensor) -> Tensor:
        """Returns mixed values of `query` [groups, key-value heads, width, queries of one, head size], same shape."""
        groups, kv_heads, width, queries, size = query.shape
        key, value = self.keys[layer][:, : self.used], self.values[layer][:, : self.used]
        columns = self.bias.shape[-1]
        of_prompt = torch.baddbmm(
            self.bias, query.view(groups * kv_heads, width * queries, size), self.prompt_keys[layer].transpose(1, 2)
        )
        of_response = query.view(-1, queries, size)
        if self.response_bias is None:
            of_response = torch.bmm(of_response, key.transpose(1, 2))
        else:
            bias = self.response_bias[:, :, : self.used]
            of_response = torch.baddbmm(bias, of_response, key.transpose(1, 2))
        if self.used > self.columns:
            # These columns only make the product large enough, and hold no tokens.
            of_response[:, :, self.columns :] = -torch.inf
        # One softmax over both parts: the prompt's keys and the response's are one sequence.
        scores = torch.cat((of_prompt, of_response.view(groups * kv_heads, width * queries, -1)), dim=-1)
        weights = scores.softmax(-1)
        mixed = torch.bmm(weights[:, :, :columns], self.prompt_values[layer]).view(-1, queries, size)
        mixed.baddbmm_(weights.view(-1, queries, columns + self.used)[:, :, columns:], value)
        return mixed.view(query.shape)


class _Kept:
    """The open part of a cache, by prompt that is still needed and by row."""

    def __init__(self, cache: KeyValueCache) -> None:
        self.cache = cache
        group = cache.places // cache.width
        # Groups of one prompt are neighbours.
        _, self.counts = cache.prompts[group].unique_consecutive(return_counts=True)
        self.groups = group[self.counts.cumsum(0) - self.counts]
        """For each prompt, one group that holds it."""
        self.lengths = cache.lengths[self.groups]
        first = cache.first[cache.places]
        self.skipped = int(first.min())
        """Number of columns that no open response needs."""
        self.first, self.columns = first - self.skipped, cache.columns - self.skipped


def _take(source: Tensor, rows: Tensor, target: Tensor) -> None:
    """Sets `target` to `source[rows]` without a copy in between, which takes half the time."""
    torch.index_select(source, 0, rows, out=target)


def _mask(is_masked: Tensor) -> Tensor:
    return torch.zeros(is_masked.shape, device=is_masked.device).masked_fill_(is_masked, -torch.inf)


def _heads(places: Tensor, width: int, kv_heads: int) -> Tensor:
    """Returns the index [places, key-value heads] into a layout of [groups, key-value heads, width]."""
    group, slot = places // width, places % width
    heads = torch.arange(kv_heads, device=places.device)
    return (group[:, None] * kv_heads + heads) * width + slot[:, None]


def _narrowed(counts: Tensor) -> tuple[int, Tensor]:
    """Returns the width of groups for prompts with `counts` open responses, and the number of groups per prompt."""
    width, total = int(counts.max()), int(counts.sum())
    while True:
        groups = -(-counts // width)
        if width == 1 or width * int(groups.sum()) <= SPARE_PLACES * total:
            return width, groups
        # Narrower groups leave fewer empty places, and hold their prompt more often.
        width = -(-width // 2)
