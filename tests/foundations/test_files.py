"""Files and folders are whole or absent."""

import json

import pytest

from stages.foundations.files import replace_folder, sha256_of, write_json, write_text_atomically


def test_a_failed_folder_leaves_the_old_one(tmp_path):
    target = tmp_path / "policy"
    with replace_folder(target) as folder:
        (folder / "weights").write_text("old")
    with pytest.raises(RuntimeError), replace_folder(target) as folder:
        (folder / "weights").write_text("half")
        raise RuntimeError
    assert (target / "weights").read_text() == "old"
    with replace_folder(target) as folder:
        (folder / "other").write_text("new")
    assert [file.name for file in target.iterdir()] == ["other"]
    assert [file.name for file in tmp_path.iterdir()] == ["policy"]


def test_json_is_sorted_and_finite(tmp_path):
    write_json(tmp_path / "m.json", {"b": 1, "a": 0.5})
    assert (tmp_path / "m.json").read_text() == '{\n  "a": 0.5,\n  "b": 1\n}\n'
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "m.json", {"a": float("nan")})
    assert json.loads((tmp_path / "m.json").read_text())["a"] == 0.5


def test_a_read_only_file_is_replaced_not_written_through(tmp_path):
    """DVC's cache is linked into the workspace: writing in place would corrupt it."""
    cached, linked = tmp_path / "cached", tmp_path / "linked"
    cached.write_text("kept")
    linked.hardlink_to(cached)
    write_text_atomically(linked, "new")
    assert (cached.read_text(), linked.read_text()) == ("kept", "new")


def test_sha256_is_that_of_the_bytes(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_of(tmp_path / "f") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
