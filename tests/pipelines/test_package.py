"""The wheel: it installs outside of a clone, has every file that the commands read, and says what needs a clone."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from stages.foundations.machine import PROJECT

VERSION = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The unpacked wheel: what pip makes of one that has only Python files and data."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    # setuptools writes beside what it builds, so it gets a copy.
    for name in ("pipelines", "stages"):
        shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "dvc.yaml", "requirements.lock"):
        shutil.copy(PROJECT / name, source / name)
    build = f"import setuptools.build_meta as b; b.build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


SEVERAL = """
import json, sys
from typer.testing import CliRunner
from pipelines.cli import app
done = [CliRunner().invoke(app, line.split()) for line in sys.argv[1:]]
print(json.dumps([[one.exit_code, one.output] for one in done]))
"""
"""Runs several commands in one process, because the start of one takes a second."""


def retrace(installed, folder, *lines):
    # `-P` and PYTHONPATH: neither the current folder nor the project's own entry comes before the unpacked wheel.
    variables = {**os.environ, "PYTHONPATH": str(installed), "COLUMNS": "200"}
    command = [sys.executable, "-P", "-c", SEVERAL, *lines]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_wheel_has_every_file_of_its_packages(installed):
    def files(root):
        found = (path for name in ("pipelines", "stages") for path in (root / name).rglob("*") if path.is_file())
        return {path.relative_to(root).as_posix() for path in found if "__pycache__" not in path.parts}

    assert files(installed) == files(PROJECT)
    (information,) = installed.glob("*.dist-info")
    metadata = (information / "METADATA").read_text()
    assert f"\nVersion: {VERSION}\n" in metadata and "\nLicense-Expression: Apache-2.0\n" in metadata
    assert (information / "licenses" / "LICENSE").read_bytes() == (PROJECT / "LICENSE").read_bytes()
    assert "retrace = pipelines.cli:app" in (information / "entry_points.txt").read_text()


def test_the_installed_command_works_outside_of_a_clone(installed, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"gold": "1/2", "prediction": "The answer is \\\\boxed{0.5}"}\n')
    version, usage, graded, refused = retrace(installed, tmp_path, "--version", "--help", "grade rows.jsonl", "plan")
    assert version == [0, f"retrace {VERSION}\n"]
    assert usage[0] == 0 and "doctor" in usage[1]
    assert graded[0] == 0 and '"correct"' in graded[1]
    assert refused == [
        2,
        "error: `retrace plan` works on a clone, and this is an installed package: clone the repository and run "
        "`make set-up` in it\n",
    ]


def test_the_version_is_written_once():
    holders = [PROJECT / name for name in ("CITATION.cff", "README.md", "Dockerfile", "pipelines/cli.py")]
    assert not [path for path in holders if re.search(rf"\b{re.escape(VERSION)}\b", Path(path).read_text())]
