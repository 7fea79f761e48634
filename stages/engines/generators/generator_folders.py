"""Generators as folders in diffusers' layout: `unet`, `text_encoder`, `tokenizer`, `scheduler`, perhaps `vae`.

Nothing else of a folder is read: no safety checker, no pipeline's code. Weights are safetensors, read strictly.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from diffusers.utils import logging as diffusers_logging
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from stages.engines.generators.generator import Generator
from stages.engines.generators.params import CHANNEL_GROUPS, GeneratorSizes
from stages.engines.word_tokenizers import UNKNOWN, word_tokenizer
from stages.foundations.errors import UserError
from stages.foundations.files import write_bytes_atomically, write_json

transformers_logging.disable_progress_bar()
diffusers_logging.disable_progress_bar()

PADDING = "[PAD]"
NETWORKS = ("unet", "text_encoder")
"""Parts that learn."""


def load_generator(folder: Path, device: torch.device) -> Generator:
    """The generator of a diffusers folder in float32; UserError when a part is missing, foreign or not safetensors.

    A folder without `vae` is one of `new_generator`: its pixels are folded into channels. Any scheduler's config does
    that DDIM can be made of.
    """
    try:
        scheduler = _scheduler(folder)
        unet = _network(UNet2DConditionModel, folder / "unet")
        text_encoder = _network(CLIPTextModel, folder / "text_encoder")
        vae = _network(AutoencoderKL, folder / "vae") if (folder / "vae").is_dir() else None
        tokenizer = AutoTokenizer.from_pretrained(
            folder / "tokenizer", trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise UserError(
            f"{folder} is not a generator that can be used ({error}): give a folder in diffusers' layout with unet, "
            "text_encoder, tokenizer, scheduler and, for latents, vae; weights as safetensors"
        ) from error
    return Generator(unet, text_encoder, tokenizer, _files(folder / "tokenizer"), scheduler, vae).to(device)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def _scheduler(folder: Path) -> DDIMScheduler:
    config = DDIMScheduler.load_config(folder / "scheduler", local_files_only=True)
    # Stable Diffusion's old configs leave it out, and DDIM's default would clip latents, which are no pixels.
    return DDIMScheduler.from_config({"clip_sample": False, **config})


def _network(kind: Any, folder: Path) -> Any:
    """The network in `folder`, every weight of which was found and used; ValueError otherwise."""
    network, told = kind.from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        torch_dtype=torch.float32,
        output_loading_info=True,
        low_cpu_mem_usage=False,  # what diffusers does without accelerate, which it otherwise says in each run
    )
    wrong = {
        name: sorted(map(str, told[name])) for name in ("missing_keys", "unexpected_keys", "mismatched_keys")
    }
    # Old text encoders carry the numbers 0, 1, 2, ... of their positions as a weight.
    wrong["unexpected_keys"] = [
        name for name in wrong["unexpected_keys"] if not name.endswith("position_ids")
    ]
    if any(wrong.values()):
        raise ValueError(
            f"{folder}: {'; '.join(f'{name} {keys[:3]}' for name, keys in wrong.items() if keys)}"
        )
    return network


def new_generator(sizes: GeneratorSizes, prompts: Sequence[str], seed: int) -> Generator:
    """A generator with random weights that knows the words of `prompts`; equal arguments give equal weights.

    The noise schedule is Stable Diffusion's; draws begin at the last timestep and end at the clean image.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(prompts, [PADDING, UNKNOWN]),
        pad_token=PADDING,
        unk_token=UNKNOWN,
        model_max_length=sizes.max_prompt_tokens,
    )
    levels = len(sizes.channels)
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
            attention_head_dim=sizes.attention_heads,  # diffusers' name for the number of heads
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
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        prediction_type=sizes.prediction_type,
        clip_sample=False,
        timestep_spacing="trailing",
    )
    with tempfile.TemporaryDirectory() as place:
        tokenizer.save_pretrained(place)
        files = _files(Path(place))
    return Generator(unet, text_encoder, tokenizer, files, scheduler, None)


def save_generator(generator: Generator, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Writes `generator` into `folder` (which the caller makes appear whole); equal weights give equal bytes.

    `weights`, named `unet.<name>` and `text_encoder.<name>`, take the place of the generator's own where given. They
    are written here rather than by `save_pretrained`: a trainer may have spread its own over ranks.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part in NETWORKS:
        given = {
            name.removeprefix(f"{part}."): weight
            for name, weight in (weights or {}).items()
            if name.startswith(f"{part}.")
        }
        _save_network(getattr(generator, part), given, folder / part)
    if generator.vae is not None:
        _save_network(generator.vae, {}, folder / "vae")
    for name, content in generator.tokenizer_files.items():
        write_bytes_atomically(folder / "tokenizer" / name, content)
    _save_config(generator.scheduler, folder / "scheduler" / "scheduler_config.json")
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


def _save_network(network: nn.Module, given: Mapping[str, Tensor], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights = {**dict(network.named_parameters()), **given}
    tensors = {name: weight.detach().float().cpu().contiguous() for name, weight in weights.items()}
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
    config.pop("_name_or_path", None)  # where it was loaded from
    write_json(path, config)
