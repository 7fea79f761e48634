"""Decodes through transformers' forward pass, for the model families that the built-in decoder does not cover.

All but the forward passes comes from `TorchDecoding`: random numbers, cuts, admission and ends of responses. Texts are
one batch with padding before the shorter ones, so that all end in the same column. transformers' cache holds their keys
and values. Positions and attention mask are passed explicitly. transformers handles sliding windows, scaled rotary
positions and a family's changes to its logits.

It is slower than the built-in decoder: each token copies the cache, and each response holds its prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from stages.engines.samplers.torch_decoding import Run, TorchDecoding

READ_TOGETHER = 2
"""Texts whose log-probs are read together: each token of their responses needs logits of the whole vocabulary."""
MOST_STEPS = 8
"""Last tokens of a given response that are read one by one, as in decoding."""


class PaddedCache:
    """Keys and values of texts that end in the same column; padding is before the shorter ones."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.cache = model, DynamicCache(config=model.config)
        self.lengths = torch.zeros(0, dtype=torch.long, device=model.device)
        """Tokens of each text, without padding."""
        for layer in self.cache.layers:
            if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
                raise ValueError(f"its layers keep a {type(layer).__name__} and not keys and values alone")

    @classmethod
    def of_texts(cls, model: PreTrainedModel, texts: Sequence[Sequence[int]], count: int) -> tuple[PaddedCache, Tensor]:
        """Returns the cache of these texts, and logits [texts, `count`, vocabulary] after the last tokens of each."""
        width = max(map(len, texts))
        ids = torch.tensor([[0] * (width - len(text)) + list(text) for text in texts], device=model.device)
        cache = cls(model)
        return cache, cache.read(ids, torch.tensor([len(text) for text in texts], device=model.device), count)

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, ids: Tensor, lengths: Tensor, count: int = 1) -> Tensor:
        """Appends `ids` [texts, tokens], so the texts have `lengths`; returns float32 logits as in `of_texts`."""
        columns = torch.arange(int(lengths.max()), device=ids.device)
        # Negative in the padding.
        positions = columns - (len(columns) - lengths)[:, None]
        output = self.model(
            input_ids=ids,
            attention_mask=(positions >= 0).long(),
            position_ids=positions.clamp(0)[:, -ids.shape[1] :],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=count,
        )
        self.lengths = lengths
        return output.logits[:, -count:].float()

    def keep(self, rows: Tensor) -> None:
        """Keeps only these texts, in this order; a text may be named several times."""
        self.cache.batch_select_indices(rows)
        self.lengths = self.lengths[rows]
        self._fit(int(self.lengths.max()))

    def join(self, other: PaddedCache) -> None:
        """Appends the texts of another cache, which must not be used afterwards."""
        columns = max(int(one.lengths.max()) for one in (self, other))
        self._fit(columns)
        other._fit(columns)
        for layer, others in zip(self.cache.layers, other.cache.layers, strict=True):
            layer.keys = torch.cat((layer.keys, others.keys))
            layer.values = torch.cat((layer.values, others.values))
        self.lengths = torch.cat((self.lengths, other.lengths))

    def _fit(self, columns: int) -> None:
        """Adds or removes padding in front, so that the longest text may have `columns` tokens."""
        for layer in self.cache.layers:
            kept = columns
            if isinstance(layer, DynamicSlidingWindowLayer):
                # The layer counts the tokens it has seen, and keeps those in the next token's window.
                layer.cumulative_length, kept = columns, min(columns, layer.sliding_window - 1)
            # A negative number of columns cuts.
            padding = (0, 0, kept - layer.keys.shape[-2], 0)
            layer.keys, layer.values = F.pad(layer.keys, padding), F.pad(layer.values, padding)


class TransformersDecoder:
    """Wraps a model for decoding: the attributes of a decoder that `TorchDecoding` uses."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.device = model, model.device
        # A family whose config names no maximum has none.
        self.positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize


class TransformersDecoding(TorchDecoding):
    """Implements `stages.engines.samplers.protocol.Decoding`; for one thread at a time."""

    def _advance(self) -> Tensor:
        (cache,) = self.caches
        return cache.read(self.newest[:, None], cache.lengths + 1)[:, -1]

    def _read_runs(self, runs: Sequence[Run]) -> Tensor:
        """Reads equal texts once, and repeats their part of the cache."""
        texts = [(*one.prompt, *one.begun.token_ids) for run in runs for _, one in run]
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        cache, logits = PaddedCache.of_texts(self.decoder.model, list(row_of), 1)
        rows = torch.tensor([row_of[text] for text in texts], device=logits.device)
        cache.keep(rows)
        self.caches.append(cache)
        return logits[rows, -1]

    def _join_caches(self) -> None:
        """Joins all caches into one: their texts end in the same column, whatever their age."""
        first, *others = self.caches
        for other in others:
            first.join(other)
        self.caches = [first]


@torch.inference_mode()
def padded_logprobs(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Returns log-probs of the given responses, computed by the forward passes of this decoding.

    Texts are read padded. The last quarter of a response (at most `MOST_STEPS` tokens) is read step by step.
    """
    pairs = list(zip(prompts, responses, strict=True))
    parts = [pairs[start : start + READ_TOGETHER] for start in range(0, len(pairs), READ_TOGETHER)]
    return [row for part in parts for row in _read_together(model, part)]


def _read_together(model: PreTrainedModel, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
    texts = [[*prompt, *response] for prompt, response in pairs]
    steps = [min(MOST_STEPS, len(response) // 4) for _, response in pairs]
    # Without the last token: logits after it are not needed.
    begun = [text[: max(1, len(text) - 1 - after)] for text, after in zip(texts, steps, strict=True)]
    counts = [len(response) - after for (_, response), after in zip(pairs, steps, strict=True)]
    cache, logits = PaddedCache.of_texts(model, begun, max(1, *counts))
    found = [[row[len(row) - count :]] for row, count in zip(logits, counts, strict=True)]
    open_rows = list(range(len(pairs)))
    for step in range(max(steps)):
        kept = [place for place, row in enumerate(open_rows) if steps[row] > step]
        if len(kept) < len(open_rows):
            cache.keep(torch.tensor(kept, device=model.device))
            open_rows = [open_rows[place] for place in kept]
        ids = [[texts[row][len(begun[row]) + step]] for row in open_rows]
        logits = cache.read(torch.tensor(ids, device=model.device), cache.lengths + 1)
        for row, behind in zip(open_rows, logits, strict=True):
            found[row].append(behind)
    rows = []
    for (_, response), logits_of_one in zip(pairs, found, strict=True):
        ids = torch.tensor(response, dtype=torch.long, device=model.device)
        rows.append(torch.cat(logits_of_one).log_softmax(-1).gather(-1, ids[:, None])[:, 0].tolist())
    return rows
