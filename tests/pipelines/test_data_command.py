"""`retrace data`: a user's file, how it is read, and lines that can be copied into a recipe."""

import gzip
import json

import pytest
import yaml
from typer.testing import CliRunner

from pipelines.cli import app
from stages.collect.run import collect_source
from stages.collect.stage import SourceParams

ROWS = [
    {"Question": "What is 1+1?", "gold": 2, "rationale": "One and one\nis \x1b[31mtwo."},
    {"Question": "What is 2+2?", "gold": "", "rationale": "Four."},
    {"Question": "What is 3+3?", "gold": "6", "rationale": None},
]


def show(*arguments, code=0):
    done = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def write(file, rows=ROWS):
    text = "\n".join(map(json.dumps, rows))
    if file.suffix == ".gz":
        file.write_bytes(gzip.compress(text.encode()))
    elif file.suffix == ".csv":
        lines = [
            "id,prompt,answer",
            *(f'{number},"{row["Question"]}",{row["gold"]}' for number, row in enumerate(rows)),
        ]
        file.write_text("\n".join(lines))
    else:
        file.write_text(text)
    return file


@pytest.mark.parametrize("name", ["my rows.jsonl", "mine.jsonl.gz", "mine.csv"])
def test_fields_are_guessed_and_the_recipe_collects_the_same_problems(tmp_path, name):
    file = write(tmp_path / name)
    said = show(file)
    assert "2 of 3 rows are problems" in said and "dropped 1: missing_answer" in said and "\x1b" not in said
    sources = yaml.safe_load(said[said.index("sources:") :])["sources"]
    (source,) = sources.values()
    problems, funnel = collect_source("mine", SourceParams.model_validate(source | {"licence": "MIT"}))
    assert [one["answer"] for one in problems] == ["2", "6"] and funnel.rows_in == 3
    assert [one["problem"] for one in problems] == ["What is 1+1?", "What is 3+3?"]


def test_fields_are_named_by_a_map(tmp_path):
    rows = [{"q": "How much?", "worked": "so \\boxed{7}", "meta": {"a": 1}}]
    said = show(write(tmp_path / "rows.jsonl", rows), "--problem", "q", "--answer", "{kind: boxed, field: worked}")
    assert "    answer: 7" in said and 'meta (dict, 1 filled): {"a": 1}' in said
    said = show(write(tmp_path / "rows.jsonl", [{"problem": "p", "solution": "is \\boxed{3}"}]))
    assert "    answer: 3" in said, "the box of a solution, where there is no answer"


def test_mistakes_are_one_sentence(tmp_path):
    file, semicolons = write(tmp_path / "rows.jsonl"), tmp_path / "rows.csv"
    semicolons.write_text("question;answer\n1+1?;2\n")
    quoted = tmp_path / "quoted.csv"
    quoted.write_text('"question, all";"answer"\n"Is 1,5 + 1 = 2,5?";"yes"\n')
    for arguments, code, told in (
        ([tmp_path / "no.jsonl"], 2, "no.jsonl is no file"),
        ([write(tmp_path / "rows.txt")], 2, "its name should end in .jsonl"),
        ([write(tmp_path / "empty.jsonl", [])], 2, "has no valid row in its first 0: it is empty"),
        ([file, "--problem", "nope"], 1, "0 of 3 rows are problems"),
        ([file, "--answer", "{kind: boxes, field: gold}"], 2, "--answer: give the name of a field, or a mapping whose"),
        (
            [write(tmp_path / "other.jsonl", [{"x": 1}])],
            2,
            "name the field of the problem with --problem. The fields are x",
        ),
        ([semicolons], 2, "rows.csv separates its columns by ';': write it with commas between them"),
        ([quoted], 2, "quoted.csv separates its columns by ';': write it with commas"),
    ):
        assert told in show(*arguments, code=code)


def test_a_file_of_conversations_is_recognised_and_the_recipe_collects_the_same(tmp_path):
    turns = [{"from": "human", "value": "Hi\x1b[31m"}, {"from": "gpt", "value": "Yo."}]
    rows = [{"id": 1, "conversations": turns}, {"id": 2, "conversations": turns[:1]}, {"id": 3, "conversations": None}]
    file = write(tmp_path / "my chats.jsonl", rows)
    said = show(file)
    assert "1 of 3 rows are conversations; turns: 1 user, 1 assistant" in said and "\x1b" not in said
    assert "dropped 1: no_assistant_turn (my chats/1: " in said and "dropped 1: missing_messages" in said
    assert "    user: Hi" in said and "    assistant: Yo." in said
    assert "{kind: given, sources: [my_chats], max_rows: null}" in said
    (source,) = yaml.safe_load(said[said.index("sources:\n") :])["sources"].values()
    assert source["role"] == "chat"
    found, _ = collect_source("mine", SourceParams.model_validate(source | {"licence": "MIT"}))
    assert [turn["content"] for turn in json.loads(found[0]["messages"])] == ["Hi\x1b[31m", "Yo."]


def test_problems_that_stand_as_messages_too_are_problems_unless_the_field_is_named(tmp_path):
    messages = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "so \\boxed{7}"}]
    file = write(tmp_path / "rows.jsonl", [{"problem": "What?", "solution": "so \\boxed{7}", "messages": messages}])
    assert "1 of 1 rows are problems; 1 solved" in show(file)
    assert "1 of 1 rows are conversations" in show(file, "--messages", "messages")
    assert "0 of 1 rows are conversations; turns: none" in show(file, "--messages", "nope", code=1)
    file = write(tmp_path / "rows.jsonl", [{"prompt": "What?", "messages": messages}])
    assert "1 of 1 rows are conversations" in show(file), "there is no answer: UltraChat has such rows"
