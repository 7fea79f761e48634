"""What the ratios become when one assumption is another: on one large setting of each model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipelines.simulating.cells import simulate_cells
from pipelines.simulating.policies import POLICIES, Steps
from pipelines.simulating.setting import Setting, paper_setting
from pipelines.simulating.table import ratios

SETTINGS = (("7B", 256), ("32B", 256), ("72B", 1024))
HEADS = (
    "mean over synchronous",
    "mean over one_step",
    "mean over stream",
    "mean over partial",
    "mean over asynchronous",
    "largest over synchronous",
)


def _constants(**changed: float) -> Callable[[Setting], Setting]:
    return lambda setting: setting.with_constants(**changed)


def _lengths(**changed: float) -> Callable[[Setting], Setting]:
    def change(setting: Setting) -> Setting:
        work = setting.work
        return replace(setting, work=replace(work, lengths=replace(work.lengths, **changed)))

    return change


def _prompt(tokens: int) -> Callable[[Setting], Setting]:
    return lambda setting: replace(setting, work=replace(setting.work, prompt_tokens=tokens))


CHANGES: dict[str, Callable[[Setting], Setting]] = {
    "as it stands": lambda setting: setting,
    "median length 800": _lengths(median=800.0),
    "median length 3,200": _lengths(median=3200.0),
    "sigma 0.6 for 0.99": _lengths(sigma=0.6),
    "half of the log-variance within a group": _lengths(within_group=0.5),
    "all of it within a group": _lengths(within_group=1.0),
    "prompt 1,000 tokens": _prompt(1000),
    "host 0 ms a decode step": _constants(host_seconds=0.0),
    "host 10 ms a decode step": _constants(host_seconds=10e-3),
    "all-reduce 24 us": _constants(all_reduce_seconds=24e-6),
    "decode at 0.6 of the bandwidth": _constants(bandwidth_share=0.6),
    "decode at 0.4 of the FLOP/s": _constants(decode_share=0.4),
    "prefill at 0.25 of the FLOP/s": _constants(prefill_share=0.25),
    "admission up to 0.85 of the KV cache": _constants(admitted_share=0.85),
    "0.8 of the memory": _constants(memory_share=0.8),
    "at most 256 sequences a replica": _constants(most_sequences=256),
    "MFU 0.25": _constants(mfu=0.25),
    "MFU 0.55": _constants(mfu=0.55),
    "6 FLOPs a parameter and token": _constants(training_flops=6.0),
    "8 mini-batches": _constants(minibatches=8),
    "5 s a mini-batch": _constants(minibatch_seconds=5.0),
    "network at 0.4": _constants(network_share=0.4),
    "collective 2 GB/s": _constants(collective_bytes=2e9),
    "eta 1": _constants(eta=1),
    "collective 2 GB/s and eta 1": _constants(collective_bytes=2e9, eta=1),
    "switch 10 s": _constants(switch_seconds=10.0),
    "repack every 20 s": _constants(repack_seconds=20.0),
    "a replica takes 2 shares": _constants(share=2.0),
    "a replica takes 4 shares": _constants(share=4.0),
}


def sensitivities(
    seeds: Sequence[int], steps: Steps, jobs: int, changes: Sequence[str] = tuple(CHANGES)
) -> dict[str, dict[str, float]]:
    """Ratios of the paper's schedule by change, each policy at its best split under that change."""
    return {
        name: ratios(
            simulate_cells(
                [CHANGES[name](paper_setting(*at)) for at in SETTINGS],
                POLICIES,
                seeds,
                steps,
                jobs,
                label=f"{place} of {len(changes)}, {name}",
            )
        )
        for place, name in enumerate(changes, start=1)
    }
