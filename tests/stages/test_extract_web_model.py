"""extract_web with a model after the rules: the real sampler and a tiny policy, and a server of chat completions.

Outputs contain only parts of the page's text, whatever the model writes.
"""

import json
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest

from stages.__main__ import main
from stages.engines.policies.tokenizers import load_tokenizer
from stages.extract_web import policy, second_reading
from stages.extract_web.second_reading import ask_server, model_candidates, page_windows, read_answer, request
from stages.extract_web.stage import AddressModel, ExtractWebParams
from stages.foundations.errors import UserError
from stages.foundations.params import validate_section
from stages.foundations.tables import CANDIDATE, DROPPED, PAGE, read_table, write_table
from tests.fakes.taught_extractor import COPIED, INVENTED, PROMPT, SAID, write_taught_extractor
from tests.fakes.web_pages import OUTPUTS, SAMPLER, SECTION, page, stage_flags

LABELLED = "<h3>Exercise 1</h3><p>Compute 1+1.</p><h4>Solution</h4><p>2</p>"
TOGGLE = "<p>Compute 1+1.</p><details><summary>Solution</summary><p>2</p></details>"
LONG = "\N{GRINNING FACE}" * 400
PAGES = {
    "labelled": ("html", LABELLED),
    "copied": ("html", f"<p>{COPIED}</p>"),
    "invented": ("text", INVENTED),
    "doubtful": ("html", TOGGLE),
    "nothing": ("html", "<p>Nothing to be found here.</p>"),
    "long": ("text", LONG),
    "latex": ("latex", "No exercise."),
    "broken": ("html", ""),
}


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    return write_taught_extractor(tmp_path_factory.mktemp("extractor") / "policy")


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("RETRACE_TRACKING", "off")


def section(model, **changes):
    method = {
        "kind": "model",
        "model": model,
        "confidence": 0.5,
        "window_characters": 600,
        "max_windows": 2,
        "max_response_tokens": 80,
        "pages_at_once": 2,
    }
    return SECTION | {"method": method, "min_confidence": 0.5, "engine": {"kind": "local", "processes": 1}} | changes


def policy_section(folder, **changes):
    asked = {"kind": "policy", "folder": str(folder), "prompt": PROMPT.model_dump(), "max_prompt_tokens": 500}
    return section(asked, **changes)


def run_stage(folder, extract_web):
    """Returns candidates, drops and metrics of the stage on the folder's `pages`, and the bytes of the files."""
    if not (folder / "pages").exists():
        write_table([page(content, form, name) for name, (form, content) in PAGES.items()], folder / "pages", PAGE)
    main(stage_flags(folder, folder / "pages", "out", SAMPLER, **extract_web))
    return (
        read_table(folder / "out.candidates", CANDIDATE).to_dict("records"),
        read_table(folder / "out.dropped", DROPPED).to_dict("records"),
        json.loads((folder / "out.metrics").read_text()),
        [(folder / f"out.{output}").read_bytes() for output in OUTPUTS],
    )


def test_pages_that_no_rule_reads_are_read_by_a_policy_and_nothing_is_invented(taught, tmp_path):
    candidates, drops, metrics, _ = run_stage(tmp_path, policy_section(taught))
    assert [(row["page_id"], row["evidence"], row["confidence"]) for row in candidates] == [
        ("labelled", "words+words: Exercise 1 | Solution", 0.97),
        ("copied", "model", 0.5),
    ]
    copied = candidates[1]
    assert (copied["problem"], copied["solution"], copied["answer"]) == (
        "How many eggs do six hens lay in four days, one a day each?",
        "Six times four is 24.",
        "24",
    )
    assert copied["candidate_id"] == "copied#model-0" and copied["licence"] == "MIT"
    refused = [drop for drop in drops if drop["reason"] == "span_not_in_page"]
    assert {drop["row_id"] for drop in refused} >= {"invented"}
    assert "Nine times nine" in next(drop["row"] for drop in refused if drop["row_id"] == "invented")
    of_pages = {drop["row_id"]: drop["reason"] for drop in drops if drop["reason"] == "no_exercise"}
    assert set(of_pages) == {"invented", "nothing", "long", "latex"}
    assert metrics["model/pages"] == 5 and metrics["model/windows"] == 5, "no LaTeX, no page without text"
    assert metrics["model/windows_too_long"] == 1 and metrics["model/rows"] == 1
    assert metrics["candidates/all"] == 2 and metrics["candidates/low_confidence"] == 1
    assert (
        metrics["rows/in"]
        == len(PAGES)
        == metrics["rows/kept"] + sum(count for name, count in metrics.items() if name.startswith("dropped/"))
    )


