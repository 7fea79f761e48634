"""Conversations from a file to a policy: rows read, rows dropped, how often rows are used, and what SFT learns."""

import contextlib
import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import pandas
import pytest
import torch
import yaml

from stages.__main__ import main
from stages.collect.run import UnusableConversation, collect_source, read_conversation
from stages.collect.stage import SourceParams
from stages.demonstrate.run import take_by_weight
from stages.engines.policies.policy_folders import load_policy
from stages.engines.policies.tokenizers import load_tokenizer
from stages.foundations.errors import UserError
from stages.foundations.params import validate_section
from stages.foundations.seeds import endless_order
from stages.foundations.tables import CONTAMINATION, DEMONSTRATION, DROPPED, PROBLEM, read_table
from tests.fakes.one_stage import curve_of, run_stage
from tests.fakes.taught_policy import PARAMS, write_params
from tests.fakes.tiny_policy import byte_tokenizer, write_tiny_policy

DOCS = Path(__file__).parents[2] / "docs/how-to/own-data.md"
BYTES = byte_tokenizer()
TEMPLATE = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
CURATE = {
    "max_problem_characters": 200,
    "answer_kinds": ["integer"],
    "transform": {"kind": "none"},
    "gradability_test": False,
    "difficulty": {"kind": "none"},
    "deduplication": {"exact": True, "near_duplicates": None},
    "decontamination": {"exact": True, "ngrams": None, "near_duplicates": None, "templates": None},
    "validation_rows": 0,
    "max_train_rows": None,
}


def openai(*contents):
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def sharegpt(*contents):
    return [{"from": ("human", "gpt")[i % 2], "value": content} for i, content in enumerate(contents)]


@pytest.mark.parametrize(
    ("messages", "read"),
    [
        (openai("hi", "yo"), "user:hi assistant:yo"),
        (sharegpt("hi", "yo", "ok", " no\n"), "user:hi assistant:yo user:ok assistant:no"),
        ([{"role": "System", "content": "s"}, *openai("hi", "yo")], "system:s user:hi assistant:yo"),
        ([{**turn, "from": None, "value": None} for turn in openai("hi", "yo")], "user:hi assistant:yo"),
        ([*openai("hi", "yo"), *openai("a", "b")[1:]], "user:hi assistant:yo assistant:b"),
        (
            [*openai("hi", "?2+2"), {"from": "observation", "value": "4"}, *openai("", "four")[1:]],
            "user:hi assistant:?2+2 tool:4 assistant:four",
        ),
    ],
)
def test_turns_are_read(messages, read):
    assert " ".join(f"{turn['role']}:{turn['content']}" for turn in read_conversation(messages)) == read


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("hi", "unusable_messages"),
        (["hi", "yo"], "unusable_messages"),
        ([*openai("hi"), {"role": "function", "content": "4"}], "unknown_role"),
        ([*openai("hi"), {"role": "tool", "content": "4"}], "no_assistant_turn"),
        ([*openai("hi"), {"role": "tool", "content": "4"}, *openai("hi", "yo")[1:]], "wrong_order"),
        ([*openai("hi", "yo"), {"role": "tool", "content": "4"}, *openai("ok", "no")], "wrong_order"),
        ([*openai("hi"), {"role": ["assistant"], "content": "4"}], "unknown_role"),
        ([*openai("hi"), {"content": "4"}], "unknown_role"),
        (openai("hi", " \n"), "empty_turn"),
        ([*openai("hi"), {"role": "assistant", "content": None, "tool_calls": [1]}], "empty_turn"),
        ([*openai("hi"), {"role": "assistant", "content": [{"type": "text"}]}], "empty_turn"),
        (openai("hi"), "no_assistant_turn"),
        ([], "no_assistant_turn"),
        (openai("hi", "yo", "ok"), "wrong_order"),
        (openai("hi", "yo")[::-1], "wrong_order"),
        ([*openai("hi", "yo"), {"role": "system", "content": "s"}, *openai("ok", "no")], "wrong_order"),
        ([{"role": "system", "content": "s"}, *openai("hi", "yo")[1:]], "wrong_order"),
    ],
)
def test_what_is_no_conversation_has_a_reason(messages, reason):
    with pytest.raises(UnusableConversation) as told:
        read_conversation(messages)
    assert told.value.args[0] == reason and len(told.value.args[1]) > 10


