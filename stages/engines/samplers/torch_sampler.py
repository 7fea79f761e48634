"""The built-in sampler: a decoding loop with a key-value cache over the policy's weights.

A prompt is read and held once for all its responses; ended responses leave the batch at the next step. For small
policies this is faster than an inference server, and it needs only torch. Model families that the decoder does not
cover are decoded through transformers, which is slower.

With a `mismatch` it uses other weights than those that it gets: rounded ones, or those of some versions ago.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import Tensor
from transformers import PreTrainedModel

from stages.engines.devices import pick_device, warn_of_slow_bfloat16
from stages.engines.policies.forward_probe import check_sampler_forward
from stages.engines.policies.policy_folders import DTYPES, load_policy
from stages.engines.policies.tokenizers import read_end_tokens
from stages.engines.samplers.decoder import Decoder, PromptReading, represents
from stages.engines.samplers.params import Bfloat16Weights, Int8Weights, Mismatch, StaleWeights, TorchSamplerParams
from stages.engines.samplers.protocol import Sample, SamplingSettings, Trajectory, equal_prompts, until_ended
from stages.engines.samplers.stop_strings import StopStrings
from stages.engines.samplers.torch_decoding import TorchDecoding
from stages.engines.samplers.transformers_decoding import TransformersDecoder, TransformersDecoding, padded_logprobs
from stages.foundations.params import ChatPrompt, PlainPrompt
from stages.observe.progress import say

SMALL_POLICY = 8_000_000
"""Policies up to this many parameters are decoded on a CPU in lanes: one batch per thread, instead of one batch that
splits every operation among threads. A split costs about 50 us per operation, as much as the operation itself."""
MOST_LANES = 4
"""A limit, because Python starts the operations of all lanes one at a time."""


class TorchSampler:
    """Implements `stages.engines.samplers.protocol.Sampler`."""

    def __init__(
        self,
        params: TorchSamplerParams,
        model: PreTrainedModel,
        end_tokens: Sequence[int],
        mismatch: Mismatch | None = None,
        stops: StopStrings | None = None,
    ) -> None:
        self.params, self.mismatch, self.stops = params, mismatch, stops
        self.device = pick_device(params.device)
        if params.dtype == "bfloat16":
            warn_of_slow_bfloat16(self.device, "sampler.dtype: bfloat16")
        torch.set_num_threads(params.threads)
        # Sampling needs no gradient, so no graph is kept.
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.end_tokens = end_tokens
        self.policy_version, self.is_asleep = 0, False
        # Named as a trainer names them: parameters, then the buffers that belong to a checkpoint.
        saved = self.model.state_dict().keys()
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in saved}
        self.weights = dict(self.model.named_parameters()) | buffers
        # A tied head shares the embedding's tensor: both names map to the stored one.
        first_names = {id(weight): name for name, weight in self.weights.items()}
        every_name = [*self.model.named_parameters(remove_duplicate=False), *buffers.items()]
        self.first_names = {name: first_names[id(weight)] for name, weight in every_name}
        self.past: PastWeights | None = None
        if isinstance(mismatch, StaleWeights):
            self.past = PastWeights(mismatch.versions, self.weights)
        if mismatch:
            self._use(self.weights)

    @classmethod
    def from_folder(
        cls,
        params: TorchSamplerParams,
        policy_folder: Path,
        mismatch: Mismatch | None = None,
        prompt: PlainPrompt | ChatPrompt | None = None,
    ) -> TorchSampler:
        """Builds a sampler of the policy in `policy_folder`. Raises UserError if its probabilities would be wrong."""
        model, tokenizer = load_policy(policy_folder, DTYPES[params.dtype])
        check_sampler_forward(model, policy_folder, pick_device(params.device), read_logprobs)
        if not represents(model):
            family = model.config.model_type
            say(f"the torch sampler runs {family} through transformers, which is slow: `sampler.kind: vllm` is faster")
        stops = StopStrings(tokenizer, params.stop) if params.stop else None
        return cls(params, model, read_end_tokens(policy_folder, tokenizer, prompt), mismatch, stops)

    def stream(self, trajectories: Sequence[Trajectory], settings: SamplingSettings) -> Iterator[tuple[int, Sample]]:
        decoder = self._decoder()
        # Prompts of similar length are neighbours: they are read together, padded to the longest.
        groups = equal_prompts(trajectories, range(len(trajectories)))
        groups.sort(key=lambda group: len(trajectories[group[0]].prompt))
        lanes = self._lanes(max(map(len, groups), default=1))
        places = self.params.max_sequences // lanes

        def decode(share: Sequence[int]) -> Iterator[tuple[int, Sample]]:
            decoding = self._decoding(decoder, settings, min(places, len(share)))
            return until_ended(decoding, {index: trajectories[index] for index in share})

        # A batch depends only on lengths, not on which lane was faster, so a repeated call repeats its float sums.
        # Round robin over groups ordered by length: each lane gets short and long ones.
        shares = [[index for group in groups[lane::lanes] for index in group] for lane in range(lanes)]
        shares = [share for share in shares if share]
        if lanes == 1:
            for share in shares:
                yield from decode(share)
        else:
            yield from _in_lanes(decode, shares)

    def open(self, settings: SamplingSettings) -> TorchDecoding:
        """Implements the protocol; decodes in the thread that steps it."""
        return self._decoding(self._decoder(), settings, self.params.max_sequences)

    def _decoder(self) -> Decoder | TransformersDecoder:
        return Decoder(self.model) if represents(self.model) else TransformersDecoder(self.model)

    def _decoding(
        self, decoder: Decoder | TransformersDecoder, settings: SamplingSettings, places: int
    ) -> TorchDecoding:
        kind = TorchDecoding if isinstance(decoder, Decoder) else TransformersDecoding
        return kind(decoder, settings, self.end_tokens, self.policy_version, places, self.stops)

    def _lanes(self, samples_per_prompt: int) -> int:
        """Returns the number of batches decoded at the same time, within `max_sequences`."""
        if self.device.type != "cpu" or self.model.num_parameters() > SMALL_POLICY:
            return 1
        return min(self.params.threads, MOST_LANES, max(1, self.params.max_sequences // samples_per_prompt))

    def logprobs(self, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]) -> list[list[float]]:
        return read_logprobs(self.model, prompts, responses)

    def load_weights(self, named_tensors: Iterable[tuple[str, Tensor]], policy_version: int) -> None:
        """Copies the weights and applies the mismatch, if any. KeyError names a weight that the policy does not have.

        With stale weights, `policy_version` becomes the version that is served, not the argument.
        """
        if self.past:
            weights, policy_version = self.past.serve(self._known(dict(named_tensors)), policy_version)
            self._use(weights)
        else:
            # One at a time: under ZeRO 3 each weight is gathered only for this moment.
            for name, tensor in named_tensors:
                self._use(self._known({name: tensor}))
        self.policy_version = policy_version

    def _known(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns `weights` by this model's names; a tied head maps to the embedding's name."""
        for name in weights:
            if name not in self.first_names:
                raise KeyError(f"the policy has no weight {name}")
        return {self.first_names[name]: weight for name, weight in weights.items()}

    @torch.no_grad()
    def _use(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in weights.items():
            self.weights[name].copy_(rounded(weight, self.mismatch))

    def sleep(self) -> None:
        """Does nothing: it has no device memory to free."""

    def kept_weights(self) -> dict[str, Tensor]:
        return self.past.to_tensors() if self.past else {}

    def restore_weights(self, kept: Mapping[str, Tensor]) -> None:
        if self.past and kept:
            self.past.restore(kept)

    def close(self) -> None:
        del self.model, self.weights, self.past


@torch.inference_mode()
def read_logprobs(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], responses: Sequence[Sequence[int]]
) -> list[list[float]]:
    """Returns log-probs of the given responses, computed by the sampler's forward passes."""
    if not represents(model):
        return padded_logprobs(model, prompts, responses)
    decoder = Decoder(model)
    rows: list[list[float]] = []
    for prompt, response in zip(prompts, responses, strict=True):
        ids = torch.tensor([*prompt, *response], device=decoder.device)
        # Without the last token: logits after it are not needed.
        reading = PromptReading(decoder, 1, len(ids) - 1)
        hidden = decoder.hidden(ids[:-1], reading.attend)[len(prompt) - 1 :]
        logprobs = torch.log_softmax(decoder.logits(hidden), dim=-1)
        rows.append(logprobs.gather(-1, ids[len(prompt) :, None])[:, 0].tolist())
    return rows


