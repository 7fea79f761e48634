"""Which problems a round draws, how their groups are drawn, and which groups make the batch of a step.

1. A round draws from a slice of the problem table, in an endless random order.
2. `prompt_selection` may keep only problems of middling difficulty. The starting policy answers every problem a few
   times before the first step, drawn as in training. The counts are kept in the scratch folder piece by piece, so a run
   that was killed samples nothing twice.
3. Dynamic sampling leaves out groups without signal, and throws no finished work away.
4. Responses are sampled, then scored, then grouped. All ranks together draw a batch's groups, each its share with an
   engine and a verifier of its own.

Source of 3: DAPO (arXiv 2503.14476), section 3.2. Deviations: 1. groups beyond the batch wait for the next step with
their version stamp instead of being discarded; 2. a draw is sized by the share of groups that had signal lately;
3. after `max_draws` the batch may be smaller, instead of an error.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, assert_never

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.length_rewards import cosine_length_reward, soft_overlong_punishment
from stages.engines.custom_functions import CustomFunction, FunctionValue
from stages.engines.pieces import are_whole, remove_piece, seal
from stages.engines.policies.tokenizers import decode_response
from stages.engines.samplers.build import DrawingShare
from stages.engines.samplers.protocol import Sample, Sampler, SamplingSettings, Trajectory, sample_trajectories
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Judgement
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.foundations.seeds import derive_seed, endless_order, permutation
from stages.observe.progress import progress
from stages.rl_round.methods import (
    CosineReward,
    DynamicSampling,
    FunctionReward,
    ModelVerifier,
    NoDynamicSampling,
    NoOverlong,
    PassRateSelection,
    ProblemSlice,
    RewardParams,
    RoundVerifierParams,
    SoftOverlong,
    SumReward,
    VerdictReward,
    function_rewards,
)
from stages.rl_round.params import RlParams
from stages.rl_round.records import Batch, Group, Problem, Rollout, newest_version, pack_groups, unpack_groups
from stages.rl_round.round import Round

FAILURES_NAMED = 5
SMALLEST_SIGNAL_FRACTION = 0.25
"""A draw is at most 4 times what is missing, however few groups had signal."""


def slice_problems(problems: Sequence[Problem], part: ProblemSlice, seed: int) -> list[Problem]:
    """Part `index` of `count` of the problems in the order of the run's seed; parts are disjoint and cover all."""
    # By the seed of the run alone, and not of the round: rounds with other slices must share no problem.
    order = permutation(len(problems), seed, "problem_slice")
    return [problems[index] for index in order[part.index :: part.count]]


