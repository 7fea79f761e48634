"""Folders into which several stages write, where each item of a stage reads a folder of its own."""

import yaml

from stages.foundations.stage_graph import make_shared_folders, shared_folders

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
