"""What a progress line says: the place, the time left, the newest numbers."""

import re

import pytest

from stages.observe import progress


@pytest.fixture(autouse=True)
def every_item(monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)


def test_a_resumed_training_counts_from_where_it_was_and_shows_the_newest_numbers(capsys):
    curve = [{"step": 60, "loss/train": 0.5, "loss/validation": 0.25}]
    for step in progress.progress(range(60, 63), 63, "sft", "steps", done=60, curve=curve):
        curve.append({"step": step + 1, "loss/train": 0.5 - step / 1000})
    first, second, third = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"sft: 60 of 63 steps in \d+ s, loss 0\.5, validation loss 0\.25", first)
    assert re.fullmatch(r"sft: 61 of 63 steps in \d+ s, \d+ s left, loss 0\.44, validation loss 0\.25", second)
    assert third.startswith("sft: 62 of 63 steps")


def test_without_a_total_there_is_no_time_left(capsys):
    assert list(progress.progress(iter("ab"), label="rules")) == ["a", "b"]
    for place, line in enumerate(capsys.readouterr().err.splitlines()):
        assert re.fullmatch(rf"rules: {place} rows in \d+ s", line)
