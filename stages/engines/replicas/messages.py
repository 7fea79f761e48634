"""What the fleet tells a replica and what a replica says: plain values, no torch."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from stages.engines.samplers.protocol import Load, SamplingSettings
from stages.engines.samplers.samples import Begun, Sample, Trajectory

Name = Hashable
"""Of a trajectory, the caller's own."""
IDLE = Load(running=0, waiting=0, kv_tokens=0)
ACTIVITIES = ("pull", "prefill", "decode", "orders", "idle")
"""What a replica's time goes into. `prefill` is every step that begins a trajectory, with the token that it draws;
`orders` is what lies between two calls while trajectories are in flight; `idle` is all without any."""


@dataclass(frozen=True)
class Orders:
    """What a replica is to do, in the order of the fields, before it goes on decoding."""

    withdraw: tuple[Name, ...] = ()
    """Trajectories to end before their time; names of ended ones are passed over."""
    pull: int | Literal["newest"] | None = None
    """Version of the weights to take. Only with nothing in flight: withdraw the rest first."""
    under: int | None = None
    """Version that what is begun must be drawn under, because part of it was; None begins under any."""
    settings: SamplingSettings | None = None
    """How to draw from now on; None leaves it. Changes only with nothing in flight."""
    begin: Mapping[Name, Trajectory] = field(default_factory=dict)
    """Equal prompts side by side."""
    report_seconds: float = 1.0
    """Longest time until the report."""


@dataclass(frozen=True)
class Report:
    """What has happened in a replica since it last reported."""

    version: int | None
    """Of the weights in use; None until the first pull that its probe agreed with, and after one that it did not."""
    ended: dict[Name, Sample] = field(default_factory=dict)
    new_tokens: dict[Name, Begun] = field(default_factory=dict)
    """Of what is in flight."""
    withdrawn: dict[Name, Begun] = field(default_factory=dict)
    """All tokens of what was withdrawn, and of what it was asked to begin and could not."""
    load: Load = IDLE
    decode_steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """By activity; they add up to the time since the last report."""
    pulled: int | None = None
    """Version that was taken in by this call."""
    pull_failed: str | None = None
    """Why the version asked for was not taken."""
    probe_gap: float | None = None
    """Largest gap of a log-prob after a pull, between what the trainer published and what the replica computes."""
    lateness: float | None = None
    """Of a virtual sampler so far: seconds slept beyond plan over planned seconds. Others have none."""
    started_at: float = 0.0
    """Time of day (seconds since 1970) when this call began; `seconds` reach back to the end of the one before."""
    ended_at: float = 0.0
