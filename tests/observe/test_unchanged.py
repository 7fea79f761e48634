"""What is edited while a stage runs: real DVC runs a tiny stage, which waits in its middle for the edit."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.fakes.bit_rot import flip
from tests.fakes.miniature import dvc, environment, stages_run

PROJECT = Path(__file__).resolve().parents[2]
PARAMS = {"toy": {"first": 1, "second": 2}, "rounds": {"one": {"value": 3}, "two": {"value": 4}}, "other": 5}
GRAPH = {
    "code": {"cmd": "python -m stages code", "deps": ["params.yaml", "stages"], "outs": ["data/code"]},
    "table": {"cmd": "mkdir -p data/in && echo 6 > data/in/table", "outs": ["data/in"]},
    "toy": {
        "foreach": "${rounds}",
        "do": {
            "cmd": "python -m stages toy@${key}",
            "deps": ["data/code/toy.json", "data/in"],
            "params": ["toy", "rounds.${key}"],
            "outs": ["data/${key}"],
        },
    },
    "pooled": {"cmd": "python -m stages pooled", "deps": ["data/code/pooled.json"], "outs": ["data/pooled"]},
    "page": {"cmd": "python -m stages page", "deps": ["data/code/page.json", "params.yaml"], "outs": ["data/page"]},
}
WAIT = """
    Path("started").touch()
    while not Path("go").exists():
        time.sleep(0.01)
"""
TOY = f"""
import time
from pathlib import Path
from stages.foundations.params import load_value
from stages.toy import early


def main(job):
    paths = job.paths
    read = [load_value(paths.params, "toy.first"), (paths.given / "table").read_text().strip()]{WAIT}
    try:
        from stages.toy import late
    finally:
        Path("imported").touch()
        while not Path("end").exists():
            time.sleep(0.01)
    read += [load_value(paths.params, "toy.second"), load_value(paths.params, f"rounds.{{job.item}}.value")]
    word = (Path(__file__).parent / "word.txt").read_text()
    paths.out.write_text(" ".join(map(str, [*read, early.VALUE, late.VALUE, word])))
"""
PAGE = f"""
import time
from pathlib import Path
from stages.foundations.params import read_yaml


def main(job):
{WAIT}
    job.paths.out.write_text(job.paths.params.read_text())
"""
POOLED = f"""
import subprocess
import sys
import time
from pathlib import Path
from stages.engines.workers.pool import WorkerLimits, WorkerPool
from stages.pooled.asked import answer


def main(job):
{WAIT}
    try:
        with WorkerPool(answer, 1, WorkerLimits(512, 60), {{}}) as pool:
            answered = pool.submit().result()
        made = subprocess.check_output([sys.executable, "-m", "stages.pooled.made"], text=True)
    finally:
        Path("imported").touch()
        while not Path("end").exists():
            time.sleep(0.01)
    job.paths.out.write_text(f"{{answered.value}}{{answered.failure}} {{made.strip()}}")
"""
ASKED = """
def answer():
    from stages.pooled import late

    return late.VALUE
"""
STAGE = """
from stages.foundations.stage import About, Stage

