"""The probe fires when a sync did not arrive, and stays silent when it did."""

import pytest
import torch

from stages.engines.policies.language_model import language_model
from stages.engines.replicas.replica import SyncError
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.rl_round.loop.weight_sync import WeightSyncCheck
from stages.rl_round.params import RlParams, WeightSyncCheckParams
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import write_tiny_policy


@pytest.fixture
def both_sides(tmp_path):
    folder = write_tiny_policy(tmp_path / "policy")
    trainer_params = TorchTrainerParams.model_validate(PARAMS["trainer"])
    optimizer = RlParams.model_validate(PARAMS["rl"]).optimizer
    trainer = TorchTrainer(trainer_params, optimizer, 1.0, language_model(folder, trainer_params))
    sampler = TorchSampler.from_folder(TorchSamplerParams.model_validate(PARAMS["sampler"]), folder)
    return trainer, sampler


def make_probe(sampler, max_logprob_gap=1e-4):
    params = WeightSyncCheckParams(sequences=2, max_logprob_gap=max_logprob_gap)
    return WeightSyncCheck.drawn(params, [[3, 4], [5], [6]], 8, sampler, seed=0)


def disturb(trainer, size):
    with torch.no_grad():
        for _, weight in trainer.named_weights():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * size)


def sync(probe, trainer, sampler, version):
    from_trainer = probe.trainer_side(trainer)
    sampler.load_weights(trainer.named_weights(), version)
    return probe.check(sampler, from_trainer)


def test_a_sync_that_arrives_is_silent(both_sides):
    trainer, sampler = both_sides
    probe = make_probe(sampler)
    assert len(probe.prompts) == 2
    for version in range(1, 4):
        disturb(trainer, 0.05)
        assert sync(probe, trainer, sampler, version) < 1e-4


def test_a_sync_that_does_not_arrive_fires(both_sides, monkeypatch):
    trainer, sampler = both_sides
    probe = make_probe(sampler)
    sync(probe, trainer, sampler, 1)
    monkeypatch.setattr(sampler, "load_weights", lambda tensors, version: None)
    disturb(trainer, 0.05)
    with pytest.raises(SyncError, match="differs by"):
        sync(probe, trainer, sampler, 2)


def test_a_change_below_the_bound_that_does_not_arrive_fires_too(both_sides, monkeypatch):
    """A learning rate of 1e-6 moves log-probs by less than the bound: only standing still gives it away."""
    trainer, sampler = both_sides
    probe = make_probe(sampler, max_logprob_gap=1.0)
    sync(probe, trainer, sampler, 1)
    monkeypatch.setattr(sampler, "load_weights", lambda tensors, version: None)
    disturb(trainer, 0.01)
    with pytest.raises(SyncError, match="did not reach the sampler"):
        sync(probe, trainer, sampler, 2)


def test_without_a_bound_the_gap_is_measured_and_nothing_is_refused(both_sides, monkeypatch):
    """A sampler that is stale on purpose stands still while the trainer moves."""
    trainer, sampler = both_sides
    probe = make_probe(sampler, max_logprob_gap=None)
    sync(probe, trainer, sampler, 1)
    monkeypatch.setattr(sampler, "load_weights", lambda tensors, version: None)
    disturb(trainer, 0.05)
    assert sync(probe, trainer, sampler, 2) > 1e-4


def test_nan_is_no_agreement(both_sides):
    trainer, sampler = both_sides
    probe = make_probe(sampler)
    with torch.no_grad():
        next(iter(trainer.named_weights()))[1].fill_(torch.nan)
    with pytest.raises(SyncError, match="differs by nan"):
        sync(probe, trainer, sampler, 1)


def test_one_stale_weight_is_enough(both_sides, monkeypatch):
    trainer, sampler = both_sides
    probe = make_probe(sampler)
    load = sampler.load_weights
    monkeypatch.setattr(
        sampler,
        "load_weights",
        lambda tensors, version: load([(n, t) for n, t in tensors if "embed_tokens" not in n], version),
    )
    disturb(trainer, 0.05)
    with pytest.raises(SyncError):
        sync(probe, trainer, sampler, 1)
