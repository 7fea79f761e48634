"""Published weights become a scorer without being unpickled, all of them, and score as upstream's code does."""

import gzip
import json
import os
import pickle
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image

from stages.engines.image_scorers.released_weights import released_scorer, renamed
from stages.engines.image_scorers.scorer import load_scorer, save_scorer
from stages.foundations.errors import UserError
from tests.fakes.released_blip import WORDS, published_reward, published_weights

SHARED = Path(__file__).resolve().parents[3].parent / "shared" / "data" / "image_prefs"


def write_files(folder, weights):
    torch.save(weights, folder / "published.pt")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder / "published.pt", folder / "vocab.txt"


def normalised(scorer, images):
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (scorer.config.pixel_mean, scorer.config.pixel_std))
    return (images - mean) / std


def test_the_score_is_that_of_upstreams_arithmetic_to_the_bit(tmp_path):
    weights = published_weights()
    scorer = released_scorer(*write_files(tmp_path, weights))
    save_scorer(scorer, tmp_path / "scorer")
    scorer = load_scorer(tmp_path / "scorer", "cpu")
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    prompts = ["a red circle", "two blue circles", "a square"]
    tokens = scorer.encode_prompts(prompts)
    assert tokens.ids.tolist()[1] == [2, 11, 7, 8, 9, 3]  # [CLS] two blue circle ##s [SEP]
    expected = published_reward(weights, normalised(scorer, images), tokens.ids, tokens.mask)
    assert torch.equal(scorer.score(images, prompts), expected)


def test_all_610_tensors_of_both_encoders_of_the_large_model_get_a_name():
    large = published_weights(layers=1)
    names = set()
    for name in large:
        for number in range(24 if "visual_encoder.blocks" in name else 12 if "encoder.layer" in name else 1):
            names.add(name.replace("blocks.0.", f"blocks.{number}.").replace("layer.0.", f"layer.{number}."))
    new = renamed(dict.fromkeys(names, torch.zeros(())))
    encoders = [name for name in new if name.startswith(("vision.", "text."))]
    assert len(encoders) == 610
    assert len(new) == 610 + 10  # and the reward head


def test_an_unknown_tensor_and_a_missing_one_are_named(tmp_path):
    weights = published_weights() | {"blip.visual_encoder.extra": torch.zeros(1)}
    with pytest.raises(UserError, match=r"unknown tensor visual_encoder\.extra"):
        released_scorer(*write_files(tmp_path, weights))
    weights = published_weights()
    del weights["blip.text_encoder.encoder.layer.1.crossattention.self.key.bias"]
    with pytest.raises(UserError, match=r"crossattention\.self\.key\.bias is missing"):
        released_scorer(*write_files(tmp_path, weights))


def test_blips_own_file_has_the_other_two_heads_and_what_training_left_in_it(tmp_path):
    encoders = {
        name.removeprefix("blip."): tensor
        for name, tensor in published_weights().items()
        if not name.startswith("mlp.")
    }
    encoders |= {name.replace("visual_encoder.", "visual_encoder_m."): tensor for name, tensor in encoders.items()}
    encoders |= {"itm_head.weight": torch.ones(2, 64), "itm_head.bias": torch.zeros(2), "temp": torch.tensor(0.05)}
    encoders |= {"text_decoder.cls.bias": torch.zeros(2), "image_queue": torch.zeros(2), "ptr_queue": torch.zeros(1)}
    scorer = released_scorer(*write_files(tmp_path, {"model": encoders, "config": {"epochs": 20}}))
    assert scorer.config.has_matching_head and scorer.config.matching_token_id == 30523
    assert scorer.config.projection_size == 8 and scorer.config.reward_head is None


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/retrace-was-here",)


def test_a_file_that_wants_to_run_code_is_refused(tmp_path):
    files = write_files(tmp_path, {"blip.visual_encoder.cls_token": Hostile()})
    with pytest.raises(UserError, match="without running code"):
        released_scorer(*files)
    (tmp_path / "published.pt").write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(UserError, match="without running code"):
        released_scorer(*files)
    assert not Path("/tmp/retrace-was-here").exists()


def test_the_four_golden_scores_of_the_released_model():
    file, vocabulary = SHARED / "weights" / "ImageReward.pt", SHARED / "weights" / "vocab.txt"
    if not (file.exists() and vocabulary.exists()):
        pytest.skip(f"{file} and the vocabulary of bert-base-uncased beside it are not here: 1.8 GB, not downloaded")
    scorer = released_scorer(file, vocabulary).eval()
    with gzip.open(SHARED / "imagereward_readme_example.jsonl.gz", "rt") as file:
        examples = [json.loads(line) for line in file]
    for example, expected in zip(examples, (0.5812, 0.2745, -1.4132, -2.0296), strict=True):
        picture = Image.open(SHARED / example["image"]).convert("RGB")
        resized = picture.resize((224, 224), Image.Resampling.BICUBIC)  # they are square
        pixels = torch.from_numpy(numpy.array(resized)).permute(2, 0, 1)[None].float() / 255
        with torch.no_grad():
            assert scorer.score(pixels, [example["prompt"]]).item() == pytest.approx(expected, abs=1e-3)
