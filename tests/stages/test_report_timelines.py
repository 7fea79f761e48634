"""Asynchronous rounds in the report: numbers equal those of the files, pictures stay bounded, text stays text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stages.foundations.errors import UserError
from stages.foundations.files import write_curves
from stages.foundations.timelines import read_timeline
from stages.report.timelines import COLUMNS, MOST_ROWS, picture, shown_processes
from stages.rl_round.asynchronous.hub import counted_metrics, staleness_metrics
from stages.rl_round.asynchronous.timeline import BATCH_TAKEN, FAULT, PUBLISHED, Timeline
from stages.rl_round.asynchronous.trajectory_pool import Faults, Repacked
from tests.stages.test_report import Reader, make_page, run

__all__ = ["run"]


def write(folder: Path, timeline: Timeline) -> Path:
    path = folder / "data/schedules/rl_1/timeline.json"
    timeline.write(path)
    return path


def small() -> Timeline:
    timeline = Timeline(0.0)
    timeline.span("trainer", "no_groups", 0.0, 3.0)
    timeline.span("trainer", "train", 3.0, 9.0)
    timeline.span("trainer", "publish", 9.0, 10.0)
    timeline.span("replica/0", "decode", 0.0, 8.0)
    timeline.span("replica/0", "dead", 8.0, 10.0)
    timeline.instant("trainer", BATCH_TAKEN, 3.0, step=1)
    timeline.instant("trainer", PUBLISHED, 9.0, version=1)
    timeline.instant("replica/0", FAULT, 8.0, what="killed")
    return timeline


def test_a_round_without_a_timeline_leaves_the_page_as_it_was(run):
    before = make_page(run)
    (run / "data/schedules/rl_1").mkdir()
    (run / "data/schedules/rl_1/schedule.jsonl").write_text("{}\n")
    assert make_page(run) == before and 'id="timelines"' not in before


def test_shares_counts_and_staleness_are_those_of_the_files(run):
    rows = [
        {"step": 1, **staleness_metrics(0, [0, 0]), **counted_metrics(Repacked(moves=2), Faults(restarts=1))},
        {"step": 2, **staleness_metrics(1, [1, 0]), **counted_metrics(Repacked(moves=3), Faults())},
    ]
    write_curves(run / "data/curves/rl_round/rl_1.csv", rows)
    write(run, small())
    page = make_page(run)
    text = Reader(page).text
    assert "10.0 s. Bubble 30.0%" in text
    assert re.search(r"trainer 60\.0% 30\.0% 0\.0% 10\.0%", text)
    assert re.search(r"replica/0 80\.0% 0\.0% 20\.0% 0\.0%", text)
    assert "fault/restarts 1" in text and "repack/moves 5" in text
    assert "Staleness of trained responses. 0 75%, 1 25%." in page
    assert make_page(run) == page


def test_the_picture_shows_who_did_what_when(run):
    timeline = read_timeline(write(run, small()))
    drawn = picture(timeline, ["trainer", "replica/0"])
    # 480 columns of 2 units, from 116 on: 3 of 10 seconds are 288 units.
    assert '<path class="did-no_groups" d="M116 24h288v16h-288z"/>' in drawn
    assert '<path class="did-train" d="M404 24h576v16h-576z"/>' in drawn
    assert '<path class="did-dead" d="M884 44h192v16h-192z"/>' in drawn
    assert 'class="sign fault" x="884"' in drawn and 'class="sign publish" x="980"' in drawn
    assert '<path class="step" d="M404 ' in drawn


def test_a_long_start_is_left_out_of_the_picture_and_said(run):
    timeline = Timeline(0.0)
    timeline.span("trainer", "start", 0.0, 103.0)
    timeline.span("trainer", "train", 103.0, 203.0)
    timeline.instant("trainer", FAULT, 50.0)
    read = read_timeline(write(run, timeline))
    drawn = picture(read, ["trainer"])
    # From 100 to 203 seconds: 3 of 103 are 14 of 480 columns.
    assert '<path class="did-start" d="M116 24h28v16h-28z"/>' in drawn
    assert 'class="sign fault" x="116"' in drawn and ">2 min<" in drawn and ">0 min<" not in drawn
    assert "The first 100 s, in which processes started, are not in the picture." in Reader(make_page(run)).text


def test_pictures_of_long_rounds_with_many_replicas_stay_bounded(run):
    timeline = Timeline(0.0)
    for number in range(600):
        timeline.instant("trainer", BATCH_TAKEN, number)
        timeline.span("trainer", "train", number, number + 0.5)
        for replica in range(200):
            activity = "decode" if number % 3 or replica == 7 else "no_prompts"
            timeline.span(f"replica/{replica}", activity, number, number + 1)
            timeline.instant(f"replica/{replica}", FAULT, number)
    read = read_timeline(write(run, timeline))
    processes = shown_processes(read)
    assert len(processes) == MOST_ROWS and processes[0] == "trainer" and "replica/7" not in processes
    drawn = picture(read, processes)
    assert len(drawn) < MOST_ROWS * COLUMNS * 100
    assert len(re.findall('class="step"', drawn)) <= 120
    assert "177 more are in the file" in Reader(make_page(run)).text


def test_an_empty_timeline_is_said_to_be_empty(run):
    write(run, Timeline(0.0))
    assert "No process of this round has reported its activities." in Reader(make_page(run)).text


def test_hostile_names_stay_text(run):
    timeline = Timeline(0.0)
    timeline.span('replica/"><script>x()</script>', "</svg><script>y()</script>", 0.0, 1.0)
    timeline.instant("<img src=x>", FAULT, 0.5)
    write(run, timeline)
    page = make_page(run)
    assert "<script>x" not in page and "<script>y" not in page and "<img" not in page
    assert 'class="did-other"' in page


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"traceEvents": [], "otherData": {"wall_seconds": -1}}',
        '{"traceEvents": [{"ph": "X"}], "otherData": {}}',
        json.dumps({"traceEvents": [], "otherData": {"wall_seconds": "1", "bubble": 0, "shares": {}, "counts": []}}),
    ],
)
def test_a_broken_timeline_is_named_with_the_remedy(run, content):
    path = write(run, small())
    path.write_text(content)
    with pytest.raises(UserError, match=r"timeline\.json is not a timeline .*delete it and run `dvc repro`"):
        read_timeline(path)
