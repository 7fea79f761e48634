"""Fingerprints: no use is missed, nothing else counts, and of alternatives only the chosen one."""

import json

import pytest
import yaml

from stages.code.run import write_fingerprints
from stages.foundations.errors import UserError

SOURCES = {
    "stages/__init__.py": "",
    "stages/sft/__init__.py": '"""Stage."""\n',
    "stages/sft/run.py": "from stages.sft import loop\nfrom .schedule import cosine as c\n\n\n"
    "def main():\n    return loop.run(c), c.rate\n\n\ndef unused():\n    return SPARE\n\n\nSPARE = 1\n",
    "stages/sft/stage.py": "STAGE = 1\nABOUT = 1\n",
    "stages/sft/loop.py": "def run(c):\n    import stages.engines.trainer\n"
    "    return stages.engines.trainer.train, 'stages.engines.worker'\n\n\ndef other():\n    return run\n",
    "stages/sft/schedule.py": '"""Doc."""\nimport math\nWARM = 1  # steps\nCOLD = 2\n\n\n'
    'def cosine(x: int):\n    """Half a wave."""\n    return math.cos(WARM * x)\n',
    "stages/sft/page.html": "<p>",
    "stages/sft/README.md": "words",
    "stages/engines/__init__.py": "LEVEL = 1\n",
    "stages/engines/trainer.py": "import json\nfrom ..foundations import seeds\n\n\n"
    "class Trainer:\n    seed = seeds.SEED\n\n\ndef train():\n    return Trainer\n",
    "stages/engines/worker.py": "from stages.foundations.files import write\n\n\ndef work():\n    return write\n",
    "stages/engines/unused.py": "import nothing\n",
    "stages/foundations/seeds.py": "SEED = 1\nSALT = 2\n",
    "stages/foundations/files.py": "def write(): pass\n",
    "stages/foundations/job.py": "def read_job(): pass\n",
    "stages/grade/run.py": "def main(): pass\n",
    "stages/grade/stage.py": "STAGE = 2\n",
}
SFT = {"run", "train", "Trainer", "SEED", "work", "write", "WARM", "cosine", "main", "STAGE", "read_job", "page.html"}
"""Definitions that the stage reaches, besides those that its modules run as programs."""
STAGE = "STAGE = 1\n"
BUILD = """
from stages.rl.params import Synchronous, Asynchronous as Other
from stages.foundations.params import chosen
def build(params):
    match chosen("rl.loop", params):
        case Synchronous(steps=steps):
            from stages.rl.loops import synchronous
            return synchronous
        case Other() as other:
            from stages.rl.loops import asynchronous
            return asynchronous, "stages.rl.worker"
        case _:
            from stages.rl.loops import always
            return always
def main():
    build(1)
"""
CHOICE = {
    "stages/rl/run.py": BUILD,
    "stages/rl/stage.py": STAGE,
    "stages/rl/params.py": """
class Synchronous:
    kind: Literal["synchronous"]
class Asynchronous:
    kind: Literal["asynchronous"]
""",
    "stages/rl/loops.py": "synchronous = 1\nasynchronous = 2\nalways = 3\n",
    "stages/rl/worker.py": "X = 1\n",
    "stages/foundations/params.py": "def chosen(section, params): return params\n",
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


def test_every_way_to_use_a_definition_is_followed_and_nothing_else_counts(project):
    found = fingerprints(project)
    assert sorted(found) == ["grade", "sft"]
    assert set(found["sft"]) == {*SFT, "worker", "references"}
    assert set(found["grade"]) == {"main", "STAGE", "read_job", "references"}


@pytest.mark.parametrize(
    ("params", "alternatives"),
    [
        ({"rl": {"loop": {"kind": "synchronous"}}}, {"synchronous"}),
        ({"rl": {"loop": {"kind": "asynchronous", "steps": 3}}}, {"asynchronous", "worker", "X"}),
        ({"rl": {"loop": {"kind": "no such loop"}}}, set()),  # the stage refuses it
        ({"rl": {"loop": None}}, set()),
        ({"rl": {}, "loop": {"kind": "synchronous"}}, set()),
    ],
)
def test_of_alternatives_only_the_chosen_one_counts(project, params, alternatives):
    write(project, CHOICE)
    found = set(fingerprints(project, params)["rl"]) - {"main", "read_job", "references", "build", "always", "chosen"}
    assert {name for name in found if name.islower() or name == "X"} == alternatives


def test_a_kind_more_re_runs_nothing(project):
    write(project, CHOICE)
    params = {"rl": {"loop": {"kind": "synchronous"}}}
    before = fingerprints(project, params)["rl"]
    case = "        case Third():\n            return 3\n        case _:"
    edit(project / "stages/rl/run.py", "        case _:", case)
    edit(project / "stages/rl/run.py", "Asynchronous as Other", "Asynchronous as Other, Third")
    edit(project / "stages/rl/params.py", "class Async", 'class Third:\n    kind: Literal["third"]\nclass Async')
    assert fingerprints(project, params)["rl"] == before


@pytest.mark.parametrize(
    "changes",
    [
        {"stages/rl/params.py": "class Synchronous: ...\nclass Asynchronous: ...\n"},
        {"stages/rl/run.py": BUILD.replace('chosen("rl.loop", params)', "params")},
    ],
    ids=["classes without a kind", "a match on anything else"],
)
def test_where_no_choice_can_be_read_every_case_counts(project, changes):
    write(project, CHOICE | changes)
    found = fingerprints(project, {"rl": {"loop": {"kind": "synchronous"}}})["rl"]
    assert {"synchronous", "asynchronous"} <= set(found)


def test_a_definition_that_moves_to_another_file_runs_nothing_again(project):
    before = fingerprints(project)
    (project / "stages/sft/schedule.py").rename(project / "stages/sft/waves.py")
    edit(project / "stages/sft/run.py", "from .schedule", "from .waves")
    assert fingerprints(project) == before


def test_what_observes_and_what_only_it_uses_does_not_count(project):
    write(
        project,
        {
            "stages/observe/__init__.py": "LEVEL = 1\n",
            "stages/observe/tracking.py": "from stages.engines import unused\ndef track(): return unused\n",
            "stages/observers/counting.py": "X = 1\n",
            "stages/rl/stage.py": STAGE,
            "stages/rl/run.py": "import stages.observe\nfrom stages.observe.tracking import track\n"
            "import stages.observers.counting\nNAME = 'stages.observe.tracking'\n"
            "def main():\n    track(stages.observers.counting.X, NAME, stages.observe.LEVEL)\n",
        },
    )
    assert set(fingerprints(project)["rl"]) == {"X", "NAME", "main", "STAGE", "read_job", "references"}


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("sft/schedule.py", "# steps", "# other words, and a longer line"),
        ("sft/schedule.py", '"""Half a wave."""', '"""Quite another\n\n    text."""'),
        ("sft/schedule.py", '"""Doc."""', '"""Doc.\n\nMentions stages.engines.unused."""'),
        ("sft/schedule.py", "WARM = 1", 'WARM = 1\n"""An attribute\'s docstring."""'),
        ("sft/schedule.py", "    return math", "\n\n    return math"),
        ("sft/schedule.py", "COLD = 2", "COLD = 3"),
        ("sft/schedule.py", "COLD = 2", ""),
        ("sft/run.py", "return SPARE", "return SPARE + 1"),
        ("sft/loop.py", "    return run\n", "    return run, run\n"),
        ("foundations/seeds.py", "SALT = 2", "SALT = 3\n\n\ndef more():\n    return SEED\n"),
        ("engines/__init__.py", "LEVEL = 1", "LEVEL = 1.0"),
    ],
)
def test_comments_layout_and_what_the_stage_does_not_reach_do_not_count(project, file, old, new):
    before = fingerprints(project)
    edit(project / "stages" / file, old, new)
    assert fingerprints(project) == before


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("sft/schedule.py", "WARM = 1", "WARM = 2"),
        ("sft/schedule.py", "x: int", "x: float"),
        ("sft/schedule.py", "import math", "import cmath as math"),
        ("sft/schedule.py", "WARM = 1", "WARM = 1\nWARM += 1"),
        ("sft/page.html", "<p>", "<b>"),
        ("sft/run.py", "cosine as c", "COLD as c"),
        ("sft/run.py", "c.rate", "c.mode"),
        ("engines/worker.py", "return write", "return write, 1"),
        ("engines/trainer.py", "seeds.SEED", "seeds.SALT"),
        ("foundations/seeds.py", "SEED = 1", "SEED = 3"),
        ("foundations/seeds.py", "SALT = 2", "SALT = 2\nprint(SALT)"),
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


