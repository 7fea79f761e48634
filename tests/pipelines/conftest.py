"""A small real DVC project of three stages in a separate folder, and this project before its first run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.graph.recipes import use_recipe
from stages.foundations.machine import PROJECT

DVC_YAML = """
stages:
  first:
    cmd: python first.py
    deps: [first.py]
    params: [first]
    outs: [data/first.txt]
    metrics:
      - data/metrics/first.json: {cache: false}
  round:
    foreach: ${rounds}
    do:
      cmd: python round.py ${key}
      deps: [data/first.txt]
      params: ['rounds.${key}']
      metrics:
        - data/metrics/round/${key}.json: {cache: false}
  last:
    cmd: python last.py
    deps: [data/metrics, last.py]
    outs: [data/last.txt]
"""
FIRST = """
import json, pathlib
print("making the first")
pathlib.Path("data/metrics/round").mkdir(parents=True, exist_ok=True)
pathlib.Path("data/first.txt").write_text("one")
pathlib.Path("data/metrics/first.json").write_text(json.dumps({"rows/kept": 3}))
"""
ROUND = """
import json, pathlib, sys
pathlib.Path(f"data/metrics/round/{sys.argv[1]}.json").write_text(json.dumps({"reward/mean": len(sys.argv[1])}))
"""
LAST = """
import pathlib
names = sorted(str(path) for path in pathlib.Path("data/metrics").rglob("*.json"))
pathlib.Path("data/last.txt").write_text(" ".join(names))
"""
RECIPES = {"laptop": "first: 1\nrounds: {a: 1, b: 2}\n", "other": "first: 1\nrounds: {a: 1, c: 3}\n"}


@pytest.fixture(scope="session")
def empty_dvc_project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=folder, check=True)
    (folder / "pipelines" / "recipes").mkdir(parents=True)
    files = {
        "dvc.yaml": DVC_YAML,
        "first.py": FIRST,
        "round.py": ROUND,
        "last.py": LAST,
        "params.yaml": RECIPES["laptop"],
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    for name, text in RECIPES.items():
        (folder / "pipelines" / "recipes" / f"{name}.yaml").write_text(text)
    return folder


@pytest.fixture
def dvc_project(empty_dvc_project, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    shutil.copytree(empty_dvc_project, folder)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.delenv("DVC_ROOT", raising=False)
    return folder


@pytest.fixture
def root(tmp_path):
    """Makes a project that uses the recipe `laptop` and has not run anything."""
    no_times = shutil.ignore_patterns("measured.json")
    shutil.copytree(PROJECT / "pipelines" / "recipes", tmp_path / "pipelines" / "recipes", ignore=no_times)
    shutil.copy(PROJECT / "dvc.yaml", tmp_path / "dvc.yaml")
    use_recipe(tmp_path, "laptop")
    return tmp_path
