"""The parts of retraining: new data, copies, comparison, promotion, rollback; test_servers.py runs the whole flow."""

import json
import os
import socket
import subprocess
import threading

import pandas
import pytest
import yaml
from typer.testing import CliRunner

from pipelines.retraining.flow import Snapshot, carried_over, copy_files, look
from pipelines.retraining.gate import Champion, Measurement, current, pair_up, promote, promotions, update_registry
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.errors import UserError
from tests.fakes.file_server import answering
from tests.fakes.mini_retraining import write_rows

FIELDS = {"problem": "question", "answer": "answer", "solution": None}


def source(origin, role="train"):
    return {"role": role, "licence": "MIT", "from": origin}


def local(path):
    kept = {"fields": FIELDS, "only": {"split": ["a"]}, "max_rows": 9}
    return {"kind": "local", "path": path, "sha256": "0" * 64, "format": "csv", **kept}


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
    with pytest.raises(UserError, match="no section collect_web, so no stage would read these pages"):
        found_in(tmp_path, {"sources": {}})


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


def test_a_file_that_is_being_written_waits_and_a_link_is_refused(tmp_path):
    lines, params = [], {"sources": {"sums": source(local("a"))}}
    assert found_in(tmp_path / "absent", params).changes == []
    os.utime(write_rows(tmp_path / "sums.jsonl", [{}]))
    assert found_in(tmp_path, params, lines).changes == [] and "waits for the next time" in lines[0]
    (tmp_path / "lessons.jsonl").symlink_to("/etc/passwd")
    with pytest.raises(UserError, match=r"lessons.jsonl is a link to /etc/passwd"):
        found_in(tmp_path, params)


def test_the_champions_data_are_carried_over_unless_the_recipe_has_changed_them():
    then = {"sources": {"a": 1, "b": 1}, "seed": 0}
    theirs = {"sources": {"a": 2, "b": 2, "incoming": 5}, "seed": 0}
    recipe = {"sources": {"a": 1, "b": 7, "c": 9}, "seed": 3}
    assert carried_over(recipe, theirs, then) == {"sources": {"a": 2, "b": 7, "c": 9, "incoming": 5}, "seed": 3}


def ask_upstream(folder, url, sha256, lines):
    params = {"sources": {"far": source({"kind": "url", "url": url, "sha256": sha256})}}
    return look(params, folder / "none", True, folder / "memory", lines.append)


def test_a_changed_file_behind_a_url_is_a_new_revision(tmp_path):
    one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
    content, asked, lines = [b"one"], [], []

    def answer(request, body):
        """Has no entity tags of its own: a file is `known` when the client names its content."""
        asked.append(request.headers.get("If-None-Match"))
        return (304, b"") if asked[-1] == content[0].decode() else (200, content[0], {"ETag": content[0].decode()})

    with answering(answer) as address:
        for _ in range(2):
            assert ask_upstream(tmp_path, f"{address}/problems.jsonl", one, lines).changes == []
        assert asked == [None, "one"], "the second time the server says that nothing changed"
        content[0] = b"two"
        found = ask_upstream(tmp_path, f"{address}/problems.jsonl", one, lines)
    assert found.changes[0].startswith("source far has a new revision: sha256 3fc4ccfe7458")
    sha256 = found.params["sources"]["far"]["from"]["sha256"]
    kept = tmp_path / "state" / "downloads" / sha256
    assert kept.read_bytes() == b"two" and not list(kept.parent.glob("*.partial")) and lines == []


def test_a_server_that_does_not_answer_is_told_and_the_pinned_revision_stays(tmp_path):
    lines = []
    assert ask_upstream(tmp_path, "http://127.0.0.1:9/x", "0" * 64, lines).changes == []
    assert "source far could not be checked for a newer revision" in lines[0]


def test_an_answer_that_breaks_off_is_no_answer_and_leaves_no_file(tmp_path):
    def cut_off(listener):
        connection, _ = listener.accept()
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
        connection.close()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        threading.Thread(target=cut_off, args=[listener], daemon=True).start()
        lines, url = [], f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        assert ask_upstream(tmp_path, url, "0" * 64, lines).changes == []
    assert "could not be checked" in lines[0] and list((tmp_path / "state" / "downloads").iterdir()) == []


# ------------------------------------------------------------------ tables to pairs
def measurement(folder, verdicts, ids=None, leaked=(), mode="sampled"):
    """Writes two responses for each problem; `verdicts` has a letter (c, w, u) for each response."""
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


def test_other_problems_or_another_mode_are_not_compared(tmp_path):
    candidate = measurement(tmp_path / "candidate", "cccc")
    for mode, told in (("sampled", "only 1 of the candidate's 2 benchmark"), ("greedy", "measured greedy, the candid")):
        with pytest.raises(UserError, match=told):
            pair_up(measurement(tmp_path / mode, "cc", mode=mode), candidate)


# ------------------------------------------------------------------ champions and rollback
@pytest.fixture(scope="module")
def tracking(tmp_path_factory):
    """Makes one database for all tests: it takes MLflow ten seconds of CPU time."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def repository(tmp_path, monkeypatch, tracking):
    """Makes a git repository with two commits."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.setattr("pipelines.retraining.gate.PROJECT", folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    monkeypatch.delenv("RETRACE_TRACKING")
    for command in (["init", "-q"], *(["commit", "-q", "--allow-empty", "-m", name] for name in "ab")):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *command], cwd=folder, check=True)
    return folder


def promotion(folder, version, before, revision="HEAD", recipe="laptop"):
    commit = subprocess.run(["git", "rev-parse", revision], cwd=folder, capture_output=True, text=True).stdout.strip()
    return Champion(recipe, version, "rl_1", commit, f"{version}" * 32 + ".dir", "", before, "2026-01-01")


def registry():
    from mlflow.tracking import MlflowClient  # imported here, because every worker collects this file

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
    assert invoke("laptop", "--to", "1").exit_code == 0
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
    assert done.exit_code == 2 and "`retrace rollback` or the next retrain updates MLflow" in done.output
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


def test_tags_that_people_set_or_removed(repository, monkeypatch):
    monkeypatch.setenv("RETRACE_TRACKING", "off")

    def tag(*words):
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", "tag", *words]
        subprocess.run(command, cwd=repository, check=True)

    tag("champion-laptop-v9")
    tag("-a", "champion-laptop-v8", "-m", "mine\n\n[1]")
    assert promotions(repository, "laptop") == [] and "has no champion yet" in invoke("laptop").output
    promote(repository, promotion(repository, 1, None))
    tag("-d", "champion-laptop")
    done = invoke("laptop")
    assert done.exit_code == 2 and "the tag champion-laptop is gone: name a champion with --to" in done.output
    assert invoke("laptop", "--to", "1").exit_code == 0 and current(repository, "laptop").version == 1
    tag("-f", "champion-laptop", "HEAD")
    with pytest.raises(UserError, match="points to no promotion: set it to one of them"):
        current(repository, "laptop")
