"""dvc.yaml: one stage per package, each tied to the fingerprint of its own code."""

import subprocess
from pathlib import Path

import pytest
import yaml

from pipelines.graph.recipes import read_recipe
from pipelines.graph.schema import updated_graph
from pipelines.launching.launchers import LAUNCHED
from pipelines.planning.work import WITHOUT_WORK, WORK
from stages.foundations.files import HEADLINE_COLUMNS
from stages.foundations.fingerprints import stage_names
from stages.foundations.stage import declared_stage, stage_folder
from stages.foundations.stage_graph import optional_sections, stages_of
from stages.pages.shown_stages import NOT_SHOWN, SHOWN

PROJECT = Path(__file__).resolve().parents[2]
RAW = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["stages"]
STAGES = {name: stage.get("do", stage) for name, stage in RAW.items()}


@pytest.fixture(scope="module")
def resolved():
    """The stages as DVC sees them with the params.yaml in use."""
    from dvc.repo import Repo

    with Repo(str(PROJECT)) as repo:
        return list(repo.index.stages)


def paths(entries) -> list[str]:
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries or []]


def test_dvc_yaml_has_what_the_stages_declare():
    """`retrace graph` writes it. A stage is a package, and each package a stage."""
    assert updated_graph(PROJECT)[1] == []
    assert sorted(set(STAGES) - {"code"}) == stage_names(PROJECT)


@pytest.mark.parametrize(
    ("done", "left_out"), [(set(WORK), WITHOUT_WORK), (set(SHOWN), NOT_SHOWN)], ids=["plan", "pages"]
)
def test_every_stage_is_in_the_tables_of_its_readers(done, left_out):
    """A new stage needs an entry in each: without one, `retrace plan` or the report would leave it out in silence."""
    assert not done & left_out
    assert sorted(done | left_out) == sorted({"code", *stage_names(PROJECT)})


def test_a_stage_reads_the_section_of_its_name_and_depends_on_its_own_fingerprint_but_on_no_source():
    """So a recipe without that section is one without the stage."""
    for name in stage_names(PROJECT):
        stage, deps = declared_stage(name), paths(STAGES[name]["deps"])
        assert stage.foreach or name in stage.sections
        assert f"data/code/{name}.json" in deps
        assert not [dep for dep in deps if dep.startswith(("stages", "pipelines")) or dep.endswith(".py")]


def test_the_code_stage_depends_on_all_that_fingerprints_are_made_of():
    """Sources, parameters, and dvc.yaml: of what its stages are, the report shows and the fingerprints say."""
    assert STAGES["code"]["deps"] == ["custom", "params.yaml", "stages"] and STAGES["code"]["outs"] == ["data/code"]
    assert (PROJECT / "stages/code/graph.yaml").resolve() == PROJECT / "dvc.yaml"


def test_stages_that_know_ranks_are_started_by_section_launch_and_take_gpus():
    """A rank that nobody starts draws nothing, and a GPU that nobody counts is given to two stages."""
    for name, stage in STAGES.items():
        sources = "".join(file.read_text() for file in stage_folder(PROJECT, name).rglob("*.py"))
        tools = ("build_trainer", "build_sampler", "pick_device", "launched_ranks")
        used = [tool for tool in tools if f"import {tool}" in sources]
        assert LAUNCHED in stage["cmd"] or "launched_ranks" not in used, name
        assert name == "grade" or bool(used) == ("runs_model=" in sources), name  # its judge runs by hand alone


def test_a_branch_that_a_recipe_lacks_leaves_no_stage_and_changes_no_file():
    """DVC merges `vars` with params.yaml: a section that is `{}` there may be absent here, or filled."""
    defaults = yaml.safe_load((PROJECT / "dvc.yaml").read_text())["vars"]
    assert all(value == {} for part in defaults for value in part.values())
    language, pictures = (read_recipe(PROJECT, name) for name in ("laptop", "t2i-shapes"))
    assert not set(language) & set(optional_sections(PROJECT / "dvc.yaml"))
    of_pictures = {stage.name for stage in stages_of(RAW, pictures)} - {"code"}
    assert {"t2i_prompts", "t2i_base", "generate"} <= of_pictures
    assert not of_pictures & {stage.name for stage in stages_of(RAW, language)}


def test_what_stages_make_is_ignored_by_git_or_is_small_text():
    """Weights and tables never reach git, whatever DVC's own .gitignore files say."""
    ignored = [line.strip("/\n") for line in (PROJECT / ".gitignore").read_text().splitlines() if line.startswith("/")]
    for stage in STAGES.values():
        for entry in stage.get("outs") or []:
            path = next(iter(entry)) if isinstance(entry, dict) else entry
            assert path.startswith(tuple(ignored)) or path.startswith("reports/"), path
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True)
    tracked = [PROJECT / name for name in listed.stdout.split("\0") if name]
    assert not [path for path in tracked if path.is_file() and path.stat().st_size > 900 << 10]


def test_dvc_keeps_every_stage_in_its_run_cache(resolved):
    """It leaves out stages with an output that is neither cached, nor a metric, nor a plot."""
    for stage in resolved:
        loose = [out for out in stage.outs if not (out.use_cache or out.is_metric or out.is_plot)]
        assert not loose or stage.addressing == "code"


def test_the_tables_of_dvc_metrics_fit_a_screen(resolved, capsys):
    """DVC makes a column of every number in every metrics file. Here all files have all columns."""
    from dvc.commands.metrics import DEFAULT_PRECISION
    from dvc.compare import show_diff, show_metrics

    benchmarks = [
        name
        for name, source in yaml.safe_load((PROJECT / "params.yaml").read_text())["sources"].items()
        if source["role"] == "benchmark"
    ]
    told = [str(out) for stage in resolved for out in stage.outs if out.metric]
    files = [
        file
        for path in told
        for file in ([path] if path.endswith(".json") else [f"{path}/{name}.json" for name in benchmarks])
    ]
    row = dict.fromkeys(HEADLINE_COLUMNS, 0.123456) | {"kept": 1234567, "tokens": 1234.5678}
    rounded = {"precision": DEFAULT_PRECISION, "round_digits": True}
    show_metrics({"workspace": {"data": {path: {"data": row} for path in files}}}, **rounded)
    change = {name: {"old": value, "new": value - 0.01, "diff": -0.01} for name, value in row.items()}
    show_diff(dict.fromkeys(files, change), "Metric", a_rev="HEAD", b_rev="workspace", **rounded)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2 + len(files) + len(files) * len(HEADLINE_COLUMNS)
    assert max(map(len, shown)) <= 120, max(shown, key=len)


def test_our_own_resolving_gives_what_dvc_finds(resolved):
    """`stage_graph` is used where DVC's seconds are too many; the two must not differ."""
    params = yaml.safe_load((PROJECT / "params.yaml").read_text())
    own = {stage.address: stage for stage in stages_of(RAW, params)}
    assert list(own) == [stage.addressing for stage in resolved]
    for stage in resolved:
        mine = own[stage.addressing]
        assert sorted(mine.outs) == sorted(out.def_path for out in stage.outs)
        assert sorted(mine.deps) == sorted(dep.def_path for dep in stage.deps if not hasattr(dep, "params"))
        read = {name.partition(".")[0] for dep in stage.deps for name in getattr(dep, "params", ())}
        assert read <= set(mine.reads) and not set(mine.reads) - read - {"launch", "policies", "sources", "rl_rounds"}
