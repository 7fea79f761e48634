"""The funnel: no row is lost, no drop is without a reason."""

import json

import pytest

from stages.foundations.tables import Funnel


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


def test_lost_rows_are_noticed():
    with pytest.raises(ValueError, match="rows were lost"):
        Funnel("curate", 3).metrics(2)


def test_a_reason_is_one_word():
    with pytest.raises(ValueError, match="snake_case"):
        Funnel("curate", 1).drop({}, "No answer!")
