"""The arithmetic of BLIP and ImageReward on tensors under their published names, and small random tensors.

It follows `models/vit.py` and `models/med.py` of BLIP (3a29b741) and `ImageReward/ImageReward.py` (c1392c6d), in plain
tensor operations in their order, so results can be equal to the bit. It uses no class of transformers.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import conv2d, gelu, layer_norm, linear

Weights = dict[str, Tensor]
HEAD = 64
WIDTHS = {"vision": 128, "text": 64}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "blue", "circle", "##s", "square", "two"]


def published_weights(layers: int = 2, image: int = 32, patch: int = 16, seed: int = 0) -> Weights:
    """Returns small random tensors of ImageReward's file: encoders, reward head, and the tensors that are not used."""
    vision, text = WIDTHS["vision"], WIDTHS["text"]
    shapes: dict[str, tuple[int, ...]] = {
        "blip.visual_encoder.cls_token": (1, 1, vision),
        "blip.visual_encoder.pos_embed": (1, 1 + (image // patch) ** 2, vision),
        "blip.visual_encoder.patch_embed.proj.weight": (vision, 3, patch, patch),
        "blip.visual_encoder.patch_embed.proj.bias": (vision,),
        **_norm("blip.visual_encoder.norm", vision),
        "blip.text_encoder.embeddings.word_embeddings.weight": (len(WORDS), text),
        "blip.text_encoder.embeddings.position_embeddings.weight": (40, text),
        **_norm("blip.text_encoder.embeddings.LayerNorm", text),
        "blip.vision_proj.weight": (8, vision),
        "blip.vision_proj.bias": (8,),
        "blip.text_proj.weight": (8, text),
        "blip.text_proj.bias": (8,),
    }
    for number in range(layers):
        block = f"blip.visual_encoder.blocks.{number}"
        shapes |= _norm(f"{block}.norm1", vision) | _norm(f"{block}.norm2", vision)
        shapes |= _dense(f"{block}.attn.qkv", vision, 3 * vision) | _dense(f"{block}.attn.proj", vision, vision)
        shapes |= _dense(f"{block}.mlp.fc1", vision, 2 * vision) | _dense(f"{block}.mlp.fc2", 2 * vision, vision)
        layer = f"blip.text_encoder.encoder.layer.{number}"
        for kind, keys in (("attention", text), ("crossattention", vision)):
            shapes |= _dense(f"{layer}.{kind}.self.query", text, text)
            shapes |= _dense(f"{layer}.{kind}.self.key", keys, text)
            shapes |= _dense(f"{layer}.{kind}.self.value", keys, text)
            shapes |= _dense(f"{layer}.{kind}.output.dense", text, text)
            shapes |= _norm(f"{layer}.{kind}.output.LayerNorm", text)
        shapes |= _dense(f"{layer}.intermediate.dense", text, 2 * text)
        shapes |= _dense(f"{layer}.output.dense", 2 * text, text) | _norm(f"{layer}.output.LayerNorm", text)
    width = text
    for place, outputs in zip((0, 2, 4, 6, 7), (32, 16, 8, 4, 1), strict=True):
        shapes |= _dense(f"mlp.layers.{place}", width, outputs)
        width = outputs
    generator = torch.Generator().manual_seed(seed)
    weights = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    weights["blip.text_encoder.embeddings.position_ids"] = torch.arange(40)[None]
    return weights


def published_blip() -> Weights:
    """Returns the tensors of BLIP's pre-trained file that ImageReward's also has: no reward head."""
    weights = published_weights().items()
    return {name.removeprefix("blip."): tensor for name, tensor in weights if not name.startswith("mlp.")}


def write_published(folder: Path, weights: object, name: str = "published.pt") -> tuple[Path, Path]:
    """Writes the weights' file and the vocabulary next to it."""
    torch.save(weights, folder / name)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return folder / name, folder / "vocab.txt"


def published_reward(weights: Weights, pixels: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Returns ImageReward's score [N] of normalised pixels [N, 3, side, side]."""
    image = _vision(_part(weights, "blip.visual_encoder."), pixels)
    hidden = _text(_part(weights, "blip.text_encoder."), ids, mask, image)[:, 0]
    for place in (0, 2, 4, 6, 7):
        hidden = _linear(weights, f"mlp.layers.{place}", hidden)
    return (hidden[:, 0] - 0.16717862830770837) / 1.0333394966054072


def _vision(weights: Weights, pixels: Tensor) -> Tensor:
    patch = weights["patch_embed.proj.weight"]
    x = conv2d(pixels, patch, weights["patch_embed.proj.bias"], stride=patch.shape[-1]).flatten(2).transpose(1, 2)
    x = torch.cat((weights["cls_token"].expand(len(pixels), -1, -1), x), dim=1) + weights["pos_embed"]
    rows, length, width = x.shape
    for block in _layers(weights, "blocks."):
        qkv = _linear(block, "attn.qkv", _normed(block, "norm1", x, 1e-6))
        q, k, v = qkv.reshape(rows, length, 3, width // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        attention = ((q @ k.transpose(-2, -1)) * HEAD**-0.5).softmax(dim=-1)
        x = x + _linear(block, "attn.proj", (attention @ v).transpose(1, 2).reshape(rows, length, width))
        x = x + _linear(block, "mlp.fc2", gelu(_linear(block, "mlp.fc1", _normed(block, "norm2", x, 1e-6))))
    return _normed(weights, "norm", x, 1e-6)


def _text(weights: Weights, ids: Tensor, mask: Tensor, image: Tensor) -> Tensor:
    positions = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = weights["embeddings.word_embeddings.weight"][ids] + positions
    x = _normed(weights, "embeddings.LayerNorm", x, 1e-12)
    added = (1.0 - mask[:, None, None, :].float()) * -10000.0
    for layer in _layers(weights, "encoder.layer."):
        x = _attended(layer, "attention", x, x, added)
        x = _attended(layer, "crossattention", x, image, torch.zeros(()))
        middle = gelu(_linear(layer, "intermediate.dense", x))
        x = _normed(layer, "output.LayerNorm", _linear(layer, "output.dense", middle) + x, 1e-12)
    return x


def _attended(layer: Weights, kind: str, x: Tensor, keys: Tensor, added: Tensor) -> Tensor:
    def heads(name: str, states: Tensor) -> Tensor:
        found = _linear(layer, f"{kind}.self.{name}", states)
        return found.view(*found.shape[:-1], -1, HEAD).permute(0, 2, 1, 3)

    scores = heads("query", x) @ heads("key", keys).transpose(-1, -2) / math.sqrt(HEAD) + added
    context = (scores.softmax(dim=-1) @ heads("value", keys)).permute(0, 2, 1, 3).contiguous()
    context = _linear(layer, f"{kind}.output.dense", context.view(x.shape))
    return _normed(layer, f"{kind}.output.LayerNorm", context + x, 1e-12)


def _part(weights: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}


def _layers(weights: Weights, prefix: str) -> list[Weights]:
    numbers = sorted({int(name.removeprefix(prefix).split(".")[0]) for name in weights if name.startswith(prefix)})
    return [_part(weights, f"{prefix}{number}.") for number in numbers]


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def _normed(weights: Weights, name: str, x: Tensor, eps: float) -> Tensor:
    return layer_norm(x, x.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps)


def _norm(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
