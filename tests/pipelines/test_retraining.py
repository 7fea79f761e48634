"""What a retraining finds, carries over, compares, promotes and rolls back; the whole flow runs in test_servers.py."""

import json
import os
import subprocess

import pandas
import pytest
import yaml
from typer.testing import CliRunner

from pipelines.retraining import champion as champions
from pipelines.retraining.champion import Champion, current, promote, promotions, roll_back, update_registry
from pipelines.retraining.gate import Measurement, pair_up
from pipelines.retraining.new_data import Snapshot, carried_over, copy_files, look
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.errors import UserError
from tests.fakes.mini_retraining import write_rows

FIELDS = {"problem": "question", "answer": "answer", "solution": None}


def source(origin, role="train"):
    return {"role": role, "licence": "MIT", "from": origin}


def local(path, sha256="0" * 64):
    kept = {"fields": FIELDS, "only": {"split": ["a"]}, "max_rows": 9}
    return {"kind": "local", "path": path, "sha256": sha256, "format": "csv", **kept}


def found_in(folder, params, lines=None):
    return look(params, folder, False, folder / "memory", (lines if lines is not None else []).append)


# ------------------------------------------------------------------ what is new
def test_a_file_becomes_the_next_revision_of_the_source_it_is_named_like(tmp_path):
    path = write_rows(tmp_path / "sums.jsonl", [{"question": "1+1", "answer": "2"}])
    params = {"sources": {"sums": source(local("given/sums.csv")), "other": source({"kind": "arithmetic"})}}
    before = Snapshot(json.loads(json.dumps(params))).name
    found = found_in(tmp_path, params)
    origin = found.params["sources"]["sums"]["from"]
    assert origin["kind"] == "local" and origin["format"] == "jsonl" and origin["fields"] == FIELDS
    assert origin["only"] == {"split": ["a"]} and origin["max_rows"] == 9
    assert origin["path"] == f"data/snapshots/sums-{origin['sha256'][:12]}.jsonl"
    assert found.changes == ["sums.jsonl: a new file for source sums"] and found.name != before
    copy_files(found, tmp_path / "checkout")
    assert (tmp_path / "checkout" / origin["path"]).read_bytes() == path.read_bytes()
    again = found_in(tmp_path, json.loads(json.dumps(found.params)))
    assert again.changes == [] and again.name == found.name, "seen before: nothing is new"


def test_a_new_source_needs_its_description(tmp_path):
    write_rows(tmp_path / "fresh.jsonl", [{"q": "1", "a": "1"}])
    with pytest.raises(UserError, match=r"no source fresh that has fields. Write fresh.yaml beside it"):
        found_in(tmp_path, {"sources": {}})
    entry = {"role": "train", "licence": "CC0", "from": {"fields": {"problem": "q", "answer": "a", "solution": None}}}
    (tmp_path / "fresh.yaml").write_text(yaml.safe_dump(entry))
    found = found_in(tmp_path, {"sources": {}})
    assert found.changes == ["fresh.jsonl: a new source fresh"]
    made = found.params["sources"]["fresh"]
    assert made["licence"] == "CC0" and made["from"]["only"] == {} and made["from"]["max_rows"] is None
    from stages.collect.stage import SourceParams

    SourceParams.model_validate(made)


def test_web_pages_come_in_too(tmp_path):
    write_rows(tmp_path / "crawl.warc.gz", [{}])
    (tmp_path / "crawl.yaml").write_text("kind: warc\nlicence: CC0\nmax_pages: null\n")
    found = found_in(tmp_path, {"sources": {}, "collect_web": {"sources": {}}})
    made = found.params["collect_web"]["sources"]["crawl"]
    assert made["kind"] == "warc" and made["path"].startswith("data/snapshots/crawl-")
    assert made["path"].endswith(".warc.gz")


