"""What `rl.loop` does not go with: settings that it has no process for, and updates that are known to collapse."""

from __future__ import annotations

from collections.abc import Iterator

from stages.engines.samplers.params import SamplerParams
from stages.engines.trainers.params import TrainerParams
from stages.rl_round.params.loop import AsynchronousLoop, SynchronousLoop
from stages.rl_round.params.rl import RlParams
from stages.rl_round.params.update import NoCorrection, PlainReward, Reinforce
from stages.rl_round.params.verifier import ModelVerifier


def loop_contradictions(
    rl: RlParams, sampler: SamplerParams, trainer: TrainerParams, ranks: int = 1
) -> list[str]:
    """A sentence each that says what to change; `ranks` is how many section `launch` starts."""
    if not isinstance(rl.loop, AsynchronousLoop):
        return list(_update_contradictions(rl))
    return [*_update_contradictions(rl), *_process_contradictions(rl.loop, sampler, trainer, ranks)]


def _update_contradictions(rl: RlParams) -> Iterator[str]:
    loop = rl.loop
    if rl.keeps_distributions and not isinstance(loop, SynchronousLoop):
        yield (
            f"rl.study.rollout_distributions are neither sent nor recorded, so rl.loop.kind {loop.kind} has none: set "
            "rl.rollout_correction.divergence sampled and leave them out, or set rl.loop.kind synchronous"
        )
    if not isinstance(loop, AsynchronousLoop):
        return
    yield from _staleness_contradictions(rl, loop)
    if rl.mismatch:
        yield (
            f"rl.study.mismatch.kind {rl.mismatch.kind} is made in the synchronous loop's own sampler, and "
            "rl.loop.kind asynchronous has none: leave rl.study.mismatch out, or set rl.loop.kind synchronous"
        )
    if isinstance(rl.verifier, ModelVerifier):
        yield (
            "rl.verifier.kind model judges in the synchronous loop's own sampler, and rl.loop.kind asynchronous has "
            "none: set rl.verifier.kind rule, or rl.loop.kind synchronous"
        )


def _staleness_contradictions(rl: RlParams, loop: AsynchronousLoop) -> Iterator[str]:
    """Plain PPO collapses with responses one version old: 2 of 128 right, 98 with truncated importance weights.

    Source of the figures: marin-community/marin, issue 8955.
    """
    if loop.window is not None and loop.relay.keep < loop.window + 1:
        yield (
            f"rl.loop.relay.keep {loop.relay.keep} is fewer than the {loop.window + 1} versions that rl.loop.window "
            f"{loop.window} has in use, so unfinished trajectories of a lost replica would start again: set "
            f"rl.loop.relay.keep to at least {loop.window + 1}, or lower rl.loop.window"
        )
    if loop.window == 0 or not isinstance(rl.rollout_correction, NoCorrection):
        return
    stale = "any number of" if loop.window is None else f"up to {loop.window}"
    has_ratio = not isinstance(rl.policy_loss, Reinforce)
    if has_ratio and rl.proximal == "recompute":
        yield (
            f"rl.loop.window lets responses be {stale} versions old, and with rl.proximal: recompute and "
            "rl.rollout_correction.kind none the loss does not see it: such runs collapse (marin-community/marin#8955: "
            "2 of 128 right, against 98 with truncated importance weights). Set rl.rollout_correction.kind "
            "importance_weights or trust_region_masking, or rl.proximal: rollout, whose ratio is the whole importance "
            "ratio, or rl.loop.window 0"
        )
    # Rewards that are never negative make it supervised learning on what was right, whoever said it.
    if not has_ratio and not isinstance(rl.advantage, PlainReward):
        yield (
            f"rl.loop.window lets responses be {stale} versions old, and rl.policy_loss.kind reinforce has no ratio "
            "that sees it: set rl.rollout_correction.kind importance_weights or trust_region_masking, or "
            "rl.loop.window 0"
        )


def _process_contradictions(
    loop: AsynchronousLoop, sampler: SamplerParams, trainer: TrainerParams, ranks: int
) -> Iterator[str]:
    if sampler.replicas is None:
        yield (
            "rl.loop.kind asynchronous draws with samplers in processes of their own, and section sampler has none: "
            "set sampler.replicas: {kind: ray, count: 2}, or rl.loop.kind synchronous"
        )
    if loop.trainer_ranks > 1 and trainer.kind != "deepspeed":
        yield (
            f"rl.loop.trainer_ranks {loop.trainer_ranks} train together, and trainer.kind {trainer.kind} is one "
            "process: set trainer.kind deepspeed, or rl.loop.trainer_ranks 1"
        )
    if ranks > 1:
        yield (
            f"launch starts the round {ranks} times, once a rank, and rl.loop.kind asynchronous starts its ranks "
            "itself: set launch.command.kind python, and rl.loop.trainer_ranks to the number of ranks"
        )
