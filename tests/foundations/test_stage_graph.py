"""Folders into which several stages write, and the names that reach a shell."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext

import pytest
import yaml

from pipelines.graph.recipes import recipe_text
from pipelines.runtime.process_group import dvc, run_in_group
from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml
from stages.foundations.machine import PROJECT
from stages.foundations.stage_graph import (
    make_shared_folders,
    read_definitions,
    require_comparable,
    shared_folders,
    stages_of,
)

DEFINITIONS = {
    "draw": {"foreach": "${makers}", "do": {"cmd": "x", "outs": ["data/drawn/${item.round}/${key}"]}},
    "pool": {
        "foreach": "${rounds}",
        "do": {"cmd": "x", "deps": ["data/drawn/${key}", "data/first"], "outs": ["data/pool/${key}"]},
    },
    "tell": {"cmd": "x", "deps": ["data/pool"], "outs": ["data/told", "data/first"]},
}


def test_every_item_has_its_folder_whether_anything_writes_into_it_or_not():
    params = {"makers": {"a": {"round": "one"}}, "rounds": {"one": {}, "two": {}}}
    assert shared_folders(DEFINITIONS, params) == ["data/drawn/one", "data/drawn/two", "data/pool"]
    assert shared_folders(DEFINITIONS, {}) == ["data/pool"]


def test_the_folders_are_made(tmp_path):
    (tmp_path / "dvc.yaml").write_text(yaml.safe_dump({"stages": DEFINITIONS}))
    make_shared_folders(tmp_path)
    assert not (tmp_path / "data" / "drawn").exists()
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"rounds": {"two": {}}}))
    make_shared_folders(tmp_path)
    assert (tmp_path / "data" / "drawn" / "two").is_dir() and (tmp_path / "data" / "pool").is_dir()
    assert not (tmp_path / "custom").exists()


def test_the_folder_of_the_users_files_is_made_where_it_is_missing(tmp_path):
    """git keeps no empty folder, and DVC runs nothing where a dependency is missing."""
    shutil.copyfile(PROJECT / "dvc.yaml", tmp_path / "dvc.yaml")
    make_shared_folders(tmp_path)
    assert (tmp_path / "custom").is_dir()
    files = shared_folders(read_definitions(tmp_path / "dvc.yaml"), {})
    assert "custom" not in files, "what lies in a shared folder and no stage makes is moved away"


HOSTILE = ["a;touch made", "$(touch made)", "`touch made`", "a b", "a\ntouch made", "a\n", "-rf", "../made", "/made"]
HOSTILE += ["a/", "${item}", "'a'", "é", "", {"flag": "made"}, ["a"]]


@pytest.mark.parametrize("recipe", ["laptop", "t2i-shapes-two-rounds"])
def test_every_value_that_dvc_yaml_interpolates_must_be_a_name(recipe):
    """Which values these are is read from dvc.yaml by DVC's rules: a stage added tomorrow is checked as well."""
    definitions, given = read_definitions(PROJECT / "dvc.yaml"), load_yaml(recipe_text(PROJECT, recipe))
    stages_of(definitions, given)
    places = list(interpolated(definitions, given))
    assert len(places) > 10
    for place in places:
        for value in HOSTILE:
            changed = replaced(given, place, value)
            if changed is not None:
                with pytest.raises(UserError, match="would put into a shell command"):
                    stages_of(definitions, changed)
    for foreach in {definition.get("foreach") for definition in definitions.values()} - {None}:
        section = foreach[2:-1]
        if isinstance(given.get(section), list):
            assert {(section, at) for at in range(len(given[section]))} <= set(places)


def interpolated(definitions, params):
    """Places in the parameters of all that dvc.yaml interpolates; the last word is `key` for the key itself."""
    for definition in definitions.values():
        expressions = set(re.findall(r"\$\{(.*?)\}", str(definition.get("do", definition))))
        if "foreach" not in definition:
            assert not expressions, "a plain stage with a value: let this test follow it"
            continue
        section = definition["foreach"][2:-1]
        items = params.get(section) or {}
        for at, key in enumerate(items):
            for expression in expressions | {"key"}:
                first, *names = expression.split(".")
                assert first in ("key", "item") and all(re.fullmatch(r"\w+", name) for name in names)
                if isinstance(items, list):
                    yield section, at
                else:
                    yield (section, key, *names) if first == "item" else (section, key, "key")


def replaced(params, place, value):
    """The parameters with another value at a place; None where a key cannot be that."""
    changed = copy.deepcopy(params)
    *path, last = place
    if last == "key":
        if not isinstance(value, str):
            return None
        section, key = path
        changed[section] = {value if one == key else one: item for one, item in changed[section].items()}
        return changed
    level = changed
    for name in path:
        level = level[name]
    level[last] = value
    return changed


