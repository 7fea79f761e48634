"""Tables: written rows are read again; foreign files are rejected with a remedy."""

import json

import pandas
import pytest

from stages.foundations import tables
from stages.foundations.errors import UserError
from stages.foundations.tables import (
    BENCHMARK,
    PROBLEM,
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
