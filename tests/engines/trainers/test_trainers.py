"""What the torch trainer and DeepSpeed's both promise: a reset, losses that are no number, what a model keeps."""

import importlib.util

import pytest
import torch
from torch import nn

from stages.engines.policies.language_model import language_model
from stages.engines.trainers.build import build_trainer
from tests.engines.deepspeed_ranks import deepspeed_params
from tests.engines.trainers.test_torch_trainer import BATCHES, assert_same, likelihood, weights_of
from tests.fakes.engine_params import ADAMW, MUON, TORCH_TRAINER
from tests.fakes.small_models import LESSONS, PICTURE, trained_model

# Searched, not imported: every worker collects this file, and the import takes three seconds.
NO_DEEPSPEED = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


def zero(stage, dtype="float32"):
    return pytest.param(deepspeed_params(stage, dtype), ADAMW, marks=NO_DEEPSPEED, id=f"zero {stage} {dtype}")


ADAMW_OF_TORCH = pytest.param(TORCH_TRAINER, ADAMW, id="torch adamw")
MUON_OF_TORCH = pytest.param(TORCH_TRAINER, MUON, id="torch muon")


def trainers(*kinds):
    return pytest.mark.parametrize(("params", "optimizer"), kinds)


@trainers(ADAMW_OF_TORCH, MUON_OF_TORCH, zero(0), zero(1, "mixed"), zero(3))
def test_after_a_reset_of_the_optimizer_the_next_update_is_that_of_a_new_trainer(policy, tmp_path, params, optimizer):
    trainer = build_trainer(params, optimizer, 1.0, language_model(policy, params))
    trainer.reset_optimizer()  # there is no state yet
    for _ in range(2):
        trainer.update(BATCHES, likelihood, 1.0)
    trainer.save_model(tmp_path)
    trainer.reset_optimizer()
    trainer.update(BATCHES, likelihood, 1.0)
    own = weights_of(trainer)
    trainer.close()
    new = build_trainer(params, optimizer, 1.0, language_model(tmp_path, params))
    new.update(BATCHES, likelihood, 1.0)
    assert_same(own, weights_of(new))
    new.close()


def without_gradient(statistics, batch):
    """The loss alone is no number: its gradient is zero."""
    loss, shown = likelihood(statistics, batch)
    return torch.where(torch.tensor(False), loss, float("nan")), shown


@trainers(ADAMW_OF_TORCH, zero(0), zero(2))
def test_a_broken_loss_or_a_learning_rate_of_zero_leaves_the_weights_alone(policy, params, optimizer):
    trainer = build_trainer(params, optimizer, 1.0, language_model(policy, params))
    before = weights_of(trainer)
    for broken in (without_gradient, lambda statistics, _: (statistics.logprobs.sum() * float("nan"), {})):
        with pytest.raises(FloatingPointError, match="loss nan"):
            trainer.update(BATCHES, broken, 1.0)
        assert_same(before, weights_of(trainer))
    trainer.update(BATCHES, likelihood, 0.0)
    assert_same(before, weights_of(trainer))
    trainer.close()


def batch_normed():
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1))

    return trained_model(make, lambda module, pictures: module(pictures.first), PICTURE)


@trainers(ADAMW_OF_TORCH, *map(zero, range(4)))
def test_statistics_that_a_model_keeps_are_part_of_it(tmp_path, params, optimizer):
    lesson, is_torch = LESSONS["denoising"], params is TORCH_TRAINER
    trainer = build_trainer(params, optimizer, 1.0, batch_normed())
    # DeepSpeed computes every micro-batch, because ranks wait for each other; the torch trainer skips the empty one.
    trainer.update(lesson.micro_batches if is_torch else lesson.micro_batches[:2], lesson.loss, 1.0)
    learned = weights_of(trainer)
    assert learned["1.num_batches_tracked"] == (3 if is_torch else 2)
    trainer.evaluate(lesson.micro_batches[0])
    assert_same(learned, weights_of(trainer))
    trainer.save_checkpoint(tmp_path)
    trainer.close()
    resumed = build_trainer(params, optimizer, 1.0, batch_normed())
    resumed.load_checkpoint(tmp_path)
    assert_same(learned, weights_of(resumed))
    resumed.close()