def follows(project, sources, *edits):
    """Returns True if the fingerprint of a stage with these sources changes with the edits: (name, old, new)."""
    write(project, {f"stages/rl/{name}.py": text for name, text in {"stage": STAGE, **sources}.items()})
    before = fingerprints(project)["rl"]
    for name, old, new in edits:
        edit(project / f"stages/rl/{name}.py", old, new)
    return fingerprints(project)["rl"] != before


TWINS = {
    "run": "from stages.rl import left, right\ndef main():\n    left.go(right.go())\n",
    "left": "def go():\n    return 1\n",
    "right": "def go():\n    return 2\n",
}
STEP = "def go():\n    return step\n\n\ndef step():\n    return "
SWAPPED = ("left", "return 1", "return 2"), ("right", "return 2", "return 1")


@pytest.mark.parametrize(
    ("sources", "edits"),
    [
        ({}, SWAPPED),
        ({}, [("run", "left.go(right.go())", "right.go(left.go())")]),
        ({"left": f"{STEP}1\n", "right": f"{STEP}2\n"}, SWAPPED),
    ],
    ids=["texts", "calls", "what equal texts use"],
)
def test_definitions_of_one_name_that_change_places_are_seen(project, sources, edits):
    assert follows(project, TWINS | sources, *edits)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("from stages.rl import tools\nX = getattr(tools, 'a' + 'b')\n", True),
        ("import stages.rl.tools as t\nX = vars(t)\n", True),
        ("from stages.rl.tools import *\nX = spare()\n", True),
        ("from stages.rl import tools\nX = tools.used\n", False),
    ],
)
def test_a_module_that_is_passed_on_counts_whole(project, text, seen):
    tools = "def used():\n    return 1\n\n\ndef spare():\n    return 2\n"
    run = f"{text}def main():\n    print(X)\n"
    assert follows(project, {"run": run, "tools": tools}, ("tools", "return 2", "return 3")) == seen


