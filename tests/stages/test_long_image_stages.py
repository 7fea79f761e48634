"""The long stages of the text-to-image branch, all with one miniature.

They are killed by SIGKILL at seeded moments, and run on ranks of DeepSpeed, in mixed precision, and on a folder in the
format of Stable Diffusion in diffusers.
"""

import json
import random

import numpy
import pandas
import pytest
import torch
import yaml
from diffusers import DDIMScheduler
from safetensors.torch import load_file

from stages.__main__ import main
from stages.foundations.files import dvc_md5
from stages.foundations.stage import declared_stage
from stages.foundations.tables import PAIR, PROMPT, RATING, read_table, write_table
from stages.images.engines.generators.generator import load_generator
from stages.images.engines.pictures.shards import pixels_of, read_shards
from tests.fakes.forks import changes_of, killed_at, on_ranks
from tests.fakes.one_stage import curve_of, pair_row, stage_flags
from tests.fakes.picture_recipes import mini_shapes, shape_prompts
from tests.fakes.stable_diffusion import write_stable_diffusion

RANKED = {"prompts": "prompts", "pairs": "pairs", "pool": "generate/images", "earlier_pool": "generate/images"}
STAGES = {
    "t2i_base": ("t2i_base@NAME", {}),
    "generate": ("generate@main", {"generator": "t2i_base/out"}),
    "scorer_base": ("scorer_base@NAME", {}),
    "reward_model": ("reward_model@round_1", {"scorer": "scorer_base/out"}),
    "refl": ("refl@refl_1", {"generator": "t2i_base/out", "scorer": "reward_model/out", "held_out": "scorer_base/out"}),
}
"""Address, and inputs below the miniature's folder, in the order in which they are made."""


def work(stage, miniature, folder, params=None, **changed):
    """Returns the stage's work with outputs in `folder`; `changed` are inputs in other places."""
    address, inputs = STAGES[stage]
    places = {name: miniature / place for name, place in (RANKED | inputs).items()} | changed
    places = {name: place for name, place in places.items() if name in declared_stage(stage).inputs}
    flags = stage_flags(address, folder, params=params or miniature / "params.yaml", **places)
    return lambda: main(flags)


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    """Runs the five stages of the recipe's miniature undisturbed; counts how often each changes a file."""
    folder, changes = tmp_path_factory.mktemp("miniature"), {}
    shape_prompts(folder / "prompts")
    write_params(folder / "params.yaml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETRACE_STATE", str(folder / "state"))
        for stage in STAGES:
            if stage == "reward_model":
                prefer_the_first(folder)
            (folder / stage).mkdir()
            changes[stage] = changes_of(work(stage, folder, folder / stage), folder)
    return folder, changes


def write_params(path, **changes):
    """Writes the miniature's parameters; changes only the named keys of a section, but replaces the whole `trainer`."""
    params = mini_shapes()
    params["generators"]["main"]["images_per_prompt"] = 2
    params["reward_model"]["head"]["dropouts"] = []  # drawn for each micro-batch, which ranks cut differently
    for section, own in changes.items():
        params[section] = own if section == "trainer" else params[section] | own
    path.write_text(yaml.safe_dump(params))
    return path


