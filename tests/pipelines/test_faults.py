"""What goes wrong outside the program, with real DVC at miniature size: nothing half-written or lost, clear words.

Full and read-only disks are file systems of their own (tmpfs, a read-only bind mount), which needs the right to mount.
"""

import hashlib
import os
import shutil
import subprocess
import sys

import pytest
import yaml

from tests.fakes.miniature import LAPTOP, copy_project, dvc, environment, output_hashes, use_miniature

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TMPFS_BYTES = 192 << 20


def mounted(*arguments):
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"this user may not mount file systems: {done.stderr.strip()}")


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A finished miniature run on a small file system of its own."""
    folder = tmp_path_factory.mktemp("small_disk")
    mounted("-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "none", folder)
    try:
        copy_project(folder)
        use_miniature(folder, "laptop", LAPTOP)
        dvc(folder, "repro")
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def commands(folder):
    """Stage name and command of every stage but `code`, in an order in which they can run."""
    stages = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]
    return {name: stage["cmd"] for name, stage in stages.items() if name != "code"}


def outputs_on_disk(folder):
    """Hash of every output's bytes as they are (not as dvc.lock has them)."""
    found = {}
    for out in output_hashes(folder):
        path = folder / out
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in files:
            found[str(file.relative_to(folder))] = hashlib.md5(file.read_bytes()).hexdigest()
    return found


def run_stage(folder, command):
    return subprocess.run(
        command, shell=True, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def fill(folder):
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * (1 << 20))
        except OSError:
            return


def test_a_full_disk_in_each_stage_leaves_every_output_whole(project):
    before = outputs_on_disk(project)
    for name, command in commands(project).items():
        fill(project)
        done = run_stage(project, command)
        (project / "filler").unlink()
        assert done.returncode == 1, (name, done.stderr)
        assert "no disk space left at" in done.stderr and "Traceback" not in done.stderr, (name, done.stderr)
        assert outputs_on_disk(project) == before, name
        assert not list(project.rglob("*.partial")), name


def test_a_repro_on_a_full_disk_fails_clearly_and_the_next_one_completes(project):
    before = output_hashes(project)
    (project / "data" / "problems" / "train.parquet").unlink()
    fill(project)
    printed = dvc(project, "repro", "--force", "--single-item", "curate", check=False)
    (project / "filler").unlink()
    assert "space left" in printed
    dvc(project, "repro")
    assert output_hashes(project) == before == output_hashes(project)


def test_a_read_only_data_folder_is_told(project):
    data = project / "data"
    mounted("--bind", data, data)
    try:
        mounted("-o", "remount,ro,bind", data)
        done = run_stage(project, commands(project)["curate"])
    finally:
        subprocess.run(["umount", str(data)], check=True)
    assert done.returncode == 1 and "read-only file system" in done.stderr and "Traceback" not in done.stderr


def test_a_corrupted_cache_object_is_made_again(project):
    before = output_hashes(project)
    name = "data/problems/train.parquet"
    md5 = before[name]
    cached = project / ".dvc" / "cache" / "files" / "md5" / md5[:2] / md5[2:]
    whole = cached.read_bytes()
    (project / name).unlink()
    os.chmod(cached, 0o644)
    cached.write_bytes(whole[:-100])
    dvc(project, "repro")
    assert output_hashes(project) == before
    assert (project / name).read_bytes() == whole == cached.read_bytes()


def test_a_half_written_table_is_made_again(project):
    before = output_hashes(project)
    name = project / "data" / "demonstrations" / "train.parquet"
    whole = name.read_bytes()
    name.unlink()
    name.write_bytes(whole[: len(whole) // 2])
    done = run_stage(project, commands(project)["sft"])
    assert done.returncode == 2 and "is not a readable Parquet file" in done.stderr and "dvc repro" in done.stderr
    dvc(project, "repro")
    assert output_hashes(project) == before and name.read_bytes() == whole


def test_two_at_once_in_one_clone_wait_for_each_other(project):
    before = output_hashes(project)
    for name in ("data/policies/sft", "data/responses/rl_1.parquet"):
        path = project / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    command = [sys.executable, "-m", "pipelines.repro"]
    both = [
        subprocess.Popen(command, cwd=project, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    printed = [process.communicate()[0].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert output_hashes(project) == before
