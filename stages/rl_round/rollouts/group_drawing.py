"""Groups drawn by all ranks together: each samples and scores its share with an engine and a verifier of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stages.engines.samplers.protocol import Sampler
from stages.engines.samplers.shares import DrawingShare
from stages.rl_round.params.rl import RlParams
from stages.rl_round.rollouts.columns import to_columns, to_groups
from stages.rl_round.rollouts.grouping import draw_groups
from stages.rl_round.rollouts.records import Group
from stages.rl_round.rollouts.round_verifier import RoundVerifier
from stages.rl_round.rollouts.sampling import ProblemDraw, sample_draws


@dataclass(frozen=True)
class GroupDrawing:
    """What a rank draws and scores its share of the groups with."""

    sampler: Sampler
    verifier: RoundVerifier
    tokenizer: object
    share: DrawingShare

    def draw(
        self,
        draws: Sequence[ProblemDraw],
        params: RlParams,
        *seed_parts: int | str,
        group_size: int | None = None,
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
