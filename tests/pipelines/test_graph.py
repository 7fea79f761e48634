"""The whole graph with real DVC, at miniature size: which stages run again, and what faults from outside do not damage.

All tests are in one file, because they share one cold run: the faults happen to a copy of the finished project. Full
and read-only disks are separate file systems (tmpfs, a read-only bind mount), which need the right to mount.
"""

import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
import yaml

from stages.foundations.files import load_yaml
from tests.fakes.bit_rot import flip
from tests.fakes.miniature import LAPTOP, copy_project, dvc, environment, output_hashes, stages_run, use_miniature
from tests.fakes.processes import assert_all_end, descendants, wait_until
from tests.fakes.small_disks import fill, mount, mount_small
from tests.fakes.warm_stages import warm_stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TMPFS_BYTES = 192 << 20


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = copy_project(tmp_path_factory.mktemp("project"))
    use_miniature(folder, "laptop", LAPTOP)
    with warm_stages(folder, tmp_path_factory.mktemp("first")) as front:
        printed = dvc(folder, "repro", front=front)
    assert stages_run(printed)[-1] == "report"
    return folder


@pytest.fixture(scope="module")
def warm(project, tmp_path_factory):
    """Runs in another process than the first run: results that depend on the order of a set would differ."""
    with warm_stages(project, tmp_path_factory.mktemp("warm")) as front:
        yield front


def edit_params(project, name, value):
    path = project / "params.yaml"
    params = load_yaml(path.read_text())
    *sections, last = name.split(".")
    place = params
    for section in sections:
        place = place[section]
    place[last] = value
    path.write_text(yaml.safe_dump(params, sort_keys=False))


@pytest.fixture(scope="module")
def small_disk(project, tmp_path_factory):
    """Makes a copy of the finished project on a small separate file system."""
    place = tmp_path_factory.mktemp("small_disk")
    mount_small(place, TMPFS_BYTES)
    try:
        yield shutil.copytree(project, place / "project", symlinks=True)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def commands(folder):
    """Returns name and command of every stage except `code`, and only the first of each `foreach`."""
    found = {}
    for name, stage in load_yaml((folder / "dvc.lock").read_text())["stages"].items():
        found.setdefault(name.partition("@")[0], stage["cmd"])
    del found["code"]
    return found


def outputs_on_disk(folder):
    """Returns the hash of every output's actual bytes (not the hash in dvc.lock)."""
    found = {}
    for out in output_hashes(folder):
        path = folder / out
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in files:
            found[str(file.relative_to(folder))] = hashlib.md5(file.read_bytes()).hexdigest()
    return found


def run_stage(folder, command, front=None):
    own = environment(front=front)
    return subprocess.run(command, shell=True, cwd=folder, env=own, capture_output=True, text=True, check=False)


def test_the_report_is_there_and_a_second_run_runs_nothing(project):
    assert "rl_2" in (project / "reports" / "index.html").read_text()
    assert stages_run(dvc(project, "repro")) == []
    assert dvc(project, "status").strip() == "Data and pipelines are up to date."


def test_metrics_and_plots_are_known_to_dvc(project):
    shown = dvc(project, "metrics", "show")
    assert "data/headline/grade/rl_2/arithmetic_held_out.json" in shown
    assert "data/headline/rl_round/rl_1.json" in dvc(project, "metrics", "diff", "--all")
    dvc(project, "plots", "show", "-o", "plots")
    page = (project / "plots" / "index.html").read_text()
    assert "<title>Curves</title>" in page and "rl_round_rl_1_csv" in page
    assert not re.findall(r"(src|href)\s*=", page), "the page loads nothing"


def test_a_forced_run_of_a_stage_of_each_kind_gives_equal_hashes(project, warm):
    before = output_hashes(project)
    stages = load_yaml((project / "dvc.lock").read_text())["stages"]
    last_of_kind = {name.partition("@")[0]: name for name in stages}
    printed = dvc(project, "repro", "--force", "--single-item", *last_of_kind.values(), front=warm)
    assert sorted(stages_run(printed)) == sorted(last_of_kind.values()) and len(last_of_kind) == 13
    assert output_hashes(project) == before


def test_a_full_disk_in_each_stage_leaves_every_output_whole(small_disk, warm):
    before = outputs_on_disk(small_disk)
    for name, command in commands(small_disk).items():
        fill(small_disk, 1 << 20)
        done = run_stage(small_disk, command, warm)
        (small_disk / "filler").unlink()
        assert done.returncode == 1, (name, done.stderr)
        assert "no disk space left at" in done.stderr and "Traceback" not in done.stderr, (name, done.stderr)
        assert outputs_on_disk(small_disk) == before, name
        assert not list(small_disk.rglob("*.partial")), name


def test_a_repro_on_a_full_disk_fails_clearly_and_the_next_one_completes(small_disk, warm):
    before, name = output_hashes(small_disk), "data/problems/train.parquet"
    for lost in (small_disk / name, small_disk / ".dvc/cache/files/md5" / before[name][:2] / before[name][2:]):
        lost.unlink()
    fill(small_disk, 1 << 20)
    # Leaves room for DVC's table of paths in use: without that room, DVC only calls the table corrupted.
    os.truncate(small_disk / "filler", (small_disk / "filler").stat().st_size - 8192)
    done = make_repro(small_disk)
    (small_disk / "filler").unlink()
    assert done.returncode == 1 and "space left" in done.stderr, done.stdout + done.stderr
    assert make_repro(small_disk).returncode == 0
    assert output_hashes(small_disk) == before