def prefer_the_first(folder):
    """Writes pairs of the two pictures of each prompt, whose preference depends only on their order."""
    images = pandas.concat(read_shards(folder / "generate/images"), ignore_index=True)
    prompts = read_table(folder / "prompts", PROMPT).set_index("prompt_id")
    pairs = [
        pair_row(prompt_id, *own["image_id"].iloc[:2], prompts.loc[prompt_id, "split"])
        for prompt_id, own in images.groupby("prompt_id")
        if own["image_id"].nunique() == 2
    ]
    write_table(pairs, folder / "pairs/pairs.parquet", PAIR)
    write_table([], folder / "pairs/ratings.parquet", RATING)


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_stage_ends_with_the_bytes_of_an_undisturbed_one(stage, miniature, tmp_path, capfd):
    whole, changes = miniature
    command, moments, most = work(stage, whole, tmp_path), random.Random(f"killed {stage}"), changes[stage]
    assert killed_at(command, tmp_path, moments.randrange(most // 3, 2 * most // 3))
    assert list((tmp_path / "state").glob("scratch/*/*")), "there is something to resume from"
    if killed_at(command, tmp_path, moments.randrange(most)):  # less work is left, so it may end earlier
        command()
    assert stage == "generate" or f"{stage}: resuming from step" in capfd.readouterr().err
    for name in declared_stage(stage).outputs:
        assert dvc_md5(tmp_path / name) == dvc_md5(whole / stage / name), name
    assert not list((tmp_path / "state").glob("scratch/*/*"))


def deepspeed(dtype):
    own = {"zero_stage": 2, "dtype": dtype, "offload_optimizer": False, "threads": 1}
    return own | {"kind": "deepspeed", "micro_batch_tokens": 64, "gradient_checkpointing": False}


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", ["reward_model", "refl"])
def test_deepspeed_learns_what_the_torch_trainer_does(stage, ranks, miniature, tmp_path):
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    params = write_params(tmp_path / "params.yaml", trainer=deepspeed("float32"))
    on_ranks(work(stage, miniature[0], tmp_path, params), ranks)
    curve, expected = curve_of(tmp_path), curve_of(miniature[0] / stage)
    assert len(curve) == len(expected)
    for row, other in zip(curve, expected, strict=True):
        for name in other.keys() & {"loss/train", "loss/total", "loss/feedback", "loss/validation"}:
            assert row[name] == pytest.approx(other[name], rel=2e-3), (name, row["step"])
        for name in {name for name in row.keys() | other.keys() if name.startswith("optim/gradient_norm")}:
            assert row[name] == pytest.approx(other[name], rel=0.02), (name, row["step"])
    assert not list((tmp_path / "state").glob("scratch/*/*"))


def raft(path, **changes):
    """Writes the miniature's parameters with RAFT: two updates a round, a checkpoint after each."""
    feedback = {"kind": "raft", "prompts": 3, "pictures_per_prompt": 3, "updates_per_round": 2}
    own = {"feedback": feedback, "evaluate_every_updates": 4}
    rounds = {"refl_1": mini_shapes()["refl_rounds"]["refl_1"] | {"updates": 5}}
    return write_params(path, refl=own, refl_rounds=rounds, **changes)


@pytest.fixture(scope="module")
def rafted(miniature, tmp_path_factory):
    """Runs RAFT undisturbed; counts how often it changes a file."""
    folder = tmp_path_factory.mktemp("rafted")
    return folder, changes_of(work("refl", miniature[0], folder, raft(folder / "params.yaml")), folder)


@pytest.mark.parametrize("part", [2, 3])
def test_raft_killed_within_a_round_ends_with_the_bytes_of_an_undisturbed_one(part, miniature, rafted, tmp_path):
    whole, changes = rafted
    command = work("refl", miniature[0], tmp_path, whole / "params.yaml")
    assert killed_at(command, tmp_path, part * changes // 5)
    command()
    for name in declared_stage("refl").outputs:
        assert dvc_md5(tmp_path / name) == dvc_md5(whole / name), name


def test_ranks_draw_the_same_pictures_for_raft(miniature, rafted, tmp_path):
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    params = raft(tmp_path / "params.yaml", trainer=deepspeed("float32"))
    on_ranks(work("refl", miniature[0], tmp_path, params), 2)
    for row, other in zip(curve_of(tmp_path)[1:], curve_of(rafted[0])[1:], strict=True):
        for name in ("loss/feedback", "reward/train", "reward/generated"):
            assert row[name] == pytest.approx(other[name], rel=2e-3, abs=2e-3), (name, row["step"])


@pytest.mark.parametrize("stage", ["t2i_base", "scorer_base", "reward_model", "refl"])
def test_mixed_precision_learns_and_what_is_saved_is_float32(stage, miniature, tmp_path):
    """The first losses show it: they differ from those in float32 by rounding, and are not equal."""
    trainer = mini_shapes()["trainer"] | {"dtype": "mixed"}
    work(stage, miniature[0], tmp_path, write_params(tmp_path / "params.yaml", trainer=trainer))()
    name = "loss/total" if stage == "refl" else "loss/train"
    first, expected = (
        next(row[name] for row in curve_of(folder) if name in row) for folder in (tmp_path, miniature[0] / stage)
    )
    assert first == pytest.approx(expected, rel=0.05) and first != expected
    weights = [load_file(path) for path in (tmp_path / "out").rglob("*.safetensors")]
    assert {weight.dtype for own in weights for weight in own.values()} == {torch.float32}


@pytest.mark.parametrize("kind", ["torch", "deepspeed"])
def test_the_average_follows_steps_that_bfloat16_does_not_feel(kind, miniature, tmp_path):
    if kind == "deepspeed":
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed")
    mini = mini_shapes()
    changes = {
        "refl": {"optimizer": mini["refl"]["optimizer"] | {"learning_rate": 1e-6}, "ema_decay": 0.0},
        "refl_rounds": {"refl_1": mini["refl_rounds"]["refl_1"] | {"selection": "last"}},
    }
    trainer = deepspeed("mixed") if kind == "deepspeed" else mini["trainer"] | {"dtype": "mixed"}
    params = write_params(tmp_path / "params.yaml", trainer=trainer, **changes)
    on_ranks(work("refl", miniature[0], tmp_path, params), 1)
    before, after = (
        load_file(folder / "out/unet/diffusion_pytorch_model.safetensors")["conv_in.weight"]
        for folder in (miniature[0] / "t2i_base", tmp_path)
    )
    assert 0 < (after - before).abs().max() < 1e-5
    assert (after != after.bfloat16().float()).any()


def test_a_folder_of_stable_diffusion_is_drawn_as_diffusers_draws_it_and_learns(miniature, tmp_path):
    pipeline = write_stable_diffusion(tmp_path / "sd")
    generator = load_generator(tmp_path / "sd", torch.device("cpu"))
    pipeline.scheduler = DDIMScheduler.from_config(generator.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    asked = {"num_inference_steps": 3, "guidance_scale": 5.0, "output_type": "np"}
    theirs = pipeline(["a red circle"], latents=generator.noise([7]), **asked).images[0]
    ours = generator.draw(["a red circle"], [7], steps=3, guidance=5.0)[0]
    assert numpy.abs(255 * theirs - ours).max() <= 1
    assert generator.scheduler.config.prediction_type == "epsilon"

    source = {"generator": tmp_path / "sd"}
    for stage in ("generate", "refl"):
        (tmp_path / stage).mkdir()
        work(stage, miniature[0], tmp_path / stage, **source)()
    drawn = next(read_shards(tmp_path / "generate/images"))
    assert pixels_of(drawn["png"].iloc[0]).shape == (16, 16, 3)
    before, after = (
        load_file(folder / "unet/diffusion_pytorch_model.safetensors")
        for folder in (tmp_path / "sd", tmp_path / "refl/out")
    )
    assert json.loads((tmp_path / "refl/metrics").read_text())["refl/updates"] == 3
    assert before.keys() == after.keys()
    for row in curve_of(tmp_path / "refl")[1:]:
        assert row["optim/gradient_norm_feedback"] > 0 and row["optim/gradient_norm_pretraining"] > 0