STAGE = Stage(sections={}, inputs={}, outputs={{"out": "data/{}"}}, foreach="{}")
ABOUT = About()
"""
SOURCES = {
    "__init__.py": (PROJECT / "stages/__init__.py").read_text(),
    "toy/__init__.py": "",
    "__main__.py": (PROJECT / "stages/__main__.py").read_text(),
    "toy/run.py": TOY,
    "toy/stage.py": STAGE.format(
        "{'toy': dict, 'rounds': dict[str, dict]}", "{'given': 'data/in'}", "${key}", "rounds"
    ),
    "toy/early.py": "VALUE = 7\n",
    "toy/late.py": "VALUE = 8  # a remark\n",
    "toy/word.txt": "nine",
    "engines/__init__.py": "",
    "pooled/__init__.py": "",
    "pooled/run.py": POOLED,
    "pooled/stage.py": STAGE.format({}, {}, "pooled", ""),
    "pooled/asked.py": ASKED,
    "pooled/late.py": "VALUE = 8  # a remark\n",
    "pooled/made.py": "print(9)\n",
    "page/__init__.py": "",
    "page/run.py": PAGE,
    "page/stage.py": STAGE.format({}, {}, "page", ""),
}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The project after the stages `code` and `table`."""
    folder = tmp_path_factory.mktemp("first")
    for name in ("foundations", "observe", "code", "engines/workers"):
        ignored = shutil.ignore_patterns("__pycache__", "graph.yaml")
        shutil.copytree(PROJECT / "stages" / name, folder / "stages" / name, ignore=ignored)
    for name, text in SOURCES.items():
        (folder / "stages" / name).parent.mkdir(exist_ok=True)
        (folder / "stages" / name).write_text(text)
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": GRAPH}))
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    shutil.copy2(PROJECT / ".dvcignore", folder / ".dvcignore")
    (folder / ".dvc").mkdir()
    (folder / ".dvc/config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    dvc(folder, "repro", "code", "table")
    return folder


@pytest.fixture
def project(first, tmp_path):
    return shutil.copytree(first, tmp_path / "project")


def run_with_edit(project, target, edit):
    """Exit code and output of `dvc repro` of one stage, which waits until `edit` has been called."""
    for name in ("started", "go", "imported", "end"):
        (project / name).unlink(missing_ok=True)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(
        ["dvc", "repro", "--single-item", target], cwd=project, env=environment(), **pipes
    ) as process:
        while not (project / "started").exists():
            assert process.poll() is None, process.stdout.read()
            time.sleep(0.01)
        edit(project)
        let_go(project)
        printed, _ = process.communicate()
    return process.returncode, printed


def let_go(project):
    for name in ("go", "end"):
        (project / name).touch()


def recorded(project):
    lock = project / "dvc.lock"
    return yaml.safe_load(lock.read_text())["stages"] if lock.exists() else {}


def replaced(name, old, new):
    def edit(project):
        text = (project / name).read_text()
        assert old in text
        (project / name).write_text(text.replace(old, new))

    return edit


def and_back(name, old, new):
    """An edit that is put back when the stage has imported its last module."""

    def edit(project):
        replaced(name, old, new)(project)
        (project / "go").touch()
        while not (project / "imported").exists():
            time.sleep(0.01)
        replaced(name, new, old)(project)

    return edit


def replaced_and_back(name, text):
    """Another file takes its place, and then the old one."""

    def edit(project):
        file, kept = project / name, project / "kept"
        file.rename(kept)
        file.write_text(text)
        kept.replace(file)

    return edit


def touch(*names):
    """New times, the same content."""

    def edit(project):
        for name in names:
            os.utime(project / name, ns=(1, 1))
            subprocess.run(["touch", project / name], check=True)  # opens it for writing, which Python's does not

    return edit


def expected(project):
    """What toy@one gives with what is on the disk."""
    params = yaml.safe_load((project / "params.yaml").read_text())
    toy, value = params["toy"], params["rounds"]["one"]["value"]
    early, late = ((project / f"stages/toy/{name}.py").read_text().split()[2] for name in ("early", "late"))
    word = (project / "stages/toy/word.txt").read_text()
    table = (project / "data/in/table").read_text().strip()
    return f"{toy['first']} {table} {toy['second']} {value} {early} {late} {word}"


SEEN = {
    "a section that it lists": (replaced("params.yaml", "first: 1", "first: 11"), "`toy.first` in params.yaml"),
    "a value that it reads later": (replaced("params.yaml", "second: 2", "second: 22"), "`toy.second`"),
    "the item of its round": (replaced("params.yaml", "value: 3", "value: 33"), "`rounds.one.value`"),
    "a key more": (replaced("params.yaml", "first: 1", "first: 1\n  third: 3"), "`toy.third`"),
    "its section removed": (replaced("params.yaml", "toy:", "toys:"), "`toy`"),
    "no YAML": (replaced("params.yaml", "toy:", "toy: ["), "not valid YAML"),
    "a module that it has imported": (replaced("stages/toy/early.py", "7", "77"), "stages/toy/early.py"),
    "a module that it imports later": (replaced("stages/toy/late.py", "8", "88"), "stages/toy/late.py"),
    "a module that is put back": (and_back("stages/toy/late.py", "8", "88"), "late.py"),
    "a template": (replaced("stages/toy/word.txt", "nine", "ten"), "stages/toy/word.txt"),
    "an input table": (replaced("data/in/table", "6", "66"), "data/in/table"),
    "an input table that is put back": (and_back("data/in/table", "6", "66"), "data/in/table"),
    "an input table that is replaced and put back": (replaced_and_back("data/in/table", "66"), "data/in/table"),
    "an input table that is touched and changed": (
        lambda project: (touch("data/in/table")(project), replaced("data/in/table", "6", "7")(project)),
        "data/in/table",
    ),
    "a template that is put back": (and_back("stages/toy/word.txt", "nine", "ten!"), "stages/toy/word.txt"),
    "a file more in an input folder": (lambda project: (project / "data/in/more").touch(), "data/in/more"),
    "an input that is removed": (lambda project: (project / "data/in/table").unlink(), "data/in/table"),
}


@pytest.mark.parametrize("change", SEEN)
def test_a_stage_fails_when_its_inputs_change_while_it_runs(project, change):
    edit, named = SEEN[change]
    code, printed = run_with_edit(project, "toy@one", edit)
    assert code != 0 and named in printed, printed
    assert "toy@one" not in recorded(project)


@pytest.mark.parametrize("change", ["a value that it reads later", "a module that it imports later", "an input table"])
def test_the_next_runs_give_what_is_there_then(project, change):
    """Also out of the run cache, and also after the edit is taken back."""
    kept = {name: (project / name).read_text() for name in ("params.yaml", "stages/toy/late.py", "data/in/table")}
    code, printed = run_with_edit(project, "toy@one", SEEN[change][0])
    assert code != 0, printed
    for texts in ({}, kept):
        for name, text in texts.items():
            (project / name).write_text(text)
        dvc(project, "repro", "toy@one")
        assert (project / "data/one").read_text() == expected(project)
    (project / "dvc.lock").unlink()
    shutil.rmtree(project / "data")
    assert "toy@one" not in stages_run(dvc(project, "repro", "toy@one"))
    assert (project / "data/one").read_text() == expected(project)


@pytest.mark.parametrize("links", ["hardlink", "copy"])
def test_a_stage_does_not_run_on_a_rotten_input(project, links):
    """DVC restores a rotten object of its cache as the right output, and does not notice rot of an output."""
    table, config = project / "data/in/table", project / ".dvc/config"
    config.write_text(f"{config.read_text()}[cache]\n    type = {links}\n")
    objects = (file for file in (project / ".dvc/cache/files").rglob("*") if file.is_file())
    (cached,) = (file for file in objects if file.read_bytes() == table.read_bytes())
    let_go(project)
    if links == "hardlink":
        shutil.rmtree(project / "data/in")
        dvc(project, "checkout", "table")
        assert table.samefile(cached) and cached.stat().st_mode & 0o777 == 0o444
    dvc(project, "status")  # DVC now knows the hash of the copied folder's files
    flip(table)
    printed = dvc(project, "repro", "toy@one", check=False)
    assert "data/in/table has MD5" in printed and "toy@one" not in recorded(project), printed
    flip(table)
    if links == "hardlink":
        shutil.rmtree(project / "data/in")
        flip(cached)
        printed = dvc(project, "repro", "toy@one", check=False)
        assert "data/in/table has MD5" in printed and "toy@one" not in recorded(project), printed
        flip(cached)
    dvc(project, "repro", "toy@one")
    assert (project / "data/one").read_text() == expected(project)


def edit_something_else(project):
    replaced("params.yaml", "other: 5", "other: 55")(project)
    replaced("params.yaml", "value: 4", "value: 44")(project)  # of another round
    replaced("stages/toy/late.py", "a remark", "another")(project)
    replaced("stages/observe/command.py", "import gc", "import gc\nADDED = 1")(project)
    replaced("stages/page/run.py", "import time", "import time, os")(project)  # another stage


def test_a_stage_succeeds_when_something_else_changes(project):
    code, printed = run_with_edit(project, "toy@one", edit_something_else)
    assert code == 0 and "toy@one" in recorded(project), printed
    assert (project / "data/one").read_text() == expected(project)
    assert "toy@one" not in stages_run(dvc(project, "repro", "toy@one"))


@pytest.mark.parametrize(
    ("name", "old", "new"), [("late.py", "8", "88"), ("asked.py", "VALUE", "VALUE + 1"), ("made.py", "9", "99")]
)
def test_a_stage_fails_when_code_is_edited_for_the_processes_that_it_starts(project, name, old, new):
    """Also where the edit is put back before the stage ends, and a worker alone has imported it."""
    code, printed = run_with_edit(project, "pooled", and_back(f"stages/pooled/{name}", old, new))
    assert code != 0 and f"stages/pooled/{name}" in printed, printed
    assert "pooled" not in recorded(project)


def test_a_comment_that_is_edited_for_the_processes_that_it_starts_changes_nothing(project):
    code, printed = run_with_edit(project, "pooled", replaced("stages/pooled/late.py", "a remark", "another"))
    assert code == 0 and "pooled" in recorded(project), printed
    assert (project / "data/pooled").read_text() == "8 9"


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ("toy@one", ["data/in/table", "params.yaml", "stages/toy/late.py", "stages/toy/word.txt"]),
        ("toy@one", ["data/code/toy.json"]),
        ("page", ["params.yaml"]),
    ],
)
def test_a_stage_succeeds_when_an_input_is_merely_touched(project, target, names):
    """Times alone have changed: as by a backup, by `touch`, by an editor that saves what it read as it was."""
    code, printed = run_with_edit(project, target, touch(*names))
    assert code == 0 and target in recorded(project), printed


