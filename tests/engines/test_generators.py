"""Generators: samples do not depend on the batch, folders are loaded as saved, latents are exact."""

import json

import numpy
import pytest
import torch
from diffusers import DDIMScheduler
from safetensors.torch import load_file, save_file

from stages.foundations.errors import UserError
from stages.images.engines.generators.denoising import denoising_batch, denoising_errors
from stages.images.engines.generators.generator import (
    Generator,
    images_of,
    load_generator,
    new_generator,
    save_generator,
    to_uint8,
)
from tests.fakes.picture_recipes import tiny_sizes, tiny_vae

CPU = torch.device("cpu")
PROMPTS = ["a red circle", "two blue squares", "a green triangle"]
SIZES = tiny_sizes(image_side=8, max_prompt_tokens=6, prediction_type="sample")


@pytest.fixture(scope="module")
def generator() -> Generator:
    return new_generator(SIZES, PROMPTS, seed=1)


def test_each_picture_depends_on_its_own_seed_and_prompt(generator):
    together = generator.draw(PROMPTS, [11, 12, 13], steps=3, guidance=1.0)
    alone = generator.draw(PROMPTS[1:2], [12], steps=3, guidance=1.0)
    assert together.shape == (3, 8, 8, 3) and together.dtype == numpy.uint8
    assert numpy.abs(together[1].astype(int) - alone[0].astype(int)).max() <= 1
    assert (generator.draw(PROMPTS[1:2], [13], 3, 1.0) != alone).any()
    assert torch.equal(generator.noise([5, 6])[1], generator.noise([6])[0])


def test_guidance_one_is_no_guidance_and_two_is_extrapolation(generator):
    states, empty = generator.encode_prompts(PROMPTS[:1]), generator.encode_prompts([""])
    latents, timestep = generator.noise([3]), generator.timesteps(4)[0]
    with torch.no_grad():
        asked, nothing = (generator.step(latents, timestep, given, 1.0, empty)[1] for given in (states, empty))
        guided = generator.step(latents, timestep, states, 2.0, empty)[1]
    torch.testing.assert_close(guided, nothing + 2 * (asked - nothing))


def test_a_folder_gives_the_same_generator_and_the_same_bytes(generator, tmp_path):
    save_generator(generator, tmp_path / "one")
    again = load_generator(tmp_path / "one", CPU)
    save_generator(again, tmp_path / "two")
    names = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert sorted(path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*.*")) == names
    for name in names:
        content = (tmp_path / "one" / name).read_bytes()
        assert content == (tmp_path / "two" / name).read_bytes(), name
        assert str(tmp_path).encode() not in content, name
    assert (again.draw(PROMPTS, [1, 2, 3], 2, 1.5) == generator.draw(PROMPTS, [1, 2, 3], 2, 1.5)).all()


def test_equal_seeds_give_equal_generators_and_leave_the_global_stream_alone(generator):
    before = torch.get_rng_state()
    other = new_generator(SIZES, PROMPTS, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    pairs = zip(generator.unet.parameters(), other.unet.parameters(), strict=True)
    assert all(torch.equal(one, two) for one, two in pairs)


def test_folded_pixels_come_back_exactly(generator):
    pixels = numpy.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=numpy.uint8)
    latents = generator.to_latents(images_of(pixels))
    assert latents.shape == (2, 12, 4, 4)
    assert (to_uint8(generator.to_images(latents)) == pixels).all()
    beyond = generator.to_images(torch.full((1, 12, 4, 4), 3.0))
    assert float(beyond.max()) == 2.0, "a clamp would take the gradient away"


def test_a_vae_is_used_where_the_folder_has_one(tmp_path):
    generator, vae = new_generator(SIZES, PROMPTS, seed=1), tiny_vae(latent_channels=12, scaling_factor=0.5)
    generator.vae = vae
    save_generator(generator, tmp_path)
    loaded = load_generator(tmp_path, CPU)
    assert loaded.image_side == 8
    images = torch.rand(1, 3, 8, 8)
    latents = loaded.to_latents(images)
    assert latents.shape == (1, 12, 4, 4)
    torch.testing.assert_close(latents, vae.encode(images * 2 - 1).latent_dist.mean * 0.5)
    assert loaded.to_images(latents).shape == (1, 3, 8, 8)
    assert loaded.draw(["a red circle"], [1], 2, 1.0).shape == (1, 8, 8, 3)


def test_a_scheduler_of_another_kind_is_drawn_by_ddim(generator, tmp_path):
    save_generator(generator, tmp_path)
    config = {  # Stable Diffusion 1.4's, without the key that was added later
        "_class_name": "PNDMScheduler",
        "beta_end": 0.012,
        "beta_schedule": "scaled_linear",
        "beta_start": 0.00085,
        "num_train_timesteps": 1000,
        "set_alpha_to_one": False,
        "skip_prk_steps": True,
        "steps_offset": 1,
    }
    (tmp_path / "scheduler" / "scheduler_config.json").write_text(json.dumps(config))
    scheduler = load_generator(tmp_path, CPU).scheduler
    assert isinstance(scheduler, DDIMScheduler)
    assert scheduler.config.prediction_type == "epsilon" and not scheduler.config.clip_sample


@pytest.mark.parametrize("part", ["unet", "text_encoder", "tokenizer", "scheduler"])
def test_a_folder_without_a_part_is_refused(generator, tmp_path, part):
    save_generator(generator, tmp_path)
    (tmp_path / part).rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="diffusers' layout"):
        load_generator(tmp_path, CPU)


def test_a_pickle_is_not_read_and_a_missing_weight_is_told(generator, tmp_path):
    save_generator(generator, tmp_path)
    file = tmp_path / "unet" / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    weights.pop("conv_out.bias")
    save_file(weights, file)
    with pytest.raises(UserError, match=r"conv_out\.bias"):
        load_generator(tmp_path, CPU)
    file.unlink()
    torch.save(weights, file.with_suffix(".bin"))
    with pytest.raises(UserError, match="safetensors"):
        load_generator(tmp_path, CPU)


@pytest.mark.parametrize("kind", ["sample", "epsilon", "v_prediction"])
def test_errors_weigh_the_clean_image_alike_whatever_is_predicted(kind):
    """In each parametrisation, the same wrong estimate of the clean image has the same loss under a cap."""
    generator = new_generator(SIZES.model_copy(update={"prediction_type": kind}), PROMPTS, seed=0)
    images = torch.rand(2, 3, 8, 8)
    batch = denoising_batch(generator, images, PROMPTS[:2], [4, 5])
    kept = generator.scheduler.alphas_cumprod[batch.timesteps]
    share, rest = (value.sqrt().reshape(-1, 1, 1, 1) for value in (kept, 1 - kept))
    noised = share * batch.latents + rest * batch.noise
    guess = batch.latents + 0.1
    guessed_noise = (noised - share * guess) / rest
    predicted = {"sample": guess, "epsilon": guessed_noise, "v_prediction": share * guessed_noise - rest * guess}[kind]
    snr = kept / (1 - kept)
    errors = denoising_errors(generator, predicted, batch, weight_cap=5.0)
    torch.testing.assert_close(errors, 0.01 * (1 + snr).clamp(max=5.0), rtol=1e-3, atol=1e-6)
