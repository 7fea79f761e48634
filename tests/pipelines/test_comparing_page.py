"""The page of a comparison, the command, and what git and DVC's cache still have."""

import json
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from pipelines.comparing.page import render_page
from pipelines.comparing.results import CHARACTERS, compare, examples
from pipelines.comparing.sides import read_sides
from pipelines.records.lock_snapshots import cached_object
from tests.fakes.graded_project import answers, commit_all, write_answers, write_lock, write_project

HOSTILE = '</pre><script>alert("x")</script><img src=x onerror=alert(1)>'


def nothing(text):
    return None


@pytest.fixture
def project(tmp_path, monkeypatch):
    root = write_project(tmp_path / "project")
    monkeypatch.setattr("pipelines.comparing.command.PROJECT", root)
    return root


def page_of(root, problems=20):
    findings = compare(read_sides(["sft", "rl_1"], root, nothing), ["avg", "greedy"], False, False)
    return render_page(findings, examples(findings, ["avg", "greedy"], problems))


def test_the_page_shows_problems_won_with_their_responses(project):
    text = page_of(project)
    assert "rl_1 scores higher than sft" in text and "The answer is 4." in text
    assert "sums/1" in text and text.count("<details>") >= 20
    assert "only the 20 with the largest difference are shown" in text
    assert page_of(project) == text, "equal arguments, equal bytes"


def test_hostile_texts_are_escaped_and_long_ones_are_cut(project):
    rows = answers([0.9] * 30, seed=2)
    for row in rows:
        row["response"] = HOSTILE + "9" * (3 * CHARACTERS) + "\u202e"
        row["problem_id"] += HOSTILE
    write_answers(project, "rl_1", rows)
    old = answers([0.1] * 30, seed=3)
    for row in old:
        row["problem_id"] += HOSTILE
    write_answers(project, "sft", old)
    write_lock(project)
    text = page_of(project)
    assert "<script" not in text and "<img" not in text and "&lt;script&gt;" in text
    assert "default-src &#39;none&#39;" in text or "default-src 'none'" in text
    assert "\u202e" not in text and "[cut:" in text
    assert len(text) < 20 * 3 * 4 * CHARACTERS


def test_the_number_of_problems_is_bounded(project):
    assert page_of(project, problems=2).count('class="id"') == 2
    assert 'class="id"' not in page_of(project, problems=0)


def test_without_responses_the_scores_are_shown(project):
    shutil.rmtree(project / "data/responses")
    assert "No responses are kept of sft, rl_1" in page_of(project)


def run(*arguments):
    import typer

    from pipelines.comparing.command import compare as command

    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(command)
    return CliRunner().invoke(app, list(arguments))


def test_the_command_prints_a_table_and_writes_page_and_record(project, tmp_path):
    done = run("sft", "rl_1", "--metrics", "avg", "--out", str(tmp_path / "c.html"))
    assert done.exit_code == 0 and "higher" in done.stdout
    assert "rl_1" in (tmp_path / "c.html").read_text()
    (kept,) = (tmp_path / "state" / "comparisons").glob("*.json")
    assert json.loads(kept.read_text())["content"]["comparisons"][0]["finding"] == "higher"
    again = run("sft", "rl_1", "--metrics", "avg", "--json", "--out", str(tmp_path / "c.html"))
    assert json.loads(again.stdout)["comparisons"][0]["second"] == "rl_1"
    assert len(list((tmp_path / "state" / "comparisons").glob("*.json"))) == 1, "equal results are kept once"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["sft", "nope"], "is no policy"), (["sft", "rl_1", "--metrics", "best"], "there are avg, greedy, pass, maj")],
)
def test_a_mistake_is_exit_code_2(project, tmp_path, arguments, told):
    done = run(*arguments, "--out", str(tmp_path / "c.html"))
    assert done.exit_code == 2 and told in done.stderr and not (tmp_path / "c.html").exists()


def test_a_policy_of_a_commit_comes_out_of_the_cache(project):
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "-q"], cwd=project, check=True)
    commit = commit_all(project, "first")
    before = read_sides(["sft", "rl_1"], project, nothing)[0].answers[0]
    kept = project / "data/verdicts/sft.parquet"
    place = cached_object(project, before.digest)
    place.parent.mkdir(parents=True)
    shutil.copy(kept, place)
    write_answers(project, "sft", answers([0.8] * 30, seed=9))
    write_lock(project)
    now, then = read_sides(["sft", f"{commit[:8]}:sft"], project, nothing)
    assert then.answers[0].digest == before.digest != now.answers[0].digest
    assert then.answers[0].verdicts.equals(before.verdicts) and then.answers[0].responses is None
    place.unlink()
    with pytest.raises(Exception, match="dvc fetch --all-commits"):
        read_sides(["sft", f"{commit[:8]}:sft"], project, nothing)
