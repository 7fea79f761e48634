"""Each long stage of the text-to-image branch, killed by SIGKILL at seeded moments, ends as an undisturbed run does."""

import random

import pandas
import pytest
import yaml

from stages.engines.images.shards import read_shards
from stages.foundations.hashing import dvc_md5
from stages.foundations.tables.pair import PAIR
from stages.foundations.tables.prompt import PROMPT
from stages.foundations.tables.rating import RATING
from stages.foundations.tables.table import read_table, write_table
from stages.generate.__main__ import main as generate
from stages.refl.__main__ import main as refl
from stages.reward_model.__main__ import main as reward_model
from stages.scorer_base.__main__ import main as scorer_base
from stages.t2i_base.__main__ import main as t2i_base
from tests.fakes.killing import changes_of, killed_at
from tests.fakes.shape_recipe import mini_shapes, shape_prompts

PROMPTS = {"prompts": "prompts.parquet"}
TRAINED = {"curves": "curve.csv", "metrics": "metrics.json", "headline": "headline.json"}
RANKED = {"pairs": "preferences", "pool": "generate/images"}
STAGES = {
    "t2i_base": (t2i_base, [], PROMPTS, {"out": "model", **TRAINED}),
    "generate": (
        generate,
        ["--name", "main"],
        {**PROMPTS, "generator": "t2i_base/model"},
        {"images": "images", "metrics": "metrics.json"},
    ),
    "scorer_base": (scorer_base, [], PROMPTS, {"out": "model", **TRAINED}),
    "reward_model": (
        reward_model,
        ["--round", "round_1"],
        {**RANKED, "earlier-pool": "generate/images", "scorer": "scorer_base/model"},
        {"out": "model", **TRAINED},
    ),
    "refl": (
        refl,
        ["--round", "refl_1"],
        {
            **PROMPTS,
            **RANKED,
            "generator": "t2i_base/model",
            "scorer": "reward_model/model",
            "held-out": "scorer_base/model",
        },
        {"out": "model", "pictures": "pictures.parquet", **TRAINED},
    ),
}
"""Command, options, inputs below the miniature's folder and outputs, in the order in which they are made."""


def work(stage, miniature, folder):
    main, options, inputs, outputs = STAGES[stage]
    flags = [*options, "--params", str(miniature / "params.yaml")]
    for root, places in ((miniature, inputs), (folder, outputs)):
        flags += [part for name, place in places.items() for part in (f"--{name}", str(root / place))]
    return lambda: main(flags)


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    """The recipe's miniature, its five stages run undisturbed; and how often each of them changes a file."""
    folder, changes = tmp_path_factory.mktemp("miniature"), {}
    shape_prompts(folder / "prompts.parquet")
    params = mini_shapes()
    params["generators"]["main"]["images_per_prompt"] = 2
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETRACE_STATE", str(folder / "state"))
        for stage in STAGES:
            if stage == "reward_model":
                prefer_the_first(folder)
            (folder / stage).mkdir()
            changes[stage] = changes_of(work(stage, folder, folder / stage), folder)
    return folder, changes


def prefer_the_first(folder):
    """Pairs of the two pictures of each prompt, which tell nothing but where they stand."""
    images = pandas.concat(read_shards(folder / "generate/images"), ignore_index=True)
    prompts = read_table(folder / "prompts.parquet", PROMPT).set_index("prompt_id")
    pairs = [
        {
            "prompt_id": prompt_id,
            "annotator_id": "one",
            "better_image_id": own["image_id"].iloc[0],
            "worse_image_id": own["image_id"].iloc[1],
            "weight": 1.0,
            "split": prompts.loc[prompt_id, "split"],
        }
        for prompt_id, own in images.groupby("prompt_id")
        if own["image_id"].nunique() == 2
    ]
    write_table(pairs, folder / "preferences/pairs.parquet", PAIR)
    write_table([], folder / "preferences/ratings.parquet", RATING)


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_stage_ends_with_the_bytes_of_an_undisturbed_one(stage, miniature, tmp_path, capfd):
    whole, changes = miniature
    command, moments, most = work(stage, whole, tmp_path), random.Random(f"killed {stage}"), changes[stage]
    assert killed_at(command, tmp_path, moments.randrange(most // 3, 2 * most // 3))
    assert list((tmp_path / "state").glob("scratch/*/*")), "there is something to go on from"
    if killed_at(
        command, tmp_path, moments.randrange(most)
    ):  # there is less left to do, so it may end before
        command()
    assert stage == "generate" or f"{stage}: going on from step" in capfd.readouterr().err
    for name in STAGES[stage][3].values():
        assert dvc_md5(tmp_path / name) == dvc_md5(whole / stage / name), name
    assert not list((tmp_path / "state").glob("scratch/*/*"))