def test_a_plain_stage_and_a_path_of_names_are_checked_too():
    plain = {"tell": {"cmd": "x ${place.of}", "outs": ["data/told"]}}
    stages_of(plain, {"place": {"of": "problems/train-2"}})
    for text in ("a;b", "a" * 101):
        with pytest.raises(UserError, match=rf"`of` of tell is '{text}'.* at most 100 letters"):
            stages_of(plain, {"place": {"of": text}})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{size: 30}", "{size: 40}", "arguments: DVC does not compare values named `size`"),
        ("[{a: {nfiles: 30}}]", "[{a: {nfiles: 40}}]", "arguments.0.a: .* `nfiles`"),
        ("{sizes: {2: 30}}", "{sizes: {2: 40}}", None),
        ("{hash: 30, md5: {path: 0}}", "{hash: 40, md5: {path: 0}}", None),
        ("{md5: {path: 0}, cmd: 1}", "{md5: {path: 1}, cmd: 1}", None),
        ("{'': 30}", "{'': 40}", None),
        ("{1: 30, a: 1}", "{1: 40, a: 1}", "these keys together: 1, 'a'"),
        ("{day: 2001-01-01}", "{day: 2001-01-02}", "arguments.day: .* the date 2001-01-02"),
        ("!!binary aGk=", "!!binary aGo=", "the bytes b'hj'"),
    ],
)
def test_each_change_runs_the_stage_again_or_is_refused(tmp_path, monkeypatch, old, new, said):
    """DVC itself runs the stage with two values, so another version of DVC changes what this test expects."""
    from dvc.repo import Repo

    (tmp_path / "dvc.yaml").write_text("stages: {a: {cmd: cp params.yaml out, params: [a], deps: [in], outs: [out]}}")
    (tmp_path / "in").write_text("")
    monkeypatch.chdir(tmp_path)
    is_seen = True
    with Repo.init(str(tmp_path), no_scm=True) as repo:
        for value in (old, new):
            (tmp_path / "params.yaml").write_text(text := f"a: {{arguments: {value}}}")
            try:
                repo.reproduce()
            except Exception:  # what DVC cannot compare ends in errors of many libraries
                is_seen = False
    is_seen = is_seen and (tmp_path / "out").read_text() == text
    assert is_seen == (said is None)
    with nullcontext() if is_seen else pytest.raises(UserError, match=said):
        require_comparable(load_yaml(text))


COPIED = ("custom/", "stages/", "pipelines/", "dvc.yaml", ".dvc/", ".dvcignore", "requirements.lock")


def _hostile_name(params, folder):
    params["sources"] = {f"a;touch {folder}/made;": item for item in params["sources"].values()}


def _unseen_argument(params, folder):
    params["grade"]["verifier"] = {"arguments": {"size": 40}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "said"),
    [(_hostile_name, "would put into a shell command"), (_unseen_argument, "`size`: choose other names")],
)
def test_dvc_repro_by_hand_runs_nothing_of_parameters_that_dvc_cannot_use(tmp_path, change, said):
    """The shell metacharacters are in the name of a source, as in a recipe that somebody sent."""
    project = tmp_path / "project"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=PROJECT, capture_output=True, text=True, check=True)
    for name in filter(None, tracked.stdout.split("\0")):
        if name.startswith(COPIED):
            (project / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, project / name, follow_symlinks=False)
    params = load_yaml(recipe_text(PROJECT, "laptop"))
    change(params, tmp_path)
    (project / "params.yaml").write_text(yaml.safe_dump(params))
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    lines = []
    assert run_in_group(dvc("repro"), project, lines.append) != 0
    assert any(said in line for line in lines), lines
    assert not any("stages.collect" in line for line in lines)
    assert not (tmp_path / "made").exists()


SHELL = [
    "x; touch made",
    "$(shell touch made)",
    "`touch made`",
    "$(touch made)",
    "'; touch made; '",
    '"; touch made; "',
]


@pytest.mark.parametrize("value", [*SHELL, "x\ntouch made\n", "a b", "$$HOME"])
@pytest.mark.parametrize("name", ["RECIPE", "TORCH"])
@pytest.mark.parametrize("is_flag", [True, False])
def test_variables_of_make_are_words_and_no_commands(tmp_path, name, value, is_flag):
    shutil.copy(PROJECT / "Makefile", tmp_path)
    says = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ['RETRACE_TORCH']]))"
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "set_up.py").write_text(says)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to("/bin/true")
    given = [f"{name}={value}"] if is_flag else []
    # A make inside of `make test` would be one of its children, and say so on standard output.
    own = {key: text for key, text in os.environ.items() if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    own |= {"PYTHON": sys.executable, **({} if is_flag else {name: value})}
    done = subprocess.run(["make", "repro", *given], cwd=tmp_path, env=own, capture_output=True, text=True)
    arguments, torch = json.loads(done.stdout)
    assert (torch if name == "TORCH" else arguments[1:]) == (value if name == "TORCH" else [value])
    assert done.returncode == 0 and not (tmp_path / "made").exists()
