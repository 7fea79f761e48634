"""A git and DVC project with the graph's shape and almost no computation, for retraining.

A policy's skill is the mean `skill` of its training rows; it answers problem i of n if i / n < skill. Rows may also
have `garbled` (a share of unreadable responses) and `leak` (a benchmark problem that they contain).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

DVC_YAML = """
stages:
  collect:
    foreach: ${sources}
    do:
      cmd: python stage.py collect ${key}
      params: ['sources.${key}']
      outs: ['data/problems/collected/${key}.json']
  curate:
    cmd: python stage.py curate data/problems/benchmarks.parquet
    deps: [data/problems/collected]
    outs: [data/problems/benchmarks.parquet]
  rl_round:
    foreach: ${rl_rounds}
    do:
      cmd: python stage.py rl_round data/policies/${key}
      deps: [data/problems/collected]
      params: ['rl_rounds.${key}']
      outs: ['data/policies/${key}']
  respond:
    foreach: ${policies}
    do:
      cmd: python stage.py respond data/policies/${item} data/problems/benchmarks.parquet data/responses/${item}.parquet
      deps: ['data/policies/${item}', data/problems/benchmarks.parquet]
      outs: ['data/responses/${item}.parquet']
  grade:
    foreach: ${policies}
    do:
      cmd: python stage.py grade data/responses/${item}.parquet data/verdicts/${item}.parquet data/metrics/${item}.json
      deps: ['data/responses/${item}.parquet']
      outs: ['data/verdicts/${item}.parquet']
      metrics: [{'data/metrics/${item}.json': {cache: false}}]
"""
STAGE = """
import json, sys, pathlib, yaml
params = yaml.safe_load(open("params.yaml"))
what, *rest = sys.argv[1:]
names = [pathlib.Path(name) for name in rest]
for name in names if what != "collect" else ():
    name.parent.mkdir(parents=True, exist_ok=True)
def collected(role):
    files = sorted(pathlib.Path("data/problems/collected").glob("*.json"))
    return [row for file in files if params["sources"][file.stem]["role"] == role for row in json.loads(file.read_text())]
if what == "collect":
    rows = [json.loads(line) for line in open(params["sources"][rest[0]]["from"]["path"])]
    out = pathlib.Path(f"data/problems/collected/{rest[0]}.json")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows))
elif what == "rl_round":
    rows = collected("train")
    names[0].mkdir()
    mean = lambda key: sum(row.get(key, 0) for row in rows) / len(rows)
    (names[0] / "weights.json").write_text(json.dumps({key: mean(key) for key in ("skill", "garbled")}))
else:
    import pandas
    if what == "curate":
        pandas.DataFrame(collected("benchmark")).to_parquet(names[0])
    elif what == "respond":
        policy = json.loads((names[0] / "weights.json").read_text())
        problems = pandas.read_parquet(names[1])
        pandas.DataFrame([
            {"problem_id": f"held_out/{i}", "benchmark": "bench", "mode": "sampled", "sample_index": sample,
             "problem": row.problem, "answer": row.answer, "response_tokens": 1, "is_truncated": False,
             "response": "?" if i < policy["garbled"] * len(problems) else str(int(i < policy["skill"] * len(problems)))}
            for i, row in enumerate(problems.itertuples()) for sample in range(2)]).to_parquet(names[2])
    elif what == "grade":
        rows = pandas.read_parquet(names[0])
        verdict = rows["response"].map({"1": "correct", "0": "wrong", "?": "unparsed"})
        kept = rows[["problem_id", "benchmark", "mode", "sample_index"]]
        nothing = pandas.Series([""] * len(rows), dtype="string")
        kept.assign(verdict=verdict, extracted=nothing, path=nothing, reason=nothing).to_parquet(names[1])
        names[2].write_text(json.dumps({"bench/avg_at_2": float((verdict == "correct").mean())}))
"""  # noqa: E501
PROBLEMS = 40


def held_out(prefix: str = "problem") -> list[dict[str, Any]]:
    return [{"problem": f"{prefix} {number}", "answer": str(number)} for number in range(PROBLEMS)]


def make_project(folder: Path) -> Path:
    """Makes the project with one commit; recipe `laptop`, policy `rl_1`, skill one half."""
    folder.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=folder, check=True)
    (folder / "dvc.yaml").write_text(DVC_YAML)
    (folder / "stage.py").write_text(STAGE)
    (folder / ".gitignore").write_text(
        "/state/\n" + "".join(f"/data/{name}/\n" for name in ("problems", "policies", "responses", "verdicts"))
    )
    (folder / ".dvcignore").write_text("state/\n")
    sources = {}
    for name, role, rows in (("lessons", "train", [{"skill": 0.5}]), ("held_out", "benchmark", held_out())):
        path = write_rows(folder / "given" / f"{name}.jsonl", rows)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        fields = {"problem": "problem", "answer": "answer", "solution": None}
        kept = {"format": "jsonl", "fields": fields, "only": {}, "max_rows": None}
        origin = {"kind": "local", "path": f"given/{name}.jsonl", "sha256": sha256, **kept}
        sources[name] = {"role": role, "licence": "test", "from": origin}
    params = {"sources": sources, "policies": ["rl_1"], "rl_rounds": {"rl_1": {"steps": 1}}}
    recipe = folder / "pipelines" / "recipes" / "laptop.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(yaml.safe_dump(params, sort_keys=False))
    shutil.copy(recipe, folder / "params.yaml")
    for command in (["add", "-A"], ["-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qm", "start"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Writes a JSONL file with a modification time that is old enough."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (time.time() - 60,) * 2)
    return path
