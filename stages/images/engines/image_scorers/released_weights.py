"""Weights that BLIP and ImageReward published, as a scorer: each tensor is renamed here, and none may be left.

Source: `models/med.py` and `models/vit.py` of BLIP at 3a29b741, `ImageReward/ImageReward.py` of ImageReward at
c1392c6d.

Their files are pickles. torch's restricted reader, which builds only tensors (`weights_only`), reads them once. The
output is safetensors, and nothing later opens the original file again.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, implementations
from torch import Tensor

from stages.foundations.errors import UserError
from stages.images.engines.image_scorers.config import ScorerConfig
from stages.images.engines.image_scorers.scorer import ImageScorer

RENAMED = (
    (r"visual_encoder\.cls_token", "vision.embeddings.class_embedding"),
    (r"visual_encoder\.pos_embed", "vision.embeddings.position_embedding"),
    (r"visual_encoder\.patch_embed\.proj\.(.+)", r"vision.embeddings.patch_embedding.\1"),
    (r"visual_encoder\.norm\.(.+)", r"vision.post_layernorm.\1"),
    (r"visual_encoder\.blocks\.(\d+)\.norm([12])\.(.+)", r"vision.encoder.layers.\1.layer_norm\2.\3"),
    (r"visual_encoder\.blocks\.(\d+)\.attn\.qkv\.(.+)", r"vision.encoder.layers.\1.self_attn.qkv.\2"),
    (r"visual_encoder\.blocks\.(\d+)\.attn\.proj\.(.+)", r"vision.encoder.layers.\1.self_attn.projection.\2"),
    (r"visual_encoder\.blocks\.(\d+)\.mlp\.(fc[12]\..+)", r"vision.encoder.layers.\1.mlp.\2"),
    (r"text_encoder\.(.+)", r"text.\1"),
    (r"(vision|text)_proj\.(.+)", r"\1_projection.\2"),
    (r"itm_head\.(.+)", r"matching_head.\1"),
    (r"mlp\.layers\.(.+)", r"reward_head.\1"),
    (r"temp", "temperature"),
)
DROPPED = re.compile(
    r"(visual_encoder_m|text_encoder_m|vision_proj_m|text_proj_m|text_decoder)\..+"
    r"|(image|text|idx|ptr)_queue|queue_ptr|ptr_queue|text_encoder\.embeddings\.position_ids"
)
"""Tensors that only training needs (momentum encoders, captioner, queues), and a table of consecutive numbers."""
HEAD_SIZE = 64
"""Width of one attention head in every model that BLIP published."""
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
REWARD_MEAN, REWARD_STD = 0.16717862830770837, 1.0333394966054072
"""ImageReward's normalisation is in its code and not in its file."""
REWARD_DROPOUTS = [0.2, 0.2, 0.1]
TEXT_TOKENS, TEXT_DROPOUT = 35, 0.1
MATCHING_TOKEN = 30523
"""[ENC], the first token for BLIP's matching head."""


def released_scorer(weights_file: Path, tokenizer_file: Path) -> ImageScorer:
    """Reads the scorer in a file of BLIP (pre-trained: contrastive and matching head) or of ImageReward (reward head).

    tokenizer_file: `vocab.txt` or `tokenizer.json` of bert-base-uncased. UserError when a file cannot be read, or when
    a tensor is missing, unknown or of a shape that does not fit the others.
    """
    released = read_released(weights_file)
    try:
        weights = renamed(released)
        config = released_config(weights)
        scorer = ImageScorer(config, _tokenizer(tokenizer_file))
        scorer.load_state_dict(weights)
    except (ValueError, KeyError, RuntimeError) as error:
        raise UserError(
            f"{weights_file} does not hold the weights of BLIP or ImageReward ({str(error)[:300]}): "
            "give the file as it was published"
        ) from error
    return scorer


