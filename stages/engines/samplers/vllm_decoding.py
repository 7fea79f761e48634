"""Trajectories in flight in vLLM: its own continuous batching, with requests added and aborted between steps.

vLLM gives nothing for an aborted request, so what a trajectory has so far is taken from the outputs of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from stages.engines.samplers.protocol import FullSample, Load, SamplingSettings, check_begun
from stages.engines.samplers.samples import Begun, Sample, StopReason, Trajectory
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed

if TYPE_CHECKING:
    from vllm import CompletionOutput, SamplingParams


@dataclass
class _Request:
    """A trajectory in the engine."""

    name: Hashable
    trajectory: Trajectory
    output: CompletionOutput | None = None
    """All that was drawn here, as of the last step."""
    told: int = 0
    """Tokens drawn here that `new_tokens` has told of."""

    def drawn(self) -> Begun:
        """What was drawn here."""
        if self.output is None:
            return Begun()
        return Begun(list(self.output.token_ids), first_logprobs(self.output.logprobs))

    def whole(self) -> Begun:
        """What was begun elsewhere, then what was drawn here."""
        begun, drawn = self.trajectory.begun, self.drawn()
        return Begun([*begun.token_ids, *drawn.token_ids], [*begun.logprobs, *drawn.logprobs])


class VllmDecoding:
    """See `stages.engines.samplers.protocol.Decoding`.

    A trajectory that was begun elsewhere goes on with a seed of its own, derived from its seed and the position: vLLM's
    generators cannot be put at a position. So its tokens are reproducible, but not those of an unbroken drawing.
    """

    def __init__(
        self,
        engine: Any,
        numbers: Iterator[int],
        settings: SamplingSettings,
        end_token: int,
        vocabulary: int,
        policy_version: int,
        check_lengths: Callable[[Sequence[Sequence[int]], int], None],
        tells: bool,
    ) -> None:
        """`numbers` name requests; without `tells` only ended samples can be asked for, which costs less a step."""
        self._engine, self._numbers, self._settings = engine, numbers, settings
        self._end_token, self._vocabulary, self._policy_version = end_token, vocabulary, policy_version
        self._check_lengths, self._tells = check_lengths, tells
        self._requests: dict[str, _Request] = {}
        self._ids: dict[Hashable, str] = {}

    def admit(self, trajectories: Mapping[Hashable, Trajectory]) -> None:
        """See the protocol."""
        check_begun(trajectories, self._ids, self._settings)
        limit = self._settings.max_response_tokens
        self._check_lengths([one.prompt for one in trajectories.values()], limit)
        for name, one in trajectories.items():
            request_id = str(next(self._numbers))
            begun = one.begun.token_ids
            seed = derive_seed(one.seed, len(begun)) if begun else one.seed
            asked = self._sampling_params(seed, limit - len(begun))
            self._engine.add_request(request_id, {"prompt_token_ids": [*one.prompt, *begun]}, asked)
            self._requests[request_id] = _Request(name, one)
            self._ids[name] = request_id

    def _sampling_params(self, seed: int, max_tokens: int) -> SamplingParams:
        from vllm import SamplingParams
        from vllm.exceptions import VLLMValidationError
        from vllm.sampling_params import RequestOutputKind

        settings = self._settings
        try:
            return SamplingParams(
                temperature=settings.temperature,
                top_p=settings.top_p,
                top_k=settings.top_k,
                # The safe vocabulary is the min-p rule: p >= e^log_threshold times the largest p.
                min_p=0.0 if settings.log_threshold is None else math.exp(settings.log_threshold),
                max_tokens=max_tokens,
                seed=seed,
                stop_token_ids=[self._end_token],
                ignore_eos=True,
                logprobs=self._vocabulary if settings.keeps_distributions else 0,
                flat_logprobs=True,
                detokenize=False,
                output_kind=RequestOutputKind.CUMULATIVE if self._tells else RequestOutputKind.FINAL_ONLY,
            )
        except (ValueError, VLLMValidationError) as error:
            raise UserError(f"vLLM refuses the sampling settings: {error}") from error

    @property
    def is_idle(self) -> bool:
        """See the protocol."""
        return not self._requests

    @property
    def load(self) -> Load:
        """See the protocol; a sequence counts as running from its first token on."""
        running = [one for one in self._requests.values() if one.output is not None]
        tokens = sum(
            len(one.trajectory.prompt) + len(one.trajectory.begun.token_ids) + len(one.output.token_ids)
            for one in running
        )
        return Load(len(running), len(self._requests) - len(running), tokens)

    def step(self) -> dict[Hashable, Sample]:
        """See the protocol. A sequence may get no token where memory is short: vLLM then lets it wait."""
        ended: dict[Hashable, Sample] = {}
        if self.is_idle:
            return ended
        for output in self._engine.step():
            request = self._requests.get(output.request_id)
            if request is None:  # withdrawn while its step was on its way
                continue
            (request.output,) = output.outputs
            if output.finished:
                del self._requests[output.request_id], self._ids[request.name]
                ended[request.name] = self._sample(request)
        return ended

    def _sample(self, request: _Request) -> Sample:
        whole = request.whole()
        is_ended = whole.token_ids[-1] == self._end_token
        reason = StopReason.END_OF_SEQUENCE if is_ended else StopReason.MAX_TOKENS
        sample = Sample(whole.token_ids, whole.logprobs, reason, self._policy_version)
        if not self._settings.keeps_distributions:
            return sample
        rows = _all_logprobs(request.output.logprobs, self._vocabulary)
        return FullSample(**vars(sample), distributions=rows)

    def new_tokens(self) -> dict[Hashable, Begun]:
        """See the protocol; those that have got none are left out."""
        found: dict[Hashable, Begun] = {}
        for request in self._requests.values():
            drawn, told = request.drawn(), request.told
            request.told = len(drawn.token_ids)
            if told < request.told:
                found[request.name] = Begun(drawn.token_ids[told:], drawn.logprobs[told:])
        return found

    def withdraw(self, names: Iterable[Hashable]) -> dict[Hashable, Begun]:
        """See the protocol."""
        ids = [self._ids.pop(name) for name in names if name in self._ids]
        self._engine.abort_request(ids)
        gone = [self._requests.pop(request_id) for request_id in ids]
        return {request.name: request.whole() for request in gone}

    def close(self) -> None:
        """See the protocol."""
        self.withdraw(list(self._ids))


def first_logprobs(flat: Any) -> list[float]:
    """The log-prob of the token itself at each position; the most probable one may stand behind it."""
    places = zip(flat.start_indices, flat.end_indices, strict=True)
    return [flat.logprobs[start] for start, end in places if end > start]


def _all_logprobs(flat: Any, vocabulary: int) -> Tensor:
    """Log-probs [positions, vocabulary]; the sampled token, which stands first, stands there twice with one value."""
    rows = torch.full((len(flat.start_indices), vocabulary), -torch.inf)
    for row, start, end in zip(rows, flat.start_indices, flat.end_indices, strict=True):
        row[torch.tensor(flat.token_ids[start:end])] = torch.tensor(flat.logprobs[start:end])
    return rows
