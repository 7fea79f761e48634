"""Learns preferences: batches of groups, a validation after each epoch, the best epoch's weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch

from stages.engines.image_scorers.pictures import Pictures
from stages.engines.image_scorers.reward_training import reward_loss
from stages.engines.image_scorers.scorer import ImageScorer
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.protocol import Trainer
from stages.engines.trainers.training_loop import Curve, Schedule, train_and_keep_best
from stages.foundations.seeds import endless_order
from stages.observe.tracking import Run
from stages.reward_model.groups import Group, micro_batches, reward_batch
from stages.reward_model.params import RewardModelParams


@dataclass(frozen=True)
class Preferences:
    """What there is to learn from."""

    train: list[Group]
    validation: list[Group]
    pictures: Pictures


def learn(
    params: RewardModelParams,
    round_name: str,
    seed: int,
    scorer: ImageScorer,
    trainer: Trainer,
    preferences: Preferences,
    checkpoints: Checkpoints,
    run: Run,
) -> tuple[Curve, Path]:
    """One row an update, and the folder of the model with the lowest validation loss; `scorer` is what learns."""
    train, pictures = preferences.train, preferences.pictures
    an_epoch = -(-len(train) // params.groups_per_batch)

    def update(step: int, scale: float) -> dict[str, float]:
        first, last = step * params.groups_per_batch, (step + 1) * params.groups_per_batch
        order = endless_order(first, last, len(train), seed, "reward_model", round_name)
        groups = [train[index] for index in order]
        done = trainer.update(
            micro_batches(
                groups,
                pictures,
                scorer,
                params.micro_batch_images,
                trainer.rank,
                trainer.world_size,
                seed,
                "reward_model",
                round_name,
                step,
            ),
            reward_loss(*_totals(groups), params.rating_weight),  # of all ranks' groups: shares add up
            scale,
        )
        shown = done.diagnostics
        row = {
            "loss/train": shown["ranking"],
            "accuracy/train": shown["right"],
            "optim/gradient_norm": done.gradient_norm,
        }
        return row | ({"loss/rating": shown["rating"]} if params.rating_weight else {})

    schedule = Schedule(
        params.epochs * an_epoch,
        params.warmup_steps,
        params.final_learning_rate_fraction,
        an_epoch,
        params.checkpoint_every_steps,
    )
    return train_and_keep_best(
        "reward_model",
        schedule,
        trainer,
        checkpoints,
        run,
        update,
        lambda: validated(params, scorer, trainer, preferences),
    )


def validated(
    params: RewardModelParams, scorer: ImageScorer, trainer: Trainer, preferences: Preferences
) -> dict[str, float]:
    """Mean pairwise loss and share of pairs in the right order, over all ranks."""
    groups = preferences.validation
    loss = reward_loss(*_totals(groups), 0.0)
    total = torch.zeros(2, dtype=torch.float64)
    for batch in micro_batches(
        groups, preferences.pictures, scorer, params.micro_batch_images, trainer.rank, trainer.world_size, 0
    ):
        # Under ZeRO 3 every rank must evaluate as often: one whose share is used up sees a group that counts nowhere.
        seen = reward_batch(groups[:1], preferences.pictures, scorer, 0) if batch.is_empty else batch
        outputs = trainer.evaluate(seen)
        if batch.is_empty:
            continue
        share, shown = loss(outputs, batch.to(trainer.device))
        total += torch.stack([share, shown["right"]]).double().cpu()
    found, right = trainer.sum_over_ranks(total).tolist()
    return {"loss/validation": found, "accuracy/validation": right}


def raw_rewards(
    scorer: ImageScorer, groups: Sequence[Group], pictures: Pictures, at_once: int
) -> numpy.ndarray:
    """The reward head's outputs for the groups' pictures, before normalisation."""
    ids = [name for group in groups for name in group.image_ids]
    found = []
    with torch.no_grad():
        for start in range(0, len(ids), at_once):
            part = ids[start : start + at_once]
            hidden = scorer.encode_images(pictures.images(part).to(scorer.device))
            found.append(scorer.raw_reward(hidden, scorer.encode_prompts(pictures.prompts(part))).cpu())
    return torch.cat(found).double().numpy()


def _totals(groups: Sequence[Group]) -> tuple[float, int]:
    """Weight of all pairs, and number of ratings."""
    weight = sum(sum(group.weights) for group in groups)
    return weight, int(sum(numpy.isfinite(group.ratings).sum() for group in groups))
