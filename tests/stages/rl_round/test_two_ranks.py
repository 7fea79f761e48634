"""A round on two ranks, for real over gloo: each draws half with its own engine, and together they are one rank."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stages.foundations.tables.rollout import ROLLOUT
from stages.foundations.tables.table import read_table
from stages.rl_round.__main__ import main
from tests.fakes.forks import on_ranks
from tests.fakes.taught_policy import PARAMS, rl_flags, write_params
from tests.stages.rl_round.test_stage import EVERYTHING, curve

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
)
ZERO = {
    "kind": "deepspeed",
    "zero_stage": 2,
    "offload_optimizer": False,
    **{name: PARAMS["trainer"][name] for name in ("dtype", "threads", "gradient_checkpointing")},
    "micro_batch_tokens": 96,
}
CHOICES = {
    "plain": {"rl_rounds.rl_1.steps": 3, "trainer.micro_batch_tokens": 96},
    "everything": {**EVERYTHING, "rl_rounds.rl_1.steps": 2, "trainer.micro_batch_tokens": 96},
}
"""The second has a baseline that compares tokens, a reference, a selection by pass rates."""


@pytest.fixture(scope="module")
def rounds(taught, tmp_path_factory):
    """Folders of each choice's round, by number of ranks."""
    out = tmp_path_factory.mktemp("ranks")
    patch = pytest.MonkeyPatch()
    patch.setenv("RETRACE_TRACKING", "off")
    patch.setenv("RETRACE_STATE", str(out / "state"))

    def run(ranks: int) -> None:
        for name, choice in CHOICES.items():
            folder = out / f"{name}-{ranks}"
            folder.mkdir(exist_ok=True)
            trainer = {"trainer": ZERO} if ranks > 1 else {}
            params = write_params(
                folder / f"params-{os.environ.get('RANK', '0')}.yaml", {**trainer, **choice}
            )
            main(rl_flags(taught, params, folder))

    run(1)
    on_ranks(lambda: run(2), 2)
    patch.undo()
    return out


def weights(folder: Path) -> torch.Tensor:
    return torch.cat(
        [weight.flatten() for weight in load_file(folder / "rl_1" / "model.safetensors").values()]
    )


@pytest.mark.parametrize("choice", CHOICES)
def test_two_ranks_draw_what_one_draws_and_learn_the_same(rounds, choice):
    one, two = (rounds / f"{choice}-{ranks}" for ranks in (1, 2))
    alone, together = (read_table(folder / "rl_1.parquet", ROLLOUT) for folder in (one, two))
    exact = [
        "problem_id",
        "step",
        "sample_index",
        "policy_version",
        "response",
        "verdict",
        "reward",
        "is_trained",
    ]
    assert together[exact].equals(alone[exact])
    for first, second in zip(alone["token_ids"], together["token_ids"], strict=True):
        assert first.tolist() == second.tolist()
    for first, second in zip(alone["rollout_logprobs"], together["rollout_logprobs"], strict=True):
        assert second == pytest.approx(first, abs=1e-4)
    gaps = (weights(two) - weights(one)).abs()
    # Adam turns the rounding of gradients that are all but zero into steps of some size: few, and small beside 2e-3.
    assert gaps.max() < 2e-4
    assert gaps.mean() < 1e-6
    rows = list(zip(curve(one), curve(two), strict=True))
    assert rows
    for alone, together in rows:
        assert together == pytest.approx(alone, rel=1e-3, abs=1e-4)
