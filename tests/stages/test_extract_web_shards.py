"""extract_web's engine: pages in confined processes, tables in shards, resumed after a stop, on this machine or Ray's.

A page that hangs or fills memory is a drop, and an unreadable shard is reported. Any other failure stops the stage.
tests/engines/test_workers.py tests how worker processes are killed and replaced.
"""

import contextlib
import dataclasses
import json
import mmap
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import pandas
import psutil
import pyarrow
import pyarrow.parquet
import pytest

from stages.__main__ import main
from stages.engines.workers.pool import WorkerLimits
from stages.extract_web.extraction import extract_page, read_pages
from stages.extract_web.shards import LIMITS, extract_shards, extract_table, find_shards, rows_of
from stages.extract_web.stage import ExtractWebParams
from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically
from stages.foundations.tables import CANDIDATE, DROPPED, PAGE, read_table, write_table
from tests.engines.test_pieces import cut, flip, lose
from tests.fakes.processes import PATIENCE_SECONDS, assert_all_end, descendants, those_with
from tests.fakes.web_pages import OUTPUTS, SECTION, stage_flags
from tests.fakes.web_pages import page as web_page

PARAMS = ExtractWebParams.model_validate(SECTION)
ONE_AT_ONCE = ExtractWebParams.model_validate(SECTION | {"engine": {"kind": "local", "processes": 1}})
RAY = {"kind": "ray", "processes": 2, "pages_per_shard": 4}
OF_PAGES = WorkerLimits(memory_mib=1024, computing_seconds=60)
TAKES_SECONDS = "<p>Exercise 1. Compute.</p><p>Solution: 3</p>" * 100_000
TAKES_HALF_A_GIGABYTE = "\N{GRINNING FACE}" * 15_000_000
RESERVED = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
"""Address space that uses no memory: MAP_NORESERVE of Linux, which Python 3.11 does not name."""


def page(number, content=None, form="html"):
    good = f"<h3>Exercise {number}</h3><p>Compute {number}+1.</p><h4>Solution</h4><p>{number + 1}</p>"
    return web_page(good if content is None else content, form, f"site/{number}")


GOOD = [page(number) for number in range(6)]


def as_lists(outcomes):
    return [list(one) for one in outcomes]


def test_outcomes_are_those_of_the_page_alone_in_order():
    assert as_lists(read_pages(GOOD, 40, OF_PAGES, 3)) == as_lists(extract_page(one, 40) for one in GOOD)
    assert list(read_pages([], 40, OF_PAGES, 3)) == []
    outcomes = read_pages(GOOD * 10, 40, OF_PAGES, 2)
    next(outcomes)
    outcomes.close()
    assert descendants("extract_page") == []


def test_a_page_that_takes_too_long_or_too_much_memory_is_a_drop():
    slow, large = page(1, TAKES_SECONDS), page(3, TAKES_HALF_A_GIGABYTE, "text")
    for bad, limits, dropped in (
        (slow, WorkerLimits(memory_mib=1024, computing_seconds=1), ("timed_out", "computed for more than 1 s")),
        (large, WorkerLimits(memory_mib=400, computing_seconds=60), ("out_of_memory", "")),
    ):
        outcomes = as_lists(read_pages([GOOD[0], bad, GOOD[4]], 40, limits, 1))
        assert outcomes[1] == [[], *dropped, 0]
        assert outcomes[::2] == as_lists(extract_page(one, 40) for one in GOOD[::4])


def kill_processes(said, times, seconds=0.0):
    """Kills the first child processes with these words, once they have computed for `seconds`."""
    killed = set()
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and len(killed) < times:
        for child in set(descendants(said)) - killed:
            with contextlib.suppress(psutil.Error):  # it has already ended
                if child.cpu_times().user >= seconds:
                    child.kill()
                    killed.add(child)
        time.sleep(0.005)


def test_a_page_whose_process_is_killed_twice_stops_the_stage():
    """An incomplete table would be cached as the right one."""
    killer = threading.Thread(target=kill_processes, args=("extract_page", 2, 0.8))
    killer.start()
    with pytest.raises(UserError, match="killed from outside"):
        list(read_pages([page(1, TAKES_SECONDS)], 40, OF_PAGES, 1))
    killer.join()


def test_too_little_memory_to_start_is_told():
    with pytest.raises(UserError, match="page_memory_mib is 8"):
        next(read_pages(GOOD, 40, WorkerLimits(memory_mib=8, computing_seconds=60), 1))


