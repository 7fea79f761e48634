"""`python -m benchmarks.gpu` at toy sizes on a CPU, so that it runs on the day when there is a GPU."""

import json

import pytest

from benchmarks.gpu import __main__ as suite
from benchmarks.gpu.measuring import Row


@pytest.mark.slow
def test_measurements_of_the_engines_give_figures(tmp_path, capsys):
    names = ["update_small"]  # `--miniature` without `--only` runs them all, in a minute
    code = suite.main(["engines", "--device", "cpu", "--miniature", "--out", str(tmp_path), "--only", *names])
    found = json.loads((tmp_path / "engines.json").read_text())
    assert {name: one["failed"] for name, one in found["measurements"].items()} == dict.fromkeys(names, "")
    table = (tmp_path / "engines.md").read_text()
    assert "| update Qwen2.5-0.5B random" in table and capsys.readouterr().out.rstrip() == table.rstrip()
    assert code in (0, 1), "toy figures miss what is asked of a GPU"


def test_a_measurement_that_fails_or_hangs_is_a_line_and_the_next_one_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(suite.PARTS, "engines", {"nothing": 60, "statistics": 0.05})
    assert suite.main(["engines", "--device", "cpu", "--miniature", "--out", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert "| nothing | ended with 1: AttributeError" in shown
    assert "| statistics | took more than 0.25 s" in shown


@pytest.mark.parametrize("words", [["engines"], ["engines", "--device", "cpu"], ["engines", "--only", "x"]])
def test_what_cannot_be_measured_here_is_refused(words, capsys, monkeypatch):
    monkeypatch.setattr(suite.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as refused:
        suite.parse(words)
    assert refused.value.code == 2
    told = capsys.readouterr().err
    assert any(word in told for word in ("sees no GPU", "toy sizes", "has no x"))


def test_a_figure_is_the_median_and_must_reach_what_is_asked():
    assert Row("a", [3.0, 1.0, 2.0], "s", most=2.0).is_met and not Row("a", [3.0], "s", most=2.0).is_met
    assert Row("a", [3.0], "/s", least=3.0).is_met and Row("a", [3.0], "/s").is_met is None
