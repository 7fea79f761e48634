"""Scorers: one differentiable score, the same alone and in a batch, saved and loaded strictly."""

import numpy
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from stages.engines.image_scorers.scorer import fit_to_square, load_scorer, save_scorer
from stages.foundations.errors import UserError
from tests.fakes.tiny_scorer import PROMPTS, tiny_scorer

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


def test_later_words_and_the_picture_both_count(images):
    scorer = tiny_scorer().eval()
    first, other = scorer.score(images[[0, 0]], ["a red circle", "a red square"])
    assert first != other
    assert first != scorer.score(images[[1]], ["a red circle"])[0]


def test_the_reward_is_normalised_as_the_folder_says(images):
    scorer = tiny_scorer().eval()
    raw = scorer.score(images, PROMPTS)
    scorer.config = scorer.config.model_copy(update={"reward_mean": 0.5, "reward_std": 2.0})
    assert scorer.score(images, PROMPTS).tolist() == pytest.approx(((raw - 0.5) / 2).tolist(), abs=1e-6)


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


@pytest.mark.parametrize("fault", ["missing", "left over", "shape"])
def test_loading_is_strict(tmp_path, fault):
    save_scorer(tiny_scorer(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = "text.encoder.layer.0.attention.self.query.weight"
    weight = weights.pop(name)
    if fault == "left over":
        weights |= {name: weight, "text.pooler.dense.weight": weight.clone()}
    if fault == "shape":
        weights[name] = weight[:2].clone()
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=f"is not a scorer.*{fault}"):
        load_scorer(tmp_path, "cpu")


def test_a_head_that_is_not_there_is_told(images):
    scorer = tiny_scorer(projection_size=None, has_matching_head=False, reward_head=None)
    for variant, told in zip(VARIANTS, ["no contrastive", "no matching head", "no reward head"], strict=True):
        with pytest.raises(UserError, match=told):
            scorer.score(images, PROMPTS, variant)


@pytest.mark.parametrize("height, width", [(60, 96), (96, 60), (16, 17), (31, 31)])
def test_resizing_differs_from_pil_by_rounding_only(height, width):
    # PIL cuts to bytes after either direction, so a picture that overshoots black and white would differ by more
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
