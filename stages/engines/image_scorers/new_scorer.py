"""A scorer that has learnt nothing yet, with a word for each word of its captions."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from stages.engines.image_scorers.config import ScorerConfig
from stages.engines.image_scorers.scorer import PAD, ImageScorer

UNKNOWN, CLS, SEP = "[UNK]", "[CLS]", "[SEP]"


def word_tokenizer(captions: Iterable[str]) -> Tokenizer:
    """One token for each word in `captions`, without case, between BERT's [CLS] and [SEP]; other words are unknown."""
    normalizer = normalizers.Lowercase()
    splitter = pre_tokenizers.Whitespace()
    words = {
        word
        for caption in captions
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(caption))
    }
    vocabulary = {word: number for number, word in enumerate([PAD, UNKNOWN, CLS, SEP, *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{CLS} $A {SEP}", special_tokens=[(CLS, vocabulary[CLS]), (SEP, vocabulary[SEP])]
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
