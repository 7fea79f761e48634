"""The built-in sampler: a decoding loop with a static key-value cache over the policy's own weights.

Prompts are padded on the left so that every sequence writes its next token in the same column of the cache; a prompt
is read once however many responses are drawn from it; finished sequences are dropped from the batch. For small
policies this is quicker than an inference server, and it needs nothing but torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from stages.engines.decoder import Decoder
from stages.engines.policies import DTYPES, load_policy, pick_device
from stages.engines.sampling import SamplingSettings, TorchSamplerParams
from stages.foundations.progress import progress
from stages.foundations.records import Sample, StopReason
from stages.foundations.seeds import derive_seed

KEEP_FRACTION = 0.8
"""Share of unfinished sequences below which the cache is compacted: copying costs about one decoding step."""
SMALL_BATCH = 16
"""At or below this many unfinished sequences, compacting is always worth it."""


class TorchSampler:
    """See `stages.engines.sampling.Sampler`."""

    def __init__(self, params: TorchSamplerParams, model: PreTrainedModel, end_token: int) -> None:
        self.params = params
        self.device = pick_device(params.device)
        torch.set_num_threads(params.threads)
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.end_token = end_token
        self.policy_version = 0

    @classmethod
    def from_folder(cls, params: TorchSamplerParams, policy_folder: Path) -> TorchSampler:
        """A sampler of the policy in `policy_folder`."""
        model, tokenizer = load_policy(policy_folder, DTYPES[params.dtype])
        return cls(params, model, tokenizer.eos_token_id)

    @torch.inference_mode()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        samples_per_prompt: int,
        settings: SamplingSettings,
        seed: int,
        label: str = "",
    ) -> list[list[Sample]]:
        """Responses by prompt; see the protocol."""
        prompts_at_once = max(1, self.params.max_sequences // samples_per_prompt)
        order = sorted(range(len(prompts)), key=lambda index: (len(prompts[index]), index))
        starts = range(0, len(order), prompts_at_once)
        answered: list[list[Sample]] = [[] for _ in prompts]
        decoder = Decoder(self.model)
        for start in progress(starts, label=label, unit="batches") if label else starts:
            chosen = order[start : start + prompts_at_once]
            loop = _DecodingLoop(
                decoder,
                [prompts[index] for index in chosen],
                samples_per_prompt,
                settings,
                self.end_token,
                torch.Generator(self.device).manual_seed(derive_seed(seed, start)),
            )
            for index, samples in zip(chosen, loop.run(), strict=True):
                answered[index] = samples
        return answered

    @torch.inference_mode()
    def logprobs(
        self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
    ) -> list[list[float]]:
        """Log-probs of given responses, one at a time; see the protocol."""
        decoder = Decoder(self.model)
        found: list[list[float]] = []
        for prompt, response in zip(prompts, responses, strict=True):
            ids = torch.tensor([[*prompt, *response]], device=self.device)
            positions = torch.arange(ids.shape[1], device=self.device)[None]
            hidden = decoder.hidden(ids[:, :-1], positions[:, :-1], _attend_causally)[0, len(prompt) - 1 :]
            logprobs = torch.log_softmax(decoder.logits(hidden), dim=-1)
            found.append(logprobs.gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist())
        return found

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Copies the weights; KeyError names a weight that the policy does not have."""
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in named_tensors:
                if name not in parameters:
                    raise KeyError(f"the policy has no weight {name}")
                parameters[name].copy_(tensor)
        self.policy_version = policy_version

    def close(self) -> None:
        """Frees the model."""
        del self.model


