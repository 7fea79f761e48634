"""Answers that only look correct, by class: how many the verifier accepts, with and without a marker, and their cost.

Random pairs come from `tests/fakes/unearned_answers.py`: gold answers, forms and errors of the answer. The last classes
are right answers, which must be accepted, and towers of powers, which must not reach a worker.

Command: python -m benchmarks.unearned [--count 200] [--seed 1] [--show 3]
Exit code 1 when a wrong answer is accepted, or a tower reaches a worker.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from stages.engines.verifier.params import VerifierParams
from stages.engines.verifier.verifier import Verifier
from stages.observe.command import run_stage
from stages.observe.progress import say
from tests.fakes.unearned_answers import EARNED, UNEARNED, drawn, towers


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.unearned", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--show", type=int, default=3, help="pairs to show of those that went wrong")
    arguments = parser.parse_args(argv)
    params = VerifierParams(timeout_seconds=5, memory_mib=1024, workers=2, abort_undecided_fraction=1)
    is_met = True
    with Verifier(params) as verifier:
        for kind, make in {**UNEARNED, **EARNED, "towers": towers}.items():
            pairs = drawn(make, arguments.count, arguments.seed)
            for is_reward in (True, False):
                started = time.process_time()
                judged = verifier.judge(pairs, require_marker=is_reward)
                seconds = time.process_time() - started
                found = [
                    (pair, one.verdict.value, one.reason)
                    for pair, one in zip(pairs, judged, strict=True)
                    if (one.verdict == "correct") != (kind in EARNED)
                    or (kind == "towers" and one.path == "math_verify")
                ]
                is_met &= not found
                say(
                    f"{kind}{' (reward)' if is_reward else ''}: {len(found)} of {len(pairs)} judged against the "
                    f"class, {seconds / len(pairs) * 1e6:.0f} us of this process each"
                )
                for line in found[: arguments.show]:
                    say(f"    {line}")
    if not is_met:
        raise SystemExit(1)


if __name__ == "__main__":
    run_stage(main)
