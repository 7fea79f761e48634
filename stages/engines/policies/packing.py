"""Packs prompts and responses of uneven length into rows for one forward pass, and splits a batch into micro-batches.

**Rows** hold several sequences after each other; attention stays inside a sequence and positions start anew. A response
token is predicted from the hidden state one position before it.

**Micro-batches** of several ranks cost about the same in each pass. Ranks meet in each forward and backward pass (ZeRO
3 gathers a layer's weights on all of them at once), so a pass lasts as long as its costliest micro-batch. First the
number of passes is chosen, the smallest that fits. Then the passes are filled one after the other, the costliest
sequences first: up to the cost of the longest sequence left, or up to an equal share of what is left where that is
more. In the last pass each sequence goes to the rank with the least to do (Graham, "Bounds on multiprocessing timing
anomalies", 1969: longest processing time first). No partition can mend one thing: a rank is never done before the
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
    """Which response tokens are the policy's, where a user speaks in between; None for all."""

    @property
    def written_tokens(self) -> int:
        """Response tokens that the policy writes."""
        return len(self.response) if self.is_written is None else sum(self.is_written)

    @property
    def tokens(self) -> int:
        """Prompt and response tokens together."""
        return len(self.prompt) + len(self.response)


@dataclass(frozen=True)
class ResponseBatch:
    """Responses of one micro-batch, with the packed rows that their hidden states come from."""

    row_ids: Tensor
    """Token ids of the packed rows, [rows, row tokens]."""
    position_ids: Tensor
    """Position of each token in its own sequence, [rows, row tokens]."""
    segment_ids: Tensor | None
    """Which sequence of the row a token belongs to (-1 in padding); None when no row holds two."""
    source: Tensor
    """Flat index into the rows of the token before each response token, [responses, tokens]."""
    response_ids: Tensor
    """Response tokens, padded with 0, [responses, tokens]."""
    response_mask: Tensor
    """1 at response tokens, 0 at padding and where a user speaks, [responses, tokens], float."""
    counted: Tensor
    """Flat indices of the 1s of the mask, made on the CPU: on a GPU, looking for them would make the host wait."""
    row_places: Tensor
    """Flat indices into the rows of what is no padding, [row tokens of all rows]."""
    ends: Tensor
    """Where each sequence begins among `row_places`, and where the last one ends: [sequences + 1], int32."""
    longest: int
    """Tokens of the longest sequence."""
    temperature: float = 1.0
    """Temperature that the statistics are taken at."""
    log_threshold: float | None = None
    """Of the safe vocabulary that they are taken over, after the temperature; None for the whole vocabulary."""
    fields: Mapping[str, Tensor] = field(default_factory=dict)
    """What a loss needs beside the statistics, [responses, tokens] or [responses]."""
    rollout_distributions: tuple[Tensor, ...] | None = None
    """The sampler's log-probs [tokens, vocabulary] by response, for their divergence from the policy; they stay on the
    CPU and are never padded to one tensor. None where they are not kept."""

    @property
    def is_empty(self) -> bool:
        """True when no response has a token."""
        return not len(self.counted)

    def to(self, device: torch.device) -> ResponseBatch:
        """The same batch on `device`; the host does not wait until a GPU has it."""

        def moved(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            # Only from pinned memory is a copy asynchronous.
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
    """Packs `sequences` into rows of at most `row_tokens` (default: the longest), first fit, longest first.

    The order of responses is that of `sequences`. ValueError for an empty prompt or an empty list.
    """
    if not sequences or any(not sequence.prompt for sequence in sequences):
        raise ValueError("packing needs at least one sequence, and a token before each response")
    # A sequence that is longer than a row gets a wider row: nothing is cut here.
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
        # With one sequence a row the model's own causal mask is right, and cheaper.
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
    # Equal lengths by their number: every rank and every run must find the same rows.
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
    """Indices grouped into micro-batches of at most `max_tokens`, similar lengths together.

    A longer single sequence gets a micro-batch of its own.
    """
    # Similar lengths together, because a row of one sequence is padded to the longest beside it.
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
    """Indices of the sequences in each rank's micro-batches, some of which may be empty.

    Every rank gets the same number of them, and none holds more than `max_tokens` unless it is one sequence.
    """
    if trainer.world_size == 1:
        return [split_by_tokens(lengths, max_tokens)]
    passes = balanced_passes(lengths, max_tokens, trainer.world_size, trainer.model.pair_cost)
    return [list(of_rank) for of_rank in zip(*passes, strict=True)]


def balanced_passes(lengths: Sequence[int], max_tokens: int, ranks: int, pair_cost: float) -> list[list[list[int]]]:
    """Indices by pass and rank; at least one pass. See the module.

    A sequence of t tokens costs t + `pair_cost` t^2: see `TrainedModel.pair_cost`.
    """
    # Fewer cannot hold the tokens. It is a lower bound: tokens do not always fit together.
    count = max(1, math.ceil(sum(min(length, max_tokens) for length in lengths) / (max_tokens * ranks)))
    costs = [length + pair_cost * length**2 for length in lengths]
    order = sorted(range(len(lengths)), key=lambda index: (-costs[index], index))
    while (passes := _filled(order, lengths, costs, max_tokens, ranks, count)) is None:
        count += 1
    return passes


def _filled(
    left: list[int], lengths: Sequence[int], costs: Sequence[float], max_tokens: int, ranks: int, count: int
) -> list[list[list[int]]] | None:
    """So many passes, or None where they do not hold all; `left` has the costliest first."""
    passes: list[list[list[int]]] = []
    for number in range(count):
        # The last pass takes all that fits: a cost limit there could only leave sequences over.
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
