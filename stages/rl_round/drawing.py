"""From problems to groups of rewarded responses, and to the batch of a step.

1. A round draws from a slice of the problem table, in an endless random order (problem_order.py), or from what
   `prompt_selection` has kept of it (prompt_selection.py).
2. Dynamic sampling leaves out groups without signal, but keeps finished groups that have one.
3. Responses are sampled, then scored, then grouped. Each rank samples and scores its share of a batch's groups with a
   separate engine and verifier.
4. The reward of a response comes from its verdict and its length, and from custom functions, environments and votes.

Source of 2: DAPO (arXiv 2503.14476), section 3.2. Deviations: 1. Groups beyond the batch are not discarded. They wait
for the next step, with their policy version. 2. The recent share of groups with signal decides the size of a draw. 3.
After `max_draws` the batch may be smaller; this is no error.

The majority vote of a group needs no gold answer. Source: TTRL (arXiv 2504.16084), section 2.2, and the authors' code.
Deviations: 1. Two answers are equal if the verifier calls them equivalent, not only if their texts are equal. 2. The
whole group votes and is trained on. In the paper 64 responses vote, and 32 of them are trained on. 3. A response
without a marked answer has no vote. In the authors' code the last number of its text votes, or the empty text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, assert_never

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.length_rewards import cosine_length_reward, soft_overlong_punishment
from stages.engines.custom_functions import CustomFunction, FunctionValue
from stages.engines.policies.tokenizers import decode_response
from stages.engines.samplers.build import DrawingShare
from stages.engines.samplers.episodes import environment_verdict, fields_for_functions, judged_text
from stages.engines.samplers.protocol import (
    Sample,
    Sampler,
    SamplingSettings,
    StopReason,
    Trajectory,
    sample_trajectories,
)
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Judgement, Verifier
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed
from stages.rl_round.methods import (
    CosineReward,
    DynamicSampling,
    EnvironmentReward,
    FunctionReward,
    MajorityReward,
    ModelVerifier,
    NoDynamicSampling,
    NoOverlong,
    RewardParams,
    RoundVerifierParams,
    SoftOverlong,
    SumReward,
    VerdictReward,
    environment_rewards,
    function_rewards,
    takes_values,
)
from stages.rl_round.params import RlParams
from stages.rl_round.problem_order import ProblemCursor, ProblemDraw
from stages.rl_round.records import Batch, Group, Problem, Rollout, newest_version, pack_groups, unpack_groups

FAILURES_NAMED = 5
SMALLEST_SIGNAL_FRACTION = 0.25
"""A draw has at most 4 times the number of missing groups, however few groups had signal."""
VOTE = "vote"
"""Part of the reward that is 1 where a response has the majority's answer, else 0."""


@dataclass
class DrawState:
    """State of the drawing that continues from step to step."""

    cursor: ProblemCursor = field(default_factory=ProblemCursor)
    # Optimistic at first: the first draw is one batch; later draws use the measured share.
    signal_fraction: float = 1.0
    """Share of the last step's groups that had signal."""
    carried: list[Group] = field(default_factory=list)
    """Surplus groups with signal, oldest first."""


def draw_batch(
    sampling: NoDynamicSampling | DynamicSampling,
    wanted: int,
    policy_version: int,
    state: DrawState,
    draw: Callable[[int], list[Group]],
) -> Batch:
    """Fills a batch of `wanted` groups; `draw(count)` returns those of the next problems. Updates `state`."""
    if isinstance(sampling, NoDynamicSampling):
        groups = draw(wanted)
        signal, newest = signal_fraction(groups, 1.0), newest_version(groups)
        return Batch(groups, groups, [], draws=1, too_stale=0, carried=0, signal_fraction=signal, newest_version=newest)

    def is_stale(group: Group) -> bool:
        return policy_version - group.oldest_version > sampling.max_staleness

    usable = [group for group in state.carried if not is_stale(group)]
    stale = [group for group in state.carried if is_stale(group)]
    drawn: list[Group] = []
    draws = 0
    while len(usable) < wanted and draws < sampling.max_draws:
        # The share of this step sizes its next draw; its first draw uses the share of the step before.
        fraction = signal_fraction(drawn, state.signal_fraction)
        groups = draw(draw_size(wanted - len(usable), fraction))
        draws += 1
        drawn += groups
        usable += [group for group in groups if group.has_signal]
    state.signal_fraction = signal_fraction(drawn, state.signal_fraction)
    # Surplus comes before new groups, so the oldest is used first and as few groups as possible get too stale.
    state.carried = usable[wanted:]
    # The rollouts table has them in this order.
    left_out = stale + [group for group in drawn if not group.has_signal]
    return Batch(
        usable[:wanted],
        drawn,
        left_out,
        draws=draws,
        too_stale=len(stale),
        carried=len(state.carried),
        signal_fraction=state.signal_fraction,
        # Only groups drawn in this step are fresh: a batch filled with surplus alone has none.
        newest_version=newest_version(drawn),
    )


