"""The loops that a round may choose (`rl.loop`): the order in which it samples and trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.foundations.params import StrictParams


class SynchronousLoop(StrictParams):
    """Sample, train, sync, one after the other: the same seed gives the same weights."""

    kind: Literal["synchronous"]


class NoRepack(StrictParams):
    """A replica keeps its trajectories to their end."""

    kind: Literal["none"]


class BestFitRepack(StrictParams):
    """The last trajectories of several replicas are moved to one replica, so that the others become free (Laminar)."""

    kind: Literal["best_fit"]
    every_seconds: float = Field(gt=0)
    """Longest time between two checks; there is one right after each update of the weights too."""
    batch_bound: int = Field(ge=1)
    """Sequences up to which decoding is bound by memory bandwidth: a replica with fewer has room."""


class RelayParams(StrictParams):
    """How versions of the weights are stored in the memory of each node."""

    keep: int = Field(ge=1)
    """Newest versions kept. One that is gone cannot be given to a replica that takes over unfinished trajectories."""
    chunk_mib: int = Field(ge=1)
    """Size of the checksummed pieces in which they travel from node to node."""


class AsynchronousLoop(StrictParams):
    """Replicas sample continuously; when a replica becomes free, it loads the newest weights (Laminar)."""

    kind: Literal["asynchronous"]
    window: int | None = Field(ge=0)
    """Largest staleness in steps: how far a group's weights may be behind the trainer's; null: no bound."""
    replica_share: float = Field(gt=0)
    """Groups that a free replica takes, as a multiple of `rl.problems_per_step` / number of replicas."""
    takes_groups: Literal["when_empty", "while_newest"]
    """`when_empty`: a replica finishes its groups, loads the newest weights, then takes its share (Laminar).
    `while_newest`: it is kept full while its weights are the newest, which adds staleness if the trainer is slower."""
    report_seconds: float = Field(gt=0)
    """Interval at which a replica reports new tokens; a killed replica loses at most the tokens of one interval."""
    repack: Annotated[NoRepack | BestFitRepack, Field(discriminator="kind")]
    relay: RelayParams
    stalled_seconds: float = Field(gt=0)
    """A replica that reports nothing for this long, and for 20 times its usual interval, is replaced."""
    trainer_ranks: int = Field(ge=1)
    """Processes that train together; more than 1 needs `trainer.kind: deepspeed`."""


class ReplayLoop(StrictParams):
    """Trains again on the same batches, from the schedule and the rollouts of an earlier round: the same weights."""

    kind: Literal["replay"]
    schedule: str
    """A copy of the folder that the round wrote (`data/schedules/<round>`), or of a folder of such folders.
    docs/explanation/asynchronous-loop.md says where the rollouts table must be."""


LoopParams = Annotated[SynchronousLoop | AsynchronousLoop | ReplayLoop, Field(discriminator="kind")]
