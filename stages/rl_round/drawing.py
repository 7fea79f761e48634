"""Draws the problems of a round, samples and scores their groups, and fills the batch of a step with groups.

1. A round draws from a slice of the problem table, in an endless random order (problem_order.py).
2. `prompt_selection` may keep only problems of medium difficulty. The starting policy answers every problem a few
   times before the first step, sampled as in training. The counts are saved in the scratch folder piece by piece, so a
   killed run samples at most one piece again.
3. Dynamic sampling leaves out groups without signal, but keeps finished groups that have one.
4. Responses are sampled, then scored, then grouped. Each rank samples and scores its share of a batch's groups with a
   separate engine and verifier.

Source of 3: DAPO (arXiv 2503.14476), section 3.2. Deviations: 1. Groups beyond the batch are not discarded. They wait
for the next step, with their policy version. 2. The recent share of groups with signal decides the size of a draw. 3.
After `max_draws` the batch may be smaller; this is no error.
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
from stages.engines.custom_functions import FunctionValue
from stages.engines.pieces import are_whole, remove_piece, seal
from stages.engines.policies.tokenizers import decode_response
from stages.engines.samplers.build import DrawingShare
from stages.engines.samplers.episodes import environment_verdict, judged_text
from stages.engines.samplers.protocol import Sample, Sampler, SamplingSettings, Trajectory, sample_trajectories
from stages.engines.verifier.verifier import Judgement
from stages.foundations.errors import UserError
from stages.foundations.files import write_json
from stages.foundations.seeds import derive_seed
from stages.observe.progress import progress
from stages.rl_round.methods import (
    CosineReward,
    DynamicSampling,
    EnvironmentReward,
    FunctionReward,
    MajorityReward,
    ModelVerifier,
    NoDynamicSampling,
    NoOverlong,
    PassRateSelection,
    RewardParams,
    RoundVerifierParams,
    SoftOverlong,
    SumReward,
    VerdictReward,
    takes_values,
)
from stages.rl_round.params import RlParams
from stages.rl_round.problem_order import ProblemCursor, ProblemDraw
from stages.rl_round.records import Batch, Group, Problem, Rollout, newest_version, pack_groups, unpack_groups
from stages.rl_round.round import Round
from stages.rl_round.values import VOTE, CustomRewards, votes

FAILURES_NAMED = 5
SMALLEST_SIGNAL_FRACTION = 0.25
"""A draw has at most 4 times the number of missing groups, however few groups had signal."""


PROBLEMS_AT_ONCE = 128
"""Problems of a piece; at most this many are sampled again after a kill."""
PIECE = "pass_counts-{}.json"
"""File in the scratch folder with the counts of one piece; its first problem's number is in the name."""
UPPER_ENDS = {"to_25": 0.25, "to_50": 0.5, "to_75": 0.75, "below_100": 1.0}


@dataclass(frozen=True)
class PassCount:
    """Counts of how one problem's responses were judged."""

    correct: int
    decided: int

    @property
    def rate(self) -> float | None:
        """Returns the share of correct responses among the decided ones; None when none was decided."""
        return self.correct / self.decided if self.decided else None


def count_passes(
    problems: Sequence[Problem],
    samples: int,
    params: RlParams,
    drawing: GroupDrawing,
    scratch: Path,
    *seed_path: int | str,
) -> list[PassCount]:
    """Counts passes in `samples` responses per problem from the sampler's current weights, or reads them in `scratch`.

    Collective; rank 0 has the counts.
    """
    ranks = drawing.share.ranks
    counts: list[PassCount] = []
    starts = range(0, len(problems), PROBLEMS_AT_ONCE)
    for start in progress(starts, label=f"{seed_path[-1]}: pass rates", unit="pieces"):
        place = scratch / PIECE.format(start)
        # Only rank 0 looks at the disk: ranks that decide separately could disagree and then wait forever.
        if not ranks.broadcast(ranks.rank == 0 and are_whole(place)):
            piece = [ProblemDraw(problem, 0) for problem in problems[start : start + PROBLEMS_AT_ONCE]]
            groups = drawing.draw(piece, params.without_distributions(), *seed_path, "pass_rates", group_size=samples)
            if ranks.rank == 0:
                write_json(place, [[count.correct, count.decided] for count in map(_count, groups)])
                seal(place)
        if ranks.rank == 0:
            counts += [PassCount(*pair) for pair in json.loads(place.read_bytes())]
    return counts


def _count(group: Group) -> PassCount:
    # A failure of the verifier says nothing about how hard a problem is.
    decided = [rollout for rollout in group.rollouts if rollout.is_decided]
    return PassCount(sum(rollout.verdict is Verdict.CORRECT for rollout in decided), len(decided))


def select_problems(this_round: Round, drawing: GroupDrawing) -> tuple[Round, dict[str, float]]:
    """Returns the round with the problems that `prompt_selection` keeps, and its metrics; collective.

    Every rank selects, so that all of them stop when too few problems are left.
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
    """Removes the files of `count_passes`, once the outputs are written."""
    for file in scratch.glob(PIECE.format("*")):
        remove_piece(file)


def select_by_pass_rate(
    problems: Sequence[Problem], counts: Sequence[PassCount], selection: PassRateSelection, wanted: int
) -> list[Problem]:
    """Returns the problems with a pass rate in [min, max], in order; UserError when fewer than `wanted` remain."""
    kept = [
        problem
        for problem, count in zip(problems, counts, strict=True)
        # A problem without decided responses has no rate: nothing is known about it.
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
    """Returns the share of problems kept, the mean pass rate, and the histogram of pass rates in per cent."""
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
    # 0 and 1 have separate bars: problems without a learning signal must not hide among the others.
    lower = 0.0
    for name, upper in UPPER_ENDS.items():
        inside = sum(lower < rate <= upper and rate < 1 for rate in rates)
        metrics[f"selection/pass_rate_{name}_fraction"] = inside / total
        lower = upper
    return metrics


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
    """Custom functions of `rl.reward`, if it has any."""

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


def rewarded_tokens(sample: Sample, limit: int) -> int:
    """Returns the length for rewards: the policy's tokens. A response that the limit cut off counts as at the limit.

    The limit is for all tokens, also for those of an environment that found no room.
    """
    return limit if sample.episode and sample.is_truncated else sample.policy_tokens


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


def make_group(draw: ProblemDraw, rollouts: Sequence[Rollout]) -> Group:
    """Returns the group of a draw, from its rollouts in the order of their sample numbers."""
    return Group(draw.problem.problem_id, draw.problem.prompt, tuple(rollouts), draw.number)


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