def draw_size(missing: int, signal_fraction: float) -> int:
    """Returns the number of problems to draw so that about `missing` groups have signal."""
    return math.ceil(missing / max(SMALLEST_SIGNAL_FRACTION, signal_fraction))


def signal_fraction(groups: Sequence[Group], of_none: float) -> float:
    """Returns the share of the groups that have signal; `of_none` when there is no group."""
    return sum(group.has_signal for group in groups) / len(groups) if groups else of_none


@dataclass(frozen=True)
class GroupDrawing:
    """The sampler, verifier and functions with which a rank samples and scores its share of the groups."""

    sampler: Sampler
    verifier: RoundVerifier
    tokenizer: object
    share: DrawingShare
    functions: CustomRewards | None = None

    def draw(
        self, draws: Sequence[ProblemDraw], params: RlParams, *seed_path: int | str, group_size: int | None = None
    ) -> list[Group]:
        """Runs `draw_groups` on all ranks: rank 0 gets the groups, in order, the others an empty list; collective."""
        part, size, groups = self.share.of(draws), group_size or params.group_size, list[Group]()
        if self.share.is_engine_leader:
            judges = self.sampler, self.verifier, self.tokenizer
            groups = draw_groups(part, *judges, params, *seed_path, group_size=size, functions=self.functions)
        # All ranks of an engine sample together, and its first rank judges the responses.
        else:
            sample_draws(part, self.sampler, params, size, *seed_path)
        if self.share.ranks.world_size == 1:
            return groups
        # Packed before they are sent: pickled lists of numbers are twice as large.
        packed = self.share.assemble([pack_groups([group]) for group in groups], len(draws))
        return [group for one in packed for group in unpack_groups(one)]


def draw_groups(
    draws: Sequence[ProblemDraw],
    sampler: Sampler,
    verifier: RoundVerifier,
    tokenizer,
    params: RlParams,
    *seed_path: int | str,
    group_size: int | None = None,
    functions: CustomRewards | None = None,
) -> list[Group]:
    """Samples, scores and groups responses, in this order: one group for each draw.

    `group_size` defaults to that of the params.
    """
    size = group_size or params.group_size
    # All draws in one call: the sampler keeps its slots full until the last response of the last draw.
    samples = sample_draws(draws, sampler, params, size, *seed_path)
    answers = [draw.problem.answer for draw in draws for _ in range(size)]
    flat = [one for of_draw in samples for one in of_draw]
    problems = [draw.problem for draw in draws for _ in range(size)] if functions else ()
    rollouts = score_samples(answers, flat, verifier, tokenizer, params, functions, problems, size)
    return [make_group(draw, rollouts[place * size : (place + 1) * size]) for place, draw in enumerate(draws)]


def sample_draws(
    draws: Sequence[ProblemDraw], sampler: Sampler, params: RlParams, group_size: int, *seed_path: int | str
) -> list[list[Sample]]:
    """Returns `group_size` samples of each draw, by draw."""
    trajectories = [one for draw in draws for one in trajectories_of(draw, group_size, *seed_path)]
    samples = sample_trajectories(sampler, trajectories, sampling_settings(params))
    return [samples[start : start + group_size] for start in range(0, len(samples), group_size)]


def trajectories_of(draw: ProblemDraw, group_size: int, *seed_path: int | str) -> list[Trajectory]:
    """Returns the trajectories of a draw's group. `seed_path` names the run and the round.

    Their random numbers do not depend on the step, the batch, or the process that samples them.
    """
    problem = draw.problem
    # Without the draw's number, a problem that is drawn again would get the same responses as before.
    return [
        Trajectory(
            problem.prompt,
            derive_seed(*seed_path, problem.problem_id, number, draw.number),
            problem=problem.for_environment,
        )
        for number in range(group_size)
    ]


