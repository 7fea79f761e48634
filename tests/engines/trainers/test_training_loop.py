"""The loop of training stages and its checkpoints: an interrupted run ends with the weights of an uninterrupted one."""

import itertools

import pytest
from safetensors.torch import load_file

from stages.engines.trainers.checkpoints import Checkpoints
from stages.engines.trainers.training_loop import Schedule, best_row, train_and_keep_best
from stages.foundations.files import replace_folder
from stages.observe.tracking import Run
from tests.engines.test_pieces import cut, flip, lose
from tests.engines.trainers.test_torch_trainer import assert_same, make_trainer, weights_of
from tests.fakes.small_models import REWARD

SCHEDULE = Schedule(
    steps=7, warmup_steps=2, final_learning_rate_fraction=0.1, validate_every_steps=2, checkpoint_every_steps=3
)
LOSSES = {2: 0.5, 4: 0.3, 6: 0.4, 7: 0.6}
"""Validation loss by step: the best is neither the first nor the last."""


def train(scratch, stop_at=None):
    """Returns curve, folder of the best weights, and weights after each step; stops before step `stop_at`."""
    trainer, seen = make_trainer(REWARD.model()), {}

    def update(step, scale):
        if step == stop_at:
            raise KeyboardInterrupt
        done = trainer.update(REWARD.micro_batches, REWARD.loss, scale)
        seen[step + 1] = weights_of(trainer)
        return {"loss/train": done.loss}

    curve, best = train_and_keep_best(
        "test",
        SCHEDULE,
        trainer,
        Checkpoints(scratch),
        Run(None),
        update,
        lambda: {"loss/validation": LOSSES[max(seen)]},
    )
    return curve, best, seen


def test_the_schedule_warms_up_and_ends_at_its_fraction():
    scales = [SCHEDULE.learning_rate_scale(step) for step in range(SCHEDULE.steps)]
    assert scales[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert scales[2:] == sorted(scales[2:], reverse=True)
    assert scales[-1] == pytest.approx(0.1)


def test_the_weights_of_the_lowest_validation_loss_are_kept(tmp_path):
    curve, best, seen = train(tmp_path / "scratch")
    assert [row["step"] for row in curve] == list(range(1, 8))
    assert {row["step"]: row["loss/validation"] for row in curve if "loss/validation" in row} == LOSSES
    assert best_row(curve)["step"] == 4
    assert_same(load_file(best / "model.safetensors"), seen[4])


@pytest.mark.parametrize("stop_at", range(2, 7))
def test_a_run_that_is_cut_off_goes_on_from_its_last_checkpoint(tmp_path, stop_at):
    straight, best, seen = train(tmp_path / "straight")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "broken", stop_at)
    again, kept, later = train(tmp_path / "broken")
    last = max(step for step in (2, 3, 4, 6) if step <= stop_at)
    assert sorted(later) == list(range(last + 1, 8))
    assert again == straight
    assert_same(later[7], seen[7])
    assert_same(load_file(kept / "model.safetensors"), load_file(best / "model.safetensors"))


def test_of_equal_losses_the_first_is_the_best():
    rows = [{"step": step, "loss/validation": loss} for step, loss in zip(itertools.count(1), [0.4, 0.3, 0.3])]
    assert best_row([{"step": 0}, *rows])["step"] == 2


def save(checkpoints, step):
    with replace_folder(checkpoints.folder(step)) as folder:
        (folder / "rank_0").mkdir()
        (folder / "rank_0" / "weights").write_text("w" * 100)
        (folder / "state").write_text(str(step))


def test_the_last_whole_checkpoint_counts(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    for step in (9, 10):
        save(checkpoints, step)
        checkpoints.keep_last()
    with pytest.raises(RuntimeError), replace_folder(checkpoints.folder(11)):
        raise RuntimeError
    assert checkpoints.latest() == (10, checkpoints.folder(10))
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-000000010"]
    checkpoints.clear()
    assert checkpoints.latest() is None


@pytest.mark.parametrize("damage", [cut, flip, lose])
def test_a_damaged_checkpoint_is_told_about_and_passed_over(tmp_path, capfd, damage):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.keep_last()
    damage(checkpoints.folder(1) / "rank_0" / "weights")
    assert checkpoints.latest() is None
    assert "step-000000001 is not used" in "".join(capfd.readouterr())


def test_a_run_killed_before_the_seal_goes_on_from_the_checkpoint_before(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.keep_last()
    save(checkpoints, 2)
    assert checkpoints.latest() == (1, checkpoints.folder(1))
