"""Each picture has a separate seed, and its true values are recorded if they are known."""

import numpy
import pandas
import pytest

from stages.foundations.errors import UserError
from stages.foundations.tables import PROMPT, read_table
from stages.images.algorithms.shape_world import true_score
from stages.images.engines.generators.generator import new_generator, save_generator
from stages.images.engines.generators.params import GeneratorSizes
from stages.images.engines.pictures.shards import pixels_of, read_image_rows, read_shards
from tests.fakes.one_stage import run_stage, write_prompts
from tests.fakes.picture_recipes import mini_shapes, shape_prompts


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Makes a folder with prompts and an untrained generator."""
    folder = tmp_path_factory.mktemp("given")
    prompts = read_table(shape_prompts(folder / "prompts.parquet"), PROMPT)["prompt"].tolist()
    sizes = GeneratorSizes.model_validate(mini_shapes()["t2i_base"]["sizes"])
    save_generator(new_generator(sizes, prompts, seed=1), folder / "generator")
    return folder


def run(folder, given, name="main", prompts=None, own=(), **changes):
    """Runs the stage for one generator and returns its rows with pixels, and its metrics."""
    params = mini_shapes()
    params["generate"] |= changes
    params["generators"][name] |= dict(own)
    places = {"generator": given / "generator", "prompts": prompts or given / "prompts.parquet"}
    metrics = run_stage(f"generate@{name}", folder, params, **places)
    rows = pandas.concat(read_shards(folder / "images"), ignore_index=True)
    rows["pixels"] = [pixels_of(png) for png in rows["png"]]
    return rows, metrics


def test_every_prompt_has_its_pictures_and_their_truth_is_told(tmp_path, given):
    rows, metrics = run(tmp_path, given, own={"images_per_prompt": 2, "splits": ["validation", "test"]})
    assert len(rows) == metrics["images/kept"] == 24 and rows["seed"].is_unique
    assert rows.groupby("prompt_id").size().eq(2).all() and set(rows["generator"]) == {"main"}
    assert len(list((tmp_path / "images").iterdir())) == 2  # 16 and 8
    table = read_table(given / "prompts.parquet", PROMPT).set_index("prompt_id")
    tested = rows[rows["prompt_id"].map(table["split"]) == "test"]
    scores = [true_score(row.pixels, row.prompt).alignment for row in tested.itertuples()]
    assert metrics["test/alignment"] == pytest.approx(numpy.mean(scores))


def test_a_picture_depends_on_its_own_seed_and_not_on_its_batch_or_neighbours(tmp_path, given):
    first, _ = run(tmp_path / "one", given)
    other, _ = run(tmp_path / "two", given, batch_images=7, images_per_shard=9)
    few, _ = run(tmp_path / "few", given, own={"splits": ["test"], "images_per_prompt": 2})
    guided, _ = run(tmp_path / "guided", given, name="guided")
    assert first["seed"].tolist() == other["seed"].tolist() == guided["seed"].tolist()
    assert set(few["seed"]) & set(first["seed"])
    for one, two in zip(first["pixels"], other["pixels"], strict=True):
        assert numpy.abs(one.astype(int) - two).max() <= 1
    shared = first.merge(few, on="seed")
    assert len(shared) == 8
    assert all(
        numpy.abs(x.astype(int) - y).max() <= 1 for x, y in zip(shared["pixels_x"], shared["pixels_y"], strict=True)
    )


def test_prompts_of_no_world_have_no_truth_and_stay_as_they_are(tmp_path, given):
    prompt = "<img src=x onerror=alert(1)> \u2603"
    write_prompts(tmp_path / "table", {prompt: "test"})
    rows, metrics = run(tmp_path, given, prompts=tmp_path / "table")
    assert rows["prompt"].tolist() == [prompt]
    assert metrics == {"images/kept": 1, "images/prompts": 1}
    assert read_image_rows(tmp_path / "images")["licence"].tolist() == ["generated"]
    with pytest.raises(UserError, match="no prompt is in the splits"):
        run(tmp_path, given, prompts=tmp_path / "table", own={"splits": ["train"]})