def test_a_read_only_data_folder_is_told(small_disk):
    data = small_disk / "data"
    mount("--bind", data, data)
    try:
        mount("-o", "remount,ro,bind", data)
        done = run_stage(small_disk, commands(small_disk)["curate"])
    finally:
        subprocess.run(["umount", str(data)], check=True)
    assert done.returncode == 1 and "read-only file system" in done.stderr and "Traceback" not in done.stderr


def make_repro(folder):
    command = [sys.executable, "-m", "pipelines.commands.repro"]
    return subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)


def test_a_rotten_cache_object_is_made_again(small_disk):
    """As the disk leaves it: read-only, with its size and time. DVC alone restores it as the right output."""
    before, name = output_hashes(small_disk), "data/responses/rl_2.parquet"
    cached = small_disk / ".dvc/cache/files/md5" / before[name][:2] / before[name][2:]
    assert cached.stat().st_mode & 0o777 == 0o444
    whole = cached.read_bytes()
    (small_disk / name).unlink()
    flip(cached, 8 * 36)
    done = make_repro(small_disk)
    assert done.returncode == 0 and f"{cached} was damaged" in done.stderr, done.stderr
    assert output_hashes(small_disk) == before
    assert (small_disk / name).read_bytes() == whole == cached.read_bytes()


def test_a_dvc_lock_that_was_merged_wrongly_is_told(small_disk):
    lock, name = small_disk / "dvc.lock", "data/responses/rl_2.parquet"
    before, text = output_hashes(small_disk), lock.read_text()
    lock.write_text(text.replace(before[name], before["data/responses/rl_1.parquet"]))
    done = make_repro(small_disk)
    assert done.returncode == 2 and f"{name} holds a table of respond@rl_1" in done.stderr, done.stderr
    lock.write_text(text)
    assert make_repro(small_disk).returncode == 0
    assert output_hashes(small_disk) == before
    assert hashlib.md5((small_disk / name).read_bytes()).hexdigest() == before[name]


def test_a_half_written_table_is_made_again(small_disk, warm):
    before = output_hashes(small_disk)
    name = small_disk / "data" / "demonstrations" / "train.parquet"
    whole = name.read_bytes()
    name.unlink()
    name.write_bytes(whole[: len(whole) // 2])
    done = run_stage(small_disk, commands(small_disk)["sft"], warm)
    assert done.returncode == 2 and "is not a readable Parquet file" in done.stderr and "dvc repro" in done.stderr
    dvc(small_disk, "repro", front=warm)
    assert output_hashes(small_disk) == before and name.read_bytes() == whole


def test_two_at_once_in_one_clone_wait_for_each_other(small_disk):
    before = output_hashes(small_disk)
    for name in ("data/policies/sft", "data/responses/rl_1.parquet"):
        path = small_disk / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    command = [sys.executable, "-m", "pipelines.commands.repro"]
    both = [
        subprocess.Popen(command, cwd=small_disk, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    printed = [process.communicate()[0].decode() for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert output_hashes(small_disk) == before


def test_a_change_of_code_runs_what_uses_it_and_comments_run_nothing(project):
    for name in ("foundations/tables.py", "rl_round/loop/synchronous.py", "algorithms/policy_losses.py"):
        source = project / "stages" / name
        text = source.read_text()
        changed = text.replace('"""', '"""Said in other words: ', 1) + "\n# a comment more\n"
        assert changed != text
        source.write_text(changed)
    source = project / "stages" / "grade" / "scores.py"
    # The name is bound twice, and the scores do not change.
    source.write_text(source.read_text() + "\nCORRECT_VOTE = object()\n")
    # The verdicts are equal, so the report is not made again.
    assert stages_run(dvc(project, "repro")) == ["code", *[f"grade@{name}" for name in ("sft", "rl_1", "rl_2")]]


def test_a_change_of_a_round_runs_what_starts_from_it(project, warm):
    edit_params(project, "rl_rounds.rl_2.warmup_steps", 1)
    assert set(stages_run(dvc(project, "repro", front=warm))) == {
        "code",
        "rl_round@rl_2",
        "respond@rl_2",
        "grade@rl_2",
        "report",
    }
    edit_params(project, "rl_rounds.rl_2.warmup_steps", 2)
    assert stages_run(dvc(project, "repro")) == [], "the run cache has what was there before"


def kill_in_sft(project, victim, shell):
    """Kills DVC or its stage right after a checkpoint of `sft`; no process may be left."""
    scratch = project / "state" / "scratch"
    known = set(scratch.glob("sft-*/step-*/manifest.json"))
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    surroundings = environment() | {"SHELL": shell}  # bash replaces itself with the stage, /bin/sh may wait for it
    process = subprocess.Popen(["dvc", "repro", "sft"], cwd=project, env=surroundings, **silent)
    wait_until(lambda: set(scratch.glob("sft-*/step-*/manifest.json")) - known)
    family = psutil.Process(process.pid).children(recursive=True)
    stage = descendants("stages sft", process.pid)[0]
    os.kill(process.pid if victim == "dvc" else stage.pid, signal.SIGKILL)
    process.wait()
    assert_all_end(family)


def test_nothing_survives_a_kill_and_the_next_run_goes_on(project, warm):
    """kill -9 twice in the middle of sft: no process is left, and the outputs equal those of an undisturbed run."""
    edit_params(project, "sft.steps", 60)  # not in DVC's run cache, and long enough to be killed
    kill_in_sft(project, "dvc", "/bin/sh")
    kill_in_sft(project, "stage", "/bin/bash")
    printed = dvc(project, "repro", "sft", front=warm)
    assert "sft" in stages_run(printed) and "resuming from step" in printed
    resumed = output_hashes(project)
    assert "resuming from step" not in dvc(project, "repro", "--force", "--single-item", "sft", front=warm)
    assert output_hashes(project) == resumed
