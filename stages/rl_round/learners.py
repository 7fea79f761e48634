"""What learns in a round, and what it learns from: trainer, reference, teacher and critic of a rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from stages.engines.policies.language_model import PolicyUnderAdapters, ReferencePolicy, language_model
from stages.engines.trainers.build import build_trainer
from stages.engines.trainers.params import LoraParams
from stages.foundations.params import chosen
from stages.foundations.seeds import derive_seed
from stages.rl_round.round import Round
from stages.rl_round.update_methods import Gae, ReferenceKl

CRITIC = "critic"
"""Folder of the critic in a checkpoint's folder."""


def with_trainer(this_round: Round) -> Round:
    """Returns the round with this rank's trainer, reference, teacher and critic, which `Round.close` ends."""
    params, settings, policy = this_round.params, this_round.trainer_params, this_round.paths.policy
    model = language_model(policy, settings, this_round.prompt)
    match chosen("rl.adapter", params.adapter):
        case LoraParams():
            from stages.engines.policies.lora import with_lora

            model = with_lora(model, params.adapter, derive_seed(this_round.seed, this_round.name, "adapter"))
    trainer = build_trainer(settings, params.optimizer, params.max_gradient_norm, model)
    reference = None
    if isinstance(params.reference_kl, ReferenceKl):
        # Adapters that are off give the first policy, and no later one.
        if params.adapter and not params.reference_kl.reset_every_steps:
            reference = PolicyUnderAdapters(trainer)
        else:
            reference = ReferencePolicy.from_folder(policy, settings.dtype, trainer.device)
    teacher = critic = None
    if this_round.teacher_folder:
        teacher = ReferencePolicy.from_folder(this_round.teacher_folder, settings.dtype, trainer.device)
    match chosen("rl.advantage", params.advantage):
        case Gae():
            from stages.engines.policies.value_model import value_model

            optimizer = params.advantage.critic.optimizer
            critic = build_trainer(settings, optimizer, params.max_gradient_norm, value_model(policy, settings))
    return replace(this_round, trainer=trainer, reference=reference, teacher=teacher, critic=critic)


def reset_reference(this_round: Round, step: int) -> None:
    """Makes the current policy the reference before each `reset_every_steps`-th step; collective.

    Source: ProRL (arXiv 2505.24864), section 2.3.1. Deviation: at fixed intervals; the paper resets when the
    validation accuracy stagnates.
    """
    settings, trainer = this_round.params.reference_kl, this_round.trainer
    if not _resets_reference(this_round) or step == 0 or step % settings.reset_every_steps:
        return
    this_round.reference.take(trainer.named_weights())
    if settings.resets_optimizer:
        trainer.reset_optimizer()


def save_training(this_round: Round, folder: Path) -> dict[str, str]:
    """Writes the state of trainer, reference and critic; returns hashes like `Trainer.save_checkpoint`; collective."""
    trainer, critic = this_round.trainer, this_round.critic
    if _resets_reference(this_round) and trainer.rank == 0:
        this_round.reference.save(folder)
    hashes = trainer.save_checkpoint(folder)
    if critic is not None:
        # Every rank makes it, because the first to come writes into it.
        (folder / CRITIC).mkdir(exist_ok=True)
        hashes |= {f"{CRITIC}/{name}": digest for name, digest in critic.save_checkpoint(folder / CRITIC).items()}
    return hashes


def load_training(this_round: Round, folder: Path) -> None:
    """Restores what `save_training` wrote; collective."""
    if _resets_reference(this_round):
        this_round.reference.load(folder)
    this_round.trainer.load_checkpoint(folder)
    if this_round.critic is not None:
        this_round.critic.load_checkpoint(folder / CRITIC)


def _resets_reference(this_round: Round) -> bool:
    return this_round.reference is not None and this_round.params.reference_kl.reset_every_steps is not None
