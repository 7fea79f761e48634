"""The first of a rollout's three steps: a response is sampled (then scored, then grouped)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.engines.samplers.protocol import Sampler, SamplingSettings
from stages.engines.samplers.samples import Sample, Trajectory
from stages.engines.samplers.sampling import sample_trajectories
from stages.foundations.seeds import derive_seed
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.records import Problem


@dataclass(frozen=True)
class ProblemDraw:
    """A problem that a group is to be drawn for."""

    problem: Problem
    number: int
    """How often the round had drawn the problem before: a second draw samples other responses."""


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


def sample_draws(
    draws: Sequence[ProblemDraw], sampler: Sampler, params: RlParams, group_size: int, *seed_parts: int | str
) -> list[list[Sample]]:
    """`group_size` samples of each draw, by draw."""
    trajectories = [one for draw in draws for one in trajectories_of(draw, group_size, *seed_parts)]
    samples = sample_trajectories(sampler, trajectories, sampling_settings(params))
    return [samples[start : start + group_size] for start in range(0, len(samples), group_size)]
