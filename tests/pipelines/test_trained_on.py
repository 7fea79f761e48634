"""What a policy was trained on: the tables that trained it, and not the sources that were looked through."""

from __future__ import annotations

from pathlib import Path

import pandas
import pytest
import yaml

from pipelines.comparing.sides import read_answers
from pipelines.records.lock_snapshots import working_snapshot
from pipelines.records.trained_on import trained_problems

HELD_OUT = {"b/0": "What is 2+2?", "b/1": "What is 3+3?", "b/2": "What is 4+4?"}


def stage(deps: list[str], outs: list[str]) -> dict:
    files = {"deps": deps, "outs": outs}
    return {"cmd": "true", **{kind: [{"path": path, "md5": "0"} for path in paths] for kind, paths in files.items()}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """2+2 was in the source and was dropped; 3+3 is a demonstration; 4+4 is in a slice that the round did not take."""
    tables = {
        "problems/train": {"problem_id": ["t/1", "t/2"], "problem": ["What is 4 + 4?", "What is 9+1?"]},
        "demonstrations/train": {"problem_id": ["t/3"], "problem": ["what is 3+3?"], "response": ["6"]},
        "demonstrations/validation": {"problem_id": ["t/4"], "problem": ["What is 2+2?"], "response": ["4"]},
        "rollouts/rl_1": {"problem_id": ["t/2", "t/1"], "is_trained": [True, False]},
        "responses/rl_1": {
            **{"benchmark": ["b"] * 3, "problem_id": list(HELD_OUT), "problem": list(HELD_OUT.values())},
            **{"mode": ["greedy"] * 3, "sample_index": [0] * 3, "answer": ["4", "6", "8"], "response": ["r"] * 3},
            **{"response_tokens": [1] * 3, "is_truncated": [False] * 3},
        },
        "verdicts/rl_1": {
            **{"benchmark": ["b"] * 3, "problem_id": list(HELD_OUT), "mode": ["greedy"] * 3, "sample_index": [0] * 3},
            **{"verdict": ["correct"] * 3, "extracted": ["4"] * 3, "path": ["p"] * 3, "reason": [""] * 3},
        },
    }
    for name, columns in tables.items():
        file = tmp_path / "data" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pandas.DataFrame(columns).to_parquet(file)
    stages = {
        "base": stage([], ["data/policies/base"]),
        "sft": stage(
            [f"data/{name}" for name in ("demonstrations/train.parquet", "demonstrations/validation.parquet")]
            + ["data/policies/base"],
            ["data/policies/sft"],
        ),
        "rl_round@rl_1": stage(
            ["data/policies/sft", "data/problems/train.parquet"], ["data/policies/rl_1", "data/rollouts/rl_1.parquet"]
        ),
        "grade@rl_1": stage(["data/responses/rl_1.parquet"], ["data/verdicts/rl_1.parquet"]),
    }
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
    return tmp_path


def test_only_what_trained_the_policy_or_one_before_it_counts(root: Path) -> None:
    place = working_snapshot(root)
    assert trained_problems(place, "base") == frozenset()
    assert len(trained_problems(place, "sft")) == 1
    assert len(trained_problems(place, "rl_1")) == 2
    assert read_answers(place, "rl_1").leaked == {("b", "b/1")}


def test_without_rollouts_the_whole_table_of_the_round_counts(root: Path) -> None:
    (root / "data/rollouts/rl_1.parquet").unlink()
    assert read_answers(working_snapshot(root), "rl_1").leaked == {("b", "b/1"), ("b", "b/2")}


def test_nothing_is_claimed_where_a_table_or_the_policy_is_gone(root: Path) -> None:
    assert trained_problems(working_snapshot(root), "rl_9") is None
    (root / "data/demonstrations/train.parquet").unlink()
    assert read_answers(working_snapshot(root), "rl_1").leaked is None
