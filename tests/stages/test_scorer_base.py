"""The base scorer: taught captions of the shape world, converted from released weights, or taken from a folder."""

import csv
import json

import numpy
import pytest
import torch
import yaml

from stages.__main__ import main
from stages.algorithms.shape_world import all_prompts
from stages.engines.image_scorers.scorer import load_scorer, save_scorer
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, sha256_of
from stages.foundations.tables import PROMPT, write_table
from stages.scorer_base.teaching import drawn_rows, render_captions
from tests.fakes.picture_recipes import mini_shapes
from tests.fakes.ranked_pictures import PARAMS, tiny_scorer
from tests.fakes.released_blip import WORDS, published_weights

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


def flags(folder, section, prompts=None):
    folder.mkdir(exist_ok=True)
    rows = prompts or [*((one, "train") for one in OBJECTS), *((one, "validation") for one in OBJECTS[:4])]
    table = [
        {"prompt_id": str(number), "prompt": prompt, "split": split, "source": "test"}
        for number, (prompt, split) in enumerate(rows)
    ]
    write_table(table, folder / "prompts.parquet", PROMPT)
    (folder / "params.yaml").write_text(yaml.safe_dump(PARAMS | {"scorer_base": section}))
    named = {
        "params": "params.yaml",
        "prompts": "prompts.parquet",
        "out": "base",
        "curves": "curves.csv",
        "metrics": "metrics.json",
        "headline": "headline.json",
    }
    return ["scorer_base@NAME", *(part for name, place in named.items() for part in (f"--{name}", str(folder / place)))]


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scorer_base") / "taught"
    main(flags(folder, TAUGHT))
    return folder


def test_it_learns_which_caption_belongs_to_which_picture(taught):
    rows = list(csv.DictReader((taught / "curves.csv").open()))
    validated = [float(row["loss/validation"]) for row in rows if row["loss/validation"]]
    assert len(rows) == 60 and len(validated) == 3
    assert validated[-1] < validated[0]
    metrics = json.loads((taught / "metrics.json").read_text())
    assert metrics["loss/validation"] == min(validated)
    assert metrics["caption_accuracy/clip"] > 0.6  # chance is 0.5
    scorer = load_scorer(taught / "base", "cpu")
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
        main(flags(tmp_path, TAUGHT | {"batch_captions": 2}, [("a cat", "train"), ("a red circle", "train")] * 2
                   + [("a red circle", "validation")]))  # fmt: skip


def test_fewer_captions_than_a_batch_and_no_validation_are_told(tmp_path):
    with pytest.raises(UserError, match="no prompts of split validation"):
        main(flags(tmp_path, TAUGHT, [(one, "train") for one in OBJECTS]))
    with pytest.raises(UserError, match="batch_captions is 13, but there are 12"):
        main(flags(tmp_path, TAUGHT | {"batch_captions": 13}))


def test_released_weights_are_converted_once_if_they_are_those_that_are_named(tmp_path):
    torch.save(published_weights(), tmp_path / "published.pt")
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    section = {"kind": "released", "path": str(tmp_path / "published.pt")}
    section |= {"sha256": "0" * 64, "tokenizer": str(tmp_path / "vocab.txt")}
    with pytest.raises(UserError, match=r"has sha256 .* scorer_base\.sha256 is 000"):
        main(flags(tmp_path, section))
    main(flags(tmp_path, section | {"sha256": sha256_of(tmp_path / "published.pt")}))
    (tmp_path / "published.pt").unlink()
    scorer = load_scorer(tmp_path / "base", "cpu")
    assert torch.isfinite(scorer.score(torch.rand(1, 3, 50, 40), ["a red circle"])).all()
    with pytest.raises(UserError, match="does not exist: download"):
        main(flags(tmp_path, section))


def test_a_folder_is_taken_as_it_is(tmp_path):
    save_scorer(tiny_scorer(), tmp_path / "own")
    main(flags(tmp_path, {"kind": "folder", "path": str(tmp_path / "own")}))
    assert dvc_md5(tmp_path / "base") == dvc_md5(tmp_path / "own")
