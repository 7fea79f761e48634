"""Trains tokenizers for random policies, without loading torch."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer
