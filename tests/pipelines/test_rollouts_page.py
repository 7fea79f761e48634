"""The page of a round's rollouts, opened in a browser from the disk as a user does."""

import json
import shutil

import pytest
import torch
from tokenizers import Tokenizer
from typer.testing import CliRunner

from pipelines.cli import app
from stages.engines.policies.policy_folders import load_policy
from stages.foundations.tables import ROLLOUT, write_table
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import byte_tokenizer, write_tiny_policy

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"> \u2028 \\boxed{7}"
RL = {"rl": {**PARAMS["rl"], "temperature": 0.7}}
PROBLEMS = {"p/0": ("What is <b>3+4</b>?", "7"), "p/1": ("What is 1+1?", "2")}


def rows():
    """Returns three groups of two: p/0, then p/1 twice in one step. Their lengths are 10, 11, ... tokens."""
    for group, (problem, step) in enumerate((("p/0", 1), ("p/1", 2), ("p/1", 2))):
        for sample in (0, 1):
            number = 2 * group + sample
            text = HOSTILE if number == 1 else f"It is \\boxed{{{number}}}."
            yield {
                "problem_id": problem,
                "step": step,
                "policy_version": step - 1,
                "sample_index": sample,
                "response": text,
                "response_tokens": 10 + number,
                "token_ids": list(text.encode())[:3],
                "rollout_logprobs": [-0.5, -4.0, -9.0],
                "reward": float(number == 1),
                "verdict": "correct" if number in (1, 2, 3) else "wrong",
                "is_truncated": number == 5,
                "is_trained": group == 0,
            }


@pytest.fixture
def project(tmp_path, monkeypatch):
    write_table(list(rows()), tmp_path / "data/rollouts/rl_1.parquet", ROLLOUT)
    byte_tokenizer().save_pretrained(tmp_path / "data/policies/rl_1")
    monkeypatch.setattr("pipelines.rollouts.command.PROJECT", tmp_path)
    monkeypatch.setattr("pipelines.rollouts.command.PIECE", 4)
    monkeypatch.setattr("pipelines.rollouts.command.problems_by_id", lambda root: PROBLEMS)
    return tmp_path


