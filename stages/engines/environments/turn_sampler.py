"""A sampler of responses of several turns: wraps another sampler, and asks the environment between the turns.

A turn ends with an end token. Then the environment's answer is appended to the tokens, and the trajectory is sampled
on from there, as if another sampler had begun it. Its random numbers depend on the position, so they continue as well.

`TurnSampler.stream` works in waves: all turns of a wave are sampled, then all their answers are awaited. So the seed
alone decides which trajectories are decoded together, and every run gives the same bits. `TurnDecoding` takes answers
as they come: a slow tool holds back only its own trajectory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from stages.engines.environments.frames import Frame, encode_observation, make_frame
from stages.engines.environments.pool import EnvironmentPool
from stages.engines.environments.protocol import Done
from stages.engines.policies.tokenizers import decode_response, load_tokenizer, read_end_tokens
from stages.engines.samplers.protocol import (
    Decoding,
    Episode,
    Load,
    PartialResponse,
    Sample,
    Sampler,
    SamplingSettings,
    StopReason,
    Trajectory,
    check_begun,
)
from stages.engines.workers.pool import Answer
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt

WAIT_SECONDS = 0.05
"""Longest wait of a step that has nothing to decode."""
MOST_LOSSES = 8
"""Times that the worker may lose an episode just when it answers one turn. More: the turn itself ends the worker."""


class TurnSampler:
    """See `stages.engines.samplers.protocol.Sampler`. A trajectory without a problem gets one turn, as without it."""

    def __init__(
        self,
        inner: Sampler,
        pool: EnvironmentPool,
        tokenizer: PreTrainedTokenizerBase,
        frame: Frame,
        end_tokens: Sequence[int],
    ) -> None:
        self.inner, self.pool, self.tokenizer, self.frame = inner, pool, tokenizer, frame
        self.end_tokens, self.params = frozenset(end_tokens), pool.params

    @classmethod
    def around(cls, inner: Sampler, prompt: PlainPrompt | ChatPrompt, policy_folder: Path) -> TurnSampler:
        """Wraps a sampler of the policy in `policy_folder`. UserError when its tokenizer gives no frame."""
        assert prompt.environment is not None
        tokenizer = load_tokenizer(policy_folder)
        ends = read_end_tokens(policy_folder, tokenizer, prompt)
        frame = make_frame(tokenizer, prompt, ends)
        return cls(inner, EnvironmentPool(prompt.environment), tokenizer, frame, ends)

    def __getattr__(self, name: str) -> Any:
        """Weights and log-probs have nothing to do with turns: the inner sampler answers."""
        return getattr(self.inner, name)

    def stream(self, trajectories: Sequence[Trajectory], settings: SamplingSettings) -> Iterator[tuple[int, Sample]]:
        """Implements the protocol, in waves."""
        _refuse_distributions(settings)
        running = {index: _Running(one, self, settings) for index, one in enumerate(trajectories)}
        try:
            while running:
                wave = [index for index, one in running.items() if one.asked is None]
                for place, sample in self.inner.stream([running[index].so_far() for index in wave], settings):
                    if ended := running[wave[place]].end_turn(sample):
                        del running[wave[place]]
                        yield wave[place], ended
                # In the order of the trajectories, so that equal prompts stay neighbours in the next wave.
                for index, one in list(running.items()):
                    while one.asked:
                        if ended := one.take_answer():
                            del running[index]
                            yield index, ended
        finally:
            # The caller may have stopped early.
            for one in running.values():
                one.cancel()

    def open(self, settings: SamplingSettings) -> TurnDecoding:
        _refuse_distributions(settings)
        return TurnDecoding(self, self.inner.open(settings), settings)

    def close(self) -> None:
        self.pool.close()
        self.inner.close()


def _refuse_distributions(settings: SamplingSettings) -> None:
    if settings.keeps_distributions:
        raise UserError(
            "whole distributions are not kept over several turns: leave rl.study.rollout_distributions out, or "
            "prompt.environment"
        )


class TurnDecoding:
    """See `stages.engines.samplers.protocol.Decoding`."""

    def __init__(self, sampler: TurnSampler, inner: Decoding, settings: SamplingSettings) -> None:
        self._sampler, self._inner, self._settings = sampler, inner, settings
        self._running: dict[Hashable, _Running] = {}

    def admit(self, trajectories: Mapping[Hashable, Trajectory]) -> None:
        # Only the names: one that waits for an answer may have all its tokens. The inner decoding checks the others.
        names = {name: replace(one, begun=PartialResponse()) for name, one in trajectories.items()}
        check_begun(names, self._running, self._settings)
        begun = {name: _Running(one, self._sampler, self._settings) for name, one in trajectories.items()}
        self._inner.admit({name: trajectories[name] for name, one in begun.items() if one.asked is None})
        self._running |= begun

    def step(self) -> dict[Hashable, Sample]:
        """Implements the protocol. With nothing to decode it only waits shortly for an answer of the environment."""
        asked = {name: one for name, one in self._running.items() if one.asked}
        if has_waited := self._inner.is_idle:
            wait([one.asked for one in asked.values()], WAIT_SECONDS, FIRST_COMPLETED)
        ended: dict[Hashable, Sample] = {}
        for name, one in asked.items():
            # An episode that is played again needs several answers: the next one is left to the next step.
            if one.asked.done() and (sample := one.take_answer()):
                ended[name] = sample
        self._inner.admit({name: one.so_far() for name, one in asked.items() if not one.asked and name not in ended})
        # A step that has waited decodes nothing, so the times of waiting and decoding stay separate.
        for name, sample in {} if has_waited else self._inner.step().items():
            if whole := self._running[name].end_turn(sample):
                ended[name] = whole
        for name in ended:
            del self._running[name]
        return ended

    def new_tokens(self) -> dict[Hashable, PartialResponse]:
        """Implements the protocol: turns with the observations between them."""
        for name, new in self._inner.new_tokens().items():
            self._running[name].extend(new)
        news = {name: one.news() for name, one in self._running.items()}
        return {name: new for name, new in news.items() if new.token_ids}

    def withdraw(self, names: Iterable[Hashable]) -> dict[Hashable, PartialResponse]:
        """Implements the protocol. A trajectory that waits for the environment ends with its last turn."""
        gone = {name: self._running.pop(name) for name in names if name in self._running}
        for name, part in self._inner.withdraw(gone).items():
            gone[name].token_ids, gone[name].logprobs = list(part.token_ids), list(part.logprobs)
        for one in gone.values():
            one.cancel()
        return {name: one.so_far().begun for name, one in gone.items()}

    @property
    def is_idle(self) -> bool:
        return not self._running

    @property
    def load(self) -> Load:
        """Implements the protocol; what waits for the environment counts as waiting."""
        load, asked = self._inner.load, sum(one.asked is not None for one in self._running.values())
        return replace(load, waiting=load.waiting + asked, asked=asked)

    def close(self) -> None:
        self.withdraw(list(self._running))
        self._inner.close()


class _Running:
    """A response that has not ended: it is decoded, or waits for the answer to its last turn (`asked`)."""

    def __init__(self, trajectory: Trajectory, sampler: TurnSampler, settings: SamplingSettings) -> None:
        self._trajectory, self._sampler, self._limit = trajectory, sampler, settings.max_response_tokens
        begun = trajectory.begun
        self.token_ids, self.logprobs, self._observed = list(begun.token_ids), list(begun.logprobs), [*begun.observed]
        self._reported, self._spans_reported = len(self.token_ids), len(self._observed)
        self.asked: Future[Answer] | None = None
        self._answered = self._losses = 0
        """Turns to which this object has an answer, and how often the worker had lost the episode at the last turn."""
        self._totals = {"calls": 0, "failed_calls": 0}
        self._seconds, self._reason = 0.0, StopReason.END_OF_SEQUENCE
        starts = [0, *(end for _, end in self._observed)]
        # Tokens and spans are all that another decoding knows of an episode.
        self._turns = [self._text(start, end) for start, (end, _) in zip(starts, self._observed, strict=False)]
        if trajectory.problem and len(self.token_ids) > starts[-1]:
            is_cut = self.token_ids[-1] not in sampler.end_tokens
            if not is_cut or len(self.token_ids) >= self._limit:
                # It was withdrawn while it waited for an answer.
                self._turns.append(self._text(starts[-1], len(self.token_ids)))
                self._reason = StopReason.MAX_TOKENS if is_cut else StopReason.END_OF_SEQUENCE
                self._ask(len(self._turns) - is_cut)

    def _text(self, start: int, end: int) -> str:
        ids = self.token_ids[start:end]
        return decode_response(self._sampler.tokenizer, ids[: len(ids) - (ids[-1] in self._sampler.end_tokens)])

    def so_far(self) -> Trajectory:
        """Returns the trajectory for another decoding."""
        # Copies: this object extends its lists.
        begun = PartialResponse([*self.token_ids], [*self.logprobs], tuple(self._observed))
        return replace(self._trajectory, begun=begun)

    def extend(self, new: PartialResponse) -> None:
        self.token_ids += new.token_ids
        self.logprobs += new.logprobs

    def news(self) -> PartialResponse:
        """Returns the tokens since the last call, with the spans among them; positions are those in the response."""
        start, spans = self._reported, tuple(self._observed[self._spans_reported :])
        self._reported, self._spans_reported = len(self.token_ids), len(self._observed)
        return PartialResponse(self.token_ids[start:], self.logprobs[start:], spans)

    def cancel(self) -> None:
        if self.asked:
            self.asked.cancel()

    def end_turn(self, sample: Sample) -> Sample | None:
        """Takes a turn that ended; returns the sample if the response ended with it, else asks the environment."""
        if not self._trajectory.problem:
            return sample
        self.token_ids, self.logprobs = list(sample.token_ids), list(sample.logprobs)
        self._turns.append(self._text(self._observed[-1][1] if self._observed else 0, len(self.token_ids)))
        self._reason = sample.stop_reason
        # A turn that was cut is no turn for the environment. But if the episode came from another decoding, only the
        # environment knows the calls in the turns before.
        wanted = len(self._turns) - sample.is_truncated
        if sample.is_truncated and self._answered == wanted:
            return self._ended()
        self._ask(wanted)
        return None

    def _ask(self, turns: int) -> None:
        one = self._trajectory
        self.asked = self._sampler.pool.submit(one.problem, one.seed, self._turns[:turns])
        self._asked_turns = turns

    def take_answer(self) -> Sample | None:
        """Waits for the answer. Returns the sample if the response ends with it, else asks again or can be decoded."""
        reply, turns, self.asked = self._sampler.pool.reply(self.asked), self._asked_turns, None
        self._seconds += reply.get("seconds", 0.0)
        self._totals |= {name: reply[name] for name in self._totals if name in reply}
        match reply:
            case {"missing": True}:
                self._losses += turns > len(self._observed)
                if self._losses > MOST_LOSSES:
                    return self._ended(fault=f"its process ended {MOST_LOSSES} times at turn {turns}")
                self._ask(1)
                return None
            case {"fault": fault}:
                return self._ended(fault=fault)
        if turns <= len(self._observed):
            self._compare(turns, reply)
            if turns == len(self._turns) - (self._reason is StopReason.MAX_TOKENS):
                return self._ended()
            self._ask(turns + 1)
            return None
        self._answered, self._losses = turns, 0
        if "done" in reply:
            return self._ended(done=Done(**reply["done"]))
        if turns >= self._sampler.params.max_turns:
            self._reason = StopReason.MAX_TURNS
            return self._ended()
        return self._observe(reply["observation"])

    def _observe(self, text: str) -> Sample | None:
        """Appends the observation. One that leaves no room for a turn is left out, and the response ends."""
        added, start = self._encoded(text), len(self.token_ids)
        if start + len(added) >= self._limit:
            self._reason = StopReason.MAX_TOKENS
            return self._ended()
        self.extend(PartialResponse(added, [0.0] * len(added)))
        self._observed.append((start, len(self.token_ids)))
        return None

    def _encoded(self, text: str) -> list[int]:
        sampler = self._sampler
        most = sampler.params.max_observation_tokens
        return sampler.frame.around(encode_observation(sampler.tokenizer, text, most, sampler.end_tokens))

    def _compare(self, turns: int, reply: Mapping[str, Any]) -> None:
        """UserError if the answer to an earlier turn is not the one that the policy has read."""
        start, end = self._observed[turns - 1]
        read, answer = self.token_ids[start:end], reply.get("observation")
        if answer is None or self._encoded(answer) != read:
            raise UserError(
                f"the environment is not replayable: after turn {turns} of problem "
                f"{self._trajectory.problem.get('problem_id')} it answered {self._sampler.tokenizer.decode(read)!r}, "
                f"and later {str(reply.get('done', answer))[:200]!r}. Its answers may depend only on problem, seed and "
                "turns"
            )

    def _ended(self, done: Done | None = None, fault: str = "") -> Sample:
        done = done or Done()
        episode = Episode(
            observed=tuple(self._observed),
            turns=len(self._turns),
            response=self._turns[-1] if done.response is None else done.response,
            seconds=self._seconds,
            reward=done.reward,
            is_correct=done.is_correct,
            fault=fault,
            **self._totals,
        )
        return Sample(self.token_ids, self.logprobs, self._reason, self._sampler.inner.policy_version, episode)
