"""What is edited while a stage runs: a tiny stage pauses where a test names a place, and waits there for the edit.

Real DVC runs the stage where the test is about what DVC records; elsewhere it is started as DVC starts it.
"""

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
PAUSES = """
import os
import sys
import time
from pathlib import Path

WANTED, SEEN = os.environ.get("PAUSES", "").split(), set()


def pause(name):
    if name in WANTED:
        Path(f"paused-{name}").touch()
        while not Path(f"go-{name}").exists():
            time.sleep(0.005)


def trace(frame, event, argument):
    place = (frame.f_code.co_filename, frame.f_lineno)
    if event == "line" and "/stages/" in place[0] and place not in SEEN:
        SEEN.add(place)
        pause(str(len(SEEN)))
    return trace


def stop():
    if sys.gettrace():
        sys.settrace(None)
        Path("moments").write_text(str(len(SEEN)))


if "TRACED" in os.environ:
    sys.settrace(trace)
"""
"""No fingerprint covers it. With TRACED, each different line of the stages that is executed is a place too."""
TOY = """
from pathlib import Path
from stages.foundations.params import load_value
from stages.observe import pauses
from stages.toy import early


def main(job):
    paths = job.paths
    read = [load_value(paths.params, "toy.first"), (paths.given / "table").read_text().strip()]
    pauses.pause("middle")
    try:
        from stages.toy import late
    finally:
        pauses.pause("end")
    read += [load_value(paths.params, "toy.second"), load_value(paths.params, f"rounds.{job.item}.value")]
    word = (Path(__file__).parent / "word.txt").read_text()
    paths.out.write_text(" ".join(map(str, [*read, early.VALUE, late.VALUE, word])))
    pauses.stop()
"""
PAGE = """
from stages.observe import pauses


def main(job):
    pauses.pause("middle")
    job.paths.out.write_text(job.paths.params.read_text())
"""
POOLED = """
import subprocess
import sys
from stages.engines.workers.pool import WorkerLimits, WorkerPool
from stages.observe import pauses
from stages.pooled.asked import answer


def main(job):
    pauses.pause("middle")
    try:
        with WorkerPool(answer, 1, WorkerLimits(512, 60), {}) as pool:
            answered = pool.submit().result()
        made = subprocess.check_output([sys.executable, "-m", "stages.pooled.made"], text=True)
    finally:
        pauses.pause("end")
    job.paths.out.write_text(f"{answered.value}{answered.failure} {made.strip()}")
    pauses.stop()
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
SECTIONS = "{'toy': dict, 'rounds': dict[str, dict]}", "{'given': 'data/in'}"
SOURCES = {
    "__init__.py": (PROJECT / "stages/__init__.py").read_text(),
    "__main__.py": (PROJECT / "stages/__main__.py").read_text(),
    **dict.fromkeys(["toy/__init__.py", "engines/__init__.py", "pooled/__init__.py", "page/__init__.py"], ""),
    "toy/run.py": TOY,
    "toy/stage.py": STAGE.format(*SECTIONS, "${key}", "rounds"),
    "toy/early.py": "VALUE = 7\n",
    "toy/late.py": "VALUE = 8  # a remark\n",
    "toy/word.txt": "nine",
    "pooled/run.py": POOLED,
    "pooled/stage.py": STAGE.format({}, {}, "pooled", ""),
    "pooled/asked.py": ASKED,
    "pooled/late.py": "VALUE = 8  # a remark\n",
    "pooled/made.py": "print(9)\n",
    "page/run.py": PAGE,
    "page/stage.py": STAGE.format({}, {}, "page", ""),
    "observe/pauses.py": PAUSES,
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
    entry = folder / "stages/__main__.py"  # traced from its first line on
    entry.write_text(entry.read_text().replace("import sys\n", "import sys\nfrom stages.observe import pauses\n", 1))
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


def run(project, address, edits=None, by_dvc=False, **variables):
    """Exit code and output of a stage, with an edit at each of the named places that it reaches."""
    edits = edits or {}
    for file in [*project.glob("paused-*"), *project.glob("go-*")]:
        file.unlink()
    command = ["dvc", "repro", "--single-item", address] if by_dvc else [sys.executable, "-m", "stages", address]
    env = environment() | {"PAUSES": " ".join(edits)} | ({} if by_dvc else {"DVC_STAGE": address}) | variables
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, cwd=project, env=env, **pipes) as process:
        for place, edit in edits.items():
            while process.poll() is None and not (project / f"paused-{place}").exists():
                time.sleep(0.005)
            if process.poll() is None:
                edit(project)
                (project / f"go-{place}").touch()
        printed = process.communicate()[0]
    return process.returncode, printed


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
    return {"middle": replaced(name, old, new), "end": replaced(name, new, old)}


def exchanged(name, text):
    """Another file takes its place, and then the old one."""

    def edit(project):
        file, kept = project / name, project / "kept"
        file.rename(kept)
        file.write_text(text)
        kept.replace(file)

    return edit


def touched(*names):
    """New times, the same content."""

    def edit(project):
        for name in names:
            os.utime(project / name, ns=(1, 1))
            subprocess.run(["touch", project / name], check=True)  # opens it for writing, which Python's does not

    return edit


def in_turn(*edits):
    return lambda project: [edit(project) for edit in edits]


def is_as_expected(project, stage="toy"):
    """Whether the output is what the stage gives with what is there now, which is what DVC records."""
    sources = {name: (project / f"stages/{stage}/{name}").read_text() for name in ("late.py", *OWN[stage])}
    late = int(sources["late.py"].split()[2])
    if stage == "pooled":
        added = "VALUE + 1" in sources["asked.py"]
        made = sources["made.py"][len("print(") : -len(")\n")]
        return (project / "data/pooled").read_text() == f"{late + added} {made}"
    params = yaml.safe_load((project / "params.yaml").read_text())
    toy, value = params["toy"], params["rounds"]["one"]["value"]
    table, early = (project / "data/in/table").read_text().strip(), sources["early.py"].split()[2]
    expected = f"{toy['first']} {table} {toy['second']} {value} {early} {late} {sources['word.txt']}"
    return (project / "data/one").read_text() == expected


OWN = {"toy": ("early.py", "word.txt"), "pooled": ("asked.py", "made.py")}
LATER_VALUE = replaced("params.yaml", "second: 2", "second: 22")
LATER_MODULE = replaced("stages/toy/late.py", "8", "88")
OTHER_TABLE, OTHER_WORD = replaced("data/in/table", "6", "66"), replaced("stages/toy/word.txt", "nine", "ten")
OTHER_SECTION = replaced("params.yaml", "other: 5", "other: 55")
SEEN = {
    "a section that it lists": (replaced("params.yaml", "first: 1", "first: 11"), "`toy.first` in params.yaml"),
    "a value that it reads later": (LATER_VALUE, "`toy.second`"),
    "the item of its round": (replaced("params.yaml", "value: 3", "value: 33"), "`rounds.one.value`"),
    "a key more": (replaced("params.yaml", "first: 1", "first: 1\n  third: 3"), "`toy.third`"),
    "its section removed": (replaced("params.yaml", "toy:", "toys:"), "`toy`"),
    "no YAML": (replaced("params.yaml", "toy:", "toy: ["), "not valid YAML"),
    "a module that it has imported": (replaced("stages/toy/early.py", "7", "77"), "stages/toy/early.py"),
    "a module that it imports later": (LATER_MODULE, "stages/toy/late.py"),
    "a module that is put back": (and_back("stages/toy/late.py", "8", "88"), "late.py"),
    "a template": (OTHER_WORD, "stages/toy/word.txt"),
    "a template that is put back": (and_back("stages/toy/word.txt", "nine", "ten!"), "stages/toy/word.txt"),
    "an input table": (OTHER_TABLE, "data/in/table"),
    "an input table that is put back": (and_back("data/in/table", "6", "66"), "data/in/table"),
    "an input table that is exchanged and put back": (exchanged("data/in/table", "66"), "data/in/table"),
    "a linked input table that is exchanged and put back": (exchanged("data/in/table", "66"), "data/in/table"),
    "an input table that is touched and changed": (
        in_turn(touched("data/in/table"), replaced("data/in/table", "6", "7")),
        "data/in/table",
    ),
    "a file more in an input folder": (lambda project: (project / "data/in/more").touch(), "data/in/more"),
    "an input that is removed": (lambda project: (project / "data/in/table").unlink(), "data/in/table"),
}


@pytest.mark.parametrize("change", SEEN)
def test_a_stage_fails_when_its_inputs_change_while_it_runs(project, change):
    edit, named = SEEN[change]
    if "linked" in change:
        os.link(project / "data/in/table", project.parent / "cached")
    code, printed = run(project, "toy@one", edit if isinstance(edit, dict) else {"middle": edit})
    assert code == 2 and named in printed, printed


def test_the_next_runs_give_what_is_there_then(project):
    """Also out of the run cache, and also after the edit is taken back."""
    names = "params.yaml", "stages/toy/late.py", "data/in/table"
    kept = {name: (project / name).read_text() for name in names}
    edit = in_turn(LATER_VALUE, LATER_MODULE, OTHER_TABLE)
    code, printed = run(project, "toy@one", {"middle": edit}, by_dvc=True)
    assert code != 0 and "toy@one" not in recorded(project), printed
    for texts in ({}, kept):
        for name, text in texts.items():
            (project / name).write_text(text)
        dvc(project, "repro", "toy@one")
        assert is_as_expected(project)
    (project / "dvc.lock").unlink()
    shutil.rmtree(project / "data")
    assert "toy@one" not in stages_run(dvc(project, "repro", "toy@one"))
    assert is_as_expected(project)


@pytest.mark.parametrize("links", ["hardlink", "copy"])
def test_a_stage_does_not_run_on_a_rotten_input(project, links):
    """DVC restores a rotten object of its cache as the right output, and does not notice rot of an output."""
    table, config = project / "data/in/table", project / ".dvc/config"
    config.write_text(f"{config.read_text()}[cache]\n    type = {links}\n")
    objects = (file for file in (project / ".dvc/cache/files").rglob("*") if file.is_file())
    (cached,) = (file for file in objects if file.read_bytes() == table.read_bytes())
    if links == "hardlink":
        shutil.rmtree(project / "data/in")
        dvc(project, "checkout", "table")
        assert table.samefile(cached) and cached.stat().st_mode & 0o777 == 0o444
    dvc(project, "status")  # DVC now knows the hash of the copied folder's files

    def assert_refused():
        printed = dvc(project, "repro", "toy@one", check=False)
        assert "data/in/table has MD5" in printed and "toy@one" not in recorded(project), printed

    flip(table)
    assert_refused()
    flip(table)
    if links == "hardlink":
        shutil.rmtree(project / "data/in")
        flip(cached)
        assert_refused()
        flip(cached)
    dvc(project, "repro", "toy@one")
    assert is_as_expected(project)


def test_a_stage_succeeds_when_something_else_changes(project):
    edit = in_turn(
        OTHER_SECTION,
        replaced("params.yaml", "value: 4", "value: 44"),  # of another round
        replaced("stages/toy/late.py", "a remark", "another"),
        replaced("stages/observe/command.py", "import gc", "import gc\nADDED = 1"),
        replaced("stages/page/run.py", "import", "import os\nimport"),  # another stage
    )
    code, printed = run(project, "toy@one", {"middle": edit}, by_dvc=True)
    assert code == 0 and "toy@one" in recorded(project), printed
    assert is_as_expected(project)
    assert "toy@one" not in stages_run(dvc(project, "repro", "toy@one"))


@pytest.mark.parametrize(
    ("name", "old", "new"), [("late.py", "8", "88"), ("asked.py", "VALUE", "VALUE + 1"), ("made.py", "9", "99")]
)
def test_a_stage_fails_when_code_is_edited_for_the_processes_that_it_starts(project, name, old, new):
    """Also where the edit is put back before the stage ends, and a worker alone has imported it."""
    code, printed = run(project, "pooled", and_back(f"stages/pooled/{name}", old, new))
    assert code == 2 and f"stages/pooled/{name}" in printed, printed


def names_come_and_go(project):
    """As where DVC links a file of its cache into another worktree."""
    os.link(project / "data/in/table", project.parent / "linked")
    (project.parent / "linked").rename(project.parent / "moved")
    (project.parent / "moved").unlink()


TOUCHED = ["data/in/table", "params.yaml", "stages/toy/late.py", "stages/toy/word.txt", "data/code/toy.json"]


@pytest.mark.parametrize(
    ("address", "edit"),
    [
        ("toy@one", touched(*TOUCHED)),
        ("toy@one", names_come_and_go),
        ("page", touched("params.yaml")),
        ("pooled", replaced("stages/pooled/late.py", "a remark", "another")),
    ],
    ids=["touched", "links", "touched file of parameters", "comment for a worker"],
)
def test_a_stage_succeeds_when_nothing_that_counts_has_changed(project, address, edit):
    """Times alone: as by a backup, by `touch`, by an editor that saves what it read as it was. And comments."""
    code, printed = run(project, address, {"middle": edit})
    assert code == 0 and (address == "page" or is_as_expected(project, address.partition("@")[0])), printed


def test_params_yaml_counts_whole_for_a_stage_that_depends_on_the_file(project):
    code, printed = run(project, "page", {"middle": OTHER_SECTION})
    assert code == 2 and "Changed while it ran: params.yaml" in printed


def test_a_stage_does_not_start_with_other_code_than_stage_code_saw(project):
    """As when a branch is checked out between two stages, and the first one back after the second."""
    replaced("stages/toy/early.py", "7", "77")(project)
    code, printed = run(project, "toy@one", {"middle": lambda _: None})
    assert code == 2 and "code has changed since stage `code` ran: stages/toy/early.py" in printed
    assert not (project / "paused-middle").exists()
    assert stages_run(dvc(project, "repro", "toy@one")) == ["code", "toy@one"]
    assert is_as_expected(project)


@pytest.mark.parametrize("edit", [OTHER_SECTION, OTHER_WORD])
def test_stage_code_fails_when_what_it_reads_changes(project, edit):
    main, writes = project / "stages/code/run.py", "    write_fingerprints(PROJECT"
    text, waits = main.read_text(), "    from stages.observe import pauses\n    pauses.pause('middle')\n"
    assert text.count(writes) == 1
    main.write_text(text.replace(writes, waits + writes))
    code, printed = run(project, "code", {"middle": edit}, by_dvc=True)
    assert code != 0 and "Changed while it ran" in printed, printed
    assert stages_run(dvc(project, "repro", "code")) == ["code"]


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
    """The project, and the number of different lines that each stage executes."""
    folder, lines = shutil.copytree(first, tmp_path_factory.mktemp("traced") / "project"), {}
    for stage, address in (("toy", "toy@one"), ("pooled", "pooled")):
        code, printed = run(folder, address, TRACED="")
        assert code == 0 and is_as_expected(folder, stage), printed
        lines[stage] = int((folder / "moments").read_text())
    return folder, lines


@pytest.mark.parametrize("seed", [*range(10), 43])  # 43: before the stage compares anything, put back before it does
def test_whatever_is_edited_whenever_a_stage_fails_or_gives_what_is_recorded(traced, seed):
    """The edit comes at any line that the stage executes until its work is done, and may be put back at a later one."""
    numbers = random.Random(seed)
    name, old, new = EDITS[seed % len(EDITS)]
    stage, address = ("pooled", "pooled") if "pooled" in name else ("toy", "toy@one")
    project, lines = traced
    kept = (project / name).read_text()
    places = sorted(numbers.sample(range(1, lines[stage] + 1), 2))[: 1 if numbers.random() < 0.5 else 2]
    edits = [replaced(name, old, new), replaced(name, new, old)]
    try:
        code, printed = run(project, address, dict(zip(map(str, places), edits, strict=False)), TRACED="")
        assert code != 0 or is_as_expected(project, stage), (places, printed)
    finally:
        (project / name).write_text(kept)


def test_nothing_is_compared_by_hand_and_on_other_ranks(project):
    """The fingerprint of toy is older than its code."""
    replaced("stages/toy/early.py", "7", "77")(project)
    for variables, code in (({"DVC_STAGE": ""}, 0), ({"RANK": "1"}, 0), ({}, 2)):
        assert run(project, "toy@one", **variables)[0] == code
        assert is_as_expected(project)
