"""Diagnostics by staleness: right by hand, and nothing else changes for them."""

from __future__ import annotations

import pytest
import torch

from stages.engines.policies.language_model import language_model
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.rl_round.losses import rates_by_staleness, shares_by_staleness
from stages.rl_round.params import RlParams
from stages.rl_round.records import Group
from stages.rl_round.update import summarise, update_policy
from tests.fakes.step_plans import prepare
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import write_tiny_policy
from tests.stages.rl_round.update.test_policy_update import RIGHT, WRONG, rollout

ASYNCHRONOUS = {
    "kind": "asynchronous",
    "window": 6,
    "replica_share": 1.0,
    "takes_groups": "when_empty",
    "report_seconds": 0.25,
    "repack": {"kind": "none"},
    "relay": {"keep": 7, "chunk_mib": 64},
    "stalled_seconds": 5.0,
    "trainer_ranks": 1,
}
MASKED = {"kind": "trust_region_masking", "max_threshold": 20.0, "mean_threshold": None, "divergence": "sampled"}


def test_shares_and_rates_by_hand():
    weights = torch.tensor([[1.0, 3.0], [2.0, 2.0], [1.0, 1.0], [5.0, 0.0]])
    before = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    after = before * torch.tensor([[1.0], [1.0], [0.0], [1.0]])
    shares = shares_by_staleness(torch.tensor([0, 1, 1, 9]), weights, before, after)
    rates = rates_by_staleness({name: float(value) / 2 for name, value in shares.items()} | {"loss/x": 1.0})
    assert rates == pytest.approx(
        {
            "loss/x": 1.0,
            "importance/effective_sample_fraction_staleness_0": 16 / 20,
            "importance/effective_sample_fraction_staleness_1": 1.0,
            "importance/effective_sample_fraction_staleness_4": 1.0,
            "trust_region/acceptance_rate_staleness_0": 1.0,
            "trust_region/acceptance_rate_staleness_1": 0.5,
            "trust_region/acceptance_rate_staleness_4": 1.0,
        }
    )


@pytest.mark.parametrize("correction", [{"kind": "importance_weights", "level": "token", "cap": 2.0}, MASKED])
def test_the_loop_adds_its_numbers_and_changes_no_other(tmp_path, correction):
    write_tiny_policy(tmp_path / "policy")
    settings = TorchTrainerParams.model_validate(PARAMS["trainer"])
    groups = [
        Group("a", [3, 4], (rollout([5, 6], *RIGHT, version=3), rollout([7], *WRONG, version=3))),
        Group("b", [11], (rollout([12], *RIGHT, version=1), rollout([13, 14], *WRONG, version=1))),
    ]
    found = {}
    for name, loop in (("synchronous", {"kind": "synchronous"}), ("asynchronous", ASYNCHRONOUS)):
        changes = {"loop": loop, "proximal": "recompute", "rollout_correction": correction}
        params = RlParams.model_validate({**PARAMS["rl"], **changes})
        trainer = TorchTrainer(settings, params.optimizer, 1.0, language_model(tmp_path / "policy", settings))
        samples, plan = prepare(groups, params, trainer, version=3)
        found[name] = summarise(update_policy(samples, plan, params, 1.0, trainer))
    own = {name for name in found["asynchronous"] if "_staleness_" in name}
    assert {
        "importance/effective_sample_fraction_staleness_0",
        "importance/effective_sample_fraction_staleness_2",
    } <= own
    is_masked = correction["kind"] == "trust_region_masking"
    assert ("trust_region/acceptance_rate_staleness_2" in own) == is_masked
    rest = {name: value for name, value in found["asynchronous"].items() if name not in own}
    assert rest == found["synchronous"]
    assert not any(name.startswith("by_staleness") for name in rest)
