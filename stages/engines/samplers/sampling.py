"""Samples of whole prompts: what one gets from a sampler's stream by waiting for all of it."""

from __future__ import annotations

from collections.abc import Sequence

from stages.engines.samplers.protocol import Sampler, SamplingSettings
from stages.engines.samplers.samples import Sample, Trajectory
from stages.foundations.seeds import derive_seed
from stages.observe.progress import progress


def sample_trajectories(
    sampler: Sampler, trajectories: Sequence[Trajectory], settings: SamplingSettings, label: str = ""
) -> list[Sample]:
    """The sample of each trajectory, in their order. A non-empty `label` shows progress."""
    ended = sampler.stream(trajectories, settings)
    if label:
        ended = progress(ended, len(trajectories), label, "responses")
    samples = dict(ended)
    return [samples[index] for index in range(len(trajectories))]


def sample_prompts(
    sampler: Sampler,
    prompts: Sequence[Sequence[int]],
    names: Sequence[str],
    count: int,
    settings: SamplingSettings,
    *seed_parts: int | str,
    label: str = "",
) -> list[list[Sample]]:
    """`count` samples of each prompt, by prompt.

    A sample's random numbers come from `seed_parts`, the prompt's name and the sample's number: not from what else is
    asked for in the same call.
    """
    trajectories = [
        Trajectory(prompt, derive_seed(*seed_parts, name, number))
        for prompt, name in zip(prompts, names, strict=True)
        for number in range(count)
    ]
    samples = sample_trajectories(sampler, trajectories, settings, label)
    return [samples[start : start + count] for start in range(0, len(samples), count)]
