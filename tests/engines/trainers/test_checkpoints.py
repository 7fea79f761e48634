"""Checkpoints: the last whole one counts, a damaged one is told about and passed over."""

import pytest

from stages.engines.trainers.checkpoints import Checkpoints
from stages.foundations.files import replace_folder


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


def truncate(folder):
    with open(folder / "rank_0" / "weights", "r+b") as file:
        file.truncate(50)


def flip(folder):
    (folder / "rank_0" / "weights").write_text("w" * 99 + "v")


def lose(folder):
    (folder / "state").unlink()


@pytest.mark.parametrize("damage", [truncate, flip, lose])
def test_a_damaged_checkpoint_is_told_about_and_passed_over(tmp_path, capfd, damage):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.keep_last()
    damage(checkpoints.folder(1))
    assert checkpoints.latest() is None
    assert "step-000000001 is not used" in "".join(capfd.readouterr())


def test_a_run_killed_before_the_seal_goes_on_from_the_checkpoint_before(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    checkpoints.keep_last()
    save(checkpoints, 2)
    assert checkpoints.latest() == (1, checkpoints.folder(1))
