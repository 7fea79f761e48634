"""The certificate: hand-worked comparisons, and a small real DVC graph run again, with planted differences."""

import json

import numpy
import pandas
import pytest
import torch
from safetensors.torch import save_file

from pipelines.commands import verifying
from pipelines.commands.verifying import Tolerance, Verdict, as_markdown, compare_files, compare_folders
from pipelines.records.lock_snapshots import working_snapshot
from pipelines.runtime.process_group import dvc, run_in_group
from stages.foundations.errors import UserError
from stages.observe.unchanged import key_on_record
from tests.fakes.graded_project import git
from tests.fakes.small_graph import small_graph

TOLERANCE = Tolerance(relative=1e-3, absolute=1e-9, weights=1e-6)


def compared(tmp_path, name, first, second):
    """Writes the same kind of file twice and compares."""
    paths = [tmp_path / "first" / name, tmp_path / "second" / name]
    for path, content in zip(paths, (first, second), strict=True):
        path.parent.mkdir(exist_ok=True)
        if name.endswith(".parquet"):
            pandas.DataFrame(content).to_parquet(path)
        elif name.endswith(".safetensors"):
            save_file(content, path)
        else:
            path.write_text(content)
    return compare_files(*paths, TOLERANCE)


@pytest.mark.parametrize(
    ("first", "second", "verdict", "detail"),
    [
        ('{"a": 1}', '{"a": 1}', Verdict.IDENTICAL, ""),
        ('{"a": 1}', '{"a": 1.0}', Verdict.EQUAL, "in another notation"),
        ('{"a": 1000}', '{"a": 1000.9}', Verdict.EQUAL, ""),
        ('{"a": 1000}', '{"a": 1001.1}', Verdict.DIFFERENT, "a 1000 became 1001.1"),
        ('{"a": {"b": [1, 2]}}', '{"a": {"b": [1, 3]}}', Verdict.DIFFERENT, "a.b[1] 2 became 3"),
        ('{"a": 1, "b": 1}', '{"a": 1, "c": 1}', Verdict.DIFFERENT, "b is gone; c is new"),
        ('{"a": "x"}', '{"a": "y"}', Verdict.DIFFERENT, "a 'x' became 'y'"),
        ('{"a": true}', '{"a": 1}', Verdict.EQUAL, ""),
        ('{"a": NaN}', '{"a":  NaN}', Verdict.EQUAL, ""),
        ('{"a": 1}', '{"a": Infinity}', Verdict.DIFFERENT, "a 1 became inf"),
        ('{"a": 1}', "not json", Verdict.DIFFERENT, "cannot be read"),
    ],
)
def test_json_is_compared_number_by_number(tmp_path, first, second, verdict, detail):
    found = compared(tmp_path, "metrics.json", first, second)
    assert found.verdict is verdict and detail in found.detail


def test_tables_are_compared_row_by_row(tmp_path):
    rows = {
        "id": ["a", "b", "c"],
        "score": [1.0, numpy.nan, 3.0],
        "tokens": [[1, 2], [3], None],
        "note": ["x", None, "z"],
    }
    assert compared(tmp_path, "t.parquet", rows, rows).verdict is Verdict.IDENTICAL
    near = rows | {"score": [1.0005, numpy.nan, 3.0]}
    assert compared(tmp_path, "t.parquet", rows, near).verdict is Verdict.EQUAL
    for changed, detail in (
        ({"score": [1.0, numpy.nan, 3.5]}, "of 3 rows, score: 1 differ, by up to 0.5"),
        ({"note": ["x", None, "other"]}, "note: 1 differ, the first is row 2"),
        ({"tokens": [[1, 2], [4], None]}, "tokens: 1 differ, the first is row 1"),
        ({"score": [1.0, numpy.nan, numpy.inf]}, "score: 1 differ"),
    ):
        found = compared(tmp_path, "t.parquet", rows, rows | changed)
        assert found.verdict is Verdict.DIFFERENT and detail in found.detail
    fewer = {name: column[:2] for name, column in rows.items()}
    assert "3 rows became 2" in compared(tmp_path, "t.parquet", rows, fewer).detail
    without = {name: column for name, column in rows.items() if name != "score"}
    assert "columns: score" in compared(tmp_path, "t.parquet", rows, without).detail
    assert compared(tmp_path, "c.csv", "step,loss\n1,0.5\n", "step,loss\n1,0.5000001\n").verdict is Verdict.EQUAL
    assert compared(tmp_path, "c.csv", "step,loss\n1,0.5\n", "step,loss\n1,0.6\n").verdict is Verdict.DIFFERENT


def test_weights_are_compared_by_their_largest_difference(tmp_path):
    weights = {"a": torch.zeros(2, 2), "b": torch.ones(3)}
    near = {"a": torch.zeros(2, 2), "b": torch.ones(3) + 5e-7}
    far = {"a": torch.tensor([[0.0, 0.25], [0.0, 0.0]]), "b": torch.ones(3)}
    assert compared(tmp_path, "m.safetensors", weights, near).verdict is Verdict.EQUAL
    found = compared(tmp_path, "m.safetensors", weights, far)
    assert found.verdict is Verdict.DIFFERENT and "by up to 0.25 (a)" in found.detail
    broken = {"a": torch.full((2, 2), torch.nan), "b": torch.ones(3)}
    assert compared(tmp_path, "m.safetensors", weights, broken).verdict is Verdict.DIFFERENT
    other = {"a": torch.zeros(4), "b": torch.ones(3)}
    assert "shapes of a" in compared(tmp_path, "m.safetensors", weights, other).detail
    paths = [tmp_path / side / "m.safetensors" for side in ("first", "second")]
    paths[1].write_bytes(paths[0].read_bytes()[:-3])
    found = compare_files(*paths, TOLERANCE)
    assert found.verdict is Verdict.DIFFERENT and "cannot be read" in found.detail


