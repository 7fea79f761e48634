"""A scorer of 8x8 pictures with a few hundred weights of which every head is there."""

from __future__ import annotations

from stages.engines.image_scorers.config import ScorerConfig
from stages.engines.image_scorers.scorer import ImageScorer, caption_tokenizer, new_scorer

PROMPTS = ["a red circle", "two blue squares", "a circle", "a red square above a blue circle"]
ENCODER = {"hidden_size": 8, "layers": 2, "heads": 2, "feed_forward_size": 16}


def tiny_scorer(seed: int = 0, **changed: object) -> ImageScorer:
    """The same weights for the same seed and changes of its config."""
    tokenizer = caption_tokenizer(PROMPTS)
    config = {
        "vision": ENCODER,
        "text": ENCODER,
        "image_size": 8,
        "patch_size": 4,
        "pixel_mean": (0.5, 0.4, 0.3),
        "pixel_std": (0.2, 0.3, 0.4),
        "vocabulary": tokenizer.get_vocab_size(),
        "max_text_tokens": 12,
        "text_positions": 12,
        "text_dropout": 0.1,
        "projection_size": 4,
        "has_matching_head": True,
        "matching_token_id": None,
        "reward_head": {"widths": [6, 3], "dropouts": [0.1]},
        "reward_mean": 0.0,
        "reward_std": 1.0,
    }
    return new_scorer(ScorerConfig.model_validate(config | changed), tokenizer, 0.3, 0.3, seed)
