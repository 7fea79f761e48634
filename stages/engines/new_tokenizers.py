"""Makes tokenizers for networks that start from random weights, without loading torch.

Byte pairs are for policies. A token for each word is for networks that learn the few words of a small world.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# Ids 0 and 1: the trainer numbers special tokens first.
PAD, END = "<pad>", "<eos>"


def byte_level_tokenizer(corpus: Iterable[str], vocabulary_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer that keeps runs of digits together.

    It has at most `vocabulary_size` entries: fewer when the corpus has no further pair to merge. Every byte has a
    token, so any text can be read.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, END],
        # Sorted: `alphabet` comes in the order of a hash table, and equal corpora must give equal ids.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


UNKNOWN = "[UNK]"


def word_tokenizer(texts: Iterable[str], marks: Sequence[str]) -> Tokenizer:
    """One token a word or punctuation mark of `texts`, without case, after those of `marks`; other words are unknown.

    `marks` must hold `[UNK]`.
    """
    normalizer, splitter = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    words = {word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))}
    # Sorted for equal ids in every process: sets of text are ordered by a hash that differs between them.
    ids = {word: number for number, word in enumerate([*marks, *sorted(words)])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    return tokenizer
