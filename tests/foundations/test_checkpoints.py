"""Checkpoints: the last whole one counts."""

import pytest

from stages.foundations.checkpoints import Checkpoints
from stages.foundations.files import replace_folder


def test_the_last_whole_checkpoint_counts(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    for step in (9, 10):
        with replace_folder(checkpoints.folder(step)) as folder:
            (folder / "state").write_text(str(step))
    with pytest.raises(RuntimeError), replace_folder(checkpoints.folder(11)):
        raise RuntimeError
    assert checkpoints.latest() == (10, checkpoints.folder(10))
    checkpoints.keep_last()
    assert [folder.name for folder in tmp_path.iterdir()] == ["step-000000010"]
    checkpoints.clear()
    assert checkpoints.latest() is None
