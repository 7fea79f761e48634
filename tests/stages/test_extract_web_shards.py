"""extract_web over shards: as one table, resumed after a stop, an unreadable shard reported and not fatal."""

import contextlib
import json
import mmap
import os
import threading
import time
from pathlib import Path

import psutil
import pyarrow
import pyarrow.parquet
import pytest
import yaml

from stages.__main__ import main
from stages.extract_web.params import ExtractWebParams, LocalEngine
from stages.extract_web.shards import ShardLimits, extract_shards, find_shards, rows_of
from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically
from stages.foundations.tables import CANDIDATE, DROPPED, PAGE, read_table, write_table
from tests.engines.test_pieces import cut, flip, lose
from tests.fakes.processes import PATIENCE_SECONDS

PARAMS = ExtractWebParams(
    method={"kind": "rules"},
    max_answer_characters=40,
    shared_instructions="prepended",
    min_confidence=0.0,
    page_timeout_seconds=60,
    page_memory_mib=1024,
    engine={"kind": "local", "processes": 2},
)
LIMITS = ShardLimits(seconds=300, memory_mib=2_048)

RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
"""Address space that costs no memory: MAP_NORESERVE of Linux, which Python 3.11 does not name."""
SAMPLER = {"kind": "torch", "device": "cpu", "dtype": "float32", "threads": 1, "max_sequences": 8}


def pages(first, count):
    return [
        {
            "page_id": f"site/{n}",
            "url": "u",
            "format": "html",
            "licence": "MIT",
            "content": f"<h3>Exercise {n}</h3><p>Compute {n}+1.</p><h4>Solution</h4><p>{n + 1}</p>",
        }
        for n in range(first, first + count)
    ]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pages").mkdir()
    for number in range(3):
        write_table(pages(10 * number, 4), tmp_path / "pages" / f"{number}.parquet", PAGE)
    return tmp_path / "pages"


def test_shards_give_the_rows_in_order_and_are_reused(folder, tmp_path):
    first = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
    assert [row["page_id"] for row in rows_of(first, CANDIDATE)] == [
        f"site/{10 * shard + n}" for shard in range(3) for n in range(4)
    ]
    assert not any(result.is_reused or result.failure for result in first)
    (tmp_path / "work" / first[1].candidates.name).unlink()
    again = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
    assert [result.is_reused for result in again] == [True, False, True]
    assert list(rows_of(again, CANDIDATE)) == list(rows_of(first, CANDIDATE))
    write_table(pages(50, 1), folder / "0.parquet", PAGE)
    changed = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
    assert [result.is_reused for result in changed] == [False, True, True]


@pytest.mark.parametrize("damage", [lose, flip, cut])
@pytest.mark.parametrize("name", ["candidates", "dropped", "metrics"])
def test_a_damaged_file_of_a_shard_is_made_again(damage, name, folder, tmp_path):
    work = tmp_path / "work"
    whole = extract_shards(find_shards(folder), work, PARAMS)
    kept = {file.name: file.read_bytes() for file in work.iterdir()}
    [file] = work.glob("1-*.json") if name == "metrics" else work.glob(f"1-*.{name}.parquet")
    damage(file)
    again = extract_shards(find_shards(folder), work, PARAMS)
    assert [result.is_reused for result in again] == [True, False, True]
    assert [result.metrics for result in again] == [result.metrics for result in whole]
    assert {file.name: file.read_bytes() for file in work.iterdir()} == kept


def test_other_code_reads_every_shard_again(folder, tmp_path, monkeypatch):
    """Also code outside this package, as a table's schema: the stage's fingerprint has it."""
    monkeypatch.chdir(tmp_path)
    for text in ("{}", '{"stages/foundations/tables.py": "other"}'):
        write_text_atomically(Path("data/code/extract_web.json"), text)
        results = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
        assert not any(result.is_reused for result in results)
    assert all(result.is_reused for result in extract_shards(find_shards(folder), tmp_path / "work", PARAMS))


def test_what_this_process_reserves_does_not_count_against_a_shard(folder, tmp_path):
    """A process that ran torch or vLLM has reserved tens of gigabytes, and holds threads and locks."""
    with mmap.mmap(-1, 9 << 30, RESERVED, mmap.PROT_READ):
        results = extract_shards(find_shards(folder)[:1], tmp_path / "work", PARAMS, LIMITS)
    assert [result.failure for result in results] == [""]


def kill_processes_of_shards(times):
    """Kills the first processes of shards as they come, so many."""
    killed = set()
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and len(killed) < times:
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # it has ended meanwhile
                if child.pid not in killed and "extract_shard" in str(child.cmdline()):
                    child.kill()
                    killed.add(child.pid)
        time.sleep(0.005)


