"""extract_web over shards: as one table, resumed after a stop, a poisoned shard reported and not fatal."""

import json
import os
import signal

import pytest
import yaml

from stages.extract_web import shards as module
from stages.extract_web.__main__ import main
from stages.extract_web.params import ExtractWebParams
from stages.extract_web.shards import extract_shards, find_shards, rows_of
from stages.foundations.errors import UserError
from stages.foundations.tables import read_table, write_table

PARAMS = ExtractWebParams(max_answer_characters=40, shared_instructions="prepended", processes=2)


def pages(first, count):
    return [
        {
            "page_id": f"site/{n}", "url": "u", "format": "html", "licence": "MIT",
            "content": f"<h3>Exercise {n}</h3><p>Compute {n}+1.</p><h4>Solution</h4><p>{n + 1}</p>",
        }
        for n in range(first, first + count)
    ]  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pages").mkdir()
    for number in range(3):
        write_table(pages(10 * number, 4), tmp_path / "pages" / f"{number}.parquet", "page")
    return tmp_path / "pages"


def test_shards_give_the_rows_in_order_and_are_reused(folder, tmp_path):
    first = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
    assert [row["page_id"] for row in rows_of(first, "candidate")] == [
        f"site/{10 * shard + n}" for shard in range(3) for n in range(4)
    ]
    assert not any(result.is_reused or result.failure for result in first)
    (tmp_path / "work" / first[1].candidates.name).unlink()
    again = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
    assert [result.is_reused for result in again] == [True, False, True]
    assert list(rows_of(again, "candidate")) == list(rows_of(first, "candidate"))
    write_table(pages(50, 1), folder / "0.parquet", "page")
    changed = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
    assert [result.is_reused for result in changed] == [False, True, True]


def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_poisoned_shard_is_reported_and_tried_again(folder, tmp_path, monkeypatch):
    real = module.extract

    def poisoned(frame, params):
        return kill() if frame["page_id"][0] == "site/10" else real(frame, params)

    (folder / "2.parquet").write_bytes(b"PAR1 no table")
    monkeypatch.setattr(module, "extract", poisoned)
    results = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
    assert [bool(result.failure) for result in results] == [False, True, True]
    assert "signal 9" in results[1].failure and "Parquet" in results[2].failure
    monkeypatch.setattr(module, "extract", real)
    again = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
    assert [(bool(result.failure), result.is_reused) for result in again] == [
        (False, True), (False, False), (True, False),
    ]  # fmt: skip


def test_a_shard_that_does_not_end_is_killed(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "extract", lambda *_: signal.pause())
    results = extract_shards(find_shards(folder)[:1], tmp_path / "work", PARAMS, max_seconds=0.2)
    assert "more than 0.2 s" in results[0].failure


def test_the_stage_reads_a_folder_of_shards(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    (folder / "2.parquet").write_bytes(b"PAR1 no table")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"extract_web": PARAMS.model_dump()}))
    out = {name: tmp_path / name for name in ("candidates", "dropped", "metrics")}
    main(
        [f"--params={tmp_path / 'params.yaml'}", f"--pages={folder}", *(f"--{n}={p}" for n, p in out.items())]
    )
    metrics = json.loads(out["metrics"].read_text())
    assert (metrics["shards/all"], metrics["shards/failed"], metrics["candidates/all"]) == (3, 1, 8)
    assert read_table(out["dropped"], "dropped")["reason"].tolist() == ["shard_failed"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \*\.parquet"):
        find_shards(tmp_path / "empty")
