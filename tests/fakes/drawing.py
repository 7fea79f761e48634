"""Samples of numbered prompts, for tests of samplers."""

from stages.engines.samplers.protocol import sample_prompts


def sample_numbered(sampler, prompts, count, settings, seed, label=""):
    """Returns `count` samples of each prompt, by prompt; a prompt's index is its name."""
    names = [str(number) for number in range(len(prompts))]
    return sample_prompts(sampler, prompts, names, count, settings, seed, label=label)