def source(file, form, field="chat", **changes):
    entry = {"kind": "local", "path": str(file), "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
    origin = entry | {"format": form, "fields": field, "only": {}, "max_rows": None}
    return {"role": "chat", "licence": "MIT", "from": origin} | changes


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet"])
def test_every_format_gives_the_same_conversations(tmp_path, form):
    rows = [{"chat": openai("hi", "yo, \u00e4")}, {"chat": openai("hi")}, {"chat": openai("a", "b", "c", "d")}]
    file = tmp_path / f"rows.{form}"
    if form == "parquet":
        pandas.DataFrame(rows).to_parquet(file)
    elif form == "csv":
        pandas.DataFrame([{"chat": json.dumps(row["chat"])} for row in rows]).to_csv(file, index=False)
    else:
        file.write_text(json.dumps(rows) if form == "json" else "\n".join(map(json.dumps, rows)))
    found, funnel = collect_source("mine", SourceParams.model_validate(source(file, form)))
    assert [json.loads(row["messages"]) for row in found] == [rows[0]["chat"], rows[2]["chat"]]
    assert [(row["problem_id"], row["problem"], row["licence"]) for row in found] == [
        ("mine/0", "hi", "MIT"),
        ("mine/2", "a", "MIT"),
    ]
    assert funnel.dropped_frame()["reason"].tolist() == ["no_assistant_turn"]


def test_broken_cells_are_drops_and_a_file_without_any_is_an_error(tmp_path):
    cells = ['[{"role": "user"', "[1]", "", '[{"role":"user","content":"\\ud83d"},{"role":"assistant","content":"b"}]']
    cells.append("[" * 5000)
    cells.append(json.dumps(openai("hi", "yo")))
    file = tmp_path / "rows.csv"
    pandas.DataFrame({"chat": cells, "n": 1}).to_csv(file, index=False)
    found, funnel = collect_source("mine", SourceParams.model_validate(source(file, "csv")))
    assert [row["problem_id"] for row in found] == ["mine/5"]
    assert Counter(funnel.dropped_frame()["reason"]) == {"unusable_messages": 4, "missing_messages": 1}
    with pytest.raises(UserError, match=r"no usable row out of 6 \(missing_messages 6; the first: no field `turns`"):
        collect_source("mine", SourceParams.model_validate(source(file, "csv", "turns")))


def test_the_role_and_the_fields_belong_together(tmp_path):
    (tmp_path / "rows").write_text("")
    for changes in ({"role": "train"}, {"from": {"kind": "digits", "rows": 1, "seed": 0, "sizes": {3: 1.0}}}):
        with pytest.raises(UserError, match=r"sources\.mine"):
            entry = source(tmp_path / "rows", "jsonl", **changes)
            validate_section(entry, "sources.mine", SourceParams, Path("params.yaml"))


def test_rows_are_taken_as_often_as_their_weight_says():
    rows = [{"demonstration_id": f"d{i}", "weight": weight} for i, weight in enumerate([0.5] * 400 + [2.5] * 400)]
    rows += [{"demonstration_id": "plain"}, {"demonstration_id": "twice", "weight": 2.0}]
    taken, drops = take_by_weight(rows, 1)
    counts = Counter(row["demonstration_id"] for row in taken)
    assert 150 < sum(counts[f"d{i}"] for i in range(400)) < 250
    assert len(drops) == sum(counts[f"d{i}"] == 0 for i in range(400))
    assert {reason for _, reason, _ in drops} == {"not_drawn"}
    assert {counts[f"d{i}"] for i in range(400, 800)} == {2, 3}
    assert 950 < sum(counts[f"d{i}"] for i in range(400, 800)) < 1050
    assert counts["plain"] == 1 and counts["twice"] == 2
    assert take_by_weight(rows, 1) == (taken, drops) and take_by_weight(rows, 2)[0] != taken
    fewer = Counter(row["demonstration_id"] for row in take_by_weight(rows[1:], 1)[0])
    assert fewer == {name: count for name, count in counts.items() if name != "d0"}
    assert take_by_weight([{"demonstration_id": "a"}] * 3, 0) == ([{"demonstration_id": "a"}] * 3, [])


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Runs the docs' example on small files, up to the demonstrations."""
    folder = tmp_path_factory.mktemp("chat")
    policy = write_tiny_policy(folder / "data/policies/base")
    tokenizer = load_tokenizer(policy)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(policy)
    chats = [openai(f"say {i}", f"{i}", "again", f"{i}!") for i in range(12)]
    chats += [openai("say 3", "three"), openai("hm", "no", "Compute 9-8.", "1"), openai("ask me", "Compute 9-8.")]
    chats += [[{"role": "system", "content": "s"}, *openai("hi", "yo")], openai("say 3", "three")]
    chats += [openai("long", "x" * 80)]
    chats += [openai("hi"), [{"role": "critic", "content": "4"}], openai("end", "a<|end|>u:b<|end|>a:c")]
    sums = [{"problem": f"{a}+1?", "answer": str(a + 1), "solution": f"{a}+1={a + 1}"} for a in range(8)]
    held_out = [{"problem": "Compute 9-8.", "answer": "1"}]
    examples = re.findall(r"^```yaml\n(.*?)^```$", DOCS.read_text(), re.M | re.S)
    changes = yaml.safe_load(next(example for example in examples if "role: chat" in example))
    (entry,) = changes["sources"].values()
    files = {"my_chats": [{"messages": one} for one in chats], "my_problems": sums, "held_out": held_out}
    for name, rows in files.items():
        file = folder / f"{name}.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        own = {**entry, "from": {**entry["from"], "path": str(file), "sha256": digest}}
        if name != "my_chats":
            own["role"] = "benchmark" if name == "held_out" else "train"
            own["from"]["fields"] = {"problem": "problem", "answer": "answer"}
            own["from"]["fields"]["solution"] = None if name == "held_out" else "solution"
        changes["sources"][name] = own
    changes["demonstrate"] |= {"validation_rows": 3, "max_response_tokens": 40}
    changes |= {"curate": CURATE, "sft.max_sequence_tokens": 120, "sft.steps": 1, "sft.warmup_steps": 0}
    write_params(folder / "params.yaml", changes)
    (folder / "data/web").mkdir()
    with contextlib.chdir(folder):
        for stage in (*(f"collect@{name}" for name in files), "curate", "demonstrate"):
            main([stage])
    return folder


def demonstrations(folder):
    files = [folder / f"data/demonstrations/{name}.parquet" for name in ("train", "validation")]
    return [read_table(file, DEMONSTRATION) for file in files]


def metrics(folder, stage):
    return json.loads((folder / f"data/metrics/{stage}.json").read_text())


def test_conversations_with_a_benchmark_problem_go(project):
    dropped = read_table(project / "data/dropped/curate.parquet", DROPPED)
    assert dropped[dropped["reason"] == "contaminated"]["row_id"].tolist() == ["my_chats/13", "my_chats/14"]
    pairs = read_table(project / "data/problems/contamination.parquet", CONTAMINATION)
    assert pairs[["problem_id", "problem", "benchmark"]].values.tolist() == [
        [f"my_chats/{number}", "Compute 9-8.", "held_out"] for number in (13, 14)
    ]
    counted = metrics(project, "curate")
    assert counted["contamination/pairs"] == 2 and counted["conversations/dropped/contaminated"] == 2
    assert counted["conversations/rows/kept"] == 17 and counted["rows/in"] == 8
    assert metrics(project, "collect/my_chats")["dropped/unknown_role"] == 1


def test_demonstrations_are_counted_split_and_weighted(project):
    train, validation = demonstrations(project)
    counted = metrics(project, "demonstrate")
    assert counted["dropped/repeated"] == 1 and counted["dropped/response_too_long"] == 1
    dropped = sum(number for name, number in counted.items() if name.startswith("dropped/"))
    assert counted["rows/in"] == 17 + 8 == counted["rows/kept"] + dropped
    chats = train[train["kind"] == "chat"]
    assert set(Counter(chats["demonstration_id"]).values()) == {2}
    assert set(Counter(train[train["kind"] == "given"]["demonstration_id"]).values()) == {1}
    assert counted["dropped/not_drawn"] > 0
    assert not set(train["problem"]) & set(validation["problem"])
    assert counted["rows/validation"] == len(validation) == validation["demonstration_id"].nunique()
    assert counted["rows/train"] == len(train)
    first = chats.iloc[0]
    assert json.loads(first["messages"])[-1]["content"] == first["response"] and first["licence"] == "CC BY 4.0"
    assert train[train["kind"] == "given"]["messages"].isna().all()


def test_without_conversations_the_tables_have_their_old_columns(project):
    for name in ("train", "benchmarks"):
        assert "messages" not in pandas.read_parquet(project / f"data/problems/{name}.parquet").columns
    assert read_table(project / "data/problems/train.parquet", PROBLEM).columns.tolist() == PROBLEM.names


def written(row):
    """Returns the ids of a demonstration and the mask of the assistant, by hand: one token per byte, template above."""
    turns = json.loads(row["messages"]) if row["messages"] else openai(row["problem"], row["response"])
    ids, is_written = [], []
    for turn in turns:
        said = [*BYTES.encode(turn["content"], split_special_tokens=True), BYTES.eos_token_id]
        head = BYTES.encode(f"{turn['role'][0]}:")
        ids += head + said
        is_written += [False] * len(head) + [turn["role"] == "assistant"] * len(said)
    return ids, is_written


def test_the_loss_is_that_of_the_assistants_tokens(project, tmp_path):
    """Checks the first batch, before any update, one sequence at a time; and counts what the template rejects."""
    inputs = {name: project / f"data/demonstrations/{name}.parquet" for name in ("train", "validation")}
    done = run_stage("sft", tmp_path, params=project / "params.yaml", policy=project / "data/policies/base", **inputs)
    first = curve_of(tmp_path)[0]
    usable = [
        row
        for row in demonstrations(project)[0].to_dict("records")
        if row["problem"] != "hi"  # the template rejects its system turn
    ]
    model, _ = load_policy(project / "data/policies/base", torch.float32)
    losses, tokens, written_tokens = 0.0, 0, []
    for place in endless_order(0, PARAMS["sft"]["batch_demonstrations"], len(usable), 0, "sft"):
        ids, is_written = written(usable[place])
        tokens += len(ids)
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        counted = [number for number, mine in enumerate(is_written) if mine]
        losses -= sum(float(logprobs[number - 1, ids[number]]) for number in counted)
        written_tokens.append(len(counted))
    assert first["tokens/trained"] == tokens
    assert first["loss/train"] == pytest.approx(losses / sum(written_tokens), abs=1e-4)
    # One conversation has a system turn, which the template rejects, in any split of it and its copy.
    assert done["dropped/refused_by_template"] in (1, 2)
    dropped = len(read_table(tmp_path / "dropped", DROPPED))
    assert done["rows/in"] == sum(map(len, demonstrations(project))) == done["rows/kept"] + dropped