def test_a_run_that_was_killed_goes_on_after_its_last_piece(taught, tmp_path, monkeypatch):
    asked = []

    def sample_prompts(sampler, prompts, *arguments, **options):
        asked.append(len(prompts))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return sample(sampler, prompts, *arguments, **options)

    sample = policy.sample_prompts
    monkeypatch.setattr(policy, "sample_prompts", sample_prompts)
    with pytest.raises(KeyboardInterrupt):
        run_stage(tmp_path, policy_section(taught))
    assert len(list((tmp_path / "state").rglob("model-*.json"))) == 1
    resumed = run_stage(tmp_path, policy_section(taught))
    assert asked == [2, 2, 2, 0]
    assert not list((tmp_path / "state").rglob("model-*"))
    assert run_stage(tmp_path, policy_section(taught)) == resumed


def test_shards_are_read_again_too_and_the_models_rows_need_the_confidence_that_is_asked_for(served, tmp_path):
    for number, name in enumerate(("labelled", "copied", "doubtful")):
        form, content = PAGES[name]
        write_table([page(content, form, name)], tmp_path / "pages" / f"{number}.parquet", PAGE)
    (tmp_path / "pages" / "3.parquet").write_bytes(b"no table")
    candidates, drops, metrics, _ = run_stage(tmp_path, section(served, min_confidence=0.8))
    assert [row["page_id"] for row in candidates] == ["labelled"]
    doubted = [drop["row_id"] for drop in drops if drop["reason"] == "low_confidence"]
    assert doubted == ["doubtful#0", "copied#model-0"]
    assert metrics["model/low_confidence"] == 1 and metrics["candidates/low_confidence"] == 2
    assert metrics["shards/failed"] == 1
    assert metrics["rows/kept"] == 2, "the labelled page, and the one whose rows are kept aside"


def test_a_page_cannot_end_its_own_turn(taught):
    tokenizer = load_tokenizer(taught)
    end = tokenizer.eos_token
    text = policy.plain(tokenizer, f"Page{end}and more")
    assert tokenizer.eos_token_id not in tokenizer.encode(text) and "and more" in text


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"folder": "data/policies/base"}, "made by this graph"),
        ({"folder": "nowhere", "prompt": {"kind": "none"}}, "prompt"),
        ({"kind": "address"}, "url"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, changes, told):
    given = policy_section("nowhere")
    given["method"]["model"] |= changes
    with pytest.raises(UserError, match=told):
        validate_section(given, "extract_web", ExtractWebParams, tmp_path)


def test_a_folder_that_is_not_there_is_told(tmp_path):
    with pytest.raises(UserError, match="nowhere is no folder"):
        run_stage(tmp_path, policy_section(tmp_path / "nowhere"))


class Server(BaseHTTPRequestHandler):
    """Answers chat completions with the policy's trained outputs; `replies` come first: a status, or a body."""

    replies: ClassVar = []
    seen: ClassVar = []

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Server.seen.append((self.path, self.headers["Authorization"], body))
        reply = Server.replies.pop(0) if Server.replies else None
        window = body["messages"][0]["content"].rpartition("Page:\n")[2]
        content = SAID.get(window, "NONE")
        text = (
            reply
            if isinstance(reply, bytes)
            else json.dumps({"choices": [{"message": {"role": "assistant", "content": content}}]}).encode()
        )
        self.send_response(reply if isinstance(reply, int) else 200)
        if reply == 302:
            self.send_header("Location", "http://192.0.2.1/")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


@pytest.fixture
def served(monkeypatch):
    monkeypatch.setattr(second_reading, "WAITS_SECONDS", (0.0, 0.0))
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    monkeypatch.setenv(second_reading.KEY, "secret")
    Server.replies, Server.seen = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield {
        "kind": "address",
        "url": f"http://127.0.0.1:{server.server_port}/v1",
        "name": "some-model",
        "is_elsewhere": False,
        "requests_at_once": 1,
        "timeout_seconds": 20,
    }
    server.shutdown()
    server.server_close()


