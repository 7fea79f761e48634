"""What `rl.loop` does not go with: settings that it has no process for, and updates that are known to collapse."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stages.engines.samplers.params import SamplerParams
from stages.engines.trainers.params import TrainerParams
from stages.rl_round.params.loop import AsynchronousLoop, SynchronousLoop
from stages.rl_round.params.update import NoCorrection, PlainReward, Reinforce
from stages.rl_round.params.verifier import ModelVerifier

if TYPE_CHECKING:
    from stages.rl_round.params.rl import RlParams


def loop_contradictions(rl: RlParams) -> Iterator[str]:
    """Within section `rl`, a sentence each that says what to change."""
    loop = rl.loop
    if rl.keeps_distributions and not isinstance(loop, SynchronousLoop):
        yield (
            f"study.rollout_distributions are neither sent nor recorded, so loop.kind {loop.kind} has none: set "
            "rollout_correction.divergence sampled and leave them out, or set loop.kind synchronous"
        )
    if not isinstance(loop, AsynchronousLoop):
        return
    yield from _staleness_contradictions(rl, loop)
    if rl.mismatch:
        yield (
            f"study.mismatch.kind {rl.mismatch.kind} is made in the synchronous loop's own sampler, and loop.kind "
            "asynchronous has none: leave study.mismatch out, or set loop.kind synchronous"
        )
    if isinstance(rl.verifier, ModelVerifier):
        yield (
            "verifier.kind model judges in the synchronous loop's own sampler, and loop.kind asynchronous has none: "
            "set verifier.kind rule, or loop.kind synchronous"
        )


def _staleness_contradictions(rl: RlParams, loop: AsynchronousLoop) -> Iterator[str]:
    """Plain PPO collapses with responses one version old: 2 of 128 right, 98 with truncated importance weights.

    Source of the figures: marin-community/marin, issue 8955.
    """
    if loop.window is not None and loop.relay.keep < loop.window + 1:
        yield (
            f"loop.relay.keep {loop.relay.keep} is fewer than the {loop.window + 1} versions that loop.window "
            f"{loop.window} has in use, so unfinished trajectories of a lost replica would start again: set "
            f"relay.keep to at least {loop.window + 1}, or lower loop.window"
        )
    if loop.window == 0 or not isinstance(rl.rollout_correction, NoCorrection):
        return
    stale = "any number of" if loop.window is None else f"up to {loop.window}"
    has_ratio = not isinstance(rl.policy_loss, Reinforce)
    if has_ratio and rl.proximal == "recompute":
        yield (
            f"loop.window lets responses be {stale} versions old, and with proximal: recompute and "
            "rollout_correction.kind none the loss does not see it: such runs collapse (marin-community/marin#8955: 2 "
            "of 128 right, against 98 with truncated importance weights). Set rollout_correction.kind "
            "importance_weights or trust_region_masking, or proximal: rollout, whose ratio is the whole importance "
            "ratio, or loop.window 0"
        )
    # Rewards that are never negative make it supervised learning on what was right, whoever said it.
    if not has_ratio and not isinstance(rl.advantage, PlainReward):
        yield (
            f"loop.window lets responses be {stale} versions old, and policy_loss.kind reinforce has no ratio that "
            "sees it: set rollout_correction.kind importance_weights or trust_region_masking, or loop.window 0"
        )


def process_contradictions(
    rl: RlParams, sampler: SamplerParams, trainer: TrainerParams, train_command: str | None = None
) -> list[str]:
    """Between `rl.loop` and who samples and trains; `train_command` is `launch.train` where it is known."""
    loop = rl.loop
    if not isinstance(loop, AsynchronousLoop):
        return []
    found = []
    if sampler.replicas is None:
        found.append(
            "rl.loop.kind asynchronous draws with samplers in processes of their own, and section sampler has none: "
            "set sampler.replicas: {kind: ray, count: 2}, or rl.loop.kind synchronous"
        )
    if loop.trainer_ranks > 1 and trainer.kind != "deepspeed":
        found.append(
            f"rl.loop.trainer_ranks {loop.trainer_ranks} train together, and trainer.kind {trainer.kind} is one "
            "process: set trainer.kind deepspeed, or rl.loop.trainer_ranks 1"
        )
    if train_command is not None and "torchrun" in train_command:
        found.append(
            "launch.train torchrun starts the round once a rank, and rl.loop.kind asynchronous starts its ranks "
            "itself: set launch.train python, and rl.loop.trainer_ranks to the number of ranks"
        )
    return found
