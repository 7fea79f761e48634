"""How groups are drawn: responses are sampled, then scored, then grouped; all ranks together draw a batch's groups.

Each rank samples and scores its share with an engine and a verifier of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.length_rewards import cosine_length_reward, soft_overlong_punishment
from stages.engines.policies.tokenizers import decode_response
from stages.engines.samplers.build import DrawingShare
from stages.engines.samplers.protocol import Sample, Sampler, SamplingSettings, Trajectory, sample_trajectories
from stages.engines.verifier.verifier import Judgement
from stages.foundations.errors import UserError
from stages.foundations.seeds import derive_seed
from stages.rl_round.methods import CosineReward, ModelVerifier, RoundVerifierParams, SoftOverlong, VerdictReward
from stages.rl_round.params import RlParams
from stages.rl_round.rollouts.records import Group, Problem, Rollout, to_columns, to_groups


@dataclass(frozen=True)
class GroupDrawing:
    """What a rank draws and scores its share of the groups with."""

    sampler: Sampler
    verifier: RoundVerifier
    tokenizer: object
    share: DrawingShare

    def draw(
        self, draws: Sequence[ProblemDraw], params: RlParams, *seed_parts: int | str, group_size: int | None = None
    ) -> list[Group]:
        """`draw_groups`, by all ranks together: the groups on rank 0, in order, and nothing elsewhere; collective."""
        own, size, groups = self.share.of(draws), group_size or params.group_size, list[Group]()
        if self.share.is_told:
            judges = self.sampler, self.verifier, self.tokenizer
            groups = draw_groups(own, *judges, params, *seed_parts, group_size=size)
        else:  # the engine's first rank judges what all of its ranks draw
            sample_draws(own, self.sampler, params, size, *seed_parts)
        if self.share.ranks.world_size == 1:
            return groups
        columns = self.share.assemble([to_columns([group]) for group in groups], len(draws))
        return [group for one in columns for group in to_groups(one)]


def draw_groups(
    draws: Sequence[ProblemDraw],
    sampler: Sampler,
    verifier: RoundVerifier,
    tokenizer,
    params: RlParams,
    *seed_parts: int | str,
    group_size: int | None = None,
) -> list[Group]:
    """Samples, scores and groups, one step after the other: one group for each draw.

    `group_size` is that of the params unless it is given.
    """
    size = group_size or params.group_size
    samples = sample_draws(draws, sampler, params, size, *seed_parts)
    answers = [draw.problem.answer for draw in draws for _ in range(size)]
    flat = [one for of_draw in samples for one in of_draw]
    rollouts = score_samples(answers, flat, verifier, tokenizer, params)
    return [make_group(draw, rollouts[place * size : (place + 1) * size]) for place, draw in enumerate(draws)]


@dataclass(frozen=True)
class ProblemDraw:
    """A problem that a group is to be drawn for."""

    problem: Problem
    number: int
    """How often the round had drawn the problem before: a second draw samples other responses."""


def sample_draws(
    draws: Sequence[ProblemDraw], sampler: Sampler, params: RlParams, group_size: int, *seed_parts: int | str
) -> list[list[Sample]]:
    """`group_size` samples of each draw, by draw."""
    trajectories = [one for draw in draws for one in trajectories_of(draw, group_size, *seed_parts)]
    samples = sample_trajectories(sampler, trajectories, sampling_settings(params))
    return [samples[start : start + group_size] for start in range(0, len(samples), group_size)]


def trajectories_of(draw: ProblemDraw, group_size: int, *seed_parts: int | str) -> list[Trajectory]:
    """The trajectories of a draw's group. `seed_parts` name the run and the round.

    Nothing else decides their random numbers: neither the step, nor the batch, nor the process that samples them.
    """
    problem = draw.problem
    # Without the draw's number a problem that comes again would get the very responses that it got before.
    return [
        Trajectory(problem.prompt, derive_seed(*seed_parts, problem.problem_id, number, draw.number))
        for number in range(group_size)
    ]


def sampling_settings(params: RlParams) -> SamplingSettings:
    """How the round draws its responses."""
    return SamplingSettings(
        params.temperature,
        params.top_p,
        params.top_k,
        params.max_response_tokens,
        params.log_threshold,
        params.keeps_distributions,
    )


def score_samples(
    answers: Sequence[str], samples: Sequence[Sample], verifier: RoundVerifier, tokenizer, params: RlParams
) -> list[Rollout]:
    """One rollout for each sample, in order; `answers` are the gold answers of their problems."""
    responses = [decode_response(tokenizer, sample.token_ids) for sample in samples]
    judgements = verifier.judge(
        list(zip(answers, responses, strict=True)),
        truncated=[sample.is_truncated for sample in samples],
        require_marker=True,
    )
    return [
        make_rollout(sample, response, judgement.verdict, params)
        for sample, response, judgement in zip(samples, responses, judgements, strict=True)
    ]


class RoundVerifier(Protocol):
    """What a round asks: `Verifier`, or `CheckedJudge` where `rl.verifier` is a model."""

    def judge(
        self, pairs: Sequence[tuple[str, str]], truncated: Sequence[bool] | None = None, require_marker: bool = False
    ) -> list[Judgement]:
        """One judgement for each (gold answer, response), in order."""


def make_rollout(sample: Sample, response: str, verdict: Verdict, params: RlParams) -> Rollout:
    """A rollout with the reward of its verdict and length."""
    reward = 0.0 if verdict.is_failure else outcome_reward(verdict, len(sample.token_ids), params)
    return Rollout(sample, response, verdict, reward)


def outcome_reward(verdict: Verdict, tokens: int, params: RlParams) -> float:
    """Reward at the end of a decided response of `tokens` tokens, overlong punishment included."""
    limit = params.max_response_tokens
    match params.reward:
        case VerdictReward():
            reward = verdict_reward(params.reward, verdict)
        case CosineReward() as shape:
            reward = cosine_length_reward(
                verdict is Verdict.CORRECT,
                tokens,
                limit,
                shape.r0_correct,
                shape.rL_correct,
                shape.r0_wrong,
                shape.rL_wrong,
                shape.exceeded,
            )
    if isinstance(params.overlong, SoftOverlong):
        reward += soft_overlong_punishment(tokens, limit, params.overlong.buffer_tokens)
    return reward


def verdict_reward(reward: VerdictReward, verdict: Verdict) -> float:
    """Reward of a decided verdict, whatever the length; a response that exhausted its limits is as one unparsed."""
    rewards = {Verdict.CORRECT: reward.correct, Verdict.WRONG: reward.wrong}
    return rewards.get(verdict, reward.unparsed)


def make_group(draw: ProblemDraw, rollouts: Sequence[Rollout]) -> Group:
    """The group of a draw, from its rollouts in the order of their sample numbers."""
    return Group(draw.problem.problem_id, draw.problem.prompt, tuple(rollouts), draw.number)


def stop_when_undecided(drawn: Iterable[Group], most_fraction: float, verifier: RoundVerifierParams) -> None:
    """UserError when the verifier had no opinion on more than `most_fraction` of the responses."""
    rollouts = [rollout for group in drawn for rollout in group.rollouts]
    failures = [rollout.verdict for rollout in rollouts if not rollout.is_decided]
    if len(failures) <= most_fraction * len(rollouts):
        return
    remedy = "raise verifier.timeout_seconds or memory_mib, or look at the responses"
    if isinstance(verifier, ModelVerifier):
        remedy = "lower rl.verifier.reading.undecided_margin, or give the judge more teaching.steps or max_tokens"
    raise UserError(
        f"the verifier could not decide {len(failures)} of {len(rollouts)} responses "
        f"({', '.join(sorted(set(failures)))}), more than verifier.abort_undecided_fraction "
        f"{most_fraction} allows: {remedy}; the last checkpoint is kept"
    )
