r"""Compares the verifier with math-verify on the same rows and cores, in one run; then 10,000 hostile responses.

For each file of rows (`gold`, `pred` or `prediction`, optionally `expected`) both contenders take turns, A B A B ...,
after a warm-up turn each. Ours is `Verifier.judge` over all rows with WORKERS workers. math-verify is `parse` and
`verify` with its defaults (including time limits), in WORKERS processes that each take every WORKERS-th row. Start-up
time is excluded for both. Seconds are wall-clock; ratios pair turns of the same number.

With --towers N the rows of the first file are judged again with N additional towers of powers, giant factorials, sums
and products, drawn by --seed (`tests/fakes/unearned_answers.py`). The limit is --limit seconds: of computing time per
row in a worker for ours, and for each of its two parses and its comparison for math-verify. The processes of
math-verify judge towers one by one. They are killed if they exceed this limit or the memory limit of our workers.

The hostile part judges attacking responses (`tests/fakes/hostile_answers.py`), counts verdicts, time and memory, and
repeats the first file to compare its throughput before and after, in CPU time of this process.

Command: python -m benchmarks.verifier --rows cases.jsonl.gz=5 --rows model_outputs.jsonl.gz=10 [--towers 32=10]
         [--limit 5] [--repeats 5] [--workers 2] [--hostile 10000] [--seed 11]
A number after = is the required speed-up. Exit code 1 when one is missed or a hostile response is judged as correct,
2 when a file is missing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import resource
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.math_verify_peers import MEMORY_MIB, Peers, PeerVerdict, judge_towers
from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.foundations.errors import UserError
from stages.observe.command import run_stage
from stages.observe.progress import say
from tests.fakes.hostile_answers import hostile_pairs
from tests.fakes.unearned_answers import drawn, towers

_WARM_UP = (r"\sum_{k=1}^{5} k", "15")
_CALM_TURNS = 9
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    """Prints one table and exits with 1 when a requirement is missed."""
    arguments = parse(argv)
    params = VerifierParams(
        timeout_seconds=arguments.limit, memory_mib=MEMORY_MIB, workers=arguments.workers, abort_undecided_fraction=1.0
    )
    say(f"{os.cpu_count()} cores, {arguments.workers} workers, load {os.getloadavg()[0]:.1f}")
    is_met = True
    with Verifier(params) as verifier, Peers(arguments.workers, arguments.limit, _WARM_UP) as peers:
        verifier.judge([(_WARM_UP[0], _WARM_UP[1] + f"+{n}-{n}") for n in range(4 * arguments.workers)])
        files = [read_rows(text) for text in arguments.rows]
        for name, rows, asked in files:
            is_met &= compare(name, rows, asked, verifier, peers.judge, arguments.repeats)
        count, asked = (float(part or 0) for part in arguments.towers.partition("=")[::2])
        if count:
            name, rows, _ = files[0]
            high = drawn(towers, int(count), arguments.seed)
            with_towers = [*rows, *({"gold": gold, "pred": response} for gold, response in high)]

            def judge(pairs: list[tuple[str, str]]) -> list[PeerVerdict]:
                return peers.judge(pairs[: len(rows)]) + judge_towers(high, arguments.workers, arguments.limit)

            is_met &= compare(f"{name} with towers", with_towers, asked, verifier, judge, arguments.repeats, 0)
        if arguments.hostile:
            is_met &= attack(verifier, arguments, files[0][1] if files else [])
    if not is_met:
        raise SystemExit(1)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verifier", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", action="append", default=[], help="FILE.jsonl[.gz][=SPEED-UP], repeatable")
    parser.add_argument("--towers", default="0", help="COUNT[=SPEED-UP]")
    parser.add_argument("--limit", type=int, default=5, help="seconds for a row")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hostile", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=11)
    return parser.parse_args(argv)


def read_rows(text: str) -> tuple[str, list[Row], float]:
    """Returns name, rows and required speed-up of one --rows argument; UserError when the file is missing."""
    name, _, asked = text.partition("=")
    path = Path(name)
    if not path.exists():
        raise UserError(f"{path}: no such file")
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return path.name, [json.loads(line) for line in content.splitlines() if line.strip()], float(asked or 0)


def pair(row: Row) -> tuple[str, str]:
    return str(row["gold"]), str(row.get("prediction", row.get("pred")))


def compare(
    name: str,
    rows: list[Row],
    asked: float,
    verifier: Verifier,
    judge: Callable[[list[tuple[str, str]]], list[PeerVerdict]],
    repeats: int,
    warm_ups: int = 1,
) -> bool:
    """Runs turns of both contenders over `rows`; returns True when the median ratio reaches `asked`."""
    pairs = [pair(row) for row in rows]
    ours, theirs = [], []
    for turn in range(warm_ups + repeats):
        our_verdicts, our_seconds = timed(lambda: [one.verdict == "correct" for one in verifier.judge(pairs)])
        their_verdicts, their_seconds = timed(lambda: judge(pairs))
        if turn >= warm_ups:
            ours.append(our_seconds)
            theirs.append(their_seconds)
    ratios = sorted(their / our for our, their in zip(ours, theirs, strict=True))
    median = statistics.median(ratios)
    say(
        f"{name}: {len(rows)} rows; ours {len(rows) / statistics.median(ours):.0f} rows/s, math-verify "
        f"{len(rows) / statistics.median(theirs):.0f} rows/s; {median:.1f} times as fast "
        f"({ratios[0]:.1f} to {ratios[-1]:.1f}, {repeats} turns)"
    )
    if all("expected" in row for row in rows):
        for who, verdicts in (("ours", our_verdicts), ("math-verify", their_verdicts)):
            right = sum((said is True) == row["expected"] for said, row in zip(verdicts, rows, strict=True))
            false = sum(said is True and not row["expected"] for said, row in zip(verdicts, rows, strict=True))
            say(f"{name}: {who} agrees on {right / len(rows):.4f}, false correct {false}")
    raised = Counter(said for said in their_verdicts if isinstance(said, str))
    say(f"{name}: math-verify raised {raised.total()} exceptions {dict(raised)}")
    return median >= asked


def attack(verifier: Verifier, arguments: argparse.Namespace, rows: list[Row]) -> bool:
    """Judges hostile responses; returns True when none is judged as correct and all workers are alive afterwards."""
    calm = [pair(row) for row in rows]
    before = statistics.median(cpu_seconds(verifier, calm) for _ in range(_CALM_TURNS))
    pairs = hostile_pairs(arguments.hostile, arguments.seed)
    judged, seconds = timed(lambda: verifier.judge(pairs))
    deadline = time.monotonic() + 30
    while len(verifier.worker_pids()) < arguments.workers and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = len(verifier.worker_pids())
    after = statistics.median(cpu_seconds(verifier, calm) for _ in range(_CALM_TURNS))
    verdicts = Counter(one.verdict.value for one in judged)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    say(
        f"hostile: {len(judged)} responses in {seconds:.1f} s; {dict(verdicts)}; asked math-verify about "
        f"{sum(one.path == 'math_verify' for one in judged)}; peak memory here {peak:.0f} MiB; {workers} of "
        f"{arguments.workers} workers alive"
    )
    if calm:
        say(f"throughput after them: {before / after:.2f} times that before")
    return not verdicts["correct"] and workers == arguments.workers


def cpu_seconds(verifier: Verifier, pairs: list[tuple[str, str]]) -> float:
    """Returns CPU seconds of this process: a turn is so short that wall-clock time would measure other load."""
    started = time.process_time()
    verifier.judge(pairs)
    return time.process_time() - started


def timed(call) -> tuple[Any, float]:
    started = time.perf_counter()
    result = call()
    return result, time.perf_counter() - started


if __name__ == "__main__":
    run_stage(main)
