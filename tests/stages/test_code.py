"""Fingerprints: no import is missing, no comment counts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stages.code.__main__ import main, write_fingerprints
from stages.code.fingerprints import read_source
from stages.foundations.errors import UserError

PROJECT = Path(__file__).resolve().parents[2]
SOURCES = {
    "stages/__init__.py": "",
    "stages/sft/__init__.py": '"""Stage."""\n',
    "stages/sft/__main__.py": "from stages.sft import loop\nfrom .schedule import cosine as c\n",
    "stages/sft/loop.py": "def run():\n    import stages.engines.trainer\n    return 'stages.engines.worker'\n",
    "stages/sft/schedule.py": '"""Doc."""\nWARM = 1  # steps\n\n\ndef cosine(x: int):\n    """Half a wave."""\n'
    "    return x\n",
    "stages/sft/page.html": "<p>",
    "stages/sft/README.md": "words",
    "stages/engines/__init__.py": "LEVEL = 1\n",
    "stages/engines/trainer.py": "import json\nfrom ..foundations import seeds\n",
    "stages/engines/worker.py": "from stages.foundations.files import write\n",
    "stages/engines/unused.py": "import nothing\n",
    "stages/foundations/seeds.py": "SEED = 1\n",
    "stages/foundations/files.py": "def write(): pass\n",
    "stages/grade/__main__.py": "print('stages are many')\n",
    "stages/code/__main__.py": "",
}


@pytest.fixture
def project(tmp_path):
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def fingerprints(root):
    write_fingerprints(root, root / "data/code")
    return {path.stem: json.loads(path.read_text()) for path in (root / "data/code").glob("*.json")}


def test_the_closure_has_every_kind_of_import_and_nothing_else(project):
    found = fingerprints(project)
    assert sorted(found) == ["grade", "sft"]
    assert sorted(found["sft"]) == [
        "stages/engines/__init__.py",
        "stages/engines/trainer.py",
        "stages/engines/worker.py",
        "stages/foundations/files.py",
        "stages/foundations/seeds.py",
        "stages/sft/__main__.py",
        "stages/sft/loop.py",
        "stages/sft/page.html",
        "stages/sft/schedule.py",
    ]
    assert sorted(found["grade"]) == ["stages/grade/__main__.py"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# steps", "# other words, and a longer line"),
        ('"""Half a wave."""', '"""Quite another\n\n    text."""'),
        ('"""Doc."""', '"""Doc.\n\nMentions stages.engines.unused."""'),
        ("WARM = 1", 'WARM = 1\n"""An attribute\'s docstring."""'),
        ("    return x", "\n\n    return (x)"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(project, old, new):
    before = fingerprints(project)
    edit(project / "stages/sft/schedule.py", old, new)
    assert fingerprints(project) == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("sft/schedule.py", "WARM = 1", "WARM = 2"),
        ("sft/schedule.py", "x: int", "x: float"),
        ("sft/page.html", "<p>", "<b>"),
        ("engines/worker.py", "import write", "import write as w"),
        ("engines/__init__.py", "LEVEL = 1", "LEVEL = 1.0"),
    ],
)
def test_code_counts_for_the_stages_that_run_it(project, file, old, new):
    before = fingerprints(project)
    edit(project / "stages" / file, old, new)
    after = fingerprints(project)
    assert after["sft"] != before["sft"] and after["grade"] == before["grade"]


def edit(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_an_unchanged_fingerprint_is_not_written_and_a_stale_one_goes(project):
    fingerprints(project)
    stamp = (project / "data/code/sft.json").stat().st_mtime_ns
    (project / "stages/grade/__main__.py").unlink()
    assert sorted(fingerprints(project)) == ["sft"]
    assert (project / "data/code/sft.json").stat().st_mtime_ns == stamp


def test_a_source_that_does_not_parse_is_named(project):
    (project / "stages/sft/loop.py").write_text("def\n")
    with pytest.raises(UserError, match=r"loop.py line 1 does not parse"):
        fingerprints(project)


def test_the_closure_covers_what_a_stage_really_imports(tmp_path):
    """Imports this project's own stage `code` and compares with what Python loaded."""
    main(["--out", str(tmp_path)])
    for stage in (path.stem for path in tmp_path.glob("*.json")):
        covered = json.loads((tmp_path / f"{stage}.json").read_text())
        loaded = loaded_sources(f"stages.{stage}.__main__")
        assert loaded <= set(covered), stage


def loaded_sources(module: str) -> set[str]:
    """Files of the project with a statement in them that are loaded after importing `module`."""
    script = f"import sys, {module}\nfor m in list(sys.modules.values()): print(getattr(m, '__file__', None))"
    command = [sys.executable, "-c", script]
    printed = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True).stdout
    files = [Path(line) for line in printed.split() if line.startswith(f"{PROJECT}/stages/")]
    return {file.relative_to(PROJECT).as_posix() for file in files if read_source(file, "stages").sha256}


def test_a_stage_that_asks_others_sees_the_graph_of_the_parameters_and_nothing_else(project):
    """As the report does: a stage that the recipe leaves out may come and change without the report running again."""
    (project / "stages/foundations/about.py").write_text("def about(stage): ...\n")
    (project / "stages/grade/__main__.py").write_text("import stages.foundations.about\n")
    (project / "stages/sft/about.py").write_text("ABOUT = 1  # a remark\n")
    entry = {"cmd": "python -m stages.sft", "params": ["sft"]}
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"sft": entry}}))
    (project / "params.yaml").write_text("sft: {}\n")
    asked = fingerprints(project)["grade"]
    assert {"dvc.yaml", "stages/sft/about.py"} <= set(asked)
    (project / "stages/sft/about.py").write_text("ABOUT = 2\n")
    assert (
        fingerprints(project)["grade"] != asked and "stages/sft/about.py" not in fingerprints(project)["sft"]
    )
    (project / "stages/sft/about.py").write_text("ABOUT = 1\n")
    other = {"cmd": "python -m stages.refl", "params": ["refl"]}
    (project / "dvc.yaml").write_text("# more\n" + yaml.safe_dump({"stages": {"sft": entry, "refl": other}}))
    assert fingerprints(project)["grade"] == asked
    (project / "params.yaml").write_text("sft: {}\nrefl: {}\n")
    assert fingerprints(project)["grade"] != asked
