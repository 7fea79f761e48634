"""extract_web with a real Ray: the local engine's rows, an unreadable shard reported, and no process left behind."""

import json
import os
import signal
import sys
import time

import psutil
import pytest
import yaml

from stages.__main__ import main
from stages.extract_web.params import ExtractWebParams
from stages.extract_web.shards import extract_shards, find_shards
from stages.foundations.tables import DROPPED, PAGE, read_table, write_table
from tests.fakes.processes import assert_all_end, those_with

PARAMS = {
    "method": {"kind": "rules"},
    "max_answer_characters": 40,
    "shared_instructions": "prepended",
    "min_confidence": 0.0,
    "page_timeout_seconds": 60.0,
    "page_memory_mib": 1024,
    "engine": {"kind": "ray", "processes": 2, "pages_per_shard": 4},
}
TAKES_FIFTEEN_SECONDS = "1. a\n" * 1_000_000
SAMPLER = {"kind": "torch", "device": "cpu", "dtype": "float32", "threads": 1, "max_sequences": 8}


def pages(first, count):
    return [
        {
            "page_id": f"site/{n}",
            "url": "u",
            "format": "html",
            "licence": "MIT",
            "content": f"<h3>Exercise {n}</h3><p>Compute {n}+1.</p><h4>Solution</h4><p>{n + 1}</p>" * (n % 3),
        }
        for n in range(first, first + count)
    ]


def flags(folder, pages_path, engine, name):
    params = folder / f"{name}.yaml"
    params.write_text(yaml.safe_dump({"extract_web": PARAMS | {"engine": engine}, "sampler": SAMPLER}))
    outputs = {out: folder / f"{name}.{out}" for out in ("candidates", "dropped", "metrics", "headline")}
    return [
        "extract_web",
        f"--params={params}",
        f"--pages={pages_path}",
        *(f"--{out}={path}" for out, path in outputs.items()),
    ]


def start(arguments, folder):
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return psutil.Popen(
        [sys.executable, "-m", "stages", *arguments],
        stderr=open(folder / "log", "wb"),
        env=environment | {"RETRACE_STATE": str(folder / "state"), "HOME": str(folder / "home")},
    )


def watch(process, until=lambda descendants: False):
    """All processes that it ever had, and the addresses they listened on."""
    descendants, addresses = set(), set()
    while process.poll() is None and not until(descendants):
        try:
            descendants |= set(process.children(recursive=True))
        except psutil.NoSuchProcess:
            break
        for one in descendants:
            try:
                found = one.net_connections(kind="inet")
            except psutil.Error:
                continue
            addresses |= {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
        time.sleep(2.0)
    return descendants, addresses


@pytest.mark.slow
def test_the_rows_are_those_of_the_local_engine_and_shards_are_shared(tmp_path, monkeypatch):
    folder = tmp_path / "pages"
    folder.mkdir()
    for number in range(3):
        write_table(pages(10 * number, 4), folder / f"{number}.parquet", PAGE)
    (folder / "1.parquet").write_bytes(b"PAR1 no table")
    process = start(flags(tmp_path, folder, PARAMS["engine"], "ray"), tmp_path)
    descendants, addresses = watch(process)
    assert process.wait() == 0, (tmp_path / "log").read_text()
    assert len(descendants) > 5  # Ray's own
    assert_all_end(descendants)
    assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert not list((tmp_path / "home").glob("*")) and not list((tmp_path / "state").glob("ray/*"))

    monkeypatch.setenv("RETRACE_STATE", str(tmp_path / "other"))
    main(flags(tmp_path, folder, {"kind": "local", "processes": 2}, "local"))
    for output in ("candidates", "dropped", "metrics", "headline"):
        assert (tmp_path / f"ray.{output}").read_bytes() == (tmp_path / f"local.{output}").read_bytes()
    dropped = read_table(tmp_path / "ray.dropped", DROPPED)
    assert dropped["reason"].value_counts().to_dict() == {"not_html": 3, "shard_failed": 1}

    params = ExtractWebParams.model_validate(PARAMS | {"engine": {"kind": "local", "processes": 2}})
    again = extract_shards(find_shards(folder), tmp_path / "state/scratch/extract_web-shards", params)
    assert [(result.is_reused, bool(result.failure)) for result in again] == [
        (True, False),
        (False, True),
        (True, False),
    ]


@pytest.mark.slow
def test_nothing_outlives_a_stage_that_is_killed(tmp_path):
    slow = pages(20, 1)[0] | {"format": "markdown", "content": TAKES_FIFTEEN_SECONDS}
    write_table([*pages(0, 4), slow], tmp_path / "pages.parquet", PAGE)
    process = start(flags(tmp_path, tmp_path / "pages.parquet", PARAMS["engine"], "ray"), tmp_path)
    work = tmp_path / "state/scratch/extract_web-shards"

    def is_at_the_slow_page(descendants):
        def is_at_work(one):
            return "extract_page" in " ".join(one.cmdline()) and one.cpu_times().user > 1

        return bool(list(work.glob("000000-*.json"))) and bool(those_with(is_at_work, descendants))

    descendants, _ = watch(process, is_at_the_slow_page)
    assert process.poll() is None, (tmp_path / "log").read_text()
    process.send_signal(signal.SIGKILL)
    assert_all_end(descendants)
    [finished] = work.glob("*.json")
    assert json.loads(finished.read_text())["rows/in"] == 4
