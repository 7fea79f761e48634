"""Compares token statistics from hidden states with the plain path that stores the logits: time and peak memory.

Each repeat of each path runs in a separate process; the paths alternate. Memory is the peak of the process's resident
set (on a GPU, of the allocator) above its size with the inputs, including gradients. Three paths:

    ours          token_statistics: log-probability, entropy and sum of squares, gradient through the log-probability
    naive         log_softmax and gather: only the log-probability
    naive_three   the same with entropy and sum of squares, which then need no gradient

`forward` is only the forward pass without gradient, `both` forward and backward, `cpu` the processor time of both. On a
shared machine, with --threads 1, the ratio of `cpu` is the most reliable.

Command: python -m benchmarks.token_statistics [--tokens 4096 --vocabulary 151936 --hidden 1024 --device cpu]
Exit code 1 when ours needs more than an eighth of naive's memory or 1.3 times its time.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from stages.algorithms.token_statistics import token_statistics

MOST_MEMORY, MOST_TIME = 1 / 8, 1.3  # of the naive path
PATHS = ("ours", "naive", "naive_three")


def main() -> None:
    arguments = parse()
    if arguments.measure:
        print(json.dumps(measure(arguments)))
        return
    print(
        f"{arguments.tokens} tokens, vocabulary {arguments.vocabulary}, hidden {arguments.hidden}, "
        f"{arguments.dtype}, {arguments.device}, {arguments.repeats} repeats, threads {arguments.threads or 'all'}"
    )
    measured: dict[str, list[dict[str, float]]] = {path: [] for path in PATHS}
    for _ in range(arguments.repeats):
        for path in PATHS:
            measured[path].append(run_apart(path))
    for path in PATHS:
        for name, unit in (("forward", "s"), ("both", "s"), ("cpu", "s"), ("memory", "GiB")):
            print(f"{path:12} {name:8} {spread([row[name] for row in measured[path]])} {unit}")
    is_good = True
    for path in PATHS[1:]:
        time_ratio, cpu_ratio, memory_ratio = (ratio(measured, path, key) for key in ("both", "cpu", "memory"))
        print(f"ours / {path:12} time {time_ratio:.3f}   cpu {cpu_ratio:.3f}   memory {memory_ratio:.4f}")
        is_good = is_good and (path != "naive" or (time_ratio <= MOST_TIME and memory_ratio <= MOST_MEMORY))
    sys.exit(0 if is_good else 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch takes")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--chunk-tokens", type=int, default=None)
    parser.add_argument("--measure", choices=PATHS, help="measure one path in this process and print it as JSON")
    return parser.parse_args()


def run_apart(path: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.token_statistics", *sys.argv[1:], "--measure", path]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Returns seconds of the forward pass without gradient, of forward and backward, and peak GiB above the inputs."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    path = make_path(arguments.measure, arguments.chunk_tokens)
    run(path, inputs(64, 100, 32, arguments))  # starts threads and libraries before the clock starts
    tensors = inputs(arguments.tokens, arguments.vocabulary, arguments.hidden, arguments)
    before, cpu_before = held(arguments.device), time.process_time()
    both = run(path, tensors)
    cpu = time.process_time() - cpu_before
    memory = peak(arguments.device) - before
    with torch.no_grad():
        forward = timed(lambda: path(*tensors[:3]), arguments.device)
    return {"forward": forward, "both": both, "cpu": cpu, "memory": memory / 2**30}


def make_path(name: str, chunk_tokens: int | None):
    def naive(hidden, head, token_ids):
        logprobs = (hidden @ head.T).float().log_softmax(-1)
        return logprobs.gather(-1, token_ids[..., None])[..., 0]

    def naive_three(hidden, head, token_ids):
        logprobs = (hidden @ head.T).float().log_softmax(-1)
        with torch.no_grad():
            probs = logprobs.exp()
            (probs * logprobs).sum(-1)
            probs.square_().sum(-1)
        return logprobs.gather(-1, token_ids[..., None])[..., 0]

    def ours(hidden, head, token_ids):
        return token_statistics(hidden, head, token_ids, chunk_tokens=chunk_tokens).logprobs

    return {"naive": naive, "naive_three": naive_three, "ours": ours}[name]


def inputs(tokens: int, vocabulary: int, width: int, arguments: argparse.Namespace) -> tuple:
    torch.manual_seed(0)
    place = {"device": arguments.device, "dtype": getattr(torch, arguments.dtype)}
    hidden = torch.randn(1, tokens, width, **place).requires_grad_()
    head = torch.randn(vocabulary, width, **place).mul_(width**-0.5).requires_grad_()
    token_ids = torch.randint(vocabulary, (1, tokens), device=arguments.device)
    return hidden, head, token_ids, torch.randn(1, tokens, device=arguments.device)


def run(path, tensors: tuple) -> float:
    hidden, head, token_ids, advantages = tensors
    return timed(lambda: (path(hidden, head, token_ids) * advantages).sum().backward(), hidden.device.type)


def timed(work, device: str) -> float:
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    synchronise()
    start = time.perf_counter()
    work()
    synchronise()
    return time.perf_counter() - start


def held(device: str) -> float:
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return status_bytes("VmRSS")


def peak(device: str) -> float:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return status_bytes("VmHWM")


def status_bytes(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024.0 * int(line.split()[1])
    raise OSError(f"/proc/self/status has no {field}: memory can only be measured on Linux")


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):8.3f} ({min(values):.3f} to {max(values):.3f})"


def ratio(measured: dict[str, list[dict[str, float]]], path: str, name: str) -> float:
    ours, other = ([row[name] for row in measured[key]] for key in ("ours", path))
    return statistics.median(ours) / statistics.median(other)


if __name__ == "__main__":
    main()
