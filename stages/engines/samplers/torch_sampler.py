"""The built-in sampler: a decoding loop with a key-value cache of its own over the policy's own weights.

A prompt is read and held once however many responses are drawn from it; ended responses leave the batch at the next
step. For small policies this is quicker than an inference server, and it needs nothing but torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.engines.devices import pick_device
from stages.engines.policies.policy_folders import DTYPES, load_policy
from stages.engines.samplers.decoder import Decoder
from stages.engines.samplers.kv_cache import KeyValueCache, PromptReading
from stages.engines.samplers.params import Mismatch, StaleWeights, TorchSamplerParams
from stages.engines.samplers.protocol import FullSample, SamplingSettings
from stages.engines.samplers.random_numbers import RandomNumbers
from stages.engines.samplers.samples import Sample, StopReason, Trajectory
from stages.engines.samplers.token_sampling import distribution, draw
from stages.engines.samplers.weight_mismatch import PastWeights, rounded

SMALL_POLICY = 8_000_000
"""Up to this many parameters a policy is decoded on a CPU in lanes: a batch for each thread, instead of one batch whose
every operation is split among threads. Splitting costs about 50 us an operation, as much as the operation itself."""
MOST_LANES = 4
"""Python starts the operations of all lanes, one at a time."""


class TorchSampler:
    """See `stages.engines.samplers.protocol.Sampler`."""

    def __init__(
        self,
        params: TorchSamplerParams,
        model: PreTrainedModel,
        end_token: int,
        mismatch: Mismatch | None = None,
    ) -> None:
        self.params, self.mismatch = params, mismatch
        self.device = pick_device(params.device)
        torch.set_num_threads(params.threads)
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.end_token = end_token
        self.policy_version = 0
        self.weights = dict(self.model.named_parameters())
        first_names = {id(weight): name for name, weight in self.weights.items()}
        every_name = self.model.named_parameters(remove_duplicate=False)
        self.first_names = {name: first_names[id(weight)] for name, weight in every_name}
        self.past: PastWeights | None = None
        if isinstance(mismatch, StaleWeights):
            self.past = PastWeights(mismatch.versions, self.weights)
        if mismatch:
            self._use(self.weights)

    @classmethod
    def from_folder(
        cls, params: TorchSamplerParams, policy_folder: Path, mismatch: Mismatch | None = None
    ) -> TorchSampler:
        """A sampler of the policy in `policy_folder`."""
        model, tokenizer = load_policy(policy_folder, DTYPES[params.dtype])
        return cls(params, model, tokenizer.eos_token_id, mismatch)

    def stream(
        self, trajectories: Sequence[Trajectory], settings: SamplingSettings
    ) -> Iterator[tuple[int, Sample]]:
        """Index and sample of each trajectory as it ends; see the protocol."""
        decoder = Decoder(self.model)

        @torch.inference_mode()
        def decode(batch: _Batch) -> Iterator[tuple[int, Sample]]:
            yield from _DecodingLoop(
                decoder, trajectories, batch, settings, self.end_token, self.policy_version
            ).run()

        # How trajectories are cut into batches decides speed alone: their random numbers are their own.
        groups = _equal_prompts(trajectories)
        widest = max(map(len, groups), default=1)
        lanes = self._lanes(widest)
        at_once = min(self.params.max_sequences // (lanes * widest), -(-len(groups) // lanes))
        batches = _batches(groups, trajectories, max(1, at_once))
        if lanes == 1:
            for batch in batches:
                yield from decode(batch)
        else:
            yield from _in_lanes(decode, batches, lanes)

    def _lanes(self, samples_per_prompt: int) -> int:
        """Batches decoded at the same time, within `max_sequences`."""
        if self.device.type != "cpu" or self.model.num_parameters() > SMALL_POLICY:
            return 1
        return min(self.params.threads, MOST_LANES, max(1, self.params.max_sequences // samples_per_prompt))

    @torch.inference_mode()
    def logprobs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Log-probs of given responses, one at a time; see the protocol."""
        decoder = Decoder(self.model)
        found: list[list[float]] = []
        for prompt, response in zip(prompts, responses, strict=True):
            ids = torch.tensor([*prompt, *response], device=self.device)
            reading = PromptReading(decoder, 1, len(ids) - 1)
            hidden = decoder.hidden(ids[:-1], reading.attend)[len(prompt) - 1 :]
            logprobs = torch.log_softmax(decoder.logits(hidden), dim=-1)
            found.append(logprobs.gather(-1, ids[len(prompt) :, None])[:, 0].tolist())
        return found

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Copies the weights, with the mismatch if there is one; KeyError names a weight that the policy does not have.

        With stale weights `policy_version` is afterwards the version that is served, not the one that was given.
        """
        if self.past:
            weights, policy_version = self.past.serve(self._known(dict(named_tensors)), policy_version)
            self._use(weights)
        else:
            for name, tensor in named_tensors:
                self._use(self._known({name: tensor}))
        self.policy_version = policy_version

    def _known(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """`weights` by the names of our own; those of a tied head are the embedding's."""
        for name in weights:
            if name not in self.first_names:
                raise KeyError(f"the policy has no weight {name}")
        return {self.first_names[name]: weight for name, weight in weights.items()}

    @torch.no_grad()
    def _use(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            self.weights[name].copy_(rounded(weight, self.mismatch))

    def kept_weights(self) -> dict[str, Tensor]:
        """The versions that stale weights wait in; see the protocol."""
        return self.past.to_tensors() if self.past else {}

    def restore_weights(self, kept: Mapping[str, Tensor]) -> None:
        """See the protocol."""
        if self.past and kept:
            self.past.restore(kept)

    def close(self) -> None:
        """Frees the model."""
        del self.model, self.weights, self.past


_Batch = list[list[int]]
"""Indices of trajectories that are decoded together, by prompt; every prompt has the same number of them."""


def _equal_prompts(trajectories: Sequence[Trajectory]) -> _Batch:
    """Runs of neighbours with the same prompt."""
    runs = groupby(range(len(trajectories)), key=lambda index: tuple(trajectories[index].prompt))
    return [list(run) for _, run in runs]


def _batches(groups: _Batch, trajectories: Sequence[Trajectory], at_once: int) -> list[_Batch]:
    """At most `at_once` groups together: those of one size, prompts of similar length beside each other."""
    order = sorted(groups, key=lambda group: (-len(group), len(trajectories[group[0]].prompt), group[0]))
    batches: list[_Batch] = []
    for _, same in groupby(order, key=len):
        alike = list(same)
        batches += [alike[start : start + at_once] for start in range(0, len(alike), at_once)]
    return batches


def _in_lanes(
    decode: Callable[[_Batch], Iterator[tuple[int, Sample]]], batches: Sequence[_Batch], lanes: int
) -> Iterator[tuple[int, Sample]]:
    """What `decode` yields, from as many threads as there are lanes; torch's own threads are shared out among them."""
    threads = torch.get_num_threads()
    waiting, is_over = iter(batches), threading.Event()
    taking = threading.Lock()
    ended: SimpleQueue[tuple[int, Sample] | BaseException | None] = SimpleQueue()

    def next_batch() -> _Batch | None:
        with taking:
            return None if is_over.is_set() else next(waiting, None)

    def work() -> None:
        torch.set_num_threads(max(1, threads // lanes))
        try:
            while batch := next_batch():
                for item in decode(batch):
                    ended.put(item)
                    if is_over.is_set():
                        return
        except BaseException as error:  # handed to the thread that asked, which raises it
            ended.put(error)
        finally:
            ended.put(None)

    workers = [threading.Thread(target=work, name=f"lane-{number}", daemon=True) for number in range(lanes)]
    for worker in workers:
        worker.start()
    try:
        working = lanes
        while working:
            item = ended.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                working -= 1
            else:
                yield item
    finally:
        # Also when the caller stopped early: a lane must not go on with weights that are about to change.
        is_over.set()
        for worker in workers:
            worker.join()
        torch.set_num_threads(threads)  # a lane's setting also holds for threads to come


class _DecodingLoop:
    """Decodes one batch to the end and hands over each response as it ends."""

    def __init__(
        self,
        decoder: Decoder,
        trajectories: Sequence[Trajectory],
        batch: _Batch,
        settings: SamplingSettings,
        end_token: int,
        policy_version: int,
    ) -> None:
        self.decoder, self.settings, self.end_token = decoder, settings, end_token
        self.policy_version = policy_version
        self.indices = [index for group in batch for index in group]
        self.prompts, self.repeats = [trajectories[group[0]].prompt for group in batch], len(batch[0])
        self.numbers = RandomNumbers([trajectories[index].seed for index in self.indices], decoder.device)
        self.distributions: list[list[Tensor]] = [[] for _ in self.indices]
        """Of each sequence's tokens so far, where they are kept."""

    def run(self) -> Iterator[tuple[int, Sample]]:
        """Index and sample of each trajectory of the batch."""
        logits, cache = self._read_prompts()
        count, limit, device = len(logits), self.settings.max_response_tokens, logits.device
        tokens = torch.zeros(count, limit, dtype=torch.long, device=device)
        logprobs = torch.zeros(count, limit, device=device)
        rows = torch.arange(count, device=device)
        for step in range(limit):
            if self.settings.keeps_distributions:
                self._keep_distributions(logits, rows)
            token, logprob = draw(logits, self.settings, self.numbers.at(step, rows))
            tokens[rows, step] = token
            logprobs[rows, step] = logprob
            is_open = (
                token != self.end_token if step < limit - 1 else torch.zeros_like(token, dtype=torch.bool)
            )
            kept = is_open.nonzero()[:, 0]
            if len(kept) < len(rows):
                ended = rows[~is_open]
                yield from self._samples(
                    ended.tolist(), tokens[ended, : step + 1], logprobs[ended, : step + 1]
                )
                rows, token = rows[kept], token[kept]
                if len(rows) == 0:  # the limit ends the last ones here too
                    return
                cache.keep(kept)
            cache.add_column()
            logits = self.decoder.logits(self.decoder.hidden(token, cache.attend))

    def _read_prompts(self) -> tuple[Tensor, KeyValueCache]:
        """Logits [sequences, vocab] after the prompts, each repeated for its responses, and their cache."""
        lengths = [len(prompt) for prompt in self.prompts]
        ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        for row, prompt in zip(ids, self.prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        reading = PromptReading(self.decoder, *ids.shape)
        hidden = self.decoder.hidden(ids.to(self.decoder.device).flatten(), reading.attend).view(
            *ids.shape, -1
        )
        last = hidden[torch.arange(len(lengths)), torch.tensor(lengths) - 1]
        logits = self.decoder.logits(last).repeat_interleave(self.repeats, dim=0)
        limit = self.settings.max_response_tokens
        return logits, KeyValueCache(reading, lengths, self.repeats, limit)

    def _keep_distributions(self, logits: Tensor, rows: Tensor) -> None:
        whole = distribution(logits, self.settings).cpu()
        for row, logprobs in zip(rows.tolist(), whole, strict=True):
            self.distributions[row].append(logprobs)

    def _samples(
        self, ended: Sequence[int], tokens: Tensor, logprobs: Tensor
    ) -> Iterator[tuple[int, Sample]]:
        """Of the sequences `ended`, with their tokens and log-probs [ended, response tokens]."""
        if not logprobs.isfinite().all():
            raise FloatingPointError(
                "the policy's probabilities are not numbers: its weights hold NaN or infinity"
            )
        for row, ids, values in zip(ended, tokens.tolist(), logprobs.tolist(), strict=True):
            is_ended = ids[-1] == self.end_token
            reason = StopReason.END_OF_SEQUENCE if is_ended else StopReason.MAX_TOKENS
            sample = Sample(ids, values, reason, self.policy_version)
            if self.settings.keeps_distributions:
                with torch.inference_mode(False):  # a loss will read them
                    sample = FullSample(**vars(sample), distributions=torch.stack(self.distributions[row]))
                self.distributions[row] = []
            yield self.indices[row], sample
