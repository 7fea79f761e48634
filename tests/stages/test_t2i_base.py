"""The base generator learns, or comes from a folder."""

from types import SimpleNamespace

import pytest

from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5
from stages.images.t2i_base.run import _parts
from tests.fakes.one_stage import curve_of, run_stage
from tests.fakes.picture_recipes import mini_shapes, shape_prompts


def run(folder, prompts, **changes):
    """Runs the stage with changes to section t2i_base and returns its metrics."""
    params = mini_shapes()
    params["t2i_base"] = changes if "kind" in changes else params["t2i_base"] | changes
    return run_stage("t2i_base@NAME", folder, params, prompts=prompts)


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    return shape_prompts(tmp_path_factory.mktemp("prompts") / "prompts.parquet")


def test_it_learns(tmp_path, prompts):
    metrics = run(tmp_path, prompts, steps=60, batch_images=8, micro_batch_images=8, checkpoint_every_steps=60)
    curve = [row["loss/validation"] for row in curve_of(tmp_path) if "loss/validation" in row]
    assert metrics["loss/validation_last"] == curve[-1] < 0.7 * curve[0]
    assert metrics["progress/steps"] == 60 and metrics["image/side"] == 24


def test_a_folder_gives_the_generator_that_it_holds_and_nothing_else(tmp_path, prompts):
    run(tmp_path / "trained", prompts)
    source = tmp_path / "trained" / "out"
    (source / "safety_checker").mkdir()
    (source / "safety_checker" / "pytorch_model.bin").write_bytes(b"pickle")
    metrics = run(tmp_path / "copied", prompts, kind="folder", path=str(source))
    copied = tmp_path / "copied" / "out"
    assert dvc_md5(copied / "unet") == dvc_md5(source / "unet") and not (copied / "safety_checker").exists()
    assert metrics["parameters/unet"] > 1000 and "loss/train_last" not in metrics


def test_prompts_of_another_world_and_wrong_sizes_are_told(tmp_path, prompts):
    foreign = shape_prompts(tmp_path / "foreign.parquet", also=["a cat"])
    with pytest.raises(UserError, match="has no 'a cat'"):
        run(tmp_path / "foreign", foreign)
    with pytest.raises(UserError, match="image_side must be 24"):
        run(tmp_path / "sizes", prompts, sizes=mini_shapes()["t2i_base"]["sizes"] | {"image_side": 32})
    with pytest.raises(UserError, match="not a generator"):
        run(tmp_path / "none", prompts, kind="folder", path=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(("ranks", "micro"), [(1, 3), (1, 32), (2, 3), (3, 1), (4, 4), (8, 1)])
def test_ranks_share_a_batch_evenly(ranks, micro):
    examples = [("a red circle", number) for number in range(8)]
    shares = [_parts(examples, micro, SimpleNamespace(rank=rank, world_size=ranks)) for rank in range(ranks)]
    assert len({len(share) for share in shares}) == 1
    parts = [part for share in shares for part in share]
    assert sorted(one for part in parts for one in part) == examples and all(parts)
    assert max(map(len, parts)) <= micro or ranks * len(shares[0]) > len(examples) - ranks
