"""Recall of decontamination on planted leaks by kind, and the number of real rows that each rule hits.

    python -m benchmarks.planted_leaks [--mirror MIRROR_FOLDER] [--every 1] [--show 0]

Benchmarks are GSM8K test (1,319) and MATH-500; the real rows are from sources that claim to share no problem with them.
A hit there does not prove a false alarm: both train files have problems of the same templates. `--show N` prints N hits
of each source with both texts, for manual review.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from stages.algorithms.decontamination import BenchmarkProblem, Contamination
from tests.fakes.planted_leaks import planted, read_mirror, recall_by_kind, recipe_rules

PROJECT = Path(__file__).resolve().parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mirror", type=Path, default=PROJECT.parent / "shared" / "data" / "mirror")
    parser.add_argument("--every", type=int, default=1, help="take every n-th row")
    parser.add_argument("--show", type=int, default=0, help="hits to print of each source")
    flags = parser.parse_args()
    if not flags.mirror.is_dir():
        sys.exit(f"{flags.mirror} does not exist: name the folder of mirrored files with --mirror")
    stories = read_mirror(flags.mirror, "gsm8k/test", "question")
    formulas = read_mirror(flags.mirror, "math/math500", "problem")
    problems = [BenchmarkProblem("gsm8k_test", str(i), text) for i, text in enumerate(stories)]
    problems += [BenchmarkProblem("math500", str(i), text) for i, text in enumerate(formulas)]
    index = Contamination(problems, recipe_rules())
    for kind, (found, count) in recall_by_kind(index, planted(stories[:: flags.every], formulas)).items():
        print(f"recall {kind:24} {found / count:6.1%}  {found} of {count}")
    sources = (
        ("gsm8k/train", "question"),
        ("math/train", "problem"),
        ("aime/aime_1983_2023", "problem"),
        ("mmlu_stem/test", "question"),
        ("theoremqa/test", "Question"),
    )
    for name, field in sources:
        rows = read_mirror(flags.mirror, name, field)[:: flags.every]
        started = time.process_time()
        hits = [(row, hit) for row in rows if (hit := index.find(row))]
        seconds = time.process_time() - started
        by_rule = ", ".join(f"{rule} {number}" for rule, number in Counter(hit.rule for _, hit in hits).most_common())
        print(
            f"hits {name:20} {len(hits) / len(rows):6.2%}  {len(hits)} of {len(rows)} rows ({by_rule}), "
            f"{1000 * seconds / len(rows):.2f} ms a row"
        )
        for row, hit in hits[:: max(1, len(hits) // max(1, flags.show))][: flags.show]:
            print(
                f"    {hit.rule} {hit.overlap:.2f}",
                f"row  {row[:220]!r}",
                f"test {hit.benchmark_problem[:220]!r}",
                sep="\n      ",
            )


if __name__ == "__main__":
    main()
