"""The third of a rollout's three steps: the rollouts of one draw make a group. And all three after each other."""

from __future__ import annotations

from collections.abc import Sequence

from stages.engines.samplers.protocol import Sampler
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.records import Group, Rollout
from stages.rl_round.rollouts.round_verifier import RoundVerifier
from stages.rl_round.rollouts.sampling import ProblemDraw, sample_draws
from stages.rl_round.rollouts.scoring import score_samples


def make_group(draw: ProblemDraw, rollouts: Sequence[Rollout]) -> Group:
    """The group of a draw, from its rollouts in the order of their sample numbers."""
    return Group(draw.problem.problem_id, draw.problem.prompt, tuple(rollouts), draw.number)


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
