"""LAION's aesthetic score: CLIP's embedding of a picture, at length 1, through linear layers. It reads no prompt.

Source: LAION's improved-aesthetic-predictor, and `ImageReward/models/AestheticScore.py` of ImageReward at c1392c6d, one
of the scorers that the paper compares with (arXiv 2304.05977, table 1: 57.35% of the test pairs).

The published heads are pickles, which may run code. The file here is safetensors with the same names. Deviations:
torch resizes the pictures instead of PIL, and the encoder is in float32 on every device. The published weights have not
been tried here: the tests compare small random ones with a plain writing of the network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

from stages.foundations.errors import UserError
from stages.foundations.files import require_sha256
from stages.images.engines.image_scorers.config import AestheticParams
from stages.images.engines.image_scorers.released_weights import CLIP_MEAN, CLIP_STD, HEAD_SIZE
from stages.images.engines.image_scorers.scorer import fit_to_square

UNUSED = re.compile(r"text_model\..+|text_projection\.weight|logit_scale|.+\.position_ids")
"""CLIP's text side, and a table of consecutive numbers."""


class AestheticScorer(nn.Module):
    """CLIP's image encoder and the linear layers, whose dropouts do nothing in use. All sizes follow from the shapes.

    KeyError, RuntimeError or ValueError for a tensor too few, too many or of a shape that does not fit.
    """

    def __init__(self, clip: Mapping[str, Tensor], head: Mapping[str, Tensor]) -> None:
        super().__init__()
        clip = {name: tensor for name, tensor in clip.items() if not UNUSED.fullmatch(name)}
        own, layer = "vision_model.embeddings", "vision_model.encoder.layers."
        width, patch = len(clip[f"{own}.class_embedding"]), clip[f"{own}.patch_embedding.weight"].shape[-1]
        # Without the position of the class; a square picture.
        self.image_size = patch * math.isqrt(len(clip[f"{own}.position_embedding.weight"]) - 1)
        self.encoder = CLIPVisionModelWithProjection(
            CLIPVisionConfig(
                hidden_size=width,
                intermediate_size=len(clip[f"{layer}0.mlp.fc1.weight"]),
                num_hidden_layers=len({name.split(".")[3] for name in clip if name.startswith(layer)}),
                num_attention_heads=width // HEAD_SIZE,
                image_size=self.image_size,
                patch_size=patch,
                projection_dim=len(clip["visual_projection.weight"]),
            )
        )
        self.encoder.load_state_dict(clip)
        self.head, width, names = nn.Sequential(), self.encoder.config.projection_dim, sorted(head)
        # Bias before weight; the numbers in the names have gaps, where the published stack has its dropouts.
        for bias, weight in zip(names[::2], names[1::2], strict=True):
            self.head.append(nn.Linear(width, width := len(head[weight])))
            self.head[-1].load_state_dict({"weight": head[weight], "bias": head[bias]})
        if width != 1:
            raise ValueError(f"the head ends in {width} numbers instead of one")

    @torch.no_grad()
    def score(self, images: Tensor) -> Tensor:
        """Scores [N] of images float[N, 3, H, W] in 0..1, about 1 to 10 for the published head; higher is better."""
        mean, std = (torch.tensor(values, device=images.device).view(3, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
        pixels = (fit_to_square(images, self.image_size) - mean) / std
        return self.head(nn.functional.normalize(self.encoder(pixels).image_embeds, dim=-1))[:, 0]


def load_aesthetic(params: AestheticParams, device: torch.device) -> AestheticScorer:
    """Loads the scorer from its two files; UserError when one is missing, has other bytes, or does not fit."""
    tensors = []
    for file in (params.clip, params.head):
        path = Path(file.path)
        if not path.is_file():
            raise UserError(f"{path} does not exist: put the weights there, or correct reward_evaluation.aesthetic")
        require_sha256(path, file.sha256, "as reward_evaluation.aesthetic has it: take the right file, or correct it")
        try:
            tensors.append({name: tensor.float() for name, tensor in load_file(path).items()})
        except SafetensorError as error:
            raise UserError(
                f"{path} is not safetensors ({error}): convert the published file once, outside Retrace"
            ) from error
    try:
        return AestheticScorer(*tensors).eval().requires_grad_(False).to(device)
    except (KeyError, RuntimeError, ValueError) as error:
        raise UserError(
            f"{params.clip.path} and {params.head.path} are no CLIP and aesthetic head that fit ({str(error)[:300]}): "
            "give model.safetensors of openai/clip-vit-large-patch14, and the head that was made for it"
        ) from error
