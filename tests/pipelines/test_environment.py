"""Set-up: its installations, its errors, and that it starts nothing if nothing is to do. Nothing is downloaded."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipelines.environment import NO_CPU_BUILD, Environment, SetUpError, groups_for, read_lock, require_git
from pipelines.lock import plain_environment

PROJECT = Path(__file__).resolve().parents[2]
LOCK = (PROJECT / "requirements.lock").read_text()
GROUPS = read_lock(LOCK)
OLD_PYTHONS = [name for name in ("python2", "python3.6", "python3.8", "python3.10") if shutil.which(name)]


@pytest.fixture
def project(tmp_path):
    """Copies the files that set-up reads, with links to the present environment instead of installed packages."""
    for name in ("requirements.lock", "pyproject.toml", "params.yaml"):
        shutil.copy(PROJECT / name, tmp_path / name)
    shutil.copytree(PROJECT / "pipelines", tmp_path / "pipelines", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "stages").symlink_to(PROJECT / "stages")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("sampler:\n  kind: torch\n", ["core"]),
        ("sampler:\n  kind: vllm   # fast\ntrainer: {kind: 'deepspeed', stage: 2}\n", ["core", "vllm", "deepspeed"]),
        ("# kind: vllm\nkind: random\n", ["core"]),
        ("extract_web:\n  engine: {kind: ray, processes: 2}\n", ["core", "ray"]),
    ],
)
def test_the_groups_are_those_the_recipe_names(project, text, groups):
    (project / "pipelines/recipes/mine.yaml").write_text(text)
    assert groups_for(["repro", "mine"], project) == groups
    (project / "params.yaml").write_text(text)
    assert groups_for(["repro"], project) == groups == groups_for(["ui"], project)


def test_a_folder_without_git_ends_before_set_up(tmp_path):
    """A downloaded ZIP."""
    with pytest.raises(ValueError, match=r"not a git repository.*git clone.*git init && git add -A && git commit"):
        require_git(["repro"], tmp_path)
    require_git(["test"], tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    require_git(["repro", "laptop"], tmp_path)


def test_engines_of_the_recipes_below_count_too(project):
    recipes = project / "pipelines/recipes"
    (recipes / "below.yaml").write_text("base:\n  kind: random\nsampler:\n  kind: vllm\n")
    (recipes / "middle.yaml").write_text("extends: below.yaml   # a remark\n")
    (recipes / "top.yaml").write_text("extends: 'middle.yaml'\ntrainer.kind: deepspeed\n")
    assert groups_for(["repro", "top"], project) == ["core", "vllm", "deepspeed"]
    (recipes / "below.yaml").write_text("extends: top.yaml\n")  # a cycle is reported when the recipe is resolved
    assert groups_for(["repro", "top"], project) == ["core", "deepspeed"]
    (recipes / "below.yaml").unlink()
    with pytest.raises(ValueError, match=r"extends below\.yaml, and there is no"):
        groups_for(["repro", "top"], project)


def test_make_test_needs_every_engine(project):
    engines = ["vllm", "deepspeed", "ray", "reasoning_gym", "lora"]
    assert groups_for(["test"], project) == ["core", *engines, "test"]
    assert groups_for(["docs"], project) == ["core", "docs"]


@pytest.mark.parametrize(("arguments", "message"), [(["repro", "lptop"], "laptop"), (["rpro"], "repro"), ([], "repro")])
def test_an_unknown_recipe_or_target_is_refused_before_anything_is_installed(project, arguments, message):
    command = [sys.executable, "pipelines/set_up.py", *arguments]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 2 and "unknown" in done.stderr and message in done.stderr
    assert not (project / ".venv").exists()


@pytest.mark.skipif(not OLD_PYTHONS, reason="no Python older than 3.11 is installed here")
def test_an_old_python_is_refused_in_one_line(project):
    refusals = 0
    for python in OLD_PYTHONS:
        done = subprocess.run([python, "pipelines/set_up.py", "test"], cwd=project, capture_output=True, text=True)
        if "Retrace" in done.stderr:  # a version manager's shim prints something else
            refusals += 1
            assert done.returncode == 1 and done.stderr.count("\n") == 1
            assert "needs Python 3.11, 3.12 or 3.13" in done.stderr and "make PYTHON=" in done.stderr
    assert refusals or "pyenv" in str(shutil.which(OLD_PYTHONS[0]))


def test_set_up_needs_no_package():
    """A fresh machine has no packages: -S leaves site-packages out."""
    script = "import sys; sys.path.insert(0, '.'); import pipelines.environment"
    subprocess.run([sys.executable, "-S", "-c", script], cwd=PROJECT, check=True)


def test_the_lock_pins_everything_and_holds_no_address():
    assert not [sign for sign in ("://", "@", "+") if sign in LOCK]
    pins = {pin for group in GROUPS.values() for pin in group}
    assert all(re.fullmatch(r"[a-z0-9.-]+==[\w.!]+( ; [^#]+?)?( --hash=sha256:[0-9a-f]{64})*", pin) for pin in pins)
    assert all("--hash" in pin for pin in pins if not pin.startswith("torch"))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    locked = {pin.partition("==")[0] for pin in pins}
    for requirements in (project["dependencies"], *project["optional-dependencies"].values()):
        assert {re.split(r"[\[=<>]", one)[0].lower().replace("_", "-") for one in requirements} <= locked


def test_a_package_has_one_version_in_all_groups():
    versions: dict[str, set[str]] = {}
    for pin in (pin for group in GROUPS.values() for pin in group):
        versions.setdefault(pin.partition("==")[0], set()).add(pin)
    assert not {name for name, found in versions.items() if len(found) > 1 and not any(" ; " in one for one in found)}


def test_torchvision_comes_with_vllms_cuda_build_alone():
    """A build for another torch breaks transformers' image processors, and Retrace does not need torchvision."""
    found = {name for name, pins in GROUPS.items() for pin in pins if pin.split("==")[0] in NO_CPU_BUILD}
    assert found <= {"vllm-cuda"}