def sampling_settings(params: RlParams) -> SamplingSettings:
    return SamplingSettings(
        params.temperature,
        params.top_p,
        params.top_k,
        params.max_response_tokens,
        params.log_threshold,
        params.keeps_distributions,
        params.likeliest,
    )


def make_group(draw: ProblemDraw, rollouts: Sequence[Rollout]) -> Group:
    """Returns the group of a draw, from its rollouts in the order of their sample numbers."""
    return Group(draw.problem.problem_id, draw.problem.prompt, tuple(rollouts), draw.number)


def score_samples(
    answers: Sequence[str],
    samples: Sequence[Sample],
    verifier: RoundVerifier,
    tokenizer,
    params: RlParams,
    functions: CustomRewards | None = None,
    problems: Sequence[Problem] = (),
    group_size: int = 1,
) -> list[Rollout]:
    """Returns one rollout for each sample, in order; `answers` are the gold answers of their problems.

    Only custom functions need `problems`: they see the rows of these problems. Only a vote needs `group_size`: each
    `group_size` samples in a row are a group.
    """
    responses = [decode_response(tokenizer, sample.token_ids) for sample in samples]
    verdicts = _verdicts(answers, samples, responses, verifier)
    if isinstance(params.reward, MajorityReward):
        values = votes(samples, responses, group_size, verifier)
    else:
        values = functions.ask(problems, samples, responses, verdicts) if functions else [{}] * len(samples)
    return [
        make_rollout(sample, response, verdict, params, of_functions)
        for sample, response, verdict, of_functions in zip(samples, responses, verdicts, values, strict=True)
    ]


def _verdicts(
    answers: Sequence[str], samples: Sequence[Sample], responses: Sequence[str], verifier: RoundVerifier
) -> list[Verdict]:
    verdicts = [environment_verdict(sample.episode) for sample in samples]
    # The others: those that no environment has decided.
    asked = [index for index, verdict in enumerate(verdicts) if verdict is None]
    if asked:
        judgements = verifier.judge(
            [(answers[index], judged_text(samples[index], responses[index])) for index in asked],
            truncated=[samples[index].is_truncated for index in asked],
            # A number somewhere in the text is not an answer: a reward requires a box, a tag or a marker before it.
            require_marker=True,
        )
        for index, judgement in zip(asked, judgements, strict=True):
            verdicts[index] = judgement.verdict
    return verdicts


class RoundVerifier(Protocol):
    """The verifier of a round: `Verifier`, or `CheckedJudge` when `rl.verifier` is a model."""

    def judge(
        self, pairs: Sequence[tuple[str, str]], truncated: Sequence[bool] | None = None, require_marker: bool = False
    ) -> list[Judgement]:
        """Returns one judgement for each (gold answer, response), in order."""


def make_rollout(
    sample: Sample,
    response: str,
    verdict: Verdict,
    params: RlParams,
    values: Mapping[str, FunctionValue] = MappingProxyType({}),
) -> Rollout:
    """Returns a rollout with the reward of its verdict and length.

    `values` are those of custom functions, environments and votes, by reward.
    """
    # 0 is a placeholder here, not a reward: undecided rollouts leave the batch before any baseline is computed.
    if verdict.is_failure:
        return Rollout(sample, response, verdict, 0.0)
    if fault := next((value.fault for value in values.values() if value.fault), ""):
        return Rollout(sample, response, verdict, 0.0, fault=fault, is_custom=True)
    reward, parts = outcome_reward(verdict, rewarded_tokens(sample, params.max_response_tokens), params, values)
    return Rollout(sample, response, verdict, reward, parts, is_custom=bool(values))


def recorded_rollout(
    sample: Sample, response: str, verdict: Verdict, params: RlParams, custom: Mapping[str, Any]
) -> Rollout:
    """Returns the rollout whose `custom` this is, with every bit of its reward; calls no function again.

    UserError when something else than its verdict has rewarded it and `custom` is empty, as in schedules of earlier
    versions.
    """
    if custom:
        return Rollout(sample, response, verdict, **custom, is_custom=True)
    if takes_values(params.reward) and not verdict.is_failure:
        raise UserError("the recorded round has no rewards of its custom function: record it again with this version")
    return make_rollout(sample, response, verdict, params)


def rewarded_tokens(sample: Sample, limit: int) -> int:
    """Returns the length for rewards: the policy's tokens. A response that the limit cut off counts as at the limit.

    The limit is for all tokens, also for those of an environment that found no room.
    """
    return limit if sample.episode and sample.is_truncated else sample.policy_tokens


