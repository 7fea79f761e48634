"""From a score to the raw bytes, on a small project with a known graph."""

import json
import re
import xml.etree.ElementTree as ET

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands.explaining import as_text, content_of, draw, format_time
from pipelines.records.chain import StageCost, find_chain, stage_costs
from pipelines.records.lock_snapshots import working_snapshot
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, write_json, write_text_atomically
from tests.fakes.graded_project import commit_all, git, write_lock, write_project


@pytest.fixture
def project(tmp_path, monkeypatch):
    root = write_project(tmp_path / "project")
    monkeypatch.setattr("pipelines.commands.explaining.PROJECT", root)
    monkeypatch.setenv("RETRACE_STATE", str(root / "state"))
    return root


def names(chain):
    return [step.entry.name for step in chain.steps]


def told(root, argument, is_all=False):
    chain = find_chain(argument, root)
    return as_text(chain, stage_costs(chain, root / "state"), is_all)


def test_a_policys_chain_starts_at_its_score_and_ends_at_the_raw_bytes(project):
    chain = find_chain("rl_1", project)
    assert names(chain)[-3:] == ["rl_round@rl_1", "respond@rl_1", "grade@rl_1"]
    assert set(names(chain)) == {"base", "collect@train", "curate", "sft", *names(chain)[-3:]}
    for place, step in enumerate(chain.steps):
        makers = {maker for one in step.inputs for maker in one.makers}
        assert makers <= set(names(chain)[:place]), "each stage stands after what it depends on"
    (collect,) = (step for step in chain.steps if step.entry.name == "collect@train")
    assert collect.raw[0]["sha256"] == "ab" * 32 and not collect.inputs
    (curate,) = (step for step in chain.steps if step.entry.name == "curate")
    assert curate.inputs[0].makers == ("collect@train",), "an output inside of the folder that it depends on"
    assert chain.depth()["grade@rl_1"] == 5


@pytest.mark.parametrize(
    ("argument", "target"),
    [
        ("grade@sft", "grade@sft"),
        ("rl_round@rl_1", "rl_round@rl_1"),
        ("data/verdicts/rl_1.parquet", "grade@rl_1"),
        ("verdicts/rl_1.parquet", "grade@rl_1"),
        ("data/policies/sft/config.json", "sft"),
        ("data/metrics/grade/sft.json", "grade@sft"),
        ("base", "base"),
        ("{root}/data/problems/train.parquet", "curate"),
        ("data/policies", "base sft rl_round@rl_1"),
    ],
)
def test_what_can_be_asked_for(project, argument, target):
    assert find_chain(argument.format(root=project), project).targets == tuple(target.split())


def test_the_text_names_hashes_params_code_and_time(project):
    assert re.search(r"^\d+ stages \(no time on record for", told(project, "rl_1"), re.M)
    (project / "state").mkdir(exist_ok=True)
    line = {"name": "sft", "lock_hash": working_snapshot(project).entries["sft"].key, "seconds": 75.0, "phases": {}}
    line["started"] = "2026-01-01T00:00:00+00:00"
    (project / "state" / "ledger.jsonl").write_text(json.dumps(line) + "\n")
    text = told(project, "rl_1", is_all=True)
    assert dvc_md5(project / "data/policies/rl_1")[:10] in text
    assert "rl.policy_loss.clip_high=0.28" in text and "url https://example.org/train.jsonl" in text
    assert "1 min 15 s" in text and "no time on record for" in text
    assert text.index("grade@rl_1") < text.index("\nsft\n") < text.index("\ncollect@train\n")


def test_long_parameter_lists_are_cut_and_one_line_stays_one_line(project):
    params = project / "params.yaml"
    more = "".join(f"  key_{number}: 'a\n\n    b'\n" for number in range(20))
    more = "  words: ['wait', 'Käse']\n" + more
    params.write_text(params.read_text().replace("sft:\n", "sft:\n" + more, 1))
    write_lock(project)
    text = told(project, "sft")
    assert "more: --params shows all" in text and "\n    b" not in text and r"a\nb" in text
    assert 'sft.words=["wait", ' in text, "quotes are not escaped twice"


def test_a_file_that_changed_and_a_stage_that_is_behind_are_told(project):
    write_text_atomically(project / "data/problems/train.parquet", "edited")
    assert "has changed since" in told(project, "data/problems/train.parquet")
    lock = (project / "dvc.lock").read_text()
    digest = dvc_md5(project / "data/policies/sft")
    first = lock.index(digest)  # sft's output; the input of rl_1 stays
    (project / "dvc.lock").write_text(lock[:first] + "0" * 32 + ".dir" + lock[first + len(digest) :])
    assert "STALE" in told(project, "rl_round@rl_1")


