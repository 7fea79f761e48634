"""extract_web with a model behind the rules: real samplers and a tiny policy, and a server of chat completions."""

import importlib.util
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
import yaml

from stages.__main__ import main
from stages.engines.policies.tokenizers import load_tokenizer
from stages.extract_web import policy
from stages.extract_web import second_reading as address
from stages.extract_web.params import AddressModel, ExtractWebParams
from stages.foundations.errors import UserError
from stages.foundations.params import validate_section
from stages.foundations.tables import CANDIDATE, DROPPED, PAGE, read_table, write_table
from tests.engines.test_pieces import flip
from tests.fakes.taught_extractor import COPIED, INVENTED, PROMPT, SAID, write_taught_extractor

TORCH = {"kind": "torch", "device": "cpu", "dtype": "float32", "threads": 1, "max_sequences": 8}
VLLM = {
    "kind": "vllm",
    "dtype": "float32",
    "max_model_tokens": 640,
    "max_sequences": 8,
    "memory_fraction": 0.5,
    "kv_cache_gib": 0.1,
    "tensor_parallel": 1,
    "enforce_eager": True,
}
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


@pytest.fixture
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
    return {
        "method": method,
        "max_answer_characters": 40,
        "shared_instructions": "prepended",
        "min_confidence": 0.5,
        "page_timeout_seconds": 60,
        "page_memory_mib": 1024,
        "engine": {"kind": "local", "processes": 1},
    } | changes


def policy_section(folder, **changes):
    asked = {"kind": "policy", "folder": str(folder), "prompt": PROMPT.model_dump(), "max_prompt_tokens": 500}
    return section(asked, **changes)


def run_stage(folder, extract_web, sampler=TORCH, pages=PAGES):
    """Candidates, drops and metrics of the stage, and the bytes of the three files."""
    (folder / "params.yaml").write_text(yaml.safe_dump({"extract_web": extract_web, "sampler": sampler}))
    rows = [
        {"page_id": name, "url": "u", "format": form, "licence": "MIT", "content": content}
        for name, (form, content) in pages.items()
    ]
    write_table(rows, folder / "pages.parquet", PAGE)
    names = {name: folder / file for name, file in FILES.items()}
    main(
        ["extract_web", f"--params={folder / 'params.yaml'}", f"--pages={folder / 'pages.parquet'}"]
        + [f"--{name}={path}" for name, path in names.items()]
    )
    return (
        read_table(names["candidates"], CANDIDATE).to_dict("records"),
        read_table(names["dropped"], DROPPED).to_dict("records"),
        json.loads(names["metrics"].read_text()),
        [path.read_bytes() for path in names.values()],
    )


FILES = {
    "candidates": "candidates.parquet",
    "dropped": "dropped.parquet",
    "metrics": "metrics.json",
    "headline": "headline.json",
}


@pytest.mark.parametrize("sampler", [TORCH, VLLM], ids=["torch", "vllm"])
def test_pages_that_no_rule_reads_are_read_by_a_policy_and_nothing_is_invented(taught, tmp_path, state, sampler):
    if sampler is VLLM and importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed: `make test` installs it")
    candidates, drops, metrics, _ = run_stage(tmp_path, policy_section(taught), sampler)
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


def test_what_a_model_found_needs_the_confidence_that_is_asked_for(taught, tmp_path, state):
    candidates, drops, metrics, _ = run_stage(tmp_path, policy_section(taught, min_confidence=0.8))
    assert [row["page_id"] for row in candidates] == ["labelled"]
    doubted = [drop["row_id"] for drop in drops if drop["reason"] == "low_confidence"]
    assert doubted == ["doubtful#0", "copied#model-0"]
    assert metrics["model/low_confidence"] == 1 and metrics["candidates/low_confidence"] == 2
    assert metrics["rows/kept"] == 2, "the labelled page, and the one whose rows are kept aside"


@pytest.mark.parametrize("damage", [None, flip])
def test_a_run_that_was_killed_goes_on_after_its_last_piece(damage, taught, tmp_path, state, monkeypatch):
    whole = run_stage(tmp_path, policy_section(taught))
    assert not list((tmp_path / "state").rglob("model-*.json"))
    asked = []
    ask = policy.PolicyExtractor.ask

    def ask_once(self, requests):
        asked.append(len(requests))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return ask(self, requests)

    monkeypatch.setattr(policy.PolicyExtractor, "ask", ask_once)
    with pytest.raises(KeyboardInterrupt):
        run_stage(tmp_path, policy_section(taught))
    [piece] = (tmp_path / "state").rglob("model-*.json")
    if damage:
        damage(piece)
    assert run_stage(tmp_path, policy_section(taught)) == whole
    assert asked == ([2, 2, 2, 2, 1] if damage else [2, 2, 2, 1])
    assert not list((tmp_path / "state").rglob("model-*"))


def test_shards_are_read_again_too(taught, tmp_path, state):
    (tmp_path / "pages").mkdir()
    for number, name in enumerate(("labelled", "copied", "invented")):
        form, content = PAGES[name]
        row = {"page_id": name, "url": "u", "format": form, "licence": "MIT", "content": content}
        write_table([row], tmp_path / "pages" / f"{number}.parquet", PAGE)
    (tmp_path / "pages" / "3.parquet").write_bytes(b"no table")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"extract_web": policy_section(taught), "sampler": TORCH}))
    names = {name: tmp_path / file for name, file in FILES.items()}
    main(
        ["extract_web", f"--params={tmp_path / 'params.yaml'}", f"--pages={tmp_path / 'pages'}"]
        + [f"--{name}={path}" for name, path in names.items()]
    )
    assert read_table(names["candidates"], CANDIDATE)["page_id"].tolist() == ["labelled", "copied"]
    metrics = json.loads(names["metrics"].read_text())
    assert metrics["shards/failed"] == 1 and metrics["model/rows"] == 1 and metrics["rows/kept"] == 2


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


def test_a_folder_that_is_not_there_is_told(tmp_path, state):
    with pytest.raises(UserError, match="nowhere is no folder"):
        run_stage(tmp_path, policy_section(tmp_path / "nowhere"))


class Server(BaseHTTPRequestHandler):
    """Chat completions with what the policy was taught; `replies` come first: a status, or a body."""

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
    monkeypatch.setattr(address, "WAITS_SECONDS", (0.0, 0.0))
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:9")
    monkeypatch.setenv(address.KEY, "secret")
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


def test_a_server_is_asked_in_the_policys_place(served, tmp_path, state):
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
        address.AddressExtractor(AddressModel(**served), 80).ask(["x"])


def test_pages_go_to_another_machine_only_where_one_says_so(served):
    for url in ("http://192.0.2.1/v1", "https://localhost.example.org/v1", "http://[::2]/v1"):
        with pytest.raises(ValueError, match="is_elsewhere"):
            AddressModel(**served | {"url": url})
        AddressModel(**served | {"url": url, "is_elsewhere": True})
    for url in ("http://localhost:1/v1", "http://[::1]:1/v1", "http://127.0.0.9/v1"):
        AddressModel(**served | {"url": url})