def test_a_stage_succeeds_when_other_names_of_an_input_come_and_go(project):
    """As where DVC links a file of its cache into another worktree."""

    def edit(project):
        table, other = project / "data/in/table", project.parent / "linked"
        os.link(table, other)
        other.rename(project.parent / "moved")
        (project.parent / "moved").unlink()

    code, printed = run_with_edit(project, "toy@one", edit)
    assert code == 0 and "toy@one" in recorded(project), printed


def test_a_stage_fails_when_another_file_takes_the_place_of_a_linked_input(project):
    os.link(project / "data/in/table", project.parent / "cached")
    code, printed = run_with_edit(project, "toy@one", replaced_and_back("data/in/table", "66"))
    assert code != 0 and "data/in/table" in printed and "toy@one" not in recorded(project), printed


def test_params_yaml_counts_whole_for_a_stage_that_depends_on_the_file(project):
    code, printed = run_with_edit(project, "page", replaced("params.yaml", "other: 5", "other: 55"))
    assert code != 0 and "Changed while it ran: params.yaml" in printed and "page" not in recorded(project)


def test_a_stage_does_not_start_with_other_code_than_stage_code_saw(project):
    """As when a branch is checked out between two stages, and the first one back after the second."""
    replaced("stages/toy/early.py", "7", "77")(project)
    let_go(project)
    printed = dvc(project, "repro", "--single-item", "toy@one", check=False)
    assert "code has changed since stage `code` ran: stages/toy/early.py" in printed
    assert not (project / "started").exists() and "toy@one" not in recorded(project)
    assert stages_run(dvc(project, "repro", "toy@one")) == ["code", "toy@one"]
    assert (project / "data/one").read_text() == expected(project)