@pytest.mark.parametrize(
    ("python", "machine"), [("3.11", "x86_64"), ("3.12", "x86_64"), ("3.13", "x86_64"), ("3.13", "aarch64")]
)
def test_the_lock_resolves_on_a_machine_without_any_index_settings(python, machine, tmp_path):
    """The versions agree with the metadata of the public index: a local wheel once hid a conflict."""
    wanted = ["core", "deepspeed", "ray", "reasoning_gym", "test", "docs", "bench"]
    lines = {"wanted": [pin for group in wanted for pin in GROUPS[group]], "constraints": GROUPS["cuda"]}
    for name, pins in lines.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(pins) + "\n")
    command = [sys.executable, "-m", "uv", "pip", "compile", "--python-version", python]
    command += ["--python-platform", f"{machine}-unknown-linux-gnu", "wanted.txt", "-c", "constraints.txt"]
    done = subprocess.run(command, cwd=tmp_path, env=plain_environment(), capture_output=True, text=True)
    if re.search(r"dns error|client error \(Connect\)|timed out", done.stderr):
        pytest.skip("the public package index cannot be reached from here")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "torch==" in done.stdout


def write_python(project):
    """Writes an interpreter that records its calls, one per line."""
    python = project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "$@" >> "$0.asked"\n')
    python.chmod(0o755)
    return python.with_name("python.asked")


def test_nothing_to_do_starts_nothing_and_is_silent(project):
    asked = write_python(project)
    Environment(project)._write_stamp(["core"])
    done = subprocess.run([sys.executable, "pipelines/set_up.py", "repro"], cwd=project, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not asked.exists(), "pip would be run with it"
    with open(project / "requirements.lock", "a") as lock:
        lock.write("\n# group: more\n")
    assert Environment(project).done == []


def test_pip_takes_nothing_but_torch_from_the_index_of_torch(project, monkeypatch):
    monkeypatch.setenv("RETRACE_TORCH", "https://torch.example/cpu")
    asked = write_python(project)
    wanted, constraints = project / "wanted.txt", project / "constraints.txt"
    wanted.write_text("numpy==2.4.0 --hash=sha256:00\ntorch==2.13.0\n")
    constraints.touch()
    Environment(project)._install_with_pip(wanted, constraints)
    torch, rest = asked.read_text().splitlines()
    assert torch.endswith("--no-deps --index-url https://torch.example/cpu torch==2.13.0")
    assert rest.endswith(f"-r {wanted} -c {constraints}") and "torch.example" not in rest


def test_a_full_disk_is_told_before_anything_is_downloaded(project, monkeypatch):
    usage = shutil.disk_usage(project)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2**29))
    with pytest.raises(SetUpError, match=r"needs up to .* GiB of disk space and has 0.5"):
        Environment(project).bring_up_to_date(["core"])


def test_what_a_killed_pip_left_is_forgotten(project):
    site = project / ".venv/lib/python3.11/site-packages"
    (site / "whole-1.0.dist-info").mkdir(parents=True)
    (site / "whole-1.0.dist-info/RECORD").touch()
    (site / "half-1.0.dist-info").mkdir()
    (site / "~alf").mkdir()
    Environment(project)._forget_half_installed()
    assert [path.name for path in site.iterdir()] == ["whole-1.0.dist-info"]


@pytest.mark.slow
def test_a_missing_network_is_told_with_the_remedy_and_the_next_run_goes_on(project):
    """Makes a real environment whose pip has no index to query."""
    (project / "requirements.lock").write_text("# group: installer\nsetuptools==1.0\n# group: core\n")
    settings = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_RETRIES": "1",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_FIND_LINKS": "",
    }
    command = [sys.executable, "pipelines/set_up.py", "repro"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, env={**os.environ, **settings})
    assert done.returncode == 1
    assert "could not be reached: check the network" in done.stderr and "to resume" in done.stderr
    assert (project / ".venv/bin/python").exists()
