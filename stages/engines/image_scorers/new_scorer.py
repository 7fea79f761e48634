"""A scorer that has learnt nothing yet, with a word for each word of its captions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, processors

from stages.engines.image_scorers.config import ScorerConfig
from stages.engines.image_scorers.scorer import PAD, ImageScorer
from stages.engines.word_tokenizers import UNKNOWN, word_tokenizer

CLS, SEP = "[CLS]", "[SEP]"


def caption_tokenizer(captions: Iterable[str]) -> Tokenizer:
    """One token for each word in `captions`, without case, between BERT's [CLS] and [SEP]; other words are unknown."""
    tokenizer = word_tokenizer(captions, [PAD, UNKNOWN, CLS, SEP])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", special_tokens=[(mark, tokenizer.token_to_id(mark)) for mark in (CLS, SEP)]
    )
    return tokenizer


def new_scorer(
    config: ScorerConfig, tokenizer: Tokenizer, initializer_range: float, position_range: float, seed: int
) -> ImageScorer:
    """A scorer with random weights, of `position_range` for the patches' positions; equal arguments, equal weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        scorer = ImageScorer(config, tokenizer, initializer_range)
        torch.nn.init.normal_(scorer.vision.embeddings.position_embedding, std=position_range)
        return scorer
