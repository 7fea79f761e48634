"""Section `rl.loop`: in which order a round samples and trains."""

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
    """The last trajectories of several replicas are put together on one, so that the others come free (Laminar)."""

    kind: Literal["best_fit"]
    every_seconds: float = Field(gt=0)
    batch_bound: int = Field(ge=1)
    """Sequences up to which decoding is bound by memory bandwidth: a replica with fewer has room."""


class RelayParams(StrictParams):
    """How versions of the weights lie in the memory of each node."""

    keep: int = Field(ge=1)
    """Newest versions kept. One that is gone cannot be given to a replica that takes over unfinished trajectories."""
    chunk_mib: int = Field(ge=1)
    """Size of the checksummed pieces in which they travel from node to node."""


class AsynchronousLoop(StrictParams):
    """Replicas sample without end, each with the newest weights that it has found when it was free (Laminar)."""

    kind: Literal["asynchronous"]
    window: int | None = Field(ge=0)
    """Steps by which the weights that drew a group may be behind those that train on it; null bounds nothing."""
    replica_share: float = Field(gt=0)
    """Groups that a free replica takes, as a multiple of `rl.problems_per_step` over the number of replicas."""
    takes_groups: Literal["when_empty", "while_newest"]
    """`when_empty`: a replica finishes what it has, takes the newest weights, then its share (Laminar). `while_newest`:
    it is kept full for as long as its weights are the newest, which costs staleness where the trainer is the slower."""
    report_seconds: float = Field(gt=0)
    """A replica reports new tokens this often: what a killed one loses at most."""
    repack: Annotated[NoRepack | BestFitRepack, Field(discriminator="kind")]
    relay: RelayParams
    stalled_seconds: float = Field(gt=0)
    """A replica that reports nothing for so long (and for 20 times its usual interval) is replaced."""
    trainer_ranks: int = Field(ge=1)
    """Processes that train together; more than 1 needs `trainer.kind: deepspeed`."""


class ReplayLoop(StrictParams):
    """Trains again from the schedule and the rollouts of an earlier round, in the same batches: the same weights."""

    kind: Literal["replay"]
    schedule: str
    """A copy of the folder that the round has written (`data/schedules/<round>`), or of a folder of such folders; where
    the rollouts table is looked for: docs/asynchronous.md."""


LoopParams = Annotated[SynchronousLoop | AsynchronousLoop | ReplayLoop, Field(discriminator="kind")]