@pytest.mark.parametrize(
    ("name", "beside", "told"),
    [
        ("Sums Of May.jsonl", "", "rename the file"),
        ("sums.txt", "", "files of problems end with .jsonl"),
        ("sums.jsonl", "[1, 2]", "must be an entry of sources"),
        ("sums.jsonl", "{", "is no YAML"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path, name, beside, told):
    write_rows(tmp_path / name, [{}])
    if beside:
        (tmp_path / "sums.yaml").write_text(beside)
    with pytest.raises(UserError, match=told):
        found_in(tmp_path, {"sources": {"sums": source(local("a"))}})


def test_a_file_that_is_being_written_waits(tmp_path):
    os.utime(write_rows(tmp_path / "sums.jsonl", [{}]))
    lines = []
    assert found_in(tmp_path, {"sources": {"sums": source(local("a"))}}, lines).changes == []
    assert "waits for the next time" in lines[0]


def test_an_incoming_link_is_refused(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "lessons.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match=r"lessons.jsonl is a link to /etc/passwd"):
        found_in(tmp_path / "in", {"sources": {}})


def test_no_incoming_folder_is_no_news(tmp_path):
    assert found_in(tmp_path / "absent", {"sources": {}}).changes == []


def test_the_champions_data_are_carried_over_unless_the_recipe_has_changed_them():
    then = {"sources": {"a": 1, "b": 1}, "seed": 0}
    theirs = {"sources": {"a": 2, "b": 2, "incoming": 5}, "seed": 0}
    recipe = {"sources": {"a": 1, "b": 7, "c": 9}, "seed": 3}
    assert carried_over(recipe, theirs, then) == {"sources": {"a": 2, "b": 7, "c": 9, "incoming": 5}, "seed": 3}
    assert carried_over(recipe, None, None) == recipe


# ------------------------------------------------------------------ tables to pairs
def measurement(folder, verdicts, ids=None, leaked=(), mode="sampled"):
    """Two responses for each problem; `verdicts` has a letter (c, w, u) for each response."""
    rows = [
        {
            "problem_id": (ids or range(99))[number // 2],
            "benchmark": "b",
            "mode": mode,
            "sample_index": number % 2,
            "problem": f"p{number // 2}",
            "answer": "1",
            "response": "r",
            "response_tokens": 1,
            "is_truncated": False,
        }
        for number in range(len(verdicts))
    ]
    folder.mkdir()
    responses = pandas.DataFrame(rows).astype({"problem_id": "string"})
    responses.to_parquet(folder / "responses.parquet")
    words = [{"c": "correct", "w": "wrong", "u": "unparsed"}[letter] for letter in verdicts]
    judged = responses[["problem_id", "benchmark", "mode", "sample_index"]].assign(
        verdict=words, extracted="", path="", reason=""
    )
    judged.iloc[::-1].to_parquet(folder / "verdicts.parquet")
    return Measurement(
        folder / "responses.parquet", folder / "verdicts.parquet", frozenset(map(normalise_problem, leaked))
    )


def test_pairs_are_found_by_text_whatever_the_ids(tmp_path):
    champion = measurement(tmp_path / "a", "ccwwcu", leaked=["p1"])
    found = pair_up(champion, measurement(tmp_path / "b", "cwccuu", ids="xyz", leaked=["p2"]))
    assert [(pair.champion, pair.candidate) for pair in found] == [(1.0, 0.5), (0.0, 1.0), (0.5, 0.0)]
    assert [(pair.champion_undecided, pair.candidate_undecided) for pair in found] == [(0, 0), (0, 0), (0.5, 1.0)]
    assert [pair.is_clean for pair in found] == [True, False, False], "leaked into either policy's training"


def test_too_few_common_problems_are_refused(tmp_path):
    few = measurement(tmp_path / "a", "cc")
    with pytest.raises(UserError, match="only 1 of the candidate's 2 benchmark problems"):
        pair_up(few, measurement(tmp_path / "b", "cccc"))


def test_greedy_and_sampled_scores_are_not_compared(tmp_path):
    greedy = measurement(tmp_path / "a", "cc", mode="greedy")
    with pytest.raises(UserError, match="measured greedy, the candidate sampled"):
        pair_up(greedy, measurement(tmp_path / "b", "cc"))


# ------------------------------------------------------------------ champions and rollback
@pytest.fixture(scope="module")
def tracking(tmp_path_factory):
    """One database for all tests: making it takes MLflow ten seconds of CPU time."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def repository(tmp_path, monkeypatch, tracking):
    """A git repository with two commits."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.setattr("pipelines.retraining.champion.PROJECT", folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    monkeypatch.delenv("RETRACE_TRACKING")
    for command in (["init", "-q"], *(["commit", "-q", "--allow-empty", "-m", name] for name in "ab")):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *command], cwd=folder, check=True)
    return folder


def promotion(folder, version, before, revision="HEAD", recipe="laptop"):
    commit = subprocess.run(["git", "rev-parse", revision], cwd=folder, capture_output=True, text=True).stdout.strip()
    return Champion(recipe, version, "rl_1", commit, f"{version}" * 32 + ".dir", "", before, "2026-01-01")


def registry():
    from mlflow.tracking import MlflowClient  # not above: every worker collects this file

    return MlflowClient()


def alias(folder, recipe="laptop"):
    version = registry().get_model_version_by_alias(f"retrace-{recipe}", "champion")
    return version.tags["git.tag"], version.source


def invoke(*arguments):
    from pipelines.cli import app

    return CliRunner().invoke(app, ["rollback", *arguments])


def test_promotion_and_rollback_move_tag_and_alias(repository):
    done = invoke("laptop")
    assert done.exit_code == 2 and "recipe laptop has no champion yet" in done.output
    first, second = promotion(repository, 1, None, "HEAD~1"), promotion(repository, 2, 1)
    promote(repository, first)
    done = invoke("laptop")
    assert done.exit_code == 2 and "there is no champion of laptop before v1" in done.output
    promote(repository, second)
    promote(repository, second)
    assert current(repository, "laptop") == second and promotions(repository, "laptop") == [first, second]
    assert alias(repository) == ("champion-laptop-v2", f"dvc://{second.commit}/data/policies/rl_1#{second.policy_hash}")

    done = invoke("laptop")
    assert done.exit_code == 0, done.output
    assert "the champion of laptop was v2" in done.output and "and now is v1" in done.output
    assert current(repository, "laptop") == first and alias(repository)[0] == "champion-laptop-v1"
    done = invoke("laptop")
    assert done.exit_code == 0 and "is the champion of laptop already" in done.output
    assert current(repository, "laptop") == first, "repeated it changes nothing"

    assert "v2" in invoke("laptop", "--to", "2").output and current(repository, "laptop") == second
    done = invoke("laptop", "--to", "7")
    assert done.exit_code == 2 and "there are v1, v2" in done.output

    third = promotion(repository, 3, 1)
    roll_back(repository, "laptop", 1, lambda line: None)
    promote(repository, third)
    assert invoke("laptop").exit_code == 0 and current(repository, "laptop") == first, "v2 was rolled back before"

    registry().delete_registered_model("retrace-laptop")
    told = update_registry(repository, "laptop")
    assert "champion-laptop-v3" in told and alias(repository)[0] == "champion-laptop-v1", "git knows it all"
    assert update_registry(repository, "laptop") == ""


@pytest.mark.timeout(200)  # MLflow alone tries for four minutes
def test_without_mlflow_the_tag_moves_and_the_message_says_how_mlflow_is_told(repository, monkeypatch):
    tracking = os.environ["MLFLOW_TRACKING_URI"]
    for version in (1, 2):
        promote(repository, promotion(repository, version, version - 1 or None, recipe="lonely"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    done = invoke("lonely")
    assert done.exit_code == 2 and "`retrace rollback` or the next retrain tells MLflow" in done.output
    assert "secret" not in done.output
    assert current(repository, "lonely").version == 1
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    assert "mended in MLflow: alias champion" in invoke("lonely").output


def test_with_tracking_off_git_alone_is_told(repository, monkeypatch):
    monkeypatch.setenv("RETRACE_TRACKING", "off")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    for version in (1, 2):
        promote(repository, promotion(repository, version, version - 1 or None, recipe="quiet"))
    done = invoke("quiet")
    assert done.exit_code == 0 and "RETRACE_TRACKING=off leaves MLflow's alias retrace-quiet@champion" in done.output
    assert current(repository, "quiet").version == 1 and "champion of quiet already\n" in invoke("quiet").output


def test_a_wrong_name_is_told_with_the_names_there_are(repository, monkeypatch):
    monkeypatch.setenv("RETRACE_TRACKING", "off")
    (repository / "pipelines" / "recipes").mkdir(parents=True)
    for name in ("laptop", "small"):
        (repository / "pipelines" / "recipes" / f"{name}.yaml").touch()
    promote(repository, promotion(repository, 1, None, recipe="small"))
    done = invoke("smal")
    assert done.exit_code == 2 and "unknown recipe 'smal': there are laptop, small; champions have small" in done.output
    done = invoke("laptop")
    assert "recipe laptop has no champion yet" in done.output and "champions have small" in done.output


def test_a_moving_tag_that_is_gone_is_set_again(repository, monkeypatch):
    monkeypatch.setenv("RETRACE_TRACKING", "off")
    promote(repository, promotion(repository, 1, None))
    subprocess.run(["git", "tag", "-d", "champion-laptop"], cwd=repository, check=True)
    done = invoke("laptop")
    assert done.exit_code == 2 and "the tag champion-laptop is gone: say with --to" in done.output
    assert invoke("laptop", "--to", "1").exit_code == 0 and current(repository, "laptop").version == 1


def test_a_tag_that_only_looks_like_a_promotion_is_passed_over(repository):
    for words in (["champion-laptop-v9"], ["-a", "champion-laptop-v8", "-m", "mine\n\n[1]"]):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "tag", *words]
        subprocess.run(command, cwd=repository, check=True)
    assert promotions(repository, "laptop") == [] and "has no champion yet" in invoke("laptop").output


def test_a_moving_tag_set_by_hand_is_told(repository):
    promote(repository, promotion(repository, 1, None, recipe="other"))
    subprocess.run(["git", "tag", "-f", champions.moving_tag("other"), "HEAD"], cwd=repository, check=True)
    with pytest.raises(UserError, match="points to no promotion: set it to one of them"):
        current(repository, "other")