def outcome_reward(
    verdict: Verdict, tokens: int, params: RlParams, values: Mapping[str, FunctionValue]
) -> tuple[float, dict[str, float]]:
    """Returns the reward of a decided response of `tokens` tokens, with overlong punishment, and its parts."""
    # `rl.reward` gives the value of the response; then `rl.overlong` subtracts the cost of its length.
    reward, parts = reward_of(params.reward, verdict, tokens, params.max_response_tokens, values)
    match params.overlong:
        case NoOverlong():
            return reward, parts
        case SoftOverlong(buffer_tokens=buffer_tokens):
            return reward + soft_overlong_punishment(tokens, params.max_response_tokens, buffer_tokens), parts
        case other:
            assert_never(other)


def reward_of(
    reward: RewardParams, verdict: Verdict, tokens: int, limit: int, values: Mapping[str, FunctionValue], name: str = ""
) -> tuple[float, dict[str, float]]:
    """Returns the value of a reward for a decided response, and the named parts of a function or a sum of rewards.

    `outcome_reward` adds the cost of length.
    """
    match reward:
        case VerdictReward():
            return verdict_reward(reward, verdict), {}
        case CosineReward() as shape:
            ends = shape.r0_correct, shape.rL_correct, shape.r0_wrong, shape.rL_wrong, shape.exceeded
            return cosine_length_reward(verdict is Verdict.CORRECT, tokens, limit, *ends), {}
        case FunctionReward():
            value = values[name]
            return value.weighted(reward.weights), dict(value.parts or {})
        case EnvironmentReward():
            return values[name].value, {}
        case MajorityReward():
            return values[name].value, {VOTE: values[name].value}
        case SumReward():
            total, parts = 0.0, {}
            for part, weighted in reward.rewards.items():
                value, inner = reward_of(weighted.reward, verdict, tokens, limit, values, part)
                total += weighted.weight * value
                parts |= {part: value} | {f"{part}.{one}": worth for one, worth in inner.items()}
            return total, parts
        case other:
            assert_never(other)


def verdict_reward(reward: VerdictReward, verdict: Verdict) -> float:
    """Returns the reward of a decided verdict, without length; exhausted limits count as unparsed."""
    rewards = {Verdict.CORRECT: reward.correct, Verdict.WRONG: reward.wrong}
    return rewards.get(verdict, reward.unparsed)


def is_punished(rollout: Rollout, params: RlParams) -> bool:
    """Returns True when length lowered the response's reward below that of its verdict alone."""
    if not rollout.is_decided:
        return False
    if isinstance(params.reward, CosineReward):
        return rollout.reward == params.reward.exceeded
    if isinstance(params.overlong, NoOverlong):
        return False
    tokens = rewarded_tokens(rollout.sample, params.max_response_tokens)
    return soft_overlong_punishment(tokens, params.max_response_tokens, params.overlong.buffer_tokens) < 0


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


def abort_on_verifier_failures(drawn: Iterable[Group], most_fraction: float, verifier: RoundVerifierParams) -> None:
    """Raises UserError when verifier, environment or custom reward failed on more than `most_fraction` of responses."""
    rollouts = [rollout for group in drawn for rollout in group.rollouts]
    # Without this check, a broken verifier looks like hard problems: steps without signal for hours.
    failures = [rollout.failure for rollout in rollouts if not rollout.is_decided]
    if len(failures) <= most_fraction * len(rollouts):
        return
    remedy = "raise verifier.timeout_seconds or memory_mib, or look at the responses"
    if isinstance(verifier, ModelVerifier):
        remedy = "lower rl.verifier.reading.undecided_margin, or give the judge more teaching.steps or max_tokens"
    source = "the verifier"
    if faults := [rollout.fault for rollout in rollouts if rollout.fault]:
        source, remedy = "the custom reward", f"correct it (`retrace reward` tries it; the first: {faults[0]})"
    if faults := [one.sample.episode.fault for one in rollouts if one.sample.episode and one.sample.episode.fault]:
        source, remedy = "the environment or the verifier", f"correct the environment (its first fault: {faults[0]})"
    raise UserError(
        f"{source} could not decide {len(failures)} of {len(rollouts)} responses "
        f"({', '.join(sorted(set(failures))[:FAILURES_NAMED])}), more than verifier.abort_undecided_fraction "
        f"{most_fraction} allows: {remedy}; the last checkpoint is kept"
    )
