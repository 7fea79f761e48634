"""Seconds on this machine's CPU, from the probe: each figure times how often the recipe does it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipelines.planning.shapes import Shape
from stages.foundations.planned_work import Sampling, SideBySide, Training

if TYPE_CHECKING:  # it imports torch, which `retrace simulate` does without
    from pipelines.planning.probe import CpuProbe

STEPS = 200
"""Points at which the emptying of a batch is looked at."""


@dataclass(frozen=True)
class CpuSpeed:
    """This machine; `lanes` batches are decoded at once (stages/engines/samplers/torch_sampler.py)."""

    probe: CpuProbe
    lanes: int
    max_sequences: int
    is_checkpointed: bool
    threads: int = 1
    """Of the trainer."""
    replicas: int = 1
    cores: int = os.cpu_count() or 1

    def split(self, own: SideBySide | None) -> CpuSpeed:
        """A stage that draws and trains side by side."""
        return replace(self, replicas=own.replicas) if own else self

    def together_seconds(self, own: SideBySide, training: float, sampling: float) -> float:
        """As long as the cores need for all of it, where there are fewer than threads."""
        work = training * self.threads + sampling * self.lanes * self.replicas
        return max(own.seconds(training, sampling), work / self.cores)

    def training_seconds(self, shape: Shape, work: Training) -> float:
        probe = self.probe
        layer = probe.layer_training_token + (probe.layer_forward_token if self.is_checkpointed else 0.0)
        meets_head = work.response_tokens / max(1.0, work.tokens)
        return (
            work.tokens * shape.layers * layer
            + work.response_tokens * (probe.head_training_token + probe.head_forward_token)
            + work.forward_tokens
            * (shape.layers * probe.layer_forward_token + meets_head * probe.head_forward_token)
        )

    def update_seconds(self, shape: Shape, work: Training) -> float:
        return work.updates * self.probe.update[work.kind]

    def step_seconds(self, shape: Shape, sequences: float, context: float) -> float:
        """One token for each of `sequences` in one lane. The probe's context stands for all."""
        layer, head = self.probe.layer_step, self.probe.head_step
        alone = shape.layers * (layer[0] + layer[1] * sequences) + head[0] + head[1] * sequences
        return alone * self.probe.lane_slowdown

    def sampling_seconds(self, shape: Shape, work: Sampling, kv_tokens: float) -> float:
        """Each lane answers its share of a call's prompts, batch after batch, each until its longest response ends.

        Where prompts take each other's place, only the last batch is emptied.
        """
        lanes = self.lanes * self.replicas
        sequences, full = work.prompts * work.samples / lanes, 0.0
        batches = max(1.0, sequences / max(1.0, self.max_sequences / self.lanes))
        rows = sequences / batches
        if work.in_flight is not None:
            rows = min(work.in_flight * work.samples / lanes, self.max_sequences / self.lanes, sequences)
            full = (sequences - rows) * work.lengths.mean / rows * self.step_seconds(shape, rows, 0)
            batches = 1.0
        width, emptied = work.lengths.most / STEPS, 0.0
        for step in range(STEPS):
            open_rows = rows * work.lengths.open_share((step + 0.5) * width)
            if open_rows < 0.5:
                break
            emptied += width * self.step_seconds(shape, max(1.0, open_rows), 0)
        read = work.prompts / lanes * work.prompt_tokens * shape.layers * self.probe.layer_forward_token
        return work.calls * (batches * emptied + full + read)

    def start_seconds(self, loads_policy: bool) -> float:
        return self.probe.model_stage_start if loads_policy else self.probe.table_stage_start
