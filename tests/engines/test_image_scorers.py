"""Scorers: one differentiable score, equal alone and in a batch, strict saving and loading; published weights."""

import gzip
import json
import os
import pickle
from pathlib import Path

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of
from stages.images.engines.image_scorers.aesthetic import load_aesthetic
from stages.images.engines.image_scorers.config import AestheticParams
from stages.images.engines.image_scorers.released_weights import released_scorer, renamed
from stages.images.engines.image_scorers.scorer import fit_to_square, load_scorer, save_scorer
from tests.fakes.published_aesthetic import ONE_LAYER, STACK, published_aesthetic, published_score, write_aesthetic
from tests.fakes.ranked_pictures import PROMPTS, tiny_scorer
from tests.fakes.released_blip import published_blip, published_reward, published_weights, write_published

VARIANTS = ["clip", "blip", "reward"]


@pytest.fixture
def images():
    return torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_picture_scores_the_same_alone_and_beside_longer_prompts(images, variant):
    scorer = tiny_scorer().eval()
    together = scorer.score(images, PROMPTS, variant).tolist()
    alone = [scorer.score(images[[row]], [prompt], variant).item() for row, prompt in enumerate(PROMPTS)]
    assert together == pytest.approx(alone, abs=1e-5)
    assert len(set(together)) == 4


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_gradient_reaches_every_pixel_also_beyond_white(images, variant):
    scorer = tiny_scorer().eval().requires_grad_(False)
    images = (images * 1.5).requires_grad_()
    scorer.score(images, PROMPTS, variant).sum().backward()
    assert (images.grad != 0).all()


def test_a_folder_gives_the_same_scores_and_equal_bytes(images, tmp_path):
    scorer = tiny_scorer().eval()
    save_scorer(scorer, tmp_path / "one")
    loaded = load_scorer(tmp_path / "one", "cpu")
    assert not any(weight.requires_grad for weight in loaded.parameters())
    for variant in VARIANTS:
        assert torch.equal(loaded.score(images, PROMPTS, variant), scorer.score(images, PROMPTS, variant))
    save_scorer(loaded, tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


@pytest.mark.parametrize("fault", ["Missing", "Unexpected", "size mismatch"])
def test_loading_is_strict(tmp_path, fault):
    save_scorer(tiny_scorer(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "text.encoder.layer.0.attention.self.query.weight"
    weight = weights.pop(name)
    if fault == "Unexpected":
        weights |= {name: weight, "text.pooler.dense.weight": weight.clone()}
    if fault == "size mismatch":
        weights[name] = weight[:2].clone()
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=f"(?s)is not a scorer.*{fault}"):
        load_scorer(tmp_path, "cpu")


def test_a_head_that_is_not_there_is_told(images):
    scorer = tiny_scorer(projection_size=None, has_matching_head=False, reward_head=None)
    for variant, told in zip(VARIANTS, ["no contrastive", "no matching head", "no reward head"], strict=True):
        with pytest.raises(UserError, match=told):
            scorer.score(images, PROMPTS, variant)


@pytest.mark.parametrize("height, width", [(60, 96), (96, 60), (16, 17), (31, 31)])
def test_resizing_differs_from_pil_by_rounding_only(height, width):
    # PIL clips to bytes after either direction, so a picture that overshoots black and white would differ by more.
    coarse = numpy.random.default_rng(0).integers(60, 196, (5, 5, 3), dtype=numpy.uint8)
    pixels = numpy.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR))
    side = 24
    shorter = min(height, width)
    size = int(side * width / shorter), int(side * height / shorter)
    resized = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
    left, top = round((size[0] - side) / 2), round((size[1] - side) / 2)
    expected = numpy.asarray(resized.crop((left, top, left + side, top + side)), dtype=float)
    images = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
    found = (fit_to_square(images, side)[0].permute(1, 2, 0) * 255).numpy()
    assert abs(found - expected).max() < 1.6


SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "image_prefs"


def normalised(scorer, images):
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (scorer.config.pixel_mean, scorer.config.pixel_std))
    return (images - mean) / std


