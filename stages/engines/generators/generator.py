"""A text-to-image generator: prompts and seeds in, pictures out, and the steps between for whoever trains it.

Latent diffusion (Rombach et al., arXiv 2112.10752) drawn by DDIM without noise (Song et al., arXiv 2010.02502,
equation 12 with eta 0) under classifier-free guidance (Ho & Salimans, arXiv 2207.12598). What the U-Net predicts is
read from the scheduler's config. Deviations: (1) a generator without a VAE folds pixels into channels instead, which
is exact; (2) images are encoded to the mode of the VAE's distribution, not to a sample, so latents are repeatable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from torch import Tensor
from torch.nn.functional import pixel_shuffle, pixel_unshuffle
from transformers import CLIPTextModel, PreTrainedTokenizerBase


class Step(NamedTuple):
    """What one denoising step makes of latents."""

    previous: Tensor
    """Latents at the next, less noisy timestep; [images, channels, side, side]."""
    clean: Tensor
    """The U-Net's guess of the latents without noise, of the same shape."""


class Generator:
    """U-Net, text encoder, tokenizer, noise schedule and VAE; `generator_folders` loads, makes and saves one."""

    def __init__(
        self,
        unet: UNet2DConditionModel,
        text_encoder: CLIPTextModel,
        tokenizer: PreTrainedTokenizerBase,
        tokenizer_files: Mapping[str, bytes],
        scheduler: DDIMScheduler,
        vae: AutoencoderKL | None,
    ) -> None:
        self.unet, self.text_encoder, self.tokenizer = unet.eval(), text_encoder.eval(), tokenizer
        self.tokenizer_files = (
            tokenizer_files  # as they were: a tokenizer that was used saves itself differently
        )
        self.scheduler, self.vae = scheduler, vae.eval().requires_grad_(False) if vae is not None else None

    @property
    def device(self) -> torch.device:
        """Where the U-Net lies."""
        return self.unet.device

    def to(self, device: torch.device) -> Generator:
        """The same generator, moved to `device` in place."""
        self.unet.to(device)
        self.move_others(device)
        return self

    def move_others(self, device: torch.device) -> None:
        """Moves all but the U-Net, which may be a trainer's."""
        for module in filter(None, [self.text_encoder, self.vae]):
            module.to(device)

    def with_unet(self, unet: UNet2DConditionModel) -> Generator:
        """Another generator with this U-Net that shares everything else."""
        parts = (self.text_encoder, self.tokenizer, self.tokenizer_files, self.scheduler, self.vae)
        return Generator(unet, *parts)

    @property
    def patch_side(self) -> int:
        """Pixels of a side that one latent position stands for."""
        if self.vae is not None:
            return 2 ** (len(self.vae.config.block_out_channels) - 1)
        return math.isqrt(self.unet.config.in_channels // 3)

    @property
    def image_side(self) -> int:
        """Pixels of a side of the pictures."""
        return self.unet.config.sample_size * self.patch_side

    def tokenize(self, prompts: Sequence[str]) -> Tensor:
        """Token ids, cut and padded to the length that the text encoder knows; [prompts, tokens]."""
        return self.tokenizer(
            list(prompts),
            padding="max_length",
            truncation=True,
            max_length=self.text_encoder.config.max_position_embeddings,
            return_tensors="pt",
        )["input_ids"]

    def encode_tokens(self, token_ids: Tensor) -> Tensor:
        """What the U-Net attends to; [prompts, tokens, width]. Padding is not masked, as in Stable Diffusion."""
        return self.text_encoder(token_ids.to(self.text_encoder.device)).last_hidden_state

    def encode_prompts(self, prompts: Sequence[str]) -> Tensor:
        """`encode_tokens` of the prompts' tokens."""
        return self.encode_tokens(self.tokenize(prompts))

    def to_latents(self, images: Tensor) -> Tensor:
        """Latents of `images` [images, 3, height, width] with values in 0..1."""
        scaled = images * 2 - 1
        if self.vae is not None:
            return self.vae.encode(scaled).latent_dist.mode() * self.vae.config.scaling_factor
        return pixel_unshuffle(scaled, self.patch_side)

    def to_images(self, latents: Tensor) -> Tensor:
        """Images [images, 3, height, width], in 0..1 where the latents are those of images.

        Not clamped: a clamp would take the gradient of saturated pixels away, and nothing would ever pull them back.
        """
        if self.vae is not None:
            scaled = self.vae.decode(latents / self.vae.config.scaling_factor).sample
        else:
            scaled = pixel_shuffle(latents, self.patch_side)
        return (scaled + 1) / 2

    def noise(self, seeds: Sequence[int]) -> Tensor:
        """Latents of pure noise, each from its own seed, whatever it is drawn together with."""
        shape = (self.unet.config.in_channels, self.unet.config.sample_size, self.unet.config.sample_size)
        drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return torch.stack(drawn).to(self.device) * self.scheduler.init_noise_sigma

    def timesteps(self, steps: int) -> list[int]:
        """The timesteps of a draw in `steps` steps, from noise to image; `step` takes them, not their positions."""
        self.scheduler.set_timesteps(steps)
        return self.scheduler.timesteps.tolist()

    def step(
        self, latents: Tensor, timestep: int, states: Tensor, guidance: float, empty_states: Tensor
    ) -> Step:
        """One DDIM step from `timestep`, which must be one of those that `timesteps` gave last.

        `guidance` 1 asks the U-Net once and ignores `empty_states` (of the empty prompt, [1, tokens, width]).
        """
        if guidance == 1:
            predicted = self.predict(latents, timestep, states)
        else:
            both = torch.cat([empty_states.expand_as(states), states])
            empty, asked = self.predict(torch.cat([latents, latents]), timestep, both).chunk(2)
            predicted = empty + guidance * (asked - empty)
        return Step(*self.scheduler.step(predicted, timestep, latents, return_dict=False))

    def predict(self, latents: Tensor, timesteps: Tensor | int, states: Tensor) -> Tensor:
        """What the U-Net makes of noised latents, in float32 whatever its own precision is."""
        dtype = self.unet.dtype
        return self.unet(latents.to(dtype), timesteps, states.to(dtype)).sample.float()

    @torch.no_grad()
    def draw(
        self, prompts: Sequence[str], seeds: Sequence[int], steps: int, guidance: float
    ) -> numpy.ndarray:
        """Pictures as uint8 [images, height, width, 3], one a prompt and seed, all in one batch.

        A picture depends on its own prompt and seed only, up to the order of float sums in a batch.
        """
        states, empty_states = self.encode_prompts(prompts), self.encode_prompts([""])
        latents = self.noise(seeds)
        for timestep in self.timesteps(steps):
            latents = self.step(latents, timestep, states, guidance, empty_states).previous
        return pixels_of(self.to_images(latents))


def pixels_of(images: Tensor) -> numpy.ndarray:
    """Images [images, 3, height, width] as uint8 [images, height, width, 3], values outside of 0..1 clamped."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


def images_of(pixels: numpy.ndarray) -> Tensor:
    """The inverse of `pixels_of`, on the CPU; [images, 3, height, width] in 0..1."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