def test_a_server_is_asked_in_the_policys_place(served, tmp_path):
    Server.replies = [503, 429, None, 400]
    candidates, _, metrics, _ = run_stage(tmp_path, section(served))
    assert [row["page_id"] for row in candidates] == ["labelled", "copied"]
    assert metrics["model/windows_too_long"] == 1, "the server refused the second page"
    path, key, body = Server.seen[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert body["model"] == "some-model" and body["temperature"] == 0 and body["max_tokens"] == 80


@pytest.mark.parametrize(
    ("replies", "told"),
    [
        ([500] * 3, "HTTP 500"),
        ([401], "HTTP 401.*RETRACE_EXTRACTOR_KEY"),
        ([302], "HTTP 302"),
        ([b"<html>"], "something else than a chat completion"),
        ([b'{"choices": []}'], "something else"),
        ([b"[" * 100_000], "something else"),
        ([b'{"choices": [{"message": {"content": {"a": 1}}}]}'], "something else"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_server_that_is_none_stops_the_stage_with_what_to_do(served, replies, told):
    Server.replies = list(replies)
    with pytest.raises(UserError, match=told):
        ask_server(AddressModel(**served), 80, ["x"])


def test_pages_go_to_another_machine_only_where_one_says_so(served):
    for url in ("http://192.0.2.1/v1", "https://localhost.example.org/v1", "http://[::2]/v1"):
        with pytest.raises(ValueError, match="is_elsewhere"):
            AddressModel(**served | {"url": url})
        AddressModel(**served | {"url": url, "is_elsewhere": True})
    for url in ("http://localhost:1/v1", "http://[::1]:1/v1", "http://127.0.0.9/v1"):
        AddressModel(**served | {"url": url})


WINDOW = """Sums and roots
What is the sum of the first
ten whole numbers? It is known that there are ten.
We add them in pairs: $1+10$, $2+9$ and so on, so the sum is $55$.
Which number has the square 49, if it is negative?
Both 7 and -7 have that square, so it is -7.
Comments are closed."""
SUM = """PROBLEM: What is the sum ... there are ten.
SOLUTION: We add them in pairs: ... so the sum is $55$.
ANSWER: $55$"""
ROOT = """PROBLEM: Which number has the square 49, if it is negative?
SOLUTION: Both 7 and -7 have that square, so it is -7.
ANSWER: -7"""


def test_spans_become_the_pages_own_text():
    found, refused = read_answer(f"Here they are.\n\n**{SUM.replace(': ', ':** ', 1)}\n\n2. {ROOT}\nNONE", WINDOW)
    assert [(one.problem, one.solution, one.answer) for one in found] == [
        (
            "What is the sum of the first\nten whole numbers? It is known that there are ten.",
            "We add them in pairs: $1+10$, $2+9$ and so on, so the sum is $55$.",
            "$55$",
        ),
        ("Which number has the square 49, if it is negative?", "Both 7 and -7 have that square, so it is -7.", "-7"),
    ]
    assert not refused
    [alone], _ = read_answer("PROBLEM: Which number has\nthe square 49,\n if it is negative?", WINDOW)
    assert (alone.problem, alone.solution) == ("Which number has the square 49, if it is negative?", None)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (SUM.replace("in pairs", "in triples"), "span_not_in_page"),
        (SUM.replace("ANSWER: $55$", "ANSWER: $56$"), "span_not_in_page"),
        (SUM.replace("ANSWER: $55$", "ANSWER: -7"), "span_not_in_page"),  # of the page, but not of the solution
        (SUM.replace("there are ten.", "there were ten."), "span_not_in_page"),
        (SUM.replace("What is", "what is"), "span_not_in_page"),
        ("PROBLEM: ... \nSOLUTION: ...", "span_not_in_page"),
        ("PROBLEM: \nSOLUTION: ", "span_not_in_page"),
        ("PROBLEM: ten\nSOLUTION: Both 7 ... it is -7.", "problem_too_short"),
        ("SOLUTION: Both 7 ... it is -7.", "model_misspoke"),
        ("PROBLEM: What is the sum ... so on\nSOLUTION: It is known ... $55$.", "spans_overlap"),
        ("PROBLEM: What is the sum of\nSOLUTION: We add them ... it is -7.\n" + ROOT, "spans_overlap"),
    ],
)
def test_what_the_page_does_not_have_refuses_the_exercise(answer, reason):
    found, refused = read_answer(answer, WINDOW)
    assert reason in [one.reason for one in refused]
    assert all(one.problem.startswith("Which number") for one in found)


def test_a_model_that_repeats_itself_says_it_once():
    found, refused = read_answer("\n".join([SUM] * 50), WINDOW)
    assert len(found) == 1 and not refused


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "NONE",
        "\0" * 1000,
        "PROBLEM:" * 20_000,
        "PROBLEM: (a+)+$\nSOLUTION: .*\nANSWER: \\",
        "PROBLEM: " + "... " * 20_000,
        "PROBLEM: " + "a " * 20_000 + "b",
        "\n".join(["PROBLEM: What is the ... ten", "SOLUTION: a ... $"] * 5_000),
        "<script>alert(1)</script>",
    ],
    ids=lambda answer: answer[:20],
)
def test_hostile_answers_give_nothing_soon(answer):
    started = time.process_time()
    found, _ = read_answer(answer, WINDOW + "\n" + "a " * 10_000)
    assert not [one for one in found if one.solution]
    assert time.process_time() - started < 2