@pytest.mark.parametrize("edit", [replaced("params.yaml", "other: 5", "other: 55"), SEEN["a template"][0]])
def test_stage_code_fails_when_what_it_reads_changes(project, edit):
    main = project / "stages/code/run.py"
    text = main.read_text()
    assert text.count("    write_fingerprints(PROJECT") == 1
    waiting = text.replace("    write_fingerprints(PROJECT", f"    import time{WAIT}    write_fingerprints(PROJECT")
    main.write_text(waiting)
    code, printed = run_with_edit(project, "code", edit)
    assert code != 0 and "Changed while it ran" in printed, printed
    assert stages_run(dvc(project, "repro", "code")) == ["code"]


TRACER = """
import json
import sys
import time
from pathlib import Path

PAUSES = json.loads(Path("pauses").read_text())
SEEN = set()


def pause(frame, event, argument):
    place = (frame.f_code.co_filename, frame.f_lineno)
    if event == "line" and "/stages/" in place[0] and place not in SEEN:
        SEEN.add(place)
        if len(SEEN) in PAUSES:
            Path(f"paused-{len(SEEN)}").touch()
            while not Path(f"go-{len(SEEN)}").exists():
                time.sleep(0.005)
    return pause


def stop():
    sys.settrace(None)
    Path("moments").write_text(str(len(SEEN)))


sys.settrace(pause)
"""
SEEDS = [*range(10), 43]  # 43: an edit before the stage compares anything, put back before it does
EDITS = [
    ("params.yaml", "first: 1", "first: 11"),
    ("params.yaml", "second: 2", "second: 22"),
    ("params.yaml", "value: 3", "value: 33"),
    ("stages/toy/early.py", "7", "77"),
    ("stages/toy/late.py", "8", "88"),
    ("stages/toy/word.txt", "nine", "ten"),
    ("data/in/table", "6", "66"),
    ("stages/pooled/asked.py", "VALUE", "VALUE + 1"),
    ("stages/pooled/late.py", "8", "88"),
    ("stages/pooled/made.py", "9", "99"),
]


