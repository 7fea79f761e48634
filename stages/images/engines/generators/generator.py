"""A text-to-image generator: prompts and seeds in, pictures out, and single denoising steps for trainers.

Latent diffusion (Rombach et al., arXiv 2112.10752) sampled by DDIM without noise (Song et al., arXiv 2010.02502,
equation 12 with eta 0) under classifier-free guidance (Ho & Salimans, arXiv 2207.12598). The scheduler's config gives
the U-Net's prediction target. Deviations: (1) a generator without a VAE folds pixels into channels instead, which
is exact; (2) images are encoded to the mode of the VAE's distribution, not to a sample, so latents are repeatable.

On disk a generator is a folder in diffusers' layout: `unet`, `text_encoder`, `tokenizer`, `scheduler`, perhaps `vae`.
Nothing else of a folder is read: no safety checker, no pipeline code. Weights are safetensors, read strictly.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import pixel_shuffle, pixel_unshuffle
from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from stages.engines.new_tokenizers import UNKNOWN, word_tokenizer
from stages.foundations.errors import UserError
from stages.foundations.files import write_bytes_atomically, write_json
from stages.images.engines.generators.params import CHANNEL_GROUPS, GeneratorSizes


@dataclass(eq=False)
class Generator:
    """U-Net, text encoder, tokenizer, noise schedule and VAE."""

    unet: UNet2DConditionModel
    text_encoder: CLIPTextModel
    tokenizer: PreTrainedTokenizerBase
    tokenizer_files: Mapping[str, bytes]
    """The original files: a tokenizer saves itself differently after use."""
    scheduler: DDIMScheduler
    vae: AutoencoderKL | None = None

    def __post_init__(self) -> None:
        for module in filter(None, [self.unet, self.text_encoder, self.vae]):
            module.eval()
        if self.vae is not None:
            self.vae.requires_grad_(False)

    @property
    def device(self) -> torch.device:
        return self.unet.device

    def to(self, device: torch.device) -> Generator:
        self.unet.to(device)
        self.move_others(device)
        return self

    def move_others(self, device: torch.device) -> None:
        """Moves everything except the U-Net, which may be a trainer's."""
        for module in filter(None, [self.text_encoder, self.vae]):
            module.to(device)

    @property
    def patch_side(self) -> int:
        """Pixels along a side that one latent position represents."""
        if self.vae is not None:
            return 2 ** (len(self.vae.config.block_out_channels) - 1)
        return math.isqrt(self.unet.config.in_channels // 3)

    @property
    def image_side(self) -> int:
        """Pixels along a side of the pictures."""
        return self.unet.config.sample_size * self.patch_side

    def tokenize(self, prompts: Sequence[str]) -> Tensor:
        """Token ids, cut and padded to the text encoder's length; [prompts, tokens]."""
        return self.tokenizer(
            list(prompts),
            padding="max_length",
            truncation=True,
            max_length=self.text_encoder.config.max_position_embeddings,
            return_tensors="pt",
        )["input_ids"]

    def encode_tokens(self, token_ids: Tensor) -> Tensor:
        """States that the U-Net attends to; [prompts, tokens, width]. As in Stable Diffusion, padding is not masked."""
        return self.text_encoder(token_ids.to(self.text_encoder.device)).last_hidden_state

    def encode_prompts(self, prompts: Sequence[str]) -> Tensor:
        return self.encode_tokens(self.tokenize(prompts))

    def to_latents(self, images: Tensor) -> Tensor:
        """Latents of `images` [images, 3, height, width] with values in 0..1."""
        scaled = images * 2 - 1
        if self.vae is not None:
            return self.vae.encode(scaled).latent_dist.mode() * self.vae.config.scaling_factor
        return pixel_unshuffle(scaled, self.patch_side)

    def to_images(self, latents: Tensor) -> Tensor:
        """Images [images, 3, height, width], in 0..1 where the latents are those of images.

        Not clamped: a clamp would remove the gradient of saturated pixels, and nothing would pull them back.
        """
        if self.vae is not None:
            scaled = self.vae.decode(latents / self.vae.config.scaling_factor).sample
        else:
            scaled = pixel_shuffle(latents, self.patch_side)
        return (scaled + 1) / 2

    def noise(self, seeds: Sequence[int]) -> Tensor:
        """Latents of pure noise, each from its seed, independent of the others in the batch."""
        shape = (self.unet.config.in_channels, self.unet.config.sample_size, self.unet.config.sample_size)
        # On the CPU for every device: equal seeds then give equal pictures on a GPU, up to float sums.
        drawn = [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return torch.stack(drawn).to(self.device) * self.scheduler.init_noise_sigma

    def timesteps(self, steps: int) -> list[int]:
        """The timesteps of sampling in `steps` steps, from noise to image; `step` takes these values, not positions."""
        self.scheduler.set_timesteps(steps)
        return self.scheduler.timesteps.tolist()

    def step(
        self, latents: Tensor, timestep: int, states: Tensor, guidance: float, empty_states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One DDIM step from `timestep`, which must be one of those that `timesteps` returned last.

        Returns the latents at the next, less noisy timestep, and the U-Net's guess of the latents without noise.
        `guidance` 1 calls the U-Net once and ignores `empty_states` (of the empty prompt, [1, tokens, width]).
        """
        if guidance == 1:
            predicted = self.predict(latents, timestep, states)
        else:
            # With and without the prompt in one pass of twice the batch, as in diffusers' pipelines.
            both = torch.cat([empty_states.expand_as(states), states])
            empty, prompted = self.predict(torch.cat([latents, latents]), timestep, both).chunk(2)
            predicted = empty + guidance * (prompted - empty)
        return self.scheduler.step(predicted, timestep, latents, return_dict=False)

    def predict(self, latents: Tensor, timesteps: Tensor | int, states: Tensor) -> Tensor:
        """The U-Net's output for noised latents, in float32 for any precision of the network."""
        dtype = self.unet.dtype
        return self.unet(latents.to(dtype), timesteps, states.to(dtype)).sample.float()

    @torch.no_grad()
    def draw(self, prompts: Sequence[str], seeds: Sequence[int], steps: int, guidance: float) -> numpy.ndarray:
        """Pictures as uint8 [images, height, width, 3], one per prompt and seed, all in one batch.

        A picture depends only on its prompt and seed, up to the order of float sums in a batch.
        """
        states, empty_states = self.encode_prompts(prompts), self.encode_prompts([""])
        latents = self.noise(seeds)
        for timestep in self.timesteps(steps):
            latents, _ = self.step(latents, timestep, states, guidance, empty_states)
        return to_uint8(self.to_images(latents))


def to_uint8(images: Tensor) -> numpy.ndarray:
    """Images [images, 3, height, width] as uint8 [images, height, width, 3], values outside of 0..1 clamped."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()


def images_of(pixels: numpy.ndarray) -> Tensor:
    """The inverse of `to_uint8`, on the CPU; [images, 3, height, width] in 0..1."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


PADDING = "[PAD]"
NETWORKS = ("unet", "text_encoder")
"""Trained parts."""


def load_generator(folder: Path, device: torch.device) -> Generator:
    """Loads the generator of a diffusers folder in float32; UserError when a part is missing, foreign or not
    safetensors.

    A folder without `vae` is one of `new_generator`: its pixels are folded into channels. Any scheduler's config is
    accepted that DDIM can be created from.
    """
    transformers_logging.disable_progress_bar()
    diffusers_logging.disable_progress_bar()
    try:
        config = DDIMScheduler.load_config(folder / "scheduler", local_files_only=True)
        # Stable Diffusion's old configs leave it out, and DDIM's default would clip latents, which are not pixels.
        scheduler = DDIMScheduler.from_config({"clip_sample": False, **config})
        unet = _network(UNet2DConditionModel, folder / "unet")
        text_encoder = _network(CLIPTextModel, folder / "text_encoder")
        vae = _network(AutoencoderKL, folder / "vae") if (folder / "vae").is_dir() else None
        tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer", trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(
            f"{folder} is not a generator that can be used ({error}): give a folder in diffusers' layout with unet, "
            "text_encoder, tokenizer, scheduler and, for latents, vae; weights as safetensors"
        ) from error
    return Generator(unet, text_encoder, tokenizer, _files(folder / "tokenizer"), scheduler, vae).to(device)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _network(kind: Any, folder: Path) -> Any:
    """Loads the network in `folder`, using exactly the weights that it needs; ValueError otherwise."""
    network, report = kind.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        torch_dtype=torch.float32,
        output_loading_info=True,
        # diffusers' behaviour without accelerate. Unless it is set explicitly, each run prints a warning.
        low_cpu_mem_usage=False,
    )
    wrong = {name: sorted(map(str, report[name])) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    # Old text encoders carry the numbers 0, 1, 2, ... of their positions as a weight.
    wrong["unexpected_keys"] = [name for name in wrong["unexpected_keys"] if not name.endswith("position_ids")]
    if any(wrong.values()):
        raise ValueError(f"{folder}: {'; '.join(f'{name} {keys[:3]}' for name, keys in wrong.items() if keys)}")
    return network


def new_generator(sizes: GeneratorSizes, prompts: Sequence[str], seed: int) -> Generator:
    """Returns a generator with random weights that knows the words of `prompts`; equal arguments give equal weights.

    The noise schedule is Stable Diffusion's; sampling begins at the last timestep and ends at the clean image.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(prompts, [PADDING, UNKNOWN]),
        pad_token=PADDING,
        unk_token=UNKNOWN,
        model_max_length=sizes.max_prompt_tokens,
    )
    levels = len(sizes.channels)
    # The networks take random weights from the global stream, which is the caller's and must not move.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        unet = UNet2DConditionModel(
            sample_size=sizes.image_side // sizes.patch_side,
            in_channels=3 * sizes.patch_side**2,
            out_channels=3 * sizes.patch_side**2,
            block_out_channels=sizes.channels,
            down_block_types=("DownBlock2D", *["CrossAttnDownBlock2D"] * (levels - 1)),
            up_block_types=(*["CrossAttnUpBlock2D"] * (levels - 1), "UpBlock2D"),
            layers_per_block=sizes.layers_per_block,
            cross_attention_dim=sizes.text_width,
            # Under this name diffusers expects the number of heads (its configs have kept an old mistake).
            attention_head_dim=sizes.attention_heads,
            norm_num_groups=CHANNEL_GROUPS,
        )
        text_encoder = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=len(tokenizer),
                hidden_size=sizes.text_width,
                intermediate_size=2 * sizes.text_width,
                projection_dim=sizes.text_width,
                num_hidden_layers=sizes.text_layers,
                num_attention_heads=sizes.text_heads,
                max_position_embeddings=sizes.max_prompt_tokens,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                eos_token_id=tokenizer.pad_token_id,
            )
        )
    # Stable Diffusion's schedule: linear in the square root of beta, over 1,000 timesteps.
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type=sizes.prediction_type,
        clip_sample=False,
        # "leading", the default, starts below the last timestep, where latents are not yet pure noise.
        timestep_spacing="trailing",
    )
    with tempfile.TemporaryDirectory() as place:
        tokenizer.save_pretrained(place)
        files = _files(Path(place))
    return Generator(unet, text_encoder, tokenizer, files, scheduler)


def save_generator(generator: Generator, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Writes `generator` into `folder` (which the caller makes appear complete); equal weights give equal bytes.

    `weights`, named `unet.<name>` and `text_encoder.<name>`, replace the generator's weights if given. They
    are written here rather than by `save_pretrained`: a trainer may have sharded its weights over ranks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part in NETWORKS:
        own = {name: weight for name, weight in (weights or {}).items() if name.startswith(f"{part}.")}
        replaced = {name.removeprefix(f"{part}."): weight for name, weight in own.items()}
        _save_network(getattr(generator, part), replaced, folder / part)
    if generator.vae is not None:
        _save_network(generator.vae, {}, folder / "vae")
    for name, content in generator.tokenizer_files.items():
        write_bytes_atomically(folder / "tokenizer" / name, content)
    _save_config(generator.scheduler, folder / "scheduler" / "scheduler_config.json")
    # With this file diffusers' own pipeline can open the folder; nothing here reads it.
    write_json(
        folder / "model_index.json",
        {
            "_class_name": "StableDiffusionPipeline",
            "scheduler": ["diffusers", "DDIMScheduler"],
            "text_encoder": ["transformers", "CLIPTextModel"],
            "tokenizer": ["transformers", type(generator.tokenizer).__name__],
            "unet": ["diffusers", "UNet2DConditionModel"],
            "vae": ["diffusers", "AutoencoderKL"] if generator.vae is not None else [None, None],
            "safety_checker": [None, None],
            "feature_extractor": [None, None],
        },
    )


def _save_network(network: nn.Module, replaced: Mapping[str, Tensor], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {**dict(network.named_parameters()), **replaced}
    tensors = {name: weight.detach().float().cpu().contiguous() for name, weight in weights.items()}
    # transformers and diffusers name their files differently, and each finds only its own names again.
    if isinstance(network, CLIPTextModel):
        network.config.architectures = [type(network).__name__]
        network.config.dtype = torch.float32
        network.config.save_pretrained(folder)
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        _save_config(network, folder / "config.json")
        save_file(tensors, folder / "diffusion_pytorch_model.safetensors", metadata={"format": "pt"})


def _save_config(part: Any, path: Path) -> None:
    config = json.loads(part.to_json_string())
    # The path that it was loaded from: a folder copied elsewhere would have other bytes.
    config.pop("_name_or_path", None)
    write_json(path, config)