def make(*arguments, code=0):
    done = CliRunner().invoke(app, ["rollouts", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def test_the_index_has_groups_and_numbers_and_pieces_have_the_texts(project):
    assert "6 rollouts: open" in make("rl_1")
    folder = project / "reports/rollouts/rl_1"
    index = json.loads((folder / "index.js").read_text().removeprefix("window.RETRACE_ROLLOUTS = ").rstrip(";\n"))
    assert index["group"] == [0, 0, 1, 1, 2, 2], "a problem that a step draws twice has two groups"
    assert index["problems"] == [[name, *PROBLEMS[name]] for name in PROBLEMS]
    assert [index["verdicts"][verdict] for verdict in index["verdict"]][:2] == ["wrong", "correct"]
    assert index["flags"] == [2, 2, 0, 0, 0, 1]
    pieces = [(folder / f"rows-{number}.js").read_text() for number in (0, 1)]
    assert pieces[1].startswith("retraceRows(1, ") and not (folder / "rows-2.js").exists()
    (text, answer, tokens, logprobs) = json.loads(pieces[0].removeprefix("retraceRows(0, ").rstrip(");\n"))[1]
    assert (text, answer, tokens, logprobs) == (HOSTILE, "7", [60, 47, 115], [-0.5, -4.0, -9.0])
    vocabulary = Tokenizer.from_file(str(project / "data/policies/rl_1/tokenizer.json"))
    assert index["pieces"]["60"] == vocabulary.decode([60])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    make("rl_1")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before, "equal rollouts, equal bytes"


def test_the_answer_is_marked_outside_of_the_recipes_thoughts(project):
    def marked():
        make("rl_1")
        piece = (project / "reports/rollouts/rl_1/rows-0.js").read_text()
        return [row[1] for row in json.loads(piece.removeprefix("retraceRows(0, ").rstrip(");\n"))]

    assert marked() == ["0", "7", "2", "3"]
    limits = {"timeout_seconds": 1, "memory_mib": 256, "workers": 1, "abort_undecided_fraction": 0.1}
    params = {"verifier": {**limits, "thought": {"open": "It", "close": "}."}}}
    (project / "params.yaml").write_text(json.dumps(params))
    assert marked() == ["", "7", "", ""]


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium")
def test_a_browser_filters_sorts_and_shows_text_as_text(project):
    from playwright.sync_api import sync_playwright

    make("rl_1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"file://{project}/reports/rollouts/rl_1/index.html")
        page.wait_for_selector("article")
        assert page.inner_text("#count") == "1 to 6 of 6 rollouts that match, of 6"
        assert page.locator("article pre.problem").first.inner_text() == PROBLEMS["p/0"][0]
        page.select_option("[name=verdict]", "wrong")
        page.select_option("[name=order]", "long")
        page.wait_for_function("document.getElementById('count').textContent.startsWith('1 to 3')")
        assert page.locator("article .answer .quiet").all_inner_texts() == [
            "15 tokens, truncated, left out",
            "14 tokens, left out",
            "10 tokens, trained on",
        ]
        page.get_by_text("Show its group: 1 of 2 right").click()
        page.wait_for_selector("article .answer:not(.wrong)")
        shown = page.locator("article .answer:not(.wrong) pre")
        assert shown.text_content() == HOSTILE and shown.locator("mark").inner_text() == "7"
        assert "owned" not in page.title() and not page.locator("article img").count() and not problems
        page.check("#shade")
        page.wait_for_selector(".token")
        address = page.url
        page.reload()
        page.wait_for_selector(".token")
        assert page.url == address and page.inner_text("#count").endswith("of 3 rollouts that match, of 6")
        browser.close()


TOOL = "[<b onclick=x>\\boxed{42}</b>]"


def episodes():
    """Returns the rows with two episodes first: calls, an observation that has a box, an answer; and a fault."""
    turns = [("!1+1;", 0), (TOOL, 1), ("!2*é;", 0), ("[error: é]", 1), ("It is 7.", 0)]
    tokens, observed = [], []
    for text, is_observed in turns:
        start = len(tokens)
        tokens += byte_tokenizer().encode(text)
        observed += [start, len(tokens)] if is_observed else []
    course = {"observed": observed, "turns": 3, "calls": 2, "failed_calls": 1, "final_response": "\\boxed{7}"}
    course |= {"ending": "max_turns", "environment_reward": 0.5, "environment_fault": None}
    whole = {"response": "".join(text for text, _ in turns), "token_ids": tokens}
    whole["rollout_logprobs"] = [
        0.0 if any(a <= at < b for a, b in zip(observed[::2], observed[1::2], strict=True)) else -2.0
        for at in range(len(tokens))
    ]
    first, second, *others = rows()
    yield first | whole | course
    fault = {"failed_calls": 0, "environment_fault": "a worker died <twice>", "environment_reward": None}
    yield second | {"observed": [], "turns": 1, "calls": 1, "final_response": "", "ending": "fault"} | fault
    yield from others


def test_segments_alternate_and_an_observations_box_is_no_answer(project):
    write_table(list(episodes()), project / "data/rollouts/rl_1.parquet", ROLLOUT)
    make("rl_1")
    folder = project / "reports/rollouts/rl_1"
    index = json.loads((folder / "index.js").read_text().removeprefix("window.RETRACE_ROLLOUTS = ").rstrip(";\n"))
    assert index["turns"] == [3, 1, 1, 1, 1, 1] and index["calls"] == [2, 1, 0, 0, 0, 0]
    assert index["failed"] == [1, 0, 0, 0, 0, 0] and index["faulty"] == [0, 1, 0, 0, 0, 0]
    shown = json.loads((folder / "rows-0.js").read_text().removeprefix("retraceRows(0, ").rstrip(");\n"))
    course, answer, *_ = shown[0]
    assert course["segments"] == [["!1+1;", 0], [TOOL, 1], ["!2*é;", 0], ["[error: é]", 1], ["It is 7.", 0]]
    assert (answer, course["ending"], course["reward"], course["fault"]) == ("7", "max_turns", 0.5, "")
    assert (shown[1][0]["reward"], shown[1][0]["fault"]) == (None, "a worker died <twice>")
    assert shown[2][0] == "It is \\boxed{2}.", "a row without an episode is a text, as in a table of one turn"


def test_a_table_of_one_turn_has_no_word_of_turns(project):
    make("rl_1")
    folder = project / "reports/rollouts/rl_1"
    assert (
        '"turns"' not in (folder / "index.js").read_text() and "turns_from" not in (folder / "index.html").read_text()
    )


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium")
def test_a_browser_sets_observations_off_and_filters_by_turns_and_faults(project):
    from playwright.sync_api import sync_playwright

    write_table(list(episodes()), project / "data/rollouts/rl_1.parquet", ROLLOUT)
    make("rl_1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        problems = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(f"file://{project}/reports/rollouts/rl_1/index.html")
        page.fill("[name=turns_from]", "2")
        page.wait_for_function("document.getElementById('count').textContent.startsWith('1 to 1 of 1')")
        shown = page.locator("article .answer")
        assert shown.locator("pre .observed").all_text_contents() == [TOOL, "[error: é]"]
        assert shown.locator("pre mark").all_text_contents() == ["7"]
        words = "turns 3, calls 2, failed calls 1, ending max turns, environment's reward 0.5"
        assert shown.locator(".quiet").nth(1).inner_text() == words
        assert not page.locator("article b").count()
        page.check("#shade")
        page.wait_for_selector(".token")
        policy = len("!1+1;!2*é;It is 7.".encode())
        assert shown.locator(".token").count() == policy, "observed tokens were not drawn and are not shaded"
        page.uncheck("#shade")
        page.click("button[type=reset]")
        page.select_option("[name=order]", "failed")
        page.wait_for_function("document.getElementById('count').textContent.startsWith('1 to 6 of 6')")
        page.select_option("[name=fault]", "1")
        page.wait_for_function("document.getElementById('count').textContent.startsWith('1 to 1 of 1')")
        assert page.locator("article .fault").inner_text() == "The environment failed: a worker died <twice>"
        assert not problems
        browser.close()


def seen_by_policy(project, prompts, temperature):
    """Returns log-prob and entropy of each row's tokens, from the policy's plain logits, one sequence at a time."""
    model, tokenizer = load_policy(project / "data/policies/rl_1", torch.float32)
    for row, prompt in zip(rows(), prompts, strict=True):
        ids = tokenizer.encode(prompt)
        with torch.no_grad():
            logits = model(torch.tensor([[*ids, *row["token_ids"]]])).logits[0, len(ids) - 1 : -1] / temperature
        logprobs = logits.log_softmax(-1)
        yield logprobs[range(3), row["token_ids"]], -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("colour", ["gap", "entropy"])
def test_tokens_are_measured_by_the_policy_that_is_named(project, colour):
    write_tiny_policy(project / "data/policies/rl_1")
    params = {"prompt": {"kind": "plain", "template": "Q: {problem}\nA:"}, **RL}
    (project / "params.yaml").write_text(json.dumps(params))
    make("rl_1", "--colour", colour, "--most", "4")
    folder = project / "reports/rollouts/rl_1"
    shown = [json.loads((folder / f"rows-{number}.js").read_text()[15:-3]) for number in (0, 1)]
    shown = [row for piece in shown for row in piece]
    # Every second group: 6 rows exceed the limit of 4.
    assert [len(row) for row in shown] == [5, 5, 4, 4, 5, 5]
    prompts = [f"Q: {PROBLEMS[row['problem_id']][0]}\nA:" for row in rows()]
    for row, found, (logprobs, entropy) in zip(rows(), shown, seen_by_policy(project, prompts, 0.7), strict=True):
        wanted = entropy if colour == "entropy" else logprobs - torch.tensor(row["rollout_logprobs"])
        assert len(found) == 4 or found[4] == pytest.approx(wanted.tolist(), abs=1e-3)
    page = (folder / "index.html").read_text()
    assert ("the entropy of rl_1" if colour == "entropy" else "under rl_1 minus the sampler") in page
    assert "(4 responses measured)" in page
    write_table([row | {"token_ids": [9, 999, 9]} for row in rows()], project / "data/rollouts/rl_1.parquet", ROLLOUT)
    assert "rl_1 knows 258 tokens, and the rollouts have token 999" in make("rl_1", "--colour", colour, code=2)


def test_mistakes_are_one_sentence(project):
    assert "neither a round with rollouts here (rl_1)" in make("rl_7", code=2)
    (project / "mine").mkdir()
    (project / "params.yaml").write_text(json.dumps({"prompt": {"kind": "plain", "template": "{problem}"}, **RL}))
    assert "no-such is not a policy" in make("rl_1", "--colour", "gap", "--policy", project / "no-such", code=2)
    assert "--colour 'red': give gap or entropy" in make("rl_1", "--colour", "red", code=2)
    assert "name a new folder" in make("rl_1", "--out", project / "mine", code=2)
    torn = project / "torn.parquet"
    torn.write_bytes((project / "data/rollouts/rl_1.parquet").read_bytes()[:-9])
    assert "cannot be read as Parquet" in make(torn, "--out", project / "page", code=2)
    write_table([], project / "data/rollouts/rl_2.parquet", ROLLOUT)
    assert "0 rollouts" in make("rl_2")
    assert not (project / "page").exists()
