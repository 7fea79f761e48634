"""Tokenizers with a token for each word of some texts: for networks that learn the few words of a small world."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

UNKNOWN = "[UNK]"


def word_tokenizer(texts: Iterable[str], marks: Sequence[str]) -> Tokenizer:
    """One token a word or punctuation mark of `texts`, without case, after those of `marks`; other words are unknown.

    `marks` must hold `[UNK]`.
    """
    normalizer, splitter = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    ids = {word: number for number, word in enumerate([*marks, *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    return tokenizer
