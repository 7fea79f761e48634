"""The commands and settings of docs/tutorial.md and docs/how-to/, in a copy of the project with a miniature recipe.

The commands of the tutorial come first, in the order of the page. The how-to pages then find a finished run there.
"""

import re
import shutil
import subprocess

import pytest
import yaml

from pipelines.graph.recipes import read_recipe
from pipelines.graph.schema import check_values
from tests.fakes.miniature import LAPTOP, PROJECT, copy_project, environment, use_miniature
from tests.fakes.warm_stages import warm_stages

PAGES = sorted((PROJECT / "docs/how-to").glob("*.md"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WARM = ["pipelines.cli", "pipelines.commands.repro", "stages.observe.mlflow_uploader", "dvc"]
# What these import late.
WARM += ["dvc.cli", "dvc.repo", "dulwich.client", "mlflow.store.tracking.sqlalchemy_store", "alembic.command"]
WARM += ["pyarrow.dataset", "numpy.testing", "matplotlib.style"]
# The installed command belongs to the project that runs the tests, and refuses to work on a copy of it.
# `make repro` would install an environment, so only its second command is called, which runs the graph.
COMMANDS = """
retrace() { python -m pipelines.cli "$@"; }
dvc() { python -m dvc "$@"; }
make() { test "$1" = repro && shift && python -m pipelines.commands.repro "${@#RECIPE=}"; }
"""
IDENTITY = {f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

CHANGED = {
    "git clone": None,  # replaced by the copy, with this environment
    "extends: laptop.yaml": "extends: mini.yaml",
    "rl_rounds.rl_2, rl_rounds.rl_3]": "rl_rounds.rl_2]",
    '("train", 3000), ("test", 200)': '("train", 120), ("test", 8)',
    "validation_rows: 50": "validation_rows: 10",
    "sft.steps: 300": "sft.steps: 12",
}
"""A block of the tutorial -> its replacement in the miniature; None leaves the block out."""

HERE = {
    "compare sft rl_1 rl_3": "compare sft rl_1",
    "v1.0:": "seed-0:",
    "rl_3": "rl_1",
    "/mnt/shared/retrace": "../store",
    "make repro": "RETRACE_TRACKING=off make repro",  # half of a stage's time goes to MLflow
    "--to my-policy": "--to exported",
    "plan laptop --gpu": "plan mine --gpu",
}
"""A word of a how-to page -> its replacement after the miniature of the tutorial."""

NOT_RUN = {
    "test_environments_page.py plays every environment of its page": ["retrace environment custom/"],
    "needs pictures and people (tests/stages/test_annotate.py runs the commands)": [
        "dvc repro image_pool@round_1",
        "retrace annotations export round_1",
        "retrace annotations import round_1",
    ],
    "installs from the network": [
        "python3 -m venv",
        "python3.11 -m venv",
        "verifiers-env/bin/pip install",
        ".venv/bin/python pipelines/set_up.py add",
        "pip install prefect-kubernetes",
    ],
    "needs a package that is not installed (test_trackers.py)": ["retrace mirror --to "],
    "needs a host": ["dvc remote add --default store s3", "dvc remote add --default store ssh", "COLLECT_ANALYTICS"],
    "trains for minutes (test_ablating.py runs a miniature)": [
        "retrace ablate my-learning-rates --jobs",
        "retrace compare state/ablations/",
    ],
    "needs two promotions (test_retraining.py)": ["retrace rollback"],
    "needs an experiment of that name (test_explaining.py)": ["retrace compare rl_3 wormy-axon"],
    "its answer depends on the machine (test_doctor.py)": ["retrace doctor"],
    "servers and workers of a team": [
        "umask 077",
        "cat > auth.ini",
        "mlflow server",
        "export PREFECT_",
        "export MLFLOW_AUTH_CONFIG_PATH=",
        "export RETRACE_PROJECT=",
        "prefect server start",
        "prefect work-pool create",
        "prefect deploy --all",
        "prefect worker start",
        "RAY_ADDRESS=auto prefect worker start",
        'python -c "import asyncio',
    ],
}
"""Why the how-to pages' commands that begin so are not run; test_reference.py checks their names and options."""

IN_A_RECIPE = {
    "launch: {nodes: 1": "dapo-qwen2.5-7b",
    "launch:": "dapo-qwen2.5-7b",
    "  command:": "dapo-qwen2.5-7b",
    "sampler.kind": "gsm8k-smollm2",
    "sources:": "mine",
}
"""How settings of a how-to page begin, and the recipe they belong to; others belong to laptop."""

NOT_A_RECIPE = {
    "# pipelines/ablations/": "an ablation, which a command of its page plans",
    "count_tokens:\n": "an entry of dvc.yaml (tests/stages/test_new_stage.py)",
    "kind: tools": "a part of `prompt.environment` (test_environments_page.py)",
    "kind: reasoning_gym": "a part of `prompt.environment` (test_environments_page.py)",
    "kind: verifiers": "a part of `prompt.environment` (test_environments_page.py)",
    "    work_pool:": "a part of prefect.yaml",
}


def blocks(text, language):
    """Code blocks of a page, also in lists."""
    found = re.findall(r"^( *)```([^\n]*)\n(.*?)^ *```$", text, re.M | re.S)
    return [re.sub(rf"^{indent}", "", block, flags=re.M) for indent, kind, block in found if kind == language]


def commands(block):
    """Commands of a block, with what a backslash continues and a heredoc holds."""
    lines = iter(block.splitlines())
    for line in lines:
        while line.endswith("\\") or ((end := re.search(r"<<'?(\w+)", line)) and not line.endswith(f"\n{end[1]}")):
            line += "\n" + next(lines)
        yield line


def is_run(command):
    return not any(command.startswith(begin) for group in NOT_RUN.values() for begin in group)


def run(folder, front, script):
    env, script = environment(True, front) | IDENTITY, script.replace(" && ", "\n")  # before one, -e sees no failure
    done = subprocess.run(["bash", "-euc", COMMANDS + script], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The project after the tutorial, the folder for the front of PATH, and what the tutorial printed."""
    folder = copy_project(tmp_path_factory.mktemp("tutorial") / "project")
    use_miniature(folder, "laptop", LAPTOP)
    (folder / "params.yaml").rename(folder / "pipelines/recipes/mini.yaml")
    said = ""
    with warm_stages(folder, tmp_path_factory.mktemp("warm"), *WARM) as front:
        for block in blocks((PROJECT / "docs/tutorial.md").read_text(), "bash"):
            if not any(text in block for text, other in CHANGED.items() if other is None):
                for text, other in CHANGED.items():
                    block = block.replace(text, other) if other else block
                said += run(folder, front, block)
        yield folder, front, said


def test_the_tutorial(finished):
    folder, _, said = finished
    assert "120 of 120 rows are problems" in said and "rl_1 in float32" in said
    curve = (folder / "data/curves/rl_round/rl_1.csv").read_text().splitlines()[0].split(",")
    assert {"reward/part_right", "reward/part_short", "reward/failed_fraction"} <= set(curve)
    lock = yaml.safe_load((folder / "dvc.lock").read_text())
    assert "custom" in {dep["path"] for dep in lock["stages"]["code"]["deps"]}
    assert "arXiv 2402.03300" in (folder / "my-policy/README.md").read_text()


@pytest.fixture(scope="module")
def prepared(finished):
    """The finished project with the files that the how-to pages name."""
    folder, front, _ = finished
    shutil.copy(folder / "my_train.csv", folder / "my-problems.csv")
    # A tagged commit; the first page commits the same results again.
    run(folder, front, "git add dvc.lock data; git commit -qm done; git tag champion-laptop; git reset -q @~1")
    (folder.parent / "other").symlink_to(folder)
    for page in PAGES:
        for block in blocks(page.read_text(), "python"):
            if name := re.match(r"# (custom/.*)\n", block):
                (folder / name[1]).write_text(block)
        for block in blocks(page.read_text(), "yaml"):
            if name := re.match(r"# (pipelines/ablations/.*)\n", block):
                (folder / name[1]).write_text(block)
    return folder, front


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_how_to_page(prepared, page):
    """Every command that `NOT_RUN` does not list. Some pages use what an earlier one has made."""
    script = "\n".join(line for block in blocks(page.read_text(), "bash") for line in commands(block) if is_run(line))
    for text, other in HERE.items():
        script = script.replace(text, other)
    run(*prepared, script)


def test_what_is_not_run_is_on_a_page():
    there = [line for page in PAGES for block in blocks(page.read_text(), "bash") for line in commands(block)]
    for begin in (begin for group in NOT_RUN.values() for begin in group):
        assert any(line.startswith(begin) for line in there), begin
    for page in PAGES:
        read = sum(len(blocks(page.read_text(), kind)) for kind in ("bash", "yaml", "python", "text"))
        assert 2 * read == len(re.findall(r"^ *```", page.read_text(), re.M)), f"{page}: other blocks are not checked"
    for begin in (*NOT_A_RECIPE, *IN_A_RECIPE):
        assert any(block.startswith(begin) for _, block in SETTINGS), begin
    text = "\n".join(block for page in PAGES for block in blocks(page.read_text(), "text"))
    assert not re.search(r"^\s*(retrace|dvc|git|make|python|pip|prefect) ", text, re.M)


SETTINGS = [(page.stem, block) for page in PAGES for block in blocks(page.read_text(), "yaml")]
RECIPES = {re.match(r"# (.*)", block)[1]: block for _, block in SETTINGS if block.startswith("# pipelines/recipes/")}


@pytest.mark.parametrize(("page", "block"), SETTINGS, ids=[block.split("\n")[0] for _, block in SETTINGS])
def test_the_settings_of_a_how_to_page(page, block):
    """They are changes to a recipe, which stays usable."""
    if block.startswith(tuple(NOT_A_RECIPE)):
        return
    recipe = next((name for begin, name in IN_A_RECIPE.items() if block.startswith(begin)), "laptop")
    text = block if "extends:" in block else f"extends: {recipe}.yaml\n{'launch:' * block.startswith(' ')}\n{block}"

    written = {**RECIPES, "pipelines/recipes/of-the-page.yaml": text}

    def read(path):
        return written[path].replace("64 digits", "a" * 64) if path in written else (PROJECT / path).read_text()

    check_values(read_recipe(PROJECT, "of-the-page", read), page)
