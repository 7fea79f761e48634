"""The timeline: shares sum to 1 whatever was named, viewers accept the trace, and its size stays bounded."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from stages.rl_round.asynchronous import timeline as subject
from stages.rl_round.asynchronous.timeline import AWAY_SECONDS, Timeline
from tests.stages.rl_round.asynchronous.chrome_trace import problems_of


def _small() -> Timeline:
    timeline = Timeline(origin=100.0)
    timeline.span("trainer", "no_groups", 100.0, 104.0)
    timeline.span("trainer", "train", 104.0, 108.0, step=1)
    timeline.span("trainer", "publish", 108.0, 110.0, version=1)
    timeline.span("replica/0", "decode", 101.0, 106.0)
    timeline.span("replica/0", "no_prompts", 106.0, 107.0)
    timeline.span("replica/0", "decode", 109.0, 110.0)
    return timeline


def test_gaps_go_to_start_to_the_reason_that_still_holds_and_to_unnamed():
    timeline = _small()
    assert timeline.idle_shares("replica/0") == pytest.approx({"busy": 0.6, "no_prompts": 0.3, "start": 0.1})
    timeline.span("replica/0", "decode", 111.0, 112.0)
    assert timeline.idle_shares("replica/0")["unnamed"] == pytest.approx(1 / 12)


def test_a_span_without_length_holds_until_the_process_is_heard_of_again(tmp_path: Path):
    timeline = Timeline(0.0)
    timeline.span("replica/0", "decode", 0.0, 2.0)
    timeline.span("replica/0", "dead", 3.0, 3.0)
    timeline.span("trainer", "train", 0.0, 8.0)
    expected = {"busy": 2 / 8, "dead": 5 / 8, "unnamed": 1 / 8}
    assert timeline.idle_shares("replica/0") == pytest.approx(expected)
    timeline.span("replica/0", "decode", 7.0, 8.0)
    assert timeline.idle_shares("replica/0") == pytest.approx({"busy": 3 / 8, "dead": 4 / 8, "unnamed": 1 / 8})
    timeline.write(tmp_path / "timeline.json")
    assert problems_of(tmp_path / "timeline.json") == []


def test_the_bubble_is_of_processes_that_hold_a_device():
    timeline = Timeline(0.0)
    timeline.span("trainer", "train", 0.0, 10.0)
    timeline.span("replica/0", "decode", 0.0, 5.0)
    timeline.span("hub", "no_groups", 0.0, 10.0)
    assert timeline.bubble() == pytest.approx(1 - 15 / 20)
    assert Timeline(0.0).bubble() == 0.0


def test_a_part_of_the_round_is_asked_about_by_the_same_clock():
    timeline = _small()
    assert timeline.idle_shares("trainer", 102.0, 106.0) == pytest.approx({"busy": 0.5, "no_groups": 0.5})
    metrics = timeline.metrics(106.0, 110.0)
    assert metrics["idle/trainer_publish"] == pytest.approx(0.5)
    assert metrics["idle/replica_no_prompts"] == pytest.approx(0.75)
    assert metrics["bubble"] == pytest.approx(1 - (2 + 1) / 8)


def test_a_report_ends_now_and_cuts_what_was_told_before():
    timeline = Timeline(0.0)
    timeline.report("replica/0", 1.0, {"pull": 0.25, "prefill": 0.25, "decode": 0.5})
    timeline.report("replica/0", 1.5, {"decode": 0.75})
    assert timeline.idle_shares("replica/0") == pytest.approx({"busy": 1.25 / 1.5, "pull": 0.25 / 1.5})


@pytest.mark.parametrize("seed", range(20))
def test_shares_sum_to_one_for_any_reports(seed: int, tmp_path: Path):
    drawn, timeline = random.Random(seed), Timeline(50.0)
    names = ["trainer", "hub", *(f"replica/{number}" for number in range(4))]
    activities = ["train", "decode", "prefill", "no_groups", "pull", "dead", "odd name"]
    now = 50.0
    for _ in range(400):
        now += drawn.expovariate(4.0)
        start = now - drawn.uniform(-0.2, 1.0)
        timeline.span(drawn.choice(names), drawn.choice(activities), start, start + drawn.uniform(-0.1, 0.6))
    path = tmp_path / "timeline.json"
    timeline.write(path)
    again = Timeline.resumed(path, now)
    for process in names:
        shares = timeline.idle_shares(process)
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-9) and min(shares.values()) >= 0
        assert again.idle_shares(process) == pytest.approx(shares)
        assert sum(timeline.idle_shares(process, now - 20, now - 5).values()) == pytest.approx(1.0)
    assert problems_of(path) == []


def test_the_trace_names_processes_and_holds_each_kind_of_event(tmp_path: Path):
    timeline, path = _small(), tmp_path / "timeline.json"
    timeline.instant("replica/0", subject.FAULT, 105.0, what="killed")
    timeline.instant("trainer", subject.PUBLISHED, 108.5, version=1)
    timeline.counter("hub", "groups ready", 103.0, 4)
    timeline.write(path)
    assert problems_of(path) == []
    events = json.loads(path.read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["name"] == "process_name"] == [
        "hub",
        "trainer",
        "replica/0",
    ]
    train = next(event for event in events if event["name"] == "train")
    assert (train["ts"], train["dur"], train["args"]) == (4_000_000, 4_000_000, {"step": 1})
    assert next(event for event in events if event["name"] == "fault")["ts"] == 5_000_000


def test_a_second_life_is_appended_after_a_marked_gap(tmp_path: Path):
    path = tmp_path / "timeline.json"
    first = _small()
    first.instant("trainer", subject.PUBLISHED, 109.0)
    first.write(path)
    second = Timeline.resumed(path, origin=5_000.0)
    second.span("trainer", "train", 5_002.0, 5_010.0)
    second.instant("trainer", subject.PUBLISHED, 5_010.0)
    assert second.wall_seconds == pytest.approx(10 + AWAY_SECONDS + 10)
    shares = {"busy": 12 / 20, "no_groups": 4 / 20, "publish": 2 / 20, "start": 2 / 20}
    assert second.idle_shares("trainer") == pytest.approx(shares)
    assert second.count(subject.PUBLISHED) == 2
    second.write(path)
    assert problems_of(path) == []
    events = json.loads(path.read_text())["traceEvents"]
    away = [event for event in events if event["name"] == subject.AWAY]
    assert {event["ts"] for event in away} == {10_000_000} and len(away) == 2
    assert [event["ts"] for event in events if event["name"] == subject.RESUMED] == [11_000_000]
    third = Timeline.resumed(path, origin=0.0)
    assert third.idle_shares("trainer") == pytest.approx(shares) and third.count(subject.PUBLISHED) == 2


def test_without_an_earlier_file_it_starts_anew_and_nothing_at_all_is_a_valid_trace(tmp_path: Path):
    timeline = Timeline.resumed(tmp_path / "timeline.json", 7.0)
    timeline.span("trainer", "train", 7.0, 9.0)
    assert timeline.wall_seconds == 2.0 and timeline.count(subject.RESUMED) == 0
    Timeline(0.0).write(tmp_path / "timeline.json")
    assert problems_of(tmp_path / "timeline.json") == []
    assert Timeline(0.0).metrics() == {"bubble": 0.0} and Timeline(0.0).idle_shares("trainer") == {}


def test_readings_that_are_no_numbers_and_odd_details_do_no_harm(tmp_path: Path):
    timeline, path = Timeline(0.0), tmp_path / "timeline.json"
    timeline.span("trainer", "train", math.nan, math.inf, loss=math.nan)
    timeline.span("trainer", "train", 0.0, 1.0, loss=math.nan, where=tmp_path)
    timeline.instant("trainer", "fault", math.nan, why=ValueError("x"))
    timeline.counter("hub", "kv used", 0.5, math.nan)
    timeline.write(path)
    assert problems_of(path) == []


def test_size_stays_bounded_and_shares_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "MAX_SPANS", 2_000)
    monkeypatch.setattr(subject, "MAX_MARKS", 100)
    timeline, path = Timeline(0.0), tmp_path / "timeline.json"
    for number in range(10_000):
        for replica in range(4):
            timeline.report(f"replica/{replica}", (number + 1) / 4, {"prefill": 0.05, "decode": 0.15, "pull": 0.05})
        timeline.instant("trainer", subject.PUBLISHED, number / 4)
        timeline.counter("hub", "groups ready", number / 4, number % 7)
    timeline.write(path)
    events = json.loads(path.read_text())["traceEvents"]
    assert problems_of(path) == []
    assert 4 * 100 < sum(event["ph"] == "X" for event in events) <= 2_000
    assert 50 <= sum(event["ph"] == "i" for event in events) <= 100
    assert 50 <= sum(event["ph"] == "C" for event in events) <= 100
    assert timeline.idle_shares("replica/3") == pytest.approx({"busy": 0.8, "pull": 0.2})
    assert timeline.count(subject.PUBLISHED) == 10_000
    assert Timeline.resumed(path, 10_000.0).idle_shares("replica/3") == pytest.approx({"busy": 0.8, "pull": 0.2})


def test_hundreds_of_replicas_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(subject, "MAX_SPANS", 4_000)
    timeline, path = Timeline(0.0), tmp_path / "timeline.json"
    for number in range(200):
        for replica in range(300):
            activity = "decode" if number % 2 else "no_prompts"
            timeline.span(f"replica/{replica}", activity, number / 4, (number + 1) / 4)
    timeline.write(path)
    drawn = sum(event["ph"] == "X" for event in json.loads(path.read_text())["traceEvents"])
    assert drawn <= 300 * 64 and problems_of(path) == []


def test_the_checker_finds_what_is_wrong(tmp_path: Path):
    path, one = tmp_path / "timeline.json", {"name": "a", "pid": 1, "tid": 1}
    span = {"ph": "X", **one, "ts": 1, "dur": 10}
    wrong = {
        "ts": span | {"ts": -1},
        "dur": {"ph": "X", **one, "ts": 1},
        "counter": {"ph": "C", **one, "ts": 1, "args": {"value": "x"}},
        "scope": {"ph": "i", **one, "ts": 1, "s": "q"},
        "pid": span | {"pid": "1"},
    }
    for problem, event in wrong.items():
        path.write_text(json.dumps({"traceEvents": [event]}))
        assert any(problem in found for found in problems_of(path))
    named = {"ph": "M", **one, "name": "process_name", "args": {"name": "trainer"}}
    path.write_text(json.dumps({"traceEvents": [named, span, span | {"name": "b", "ts": 5}]}))
    assert problems_of(path) == ["b at 5 overlaps in part"]
