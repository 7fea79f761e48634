"""Packs prompts and responses of uneven length into rows for one forward pass, and splits a batch into micro-batches.

**Rows** hold several sequences, one after the other; attention stays inside a sequence and each sequence's positions
start at 0. A response token is predicted from the hidden state one position before it.

**Micro-batches** of several ranks cost about the same in each pass. Ranks synchronise in each forward and backward
pass, because ZeRO 3 gathers a layer's weights on all of them at once. So a pass takes as long as its costliest
micro-batch. The number of passes is the smallest that fits. Passes are filled one after the other, the costliest
sequences first. The limit of a pass is the cost of the longest sequence left, or an equal share of the remaining cost
if that is more. In the last pass each sequence goes to the rank with the least cost so far (Graham, "Bounds on
multiprocessing timing anomalies", 1969: longest processing time first). One limit remains: no rank is done before the
longest sequence is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from stages.engines.trainers.protocol import Trainer


@dataclass(frozen=True)
class TokenSequence:
    """Prompt and response tokens of one sequence."""

    prompt: Sequence[int]
    response: Sequence[int]
    is_written: Sequence[bool] | None = None
    """Marks the response tokens of the policy, if a user's turns are in between; None for all."""

    @property
    def written_tokens(self) -> int:
        """Returns the number of response tokens that the policy writes."""
        return len(self.response) if self.is_written is None else sum(self.is_written)

    @property
    def tokens(self) -> int:
        """Returns the number of prompt and response tokens together."""
        return len(self.prompt) + len(self.response)