@pytest.mark.parametrize("decorator", ["@register", "@registry.register('a')"])
def test_what_a_decorator_of_the_project_may_put_somewhere_counts(project, decorator):
    imports = "from stages.rl import registry\nfrom stages.rl.registry import register\n"
    sources = {
        "run": "from stages.rl import rules\nfrom stages.rl.registry import ALL\ndef main():\n    print(ALL)\n",
        "rules": f"{imports}{decorator}\ndef rule(): return 1\n",
        "registry": "ALL = []\ndef register(f):\n    ALL.append(f)\n    return f\n",
    }
    assert follows(project, sources, ("rules", "return 1", "return 2"))


def test_code_that_asks_where_it_stands_counts_with_its_place(project):
    main = "from stages.rl.here import FOLDER\ndef main():\n    print(FOLDER)\n"
    write(project, {"stages/rl/stage.py": STAGE, "stages/rl/run.py": main, "stages/rl/here.py": "FOLDER = __file__\n"})
    before = fingerprints(project)["rl"]
    (project / "stages/rl/here.py").rename(project / "stages/rl/there.py")
    edit(project / "stages/rl/run.py", "stages.rl.here", "stages.rl.there")
    assert fingerprints(project)["rl"] != before


@pytest.mark.parametrize(
    "sources",
    [
        {"a/__init__.py": "from stages.b import x\n", "b/__init__.py": "from stages.a import x\n"},
        {"a/__init__.py": "from . import x\n"},  # as for a package without `__init__.py`, or compiled code
        {"a/__init__.py": "import stages.a.x.y as x\n"},
    ],
    ids=["two modules", "itself", "ever longer"],
)
def test_names_that_modules_hand_round_in_a_circle_end(project, sources):
    write(project, {f"stages/{name}": text for name, text in sources.items()})
    before = fingerprints(project)["sft"]
    edit(project / "stages/sft/loop.py", "def run(c):\n", "def run(c):\n    from stages.a import x\n    x.y()\n")
    after = fingerprints(project)["sft"]
    assert {name for name in before if before[name] != after[name]} == {"run", "references"}


def test_a_source_that_does_not_parse_is_named(project):
    (project / "stages/sft/loop.py").write_text("def\n")
    with pytest.raises(UserError, match=r"loop.py line 1 does not parse"):
        fingerprints(project)


def test_a_stage_that_asks_others_sees_the_graph_of_the_parameters_and_nothing_else(project):
    """This holds for the report: stages that the recipe leaves out may change without running the report again."""
    asks = "from stages.foundations.stage import about\ndef main():\n    about('sft')\n"
    write(project, {"stages/foundations/stage.py": "def about(stage): ...\n", "stages/grade/run.py": asks})
    entry = {"cmd": "python -m stages sft", "params": ["sft"]}
    (project / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"sft": entry}}))
    asked = fingerprints(project, {"sft": {}})["grade"]
    assert {"dvc.yaml", "stages/sft/stage.py"} <= set(asked)
    (project / "stages/sft/stage.py").write_text("STAGE = 1\nABOUT = 2\n")
    assert (
        fingerprints(project, {"sft": {}})["grade"] != asked
        and "stages/sft/stage.py" not in fingerprints(project, {"sft": {}})["sft"]
    )
    (project / "stages/sft/stage.py").write_text("STAGE = 1\nABOUT = 1\n")
    other = {"cmd": "python -m stages refl", "params": ["refl"]}
    (project / "dvc.yaml").write_text("# more\n" + yaml.safe_dump({"stages": {"sft": entry, "refl": other}}))
    assert fingerprints(project, {"sft": {}})["grade"] == asked
    assert fingerprints(project, {"sft": {}, "refl": {}})["grade"] != asked


def test_libraries_that_a_stage_may_import_count_by_their_locked_version(project):
    """So a result of another version is computed again, and does not come from the run cache."""
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
