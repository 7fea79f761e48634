"""Tables: written rows are read again; foreign files are rejected with a remedy."""

import json
import random

import pandas
import pytest

from stages.foundations import tables
from stages.foundations.errors import UserError
from stages.foundations.machine import MAKER_VARIABLE
from stages.foundations.recorded_files import require_maker
from stages.foundations.tables import (
    BENCHMARK,
    PROBLEM,
    ROLLOUT,
    Funnel,
    TableSchema,
    parquet_errors_explained,
    read_table,
    require_rows,
    write_table,
)

ROW = {"problem_id": "a", "source": "s", "problem": "1+1?", "answer": "2", "solution": None, "licence": "MIT"}


def test_rows_come_back_as_they_were_written(tmp_path):
    write_table([ROW], tmp_path / "deep" / "t.parquet", PROBLEM)
    (row,) = read_table(tmp_path / "deep" / "t.parquet", PROBLEM).to_dict("records")
    assert {name: None if pandas.isna(value) else value for name, value in row.items()} == ROW


def test_equal_rows_give_equal_bytes(tmp_path):
    write_table([ROW, ROW], tmp_path / "a", PROBLEM)
    write_table(pandas.DataFrame([ROW, ROW])[sorted(ROW)], tmp_path / "b", PROBLEM)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def rollouts():
    chooser = random.Random(1)
    for number in range(24):
        ids = [chooser.randrange(500) for _ in range(number % 7)]
        yield {
            "problem_id": f"p{number // 4}",
            "step": number // 8,
            "policy_version": 1,
            "sample_index": number % 4,
            "response": f"It is {chooser.random()}",
            "response_tokens": len(ids),
            "token_ids": ids,
            "rollout_logprobs": [-chooser.random() for _ in ids],
            "reward": float(number % 2),
            "verdict": "correct",
            "is_truncated": False,
            "is_trained": True,
            "observed": [1, number],
            "turns": number,
            "environment_reward": chooser.random(),
        }


def test_a_flipped_bit_of_a_table_is_an_error_or_changes_nothing(tmp_path, monkeypatch):
    """Also in the names of optional columns, which have no checksum."""
    monkeypatch.setenv(MAKER_VARIABLE, "rl_round@rl_1")
    path = tmp_path / "rl_1.parquet"
    write_table(list(rollouts()), path, ROLLOUT)
    whole, rows = path.read_bytes(), read_table(path, ROLLOUT).astype(str)
    # Every bit of a name, and some of all others.
    names = [8 * whole.index(name) + bit for name in (b"observed", b"turns") for bit in range(40)]
    ended = {"error": 0, "same": 0}
    for bit in [*names, *random.Random(2).sample(range(8 * len(whole)), 200)]:
        content = bytearray(whole)
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            found = read_table(path, ROLLOUT).astype(str)
        except UserError as error:
            assert str(path) in str(error)
            ended["error"] += 1
        else:
            assert found.equals(rows), bit
            ended["same"] += 1
    assert ended["error"] > 100


LOCK = """
stages:
  respond@rl_2:
    cmd: x
    outs:
    - path: data/rl_2.parquet
      md5: '0'
"""


def test_a_table_of_another_stage_is_refused_where_dvc_lock_knows_its_maker(tmp_path, monkeypatch):
    """As where two hashes are exchanged in dvc.lock. Names of any length, and tables without one, are read."""
    (tmp_path / "dvc.lock").write_text(LOCK)
    path, long = tmp_path / "data" / "rl_2.parquet", "respond@" + "rl_1" * 80
    for maker, is_right in (("respond@rl_2", True), ("", True), ("respond@rl_1", False), (long, False)):
        monkeypatch.setenv(MAKER_VARIABLE, maker)
        write_table([ROW], path, PROBLEM)
        if is_right:
            assert len(read_table(path, PROBLEM)) == 1
            require_maker(path)
            continue
        for read in (lambda: read_table(path, PROBLEM), lambda: require_maker(path)):
            with pytest.raises(UserError) as raised:
                read()
            assert f"{path} holds a table of {maker}, but respond@rl_2" in str(raised.value)
    write_table([ROW], tmp_path / "data" / "copy.parquet", PROBLEM)
    assert len(read_table(tmp_path / "data" / "copy.parquet", PROBLEM)) == 1


def test_every_table_can_be_empty(tmp_path):
    schemas = {name: value for name, value in vars(tables).items() if isinstance(value, TableSchema)}
    assert len(schemas) > 20 and all(name == schema.name.upper() for name, schema in schemas.items())
    for schema in schemas.values():
        write_table([], tmp_path / "t", schema)
        assert read_table(tmp_path / "t", schema).columns.tolist() == schema.names


def test_an_unknown_column_is_refused(tmp_path):
    with pytest.raises(ValueError, match="colour"):
        write_table([{**ROW, "colour": "red"}], tmp_path / "t", PROBLEM)


def test_foreign_files_are_refused_with_the_remedy(tmp_path):
    with pytest.raises(UserError, match="does not exist: run `dvc repro`"):
        read_table(tmp_path / "none", PROBLEM)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(UserError, match="not a readable Parquet file"):
        read_table(tmp_path / "text", PROBLEM)
    write_table([ROW], tmp_path / "t", PROBLEM)
    (tmp_path / "half").write_bytes((tmp_path / "t").read_bytes()[:-20])
    with pytest.raises(UserError, match="not a readable Parquet file"):
        read_table(tmp_path / "half", PROBLEM)
    with pytest.raises(UserError, match=r"lacks the columns \['benchmark'\]"):
        read_table(tmp_path / "t", BENCHMARK)
    with pytest.raises(UserError, match="has no rows: add a source"):
        require_rows(pandas.DataFrame(), tmp_path / "t", "add a source")
    told = r"may not be read.*give this user the right"
    with pytest.raises(UserError, match=told), parquet_errors_explained(tmp_path):
        raise PermissionError(13, "Permission denied", str(tmp_path))


def test_drops_are_counted_by_reason_and_kept():
    funnel = Funnel("curate", 4)
    funnel.drop({"problem_id": "p1", "problem": "x²"}, "no_answer")
    funnel.drop({"problem_id": "p2"}, "too_long", "900 tokens")
    funnel.drop({"problem_id": "p3"}, "no_answer")
    assert funnel.metrics(1) == {"rows/in": 4, "rows/kept": 1, "dropped/no_answer": 2, "dropped/too_long": 1}
    frame = funnel.dropped_frame()
    assert frame["row_id"].tolist() == ["p1", "p2", "p3"]
    assert json.loads(frame["row"][0])["problem"] == "x²"
    assert frame["detail"][1] == "900 tokens"


def test_lost_rows_and_reasons_that_are_no_word_are_noticed():
    with pytest.raises(ValueError, match="rows were lost"):
        Funnel("curate", 3).metrics(2)
    with pytest.raises(ValueError, match="snake_case"):
        Funnel("curate", 1).drop({}, "No answer!")
