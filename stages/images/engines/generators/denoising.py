"""The denoising loss, as a model and a loss that trainers take.

Noise is added to each image at a random timestep, and the U-Net predicts a target. The scheduler's config names the
target: the noise (Ho et al., arXiv 2006.11239, equation 14), the velocity (Salimans & Ho, arXiv 2202.00512) or the
clean image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stages.engines.trainers.protocol import LossFunction, TrainedModel
from stages.images.engines.generators.generator import NETWORKS, Generator, save_generator


@dataclass(frozen=True)
class DenoisingBatch:
    """Images with the noise and the timestep that they are trained at."""

    latents: Tensor
    """[images, channels, side, side]."""
    noise: Tensor
    """Of the shape of `latents`."""
    timesteps: Tensor
    """[images], integers."""
    token_ids: Tensor
    """[images, tokens]."""

    @property
    def is_empty(self) -> bool:
        return len(self.latents) == 0

    def to(self, device: torch.device) -> DenoisingBatch:
        return DenoisingBatch(**{name: value.to(device) for name, value in vars(self).items()})


@torch.no_grad()
def denoising_batch(
    generator: Generator, images: Tensor, prompts: Sequence[str], seeds: Sequence[int]
) -> DenoisingBatch:
    """`images` [images, 3, side, side] in 0..1 with their prompts, each with noise from its seed.

    For later guidance, a share of the prompts (usually 0.1) must be empty.
    """
    count = generator.scheduler.config.num_train_timesteps
    # A stream for each image: its noise then does not depend on which images share its batch or rank.
    streams = [torch.Generator().manual_seed(seed) for seed in seeds]
    timesteps = torch.cat([torch.randint(count, (1,), generator=stream) for stream in streams])
    latents = generator.to_latents(images.to(generator.device))
    noise = torch.stack([torch.randn(latents.shape[1:], generator=stream) for stream in streams])
    return DenoisingBatch(latents, noise.to(latents.device), timesteps.to(latents.device), generator.tokenize(prompts))


def trained_denoiser(generator: Generator) -> TrainedModel[DenoisingBatch, Tensor]:
    """U-Net and text encoder as a model to train; its output is the U-Net's prediction, [images, ...]."""
    side = generator.image_side
    return TrainedModel(
        module=nn.ModuleDict({part: getattr(generator, part) for part in NETWORKS}),
        forward=lambda module, batch: predict(generator, batch),
        save=lambda weights, folder: save_generator(generator, folder, weights),
        # The input of a rank whose share is empty: every rank must take part in the same number of passes.
        filler=denoising_batch(generator, torch.zeros(1, 3, side, side), [""], [0]),
        ends=(generator.text_encoder.get_input_embeddings().weight,),
    )


def predict(generator: Generator, batch: DenoisingBatch) -> Tensor:
    """Returns the U-Net's prediction for the batch's noised latents, [images, ...]."""
    states = generator.encode_tokens(batch.token_ids)
    noised = generator.scheduler.add_noise(batch.latents, batch.noise, batch.timesteps)
    return generator.predict(noised, batch.timesteps, states)


def denoising_errors(
    generator: Generator, predicted: Tensor, batch: DenoisingBatch, weight_cap: float | None
) -> Tensor:
    """Mean squared error of each image, [images], in the generator's prediction.

    With `weight_cap` the error of the clean image is weighted by min(1 + SNR, weight_cap): the loss of the velocity,
    capped where there is almost no noise. Hang et al. (arXiv 2303.09556) cap the loss of the noise, SNR, which would
    leave the noisiest timesteps, where sampling begins, without weight. None keeps the error unweighted.
    """
    kind = generator.scheduler.config.prediction_type
    match kind:
        case "epsilon":
            target = batch.noise
        case "v_prediction":
            target = generator.scheduler.get_velocity(batch.latents, batch.noise, batch.timesteps)
        case "sample":
            target = batch.latents
        case _:
            raise ValueError(f"prediction_type {kind} is none of epsilon, v_prediction and sample")
    errors = (predicted - target).square().flatten(1).mean(1)
    if weight_cap is None:
        return errors
    # In terms of the clean image, whatever is predicted: its error is 1 / SNR of that of the noise, and so on.
    kept = generator.scheduler.alphas_cumprod.to(errors.device)[batch.timesteps]
    snr = kept / (1 - kept)
    of_clean = {"epsilon": snr, "v_prediction": 1 + snr, "sample": torch.ones_like(snr)}[kind]
    return errors * (1 + snr).clamp(max=weight_cap) / of_clean


def denoising_loss(
    generator: Generator, batch_images: int, weight_cap: float | None
) -> LossFunction[Tensor, DenoisingBatch]:
    """The mean of `denoising_errors` over the `batch_images` images of an update, as a trainer's loss."""

    def loss(predicted: Tensor, batch: DenoisingBatch) -> tuple[Tensor, dict[str, float]]:
        return denoising_errors(generator, predicted, batch, weight_cap).sum() / batch_images, {}

    return loss
