"""Every response is kept, and a run that is cut off goes on after its last piece."""

import json

import pytest

from stages.foundations.tables.response import RESPONSE
from stages.foundations.tables.table import read_table
from stages.respond import stage
from stages.respond.__main__ import main


def flags(taught, out):
    return [
        "--params",
        str(taught / "params.yaml"),
        "--name",
        "sft",
        "--policy",
        str(taught / "sft"),
        "--benchmarks",
        str(taught / "benchmarks.parquet"),
        "--responses",
        str(out / "responses.parquet"),
        "--metrics",
        str(out / "responses.json"),
    ]


def test_each_problem_has_one_greedy_and_all_sampled_responses(taught, tmp_path):
    main(flags(taught, tmp_path))
    frame = read_table(tmp_path / "responses.parquet", RESPONSE)
    assert frame.groupby(["problem_id", "mode"]).size().unique().tolist() in ([1, 4], [4, 1])
    assert frame["problem_id"].nunique() == 6
    metrics = json.loads((tmp_path / "responses.json").read_text())
    assert metrics["rows/kept"] == 30
    assert metrics["tokens/sampled"] == frame["response_tokens"].sum()


def test_a_run_that_is_cut_off_goes_on_and_gives_the_same_bytes(taught, tmp_path, monkeypatch):
    main(flags(taught, tmp_path / "straight"))
    real, calls = stage._respond_to, []

    def breaks_at_the_second_piece(piece, *rest):
        calls.append(len(piece))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(piece, *rest)

    monkeypatch.setattr(stage, "_respond_to", breaks_at_the_second_piece)
    with pytest.raises(KeyboardInterrupt):
        main(flags(taught, tmp_path / "cut"))
    main(flags(taught, tmp_path / "cut"))
    assert calls == [4, 2, 2]
    straight, cut = (tmp_path / name / "responses.parquet" for name in ("straight", "cut"))
    assert straight.read_bytes() == cut.read_bytes()
