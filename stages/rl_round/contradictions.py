"""Contradictions between section `rl` and other sections: one sentence for each, with the remedy.

`retrace use` asks for those of a recipe, and the stage again for those of its round: the file may have changed since.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from stages.engines.samplers.params import SamplerParams, TorchSamplerParams
from stages.engines.trainers.params import TrainerParams, adapter_contradictions
from stages.engines.turns import turn_contradictions
from stages.foundations.params import PromptParams, ToolsEnvironment
from stages.rl_round.methods import AsynchronousLoop, ModelVerifier, ReplayLoop, SynchronousLoop, environment_rewards
from stages.rl_round.params import RlParams
from stages.rl_round.update_methods import Gae, NoCorrection, PlainReward, Reinforce


def section_contradictions(rl: RlParams, sections: Mapping[str, Any], ranks: int = 1) -> list[str]:
    """Returns contradictions of section `rl` with `sampler`, `trainer` and `prompt`; `launch` starts `ranks`."""
    sampler, trainer = sections["sampler"], sections["trainer"]
    return [
        *sampler_contradictions(rl, sampler),
        *loop_contradictions(rl, sampler, trainer, ranks),
        *adapter_contradictions("rl", rl.adapter, rl.optimizer, trainer),
        *turn_contradictions(sections["prompt"], sampler, {"rl.max_response_tokens": rl.max_response_tokens}),
    ]


def sampler_contradictions(rl: RlParams, sampler: SamplerParams) -> Iterator[str]:
    """Yields the contradictions between sections `rl` and `sampler`."""
    # The check would report the difference as a failed sync, and stop the round.
    if rl.mismatch and rl.weight_sync_check.max_logprob_gap is not None:
        yield (
            f"rl.weight_sync_check.max_logprob_gap {rl.weight_sync_check.max_logprob_gap} would stop a round whose "
            f"sampler differs on purpose (rl.study.mismatch.kind {rl.mismatch.kind}): set it to null"
        )
    if rl.mismatch and not isinstance(sampler, TorchSamplerParams):
        yield "rl.study.mismatch is simulated in the built-in sampler: set sampler.kind torch, or leave it out"
    if isinstance(rl.verifier, ModelVerifier) and not isinstance(sampler, TorchSamplerParams):
        yield (
            "rl.verifier.kind model judges in the built-in sampler, whose settings sampler.kind "
            f"{sampler.kind} does not give: set sampler.kind torch, or rl.verifier.kind rule"
        )


def round_contradictions(rl: RlParams, steps: int, prompt: PromptParams) -> Iterator[str]:
    """Yields contradictions of a round of `steps` steps; `rl` has the reward of this round."""
    if isinstance(rl.advantage, Gae) and (warmup := rl.advantage.critic.warmup_steps) >= steps:
        yield (
            f"rl.advantage.critic.warmup_steps {warmup} leaves the policy none of the {steps} steps: lower it, or "
            "raise steps"
        )
    environment = prompt.environment
    if environment_rewards(rl.reward) and (environment is None or isinstance(environment, ToolsEnvironment)):
        there = "is absent" if environment is None else "of kind tools gives none: the verifier judges the answer"
        yield (
            f"reward.kind environment takes the reward of prompt.environment, which {there}: set reward.kind "
            "by_verdict, or name an environment that gives rewards"
        )
    if (environment is not None or prompt.forced_end) and rl.keeps_distributions:
        writer = "prompt.environment" if environment else "prompt.forced_end"
        yield (
            f"rl.study.rollout_distributions needs a distribution for each token, and {writer} writes tokens "
            "that have none: set rl.rollout_correction.divergence sampled and leave them out"
        )


def loop_contradictions(rl: RlParams, sampler: SamplerParams, trainer: TrainerParams, ranks: int = 1) -> Iterator[str]:
    """Yields settings that do not work with the processes of `rl.loop`, and updates that are known to collapse.

    `ranks` is the number that section `launch` starts.
    """
    loop = rl.loop
    if rl.evaluation and (rl.mismatch or isinstance(loop, ReplayLoop)):
        yield (
            f"rl.evaluation needs a sampler with the trainer's weights, which rl.loop.kind {loop.kind}"
            f"{' with rl.study.mismatch' if rl.mismatch else ''} does not have: leave rl.evaluation out, or set "
            "rl.loop.kind synchronous without a mismatch"
        )
    if rl.keeps_distributions and not isinstance(loop, SynchronousLoop):
        yield (
            f"rl.study.rollout_distributions are neither sent nor recorded, so rl.loop.kind {loop.kind} has none: set "
            "rl.rollout_correction.divergence sampled and leave them out, or set rl.loop.kind synchronous"
        )
    if isinstance(loop, AsynchronousLoop):
        yield from _staleness_contradictions(rl, loop)
        yield from _process_contradictions(rl, loop, sampler, trainer, ranks)


def _staleness_contradictions(rl: RlParams, loop: AsynchronousLoop) -> Iterator[str]:
    """Yields updates that collapse with stale responses.

    Plain PPO with responses one version old: 2 of 128 right, against 98 with truncated importance weights. Source:
    marin-community/marin, issue 8955.
    """
    if loop.window is not None and loop.relay.keep < loop.window + 1:
        yield (
            f"rl.loop.relay.keep {loop.relay.keep} is fewer than the {loop.window + 1} versions that rl.loop.window "
            f"{loop.window} has in use, so unfinished trajectories of a lost replica would start again: set "
            f"rl.loop.relay.keep to at least {loop.window + 1}, or lower rl.loop.window"
        )
    # With window 0 all responses come from the weights that are trained: there is nothing to correct.
    if loop.window == 0 or not isinstance(rl.rollout_correction, NoCorrection):
        return
    stale = "any number of" if loop.window is None else f"up to {loop.window}"
    # `proximal: rollout` passes both checks: its ratio is relative to the sampler, so it is the whole importance ratio.
    has_ratio = not isinstance(rl.policy_loss, Reinforce)
    if has_ratio and rl.proximal == "recompute":
        yield (
            f"rl.loop.window lets responses be {stale} versions old, and with rl.proximal: recompute and "
            "rl.rollout_correction.kind none the loss does not see it: such runs collapse (marin-community/marin#8955: "
            "2 of 128 right, against 98 with truncated importance weights). Set rl.rollout_correction.kind "
            "importance_weights or trust_region_masking, or rl.proximal: rollout, whose ratio is the whole importance "
            "ratio, or rl.loop.window 0"
        )
    # With rewards that are never negative, REINFORCE is supervised learning on correct responses of any policy.
    if not has_ratio and not isinstance(rl.advantage, PlainReward):
        yield (
            f"rl.loop.window lets responses be {stale} versions old, and rl.policy_loss.kind reinforce has no ratio "
            "that sees it: set rl.rollout_correction.kind importance_weights or trust_region_masking, or "
            "rl.loop.window 0"
        )


def _process_contradictions(
    rl: RlParams, loop: AsynchronousLoop, sampler: SamplerParams, trainer: TrainerParams, ranks: int
) -> Iterator[str]:
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
    # A launcher would start one hub per rank, each with its own replicas.
    if ranks > 1:
        yield (
            f"launch starts the round {ranks} times, once a rank, and rl.loop.kind asynchronous starts its ranks "
            "itself: set launch.command.kind python, and rl.loop.trainer_ranks to the number of ranks"
        )
    width = getattr(sampler, "tensor_parallel", 1)
    if rl.evaluation and loop.trainer_ranks % width:
        yield (
            f"rl.evaluation samples in the trainer's ranks, and rl.loop.trainer_ranks {loop.trainer_ranks} makes no "
            f"whole engines of sampler.tensor_parallel {width}: set a multiple of that, or leave rl.evaluation out"
        )
