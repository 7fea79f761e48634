"""The built-in sampler: a decoding loop with a key-value cache of its own over the policy's own weights.

A prompt is read and held once however many responses are drawn from it; ended responses leave the batch at the next
step. For small policies this is quicker than an inference server, and it needs nothing but torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.engines.policies.policy_folders import DTYPES, load_policy, pick_device
from stages.engines.samplers.decoder import Decoder
from stages.engines.samplers.kv_cache import KeyValueCache, PromptReading
from stages.engines.samplers.params import Mismatch, StaleWeights, TorchSamplerParams
from stages.engines.samplers.protocol import FullSample, SamplingSettings
from stages.engines.samplers.samples import Sample, StopReason
from stages.engines.samplers.token_sampling import distribution, draw
from stages.engines.samplers.weight_mismatch import PastWeights, rounded
from stages.foundations.seeds import derive_seed
from stages.observe.progress import progress

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

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        samples_per_prompt: int,
        settings: SamplingSettings,
        seed: int,
        label: str = "",
    ) -> list[list[Sample]]:
        """Responses by prompt; see the protocol."""
        lanes = self._lanes(samples_per_prompt)
        at_once = min(self.params.max_sequences // (lanes * samples_per_prompt), -(-len(prompts) // lanes))
        at_once = max(1, at_once)
        order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), index))
        batches = [order[start : start + at_once] for start in range(0, len(order), at_once)]
        decoder = Decoder(self.model)

        @torch.inference_mode()
        def answer(number: int) -> list[list[Sample]]:
            generator = torch.Generator(self.device).manual_seed(derive_seed(seed, number))
            chosen = [prompts[index] for index in batches[number]]
            loop = _DecodingLoop(decoder, chosen, samples_per_prompt, settings, self.end_token, generator)
            return loop.run()

        numbers = range(len(batches))
        answers = map(answer, numbers) if lanes == 1 else _in_lanes(answer, numbers, lanes)
        if label:
            answers = progress(answers, label=label, unit="batches", total=len(batches))
        answered: list[list[Sample]] = [[] for _ in prompts]
        for batch, responses in zip(batches, answers, strict=True):
            for index, samples in zip(batch, responses, strict=True):
                answered[index] = samples
        return answered

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


def _in_lanes(
    answer: Callable[[int], list[list[Sample]]], numbers: Sequence[int], lanes: int
) -> Iterator[list[list[Sample]]]:
    """The answers in order, from as many threads as there are lanes; torch's own threads are shared out among them."""
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(max(1, threads // lanes),))
    try:
        yield from pool.map(answer, numbers)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # a lane's setting also holds for threads to come


class _DecodingLoop:
    """Decodes one batch of prompts to the end."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        samples_per_prompt: int,
        settings: SamplingSettings,
        end_token: int,
        generator: torch.Generator,
    ) -> None:
        self.decoder, self.settings, self.end_token, self.generator = decoder, settings, end_token, generator
        self.prompts, self.repeats = prompts, samples_per_prompt
        self.device = generator.device
        self.distributions: list[Tensor] = []
        """Of each step's open sequences, where they are kept."""
        self.rows: list[Tensor] = []

    def run(self) -> list[list[Sample]]:
        """Samples by prompt."""
        logits, cache = self._read_prompts()
        count, limit = len(logits), self.settings.max_response_tokens
        tokens = torch.zeros(count, limit, dtype=torch.long, device=self.device)
        logprobs = torch.zeros(count, limit, device=self.device)
        lengths = torch.full((count,), limit, device=self.device)
        rows = torch.arange(count, device=self.device)
        for step in range(limit):
            if self.settings.keeps_distributions:
                self.distributions.append(distribution(logits, self.settings).cpu())
                self.rows.append(rows.cpu())
            token, logprob = draw(logits, self.settings, self.generator)
            tokens[rows, step] = token
            logprobs[rows, step] = logprob
            is_open = token != self.end_token
            kept = is_open.nonzero()[:, 0]
            if len(kept) < len(rows):
                lengths[rows[~is_open]] = step + 1
                rows, token = rows[kept], token[kept]
            if len(rows) == 0 or step == limit - 1:
                break
            if len(kept) < len(is_open):
                cache.keep(kept)
            cache.add_column()
            logits = self.decoder.logits(self.decoder.hidden(token, cache.attend))
        return self._collect(tokens.cpu(), logprobs.cpu(), lengths.cpu())

    def _read_prompts(self) -> tuple[Tensor, KeyValueCache]:
        """Logits [sequences, vocab] after the prompts, each repeated for its responses, and their cache."""
        lengths = [len(prompt) for prompt in self.prompts]
        ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        for row, prompt in zip(ids, self.prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        reading = PromptReading(self.decoder, *ids.shape)
        hidden = self.decoder.hidden(ids.to(self.device).flatten(), reading.attend).view(*ids.shape, -1)
        last = hidden[torch.arange(len(lengths)), torch.tensor(lengths) - 1]
        logits = self.decoder.logits(last).repeat_interleave(self.repeats, dim=0)
        limit = self.settings.max_response_tokens
        return logits, KeyValueCache(reading, lengths, self.repeats, limit)

    def _collect(self, tokens: Tensor, logprobs: Tensor, lengths: Tensor) -> list[list[Sample]]:
        if not logprobs.isfinite().all():
            raise FloatingPointError(
                "the policy's probabilities are not numbers: its weights hold NaN or infinity"
            )
        samples: list[Sample] = []
        for length, ids, values in zip(lengths.tolist(), tokens.tolist(), logprobs.tolist(), strict=True):
            is_ended = ids[length - 1] == self.end_token
            reason = StopReason.END_OF_SEQUENCE if is_ended else StopReason.MAX_TOKENS
            samples.append(Sample(ids[:length], values[:length], reason))
        if self.settings.keeps_distributions:
            by_sample = self._distributions_by_sample(lengths.tolist())
            samples = [
                FullSample(**vars(one), distributions=rows)
                for one, rows in zip(samples, by_sample, strict=True)
            ]
        return [samples[start : start + self.repeats] for start in range(0, len(samples), self.repeats)]

    def _distributions_by_sample(self, lengths: list[int]) -> list[Tensor]:
        """Log-probs [tokens, vocab] of each sequence, each with memory of its own: most are let go before others."""
        order = torch.cat(self.rows).argsort(stable=True)
        together = torch.cat(self.distributions)
        with torch.inference_mode(False):
            return [together[places] for places in order.split(lengths)]
