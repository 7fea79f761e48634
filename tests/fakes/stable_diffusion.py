"""Stable Diffusion 1 in diffusers' format, with tiny random weights: PNDM, epsilon, VAE, CLIP's tokenizer."""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
from diffusers import PNDMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from tests.fakes.picture_recipes import tiny_vae

WIDTH, TOKENS = 16, 77


def write_stable_diffusion(folder: Path) -> StableDiffusionPipeline:
    """Writes the folder as safetensors with diffusers' `save_pretrained`, and returns the pipeline."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        unet = UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(8, 16),
            down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            layers_per_block=1,
            cross_attention_dim=WIDTH,
            attention_head_dim=2,
            norm_num_groups=4,
        )
        tokenizer = _tokenizer(folder.parent / "words")
        text_encoder = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=len(tokenizer),
                hidden_size=WIDTH,
                intermediate_size=2 * WIDTH,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=TOKENS,
            )
        )
    # The published scheduler: PNDM, one step of offset, and no setting for clipping.
    scheduler = PNDMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", skip_prk_steps=True, steps_offset=1
    )
    pipeline = StableDiffusionPipeline(
        tiny_vae(latent_channels=4), text_encoder, tokenizer, unet, scheduler, None, None, requires_safety_checker=False
    )
    pipeline.save_pretrained(folder, safe_serialization=True)
    return pipeline


def _tokenizer(folder: Path) -> CLIPTokenizer:
    """Returns a tokenizer of CLIP's kind with letters and no merges."""
    folder.mkdir()
    letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    ids = {token: number for number, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    return CLIPTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=TOKENS)
