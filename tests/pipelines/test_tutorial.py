"""Every command of docs/tutorial.md, in the order of the page, in a copy of the project with a miniature recipe."""

import re
import subprocess
import sys

import pytest
import yaml

from tests.fakes.miniature import LAPTOP, PROJECT, copy_project, environment, use_miniature
from tests.fakes.warm_stages import warm_stages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHANGED = {
    "git clone": None,  # replaced by the copy, with this environment
    "extends: laptop.yaml": "extends: mini.yaml",
    "rl_rounds.rl_2, rl_rounds.rl_3]": "rl_rounds.rl_2]",
    '("train", 3000), ("test", 200)': '("train", 120), ("test", 8)',
    "validation_rows: 50": "validation_rows: 10",
    "sft.steps: 300": "sft.steps: 12",
}
"""A block of the page -> its replacement in the miniature; None leaves the block out."""

# The installed command belongs to the project that runs the tests, and refuses to work on a copy of it.
RETRACE = """retrace() { python -c 'from pipelines.cli import app; app()' "$@"; }"""


def commands():
    for block in re.findall(r"^```bash\n(.*?)^```$", (PROJECT / "docs/tutorial.md").read_text(), re.M | re.S):
        if not any(text in block for text, other in CHANGED.items() if other is None):
            for text, other in CHANGED.items():
                block = block.replace(text, other) if other else block
            yield block


def test_every_command_of_the_tutorial_works(tmp_path):
    folder = copy_project(tmp_path / "project")
    use_miniature(folder, "laptop", LAPTOP)
    (folder / "params.yaml").rename(folder / "pipelines/recipes/mini.yaml")
    # `make repro` would install an environment, so only its second command is called, which runs the graph.
    repro = f"{sys.executable} -m pipelines.commands.repro mine"
    said = ""
    with warm_stages(folder, tmp_path) as front:
        for block in commands():
            block = f"{RETRACE}\n" + block.replace("make repro RECIPE=mine\n", f"{repro}\n")
            own = environment(True, front)
            done = subprocess.run(["bash", "-euc", block], cwd=folder, env=own, capture_output=True, text=True)
            assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
            said += done.stdout
    assert "120 of 120 rows are problems" in said and "rl_1 in float32" in said
    curve = (folder / "data/curves/rl_round/rl_1.csv").read_text().splitlines()[0].split(",")
    assert {"reward/part_right", "reward/part_short", "reward/failed_fraction"} <= set(curve)
    lock = yaml.safe_load((folder / "dvc.lock").read_text())
    assert "custom" in {dep["path"] for dep in lock["stages"]["code"]["deps"]}
    assert "arXiv 2402.03300" in (folder / "my-policy/README.md").read_text()
