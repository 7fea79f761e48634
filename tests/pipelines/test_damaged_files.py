"""Bit rot in a real DVC project whose outputs are hard links into the cache: it is found, and what is damaged is made
again.
"""

import hashlib
import os
import shutil
import subprocess

import pytest

from pipelines.graph.damaged_files import find_damage, run_and_repair
from stages.foundations.errors import UserError
from tests.fakes.bit_rot import flip, random_bits
from tests.fakes.miniature import dvc, environment, output_hashes

GRAPH = """
stages:
  policy:
    cmd: mkdir -p data/policies/sft && cp weights.txt data/policies/sft/model && echo 1 > data/policies/sft/config
    deps: [weights.txt]
    outs: [data/policies/sft]
  respond:
    foreach: ${policies}
    do:
      cmd: mkdir -p data/responses data/metrics && echo ${item} | tee data/responses/${item} > data/metrics/${item}.json
      deps: [data/policies/sft]
      outs: ['data/responses/${item}']
      plots: ['data/metrics/${item}.json': {cache: false}]
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    (folder / "dvc.yaml").write_text(GRAPH)
    (folder / "params.yaml").write_text("policies: [rl_1, rl_2]\n")
    (folder / "weights.txt").write_text("0.25 0.5\n" * 40)
    (folder / "data").mkdir()
    (folder / "data" / "notes.txt").write_text("kept in git\n")
    for command in (["git", "init", "-q"], ["dvc", "init", "-q"], ["git", "add", "data/notes.txt"]):
        subprocess.run(command, cwd=folder, env=environment(), check=True)
    (folder / ".dvc/config").write_text("[core]\n    analytics = false\n[cache]\n    type = hardlink\n")
    dvc(folder, "repro")
    return folder


@pytest.fixture
def project(finished, tmp_path, monkeypatch):
    folder = tmp_path / "project"
    # With hard links: `shutil.copytree` would part an output from its object.
    subprocess.run(["cp", "-a", finished, folder], check=True)
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    return folder


def repro(project):
    return subprocess.run(["dvc", "repro", "-q"], cwd=project, env=environment(), check=False).returncode


def objects(project):
    return sorted(file for file in (project / ".dvc/cache/files/md5").rglob("*") if file.is_file())


def assert_whole(project, hashes):
    assert output_hashes(project) == hashes
    for file in objects(project):
        digest = file.parent.name + file.name
        assert hashlib.md5(file.read_bytes()).hexdigest() == digest.removesuffix(".dir")
    assert (project / "data/policies/sft/model").read_text() == "0.25 0.5\n" * 40
    assert (project / "data/responses/rl_2").read_text() == "rl_2\n"


def test_nothing_is_found_in_a_whole_project(project):
    assert list(find_damage(project, with_outputs=True)) == []


def test_every_flipped_bit_is_found(project):
    """Anywhere in data/ and in DVC's cache: outputs, objects, folder lists, entries of the run cache, files of git."""
    places = [project / "data", project / ".dvc/cache"]
    files = sorted(file for place in places for file in place.rglob("*") if file.is_file())
    files = [file for file in files if file.name != ".gitignore"]
    assert {file.relative_to(project).parts[:3] for file in files} > {
        (".dvc", "cache", "runs"),
        (".dvc", "cache", "files"),
    }
    missed = []
    for file, bit in random_bits(files, 100, seed=5):
        flip(file, bit)
        if not list(find_damage(project, with_outputs=True)):
            missed.append((file.relative_to(project), bit))
        flip(file, bit)
    assert missed == [] == list(find_damage(project, with_outputs=True))


@pytest.mark.parametrize("path", ["data/policies/sft/model", "data/responses/rl_2", "data/metrics/rl_1.json"])
def test_a_damaged_output_is_made_again(project, path):
    hashes, told = output_hashes(project), []
    flip(project / path, 3)
    assert run_and_repair(project, lambda: repro(project), told.append) == 0
    assert_whole(project, hashes)
    # The metric file is a copy: only DVC's memory of it was wrong.
    assert len(told) == (0 if "metrics" in path else 1)


def test_a_damaged_object_that_dvc_restores_is_made_again(project):
    hashes, told = output_hashes(project), []
    for cached in objects(project):
        flip(cached)
    shutil.rmtree(project / "data/policies")
    (project / "data/responses/rl_2").unlink()
    (project / "dvc.lock").unlink()  # so they come from the run cache, and are looked at after DVC
    assert run_and_repair(project, lambda: repro(project), told.append) == 0
    assert_whole(project, hashes)


def test_a_disk_that_damages_every_copy_ends_the_run(project):
    # A file that this run has hashed already is not read again.
    (project / "data/responses/rl_1").unlink()
    (cached,) = (file for file in objects(project) if file.read_text() == "rl_1\n")
    cached.unlink()

    def run():
        code = repro(project)
        flip(project / "data/responses/rl_1")
        return code

    with pytest.raises(UserError, match="is damaged again after 3 runs"):
        run_and_repair(project, run, str)
    assert "RETRACE_RUN" not in os.environ
