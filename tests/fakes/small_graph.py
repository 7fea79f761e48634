"""A git repository with a small real DVC graph: code, weights in a folder, answers of two policies, and a page."""

from __future__ import annotations

from pathlib import Path

from tests.fakes.graded_project import git

DVC_YAML = """
stages:
  code:
    cmd: python make.py code data/code.json
    deps: [make.py]
    outs: [data/code.json]
  base:
    cmd: python make.py base data/policies/base
    deps: [data/code.json]
    params: [base]
    outs: [data/policies/base]
  respond:
    foreach: ${answered}
    do:
      cmd: python make.py respond data/metrics/${item}.json data/responses/${item}.csv
      deps: [data/policies/base]
      params: [respond]
      outs: ['data/responses/${item}.csv']
      metrics:
        - data/metrics/${item}.json: {cache: false}
  report:
    cmd: python make.py report reports/index.html
    deps: [data/responses, data/metrics]
    params: [report]
    outs: [reports/index.html]
"""
# Outputs of stages named in `PLANTED` differ a little or much, as after a change of a library.
MAKE = """
import json, os, pathlib, sys
name, *outs = sys.argv[1:]
added = json.loads(os.environ.get("PLANTED", "{}")).get(name, 0.0)
if added == "failure":
    sys.exit("the cause")
with open(os.environ.get("RAN", os.devnull), "a") as ran:
    ran.write(name + "\\n")
for out in map(pathlib.Path, outs):
    out.parent.mkdir(parents=True, exist_ok=True)
    if name == "base":
        out.mkdir()
        (out / "config.json").write_text(json.dumps({"hidden": 4 + added}))
    elif name == "report":
        out.write_text(" ".join(sorted(path.name for path in pathlib.Path("data").glob("*/*.*"))))
    elif out.suffix == ".csv":
        out.write_text("step,loss\\n1,0.5\\n")
    else:
        out.write_text(json.dumps({"stage": name, "score": 0.25 + added}))
"""
FILES = {
    ".dvc/.gitignore": "/config.local\n/tmp\n/cache\n",
    ".dvc/config": "[core]\n    analytics = false\n",
    ".dvcignore": "state/\n",
    ".gitignore": "/data/code.json\n/data/policies/\n/data/responses/\n/reports/\n/state/\n",
    "dvc.yaml": DVC_YAML,
    "make.py": MAKE,
    "params.yaml": "base: {rate: 5.0e-6}\nrespond: 1\nreport: 1\nanswered: [a, b]\n",
}


def small_graph(folder: Path) -> Path:
    """Makes the repository, in which nothing has run or is committed."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q")
    return folder
