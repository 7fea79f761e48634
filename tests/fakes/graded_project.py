"""A small project as after a `dvc repro`: tables, metrics, curves and a matching `dvc.lock`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import yaml

from stages.foundations.files import dvc_md5, write_curves, write_json, write_metrics, write_text_atomically
from stages.foundations.tables import RESPONSE, VERDICT, write_table

POLICIES = ("sft", "rl_1")
STAGES: dict[str, tuple[Sequence[str], Sequence[str], Sequence[str]]] = (
    {
        "base": (["data/code/base.json"], ["seed"], ["data/policies/base", "data/metrics/base.json"]),
        "collect@train": (["data/code/collect.json"], ["sources.train"], ["data/problems/collected/train.parquet"]),
        "curate": (["data/code/curate.json", "data/problems/collected"], ["seed"], ["data/problems/train.parquet"]),
        "sft": (
            ["data/code/sft.json", "data/policies/base", "data/problems/train.parquet"],
            ["seed", "sft"],
            ["data/policies/sft", "data/curves/sft.csv", "data/metrics/sft.json"],
        ),
        "rl_round@rl_1": (
            ["data/code/rl_round.json", "data/policies/sft", "data/problems/train.parquet"],
            ["seed", "rl", "rl_rounds.rl_1"],
            ["data/policies/rl_1", "data/curves/rl_round/rl_1.csv", "data/metrics/rl_round/rl_1.json"],
        ),
    }
    | {
        f"respond@{policy}": (
            ["data/code/respond.json", f"data/policies/{policy}"],
            ["seed"],
            [f"data/responses/{policy}.parquet", f"data/metrics/respond/{policy}.json"],
        )
        for policy in POLICIES
    }
    | {
        f"grade@{policy}": (
            ["data/code/grade.json", f"data/responses/{policy}.parquet"],
            ["grade"],
            [f"data/verdicts/{policy}.parquet", f"data/metrics/grade/{policy}.json"],
        )
        for policy in POLICIES
    }
)
PARAMS = {
    "seed": 0,
    "sources": {"train": {"from": {"kind": "url", "url": "https://example.org/train.jsonl", "sha256": "ab" * 32}}},
    "sft": {"learning_rate": 0.1, "epochs": 1},
    "rl": {"group_size": 4, "policy_loss": {"clip_high": 0.28}},
    "rl_rounds": {"rl_1": {"start_from": "sft", "steps": 2}},
    "policies": list(POLICIES),
    "grade": {"pass_at_k": [4]},
}


def answers(chances: Sequence[float], samples: int = 4, seed: int = 0, name: str = "sums") -> list[dict[str, Any]]:
    """Returns responses with verdicts: problem i is correct with chance `chances[i]`, if greedy when it exceeds 0.5."""
    generator, rows = numpy.random.default_rng(seed), []
    for number, chance in enumerate(chances):
        draws = [("greedy", 0, chance > 0.5)]
        draws += [("sampled", place, bool(generator.random() < chance)) for place in range(samples)]
        for mode, place, is_correct in draws:
            said = "4" if is_correct else str(5 + place % 2)
            rows.append(
                {
                    "problem_id": f"{name}/{number}",
                    "benchmark": name,
                    "mode": mode,
                    "sample_index": place,
                    "problem": f"What is {number}+4-{number}?",
                    "answer": "4",
                    "response": f"The answer is {said}.",
                    "response_tokens": 5,
                    "is_truncated": False,
                    "verdict": "correct" if is_correct else "wrong",
                    "extracted": said,
                    "path": "exact",
                    "reason": "",
                }
            )
    return rows


def write_answers(root: Path, policy: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the response and verdict tables of a policy, and matching metrics."""
    keys = ["problem_id", "benchmark", "mode", "sample_index"]
    judged = ["verdict", "extracted", "path", "reason"]
    asked = [{key: value for key, value in row.items() if key not in judged} for row in rows]
    write_table(asked, root / f"data/responses/{policy}.parquet", RESPONSE)
    write_table(
        [{key: row[key] for key in keys + judged} for row in rows], root / f"data/verdicts/{policy}.parquet", VERDICT
    )
    write_metrics(root / f"data/metrics/respond/{policy}.json", {"rows/kept": len(rows)})
    share = sum(row["verdict"] == "correct" for row in rows) / len(rows)
    write_metrics(root / f"data/metrics/grade/{policy}.json", {"sums/avg_at_4": share, "rows/kept": len(rows)})