def _attend_causally(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
    )


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
        self.repeats = samples_per_prompt
        self.prompt_count = len(prompts)
        self.width = max(map(len, prompts))
        self.device = generator.device
        self.columns = self.width + settings.max_response_tokens
        self.prompt_ids = torch.zeros(len(prompts), self.width, dtype=torch.long, device=self.device)
        padding = torch.tensor([self.width - len(prompt) for prompt in prompts], device=self.device)
        for row, prompt in enumerate(prompts):
            self.prompt_ids[row, self.width - len(prompt) :] = torch.tensor(prompt, device=self.device)
        columns = torch.arange(self.width, device=self.device)
        self.is_token = columns[None] >= padding[:, None]
        self.positions = (columns[None] - padding[:, None]).clamp(min=0)

    def run(self) -> list[list[Sample]]:
        """Samples by prompt."""
        logits, next_position = self._read_prompts()
        count = len(next_position)
        limit = self.settings.max_response_tokens
        tokens = torch.zeros(count, limit, dtype=torch.long, device=self.device)
        logprobs = torch.zeros(count, limit, device=self.device)
        lengths = torch.full((count,), limit, device=self.device)
        rows = torch.arange(count, device=self.device)
        is_open = torch.ones(count, dtype=torch.bool, device=self.device)
        for step in range(limit):
            token, logprob = draw(logits, self.settings, self.generator)
            tokens[rows, step] = torch.where(is_open, token, self.end_token)
            logprobs[rows, step] = logprob
            ended = is_open & (token == self.end_token)
            lengths[rows[ended]] = step + 1
            is_open = is_open & ~ended
            open_count = int(is_open.sum())
            if open_count == 0 or step == limit - 1:
                break
            if open_count < len(rows) and (
                open_count <= SMALL_BATCH or open_count < KEEP_FRACTION * len(rows)
            ):
                kept = is_open.nonzero()[:, 0]
                self._compact(kept)
                rows, token, next_position, is_open = (
                    rows[kept],
                    token[kept],
                    next_position[kept],
                    is_open[kept],
                )
            logits = self._read_token(token, next_position, self.width + step)
            next_position = next_position + 1
        return self._collect(tokens.cpu(), logprobs.cpu(), lengths.cpu())

    def _read_prompts(self) -> tuple[Tensor, Tensor]:
        """Logits [sequences, vocab] after the prompts and the next position of each sequence; fills the cache."""
        decoder = self.decoder
        causal = torch.ones(self.width, self.width, dtype=torch.bool, device=self.device).tril()
        visible = self.is_token[:, None, :] & causal | torch.eye(
            self.width, dtype=torch.bool, device=self.device
        )
        shape = (self.prompt_count * self.repeats, decoder.kv_heads, self.columns, decoder.head_size)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            for cache, new in ((self.keys, key), (self.values, value)):
                cache.append(new.new_empty(shape))
                cache[layer][:, :, : self.width] = new.repeat_interleave(self.repeats, dim=0)
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=visible[:, None], enable_gqa=decoder.heads != decoder.kv_heads
            )

        hidden = decoder.hidden(self.prompt_ids, self.positions, attend)[:, -1]
        logits = decoder.logits(hidden).repeat_interleave(self.repeats, dim=0)
        self.seen = torch.zeros(shape[0], self.columns, dtype=torch.bool, device=self.device)
        self.seen[:, : self.width] = self.is_token.repeat_interleave(self.repeats, dim=0)
        return logits, (self.positions[:, -1] + 1).repeat_interleave(self.repeats, dim=0)

    def _read_token(self, token: Tensor, position: Tensor, column: int) -> Tensor:
        """Logits after one more token of each sequence, written to `column` of the cache."""
        decoder, end = self.decoder, column + 1
        self.seen[:, column] = True
        visible = self.seen[:, None, None, :end]

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.keys[layer][:, :, column] = key[:, :, 0]
            self.values[layer][:, :, column] = value[:, :, 0]
            # Queries that share a key-value head take the place of query positions: nothing is repeated.
            grouped = query.reshape(len(query), decoder.kv_heads, -1, decoder.head_size)
            mixed = F.scaled_dot_product_attention(
                grouped, self.keys[layer][:, :, :end], self.values[layer][:, :, :end], attn_mask=visible
            )
            return mixed.reshape(query.shape)

        return decoder.logits(decoder.hidden(token[:, None], position[:, None], attend)[:, 0])

    def _compact(self, kept: Tensor) -> None:
        self.keys = [cache[kept] for cache in self.keys]
        self.values = [cache[kept] for cache in self.values]
        self.seen = self.seen[kept]

    def _collect(self, tokens: Tensor, logprobs: Tensor, lengths: Tensor) -> list[list[Sample]]:
        samples = []
        for row, length in enumerate(lengths.tolist()):
            token_ids = tokens[row, :length].tolist()
            is_ended = token_ids[-1] == self.end_token
            reason = StopReason.END_OF_SEQUENCE if is_ended else StopReason.MAX_TOKENS
            samples.append(Sample(token_ids, logprobs[row, :length].tolist(), reason))
        return [samples[start : start + self.repeats] for start in range(0, len(samples), self.repeats)]


def draw(logits: Tensor, settings: SamplingSettings, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """One token per row of `logits` [sequences, vocab] and its log-prob in the distribution drawn from.

    Greedy (temperature 0) reports the log-prob at temperature 1. Drawing is by the Gumbel-max rule: the argmax of
    log-probs plus Gumbel noise, as `-log` of exponential noise.
    """
    if settings.temperature == 0:
        logprobs = torch.log_softmax(logits, dim=-1)
        token = logprobs.argmax(dim=-1)
    else:
        logprobs = torch.log_softmax(_cut(logits / settings.temperature, settings), dim=-1)
        noise = torch.empty_like(logprobs).exponential_(generator=generator)
        token = (logprobs - noise.log()).argmax(dim=-1)
    return token, logprobs.gather(-1, token[:, None])[:, 0]


def _cut(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """-inf on tokens outside the `top_k` most probable and the smallest set that holds `top_p` of the mass."""
    if settings.top_k and settings.top_k < logits.shape[-1]:
        smallest = logits.topk(settings.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if settings.top_p < 1:
        ordered, places = logits.sort(dim=-1, descending=True)
        mass_before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
        outside = (mass_before >= settings.top_p).scatter(-1, places, mass_before >= settings.top_p)
        logits = logits.masked_fill(outside, -torch.inf)
    return logits
