"""The base scorer: trained on captions of the shape world, converted from released weights, or from a folder."""

import numpy
import pytest
import torch

from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, sha256_of
from stages.foundations.tables import PROMPT, write_table
from stages.images.algorithms.shape_world import all_prompts
from stages.images.engines.image_scorers.scorer import load_scorer, save_scorer
from stages.images.scorer_base.teaching import drawn_rows, render_captions
from tests.fakes.one_stage import curve_of, run_stage
from tests.fakes.picture_recipes import mini_shapes
from tests.fakes.ranked_pictures import PARAMS, tiny_scorer
from tests.fakes.released_blip import published_weights, write_published

TAUGHT = mini_shapes()["scorer_base"] | {
    "max_text_tokens": 14,
    "initializer_range": 0.2,
    "position_range": 0.2,
    "false_captions": 1,
    "max_pixel_noise": 0.05,
    "steps": 60,
    "batch_captions": 12,
    "warmup_steps": 5,
    "final_learning_rate_fraction": 0.1,
    "validate_every_steps": 20,
    "checkpoint_every_steps": 15,
    "optimizer": {"kind": "adamw", "learning_rate": 0.005, "beta1": 0.9, "beta2": 0.98, "weight_decay": 0.0},
}
OBJECTS = [prompt for prompt, scene in all_prompts().items() if scene.kind == "object"]


def run(folder, section, prompts=None):
    rows = prompts or [*((one, "train") for one in OBJECTS), *((one, "validation") for one in OBJECTS[:4])]
    table = [
        {"prompt_id": str(number), "prompt": prompt, "split": split, "source": "test"}
        for number, (prompt, split) in enumerate(rows)
    ]
    write_table(table, folder / "prompts", PROMPT)
    return run_stage("scorer_base@NAME", folder, PARAMS | {"scorer_base": section})


def test_it_learns_which_caption_belongs_to_which_picture(tmp_path):
    metrics = run(tmp_path, TAUGHT)
    rows = curve_of(tmp_path)
    validated = [row["loss/validation"] for row in rows if "loss/validation" in row]
    assert len(rows) == 60 and len(validated) == 3
    assert validated[-1] < validated[0]
    assert metrics["loss/validation"] == min(validated)
    assert metrics["caption_accuracy/clip"] > 0.6  # chance is 0.5
    scorer = load_scorer(tmp_path / "out", "cpu")
    assert metrics["scorer/parameters"] == sum(weight.numel() for weight in scorer.parameters())
    assert torch.isfinite(scorer.score(torch.rand(2, 3, 24, 24), OBJECTS[:2], "blip")).all()


def test_a_batch_depends_on_seed_and_step_alone():
    captions = render_captions(OBJECTS, OBJECTS, 2, seed=0)
    first, second = (drawn_rows(captions, 7, 4, 2, 0.1, seed=0) for _ in range(2))
    assert torch.equal(first[0], second[0]) and first[1:] == second[1:]
    assert not torch.equal(first[0], drawn_rows(captions, 8, 4, 2, 0.1, seed=0)[0])
    assert len(set(first[1])) == 4
    for caption, false in zip(first[1], first[2], strict=True):
        assert len(set(false)) == 2 and caption not in false
    assert numpy.ptp(first[0].numpy()) > 0.3


def test_prompts_of_another_world_are_told(tmp_path):
    with pytest.raises(UserError, match="shape world has no prompt 'a cat'"):
        prompts = [("a cat", "train"), ("a red circle", "train"), ("a red circle", "validation")]
        run(tmp_path, TAUGHT | {"batch_captions": 2}, prompts)


def test_fewer_captions_than_a_batch_and_no_validation_are_told(tmp_path):
    with pytest.raises(UserError, match="no prompts of split validation"):
        run(tmp_path, TAUGHT, [(one, "train") for one in OBJECTS])
    with pytest.raises(UserError, match="batch_captions is 13, but there are 12"):
        run(tmp_path, TAUGHT | {"batch_captions": 13})


def test_released_weights_are_converted_once_if_they_are_those_that_are_named(tmp_path):
    file, vocabulary = write_published(tmp_path, published_weights())
    section = {"kind": "released", "path": str(file), "sha256": "0" * 64, "tokenizer": str(vocabulary)}
    with pytest.raises(UserError, match=r"has sha256 .* not 000.*scorer_base\.sha256"):
        run(tmp_path, section)
    run(tmp_path, section | {"sha256": sha256_of(file)})
    file.unlink()
    scorer = load_scorer(tmp_path / "out", "cpu")
    assert torch.isfinite(scorer.score(torch.rand(1, 3, 50, 40), ["a red circle"])).all()
    with pytest.raises(UserError, match="does not exist: download"):
        run(tmp_path, section)


def test_a_folder_is_taken_as_it_is(tmp_path):
    save_scorer(tiny_scorer(), tmp_path / "own")
    run(tmp_path, {"kind": "folder", "path": str(tmp_path / "own")})
    assert dvc_md5(tmp_path / "out") == dvc_md5(tmp_path / "own")
