"""LAION's aesthetic score in plain tensor operations on tensors under their published names, and small random ones.

It follows `clip/model.py` of OpenAI's CLIP and `ImageReward/models/AestheticScore.py` of ImageReward (c1392c6d), and
uses no class of transformers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import conv2d, layer_norm, linear

from stages.foundations.files import sha256_of

Weights = dict[str, Tensor]
WIDTH, HEAD, PATCH, SIDE, EMBEDDING = 128, 64, 4, 8, 12
STACK = {"layers.0.": (12, 16), "layers.2.": (16, 8), "layers.4.": (8, 6), "layers.6.": (6, 4), "layers.7.": (4, 1)}
ONE_LAYER = {"": (12, 1)}


def published_aesthetic(stack: dict[str, tuple[int, int]] = STACK) -> tuple[Weights, Weights]:
    """Returns small random tensors of CLIP's file, with its text side, and of the head's."""
    drawn = torch.Generator().manual_seed(5)

    def dense(name: str, inputs: int, outputs: int) -> Weights:
        weight = torch.randn(outputs, inputs, generator=drawn) / inputs**0.5
        return {f"{name}weight": weight, f"{name}bias": torch.randn(outputs, generator=drawn)}

    def norm(name: str) -> Weights:
        return {f"{name}.{part}": torch.randn(WIDTH, generator=drawn) for part in ("weight", "bias")}

    own, patches = "vision_model.embeddings", (SIDE // PATCH) ** 2
    clip = {
        f"{own}.class_embedding": torch.randn(WIDTH, generator=drawn),
        f"{own}.patch_embedding.weight": torch.randn(WIDTH, 3, PATCH, PATCH, generator=drawn),
        f"{own}.position_embedding.weight": torch.randn(patches + 1, WIDTH, generator=drawn),
        f"{own}.position_ids": torch.arange(patches + 1)[None],
        "visual_projection.weight": torch.randn(EMBEDDING, WIDTH, generator=drawn),
        "text_model.final_layer_norm.bias": torch.zeros(3),
        "text_projection.weight": torch.zeros(3, 3),
        "logit_scale": torch.zeros(()),
        **norm("vision_model.pre_layrnorm"),
        **norm("vision_model.post_layernorm"),
    }
    for number in range(2):
        layer = f"vision_model.encoder.layers.{number}."
        clip |= norm(f"{layer}layer_norm1") | norm(f"{layer}layer_norm2")
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            clip |= dense(f"{layer}self_attn.{part}.", WIDTH, WIDTH)
        clip |= dense(f"{layer}mlp.fc1.", WIDTH, 96) | dense(f"{layer}mlp.fc2.", 96, WIDTH)
    head: Weights = {}
    for name, sizes in stack.items():
        head |= dense(name, *sizes)
    return clip, head


def write_aesthetic(folder: Path, clip: Weights, head: Weights) -> dict[str, Any]:
    """Writes both files; returns the section that names them."""
    section = {}
    for part, tensors in (("clip", clip), ("head", head)):
        path = folder / f"{part}.safetensors"
        save_file(tensors, path)
        section[part] = {"path": str(path), "sha256": sha256_of(path)}
    return section


def published_score(clip: Weights, head: Weights, pixels: Tensor) -> Tensor:
    """Returns the score [N] of normalised pixels [N, 3, side, side]."""

    def dense(name: str, x: Tensor) -> Tensor:
        return linear(x, clip[f"{name}.weight"], clip[f"{name}.bias"])

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], clip[f"{name}.weight"], clip[f"{name}.bias"], 1e-5)

    def heads(x: Tensor) -> Tensor:
        return x.view(len(x), -1, WIDTH // HEAD, HEAD).transpose(1, 2)

    own = "vision_model.embeddings"
    x = conv2d(pixels, clip[f"{own}.patch_embedding.weight"], stride=PATCH).flatten(2).transpose(1, 2)
    x = torch.cat([clip[f"{own}.class_embedding"].expand(len(x), 1, -1), x], dim=1)
    x = norm("vision_model.pre_layrnorm", x + clip[f"{own}.position_embedding.weight"])
    for number in range(2):
        layer = f"vision_model.encoder.layers.{number}"
        seen = norm(f"{layer}.layer_norm1", x)
        q, k, v = (heads(dense(f"{layer}.self_attn.{part}_proj", seen)) for part in "qkv")
        attended = (q @ k.transpose(-2, -1) / HEAD**0.5).softmax(-1) @ v
        x = x + dense(f"{layer}.self_attn.out_proj", attended.transpose(1, 2).flatten(2))
        middle = dense(f"{layer}.mlp.fc1", norm(f"{layer}.layer_norm2", x))
        x = x + dense(f"{layer}.mlp.fc2", middle * torch.sigmoid(1.702 * middle))
    x = norm("vision_model.post_layernorm", x[:, 0]) @ clip["visual_projection.weight"].T
    x = x / x.norm(dim=-1, keepdim=True)
    for name in sorted({name.removesuffix("weight").removesuffix("bias") for name in head}):
        x = linear(x, head[f"{name}weight"], head[f"{name}bias"])
    return x[:, 0]
