"""A sampler whose decoding reads each sequence from its beginning at each step: slow, and plain enough to trust."""

import time
from pathlib import Path

import torch

from stages.engines.samplers.decoder import Decoder
from stages.engines.samplers.kv_cache import PromptReading
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.protocol import Load
from stages.engines.samplers.random_numbers import RandomNumbers
from stages.engines.samplers.samples import Begun, Sample, StopReason
from stages.engines.samplers.token_sampling import draw
from stages.engines.samplers.torch_sampler import TorchSampler

PARAMS = TorchSamplerParams(kind="torch", device="cpu", dtype="float32", threads=1, max_sequences=4)


class SteppingSampler(TorchSampler):
    """The built-in sampler with the plain decoding, and a pause after each step to have time for faults."""

    pause_seconds = 0.0

    def open(self, settings):
        return PlainDecoding(self, settings)


class PlainDecoding:
    def __init__(self, sampler, settings):
        self.sampler, self.settings = sampler, settings
        self.decoder = Decoder(sampler.model)
        self.open = {}
        """name -> (trajectory, token ids, log-probs, number of tokens told)"""

    def admit(self, trajectories):
        for name, one in trajectories.items():
            begun = one.begun
            self.open[name] = [one, list(begun.token_ids), list(begun.logprobs), len(begun.token_ids)]

    @torch.inference_mode()
    def step(self):
        time.sleep(self.sampler.pause_seconds)
        ended = {}
        for name in list(self.open)[: self.sampler.params.max_sequences]:
            one, ids, logprobs, _ = self.open[name]
            tokens = torch.tensor([*one.prompt, *ids])
            hidden = self.decoder.hidden(tokens, PromptReading(self.decoder, 1, len(tokens)).attend)
            number = RandomNumbers([one.seed], tokens.device).at(len(ids), torch.tensor([0]))
            token, logprob = draw(self.decoder.logits(hidden[-1:]), self.settings, number)
            ids.append(int(token))
            logprobs.append(float(logprob))
            is_end = ids[-1] == self.sampler.end_token
            if is_end or len(ids) == self.settings.max_response_tokens:
                reason = StopReason.END_OF_SEQUENCE if is_end else StopReason.MAX_TOKENS
                ended[name] = Sample(ids, logprobs, reason, self.sampler.policy_version)
                del self.open[name]
        return ended

    def new_tokens(self):
        fresh = {}
        for name, state in self.open.items():
            _, ids, logprobs, told = state
            if len(ids) > told:
                fresh[name] = Begun(ids[told:], logprobs[told:])
                state[3] = len(ids)
        return fresh

    def withdraw(self, names):
        found = {name: self.open.pop(name) for name in names if name in self.open}
        return {name: Begun(ids, logprobs) for name, (_, ids, logprobs, _) in found.items()}

    @property
    def load(self):
        running = list(self.open.values())[: self.sampler.params.max_sequences]
        tokens = sum(len(one.prompt) + len(ids) for one, ids, _, _ in running)
        return Load(len(running), len(self.open) - len(running), tokens)

    def close(self):
        self.open.clear()


def stepping_sampler(
    policy_folder: Path, pause_seconds: float = 0.0, max_sequences: int = 4
) -> SteppingSampler:
    params = PARAMS.model_copy(update={"max_sequences": max_sequences})
    sampler = SteppingSampler.from_folder(params, policy_folder)
    sampler.pause_seconds = pause_seconds
    return sampler
