"""Metric files hold finite numbers only; curves leave gaps empty."""

import json

import pytest

from stages.foundations.files import write_curves, write_metrics


def test_metrics_are_flat_and_finite(tmp_path):
    write_metrics(tmp_path / "m.json", {"b/x": 2, "a/y": 0.25})
    assert list(json.loads((tmp_path / "m.json").read_text())) == ["a/y", "b/x"]
    for broken in (float("nan"), float("inf"), None, "1", True):
        with pytest.raises(ValueError, match="a/y"):
            write_metrics(tmp_path / "m.json", {"a/y": broken})


def test_a_headline_holds_the_numbers_to_compare_under_the_words_of_all_stages(tmp_path):
    metrics = {"rows/in": 9, "rows/kept": 5, "loss/last": 0.5}
    write_metrics(tmp_path / "m.json", metrics, {tmp_path / "h" / "a.json": {"kept": "rows/kept", "loss": "none"}})
    assert json.loads((tmp_path / "h" / "a.json").read_text()) == {"kept": 5}
    assert json.loads((tmp_path / "m.json").read_text()) == metrics
    with pytest.raises(ValueError, match="not \\['rows'\\]"):
        write_metrics(tmp_path / "m.json", metrics, {tmp_path / "h.json": {"rows": "rows/kept"}})


def test_curves_have_one_row_per_step(tmp_path):
    write_curves(tmp_path / "c.csv", [{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0, "validation": 3.0}])
    assert (tmp_path / "c.csv").read_text() == "step,loss,validation\n1,2.5,\n2,2.0,3.0\n"
