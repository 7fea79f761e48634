"""The torch trainer on models that are no language models: it learns them, stops and goes on, and saves them."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from stages.engines.trainers.params import AdamwParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.foundations.errors import UserError
from tests.engines.trainers.test_torch_trainer import MUON, PARAMS
from tests.fakes.small_models import LESSONS, PICTURE, REWARD, Rows, trained_model

ADAMW = AdamwParams(kind="adamw", learning_rate=0.003, beta1=0.9, beta2=0.95, weight_decay=0.01)
LESSON = pytest.mark.parametrize("lesson", LESSONS.values(), ids=LESSONS)


def make_trainer(model, optimizer=ADAMW):
    return TorchTrainer(PARAMS, optimizer, 1.0, model)


def weights_of(trainer):
    return {name: weight.clone() for name, weight in trainer.named_weights()}


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@LESSON
def test_the_loss_goes_down(lesson):
    trainer = make_trainer(lesson.model())
    losses = [trainer.update(lesson.micro_batches, lesson.loss, 1.0).loss for _ in range(20)]
    assert losses[-1] < 0.7 * losses[0]


def test_one_step_raises_the_score_of_the_preferred_above_the_other():
    (pair,) = [batch for batch in REWARD.micro_batches if len(batch.first) == 3]
    trainer = make_trainer(REWARD.model())
    before = trainer.evaluate(pair)
    trainer.update([pair], REWARD.loss, 0.01)
    after = trainer.evaluate(pair)
    assert not after[0].requires_grad
    assert ((after[0] - after[1]) > (before[0] - before[1])).all()


@LESSON
def test_the_gradient_is_that_of_the_whole_batch_in_plain_torch(lesson):
    model = lesson.model()
    whole = Rows(
        *(torch.cat(parts) for parts in zip(*((b.first, b.second) for b in lesson.micro_batches), strict=True))
    )
    share, _ = lesson.loss(model.forward(model.module, whole), whole)
    norm = nn.utils.get_total_norm(torch.autograd.grad(share, list(model.module.parameters())))
    update = make_trainer(lesson.model()).update(lesson.micro_batches, lesson.loss, 1.0)
    assert update.loss == pytest.approx(float(share.detach()), rel=1e-5)
    assert update.gradient_norm == pytest.approx(float(norm), rel=1e-4)


@LESSON
def test_a_checkpoint_continues_bit_for_bit(lesson, tmp_path):
    straight, broken_off, resumed = (make_trainer(lesson.model()) for _ in range(3))
    for _ in range(4):
        straight.update(lesson.micro_batches, lesson.loss, 1.0)
    for _ in range(2):
        broken_off.update(lesson.micro_batches, lesson.loss, 1.0)
    broken_off.save_checkpoint(tmp_path)
    resumed.load_checkpoint(tmp_path)
    for _ in range(2):
        resumed.update(lesson.micro_batches, lesson.loss, 1.0)
    assert_same(weights_of(straight), weights_of(resumed))


@LESSON
def test_it_is_saved_in_its_own_way(lesson, tmp_path):
    trainer = make_trainer(lesson.model())
    trainer.update(lesson.micro_batches, lesson.loss, 1.0)
    trainer.save_model(tmp_path)
    assert_same(load_file(tmp_path / "model.safetensors"), weights_of(trainer))


def test_muon_takes_the_matrices_between_the_ends():
    trainer = make_trainer(REWARD.model(), MUON)
    muon, adamw = trainer.optimizers
    weights = dict(trainer.model.module.named_parameters())
    assert [id(weight) for weight in muon.param_groups[0]["params"]] == [id(weights["2.weight"])]
    rest = {id(weight) for name, weight in weights.items() if name != "2.weight"}
    assert {id(weight) for weight in adamw.param_groups[0]["params"]} == rest


def test_muon_without_a_matrix_is_refused_with_the_remedy():
    with pytest.raises(UserError, match="no layer of the model is a matrix"):
        make_trainer(LESSONS["denoising"].model(), MUON)


def batch_normed():
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Conv2d(4, 1, 1))

    return trained_model(make, lambda module, pictures: module(pictures.first), PICTURE)


def test_statistics_that_a_model_keeps_are_part_of_it(tmp_path):
    lesson = LESSONS["denoising"]
    trainer, resumed = make_trainer(batch_normed()), make_trainer(batch_normed())
    trainer.update(lesson.micro_batches, lesson.loss, 1.0)
    learned = weights_of(trainer)
    assert learned["1.num_batches_tracked"] == 3  # the empty one is passed over
    trainer.evaluate(lesson.micro_batches[0])
    assert_same(learned, weights_of(trainer))
    trainer.save_checkpoint(tmp_path)
    resumed.load_checkpoint(tmp_path)
    assert_same(learned, weights_of(resumed))
