"""A tiny policy that answers sums with a random boxed digit: sometimes right, so that RL has a signal.

The real `sft` stage trains it, so its tests and those of `rl_round` share the cost.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml

from stages.foundations.tables import BENCHMARK, DEMONSTRATION, PROBLEM, write_table
from tests.fakes.tiny_policy import write_tiny_policy

DIGITS = 3
PROBLEMS = [(f"{a}+{b}?", str(a + b)) for a in range(DIGITS) for b in range(DIGITS - a)]
"""Sums below `DIGITS`."""

PARAMS: dict[str, Any] = {
    "seed": 0,
    "prompt": {"kind": "plain", "template": "{problem} "},
    "sampler": {"kind": "torch", "device": "cpu", "dtype": "float32", "threads": 1, "max_sequences": 64},
    "trainer": {
        "kind": "torch",
        "device": "cpu",
        "dtype": "float32",
        "threads": 1,
        "micro_batch_tokens": 512,
        "gradient_checkpointing": False,
    },
    "verifier": {"timeout_seconds": 5.0, "memory_mib": 512, "workers": 1, "abort_undecided_fraction": 0.1},
    "sft": {
        "steps": 60,
        "batch_demonstrations": 12,
        "max_sequence_tokens": 32,
        "warmup_steps": 5,
        "final_learning_rate_fraction": 0.1,
        "max_gradient_norm": 1.0,
        "validate_every_steps": 20,
        "checkpoint_every_steps": 10,
        "optimizer": {"kind": "adamw", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.0},
    },
    "rl": {
        "problems_per_step": 4,
        "group_size": 8,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_response_tokens": 12,
        "reward": {"kind": "by_verdict", "correct": 1.0, "wrong": -1.0, "unparsed": -1.0},
        "verifier": {"kind": "rule"},
        "overlong": {"kind": "soft_punishment", "buffer_tokens": 2},
        "overlong_filtering": False,
        "dynamic_sampling": {"kind": "dynamic", "max_draws": 3, "max_staleness": 2},
        "advantage": {"kind": "group_normalized", "divide_by_std": True},
        "policy_loss": {"kind": "clipped_surrogate", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": None},
        "aggregation": "token_mean",
        "proximal": "recompute",
        "rollout_correction": {"kind": "none"},
        "reference_kl": {"kind": "none"},
        "minibatches": 2,
        "max_gradient_norm": 1.0,
        "optimizer": {"kind": "adamw", "learning_rate": 0.002, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.0},
        "weight_sync_check": {"sequences": 2, "max_logprob_gap": 0.0001},
        "checkpoint_every_steps": 2,
        "loop": {"kind": "synchronous"},
    },
    "rl_rounds": {
        "rl_1": {
            "start_from": "sft",
            "steps": 24,
            "warmup_steps": 1,
            "problems": "problems/train",
            "problem_slice": {"index": 0, "count": 1},
            "prompt_selection": {"kind": "all"},
        }
    },
    "respond": {
        "samples": 4,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "max_response_tokens": 12,
        "is_greedy_included": True,
        "max_problems": None,
        "problems_at_once": 4,
        "baseline_prompts": None,
    },
}


def write_params(path: Path, changes: dict[str, Any] | None = None) -> Path:
    """Writes `PARAMS` with dotted `changes` ({"rl.minibatches": 1})."""
    params = copy.deepcopy(PARAMS)
    for name, value in (changes or {}).items():
        *sections, last = name.split(".")
        place = params
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    path.write_text(yaml.safe_dump(params))
    return path


def write_inputs(folder: Path) -> Path:
    """Writes base policy, demonstrations, problems and benchmarks under `folder`."""
    write_tiny_policy(folder / "base")
    demonstrations = [
        {"demonstration_id": f"d{number}-{digit}", "problem_id": f"p{number}", "source": "fake", "kind": "given"}
        | {"problem": problem, "response": f"\\boxed{{{digit}}}", "licence": "none"}
        for number, (problem, _) in enumerate(PROBLEMS)
        for digit in range(DIGITS)
    ]
    write_table(demonstrations, folder / "train.parquet", DEMONSTRATION)
    write_table(demonstrations[::4], folder / "validation.parquet", DEMONSTRATION)
    rows = [
        {"problem_id": f"p{number}", "source": "fake", "problem": problem, "answer": answer}
        | {"solution": None, "licence": "none"}
        for number, (problem, answer) in enumerate(PROBLEMS)
    ]
    write_table(rows, folder / "problems.parquet", PROBLEM)
    write_table(_held_out_rows(), folder / "held_out.parquet", PROBLEM)
    write_table([{**row, "benchmark": "sums"} for row in rows], folder / "benchmarks.parquet", BENCHMARK)
    return folder


def _held_out_rows() -> list[dict[str, Any]]:
    """Returns sums of three numbers, which are not in `PROBLEMS`."""
    digits = range(DIGITS)
    sums = [(f"{a}+{b}+{c}?", str(a + b + c)) for a in digits for b in digits for c in digits if a + b + c < DIGITS]
    return [
        {"problem_id": f"h{number}", "source": "fake", "problem": problem, "answer": answer}
        | {"solution": None, "licence": "none"}
        for number, (problem, answer) in enumerate(sums)
    ]


def stage_flags(address: str, **paths: Path) -> list[str]:
    """Returns the command line of a stage: its address, and a flag with each path."""
    return [address, *(word for name, path in paths.items() for word in (f"--{name.replace('_', '-')}", str(path)))]


def sft_flags(folder: Path, params: Path, out: Path) -> list[str]:
    """Returns the command line of stage `sft` on the inputs of `folder`, with outputs under `out`."""
    inputs = {name: folder / f"{name}.parquet" for name in ("train", "validation")}
    outputs = {"out": out / "sft", "dropped": out / "dropped.parquet", "curves": out / "sft.csv"}
    numbers = {"metrics": out / "sft.json", "headline": out / "sft_headline.json"}
    return stage_flags("sft", params=params, policy=folder / "base", **inputs, **outputs, **numbers)


def rl_flags(folder: Path, params: Path, out: Path) -> list[str]:
    """Returns the command line of stage `rl_round` from the trained policy in `folder`, with outputs under `out`."""
    inputs = {
        "policy": folder / "sft",
        "problems": folder / "problems.parquet",
        "validation": folder / "held_out.parquet",
    }
    outputs = {"out": out / "rl_1", "rollouts": out / "rl_1.parquet", "schedule": out / "schedules" / "rl_1"}
    numbers = {"curves": out / "rl_1.csv", "metrics": out / "rl_1.json", "headline": out / "rl_1_headline.json"}
    return stage_flags("rl_round@rl_1", params=params, **inputs, **outputs, **numbers)
