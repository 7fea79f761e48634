"""Compares the asynchronous with the synchronous loop on eight virtual devices that sleep, and with the simulator.

    python -m benchmarks.asynchronous_throughput --work FOLDER [--runs 5] [--steps 10]

Two CPU cores cannot show the gain of asynchrony. So a virtual device (benchmarks/virtual_sampler.py) sleeps in each
decode step for as long as a real device would compute: 17 ms with one sequence, 41 ms with 64. Everything else is real:
Ray, the journal, the relay, the repack, the groups and the verifier. The trainer is a process that trains a tiny
policy. Both loops run on the same eight devices with the same forced lengths: median 40 tokens, 99th percentile ten
times as many, at most 400. Each step trains on 32 groups of 8, and neither loop trains on a device that samples. The
figure of a run is the time of a step in its middle. At the beginning devices fill up, and at the end no groups are left
to start. `whole` is the time of all steps after the first, including the end that every round has.

A figure is rejected when the devices slept more than 5% too long, because the machine was too busy. The same schedules
are then simulated with the measured training time. Exit code 1 when a figure is rejected.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.simulator.replica import ClusterSplit, DecodeStep, ReplicaSizes
from benchmarks.simulator.schedules import AsynchronousSchedule, asynchronous, synchronous
from benchmarks.virtual_sampler import DEVICE, Device
from stages.foundations.tables import PROBLEM, ROLLOUT, read_table, write_table
from stages.observe.progress import say
from tests.fakes.taught_policy import rl_flags, write_params
from tests.fakes.tiny_policy import write_tiny_policy

PROJECT = Path(__file__).resolve().parents[1]
DEVICES = 8
GROUPS, MEMBERS, LIMIT = 32, 8, 400
MOST_LATENESS = 0.05
LEFT_OUT = 3
"""Steps at the beginning of a run: the asynchronous loop has not filled its devices before."""
DRAINING = 4
"""Steps at the end of a run: nothing is begun that no step could train on, so devices run empty."""
REPACK_SECONDS = 0.5
BATCH_BOUND = 28
SIMULATED_STEPS = 20


@dataclass(frozen=True)
class Measured:
    seconds_per_step: float
    whole_seconds_per_step: float
    """From the end of the first step to that of the last."""
    tokens_per_second: float
    lateness: float
    training_seconds: float
    """Median of a step's training and publishing."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args(argv)
    asked.work.mkdir(parents=True, exist_ok=True)
    if not (asked.work / "sft").exists():
        _write_problems(asked.work / "problems.parquet")
        _write_problems(asked.work / "held_out.parquet")
        write_tiny_policy(asked.work / "sft")
    runs: dict[str, list[Measured]] = {name: [] for name in contenders()}
    for number in range(asked.runs):
        for name, changes in contenders().items():
            runs[name].append(_run(asked.work, f"{name}-{number}", changes, asked.steps))
            say(f"{name} {number + 1} of {asked.runs}: {runs[name][-1]}")
    told = _report(asked.work, runs)
    print(json.dumps(told, indent=1))
    return 1 if told["refused"] else 0


def _write_problems(path: Path) -> None:
    """Writes sums as problems; the devices' answers are always wrong."""
    rows = [
        {
            "problem_id": f"p{first}-{second}",
            "source": "sums",
            "problem": f"{first}+{second}?",
            "answer": str(first + second),
            "solution": None,
            "licence": "none",
        }
        for first in range(10)
        for second in range(10)
    ]
    write_table(rows, path, PROBLEM)


def contenders() -> dict[str, dict[str, Any]]:
    """Returns changes of params by name."""
    loop = {
        "kind": "asynchronous",
        "window": None,
        "replica_share": 1.0,
        "takes_groups": "when_empty",
        "report_seconds": 0.1,
        "relay": {"keep": 8, "chunk_mib": 16},
        "stalled_seconds": 10.0,
        "trainer_ranks": 1,
    }
    corrected = {
        "rl.proximal": "recompute",
        "rl.rollout_correction": {"kind": "importance_weights", "level": "token", "cap": 2.0},
    }
    repack = {"kind": "best_fit", "every_seconds": REPACK_SECONDS, "batch_bound": BATCH_BOUND}
    return {
        "synchronous": corrected,
        "asynchronous": {**corrected, "rl.loop": {**loop, "repack": {"kind": "none"}}},
        "asynchronous_repack": {**corrected, "rl.loop": {**loop, "repack": repack}},
    }


def _run(work: Path, name: str, changes: dict[str, Any], steps: int) -> Measured:
    """Runs a whole round; the files of the round's log give the time at which each step ended."""
    params = write_params(
        work / f"{name}.yaml",
        {
            "sampler.max_sequences": 256,
            "sampler.replicas": {"kind": "ray", "count": DEVICES},
            "trainer.micro_batch_tokens": 8192,
            "rl.problems_per_step": GROUPS,
            "rl.group_size": MEMBERS,
            "rl.max_response_tokens": LIMIT,
            "rl.dynamic_sampling": {"kind": "none"},
            "rl.weight_sync_check": {"sequences": 2, "max_logprob_gap": None},
            "rl.checkpoint_every_steps": 1000,
            "rl.minibatches": 1,
            "rl_rounds.rl_1.steps": LEFT_OUT + steps + DRAINING,
            **changes,
        },
    )
    out = work / name
    environment = {**os.environ, "RETRACE_TRACKING": "off", "RETRACE_STATE": str(out / "state")}
    environment["PYTHONPATH"] = str(PROJECT)
    notes = out / "lateness"
    notes.mkdir(parents=True, exist_ok=True)
    # Not `-m`, because the replicas' processes must import the sampler's module by its name.
    command = [sys.executable, "-c", "from benchmarks.virtual_sampler import main; main()", str(notes)]
    with open(out / "log", "wb") as log:
        round_ = subprocess.Popen([*command, *rl_flags(work, params, out)], cwd=PROJECT, env=environment, stderr=log)
        ended: dict[int, float] = {}
        while round_.poll() is None:
            for file in out.glob("state/scratch/rl_round-*/rollouts/*.parquet"):
                ended.setdefault(int(file.stem), time.monotonic())
            time.sleep(0.02)
    if round_.returncode:
        raise SystemExit(f"{name} failed:\n" + (out / "log").read_text(encoding="utf-8")[-2000:])
    frame = read_table(out / "rl_1.parquet", ROLLOUT)
    counted = range(LEFT_OUT + 1, steps + LEFT_OUT + 1)
    seconds = ended[counted[-1]] - ended[LEFT_OUT]
    tokens = int(frame[frame["step"].isin(counted)]["response_tokens"].sum())
    lateness = max(float(note.read_text()) for note in notes.iterdir())
    last = max(ended)
    whole = (ended[last] - ended[1]) / (last - 1)
    return Measured(seconds / steps, whole, tokens / seconds, lateness, _training_seconds(out))


