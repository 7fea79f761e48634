"""Size of a generator and cost of a picture, before the generator exists: networks without weights are counted.

A missing folder counts as Stable Diffusion 1.4: its sizes are diffusers' defaults except for those named here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from stages.engines.generators.generator import new_generator
from stages.engines.generators.params import GeneratorSizes

STABLE_DIFFUSION = {
    "unet": {"sample_size": 64, "cross_attention_dim": 768, "attention_head_dim": 8},
    "vae": {
        "block_out_channels": (128, 256, 512, 512),
        "down_block_types": ("DownEncoderBlock2D",) * 4,
        "up_block_types": ("UpDecoderBlock2D",) * 4,
        "layers_per_block": 2,
        "latent_channels": 4,
        "sample_size": 512,
    },
}
"""CompVis/stable-diffusion-v1-4, unet/config.json and vae/config.json."""
TEXT_PARAMETERS, TEXT_TOKENS = 123_060_480, 77
"""CLIP ViT-L/14's text encoder, which Stable Diffusion 1 has."""


@dataclass(frozen=True)
class GeneratorCosts:
    """Parameters, and FLOPs of one picture."""

    unet_parameters: int
    other_parameters: int
    """Text encoder and VAE."""
    step_flops: int
    """One pass of the U-Net."""
    encode_flops: int
    """Picture to latent; 0 without a VAE."""
    decode_flops: int
    is_assumed: bool
    """The folder does not exist."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Returns the plan's assumptions about it."""
        if not self.is_assumed:
            return ()
        return ("generator: its folder is not there; taken for Stable Diffusion 1.4 (sizes of its published configs)",)

    def draw_flops(self, steps: int, guidance: float) -> float:
        """FLOPs of a picture in `steps`: guidance other than 1 needs a pass with the prompt and one without."""
        return steps * self.step_flops * (1 if guidance == 1 else 2) + self.decode_flops


def generator_costs(base: Any) -> GeneratorCosts:
    """Returns the cost for a validated section `t2i_base`: by its sizes, or its folder."""
    if base.kind == "train":
        return _sized_costs(base.sizes.model_dump_json())
    return _folder_costs(Path(base.path))


# From JSON and not the section: `cache` needs a hashable argument. A plan calls this for every stage.
@cache
def _sized_costs(sizes: str) -> GeneratorCosts:
    """Counts `GeneratorSizes` as JSON; the few words of its vocabulary are not counted."""
    generator = new_generator(GeneratorSizes.model_validate_json(sizes), ["a"], seed=0)
    return GeneratorCosts(
        _parameters(generator.unet),
        _parameters(generator.text_encoder),
        _unet_flops(generator.unet.to("meta"), generator.tokenizer.model_max_length),
        0,
        0,
        is_assumed=False,
    )


@cache
def _folder_costs(folder: Path) -> GeneratorCosts:
    """Counts a folder in diffusers' layout, of which only the configs are read."""
    is_there = (folder / "unet" / "config.json").is_file()
    unet = _bare(UNet2DConditionModel, folder / "unet", is_there)
    vae = _bare(AutoencoderKL, folder / "vae", is_there) if not is_there or (folder / "vae").is_dir() else None
    encode = decode = 0
    if vae is not None:
        side = unet.config.sample_size
        # Every block except the last halves the side.
        scale = 2 ** (len(vae.config.block_out_channels) - 1)
        encode = _flops(vae.encode, torch.empty(1, 3, side * scale, side * scale, device="meta"))
        decode = _flops(vae.decode, torch.empty(1, vae.config.latent_channels, side, side, device="meta"))
    others = TEXT_PARAMETERS + (_parameters(vae) if vae is not None else 0)
    return GeneratorCosts(
        _parameters(unet), others, _unet_flops(unet, TEXT_TOKENS), encode, decode, is_assumed=not is_there
    )


def _bare(kind: Any, folder: Path, is_there: bool) -> Any:
    """Returns the network without weights."""
    config = kind.load_config(folder, local_files_only=True) if is_there else STABLE_DIFFUSION[folder.name]
    # The device "meta" has shapes and no memory: counting Stable Diffusion's weights would otherwise take gigabytes.
    with torch.device("meta"):
        return kind.from_config(config)


def _unet_flops(unet: UNet2DConditionModel, tokens: int) -> int:
    side, width = unet.config.sample_size, unet.config.cross_attention_dim
    latent = torch.empty(1, unet.config.in_channels, side, side, device="meta")
    states = torch.empty(1, tokens, width, device="meta")
    return _flops(unet, latent, torch.zeros(1, device="meta"), states)


def _flops(called: Any, *arguments: Any) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        called(*arguments)
    return counter.get_total_flops()


def _parameters(network: nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())
