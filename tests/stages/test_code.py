"""Fingerprints: no import is missing, no comment counts, of alternatives only the chosen one."""

import json
from pathlib import Path

import pytest
import yaml

from stages.code.__main__ import write_fingerprints
from stages.foundations.errors import UserError

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
BUILD = """
from stages.rl.params import Synchronous, Asynchronous as Other
from stages.foundations.params import chosen
def build(params):
    match chosen("rl.loop", params):
        case Synchronous(steps=steps):
            from stages.rl import synchronous
        case Other() as other:
            from stages.rl import asynchronous
            return "stages.rl.worker"
        case _:
            from stages.rl import always
"""
CHOICE = {
    "stages/rl/__main__.py": BUILD,
    "stages/rl/params.py": """
class Synchronous:
    kind: Literal["synchronous"]
class Asynchronous:
    kind: Literal["asynchronous"]
""",
    **{f"stages/rl/{name}.py": "X = 1\n" for name in ("synchronous", "asynchronous", "worker", "always")},
}


@pytest.fixture
def project(tmp_path):
    write(tmp_path, SOURCES)
    return tmp_path


def write(root, sources):
    for name, text in sources.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def fingerprints(root, params=None):
    write_fingerprints(root, params or {}, root / "data/code")
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
    ("params", "alternatives"),
    [
        ({"rl": {"loop": {"kind": "synchronous"}}}, {"synchronous"}),
        ({"rl": {"loop": {"kind": "asynchronous", "steps": 3}}}, {"asynchronous", "worker"}),
        ({"rl": {"loop": {"kind": "no such loop"}}}, set()),  # the stage refuses it
        ({"rl": {"loop": None}}, set()),
        ({"rl": {}, "loop": {"kind": "synchronous"}}, set()),
    ],
)
def test_of_alternatives_only_the_chosen_one_counts(project, params, alternatives):
    write(project, CHOICE)
    found = fingerprints(project, params)["rl"]
    assert {Path(name).stem for name in found} == {"__main__", "params", "always"} | alternatives


def test_a_case_of_a_class_without_a_kind_always_counts(project):
    write(project, CHOICE | {"stages/rl/params.py": "class Synchronous: ...\nclass Asynchronous: ...\n"})
    found = fingerprints(project, {"rl": {"loop": {"kind": "synchronous"}}})["rl"]
    assert {"stages/rl/synchronous.py", "stages/rl/asynchronous.py"} <= set(found)


def test_a_match_on_anything_else_is_no_choice(project):
    write(project, CHOICE | {"stages/rl/__main__.py": BUILD.replace('chosen("rl.loop", params)', "params")})
    found = fingerprints(project, {"rl": {"loop": {"kind": "synchronous"}}})["rl"]
    assert {"stages/rl/synchronous.py", "stages/rl/asynchronous.py"} <= set(found)


def test_what_observes_and_what_only_it_imports_does_not_count(project):
    write(
        project,
        {
            "stages/observe/__init__.py": "LEVEL = 1\n",
            "stages/observe/tracking.py": "from stages.engines import unused\n",
            "stages/observers/counting.py": "X = 1\n",
            "stages/rl/__main__.py": "import stages.observe\nfrom stages.observe.tracking import track\n"
            "import stages.observers.counting\nNAME = 'stages.observe.tracking'\n",
        },
    )
    found = fingerprints(project)["rl"]
    assert sorted(found) == ["stages/observers/counting.py", "stages/rl/__main__.py"]


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


def test_a_source_that_does_not_parse_is_named(project):
    (project / "stages/sft/loop.py").write_text("def\n")
    with pytest.raises(UserError, match=r"loop.py line 1 does not parse"):
        fingerprints(project)


def test_a_stage_that_asks_others_sees_the_graph_of_the_parameters_and_nothing_else(project):
    """As the report does: a stage that the recipe leaves out may come and change without the report running again."""
    (project / "stages/foundations/about.py").write_text("def about(stage): ...\n")
    (project / "stages/grade/__main__.py").write_text("import stages.foundations.about\n")
    (project / "stages/sft/about.py").write_text("ABOUT = 1  # a remark\n")
    entry = {"cmd": "python -m stages.sft", "params": ["sft"]}
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"sft": entry}}))
    asked = fingerprints(project, {"sft": {}})["grade"]
    assert {"dvc.yaml", "stages/sft/about.py"} <= set(asked)
    (project / "stages/sft/about.py").write_text("ABOUT = 2\n")
    assert (
        fingerprints(project, {"sft": {}})["grade"] != asked
        and "stages/sft/about.py" not in fingerprints(project, {"sft": {}})["sft"]
    )
    (project / "stages/sft/about.py").write_text("ABOUT = 1\n")
    other = {"cmd": "python -m stages.refl", "params": ["refl"]}
    (project / "dvc.yaml").write_text("# more\n" + yaml.safe_dump({"stages": {"sft": entry, "refl": other}}))
    assert fingerprints(project, {"sft": {}})["grade"] == asked
    assert fingerprints(project, {"sft": {}, "refl": {}})["grade"] != asked


def test_libraries_that_a_stage_may_import_count_by_their_locked_version(project):
    """So a result of another version is computed again, and not handed out by the run cache."""
    write(
        project,
        {
            "stages/sft/loop.py": "import json\nfrom yaml.nodes import Node\nNAME = 'dvc.yaml'\n\n"
            "def f():\n    import math_verify\n    import gone\n",
            "requirements.lock": "# group: core\nPyYAML==6.0.2 --hash=sha256:1\nmlflow==3.1\ndvc==3.67\n"
            "# group: other\n"
            "math-verify==0.8 ; python_version < '3.14' --hash=sha256:2\nmath-verify==0.9\n",
        },
    )
    found = fingerprints(project)
    libraries = {name: version for name, version in found["sft"].items() if name.startswith("library")}
    assert libraries == {"library pyyaml": "6.0.2", "library math-verify": "0.8, 0.9"}
    assert not any(name.startswith("library") for name in found["grade"])