def _training_seconds(out: Path) -> float:
    """Returns the training time of a step, from the timeline if there is one."""
    path = out / "schedules/rl_1/timeline.json"
    if not path.exists():
        return 0.0
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    trains = [event["dur"] / 1e6 for event in events if event["ph"] == "X" and event["name"] == "train"]
    return statistics.median(trains)


def _report(work: Path, runs: dict[str, list[Measured]]) -> dict[str, Any]:
    """Returns medians, ratios, rejected figures, and the simulator's results."""
    median = {name: statistics.median(run.seconds_per_step for run in of) for name, of in runs.items()}
    whole = {name: statistics.median(run.whole_seconds_per_step for run in of) for name, of in runs.items()}
    tokens = {name: statistics.median(run.tokens_per_second for run in of) for name, of in runs.items()}
    late = {name: max(run.lateness for run in of) for name, of in runs.items()}
    training = statistics.median(run.training_seconds for run in runs["asynchronous"])
    frame = read_table(work / "synchronous-0/rl_1.parquet", ROLLOUT)
    lengths = [list(tokens) for _, tokens in frame.groupby(frame.index // MEMBERS)["response_tokens"]]
    simulated = simulate_devices(lengths, GROUPS, training)
    return {
        "seconds_per_step": median,
        "spread": {
            name: [min(one.seconds_per_step for one in of), max(one.seconds_per_step for one in of)]
            for name, of in runs.items()
        },
        "ratio_to_synchronous": {name: median["synchronous"] / value for name, value in median.items()},
        "whole_seconds_per_step": whole,
        "tokens_per_second": tokens,
        "repack_tokens_gain": tokens["asynchronous_repack"] / tokens["asynchronous"] - 1,
        "training_seconds": training,
        "lateness_max": late,
        "simulated": {name: asdict(one) for name, one in simulated.items()},
        "clock_over_simulated": {name: median[name] / simulated[name].seconds_per_step for name in median},
        "refused": [name for name, value in late.items() if value > MOST_LATENESS],
    }


class Repeating(list[list[int]]):
    """Lengths of groups, from the first again after the last."""

    def __getitem__(self, group: int) -> list[int]:
        return super().__getitem__(group % len(self))


@dataclass(frozen=True)
class DeviceRun:
    seconds_per_step: float
    tokens_per_second: float
    """Drawn by all devices."""
    consumed_staleness_mean: float
    consumed_staleness_max: int
    idle_share: float
    """Of the devices' time, without a sequence."""


def simulate_devices(
    groups: Sequence[Sequence[int]], groups_per_step: int, training_seconds: float, device: Device = DEVICE
) -> dict[str, DeviceRun]:
    """Simulates each contender on `DEVICES` devices that sleep, with a trainer on another device.

    `groups` has the response tokens of each group in the order of issue. A step trains on `groups_per_step` whole
    groups for `training_seconds`. Sending weights takes no time.
    """
    step = DecodeStep(device.step_seconds, read=0.0, read_token=0.0, multiply=device.sequence_seconds)
    machine = ClusterSplit(
        sizes=ReplicaSizes(
            step=step,
            prefill_token=0.0,
            prompt_tokens=0,
            prefilled_prompt=0.0,
            kv_tokens=float("inf"),
            admitted_tokens=float("inf"),
            most_sequences=1_000_000,
        ),
        replicas=DEVICES,
        rollout_gpus=DEVICES,
        groups=groups_per_step,
        group_size=max(map(len, groups)),
        update_seconds=lambda tokens: training_seconds,
        minibatches=1,
        switch_seconds=0.0,
        collective_seconds=0.0,
        push_seconds=0.0,
        broadcast_seconds=0.0,
        pull_seconds=0.0,
        batch_bound=BATCH_BOUND,
        repack_seconds=REPACK_SECONDS,
    )
    lengths = Repeating(groups)
    outcomes = {
        "synchronous": synchronous(machine, lengths, SIMULATED_STEPS),
        "asynchronous": asynchronous(machine, lengths, LEFT_OUT, SIMULATED_STEPS, AsynchronousSchedule(False)),
        "asynchronous_repack": asynchronous(machine, lengths, LEFT_OUT, SIMULATED_STEPS, AsynchronousSchedule(True)),
    }
    return {
        name: DeviceRun(
            one.seconds_per_step, one.tokens_per_second, one.consumed_mean, one.consumed_max, one.idle_share
        )
        for name, one in outcomes.items()
    }


if __name__ == "__main__":
    sys.exit(main())
