"""Asynchronous rounds in the report: numbers equal those of the files, text stays text."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.foundations.errors import UserError
from stages.foundations.files import write_curves
from stages.report.asynchronous import read_waits
from stages.rl_round.asynchronous.hub import counted_metrics, staleness_metrics
from stages.rl_round.asynchronous.timeline import BATCH_TAKEN, FAULT, PUBLISHED, Timeline
from stages.rl_round.asynchronous.trajectory_pool import Faults, Repacked
from tests.stages.test_report import Reader, make_page, run, unchanged

__all__ = ["run", "unchanged"]


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


def test_a_round_without_a_timeline_leaves_the_page_as_it_was(run, unchanged):
    (run / "data/schedules/rl_1").mkdir()
    (run / "data/schedules/rl_1/schedule.jsonl").write_text("{}\n")
    assert make_page(run) == unchanged[1] and 'id="timelines"' not in unchanged[1]


def test_shares_counts_and_staleness_are_those_of_the_files(run):
    rows = [
        {"step": 1, **staleness_metrics(0, [0, 0]), **counted_metrics(Repacked(moves=2), Faults(restarts=1))},
        {"step": 2, **staleness_metrics(1, [1, 0]), **counted_metrics(Repacked(moves=3), Faults())},
    ]
    write_curves(run / "data/curves/rl_round/rl_1.csv", rows)
    write(run, small())
    page = make_page(run)
    text = Reader(page).text
    told = "trainer: train 60%, no groups 30%, publish 10%; replica: decode 80%, dead 20%"
    assert f"What the devices did. {told}." in page
    assert "fault/restarts 1" in text and "repack/moves 5" in text
    assert "Staleness of trained responses. 0 75%, 1 25%." in page
    assert make_page(run) == page


def test_an_empty_trace_has_no_bars(run):
    write(run, Timeline(0.0))
    page = make_page(run)
    assert 'id="timelines"' in page and "What the devices did" not in page


def test_hostile_names_stay_text(run):
    timeline = Timeline(0.0)
    timeline.span("replica/0", "</svg><script>x()</script>", 0.0, 1.0)
    timeline.span("trainer", "<img src=x>", 0.0, 1.0)
    write(run, timeline)
    page = make_page(run)
    assert "<script>x" not in page and "<img" not in page and "What the devices did" in page


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"traceEvents": [], "otherData": {"seconds": {"trainer": {"train": -1}}}}',
        '{"traceEvents": [], "otherData": {"seconds": {"trainer": {"train": NaN}}}}',
        '{"traceEvents": [], "otherData": {"seconds": {"trainer": {"train": "1"}}}}',
    ],
)
def test_a_broken_timeline_is_named_with_the_remedy(run, content):
    path = write(run, small())
    path.write_text(content)
    with pytest.raises(UserError, match=r"timeline\.json is not a timeline .*delete it and run `dvc repro`"):
        read_waits(path)
