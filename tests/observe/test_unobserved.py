"""Real stages give the same bytes observed, not observed, and with functions that do nothing for those that observe.

Every function that they call is in their fingerprint.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages.__main__ import main
from stages.foundations.definitions import ALL
from stages.foundations.files import dvc_md5
from stages.foundations.fingerprints import Project, stage_roots
from stages.foundations.params import read_yaml
from tests.fakes.taught_policy import rl_flags, sft_flags, write_params

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).resolve().parents[2]
OF_STAGES = ("declared_stage", "about", "_declared", "stage_folder", "stage_package")


def outputs(folder, flags):
    """Hash of each output that the flags of a stage name."""
    paths = [Path(flag) for flag in flags if flag.startswith(f"{folder}/")]
    return {path.name: dvc_md5(path) for path in paths if path.name != "params.yaml"}


def run_unobserved(flags):
    """Runs the stage with stand-ins for `stages.observe`; returns the definitions that it called."""
    command = [sys.executable, "-m", "tests.fakes.unobserved", *flags]
    own = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    done = subprocess.run(command, cwd=PROJECT, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {tuple(line.split()) for line in done.stdout.splitlines() if line.startswith("stages.")}


def not_covered(called, stage, params):
    """Less what `python -m stages` calls to find the stage and to name it."""
    called -= {("stages.__main__", "main"), ("stages.foundations.fingerprints", "stage_names")}
    called -= {("stages.foundations.machine", "variables_set")}
    called -= {("stages.foundations.stage", name) for name in OF_STAGES}
    covered = Project(PROJECT, read_yaml(params), {}).reach(*stage_roots(PROJECT, stage)).definitions
    return {(module, name) for module, name in called if not {(module, name), (module, ALL)} & covered.keys()}


def test_sft_observed_and_not(taught, tmp_path, monkeypatch):
    without = outputs(taught, sft_flags(taught, taught / "params.yaml", taught))
    flags = sft_flags(taught, taught / "params.yaml", tmp_path)
    called = run_unobserved(flags)
    assert outputs(tmp_path, flags).items() <= without.items() and len(outputs(tmp_path, flags)) == 5
    assert len(called) > 100 and not not_covered(called, "sft", taught / "params.yaml")
    observed = tmp_path / "observed"
    flags = sft_flags(taught, taught / "params.yaml", observed)
    monkeypatch.delenv("RETRACE_TRACKING")
    main(flags)
    assert outputs(observed, flags).items() <= without.items() and len(outputs(observed, flags)) == 5
    assert list((tmp_path / "state" / "runs").iterdir()), "it was not observed"


def test_a_round_observed_and_not(taught, tmp_path):
    params = write_params(tmp_path / "params.yaml", {"rl_rounds.rl_1.steps": 2})
    flags, others = (rl_flags(taught, params, tmp_path / name) for name in ("plain", "unobserved"))
    main(flags)
    called = run_unobserved(others)
    made = outputs(tmp_path / "plain", flags)
    assert made == outputs(tmp_path / "unobserved", others) and len(made) == 5
    assert not not_covered(called, "rl_round", params)
    assert ("stages.engines.trainers.torch_trainer", "TorchTrainer") in called
