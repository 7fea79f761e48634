"""Files and folders are whole or absent; metrics are finite numbers; curves leave gaps empty."""

import errno
import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
import yaml

from stages.foundations.files import (
    dump_yaml,
    dvc_md5,
    load_yaml,
    replace_folder,
    stable_hash,
    write_curves,
    write_json,
    write_metrics,
    write_text_atomically,
)


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


def test_names_of_files_and_folders_are_synced_after_they_are_put_there(tmp_path, monkeypatch):
    """As strace would show it: the folder that holds the new name, and not before the name is there."""
    synced = []

    def note(handle, fsync=os.fsync):
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        synced.append((path, sorted(file.name for file in path.iterdir()) if path.is_dir() else None))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", note)
    write_text_atomically(tmp_path / "file", "text")
    assert synced[-1] == (tmp_path, ["file"])
    with replace_folder(tmp_path / "folder") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "weights").write_text("new")
    assert synced[-1] == (tmp_path, ["file", "folder"])
    assert {path.name for path, _ in synced} >= {"inner", "weights", folder.name}


@pytest.mark.parametrize(("code", "is_raised"), [(errno.EINVAL, False), (errno.ENOTSUP, False), (errno.EIO, True)])
def test_a_file_system_that_cannot_sync_folders_is_no_error(code, is_raised, tmp_path, monkeypatch):
    def refuse(handle):
        if Path(os.readlink(f"/proc/self/fd/{handle}")).is_dir():
            raise OSError(code, "no")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="no") if is_raised else nullcontext():
        write_text_atomically(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


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


def test_hashes_equal_dvcs(tmp_path, monkeypatch):
    from dvc.repo import Repo

    folder = tmp_path / "policy"
    (folder / "deep").mkdir(parents=True)
    for name, text in (("config.json", "{}"), ("deep/b", "b"), ("a", "a"), ("Z", "z")):
        (folder / name).write_text(text)
    (tmp_path / "table").write_text("rows")
    monkeypatch.chdir(tmp_path)
    with Repo.init(str(tmp_path), no_scm=True) as repo:
        for name in ("policy", "table"):
            (stage,) = repo.add(str(tmp_path / name))
            assert dvc_md5(tmp_path / name) == stage.outs[0].hash_info.value


CORE_SCHEMA = [
    *("", "~", "null", "Null", "NULL", "true", "True", "TRUE", "false", "False", "FALSE"),
    *("0", "7", "-19", "+12", "012", "-012", "08", "00", "0o12", "0o0", "0x3A", "0xff", "1_000"),
    *("0.", "-0.0", ".5", "-.5", "+.5", "012.5", "1e-06", "12e03", "-2E+05", "1E3", "1.e5", "5e-324", "1e+22", "1e400"),
    *(".inf", "-.Inf", "+.INF", ".nan", ".NaN", ".NAN"),
]
"""Each form of section 10.3.2 of YAML 1.2.2: null, bool, int, int (base 8, 16), float, infinity, not a number."""
OTHER_SCALARS = [
    *("off", "Off", "OFF", "on", "yes", "Yes", "no", "NO", "y", "n", "1:30", "-1:30.5", "190:20:30", "0b11", "0o8"),
    *("1e", "e1", ".", "+.", "0x", "nUll", "tRUE", "a", "2001-01-01", "=x", "_1"),
]
"""Forms of YAML 1.1, and texts that are nearly a number."""


@pytest.mark.parametrize("scalar", [*CORE_SCHEMA, *OTHER_SCALARS])
@pytest.mark.parametrize("tag", ["", "!!str ", "'"])
def test_scalars_are_what_dvc_reads(tmp_path, scalar, tag):
    from dvc.fs import LocalFileSystem
    from dvc.utils.serialize import load_path

    text = f"a: '{scalar}'\n" if tag == "'" else f"a: {tag}{scalar}\n"
    (tmp_path / "params.yaml").write_text(text)
    expected = load_path(str(tmp_path / "params.yaml"), LocalFileSystem())
    assert repr(load_yaml(text)) == repr(load_yaml(text.encode())) == repr(expected)
    if tag:
        assert load_yaml(text) == {"a": scalar}


@pytest.mark.parametrize("scalar", [*CORE_SCHEMA, *OTHER_SCALARS])
def test_written_scalars_are_the_same_value_for_both_dialects(scalar):
    """Kubernetes and SkyPilot read YAML 1.1, DVC 1.2."""
    for value in (scalar, load_yaml(scalar)):
        written = dump_yaml({"a": value, scalar: [value]})
        assert repr(load_yaml(written)) == repr(yaml.safe_load(written)) == repr({"a": value, scalar: [value]})


def test_key_order_does_not_matter():
    assert stable_hash({"a": 1, "b": [1, 2]}) == stable_hash({"b": [1, 2], "a": 1}) != stable_hash({"a": 1})


def test_metrics_are_flat_and_finite(tmp_path):
    write_metrics(tmp_path / "m.json", {"b/x": 2, "a/y": 0.25})
    assert list(json.loads((tmp_path / "m.json").read_text())) == ["a/y", "b/x"]
    for broken in (float("nan"), float("inf"), None, "1", True):
        with pytest.raises(ValueError, match="a/y"):
            write_metrics(tmp_path / "m.json", {"a/y": broken})


def test_a_headline_holds_the_numbers_to_compare_under_the_words_of_all_stages(tmp_path):
    metrics = {"rows/in": 9, "rows/kept": 5, "loss/last": 0.5}
    write_metrics(tmp_path / "m.json", metrics, {tmp_path / "h" / "a.json": {"kept": "rows/kept", "loss": "none"}})
    assert json.loads((tmp_path / "h" / "a.json").read_text()) == {"kept": 5}
    assert json.loads((tmp_path / "m.json").read_text()) == metrics
    with pytest.raises(ValueError, match="not \\['rows'\\]"):
        write_metrics(tmp_path / "m.json", metrics, {tmp_path / "h.json": {"rows": "rows/kept"}})


def test_curves_have_one_row_per_step(tmp_path):
    write_curves(tmp_path / "c.csv", [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0, "validation": 3.0}])
    assert (tmp_path / "c.csv").read_text() == "step,loss,validation\n1,2.5,\n2,2.0,3.0\n"
