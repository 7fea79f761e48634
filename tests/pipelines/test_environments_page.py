"""The page tools-and-environments.md: its files, commands and settings; and `retrace environment`."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stages.foundations.files import load_yaml
from stages.foundations.params import EnvironmentParams, PromptParams, custom_files, validate_section
from tests.fakes.miniature import PROJECT, environment

PAGE = (PROJECT / "docs/how-to/tools-and-environments.md").read_text()
RETRACE = """retrace() { python -c 'from pipelines.cli import app; app()' "$@"; }"""


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A copy of the code with the page's files."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("stages", "pipelines", "custom"):
        shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    # By this file a command knows a clone from an installed package.
    shutil.copy(PROJECT / "dvc.yaml", folder)
    for block in blocks("python"):
        (folder / block.partition("\n")[0].removeprefix("# ")).write_text(block)
    return folder


def run(project, commands, typed=""):
    """Exit code, output and errors of commands in bash."""
    variables = environment() | {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-uc", f"{RETRACE}\n{commands}"],
        cwd=project,
        env=variables,
        input=typed,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_commands_of_the_page(project):
    plays = [block for block in blocks("bash") if "pip install" not in block]
    code, said, errors = run(project, "set -e\n" + "\n".join(plays))
    assert code == 0, errors
    countdown = "> 3\ngo on\n> 2\ngo on\n> 1\nThe end: reward 1.0, is_correct True\nA new process gave the same"
    assert countdown in said and "Count down to 1.\n" in said
    assert said.count("A new process gave the same answers to the same turns.") == 2


def test_the_settings_of_the_page(project):
    whole, *own = map(load_yaml, blocks("yaml"))
    assert [one["kind"] for one in own] == ["tools", "reasoning_gym", "verifiers"]
    validate_section(whole["prompt"], "prompt", PromptParams, Path("environments.md"))
    shared = ("frame", "max_turns", "max_observation_tokens", "workers")
    for settings in own:
        settings |= {name: whole["prompt"]["environment"][name] for name in shared}
        validate_section(settings, "prompt.environment", EnvironmentParams, Path("environments.md"))
    assert sorted(custom_files([whole, own])) == ["custom/countdown.py", "custom/units.py"]
    assert all((project / name).is_file() for name in custom_files([whole, own]))


BEGIN = "import os\nclass A:\n    def __init__(self, problem, seed): self.seed = seed\n    def reset(self): return "
WRONG = {
    "clock": f"{BEGIN}None\n    def step(self, turn): return f'\\x1b[2J{{os.getpid()}}'",
    "seeded": f"{BEGIN}str(self.seed)\n    def step(self, turn): return {{}}",
    "fails": f"{BEGIN}None\n    def step(self, turn): return 1 / 0",
    "two": "class A: pass\nclass B: pass",
}
TRY = """
from typer.testing import CliRunner
from pipelines.cli import app
for name in ["clock", "seeded", "fails", "two", "absent"]:
    done = CliRunner().invoke(app, ["environment", f"custom/{name}.py", "--turn", "hi"])
    print("==", done.exit_code, done.stderr)
done = CliRunner().invoke(app, ["environment", "custom/countdown.py"], input="3\\n7\\n")
print("==", done.exit_code, done.stdout)
"""


def test_typed_turns_and_what_a_wrong_environment_is_told(project):
    for name, text in WRONG.items():
        (project / f"custom/{name}.py").write_text(text)
    code, said, errors = run(project, f"python -c '{TRY}'")
    assert code == 0, errors
    assert "\x1b" not in said
    clock, seeded, fails, two, absent, typed = said.split("== ")[1:]
    assert re.match(
        r"2 error: custom/clock\.py is not replayable: after 1 turns it said .*, in a new process .*", clock
    )
    assert seeded.startswith("2 error: `reset` returned") and "it may use only the problem" in seeded
    assert fails == "1 the environment failed: ZeroDivisionError: division by zero\n\n"
    assert two.startswith("2 error: ") and "custom/two.py has 2 classes: name the environment with --name" in two
    assert absent.startswith("2 error: custom/absent.py does not exist: there are custom/brevity.py")
    assert typed.splitlines()[:3] == ["0 Count down to 1.", "go on", "The end: reward 0.0, is_correct False"]
