"""Continuous batching over the built-in sampler's cache: sequences enter and leave between two steps.

Responses that were admitted together share a cache. Caches of different age are stepped together: all operations except
attention run on the rows of all caches at once. Two caches are joined when that is cheaper than attention in two
pieces, so a short response does not pay for the columns of a long one.

Below the decoding: `draw` samples tokens from logits, and `RandomNumbers` gives each sequence its random numbers.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import groupby

import numpy
import torch
from torch import Tensor

from stages.algorithms.token_statistics import likeliest_tokens, safe_vocabulary
from stages.engines.samplers.decoder import Decoder, KeyValueCache, PromptReading
from stages.engines.samplers.protocol import (
    FullSample,
    Load,
    PartialResponse,
    Sample,
    SamplingSettings,
    Trajectory,
    check_begun,
    uniform,
)
from stages.engines.samplers.stop_strings import StopStrings, why_ended
from stages.foundations.errors import UserError

REFILL_SHARE = {"cpu": 0.5, "cuda": 0.125}
"""Share of places that must be free before waiting sequences enter, if more wait than there is room for. Each admission
costs a reading and a piece of the cache; on a CPU a step with few rows costs little, so admission can wait."""
MOST_PADDING = 512
"""Maximum padding tokens when texts of different lengths are read together; another reading costs about as much."""
PIECE_BYTES = {"cpu": 500_000, "cuda": 100_000_000}
"""Bytes of keys and values of one layer that are read in the time that attention in one more piece costs (50 us to
start operations)."""
JOINED_STEPS = 8
"""Steps within which joining two caches must pay off: copying a byte takes longer than reading it in attention."""


class TorchDecoding:
    """Implements `stages.engines.samplers.protocol.Decoding`; for one thread at a time."""

    def __init__(
        self,
        decoder: Decoder,
        settings: SamplingSettings,
        end_tokens: Sequence[int],
        policy_version: int,
        max_sequences: int,
        stops: StopStrings | None = None,
    ) -> None:
        self.decoder, self.settings, self.end_tokens = decoder, settings, frozenset(end_tokens)
        self.policy_version, self.max_sequences, self.stops = policy_version, max_sequences, stops
        self.waiting: dict[Hashable, Trajectory] = {}
        self.caches: list[KeyValueCache] = []
        """The oldest first; their rows follow each other."""
        device = decoder.device
        self.ends = torch.tensor(sorted(self.end_tokens), device=device)
        self.places = torch.empty(0, dtype=torch.long, device=device)
        """The place of each row of a step, an index into the tensors that are kept by place."""
        self.counts, self.newest = self.places.clone(), self.places.clone()
        """The number of response tokens of each row, and its newest token."""
        self.names: dict[int, Hashable] = {}
        self.place_of: dict[Hashable, int] = {}
        self.free = list(range(max_sequences))
        self.prompt_tokens = [0] * max_sequences
        self.reported = [0] * max_sequences
        """Number of response tokens that `new_tokens` has returned, by place."""
        self.numbers = RandomNumbers(max_sequences, device)
        shape = max_sequences, settings.max_response_tokens
        self.tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.distributions: list[list[Tensor]] = [[] for _ in self.free]
        self.piece_bytes = PIECE_BYTES[device.type]
        self.refill_places = REFILL_SHARE[device.type] * max_sequences

    def admit(self, trajectories: Mapping[Hashable, Trajectory]) -> None:
        check_begun(trajectories, self.waiting.keys() | self.place_of.keys(), self.settings)
        longest = max((len(one.prompt) for one in trajectories.values()), default=0)
        # Rotary embeddings would raise no error over distances that the policy has never seen.
        if longest + self.settings.max_response_tokens > self.decoder.positions:
            raise UserError(
                f"a prompt of {longest} tokens and a response of {self.settings.max_response_tokens} do not fit the "
                f"policy's {self.decoder.positions} positions: drop long problems, or ask for shorter responses"
            )
        self.waiting.update(trajectories)

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not len(self.places)

    @property
    def load(self) -> Load:
        prompts = sum(self.prompt_tokens[place] for place in self.names)
        return Load(len(self.places), len(self.waiting), prompts + int(self.counts.sum()))

    @torch.inference_mode()
    def step(self) -> dict[Hashable, Sample]:
        logits: list[Tensor] = []
        if self.caches:
            # Before new sequences are read: these get their first token in this step and are not part of this pass.
            logits.append(self._advance())
        if admitted := self._next_ones():
            logits.append(self._read(admitted))
            self._join_caches()
        if not logits:
            return {}
        return self._draw(logits[0] if len(logits) == 1 else torch.cat(logits))

    def _advance(self) -> Tensor:
        """Returns the logits [rows, vocab] after the newest token of each row."""
        self.caches = [KeyValueCache.joined([one]) if one.is_sparse else one for one in self.caches]
        for cache in self.caches:
            cache.add_column()
        return self.decoder.logits(self.decoder.hidden(self.newest, self._attend))

    def _attend(self, layer: int, heads: Tensor) -> Tensor:
        if len(self.caches) == 1:
            return self.caches[0].attend(layer, heads)
        parts = heads.split([len(cache) for cache in self.caches])
        return torch.cat([cache.attend(layer, part) for cache, part in zip(self.caches, parts, strict=True)])

    def _draw(self, logits: Tensor) -> dict[Hashable, Sample]:
        """Samples the next token of each row; returns the samples that ended with it."""
        if self.settings.keeps_distributions:
            rows = distribution(logits, self.settings)
            rows = likeliest_tokens(rows, self.settings.likeliest) if self.settings.likeliest else rows
            for place, row in zip(self.places.tolist(), rows.cpu(), strict=True):
                self.distributions[place].append(row)
        token, logprob = draw(logits, self.settings, self.numbers.step(self.places))
        self.tokens[self.places, self.counts] = token
        self.logprobs[self.places, self.counts] = logprob
        self.counts = self.counts + 1
        self.newest = token
        is_open = (token[:, None] != self.ends).all(1) & (self.counts < self.settings.max_response_tokens)
        if self.stops:
            is_open &= ~self._complete_stops(self.stops)
        kept = is_open.nonzero()[:, 0]
        if len(kept) == len(token):
            return {}
        ended = ~is_open
        samples = self._samples(self.places[ended], self.counts[ended])
        self._keep(kept)
        return samples

    def _complete_stops(self, stops: StopStrings) -> Tensor:
        """Returns whether the newest token of each row completes a stop string."""
        last = torch.arange(-stops.window, 0, device=self.places.device)
        tails = self.tokens[self.places[:, None], (self.counts[:, None] + last).clamp(min=0)].tolist()
        ended = [stops.end(tail[-count:]) for tail, count in zip(tails, self.counts.tolist(), strict=True)]
        return torch.tensor(ended, device=self.places.device)

    def _keep(self, rows: Tensor) -> None:
        ends = torch.tensor([len(cache) for cache in self.caches]).cumsum(0).tolist()
        kept, start = [], 0
        for cache, end in zip(self.caches, ends, strict=True):
            kept_rows = rows[(rows >= start) & (rows < end)] - start
            if len(kept_rows):
                if len(kept_rows) < len(cache):
                    cache.keep(kept_rows)
                kept.append(cache)
            start = end
        self.caches = kept
        self.places, self.counts, self.newest = self.places[rows], self.counts[rows], self.newest[rows]

    def _samples(self, places: Tensor, counts: Tensor) -> dict[Hashable, Sample]:
        """Returns the samples that ended at these places with `counts` tokens, and frees the places."""
        samples: dict[Hashable, Sample] = {}
        for place, begun in zip(places.tolist(), self._tokens(places, counts), strict=True):
            reason = why_ended(begun.token_ids, self.end_tokens, self.stops)
            sample = Sample(begun.token_ids, begun.logprobs, reason, self.policy_version)
            if self.settings.keeps_distributions:
                # A loss will read them, and autograd rejects tensors of inference mode.
                with torch.inference_mode(False):
                    whole = torch.stack(self.distributions[place])
                sample = FullSample(**vars(sample), distributions=whole)
            samples[self.names[place]] = sample
            self._leave(place)
        return samples

    def _tokens(self, places: Tensor, counts: Tensor) -> list[PartialResponse]:
        longest = int(counts.max()) if len(counts) else 0
        logprobs = self.logprobs[places, :longest]
        if not logprobs.isfinite().all():
            raise FloatingPointError("the policy's probabilities are not numbers: its weights hold NaN or infinity")
        rows = zip(counts.tolist(), self.tokens[places, :longest].tolist(), logprobs.tolist(), strict=True)
        return [PartialResponse(ids[:count], values[:count]) for count, ids, values in rows]

    def _leave(self, place: int) -> None:
        del self.place_of[self.names.pop(place)]
        self.distributions[place] = []
        self.free.append(place)

    def _next_ones(self) -> list[tuple[Hashable, Trajectory]]:
        room = min(len(self.free), len(self.waiting))
        # When no sequence is running, waiting ones always enter: otherwise the decoding would never continue.
        if len(self.places) and room < min(len(self.waiting), self.refill_places):
            return []
        return [(name, self.waiting.pop(name)) for name in list(self.waiting)[:room]]

    def _read(self, admitted: Sequence[tuple[Hashable, Trajectory]]) -> Tensor:
        """Returns the logits [admitted, vocab] after the current tokens of these; adds caches, places and rows."""
        runs = [list(run) for _, run in groupby(admitted, key=lambda item: tuple(item[1].prompt))]
        logits: list[Tensor] = []
        for piece in _similar(runs):
            logits.append(self._read_runs(piece))
            members = [item for run in piece for item in run]
            places = [self.free.pop() for _ in members]
            begun = [trajectory.begun for _, trajectory in members]
            counts = [len(one.token_ids) for one in begun]
            self.numbers.begin(places, [trajectory.seed for _, trajectory in members], counts)
            for place, (name, trajectory), one, count in zip(places, members, begun, counts, strict=True):
                self.names[place], self.place_of[name] = name, place
                self.prompt_tokens[place], self.reported[place] = len(trajectory.prompt), count
                if count:
                    self.tokens[place, :count] = torch.tensor(one.token_ids)
                    self.logprobs[place, :count] = torch.tensor(one.logprobs)
            device = self.places.device
            self.places = torch.cat((self.places, torch.tensor(places, device=device)))
            self.counts = torch.cat((self.counts, torch.tensor(counts, device=device)))
        return torch.cat(logits)

    def _read_runs(self, runs: Sequence[Run]) -> Tensor:
        """Reads the texts of some runs together. A run's prompt comes from the first text that begins with it."""
        texts: list[list[int]] = []
        first_text, begun, ends = [], [], []
        for run in runs:
            first_text.append(len(texts))
            prompt = list(run[0][1].prompt)
            if not any(trajectory.begun.token_ids for _, trajectory in run):
                texts.append(prompt)
            for _, trajectory in run:
                count = len(trajectory.begun.token_ids)
                if count:
                    texts.append(prompt + list(trajectory.begun.token_ids))
                text = len(texts) - 1 if count else first_text[-1]
                begun.append((count, text))
                ends.append(len(prompt) + count - 1)
        # Padding follows the texts, where causal attention does not read it.
        width = max(map(len, texts))
        ids = torch.tensor([text + [0] * (width - len(text)) for text in texts], device=self.places.device)
        reading = PromptReading(self.decoder, *ids.shape)
        hidden = self.decoder.hidden(ids.flatten(), reading.attend).view(*ids.shape, -1)
        lengths = [len(run[0][1].prompt) for run in runs]
        self.decoder.turns(max(lengths) + self.settings.max_response_tokens)
        self.caches.append(KeyValueCache.of_reading(reading, lengths, first_text, [len(run) for run in runs], begun))
        # The head computes one row for each distinct text end, however many responses begin there.
        at, row_of = torch.unique(
            torch.tensor([(text, end) for (_, text), end in zip(begun, ends, strict=True)]), dim=0, return_inverse=True
        )
        return self.decoder.logits(hidden[at[:, 0], at[:, 1]])[row_of.to(hidden.device)]

    def _join_caches(self) -> None:
        """Joins neighbouring caches, the youngest first, if one piece is cheaper than two."""
        caches = self.caches
        # The youngest first: a join there makes a larger neighbour for the next older one.
        for older in reversed(range(len(caches) - 1)):
            if self._is_cheaper_joined(caches[older], caches[older + 1]):
                caches[older : older + 2] = [KeyValueCache.joined(caches[older : older + 2])]

    def _is_cheaper_joined(self, one: KeyValueCache, other: KeyValueCache) -> bool:
        joined = KeyValueCache.cells_joined((one, other))
        # A joined cache is as long and as wide as its largest part: each step reads the added cells for nothing.
        wasted = joined - one.cells - other.cells
        # Keys and values, four bytes per number.
        cell_bytes = 2 * 4 * self.decoder.kv_heads * self.decoder.head_size
        return (wasted + joined / JOINED_STEPS) * cell_bytes <= self.piece_bytes

    def new_tokens(self) -> dict[Hashable, PartialResponse]:
        """Implements the protocol; leaves out trajectories without new tokens."""
        new: dict[Hashable, PartialResponse] = {}
        places = self.places.tolist()
        for place, whole in zip(places, self._tokens(self.places, self.counts), strict=True):
            before, self.reported[place] = self.reported[place], len(whole.token_ids)
            if before < len(whole.token_ids):
                new[self.names[place]] = PartialResponse(whole.token_ids[before:], whole.logprobs[before:])
        return new

    @torch.inference_mode()
    def withdraw(self, names: Iterable[Hashable]) -> dict[Hashable, PartialResponse]:
        withdrawn: dict[Hashable, PartialResponse] = {}
        rows = {place: row for row, place in enumerate(self.places.tolist())}
        left: list[int] = []
        for name in names:
            if name in self.waiting:
                withdrawn[name] = self.waiting.pop(name).begun
            elif name in self.place_of:
                left.append(rows[self.place_of[name]])
        if left:
            gone = torch.tensor(left, device=self.places.device)
            places = self.places[gone]
            for place, begun in zip(places.tolist(), self._tokens(places, self.counts[gone]), strict=True):
                withdrawn[self.names[place]] = begun
                self._leave(place)
            is_kept = torch.ones_like(self.places, dtype=torch.bool)
            is_kept[gone] = False
            self._keep(is_kept.nonzero()[:, 0])
        return withdrawn

    def close(self) -> None:
        self.withdraw([*self.waiting, *self.place_of])