@pytest.fixture(scope="module")
def traced(first, tmp_path_factory):
    """The project, whose stages pause at chosen lines, and the number of different lines that each executes."""
    folder = shutil.copytree(first, tmp_path_factory.mktemp("traced") / "project")
    (folder / "stages/observe/tracer.py").write_text(TRACER)  # where no fingerprint covers it
    for name in ("toy", "pooled"):
        main = folder / f"stages/{name}/run.py"
        text = main.read_text().replace(WAIT, "\n")
        text = text.replace('        while not Path("end").exists():\n            time.sleep(0.01)\n', "")
        main.write_text(f"from stages.observe import tracer\n{text.rstrip()}\n    tracer.stop()\n")
    entry = folder / "stages/__main__.py"  # traced from its first line on
    traced = 'import sys\nif not sys.argv[1].startswith("code"):\n    from stages.observe import tracer\n'
    entry.write_text(entry.read_text().replace("import sys\n", traced, 1))
    dvc(folder, "repro", "code")
    lines = {}
    for stage in ("toy", "pooled"):
        code, printed = run_paused(folder, stage, [], [])
        assert code == 0 and is_as_expected(folder, stage), printed
        lines[stage] = int((folder / "moments").read_text())
    return folder, lines


def run_paused(project, stage, pauses, edits):
    """Exit code and output of the stage, with an edit at each of the pauses that it reaches."""
    (project / "pauses").write_text(json.dumps(pauses))
    for file in [*project.glob("paused-*"), *project.glob("go-*")]:
        file.unlink()
    address = {"toy": "toy@one"}.get(stage, stage)
    command, env = [sys.executable, "-m", "stages", address], environment() | {"DVC_STAGE": address}
    with subprocess.Popen(
        command, cwd=project, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for pause, edit in zip(pauses, edits, strict=True):
            while process.poll() is None and not (project / f"paused-{pause}").exists():
                time.sleep(0.005)
            if process.poll() is None:
                edit(project)
                (project / f"go-{pause}").touch()
        printed = process.communicate()[0]
    return process.returncode, printed


def is_as_expected(project, stage):
    """Whether the output is what the stage gives with what is there now, which is what DVC records."""
    if stage == "toy":
        return (project / "data/one").read_text() == expected(project)
    late = int((project / "stages/pooled/late.py").read_text().split()[2])
    added = "VALUE + 1" in (project / "stages/pooled/asked.py").read_text()
    made = (project / "stages/pooled/made.py").read_text()[len("print(") : -len(")\n")]
    return (project / "data/pooled").read_text() == f"{late + added} {made}"


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_edited_whenever_a_stage_fails_or_gives_what_is_recorded(traced, seed):
    """The edit comes at any line that the stage executes until its work is done, and may be put back at a later one."""
    numbers = random.Random(seed)
    name, old, new = EDITS[seed % len(EDITS)]
    stage = "pooled" if "pooled" in name else "toy"
    project, lines = traced
    kept = (project / name).read_text()
    pauses = sorted(numbers.sample(range(1, lines[stage] + 1), 2))
    edits = [replaced(name, old, new), replaced(name, new, old)]
    if numbers.random() < 0.5:
        pauses, edits = pauses[:1], edits[:1]
    try:
        code, printed = run_paused(project, stage, pauses, edits)
        assert code != 0 or is_as_expected(project, stage), (pauses, printed)
    finally:
        (project / name).write_text(kept)


def test_nothing_is_compared_by_hand_and_on_other_ranks(project):
    """The fingerprint of toy is older than its code."""
    replaced("stages/toy/early.py", "7", "77")(project)
    let_go(project)
    command = [sys.executable, "-m", "stages", "toy@one"]
    for variables, code in (({}, 0), ({"DVC_STAGE": "toy@one", "RANK": "1"}, 0), ({"DVC_STAGE": "toy@one"}, 2)):
        done = subprocess.run(command, cwd=project, env=environment() | variables, check=False)
        assert done.returncode == code
        assert (project / "data/one").read_text() == expected(project)