def problems_in_order(problems: Sequence[Problem], first: int, count: int, *seed_path: int | str) -> list[ProblemDraw]:
    """Draws `first` to `first + count` of the round: all problems in random order, then all again in another."""
    order = endless_order(first, first + count, len(problems), *seed_path, "problems")
    return [ProblemDraw(problems[index], (first + place) // len(problems)) for place, index in enumerate(order)]


PROBLEMS_AT_ONCE = 128
"""Problems of a piece; at most this many are sampled again after a kill."""
PIECE = "pass_counts-{}.json"
"""File in the scratch folder with the counts of the problems from a number on."""
UPPER_ENDS = {"to_25": 0.25, "to_50": 0.5, "to_75": 0.75, "below_100": 1.0}


@dataclass(frozen=True)
class PassCount:
    """How one problem's responses were judged."""

    correct: int
    decided: int

    @property
    def rate(self) -> float | None:
        """Share of correct responses among the decided; None when none was decided."""
        return self.correct / self.decided if self.decided else None


def count_passes(
    problems: Sequence[Problem],
    samples: int,
    params: RlParams,
    drawing: GroupDrawing,
    scratch: Path,
    *seed_path: int | str,
) -> list[PassCount]:
    """Each problem's count over `samples` responses of the sampler's present weights, or what `scratch` remembers.

    Collective; rank 0 has the counts.
    """
    ranks = drawing.share.ranks
    counts: list[PassCount] = []
    starts = range(0, len(problems), PROBLEMS_AT_ONCE)
    # Verdicts are counted and nothing else: whole distributions would fill the memory for nothing.
    study = params.study and params.study.model_copy(update={"rollout_distributions": None})
    params = params.model_copy(update={"study": study})
    for start in progress(starts, label=f"{seed_path[-1]}: pass rates", unit="pieces"):
        place = scratch / PIECE.format(start)
        # Rank 0 alone looks at the disk. Ranks that each decided for themselves could part ways and wait for ever.
        if not ranks.broadcast(ranks.rank == 0 and are_whole(place)):
            piece = [ProblemDraw(problem, 0) for problem in problems[start : start + PROBLEMS_AT_ONCE]]
            groups = drawing.draw(piece, params, *seed_path, "pass_rates", group_size=samples)
            if ranks.rank == 0:
                write_json(place, [[count.correct, count.decided] for count in map(_count, groups)])
                seal(place)
        if ranks.rank == 0:
            counts += [PassCount(*pair) for pair in json.loads(place.read_bytes())]
    return counts


def _count(group: Group) -> PassCount:
    # A verifier that failed says nothing about how hard a problem is.
    decided = [rollout for rollout in group.rollouts if rollout.is_decided]
    return PassCount(sum(rollout.verdict is Verdict.CORRECT for rollout in decided), len(decided))


def select_problems(this_round: Round, drawing: GroupDrawing) -> tuple[Round, dict[str, float]]:
    """The round with the problems that `prompt_selection` keeps, and metrics of it; collective.

    Every rank selects, so that all of them stop where too few problems are left.
    """
    selection, problems = this_round.settings.prompt_selection, this_round.problems
    if not isinstance(selection, PassRateSelection):
        return this_round, {}
    seed_path = this_round.seed, this_round.name
    with this_round.run.phase("select"):
        counts = count_passes(problems, selection.samples, this_round.params, drawing, this_round.scratch, *seed_path)
    counts = drawing.share.ranks.broadcast(counts)
    kept = select_by_pass_rate(problems, counts, selection, this_round.params.problems_per_step)
    metrics = selection_metrics(counts, len(kept))
    this_round.run.log(metrics, step=0)
    return replace(this_round, problems=kept), metrics


def delete_pass_counts(scratch: Path) -> None:
    """Removes what `count_passes` keeps: the outputs are written."""
    for file in scratch.glob(PIECE.format("*")):
        remove_piece(file)


def select_by_pass_rate(
    problems: Sequence[Problem], counts: Sequence[PassCount], selection: PassRateSelection, wanted: int
) -> list[Problem]:
    """The problems with a pass rate in [min, max], in their order; UserError when fewer than `wanted` remain."""
    kept = [
        problem
        for problem, count in zip(problems, counts, strict=True)
        # A problem of which every response was undecided has no rate: nothing is known about it.
        if count.rate is not None and selection.min <= count.rate <= selection.max
    ]
    if len(kept) < wanted:
        shares = ", ".join(
            f"{name.removeprefix('selection/pass_rate_')} {value:.2f}"
            for name, value in selection_metrics(counts, len(kept)).items()
            if "/pass_rate_" in name
        )
        raise UserError(
            f"prompt_selection keeps {len(kept)} of {len(problems)} problems (pass rate in [{selection.min}, "
            f"{selection.max}]; {shares}), fewer than rl.problems_per_step {wanted}: widen min and max, use fewer "
            "problem slices, or prompt_selection.kind all"
        )
    return kept


def selection_metrics(counts: Sequence[PassCount], kept: int) -> dict[str, float]:
    """Share of problems kept, mean pass rate, and the histogram of pass rates in per cent."""
    rates = [count.rate for count in counts if count.rate is not None]
    total = max(1, len(counts))
    metrics = {
        "selection/problems": len(counts),
        "selection/kept": kept,
        "selection/kept_fraction": kept / total,
        "selection/undecided_fraction": (len(counts) - len(rates)) / total,
        "selection/pass_rate_mean": sum(rates) / max(1, len(rates)),
        "selection/pass_rate_0_fraction": sum(rate == 0 for rate in rates) / total,
        "selection/pass_rate_100_fraction": sum(rate == 1 for rate in rates) / total,
    }
    # 0 and 1 have bars of their own: problems that can teach nothing must not hide among the others.
    lower = 0.0
    for name, upper in UPPER_ENDS.items():
        inside = sum(lower < rate <= upper and rate < 1 for rate in rates)
        metrics[f"selection/pass_rate_{name}_fraction"] = inside / total
        lower = upper
    return metrics


@dataclass
class DrawState:
    """What drawing carries from step to step."""

    cursor: int = 0
    """Problems drawn so far in this round."""
    # Hopeful at first: the first draw asks for a batch and no more, and the second knows better.
    signal_fraction: float = 1.0
    """Share of the last step's groups that had signal."""
    carried: list[Group] = field(default_factory=list)
    """Surplus groups with signal, oldest first."""


def draw_batch(
    sampling: NoDynamicSampling | DynamicSampling,
    wanted: int,
    policy_version: int,
    state: DrawState,
    draw: Callable[[int, int], list[Group]],
) -> Batch:
    """Fills a batch of `wanted` groups; `draw(first, count)` gives those of the next problems. Moves `state` on."""
    if isinstance(sampling, NoDynamicSampling):
        groups = draw(state.cursor, wanted)
        state.cursor += wanted
        signal, newest = signal_fraction(groups, 1.0), newest_version(groups)
        return Batch(groups, groups, [], draws=1, too_stale=0, carried=0, signal_fraction=signal, newest_version=newest)

    def is_stale(group: Group) -> bool:
        return policy_version - group.oldest_version > sampling.max_staleness

    usable = [group for group in state.carried if not is_stale(group)]
    stale = [group for group in state.carried if is_stale(group)]
    drawn: list[Group] = []
    draws = 0
    while len(usable) < wanted and draws < sampling.max_draws:
        # What this step has seen sizes its next draw; its first draw goes by the step before.
        fraction = signal_fraction(drawn, state.signal_fraction)
        size = draw_size(wanted - len(usable), fraction)
        groups = draw(state.cursor, size)
        state.cursor += size
        draws += 1
        drawn += groups
        usable += [group for group in groups if group.has_signal]
    state.signal_fraction = signal_fraction(drawn, state.signal_fraction)
    # Surplus stands before what was drawn now, so the oldest is used first and as little as possible gets too stale.
    state.carried = usable[wanted:]
    # In this order they stand in the rollouts table.
    left_out = stale + [group for group in drawn if not group.has_signal]
    return Batch(
        usable[:wanted],
        drawn,
        left_out,
        draws=draws,
        too_stale=len(stale),
        carried=len(state.carried),
        signal_fraction=state.signal_fraction,
        # Fresh is what this step's own weights have drawn: nothing of a batch that surplus alone has filled.
        newest_version=newest_version(drawn),
    )


def draw_size(missing: int, signal_fraction: float) -> int:
    """Problems to draw so that about `missing` groups have signal."""
    return math.ceil(missing / max(SMALLEST_SIGNAL_FRACTION, signal_fraction))


def signal_fraction(groups: Sequence[Group], of_none: float) -> float:
    """Share of the groups that teach something; `of_none` where there is no group."""
    return sum(group.has_signal for group in groups) / len(groups) if groups else of_none


@dataclass(frozen=True)
class GroupDrawing:
    """What a rank draws and scores its share of the groups with."""

    sampler: Sampler
    verifier: RoundVerifier
    tokenizer: object
    share: DrawingShare
    functions: CustomRewards | None = None
    """Of `rl.reward`, where it has custom functions."""

    def draw(
        self, draws: Sequence[ProblemDraw], params: RlParams, *seed_path: int | str, group_size: int | None = None
    ) -> list[Group]:
        """`draw_groups`, by all ranks together: the groups on rank 0, in order, and nothing elsewhere; collective."""
        part, size, groups = self.share.of(draws), group_size or params.group_size, list[Group]()
        if self.share.is_engine_leader:
            judges = self.sampler, self.verifier, self.tokenizer
            groups = draw_groups(part, *judges, params, *seed_path, group_size=size, functions=self.functions)
        # All ranks of an engine sample together, and its first one judges what they have drawn.
        else:
            sample_draws(part, self.sampler, params, size, *seed_path)
        if self.share.ranks.world_size == 1:
            return groups
        # Packed before they travel: pickled lists of numbers are twice as large.
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
    """Samples, scores and groups, one step after the other: one group for each draw.

    `group_size` is that of the params unless it is given.
    """
    size = group_size or params.group_size
    # All draws in one call: the sampler keeps its places full until the last response of the last draw.
    samples = sample_draws(draws, sampler, params, size, *seed_path)
    answers = [draw.problem.answer for draw in draws for _ in range(size)]
    flat = [one for of_draw in samples for one in of_draw]
    problems = [draw.problem for draw in draws for _ in range(size)] if functions else ()
    rollouts = score_samples(answers, flat, verifier, tokenizer, params, functions, problems)
    return [make_group(draw, rollouts[place * size : (place + 1) * size]) for place, draw in enumerate(draws)]


@dataclass(frozen=True)
class ProblemDraw:
    """A problem that a group is to be drawn for."""

    problem: Problem
    number: int
    """How often the round had drawn the problem before: a second draw samples other responses."""


def sample_draws(
    draws: Sequence[ProblemDraw], sampler: Sampler, params: RlParams, group_size: int, *seed_path: int | str
) -> list[list[Sample]]:
    """`group_size` samples of each draw, by draw."""
    trajectories = [one for draw in draws for one in trajectories_of(draw, group_size, *seed_path)]
    samples = sample_trajectories(sampler, trajectories, sampling_settings(params))
    return [samples[start : start + group_size] for start in range(0, len(samples), group_size)]


def trajectories_of(draw: ProblemDraw, group_size: int, *seed_path: int | str) -> list[Trajectory]:
    """The trajectories of a draw's group. `seed_path` name the run and the round.

    Nothing else decides their random numbers: neither the step, nor the batch, nor the process that samples them.
    """
    problem = draw.problem
    # Without the draw's number a problem that comes again would get the very responses that it got before.
    return [
        Trajectory(problem.prompt, derive_seed(*seed_path, problem.problem_id, number, draw.number))
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
    )


def score_samples(
    answers: Sequence[str],
    samples: Sequence[Sample],
    verifier: RoundVerifier,
    tokenizer,
    params: RlParams,
    functions: CustomRewards | None = None,
    problems: Sequence[Problem] = (),
) -> list[Rollout]:
    """One rollout for each sample, in order; `answers` are the gold answers of their problems.

    Custom functions see the rows of `problems`, which only they need.
    """
    responses = [decode_response(tokenizer, sample.token_ids) for sample in samples]
    judgements = verifier.judge(
        list(zip(answers, responses, strict=True)),
        truncated=[sample.is_truncated for sample in samples],
        # A number somewhere in the text is no answer: a reward wants a box, a tag or a marker before it.
        require_marker=True,
    )
    verdicts = [judgement.verdict for judgement in judgements]
    values = functions.ask(problems, samples, responses, verdicts) if functions else [{}] * len(samples)
    return [
        make_rollout(sample, response, verdict, params, of_functions)
        for sample, response, verdict, of_functions in zip(samples, responses, verdicts, values, strict=True)
    ]


class RoundVerifier(Protocol):
    """What a round asks: `Verifier`, or `CheckedJudge` where `rl.verifier` is a model."""

    def judge(
        self, pairs: Sequence[tuple[str, str]], truncated: Sequence[bool] | None = None, require_marker: bool = False
    ) -> list[Judgement]:
        """One judgement for each (gold answer, response), in order."""


def make_rollout(
    sample: Sample,
    response: str,
    verdict: Verdict,
    params: RlParams,
    values: Mapping[str, FunctionValue] = MappingProxyType({}),
) -> Rollout:
    """A rollout with the reward of its verdict and length; `values` has what custom functions say, by reward."""
    # 0 is no reward here but a filler: undecided rollouts leave the batch before any baseline is taken.
    if verdict.is_failure:
        return Rollout(sample, response, verdict, 0.0)
    if fault := next((value.fault for value in values.values() if value.fault), ""):
        return Rollout(sample, response, verdict, 0.0, fault=fault, is_custom=True)
    reward, parts = outcome_reward(verdict, len(sample.token_ids), params, values)
    return Rollout(sample, response, verdict, reward, parts, is_custom=bool(values))


def recorded_rollout(
    sample: Sample, response: str, verdict: Verdict, params: RlParams, custom: Mapping[str, Any]
) -> Rollout:
    """The rollout whose `custom` this is, with every bit of its reward; no function is asked again.

    UserError where a function has rewarded it and `custom` is empty, as in schedules of earlier versions.
    """
    if custom:
        return Rollout(sample, response, verdict, **custom, is_custom=True)
    if function_rewards(params.reward) and not verdict.is_failure:
        raise UserError("the recorded round has no rewards of its custom function: record it again with this version")
    return make_rollout(sample, response, verdict, params)


def outcome_reward(
    verdict: Verdict, tokens: int, params: RlParams, values: Mapping[str, FunctionValue]
) -> tuple[float, dict[str, float]]:
    """Reward at the end of a decided response of `tokens` tokens, overlong punishment included, and its parts."""
    # Two fields decide: `rl.reward` what the response is worth, then `rl.overlong` what the length costs.
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
    """What a reward gives a decided response, and the named parts of a function or of a sum of rewards.

    `outcome_reward` adds what the length costs. Each kind has a case in `_is_punished` too (loop/training_step.py).
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
        case SumReward():
            total, parts = 0.0, {}
            for part, weighted in reward.rewards.items():
                value, inner = reward_of(weighted.reward, verdict, tokens, limit, values, part)
                total += weighted.weight * value
                parts |= {part: value} | {f"{part}.{one}": worth for one, worth in inner.items()}
            return total, parts
        case other:
            assert_never(other)


class CustomRewards:
    """The functions that a round's reward names, each in workers of its own; `close` ends them."""

    def __init__(self, reward: RewardParams, limits: VerifierParams) -> None:
        self._functions = {name: CustomFunction(params, limits) for name, params in function_rewards(reward).items()}

    def ask(
        self,
        problems: Sequence[Problem],
        samples: Sequence[Sample],
        responses: Sequence[str],
        verdicts: Sequence[Verdict],
    ) -> list[dict[str, FunctionValue]]:
        """For each response what each function says of it, by the name of the reward."""
        rows = [
            {
                **problem.row,
                "problem_id": problem.problem_id,
                "answer": problem.answer,
                "response": response,
                "response_tokens": len(sample.token_ids),
                "is_truncated": sample.is_truncated,
                "verdict": verdict.value,
            }
            for problem, sample, response, verdict in zip(problems, samples, responses, verdicts, strict=True)
        ]
        columns = {name: function.ask(rows) for name, function in self._functions.items()}
        return [{name: column[place] for name, column in columns.items()} for place in range(len(rows))]

    def close(self) -> None:
        for function in self._functions.values():
            function.close()


def verdict_reward(reward: VerdictReward, verdict: Verdict) -> float:
    """Reward of a decided verdict, whatever the length; a response that exhausted its limits is as one unparsed."""
    rewards = {Verdict.CORRECT: reward.correct, Verdict.WRONG: reward.wrong}
    return rewards.get(verdict, reward.unparsed)


def make_group(draw: ProblemDraw, rollouts: Sequence[Rollout]) -> Group:
    """The group of a draw, from its rollouts in the order of their sample numbers."""
    return Group(draw.problem.problem_id, draw.problem.prompt, tuple(rollouts), draw.number)


def abort_on_verifier_failures(drawn: Iterable[Group], most_fraction: float, verifier: RoundVerifierParams) -> None:
    """UserError when the verifier had no opinion on more than `most_fraction` of the responses."""
    rollouts = [rollout for group in drawn for rollout in group.rollouts]
    # Without this stop a broken verifier looks like hard problems: steps without signal, hour after hour.
    failures = [rollout.fault or rollout.verdict for rollout in rollouts if not rollout.is_decided]
    if len(failures) <= most_fraction * len(rollouts):
        return
    remedy = "raise verifier.timeout_seconds or memory_mib, or look at the responses"
    if isinstance(verifier, ModelVerifier):
        remedy = "lower rl.verifier.reading.undecided_margin, or give the judge more teaching.steps or max_tokens"
    source = "the verifier"
    if faults := [rollout.fault for rollout in rollouts if rollout.fault]:
        source, remedy = "the custom reward", f"correct it (`retrace reward` tries it; the first: {faults[0]})"
    raise UserError(
        f"{source} could not decide {len(failures)} of {len(rollouts)} responses "
        f"({', '.join(sorted(set(failures))[:FAILURES_NAMED])}), more than verifier.abort_undecided_fraction "
        f"{most_fraction} allows: {remedy}; the last checkpoint is kept"
    )