def _in_lanes(
    decode: Callable[[Sequence[int]], Iterator[tuple[int, Sample]]], shares: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Sample]]:
    """Yields the results of `decode` for all shares, each in a thread; splits torch's threads among them."""
    threads = torch.get_num_threads()
    is_over = threading.Event()
    ended: SimpleQueue[tuple[int, Sample] | BaseException | None] = SimpleQueue()

    def work(share: Sequence[int]) -> None:
        torch.set_num_threads(max(1, threads // len(shares)))
        try:
            for item in decode(share):
                ended.put(item)
                # Checked after each response: the caller may have stopped.
                if is_over.is_set():
                    return
        # Passed to the caller's thread, which raises it: an exception that ends a thread is only printed.
        except BaseException as error:
            ended.put(error)
        finally:
            ended.put(None)

    workers = [
        threading.Thread(target=work, args=(share,), name=f"lane-{number}", daemon=True)
        for number, share in enumerate(shares)
    ]
    for worker in workers:
        worker.start()
    try:
        working = len(workers)
        while working:
            item = ended.get()
            if isinstance(item, BaseException):
                raise item
            if item is None:
                working -= 1
            else:
                yield item
    finally:
        # Also when the caller stopped early: no lane may still use weights that are about to change.
        is_over.set()
        for worker in workers:
            worker.join()
        # A lane's setting also applies to later threads.
        torch.set_num_threads(threads)


INT8_LEVELS = 127


def rounded(weight: Tensor, mismatch: Mismatch | None) -> Tensor:
    """Returns `weight`, in its dtype, after the round trip through the precision that `mismatch` names."""
    match mismatch:
        case Bfloat16Weights():
            return weight.to(torch.bfloat16).to(weight.dtype)
        case Int8Weights():
            return _int8_by_row(weight) if weight.ndim == 2 else weight
        case StaleWeights() | None:
            return weight


def _int8_by_row(matrix: Tensor) -> Tensor:
    """Rounds each row to levels -127..127 times its largest absolute value / 127; a row of zeros stays zero."""
    # One scale per row, symmetric, as usual for 8-bit weights: -128 is not used.
    scale = matrix.float().abs().amax(dim=1, keepdim=True) / INT8_LEVELS
    levels = (matrix.float() / torch.where(scale > 0, scale, 1.0)).round()
    return (levels * scale).to(matrix.dtype)


class PastWeights:
    """Keeps versions of the weights, to serve one of some versions ago. Starts with version 0."""

    def __init__(self, versions: int | None, first: Mapping[str, Tensor]) -> None:
        self.versions = versions
        self.kept = {0: _copied(first)}

    def serve(self, named_tensors: Mapping[str, Tensor], policy_version: int) -> tuple[Mapping[str, Tensor], int]:
        """Stores the weights of `policy_version`; returns the weights to use and their version.

        Weights that are missing in `named_tensors` keep their values from the last stored version.
        """
        if self.versions is None:
            return self.kept[0], 0
        latest = self.kept[max(self.kept)]
        self.kept[policy_version] = {**latest, **_copied(named_tensors)}
        # Version 0 serves until enough versions exist.
        wanted = max(0, policy_version - self.versions)
        self.kept = {version: weights for version, weights in self.kept.items() if version >= wanted}
        served = min(self.kept)
        return self.kept[served], served

    def to_tensors(self) -> dict[str, Tensor]:
        """Returns all kept weights as `version/name`; no two tensors share memory.

        Empty if version 0 serves throughout: a restarted run starts with it.
        """
        if self.versions is None:
            return {}
        return {
            f"{version}/{name}": weight.clone()
            for version, weights in self.kept.items()
            for name, weight in weights.items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Replaces the kept weights by the result of `to_tensors`."""
        self.kept = {}
        for key, weight in tensors.items():
            version, name = key.split("/", 1)
            self.kept.setdefault(int(version), {})[name] = weight


def _copied(named_tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in named_tensors.items()}