def test_the_score_is_that_of_upstreams_arithmetic_to_the_bit(tmp_path):
    weights = published_weights()
    scorer = released_scorer(*write_published(tmp_path, weights))
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
        released_scorer(*write_published(tmp_path, weights))
    weights = published_weights()
    del weights["blip.text_encoder.encoder.layer.1.crossattention.self.key.bias"]
    with pytest.raises(UserError, match=r"(?s)Missing key.*crossattention\.self\.key\.bias"):
        released_scorer(*write_published(tmp_path, weights))


def test_blips_own_file_has_the_other_two_heads_and_what_training_left_in_it(tmp_path):
    encoders = published_blip()
    encoders |= {name.replace("visual_encoder.", "visual_encoder_m."): tensor for name, tensor in encoders.items()}
    encoders |= {"itm_head.weight": torch.ones(2, 64), "itm_head.bias": torch.zeros(2), "temp": torch.tensor(0.05)}
    encoders |= {"text_decoder.cls.bias": torch.zeros(2), "image_queue": torch.zeros(2), "ptr_queue": torch.zeros(1)}
    scorer = released_scorer(*write_published(tmp_path, {"model": encoders, "config": {"epochs": 20}}))
    assert scorer.config.has_matching_head and scorer.config.matching_token_id == 30523
    assert scorer.config.projection_size == 8 and scorer.config.reward_head is None


class Hostile:
    def __reduce__(self):
        return os.system, ("touch /tmp/retrace-was-here",)


def test_a_file_that_wants_to_run_code_is_refused(tmp_path):
    files = write_published(tmp_path, {"blip.visual_encoder.cls_token": Hostile()})
    with pytest.raises(UserError, match="without running code"):
        released_scorer(*files)
    files[0].write_bytes(pickle.dumps(Hostile()))
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


@pytest.mark.parametrize("stack", [STACK, ONE_LAYER], ids=["stack", "one layer"])
def test_the_aesthetic_score_is_that_of_a_plain_writing(stack, images, tmp_path):
    clip, head = published_aesthetic(stack)
    scorer = load_aesthetic(AestheticParams.model_validate(write_aesthetic(tmp_path, clip, head)), torch.device("cpu"))
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
    std = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)
    expected = published_score(clip, head, (images - mean) / std)
    torch.testing.assert_close(scorer.score(images), expected, atol=1e-5, rtol=1e-5)
    assert len(set(expected.tolist())) == 4


def test_the_aesthetic_weights_must_be_whole_pinned_and_no_pickle(tmp_path):
    clip, head = published_aesthetic()
    whole = {"clip": clip, "head": head}

    def refused(part, tensors=None, **named):
        """Returns what is said where a file has other tensors, or is named otherwise."""
        section = write_aesthetic(tmp_path, **whole | {part: tensors or whole[part]})
        section[part] |= named
        with pytest.raises((UserError, ValueError)) as error:
            load_aesthetic(AestheticParams.model_validate(section), torch.device("cpu"))
        return str(error.value)

    pickled = tmp_path / "pickled.safetensors"
    pickled.write_bytes(pickle.dumps(Hostile()))
    assert "a pickle can run code" in refused("head", path="sac+logos+ava1-l14-linearMSE.pth")
    assert "is not safetensors" in refused("head", path=str(pickled), sha256=sha256_of(pickled))
    assert not Path("/tmp/retrace-was-here").exists()
    assert "as reward_evaluation.aesthetic has it" in refused("clip", sha256="0" * 64)
    assert "does not exist" in refused("clip", path=str(tmp_path / "none.safetensors"))
    few = {name: tensor for name, tensor in clip.items() if "layers.1.self_attn.q_proj" not in name}
    for part, tensors in (
        ("clip", few),
        ("clip", clip | {"vision_model.more": torch.zeros(2)}),
        ("clip", {"weight": torch.zeros(2)}),
        ("head", published_aesthetic({"": (13, 1)})[1]),
        ("head", head | {"other.weight": torch.zeros(2)}),
        ("head", {name: tensor for name, tensor in head.items() if "7" not in name}),
    ):
        assert "no CLIP and aesthetic head that fit" in refused(part, tensors)
