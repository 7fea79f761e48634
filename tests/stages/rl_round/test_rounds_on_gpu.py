"""Whole rounds with vLLM on one GPU: a critic, a teacher, tools, a study of the samplers' gap, the asynchronous loop.

`RETRACE_GPU_TESTS_ON=cpu` runs them on a CPU.
"""

import json
import math
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from stages.foundations.machine import PROJECT
from stages.foundations.tables import ROLLOUT, read_table
from tests.fakes.rounds import ASYNCHRONOUS, NONE, PPO, TRM, curve
from tests.fakes.taught_policy import rl_flags, write_params
from tests.stages.rl_round.test_turns import TOOLS

# Searched by name: importing vLLM takes two seconds in each worker that collects this file and has no GPU.
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")]
ON_CPU = os.environ.get("RETRACE_GPU_TESTS_ON") == "cpu"
DTYPES = {"sampler.dtype": "float32"} if ON_CPU else {"trainer.device": "cuda", "trainer.dtype": "mixed"}
STEPS = 4
ON_THE_CARD = {
    "sampler": {
        "kind": "vllm",
        "dtype": "bfloat16",
        "max_model_tokens": 128,
        "max_sequences": 64,
        "memory_fraction": 0.3,
        "kv_cache_gib": 0.25,
        "tensor_parallel": 1,
        "enforce_eager": True,
    },
    **DTYPES,
    "trainer.micro_batch_tokens": 4096,
    "rl.weight_sync_check.max_logprob_gap": None,
    "rl.dynamic_sampling": NONE,
    "rl.overlong": NONE,
}
TAUGHT = {
    "rl.group_size": 4,
    "rl_rounds.rl_1.distillation": {"coefficient": 1.0},
    "rl.rollout_correction": {**TRM, "divergence": "likeliest", "max_threshold": 1.0, "mean_threshold": None},
    "rl.study": {"rollout_distributions": {"kind": "likeliest", "count": 20, "max_gib": 1.0}},
}
TURNS = {"prompt.environment": TOOLS, "rl.max_response_tokens": 48}
BESIDE = {"rl.loop": ASYNCHRONOUS, "sampler.replicas": {"kind": "ray", "count": 1}, "rl.proximal": "rollout"}


def steps_of(taught, folder, changes, start="sft"):
    """Runs a round in a process of its own, which alone gives the whole card back, and returns its curve."""
    shutil.copytree(taught / "sft", folder / "data/teachers/rl_1/policy")
    changes = {**ON_THE_CARD, **changes, "rl_rounds.rl_1.steps": STEPS}
    params = write_params(folder / "params.yaml", changes)
    own = {"RETRACE_STATE": str(folder / "state"), "RETRACE_TRACKING": "off"}
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    flags = rl_flags(taught, params, folder / "out")
    flags[flags.index("--policy") + 1] = str(taught / start)
    command = [sys.executable, "-m", "stages", *flags]
    ended = subprocess.run(command, cwd=folder, env={**os.environ, **own}, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stderr[-4000:]
    rows = curve(folder / "out")
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    # Two roundings to bfloat16 of a policy with a spread-out distribution. A critic's warm-up trains no policy.
    assert all(row["logprob_gap/mean"] < 0.1 for row in rows[1:])
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert (folder / "out/rl_1/model.safetensors").exists()
    return rows


def test_a_critic_learns_beside_the_engine(taught, tmp_path):
    rows = steps_of(taught, tmp_path, PPO)
    assert all(row["critic/loss"] > 0 for row in rows) and all(row["optim/gradient_norm"] > 0 for row in rows[1:])


def test_a_teacher_and_the_likeliest_tokens_of_the_engine(taught, tmp_path):
    rows = steps_of(taught, tmp_path, TAUGHT, start="base")
    # Nearly uniform over 258 tokens against a policy that has learned: several nats a token.
    assert rows[0]["distillation/reverse_kl"] > 3 and rows[0]["optim/gradient_norm"] > 0
    assert all(0 <= row["trust_region/divergence_max"] < 0.5 for row in rows)


def test_the_engine_goes_on_after_what_a_tool_answered(taught, tmp_path):
    steps_of(taught, tmp_path, TURNS)
    rows = read_table(tmp_path / "out/rl_1.parquet", ROLLOUT).to_dict("records")
    assert max(row["turns"] for row in rows) == 3 and not any(row["environment_fault"] for row in rows)


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_a_replica_generates_beside_the_trainer(taught, tmp_path):
    steps_of(taught, tmp_path, BESIDE)
    metrics = json.loads((tmp_path / "out/rl_1.json").read_text())
    assert metrics["rollouts/drawn"] >= STEPS * 32