Run = list[tuple[Hashable, Trajectory]]
"""Neighbours with the same prompt."""


def _similar(runs: Sequence[Run]) -> list[list[Run]]:
    """Splits runs into pieces whose texts have similar lengths, the shortest first."""

    def longest(run: Run) -> int:
        return max(len(one.prompt) + len(one.begun.token_ids) for _, one in run)

    pieces: list[list[Run]] = []
    padding = 0
    for run in sorted(runs, key=longest):
        if pieces:
            padding += len(pieces[-1]) * (longest(run) - longest(pieces[-1][-1]))
        if not pieces or padding > MOST_PADDING:
            pieces.append([])
            padding = 0
        pieces[-1].append(run)
    return pieces


def draw(logits: Tensor, settings: SamplingSettings, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Samples one token per row of `logits` [sequences, vocab]; returns the tokens and their log-probs.

    `uniform` [sequences, 1] are float64 numbers in [0, 1), one per row. Sampling inverts the distribution function,
    summed in float64 over the vocabulary; a token of probability 0 is never sampled. Greedy sampling (temperature 0)
    does not use `uniform` and reports log-probs at temperature 1. Non-finite logits give non-finite log-probs.
    """
    if settings.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        token = logprobs.argmax(dim=-1)
        return token, logprobs.gather(-1, token[:, None])[:, 0]
    cut, highest, mass = _cut_and_mass(logits, settings)
    total = mass[:, -1:]
    # The first token whose sum exceeds the target: below `total` there is one, and its probability is not zero.
    target = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    # NaN has no order and may be after the last token; its log-prob is NaN too, for which `_tokens` raises an error.
    token = torch.searchsorted(mass, target, right=True).clamp_(max=logits.shape[-1] - 1)
    logprob = cut.gather(-1, token) - highest - total.log().float()
    return token[:, 0], logprob[:, 0]


def distribution(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Returns log-probs [sequences, vocab] of the distribution from which `draw` samples; -inf outside its cuts.

    They equal bit for bit what `draw` reports for the sampled token.
    """
    if settings.temperature == 0:
        return torch.log_softmax(logits, dim=-1)
    cut, highest, mass = _cut_and_mass(logits, settings)
    return cut - highest - mass[:, -1:].log().float()


def _cut_and_mass(logits: Tensor, settings: SamplingSettings) -> tuple[Tensor, Tensor, Tensor]:
    """Returns logits after temperature and cuts, the highest of each row, and float64 sums of exp(cut - highest)."""
    cut = _cut(logits / settings.temperature if settings.temperature != 1 else logits, settings)
    highest = cut.amax(dim=-1, keepdim=True)
    return cut, highest, (cut - highest).exp_().cumsum(dim=-1, dtype=torch.float64)


def _cut(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """Sets -inf on tokens outside the safe vocabulary, the `top_k` most probable, and the smallest `top_p` set.

    The cuts apply in this order, each to the tokens that the previous one kept.
    """
    if settings.log_threshold is not None:
        logits = logits.masked_fill(~safe_vocabulary(logits, settings.log_threshold), -torch.inf)
    if settings.top_k and settings.top_k < logits.shape[-1]:
        # By value and not by index: tokens as probable as the last one are also kept.
        smallest = logits.topk(settings.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if settings.top_p < 1:
        ordered, places = logits.sort(dim=-1, descending=True)
        mass_before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        # The probability before a token, so that the token that crosses `top_p` is kept and the set is never empty.
        outside = (mass_before >= settings.top_p).scatter(-1, places, mass_before >= settings.top_p)
        logits = logits.masked_fill(outside, -torch.inf)
    return logits


POSITIONS_AT_ONCE = 64
"""Positions computed together: one copy to the device for this many steps, and 512 bytes per row."""


class RandomNumbers:
    """Uniform numbers in [0, 1) for places; each place has its own seed and position."""

    def __init__(self, places: int, device: torch.device) -> None:
        self._device = device
        self._seeds = numpy.zeros(places, dtype=numpy.uint64)
        self._ahead = numpy.zeros(places, dtype=numpy.int64)
        """Position of a place minus the number of steps: all places advance together."""
        self._steps = self._first = 0
        self._block = torch.zeros(places, POSITIONS_AT_ONCE, dtype=torch.float64, device=device)

    def begin(self, places: Sequence[int], seeds: Sequence[int], positions: Sequence[int]) -> None:
        """Sets seeds and positions of these places; they take effect at the next step."""
        places = numpy.array(places)
        self._seeds[places] = numpy.array(seeds, dtype=numpy.uint64)
        self._ahead[places] = numpy.array(positions) - self._steps
        # Other places keep their numbers of this block, because their positions do not change.
        self._block[torch.from_numpy(places).to(self._device)] = self._numbers(places)

    def step(self, places: Tensor) -> Tensor:
        """Returns the numbers of `places` (indices): (places, 1), float64; every place advances by one position."""
        if self._steps == self._first + POSITIONS_AT_ONCE:
            self._first = self._steps
            self._block = self._numbers(numpy.arange(len(self._seeds)))
        numbers = self._block[places, self._steps - self._first, None]
        self._steps += 1
        return numbers

    def _numbers(self, places: numpy.ndarray) -> Tensor:
        """Returns the numbers for the block's steps; those before a place was begun are not used."""
        positions = self._ahead[places, None] + self._first + numpy.arange(POSITIONS_AT_ONCE)
        return torch.from_numpy(uniform(self._seeds[places, None], positions)).to(self._device)