@pytest.mark.parametrize("times", [1, 2])
def test_a_shard_whose_process_is_killed_is_tried_again_and_then_an_error(folder, tmp_path, times):
    killer = threading.Thread(target=kill_processes_of_shards, args=(times,))
    killer.start()
    one_at_once = PARAMS.model_copy(update={"engine": LocalEngine(kind="local", processes=1)})
    shards = find_shards(folder)
    if times == 2:
        with pytest.raises(UserError, match="killed from outside"):
            extract_shards(shards, tmp_path / "work", one_at_once, LIMITS)
    results = extract_shards(shards, tmp_path / "work", one_at_once, LIMITS)
    killer.join()
    assert [result.failure for result in results] == ["", "", ""]


def write_bomb(path, megabytes):
    """A page table of a few kilobytes whose column `content` is that large when it is read."""
    names = pyarrow.array([f"site/{n}" for n in range(megabytes // 10)])
    content = pyarrow.DictionaryArray.from_arrays([0] * len(names), ["<p>" + "x" * 10**7])
    table = pyarrow.table({name: content if name == "content" else names for name in PAGE.names})
    pyarrow.parquet.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 100_000


def test_unreadable_shards_are_reported_and_tried_again(folder, tmp_path):
    """One that is no table, and a pipe."""
    (folder / "2.parquet").write_bytes(b"PAR1 no table")
    os.mkfifo(folder / "3.parquet")
    results = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
    assert [bool(result.failure) for result in results] == [False, False, True, True]
    assert "Parquet" in results[2].failure
    assert results[3].failure == "it is no file"
    again = extract_shards(find_shards(folder)[:3], tmp_path / "work", PARAMS)
    assert [(bool(result.failure), result.is_reused) for result in again] == [
        (False, True),
        (False, True),
        (True, False),
    ]


def write_many_pages(path):
    """A table that no process reads in a millisecond."""
    write_table([page | {"content": page["content"] * 500} for page in pages(50, 100)], path, PAGE)


@pytest.mark.parametrize(
    ("write", "limits", "told"),
    [
        (lambda path: write_bomb(path, megabytes=2_000), LIMITS, "MemoryError|alloc"),
        (write_many_pages, ShardLimits(seconds=0.001, memory_mib=2_048), "computed for more than 0.001 s"),
    ],
)
def test_a_shard_over_its_limits_is_an_error_when_the_others_are_finished(
    folder, tmp_path, write, limits, told, monkeypatch
):
    """A table without it would be cached as the whole one."""
    monkeypatch.setattr("stages.engines.workers.pool.PATIENCE", 60_000.0)  # of a millisecond, on a loaded machine
    work, before = tmp_path / "work", psutil.Process().children()
    extract_shards(find_shards(folder)[:1], work, PARAMS)
    write(folder / "1.parquet")
    one_at_once = PARAMS.model_copy(update={"engine": LocalEngine(kind="local", processes=1)})
    with pytest.raises(UserError, match=f"(?s)1.parquet: .*({told}).*cut that shard into smaller ones"):
        extract_shards(find_shards(folder)[:2], work, one_at_once, limits)
    assert psutil.Process().children() == before
    write_table(pages(10, 4), folder / "1.parquet", PAGE)
    again = extract_shards(find_shards(folder), work, PARAMS)
    assert [(result.is_reused, result.failure) for result in again] == [(True, ""), (False, ""), (False, "")]


def test_the_stage_reads_a_folder_of_shards(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    (folder / "2.parquet").write_bytes(b"PAR1 no table")
    (tmp_path / "params.yaml").write_text(yaml.safe_dump({"extract_web": PARAMS.model_dump(), "sampler": SAMPLER}))
    out = {name: tmp_path / name for name in ("candidates", "dropped", "metrics", "headline")}
    main(
        [
            "extract_web",
            f"--params={tmp_path / 'params.yaml'}",
            f"--pages={folder}",
            *(f"--{n}={p}" for n, p in out.items()),
        ]
    )
    metrics = json.loads(out["metrics"].read_text())
    assert (metrics["shards/all"], metrics["shards/failed"], metrics["candidates/all"]) == (3, 1, 8)
    assert read_table(out["dropped"], DROPPED)["reason"].tolist() == ["shard_failed"]
    assert "WARNING: extract_web leaves out 1 of 3 shards" in capfd.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \*\.parquet"):
        find_shards(tmp_path / "empty")
