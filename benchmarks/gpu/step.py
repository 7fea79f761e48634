"""Part `step`: a whole RL step of ours (sample, update, sync) and TRL's colocated one, on the same random policy."""

from __future__ import annotations

import importlib.util
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.contender import Settings
from benchmarks.gpu.measuring import Bench, Row
from benchmarks.gpu.shapes import shape_of, trainer_params, write_policy
from benchmarks.rl_step import Contender
from pipelines.graph.recipes import read_recipe
from stages.foundations.files import dump_yaml
from stages.foundations.machine import PROJECT
from stages.foundations.tables import PROBLEM, write_table

NAME = "Qwen2.5-0.5B"


def prepared(bench: Bench, folder: Path) -> Settings:
    """Prepares the laptop recipe's round at a larger size: 64 prompts x 8 responses of 300 tokens, two updates."""
    group, prompts, tokens = (2, 2, 8) if bench.is_miniature else (8, 64, 300)
    params = read_recipe(PROJECT, "laptop")
    params["trainer"] = trainer_params(bench, 16_384, False).model_dump()
    if bench.device.type == "cuda":
        params["sampler"] = {
            "kind": "vllm",
            "dtype": "bfloat16",
            "max_model_tokens": tokens + 64,
            "max_sequences": group * prompts,
            "memory_fraction": 0.4,
            "kv_cache_gib": 1.0,
            "tensor_parallel": 1,
            "enforce_eager": False,
        }
    params["rl"] |= {
        "group_size": group,
        "problems_per_step": prompts,
        "max_response_tokens": tokens,
        "overlong": {"kind": "none"},
        "optimizer": {**params["rl"]["optimizer"], "learning_rate": 1e-6},
        "weight_sync_check": {"sequences": 2, "max_logprob_gap": None},
    }
    (folder / "params.yaml").write_text(dump_yaml(params))
    turns = bench.repeats + 1
    sums = [{"problem_id": f"{n}", "source": "sums", "problem": f"{n} + 1", "answer": f"{n + 1}", "solution": "",
             "licence": ""} for n in range(turns * prompts)]  # fmt: skip
    write_table(sums, folder / "problems.parquet", PROBLEM)
    write_policy(bench, shape_of(bench, NAME), folder / "policy")
    return Settings(
        params=str(folder / "params.yaml"),
        policy=str(folder / "policy"),
        problems=str(folder / "problems.parquet"),
        prompts=prompts,
        turns=turns,
        threads=params["trainer"]["threads"],
        seed=0,
        trl_rows=min(32, group * prompts // 2),
        device=bench.device.type,
    )


def play(bench: Bench, contender: str, told: str, most: float | None) -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        settings = prepared(bench, Path(place))
        with Contender(contender, settings) as playing:
            turns = [playing.take(number) for number in range(settings.turns)][1:]
    rows = [Row(f"RL step {NAME}, {told}", [turn["seconds"] for turn in turns], "s", most=most)]
    for phase in turns[0].get("phases", {}):
        rows.append(Row(f"  {phase}", [turn["phases"][phase] for turn in turns], "s"))
    rows.append(Row("  response tokens", [turn["tokens"] for turn in turns], "tokens"))
    return rows


ours = partial(play, contender="ours", told="ours", most=8.0)


def trl(bench: Bench) -> list[Row]:
    if importlib.util.find_spec("trl") is None:
        raise SystemExit("trl is not installed")
    return play(bench, "trl", "TRL colocated", None)