def write_project(root: Path, seed: int = 0, chances: Mapping[str, Sequence[float]] | None = None) -> Path:
    """Writes all files that a run of the graph with this seed leaves."""
    chances = chances or {"sft": [0.2] * 30, "rl_1": [0.9] * 30}
    for policy in POLICIES:
        write_answers(root, policy, answers(chances[policy], seed=seed + 1))
    for policy in ("base", *POLICIES):
        write_json(root / f"data/policies/{policy}/config.json", {"policy": policy, "seed": seed})
    for stage in ("base", "collect", "curate", "sft", "rl_round", "respond", "grade"):
        write_json(root / f"data/code/{stage}.json", {f"stages/{stage}/__main__.py": "0" * 64})
    for table in ("problems/collected/train", "problems/train"):
        write_text_atomically(root / f"data/{table}.parquet", f"{table} of seed {seed}")
    write_metrics(root / "data/metrics/base.json", {"parameters": 100 + seed})
    write_metrics(root / "data/metrics/sft.json", {"loss/train_last": 0.5 + seed})
    write_metrics(root / "data/metrics/rl_round/rl_1.json", {"reward/mean_last": 0.75 + seed})
    write_curves(root / "data/curves/sft.csv", [{"step": 1, "loss/train": 2.0}, {"step": 2, "loss/train": 0.5 + seed}])
    write_curves(root / "data/curves/rl_round/rl_1.csv", [{"step": step, "reward/mean": step / 4} for step in (1, 2)])
    write_text_atomically(root / "params.yaml", yaml.safe_dump(PARAMS | {"seed": seed}, sort_keys=False))
    write_lock(root)
    return root


def write_lock(root: Path) -> None:
    """Writes a `dvc.lock` of the existing files."""
    params, stages = yaml.safe_load((root / "params.yaml").read_text()), {}
    for name, (deps, sections, outs) in STAGES.items():
        stages[name] = {
            "cmd": f"python -m stages.{name.partition('@')[0]} --params params.yaml",
            "deps": [_listed(root, path) for path in deps],
            "params": {"params.yaml": {section: _value(params, section) for section in sections}},
            "outs": [_listed(root, path) for path in outs],
        }
    write_text_atomically(root / "dvc.lock", yaml.safe_dump({"schema": "2.0", "stages": stages}, sort_keys=False))


def _listed(root: Path, path: str) -> dict[str, Any]:
    return {"path": path, "hash": "md5", "md5": dvc_md5(root / path), "size": 10}


def _value(params: Any, name: str) -> Any:
    for part in name.split("."):
        params = params[part]
    return params


def write_kept_run(results: Path, made: Path, variant: str, seed: int) -> None:
    """Stores the project `made` as `retrace ablate mini` keeps one of its runs."""
    place = results / f"{variant}-{seed}"
    for kind in ("verdicts", "metrics", "curves"):
        shutil.copytree(made / "data" / kind, place / kind)
    shutil.copy(made / "dvc.lock", place / "dvc.lock")
    about = {"ablation": "mini", "variant": variant, "seed": seed, "policy": "rl_1", "commit": "", "is_dirty": False}
    write_json(place / "run.json", about)


def commit_all(root: Path, message: str) -> str:
    """Commits the project's files that git may hold, so no tables and policies. Returns the commit."""
    if not (root / ".git").exists():
        git(root, "init", "-q", "-b", "main")
        (root / ".gitignore").write_text("data/*\n!data/metrics\n!data/curves\nstate/\n.dvc/\nreports/\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", message)
    return git(root, "rev-parse", "HEAD").strip()


def git(root: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
