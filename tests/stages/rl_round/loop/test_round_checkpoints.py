"""Checkpoints of a round: what is carried comes back bit for bit."""

from types import SimpleNamespace

import torch

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.policies.language_model import language_model
from stages.engines.samplers.protocol import FullSample, Sample, StopReason
from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.rl_round.drawing import DrawState
from stages.rl_round.loop.batch_source import SampledBatches
from stages.rl_round.loop.weight_sync import RoundState, WeightSync, load_state, save_state
from stages.rl_round.records import Group, Rollout
from tests.fakes.tiny_policy import write_tiny_policy
from tests.stages.rl_round.update.test_policy_update import RL, TRAINER


def rollout(sample):
    return Rollout(sample, "7", Verdict.CORRECT, 1.0)


def test_surplus_groups_come_back_with_their_versions_and_distributions(tmp_path):
    model = language_model(write_tiny_policy(tmp_path / "policy"), TRAINER)
    trainer = TorchTrainer(TRAINER, RL.optimizer, 1.0, model)
    rows = torch.randn(3, 5).log_softmax(-1)
    rows[1, 2] = -torch.inf
    full = FullSample([1, 2, 0], [-0.1, -1 / 3, -2e-9], StopReason.END_OF_SEQUENCE, 2, rows)
    plain = Sample([4], [-0.5], StopReason.MAX_TOKENS, 1)
    groups = [Group("a", [3], (rollout(plain),)), Group("b", [5], (rollout(plain), rollout(full)))]
    context = SimpleNamespace(trainer=trainer)
    source, weights = SampledBatches(context, None), WeightSync()
    source.state = DrawState(8, 0.5, groups)
    state = RoundState(2, 2, [{"step": 1.0}])
    save_state(Checkpoints(tmp_path), state, trainer, source, weights, None)
    again = SampledBatches(context, None)
    assert load_state(Checkpoints(tmp_path), trainer, again, weights) == state
    assert again.state == source.state
    assert type(again.state.carried[0].rollouts[0].sample) is Sample
    assert torch.equal(again.state.carried[1].rollouts[1].sample.distributions, rows)
