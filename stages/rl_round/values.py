"""Reward values that do not come from the verdict: custom functions, environments, and the majority vote.

The majority vote of a group needs no gold answer. Source: TTRL (arXiv 2504.16084), section 2.2, and the authors' code.
Deviations: 1. Two answers are equal if the verifier calls them equivalent, not only if their texts are equal. 2. The
whole group votes and is trained on. In the paper 64 responses vote, and 32 of them are trained on. 3. A response
without a marked answer has no vote. In the authors' code the last number of its text votes, or the empty text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.custom_functions import CustomFunction, FunctionValue
from stages.engines.samplers.episodes import fields_for_functions, judged_text
from stages.engines.samplers.protocol import Sample, StopReason
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.rl_round.methods import RewardParams, environment_rewards, function_rewards
from stages.rl_round.records import Problem

VOTE = "vote"
"""Part of the reward that is 1 where a response has the majority's answer, else 0."""


def votes(
    samples: Sequence[Sample], responses: Sequence[str], group_size: int, verifier: Verifier
) -> list[dict[str, FunctionValue]]:
    """Returns for each response 1 if it has the majority's answer of its group, else 0, as `CustomRewards.ask` does.

    Each `group_size` responses in a row are a group. A response without a marked answer has no vote, and gets 0.
    A comparison that the verifier cannot decide counts as different.
    """
    texts = [judged_text(sample, response) for sample, response in zip(samples, responses, strict=True)]
    answers = [verifier.answer(text, one.is_truncated) for text, one in zip(texts, samples, strict=True)]
    groups = [range(start, start + group_size) for start in range(0, len(samples), group_size)]
    pairs: list[tuple[int, int]] = []
    for group in groups:
        # The first response with each answer: equal texts need no verifier.
        firsts = {answers[index]: index for index in reversed(group) if answers[index] is not None}
        pairs += itertools.combinations(sorted(firsts.values()), 2)
    judged = verifier.judge(
        [(answers[one], texts[other]) for one, other in pairs],
        truncated=[samples[other].is_truncated for _, other in pairs],
        require_marker=True,
    )
    equal = {
        (answers[one], answers[other])
        for (one, other), judgement in zip(pairs, judged, strict=True)
        if judgement.verdict is Verdict.CORRECT
    }
    chosen = [one for group in groups for one in majority([answers[index] for index in group], equal)]
    return [{"": FunctionValue(float(one))} for one in chosen]


def majority(answers: Sequence[str | None], equal: Collection[tuple[str | None, str | None]]) -> list[bool]:
    """Returns which answers are the majority's. None is no answer; `equal` has pairs of different texts, in order.

    An answer belongs to the first earlier one to which it is equal. Of several largest sets the one counts whose first
    answer is the earliest.
    """
    sets: dict[str, set[int]] = {}
    for place, answer in enumerate(answers):
        if answer is not None:
            first = next((one for one in sets if one == answer or (one, answer) in equal), answer)
            sets.setdefault(first, set()).add(place)
    # `max` takes the first of equal ones.
    largest = max(sets.values(), key=len, default=set())
    return [place in largest for place in range(len(answers))]


class CustomRewards:
    """The functions that a round's reward names, each in separate worker processes, and the environment's rewards.

    `close` ends the processes.
    """

    def __init__(self, reward: RewardParams, limits: VerifierParams) -> None:
        self._environments = environment_rewards(reward)
        self._functions = {name: CustomFunction(params, limits) for name, params in function_rewards(reward).items()}

    def ask(
        self,
        problems: Sequence[Problem],
        samples: Sequence[Sample],
        responses: Sequence[str],
        verdicts: Sequence[Verdict],
    ) -> list[dict[str, FunctionValue]]:
        """Returns, for each response, the value of each function and of the environment, by the name of the reward."""
        rows = [
            {
                **problem.row,
                "problem_id": problem.problem_id,
                "answer": problem.answer,
                "response": response,
                "response_tokens": sample.policy_tokens,
                "is_truncated": sample.is_truncated,
                "verdict": verdict.value,
                **(fields_for_functions(sample.episode) if sample.episode else {}),
            }
            for problem, sample, response, verdict in zip(problems, samples, responses, verdicts, strict=True)
        ]
        columns = {name: function.ask(rows) for name, function in self._functions.items()}
        columns |= {name: [_environment_value(sample) for sample in samples] for name in self._environments}
        return [{name: column[place] for name, column in columns.items()} for place in range(len(rows))]

    def close(self) -> None:
        for function in self._functions.values():
            function.close()


def _environment_value(sample: Sample) -> FunctionValue:
    reward = sample.episode.reward if sample.episode else None
    if reward is None and sample.stop_reason in (StopReason.MAX_TOKENS, StopReason.MAX_TURNS):
        return FunctionValue(0.0)
    if reward is None or not math.isfinite(reward):
        return FunctionValue(fault=f"the environment gave the reward {reward}")
    return FunctionValue(float(reward))
