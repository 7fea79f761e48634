"""What each rank is told of a batch: the tokens of the responses that it trains, and of the others their lengths.

Baselines and divisors are over all responses, and need their rewards and lengths; tokens and log-probs, which are
nearly all of a batch, go to the one rank that trains on them. Who that is follows from the lengths.
"""

from __future__ import annotations

from collections.abc import Sequence

from stages.engines.trainers.protocol import Trainer
from stages.rl_round.params.rl import RlParams
from stages.rl_round.params.update import OptimalTokenBaseline
from stages.rl_round.rollouts.columns import GroupColumns, to_columns, to_groups
from stages.rl_round.rollouts.records import Batch, Group
from stages.rl_round.update.training_samples import groups_by_rank


def own_groups(
    batch: Batch | None, params: RlParams, micro_batch_tokens: int, trainer: Trainer, *seed_parts: int | str
) -> tuple[list[Group], int | None]:
    """The batch's groups as this rank needs them, and the batch's newest version; rank 0 brings the batch; collective.

    Rank 0 has all of every group. `seed_parts` are those of `update_policy`.
    """
    if trainer.world_size == 1:
        return batch.groups, batch.newest_version
    told: list[tuple[GroupColumns, int | None]] | None = None
    if trainer.rank == 0:
        told = [
            (to_columns(batch.groups, is_held, with_texts=False), batch.newest_version)
            for is_held in _held_by_rank(batch.groups, params, micro_batch_tokens, trainer, *seed_parts)
        ]
    columns, newest_version = trainer.scatter(told)
    return (to_groups(columns) if batch is None else batch.groups), newest_version


def _held_by_rank(
    groups: Sequence[Group],
    params: RlParams,
    micro_batch_tokens: int,
    trainer: Trainer,
    *seed_parts: int | str,
) -> list[list[bool]]:
    """For each rank, which rollouts it needs."""
    rollouts = [(group, rollout) for group in groups for rollout in group.rollouts]
    if isinstance(params.advantage, OptimalTokenBaseline):  # compares the tokens of a group with each other
        return [[True] * len(rollouts)] * trainer.world_size
    decided = [place for place, (_, rollout) in enumerate(rollouts) if rollout.is_decided]
    lengths = [len(rollouts[place][0].prompt) + len(rollouts[place][1].sample.token_ids) for place in decided]
    held = [[False] * len(rollouts) for _ in range(trainer.world_size)]
    trained = groups_by_rank(lengths, params.minibatches, micro_batch_tokens, trainer, *seed_parts)
    for rank, of_rank in enumerate(trained):
        for index in (index for group in of_rank for index in group):
            held[rank][decided[index]] = True
    return held
