"""Ended trajectories are judged beside the hub, in the order in which they end: the verifier holds nobody up."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue

from stages.engines.samplers.samples import Sample
from stages.rl_round.asynchronous.trajectory_pool import Name
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.records import Rollout
from stages.rl_round.rollouts.round_verifier import RoundVerifier
from stages.rl_round.rollouts.scoring import score_samples


@dataclass(frozen=True)
class _Asked:
    answers: Mapping[Name, str]
    samples: Mapping[Name, Sample]


class Judge:
    """A thread that asks the verifier; a context manager ends it."""

    def __init__(self, verifier: RoundVerifier, tokenizer, params: RlParams) -> None:
        self._verifier, self._tokenizer, self._params = verifier, tokenizer, params
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._judged: SimpleQueue[dict[Name, Rollout] | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="judge", daemon=True)

    def __enter__(self) -> Judge:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.put(None)
        self._thread.join()

    def ask(self, answers: Mapping[Name, str], samples: Mapping[Name, Sample]) -> None:
        """To be judged: samples by name, with the gold answers of their problems."""
        self._asked.put(_Asked(answers, samples))

    def judged(self) -> dict[Name, Rollout]:
        """What has been judged since the last call; raises what the verifier raised."""
        found: dict[Name, Rollout] = {}
        while not self._judged.empty():
            one = self._judged.get()
            if isinstance(one, BaseException):
                raise one
            found |= one
        return found

    def _work(self) -> None:
        try:
            while asked := self._asked.get():
                names = list(asked.samples)
                answers = [asked.answers[name] for name in names]
                samples = [asked.samples[name] for name in names]
                rollouts = score_samples(answers, samples, self._verifier, self._tokenizer, self._params)
                self._judged.put(dict(zip(names, rollouts, strict=True)))
        except BaseException as error:  # handed to the hub, which raises it
            self._judged.put(error)