def test_the_worst_file_of_a_folder_decides(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "config.json").write_text('{"a": 1}')
    files = {"config.json": first / "config.json"}
    assert compare_folders(files, second, TOLERANCE).verdict is Verdict.IDENTICAL
    (second / "more.txt").write_text("x")
    assert "more.txt: is new" in compare_folders(files, second, TOLERANCE).detail
    (second / "more.txt").unlink()
    (second / "config.json").unlink()
    assert compare_folders(files, second, TOLERANCE).verdict is Verdict.MISSING


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Makes a finished run; its metric files are in git, its lock is not."""
    folder = small_graph(tmp_path_factory.mktemp("finished") / "project")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "graph")
    assert run_in_group(dvc("repro", "-q"), folder) == 0
    git(folder, "add", "data")
    git(folder, "commit", "-qm", "metrics")
    return folder


def run(finished, tmp_path, planted=None, **order):
    settings = {"revision": "", "targets": (), "stage": "", "tolerance": TOLERANCE, "keep": False} | order
    patch = pytest.MonkeyPatch()
    patch.setenv("PLANTED", json.dumps(planted or {}))
    patch.delenv("DVC_ROOT", raising=False)
    try:
        return verifying.certify(finished, tmp_path / "state", verifying.Order(**settings), lambda line: None)
    finally:
        patch.undo()


def verdicts(content):
    return {row["path"]: row["verdict"] for row in content["outputs"]}


def test_a_stage_knows_before_it_starts_the_key_that_dvc_will_write(finished, monkeypatch):
    monkeypatch.chdir(finished)
    entries = working_snapshot(finished).entries
    assert entries["base"].params["base"]["rate"] == 5e-06, "YAML 1.2, as DVC reads it"
    assert {name: key_on_record(name) for name in entries} == {name: entry.key for name, entry in entries.items()}


@pytest.mark.slow
def test_a_run_that_repeats_itself_is_identical_in_every_output(finished, tmp_path):
    before = sorted(str(path) for path in finished.rglob("*"))
    content = run(finished, tmp_path)
    assert content["is_reproduced"] and set(verdicts(content).values()) == {"identical"}
    assert len(content["outputs"]) == 7 and content["counts"]["identical"] == 7
    assert content["commit"] == git(finished, "rev-parse", "HEAD").strip()
    assert sorted(str(path) for path in finished.rglob("*") if "/.dvc/tmp" not in str(path)) == [
        name for name in before if "/.dvc/tmp" not in name
    ], "the finished run is left as it was"
    assert not (tmp_path / "state" / "verify" / "checkout").exists()
    page = verifying.write_certificate(content, tmp_path / "reports")
    assert json.loads((tmp_path / "reports" / "certificate.json").read_text())["machine"]["packages"]["torch"]
    assert "**Reproduced: identical**" in page.read_text()


@pytest.mark.slow
def test_planted_differences_are_told_where_they_are(finished, tmp_path):
    content = run(finished, tmp_path, {"base": 1, "respond": 1e-5, "report": 0})
    found = verdicts(content)
    assert not content["is_reproduced"] and content["verdict"] == "different"
    assert found["data/policies/base"] == "different" and found["data/metrics/a.json"] == "equal within tolerance"
    assert found["data/responses/b.csv"] == found["reports/index.html"] == "identical"
    assert "config.json: hidden 4.0 became 5" in as_markdown(content)


@pytest.mark.slow
def test_one_stage_runs_on_the_inputs_of_the_finished_run(finished, tmp_path):
    content = run(finished, tmp_path, {"base": 1}, stage="report")
    assert verdicts(content) == {"reports/index.html": "identical"}
    failed = run(finished, tmp_path, {"respond": "failure"}, stage="respond@a")
    assert failed["verdict"] == "the run failed" and "the cause" in as_markdown(failed)
    assert not failed["is_reproduced"]


def test_a_checkout_that_failed_or_was_interrupted_leaves_nothing(finished, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(verifying, "run_again", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(finished, tmp_path)
    assert not (tmp_path / "state" / "verify" / "checkout").exists()


def test_without_git_and_inside_another_repository(finished, tmp_path, monkeypatch):
    (finished / "inside").mkdir()
    with pytest.raises(UserError, match="inside is a folder of the git repository"):
        run(finished / "inside", tmp_path)
    (finished / "inside").rmdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="only committed code is run"):
        run(finished, tmp_path)


def test_what_cannot_be_verified_is_told(finished, tmp_path):
    for order, told in (
        ({"revision": "nothing"}, "no git revision 'nothing'"),
        ({"stage": "sft"}, "no stage sft: there are"),
        ({"revision": "HEAD"}, r"has no dvc\.lock: nothing had run there"),
    ):
        with pytest.raises(UserError, match=told):
            run(finished, tmp_path, **order)
