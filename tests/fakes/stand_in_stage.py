"""Replaces the stages in a copy of the project: the same files, no torch, and almost no time.

Outputs depend on the seed and the stage's parameters. `sft` takes a second, so that it can be killed. With seed 0,
`rl_round` is tracked, as the real stage is. `grade` writes a real verdict table.
"""

import csv
import hashlib
import json
import sys
import time
from pathlib import Path

import yaml

from stages.foundations.job import Job

PROBLEMS, SAMPLES = 12, 2
WITHOUT_SEED = ("collect", "extract_web", "grade")


def main(job: Job) -> None:
    stage, flags = job.name, {name: str(path) for name, path in vars(job.paths).items()}
    params = yaml.safe_load(job.paths.params.read_text())
    seed = 0 if stage in WITHOUT_SEED else params["seed"]
    own = [stage, job.item, seed, params.get(stage), params["rl"] if stage == "rl_round" else 0]
    made_of = [_content(Path(value)) for value in flags.values() if value.startswith("data/") and Path(value).exists()]
    digest = hashlib.sha256(json.dumps([own, made_of]).encode()).hexdigest()
    if stage == "sft":
        time.sleep(1.0)
    if stage == "rl_round":
        if params["rl"]["problems_per_step"] > 100:
            sys.exit("error: fewer problems than rl.problems_per_step")
        if params["seed"] == 0:
            _track(job, params)
    for value in flags.values():
        if value.startswith("data/") and not Path(value).exists():
            _write(stage, Path(value), digest)


def _content(path: Path) -> str:
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return "".join(hashlib.sha256(file.read_bytes()).hexdigest() for file in files if file.is_file())


def _track(job: Job, params: dict) -> None:
    from stages.observe.tracking import track

    with track(job.attempt({"rl": params["rl"]}, {}, policy=job.item, round=job.item)) as run:
        run.log({"accuracy/mean": 0.5}, 1)


def _write(stage: str, path: Path, digest: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    correct = [int(letter, 16) > 7 for letter in digest[: PROBLEMS * SAMPLES]]
    if path.suffix == ".json":
        accuracy = sum(correct) / len(correct)
        metrics = {f"arithmetic_held_out/avg_at_{SAMPLES}": accuracy} if stage == "grade" else {"rows/in": 1}
        path.write_text(json.dumps(metrics))
    elif path.suffix == ".csv":
        with open(path, "w") as file:
            csv.writer(file).writerows([["step", "length/response_tokens_mean"], [1, 20], [2, int(digest[:2], 16)]])
    elif stage == "grade" and path.suffix == ".parquet":
        from stages.foundations.tables import VERDICT, write_table

        rows = [
            {
                "problem_id": f"p{number // SAMPLES}",
                "benchmark": "arithmetic_held_out",
                "mode": "sampled",
                "sample_index": number % SAMPLES,
                "verdict": "correct" if is_correct else "wrong",
                **dict.fromkeys(("extracted", "path", "reason"), ""),
            }
            for number, is_correct in enumerate(correct)
        ]
        write_table(rows, path, VERDICT)
    elif path.suffix:
        path.write_text(digest)
    else:
        path.mkdir()
        (path / "weights").write_text(digest)
