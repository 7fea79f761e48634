"""The schedules by name, and the best split of the GPUs for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipelines.simulating.asynchronous import Schedule, asynchronous
from pipelines.simulating.batches import one_step, stream, synchronous
from pipelines.simulating.constants import BATCH_STEPS, MEASURED_STEPS, WARM_UP_STEPS
from pipelines.simulating.machine import GroupLengths
from pipelines.simulating.outcome import Outcome
from pipelines.simulating.partial import partial
from pipelines.simulating.setting import Setting
from stages.foundations.errors import UserError

POLICIES = ("synchronous", "one_step", "stream", "partial", "asynchronous", "asynchronous_repack")
"""Those of the paper."""
OURS = "ours"
KNOWN_GROUPS, KNOWN_ERROR = 1000, 0.03
"""Groups whose mean length tells how long training takes at least, and by how much that may be wrong."""
OUR_SHARE = 4.0
"""Groups that an empty replica takes, as a multiple of batch / replicas: a response of many tokens then holds a replica
up once for four batches' worth of work, and not once for each."""


@dataclass(frozen=True)
class Steps:
    """How long is looked."""

    warm_up: int = WARM_UP_STEPS
    measured: int = MEASURED_STEPS
    batches: int = BATCH_STEPS
    """Of the schedules of which every step is like the first."""


def simulate_split(
    policy: str, setting: Setting, lengths: GroupLengths, replicas: int, steps: Steps
) -> Outcome:
    """`policy` with `replicas` replicas; a synchronous loop has all GPUs for both. UserError names the policies."""
    constants = setting.constants
    match policy:
        case "synchronous":
            return synchronous(setting.colocated_machine(), lengths, steps.batches)
        case "one_step":
            return one_step(setting.machine(replicas), lengths, steps.batches)
        case "stream":
            return stream(setting.machine(replicas), lengths, steps.batches)
        case "partial":
            return partial(setting.machine(replicas), lengths, steps.warm_up, steps.measured, constants.eta)
        case "asynchronous" | "asynchronous_repack" | "ours":
            schedule = schedule_of(policy, setting)
            return asynchronous(setting.machine(replicas), lengths, steps.warm_up, steps.measured, schedule)
        case _:
            raise UserError(f"no policy {policy!r}: there are {', '.join((*POLICIES, OURS))}")


def schedule_of(policy: str, setting: Setting) -> Schedule:
    """The paper's, without or with repack, or ours."""
    constants = setting.constants
    if policy == OURS:
        return Schedule(True, OUR_SHARE * constants.share, constants.window)
    return Schedule(policy == "asynchronous_repack", constants.share, constants.window)


def best_split(policy: str, setting: Setting, lengths: GroupLengths, steps: Steps) -> int:
    """Replicas with which a step of `policy` is shortest; the GPUs that they leave train. UserError for one GPU."""
    if policy == "synchronous":
        return 0
    if setting.most_replicas < 1:
        raise UserError(
            f"{policy} trains beside its replicas: {setting.gpus} GPUs hold no replica of "
            f"{setting.model.tensor_parallel} and a trainer, raise --gpus or leave it out of --policies"
        )
    work = setting.work
    looked_at = [length for group in range(KNOWN_GROUPS) for length in lengths[group]]
    tokens = work.trajectories * (work.prompt_tokens + sum(looked_at) / len(looked_at))
    best = math.inf

    def seconds(replicas: int) -> float:
        nonlocal best
        # No step is shorter than its training: what trains longer than the best split so far need not be simulated.
        floor = (1 - KNOWN_ERROR) * setting.machine(replicas).training_seconds(tokens)
        if floor >= best:
            return floor
        found = simulate_split(policy, setting, lengths, replicas, steps).seconds_per_step
        best = min(best, found)
        return found

    return _lowest(seconds, setting.most_replicas)


def _lowest(seconds: Callable[[int], float], most: int) -> int:
    """Where `seconds` of 1..most is lowest: too few replicas and training waits, too many and it is slow.

    Eighths first, then halves of the way to the neighbours, down to single replicas.
    """
    known: dict[int, float] = {}

    def of(count: int) -> float:
        if count not in known:
            known[count] = seconds(count)
        return known[count]

    best = min([max(1, round(most * part / 8)) for part in (3, 2, 1, 4, 5, 6)], key=of)
    stride = max(1, most // 16)
    while True:
        near = [count for count in (best - stride, best + stride) if 1 <= count <= most]
        nearer = min([best, *near], key=of)
        if nearer != best:
            best = nearer
        elif stride == 1:
            return best
        else:
            stride = max(1, stride // 2)