def test_rows_without_text_and_those_of_little_confidence_are_drops_and_the_others_keep_their_place():
    toggle = "<p>Compute 1+1.</p><details><summary>Solution</summary><p>2</p></details>"
    rows = [
        page(0) | {"content": None},
        page(1),
        page(2) | {"page_id": None},
        page(3) | {"format": None},
        page(4) | {"url": None, "licence": None},
        page(5, form="pdf"),
        page(6, toggle),
    ]
    params = PARAMS.model_copy(update={"min_confidence": 0.8})
    candidates, funnel, metrics = extract_table(pandas.DataFrame(rows), params)
    assert [(row["page_id"], row["number"], row["url"]) for row in candidates] == [
        ("site/1", "1", "u"),
        ("site/4", "4", None),
    ]
    assert candidates[0]["evidence"] == "words+words: Exercise 1 | Solution"
    dropped = funnel.dropped_frame()
    assert dropped["reason"].tolist() == ["row_malformed"] * 3 + ["format_not_read", "low_confidence"]
    assert "none+words" in dropped["detail"].iloc[-1]
    assert (metrics["rows/in"], metrics["rows/kept"], metrics["candidates/low_confidence"]) == (7, 3, 1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns a folder of three shards, `work` with their results, and these results."""
    place = tmp_path_factory.mktemp("finished")
    for number in range(3):
        pages = [page(10 * number + n) for n in range(4)]
        write_table(pages, place / "pages" / f"{number}.parquet", PAGE)
    return place, extract_shards(find_shards(place / "pages"), place / "work", PARAMS)


@pytest.fixture
def folder(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    return tmp_path / "pages"


def reused(shards):
    return [shard.is_reused for shard in shards]


def test_shards_give_the_rows_in_order_and_those_that_are_whole_are_reused(finished, folder, tmp_path):
    work, first = tmp_path / "work", finished[1]
    assert [row["page_id"] for row in rows_of(first, CANDIDATE)] == [
        f"site/{10 * shard + n}" for shard in range(3) for n in range(4)
    ]
    assert not any(shard.is_reused or shard.failure for shard in first)
    kept = {file.name: file.read_bytes() for file in work.iterdir()}
    for damage, pattern in ((lose, "0-*.candidates.parquet"), (flip, "1-*.dropped.parquet"), (cut, "2-*.json")):
        [file] = work.glob(pattern)
        damage(file)
        again = extract_shards(find_shards(folder), work, PARAMS)
        assert reused(again) == [shard.pages.stem != pattern[0] for shard in again]
        assert {file.name: file.read_bytes() for file in work.iterdir()} == kept
    write_table([page(50)], folder / "0.parquet", PAGE)
    assert reused(extract_shards(find_shards(folder), work, PARAMS)) == [False, True, True]


def test_other_code_reads_every_shard_again(folder, tmp_path, monkeypatch):
    """This includes code outside this package, such as a table's schema: the stage's fingerprint covers it."""
    monkeypatch.chdir(tmp_path)
    write_text_atomically(Path("data/code/extract_web.json"), '{"stages/foundations/tables.py": "other"}')
    assert reused(extract_shards(find_shards(folder)[:1], tmp_path / "work", PARAMS)) == [False]


def test_what_this_process_reserves_does_not_count_against_a_shard(folder, tmp_path):
    """A process that ran torch or vLLM has reserved tens of gigabytes, and holds threads and locks."""
    with mmap.mmap(-1, 9 << 30, RESERVED, mmap.PROT_READ):
        [shard] = extract_shards(find_shards(folder)[:1], tmp_path / "new", PARAMS)
    assert not shard.failure


def test_a_shard_whose_process_is_killed_twice_is_an_error_and_then_tried_again(folder, tmp_path):
    killer = threading.Thread(target=kill_processes, args=("extract_shard", 2))
    killer.start()
    shards = find_shards(folder)[:2]
    with pytest.raises(UserError, match=r"1 of 2 shards could not be finished.*killed from outside"):
        extract_shards(shards, tmp_path / "new", ONE_AT_ONCE)
    killer.join()
    assert reused(extract_shards(shards, tmp_path / "new", ONE_AT_ONCE)) == [False, True]


def write_bomb(path):
    """Writes a page table of a few kilobytes whose column `content` is 2 GB when it is read."""
    names = pyarrow.array([f"site/{n}" for n in range(200)])
    content = pyarrow.DictionaryArray.from_arrays([0] * len(names), ["<p>" + "x" * 10**7])
    table = pyarrow.table({name: content if name == "content" else names for name in PAGE.names})
    pyarrow.parquet.write_table(table, path, compression="zstd", store_schema=False)
    assert path.stat().st_size < 100_000


def test_unreadable_shards_are_reported_and_tried_again(folder, tmp_path):
    """One is not a table, and one is a pipe."""
    (folder / "2.parquet").write_bytes(b"PAR1 no table")
    os.mkfifo(folder / "3.parquet")
    for _ in range(2):
        shards = extract_shards(find_shards(folder), tmp_path / "work", PARAMS)
        assert [bool(shard.failure) for shard in shards] == [False, False, True, True]
        assert "Parquet" in shards[2].failure and shards[3].failure == "it is no file"
    assert reused(shards) == [True, True, False, False]


def write_many_pages(path):
    """Writes a table that takes any process longer than a millisecond to read."""
    write_table([page(n, page(n)["content"] * 500) for n in range(50, 150)], path, PAGE)


@pytest.mark.parametrize(
    ("write", "limits", "told"),
    [
        (write_bomb, {"memory_mib": 2_048}, "MemoryError|alloc"),
        (write_many_pages, {"computing_seconds": 0.001}, "computed for more than 0.001 s"),
    ],
)
def test_a_shard_over_its_limits_is_an_error_when_the_others_are_finished(
    folder, tmp_path, write, limits, told, monkeypatch
):
    """A table without the shard would be cached as the complete one."""
    monkeypatch.setattr("stages.engines.workers.pool.PATIENCE", 60_000.0)  # of a millisecond, on a loaded machine
    before = psutil.Process().children()
    write(folder / "1.parquet")
    with pytest.raises(UserError, match=f"(?s)1.parquet: .*({told}).*cut that shard into smaller ones"):
        extract_shards(find_shards(folder), tmp_path / "work", ONE_AT_ONCE, dataclasses.replace(LIMITS, **limits))
    assert psutil.Process().children() == before


def test_the_stage_reads_a_folder_of_shards_and_says_which_it_could_not_read(folder, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "state"))
    (folder / "2.parquet").write_bytes(b"PAR1 no table")
    main(stage_flags(tmp_path, folder, "local"))
    metrics = json.loads((tmp_path / "local.metrics").read_text())
    assert (metrics["shards/all"], metrics["shards/failed"], metrics["candidates/all"]) == (3, 1, 8)
    assert read_table(tmp_path / "local.dropped", DROPPED)["reason"].tolist() == ["shard_failed"]
    assert "WARNING: extract_web leaves out 1 of 3 shards" in capfd.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no \*\.parquet"):
        find_shards(tmp_path / "empty")


def start_with_ray(folder, pages):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return psutil.Popen(
        [sys.executable, "-m", "stages", *stage_flags(folder, pages, "ray", engine=RAY)],
        stderr=open(folder / "log", "wb"),
        env=environment | {"RETRACE_STATE": str(folder / "state"), "HOME": str(folder / "home")},
    )


def watch(process, until=lambda family: False):
    """Returns all processes that it ever had, and the addresses on which they listened."""
    family, addresses = set(), set()
    while process.poll() is None and not until(family):
        with contextlib.suppress(psutil.NoSuchProcess):
            family |= set(process.children(recursive=True))
        for one in family:
            with contextlib.suppress(psutil.Error):
                found = one.net_connections(kind="inet")
                addresses |= {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
        time.sleep(2.0)
    return family, addresses


@pytest.mark.slow
def test_the_rows_of_ray_are_those_of_the_local_engine_and_shards_are_shared(folder, tmp_path, monkeypatch):
    write_table([page(10 + n, "" if n else None) for n in range(4)], folder / "1.parquet", PAGE)
    (folder / "2.parquet").write_bytes(b"PAR1 no table")
    process = start_with_ray(tmp_path, folder)
    family, addresses = watch(process)
    assert process.wait() == 0, (tmp_path / "log").read_text()
    assert len(family) > 5  # Ray's own
    assert_all_end(family)
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert not list((tmp_path / "home").glob("*")) and not list((tmp_path / "state").glob("ray/*"))

    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "other"))
    main(stage_flags(tmp_path, folder, "local"))
    for output in OUTPUTS:
        assert (tmp_path / f"ray.{output}").read_bytes() == (tmp_path / f"local.{output}").read_bytes()
    dropped = read_table(tmp_path / "ray.dropped", DROPPED)
    assert dropped["reason"].value_counts().to_dict() == {"not_html": 3, "shard_failed": 1}
    again = extract_shards(find_shards(folder), tmp_path / "state/scratch/extract_web-shards", PARAMS)
    assert reused(again) == [True, True, False] and again[2].failure


@pytest.mark.slow
def test_nothing_outlives_a_stage_with_ray_that_is_killed_and_its_finished_shards_are_kept(tmp_path):
    slow = page(20, TAKES_SECONDS)
    write_table([*GOOD[:4], slow], tmp_path / "pages.parquet", PAGE)
    process = start_with_ray(tmp_path, tmp_path / "pages.parquet")
    work = tmp_path / "state/scratch"

    def is_at_the_slow_page(family):
        def is_at_work(one):
            return "extract_page" in " ".join(one.cmdline()) and one.cpu_times().user > 1

        return bool(list(work.rglob("000000-*.json"))) and bool(those_with(is_at_work, family))

    family, _ = watch(process, is_at_the_slow_page)
    assert process.poll() is None, (tmp_path / "log").read_text()
    process.send_signal(signal.SIGKILL)
    assert_all_end(family)
    [result] = work.rglob("00000*.json")
    assert json.loads(result.read_text())["rows/in"] == 4
