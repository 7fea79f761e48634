"""The example stage of docs/how-to/own-stage.md: it runs as written there."""

import json
import re
import textwrap
from pathlib import Path

import yaml

import stages
from pipelines.graph.schema import entry_of
from stages.foundations.job import read_job
from stages.foundations.stage import declared_stage
from stages.foundations.tables import DEMONSTRATION, write_table
from tests.fakes.tiny_policy import write_tiny_policy

GUIDE = Path(__file__).resolve().parents[2] / "docs/how-to/own-stage.md"


def test_the_stage_of_the_guide_counts_tokens(tmp_path, monkeypatch):
    guide = GUIDE.read_text().partition("\n## ")[0]
    (stage, run), (entry,) = (re.findall(rf"```{kind}\n(.*?)```", guide, re.DOTALL) for kind in ("python", "yaml"))
    package = tmp_path / "stages" / "count_tokens"
    package.mkdir(parents=True)
    for name, text in (("__init__", ""), ("stage", stage), ("run", run)):
        (package / f"{name}.py").write_text(text)
    monkeypatch.setattr(stages, "__path__", [*stages.__path__, str(package.parent)])
    declared = declared_stage("count_tokens")
    assert {"count_tokens": entry_of("count_tokens", declared)} == yaml.safe_load(textwrap.dedent(entry))

    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(re.search(r"`(count_tokens: \{.*?\})`", guide)[1])
    names = ("demonstration_id", "problem_id", "source", "kind", "problem", "licence")
    rows = [{**dict.fromkeys(names, "x"), "response": text} for text in ("abc", "a" * 200)]
    write_table(rows, Path("data/demonstrations/train.parquet"), DEMONSTRATION)
    write_tiny_policy(Path("data/policies/base"))
    from stages.count_tokens.run import main

    main(read_job("count_tokens", "", declared, [], ""))
    # One token for each byte, and the end of each response.
    assert json.loads(Path("data/metrics/count_tokens.json").read_text()) == {
        "rows/in": 2,
        "rows/long": 1,
        "tokens/total": 3 + 200 + 2,
    }
