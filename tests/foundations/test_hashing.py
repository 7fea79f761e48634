"""Hashes are DVC's own: checked against what real DVC computes."""

from stages.foundations.files import dvc_md5, stable_hash


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


def test_key_order_does_not_matter():
    assert stable_hash({"a": 1, "b": [1, 2]}) == stable_hash({"b": [1, 2], "a": 1}) != stable_hash({"a": 1})