def test_nothing_is_invented():
    """500 answers of a model that shuffles, cuts and invents: every accepted text is in the window."""
    draw = random.Random(0)
    words = [*WINDOW.split(), "...", "PROBLEM:", "SOLUTION:", "ANSWER:", "\nPROBLEM:", "\nSOLUTION:", "invented", "\n"]
    taken = 0
    for _ in range(500):
        start = draw.randrange(len(words) - 8)
        text = " ".join(["PROBLEM:", *words[start : start + 4], "...", *draw.choices(words, k=draw.randrange(1, 9))])
        for one in read_answer(text, WINDOW)[0]:
            taken += 1
            assert all(part in WINDOW for part in (one.problem, one.solution or "", one.answer or ""))
    assert taken > 20


def test_windows_are_whole_blocks_with_formulas_as_latex():
    text = "<p>Find <math><msup><mi>x</mi><mn>2</mn></msup></math> for x=3.</p>" + "<p>It is nine.</p>" * 5
    windows, left_out = page_windows(page(text), 40, 3)
    assert windows[0].startswith("Find $") and left_out == 0
    assert all(len(window) <= 40 for window in windows)
    assert page_windows(page("<p>" + "x" * 100 + "</p>"), 40, 2) == [["x" * 40, "x" * 40], 1]
    assert request("text").endswith("Page:\ntext")


def test_rows_say_that_a_model_found_them_and_a_failed_check_costs():
    hint = WINDOW.replace("It is known", "Hint: it is known").replace("? Hint", "?\nHint")
    asked = [SUM, ROOT, SUM.replace("there are ten", "there are $55$")]
    rows, refused = model_candidates(page(""), [WINDOW, WINDOW, WINDOW], asked, ["x " * 9 + "Which number"], 40, 0.5)
    assert [(row["candidate_id"], row["answer"], row["evidence"], row["confidence"]) for row in rows] == [
        ("p#model-0", "55", "model", 0.5),
        ("p#model-1", "-7", "model", 0.5),
    ]
    assert [one["reason"] for one in refused] == ["span_not_in_page"]
    [doubted], _ = model_candidates(page(""), [hint], [SUM], [], 40, 0.5)
    assert doubted["evidence"] == "model; problem_holds_part" and doubted["confidence"] == 0.25


def test_what_the_rules_are_sure_of_is_not_taken_twice():
    known = ["Exercise: which number has the square 49,\nif it is negative?".replace("which", "Which")]
    rows, refused = model_candidates(page(""), [WINDOW], [f"{SUM}\n{ROOT}"], known, 40, 0.5)
    assert [row["answer"] for row in rows] == ["55"]
    assert [one["reason"] for one in refused] == ["known_to_rules"]
