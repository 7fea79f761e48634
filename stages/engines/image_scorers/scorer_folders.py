"""Scorers as folders: weights in safetensors, `scorer.json`, `tokenizer.json`; no pickle, and no hub is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from stages.engines.image_scorers.config import ScorerConfig
from stages.engines.image_scorers.scorer import ImageScorer
from stages.foundations.errors import UserError
from stages.foundations.files import write_json, write_text_atomically

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "scorer.json", "tokenizer.json"


def load_scorer(folder: Path, device: torch.device | str) -> ImageScorer:
    """The scorer of a folder on `device`, ready to score: in evaluation mode, its own weights without gradient.

    UserError when the folder is not a scorer, or lacks a weight, or has one too many.
    """
    scorer = load_trainable_scorer(folder)
    return scorer.eval().requires_grad_(False).to(device)


def load_trainable_scorer(folder: Path) -> ImageScorer:
    """The scorer of a folder on the CPU in float32, its weights with gradients; raises as `load_scorer` does."""
    try:
        config = ScorerConfig.model_validate(json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        tokenizer = Tokenizer.from_buffer((folder / TOKENIZER).read_bytes())
        scorer = ImageScorer(config, tokenizer)
        fill(scorer, load_file(folder / WEIGHTS))
    except (OSError, ValueError, ValidationError, SafetensorError, KeyError, RecursionError) as error:
        raise UserError(
            f"{folder} is not a scorer ({error}): `dvc repro scorer_base` makes one, docs/reward-models.md says how "
            "released weights become one"
        ) from error
    return scorer


def fill(scorer: ImageScorer, weights: Mapping[str, Tensor]) -> None:
    """Copies the weights into the scorer; ValueError names every one that is missing, left over or of another shape."""
    own = dict(scorer.named_parameters())
    problems = [
        *(f"{name} is missing" for name in own.keys() - weights.keys()),
        *(f"{name} is left over" for name in weights.keys() - own.keys()),
        *(
            f"{name} has shape {list(weights[name].shape)}, not {list(own[name].shape)}"
            for name in own.keys() & weights.keys()
            if own[name].shape != weights[name].shape
        ),
    ]
    if problems:
        raise ValueError(
            "; ".join(sorted(problems)[:5]) + (f" and {len(problems) - 5} more" * (len(problems) > 5))
        )
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(weights[name])


def save_scorer(scorer: ImageScorer, folder: Path, weights: Mapping[str, Tensor] | None = None) -> None:
    """Writes the scorer into `folder` (which the caller makes appear whole); equal weights give equal bytes.

    `weights`, by parameter name, take the place of its own, which a trainer may have spread over ranks; those that the
    scorer has no parameter for are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = dict(scorer.named_parameters())
    chosen = own if weights is None else {name: weights[name] for name in own}
    save_file(
        {name: weight.detach().float().cpu().contiguous() for name, weight in chosen.items()},
        folder / WEIGHTS,
        metadata={"format": "pt"},
    )
    write_json(folder / CONFIG, scorer.config.model_dump())
    write_text_atomically(folder / TOKENIZER, scorer.tokenizer.to_str(pretty=True))
