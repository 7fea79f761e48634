"""The schedules on devices that sleep: what the clock of the throughput benchmark is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipelines.simulating.replica import DecodeStep, Machine, Outcome, ReplicaSizes
from pipelines.simulating.schedules import Schedule, asynchronous, synchronous
from pipelines.simulating.setting import GivenLengths
from stages.foundations.errors import UserError


@dataclass(frozen=True)
class DeviceRun:
    """One schedule on the devices."""

    seconds_per_step: float
    tokens_per_second: float
    """Drawn by all devices."""
    consumed_staleness_mean: float
    consumed_staleness_max: int
    idle_share: float
    """Of the devices' time, without a sequence."""


def simulate_devices(
    lengths: Sequence[Sequence[int]],
    *,
    groups_per_step: int,
    training_seconds: float,
    step_seconds: float,
    sequence_seconds: float,
    devices: int = 8,
    policies: Sequence[str] = ("synchronous", "asynchronous", "asynchronous_repack"),
    most_sequences: int = 1_000_000,
    batch_bound: int = 28,
    repack_seconds: float = 5.0,
    share: float = 1.0,
    window: int | None = None,
    pull_seconds: float = 0.0,
    publish_seconds: float = 0.0,
    recompute_seconds: float = 0.0,
    warm_up: int = 5,
    steps: int = 20,
) -> dict[str, DeviceRun]:
    """Seconds a step of each policy on `devices` virtual devices beside one trainer, which is never one of them.

    A decode step of n sequences takes `step_seconds + n * sequence_seconds`, whatever their lengths; each gets a token.
    `lengths` holds the response tokens of each group in the order of issue, and begins again when it is at its
    end. A step trains on `groups_per_step` whole groups for `training_seconds`.

    synchronous: the devices wait for the trainer and it for them; groups are dealt by turns. asynchronous: an empty
    device takes `share` x groups_per_step / devices whole groups, and never more than `window` allows.
    asynchronous_repack: with `repack` every `repack_seconds`, up to `batch_bound` sequences a device.
    `pull_seconds`: a device loads newer weights. `publish_seconds`: the trainer waits until they are published.
    `recompute_seconds`: for each token of a sequence that another device goes on with, and for none that begins.
    The first `warm_up` steps are not counted (of the synchronous loop there is nothing to warm up). UserError for a
    policy that is none of the three, and for no device, no group or no step.
    """
    if min(devices, groups_per_step, steps, len(lengths)) < 1 or not all(lengths):
        raise UserError("simulate_devices needs a device, a group with a length, and a step: give 1 or more of each")
    machine = Machine(
        sizes=ReplicaSizes(
            step=DecodeStep(step_seconds, sequence_seconds, 0.0, 0.0, 0.0),
            prefill_token=recompute_seconds,
            prompt_tokens=0,
            prefilled_prompt=0.0,
            kv_tokens=float("inf"),
            admitted_tokens=float("inf"),
            most_sequences=most_sequences,
        ),
        replicas=devices,
        rollout_gpus=devices,
        groups=groups_per_step,
        group_size=max(len(group) for group in lengths),
        update_seconds=lambda tokens: training_seconds,
        minibatches=1,
        switch_seconds=pull_seconds + publish_seconds,
        collective_seconds=pull_seconds + publish_seconds,
        push_seconds=publish_seconds,
        broadcast_seconds=0.0,
        pull_seconds=pull_seconds,
        batch_bound=batch_bound,
        repack_seconds=repack_seconds,
    )
    found = {}
    for policy in policies:
        given = GivenLengths(lengths)
        match policy:
            case "synchronous":
                outcome = synchronous(machine, given, steps)
            case "asynchronous" | "asynchronous_repack":
                schedule = Schedule(policy == "asynchronous_repack", share, window)
                outcome = asynchronous(machine, given, warm_up, steps, schedule)
            case _:
                raise UserError(
                    f"no policy {policy!r} on devices: there are synchronous, asynchronous, asynchronous_repack"
                )
        found[policy] = _device_run(outcome)
    return found


def _device_run(outcome: Outcome) -> DeviceRun:
    return DeviceRun(
        outcome.seconds_per_step,
        outcome.tokens_per_second,
        outcome.consumed_mean,
        outcome.consumed_max,
        outcome.idle_share,
    )
