"""The check after every weight sync: on a fixed batch, the sampler must give the trainer's log-probs.

A sampler with stale weights, or with a stale piece of them (a tied head that was packed before), answers as fluently as
a fresh one; only this comparison sees it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.samplers.protocol import Sampler, SamplingSettings
from stages.engines.samplers.sampling import sample_prompts
from stages.engines.trainers.protocol import Trainer
from stages.rl_round.params.rl import WeightSyncCheckParams

PROBE_TOKENS = 256
"""Most tokens of a response that is compared: the log-probs of the whole vocabulary exist for all of them at once, and
a weight that is stale shows in the first."""
SMALLEST_CHANGE = 1e-6
"""Change of the trainer's log-probs below which a sampler that did not change at all is not suspicious."""


class SyncError(RuntimeError):
    """Sampler and trainer hold different weights."""


@dataclass
class WeightSyncCheck:
    """A fixed batch of responses and what both sides said of it last."""

    params: WeightSyncCheckParams
    prompts: list[list[int]]
    responses: list[list[int]]
    trainer_logprobs: list[float] = field(default_factory=list)
    sampler_logprobs: list[float] = field(default_factory=list)

    @classmethod
    def drawn(
        cls,
        params: WeightSyncCheckParams,
        prompts: list[list[int]],
        max_response_tokens: int,
        sampler: Sampler,
        seed: int,
    ) -> WeightSyncCheck:
        """A probe on one response of `sampler`, or its beginning, to each of the first `params.sequences` prompts."""
        chosen = prompts[: params.sequences]
        settings = SamplingSettings(1.0, 1.0, 0, min(PROBE_TOKENS, max_response_tokens), None)
        names = [str(number) for number in range(len(chosen))]
        drawn = sample_prompts(sampler, chosen, names, 1, settings, seed)
        return cls(params, chosen, [samples[0].token_ids for samples in drawn])

    def trainer_side(self, trainer: Trainer) -> list[float]:
        """The trainer's log-probs of the batch, one after another; collective."""
        batch = pack([TokenSequence(*pair) for pair in zip(self.prompts, self.responses, strict=True)])
        return trainer.evaluate(batch).logprobs.cpu()[batch.response_mask.bool()].tolist()

    def check(self, sampler: Sampler, from_trainer: list[float]) -> float:
        """The largest gap of a token's log-prob; SyncError when it is too large or the sampler stood still.

        Without a bound the gap is only measured: a sampler that differs on purpose may well stand still.
        """
        from_sampler = [value for row in sampler.logprobs(self.prompts, self.responses) for value in row]
        gap = _largest_gap(from_sampler, from_trainer)
        stood_still = bool(self.sampler_logprobs) and from_sampler == self.sampler_logprobs
        moved = _largest_gap(from_trainer, self.trainer_logprobs) if self.trainer_logprobs else 0.0
        self.sampler_logprobs, self.trainer_logprobs = from_sampler, from_trainer
        if self.params.max_logprob_gap is None:
            return gap
        if not gap <= self.params.max_logprob_gap:  # NaN is no agreement
            raise SyncError(
                f"after the sync to version {sampler.policy_version} a token's log-prob differs by {gap:.2e} between "
                f"sampler and trainer (allowed: rl.weight_sync_check.max_logprob_gap "
                f"{self.params.max_logprob_gap:.0e}). The sampler does not hold the trainer's weights, or runs at a "
                "precision that the bound is too tight for"
            )
        if stood_still and moved > SMALLEST_CHANGE:
            raise SyncError(
                f"the trainer's log-probs moved by {moved:.2e} and the sampler's not at all: the sync to version "
                f"{sampler.policy_version} did not reach the sampler"
            )
        return gap


def _largest_gap(first: list[float], second: list[float]) -> float:
    gaps = [abs(a - b) for a, b in zip(first, second, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps, default=0.0)