def test_the_commit_that_has_it_on_record_is_named(project):
    commit = commit_all(project, "first")
    write_project(project, seed=1)
    commit_all(project, "second")
    write_project(project, seed=0)
    chain = find_chain("rl_1", project)
    assert {one.commit for one in stage_costs(chain, project / "state").values()} == {commit}
    then = find_chain(f"{commit[:8]}:rl_1", project)
    assert [step.entry.key for step in then.steps] == [step.entry.key for step in chain.steps]


def test_mistakes_are_told_with_the_remedy(project, tmp_path):
    write_json(project / "other.json", {})
    params = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(params.replace("- rl_1", "- rl_1\n- rl_2"))
    (project / "data/metrics/grade/rl_1.json").write_text("<<<<<<< ours\n{}")
    for argument, message in (
        ("rl_1", r"is no metric file .*: `git checkout data/metrics/grade/rl_1.json`, or `dvc repro grade@rl_1`"),
        ("rl_2", r"never ran: run `dvc repro grade@rl_2`"),
        ("nope", r"policies: base, sft, rl_1"),
        ("other.json", "no output of a stage"),
        ("v9:rl_1", "no git revision or DVC experiment 'v9'"),
    ):
        with pytest.raises(UserError, match=message):
            find_chain(argument, project)
    with pytest.raises(UserError, match="run `dvc repro`"):
        find_chain("sft", tmp_path / "empty")


def test_gpu_hours():
    assert StageCost("", "", None, 1800.0, 4).gpu_hours == 2.0
    assert StageCost("", "", None, 1800.0, None).gpu_hours is None
    assert (format_time(4.25), format_time(3725), format_time(119.7)) == ("4.2 s", "1 h 2 min", "2 min 0 s")


def test_the_picture_has_a_box_for_each_stage_and_no_markup_of_others(project):
    params = project / "params.yaml"
    params.write_text(params.read_text().replace("https://example.org/train.jsonl", "https://x/<script>&"))
    write_lock(project)
    chain = find_chain("rl_1", project)
    text = draw(chain, stage_costs(chain, project / "state"))
    tree = ET.fromstring(text)
    boxes = [one for one in tree.iter() if one.get("class") == "name"]
    assert {box.text for box in boxes} == set(names(chain)) and "<script" not in text
    corners = {(one.get("x"), one.get("y")) for one in tree.iter() if one.tag.endswith("rect")}
    assert len(corners) == len(boxes) + 1, "no box lies on another"
    assert len(re.findall(r"<path", text)) == sum(len(one.makers) for step in chain.steps for one in step.inputs)


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *arguments])


def test_the_command_prints_json_and_draws(project, tmp_path):
    done = run("rl_1", "--json", "--picture", str(tmp_path / "chain.svg"))
    content = json.loads(done.stdout)
    assert done.exit_code == 0 and content["targets"] == ["grade@rl_1"] and content["scores"]["rows/kept"] == 150
    stage = content["stages"][-1]
    assert {one["path"] for one in stage["outputs"]} == {"data/verdicts/rl_1.parquet", "data/metrics/grade/rl_1.json"}
    assert len(stage["code_md5"]) == 32 and stage["code_definitions"] == 1
    assert (tmp_path / "chain.svg").read_text().startswith("<svg")
    chain = find_chain("rl_1", project)
    assert content == content_of(chain, stage_costs(chain, project / "state"))
    for arguments, message in ((["nope"], "policies:"), (["sft", "--picture", "x.png"], ".svg")):
        done = run(*arguments)
        assert done.exit_code == 2 and message in done.stderr


def test_an_experiment_of_dvc_is_named_like_a_revision(project):
    from dvc.repo import Repo

    def seed_of(argument):
        (sft,) = (step for step in find_chain(argument, project).steps if step.entry.stage == "sft")
        return sft.entry.params["seed"]

    first = commit_all(project, "first")
    with Repo.init(str(project)) as repo:
        write_project(project, seed=1)
        repo.experiments.save(name="wormy-axon")
    git(project, "checkout", "-q", ".")
    assert [seed_of("rl_1"), seed_of("wormy-axon:rl_1")] == [0, 1] and find_chain("wormy-axon:rl_1", project).scores
    # DVC permits the name once for each commit. That of the present commit is meant, as in DVC.
    git(project, "commit", "-q", "--allow-empty", "-m", "second")
    second = git(project, "rev-parse", "HEAD").strip()
    git(project, "update-ref", f"refs/exps/{second[:2]}/{second[2:]}/wormy-axon", first)
    assert seed_of("wormy-axon:rl_1") == 0
    git(project, "commit", "-q", "--allow-empty", "-m", "third")
    with pytest.raises(UserError, match="2 DVC experiments have the name 'wormy-axon': use one of the commits"):
        find_chain("wormy-axon:rl_1", project)
