"""Time for which publishing weights stops a trainer, with 1 and with 8 replicas that pull each version.

    python -m benchmarks.publishing --out publishing.json        (repeats, mebibytes: see --help)

A substitute for the trainer multiplies matrices; after each "step" it publishes weights of the given size. Meanwhile,
replicas in Ray actors pull every version (they copy it into their weights). The stall is the time of `publish`. Blocks
with 1 and with 8 replicas alternate, so that other load of the machine is the same for both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import closing
from pathlib import Path

import torch

from stages.engines.distributed.ray_session import ray_session, this_node
from stages.engines.relays.published_weights import PublishedWeights, weights_folder
from stages.engines.replicas.fleet import Fleet, ReplicaSpec, Reported
from stages.engines.replicas.replica import Orders

TENSORS = 40


class Holder:
    """A substitute for a sampler that only copies the weights."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.policy_version = 0
        self.weights: dict[str, torch.Tensor] = {}

    def load_weights(self, named_tensors, policy_version):
        for name, tensor in named_tensors:
            self.weights.setdefault(name, torch.empty_like(tensor)).copy_(tensor)
        self.policy_version = policy_version


def weights_of(mebibytes: float) -> dict[str, torch.Tensor]:
    """Returns random float32 tensors with this total size."""
    count = int(mebibytes * (1 << 20) / 4 / TENSORS)
    return {f"layers.{number}": torch.randn(count) for number in range(TENSORS)}


def train(seconds: float) -> None:
    """Computes for this many seconds."""
    matrix, ends = torch.randn(256, 256), time.monotonic() + seconds
    while time.monotonic() < ends:
        matrix = torch.nn.functional.normalize(matrix @ matrix.T)


class Publisher:
    """Publishes versions, orders replicas to pull them, and measures each publication."""

    def __init__(self, run: str, tensors: dict[str, torch.Tensor], step_seconds: float) -> None:
        self.weights = PublishedWeights(weights_folder(run, this_node()))
        self.tensors, self.step_seconds, self.version = tensors, step_seconds, 0

    def block(self, fleet: Fleet, repeats: int) -> tuple[list[float], int]:
        """Returns the stalls in seconds, and the number of pulls in that time."""
        stalls, pulls = [], 0
        for _ in range(repeats):
            train(self.step_seconds)
            for tensor in self.tensors.values():
                tensor.add_(1e-3)
            self.version += 1
            started = time.perf_counter()
            self.weights.publish(self.version, self.tensors.items())
            self.weights.prune(3)
            stalls.append(time.perf_counter() - started)
            for replica in fleet.started():
                fleet.order(replica, Orders(pull="newest"))
            # Does not wait: a replica may still pull while the next version is written.
            events = fleet.poll(0.0)
            pulls += sum(isinstance(one, Reported) and one.report.pulled is not None for one in events)
        return stalls, pulls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mebibytes", type=float, default=25.0)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--step-seconds", type=float, default=1.0)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    stalls: dict[int, list[list[float]]] = {count: [] for count in arguments.replicas}
    pulls = dict.fromkeys(arguments.replicas, 0)
    with ray_session(max(arguments.replicas) + 1) as run:
        publisher = Publisher(run, weights_of(arguments.mebibytes), arguments.step_seconds)
        for _ in range(arguments.blocks):
            for count in arguments.replicas:
                with closing(Fleet(ReplicaSpec(Holder, run), count, 30.0, 0.5)) as fleet:
                    while len(fleet.started()) < count:
                        fleet.poll(1.0)
                    block, pulled = publisher.block(fleet, arguments.repeats)
                stalls[count].append(block)
                pulls[count] += pulled
    result = {"mebibytes": arguments.mebibytes, "versions": arguments.blocks * arguments.repeats, "replicas": {}}
    for count, blocks in stalls.items():
        every = sorted(one for block in blocks for one in block)
        result["replicas"][count] = {
            "median_seconds": statistics.median(every),
            "p90_seconds": every[int(0.9 * len(every))],
            "max_seconds": every[-1],
            "pulls": pulls[count],
        }
    if len(stalls) == 2:
        few, many = stalls.values()
        ratios = sorted(statistics.median(b) / statistics.median(a) for a, b in zip(few, many, strict=True))
        result["ratio"] = {"median": statistics.median(ratios), "least": ratios[0], "most": ratios[-1]}
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