@dataclass(frozen=True)
class ResponseBatch:
    """Responses of one micro-batch, and the packed rows that give their hidden states."""

    row_ids: Tensor
    """Token ids of the packed rows, [rows, row tokens]."""
    position_ids: Tensor
    """Position of each token in its own sequence, [rows, row tokens]."""
    segment_ids: Tensor | None
    """Number, within the row, of each token's sequence (-1 in padding); None when every row holds one sequence."""
    source: Tensor
    """Flat index into the rows of the token before each response token, [responses, tokens]."""
    response_ids: Tensor
    """Response tokens, padded with 0, [responses, tokens]."""
    response_mask: Tensor
    """1 at response tokens, 0 at padding and at tokens of a user's turn, [responses, tokens], float."""
    counted: Tensor
    """Flat indices of the 1s of the mask, computed on the CPU: on a GPU the search would make the host wait."""
    row_places: Tensor
    """Flat indices of the row tokens that are not padding, [row tokens of all rows]."""
    ends: Tensor
    """Start of each sequence in `row_places`, and the end of the last one: [sequences + 1], int32."""
    longest: int
    temperature: float = 1.0
    log_threshold: float | None = None
    """Threshold of the statistics' safe vocabulary, after the temperature; None for the whole vocabulary."""
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    """Inputs of a loss besides the statistics, [responses, tokens] or [responses]."""
    rollout_distributions: tuple[Tensor, ...] | None = None
    """The sampler's log-probs [tokens, vocabulary] of each response, for their divergence from the policy; they stay on
    the CPU and are never padded to one tensor. None if they are not kept."""
    likeliest: int = 0
    """If above 0, only that many tokens of each distribution are kept: `SamplingSettings.likeliest`."""
    sampler_sets: tuple[Tensor, ...] | None = None
    """The likeliest tokens [tokens, 2 * likeliest] of each response: the statistics are over those that the sampler
    could draw. None for all tokens."""

    @property
    def is_empty(self) -> bool:
        """Returns True when no response has a token."""
        return not len(self.counted)

    def to(self, device: torch.device) -> ResponseBatch:
        """Returns the same batch on `device`; the host does not wait for the copy to a GPU."""

        def moved(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            # A copy is asynchronous only from pinned memory.
            source = value.pin_memory() if device.type == "cuda" and value.device.type == "cpu" else value
            return source.to(device, non_blocking=True)

        # The sampler's distributions are a tuple, so they stay on the CPU.
        tensors = {name: moved(value) for name, value in vars(self).items() if name != "fields"}
        return ResponseBatch(**tensors, fields={name: moved(value) for name, value in self.fields.items()})


def pack(
    sequences: Sequence[TokenSequence],
    temperature: float = 1.0,
    row_tokens: int | None = None,
    log_threshold: float | None = None,
) -> ResponseBatch:
    """Packs `sequences` into rows of at most `row_tokens` (default: the longest sequence), first fit, longest first.

    The order of responses is that of `sequences`. ValueError for an empty prompt or an empty list.
    """
    if not sequences or any(not sequence.prompt for sequence in sequences):
        raise ValueError("packing needs at least one sequence, and a token before each response")
    # A sequence longer than `row_tokens` makes the rows wider: nothing is truncated here.
    limit = max(row_tokens or 0, max(sequence.tokens for sequence in sequences))
    rows = _first_fit([sequence.tokens for sequence in sequences], limit)
    width = max(sum(sequences[index].tokens for index in row) for row in rows)
    longest = max(1, max(len(sequence.response) for sequence in sequences))
    row_ids = torch.zeros(len(rows), width, dtype=torch.long)
    position_ids = torch.zeros(len(rows), width, dtype=torch.long)
    segment_ids = torch.full((len(rows), width), -1, dtype=torch.long)
    source = torch.zeros(len(sequences), longest, dtype=torch.long)
    response_ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    response_mask = torch.zeros(len(sequences), longest)
    for row_number, row in enumerate(rows):
        start = 0
        for segment, index in enumerate(row):
            prompt, response = sequences[index].prompt, sequences[index].response
            end, first = start + sequences[index].tokens, start + len(prompt)
            row_ids[row_number, start:end] = torch.tensor([*prompt, *response])
            position_ids[row_number, start:end] = torch.arange(end - start)
            segment_ids[row_number, start:end] = segment
            # The hidden state before a token predicts it.
            source[index, : end - first] = torch.arange(first - 1, end - 1) + row_number * width
            response_ids[index, : end - first] = torch.tensor(list(response), dtype=torch.long)
            is_written = sequences[index].is_written
            response_mask[index, : end - first] = 1.0 if is_written is None else torch.tensor(is_written)
            start = end
    is_packed = len(rows) < len(sequences)
    in_rows = [sequences[index].tokens for row in rows for index in row]
    return ResponseBatch(
        row_ids,
        position_ids,
        # With one sequence per row the model's own causal mask is correct, and cheaper.
        segment_ids if is_packed else None,
        source,
        response_ids,
        response_mask,
        response_mask.flatten().nonzero()[:, 0],
        (segment_ids.flatten() >= 0).nonzero()[:, 0],
        torch.tensor([0, *itertools.accumulate(in_rows)], dtype=torch.int32),
        max(in_rows),
        temperature,
        log_threshold,
    )


def _first_fit(lengths: Sequence[int], limit: int) -> list[list[int]]:
    rows: list[list[int]] = []
    room: list[int] = []
    # Equal lengths are ordered by index: every rank and every run must build the same rows.
    for index in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        place = next((number for number, free in enumerate(room) if free >= lengths[index]), None)
        if place is None:
            rows.append([])
            room.append(limit)
            place = len(rows) - 1
        rows[place].append(index)
        room[place] -= lengths[index]
    return rows


def split_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Returns indices grouped into micro-batches of at most `max_tokens`, similar lengths together.

    A single sequence that is longer gets a separate micro-batch.
    """
    # Similar lengths together, because rows of one sequence are padded to the longest in the micro-batch.
    order = sorted(range(len(lengths)), key=lambda index: (lengths[index], index))
    groups: list[list[int]] = []
    tokens = 0
    for index in order:
        if not groups or tokens + lengths[index] > max_tokens:
            groups.append([])
            tokens = 0
        groups[-1].append(index)
        tokens += lengths[index]
    return groups


ROUNDING = 1 + 1e-9
"""Float sums of equal costs differ in their last digits: a sequence that fills a share exactly must still fit."""


def groups_by_rank(lengths: Sequence[int], max_tokens: int, trainer: Trainer) -> list[list[list[int]]]:
    """Returns the indices of the sequences in each rank's micro-batches, some of which may be empty.

    Every rank gets the same number of micro-batches. None has more than `max_tokens`, unless it is a single sequence.
    """
    if trainer.world_size == 1:
        return [split_by_tokens(lengths, max_tokens)]
    passes = balanced_passes(lengths, max_tokens, trainer.world_size, trainer.model.pair_cost)
    return [list(of_rank) for of_rank in zip(*passes, strict=True)]


def balanced_passes(lengths: Sequence[int], max_tokens: int, ranks: int, pair_cost: float) -> list[list[list[int]]]:
    """Returns indices by pass and rank; at least one pass. See the module.

    A sequence of t tokens costs t + `pair_cost` t^2: see `TrainedModel.pair_cost`.
    """
    # A lower bound: fewer passes cannot hold the tokens, and sequences do not always fit together.
    count = max(1, math.ceil(sum(min(length, max_tokens) for length in lengths) / (max_tokens * ranks)))
    costs = [length + pair_cost * length**2 for length in lengths]
    order = sorted(range(len(lengths)), key=lambda index: (-costs[index], index))
    while (passes := _filled(order, lengths, costs, max_tokens, ranks, count)) is None:
        count += 1
    return passes


def _filled(
    left: list[int], lengths: Sequence[int], costs: Sequence[float], max_tokens: int, ranks: int, count: int
) -> list[list[list[int]]] | None:
    """Returns `count` passes, or None if they cannot hold all sequences; `left` has the costliest first."""
    passes: list[list[list[int]]] = []
    for number in range(count):
        # The last pass has no cost limit, which could only leave sequences over.
        most = math.inf
        if number < count - 1 and left:
            share = sum(costs[index] for index in left) / (ranks * (count - number))
            most = max(costs[left[0]], share) * ROUNDING
        groups: list[list[int]] = [[] for _ in range(ranks)]
        tokens, cost, rest = [0] * ranks, [0.0] * ranks, []
        for index in left:
            fitting = [
                rank
                for rank in range(ranks)
                if not groups[rank]
                or (tokens[rank] + lengths[index] <= max_tokens and cost[rank] + costs[index] <= most)
            ]
            if not fitting:
                rest.append(index)
                continue
            rank = min(fitting, key=cost.__getitem__)
            groups[rank].append(index)
            tokens[rank] += lengths[index]
            cost[rank] += costs[index]
        passes.append(groups)
        left = rest
    return None if left else passes