def read_released(file: Path) -> dict[str, Tensor]:
    """Returns the file's tensors by their published names, mapped from disk; UserError for anything but tensors."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise UserError(f"{file} does not exist: download the released weights there, or use `kind: train`") from None
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise UserError(
            f"{file} is not a weights file that can be read without running code ({str(error)[:200]}): "
            "give the file as it was published"
        ) from error
    # BLIP's files have their tensors one level deeper, beside the settings of the training.
    if isinstance(content, dict) and isinstance(content.get("model"), dict):
        content = content["model"]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UserError(f"{file} holds something else than named tensors: give the file as it was published")
    return content


def renamed(released: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors under a scorer's names; KeyError names an unknown one.

    An incomplete head is dropped by name: ImageReward's file has projections that were not trained since BLIP,
    and no temperature for them.
    """
    bare = {name.removeprefix("blip."): tensor for name, tensor in released.items()}
    weights = {_new_name(name): tensor for name, tensor in bare.items() if not DROPPED.fullmatch(name)}
    # BLIP's is a scalar; a scorer's has one dimension, because DeepSpeed cannot send a scalar.
    if "temperature" in weights:
        weights["temperature"] = weights["temperature"].reshape(1)
    if "temperature" not in weights or "text_projection.weight" not in weights:
        gone = ("temperature", "vision_projection.", "text_projection.")
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith(gone)}
    return weights


def released_config(weights: Mapping[str, Tensor]) -> ScorerConfig:
    """Returns the config that follows from the shapes of renamed weights; KeyError or ValueError when there is none."""
    # The files contain no sizes except those of their tensors. Sizes that these do not show are constants above.
    patch = weights["vision.embeddings.patch_embedding.weight"].shape[-1]
    # Without the position of [CLS], and of a square picture.
    patches_a_side = round((weights["vision.embeddings.position_embedding"].shape[1] - 1) ** 0.5)
    # Numbers are those of ImageReward's stack, including dropouts: the linear layers are not consecutive.
    reward_layers = [int(name.split(".")[1]) for name in weights if re.fullmatch(r"reward_head\.\d+\.weight", name)]
    widths = [weights[f"reward_head.{layer}.weight"].shape[0] for layer in sorted(reward_layers)]
    head = {"widths": widths[:-1], "dropouts": REWARD_DROPOUTS} if widths else None
    has_matching = "matching_head.weight" in weights
    projection = weights.get("text_projection.weight")
    return ScorerConfig.model_validate(
        {
            "vision": _sizes(weights, "vision.encoder.layers", "mlp.fc1", "layer_norm1"),
            "text": _sizes(weights, "text.encoder.layer", "intermediate.dense", "output.LayerNorm"),
            "image_size": patch * patches_a_side,
            "patch_size": patch,
            "pixel_mean": CLIP_MEAN,
            "pixel_std": CLIP_STD,
            "vocabulary": len(weights["text.embeddings.word_embeddings.weight"]),
            "max_text_tokens": TEXT_TOKENS,
            "text_positions": len(weights["text.embeddings.position_embeddings.weight"]),
            "text_dropout": TEXT_DROPOUT,
            "projection_size": None if projection is None else len(projection),
            "has_matching_head": has_matching,
            "matching_token_id": MATCHING_TOKEN if has_matching else None,
            "reward_head": head,
            "reward_mean": REWARD_MEAN if head else 0.0,
            "reward_std": REWARD_STD if head else 1.0,
        }
    )


def _new_name(name: str) -> str:
    for pattern, new in RENAMED:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, new, name)
    raise KeyError(f"unknown tensor {name}")


def _sizes(weights: Mapping[str, Tensor], prefix: str, feed_forward: str, norm: str) -> dict[str, int]:
    numbers = {int(name[len(prefix) + 1 :].split(".")[0]) for name in weights if name.startswith(f"{prefix}.")}
    hidden = len(weights[f"{prefix}.0.{norm}.weight"])
    return {
        "hidden_size": hidden,
        "layers": len(numbers),
        "heads": hidden // HEAD_SIZE,
        "feed_forward_size": len(weights[f"{prefix}.0.{feed_forward}.weight"]),
    }


def _tokenizer(file: Path) -> Tokenizer:
    try:
        if file.suffix == ".txt":
            # Rebuilt from its text: the class of BERT's tokenizer wraps a `Tokenizer` and is not one.
            words = implementations.BertWordPieceTokenizer(str(file), lowercase=True)
            return Tokenizer.from_str(words.to_str())
        return Tokenizer.from_file(str(file))
    # The library raises nothing narrower.
    except Exception as error:
        raise UserError(
            f"{file} is not a tokenizer ({error}): give `vocab.txt` or `tokenizer.json` of bert-base-uncased"
        ) from error
