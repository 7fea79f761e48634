"""Turns demonstrations into token sequences, counting those that do not fit."""

from __future__ import annotations

import pandas

from stages.engines.policies.packing import TokenSequence
from stages.engines.policies.tokenizers import encode_prompt, encode_response
from stages.foundations.funnel import Funnel
from stages.foundations.prompts import ChatPrompt, PlainPrompt
from stages.observe.progress import progress


def encode_demonstrations(
    frame: pandas.DataFrame,
    tokenizer,
    prompt: PlainPrompt | ChatPrompt,
    max_sequence_tokens: int,
    funnel: Funnel,
) -> list[TokenSequence]:
    """One sequence per row of a `demonstration` table, responses ending with the end-of-sequence token.

    Rows longer than `max_sequence_tokens` are dropped: cut responses would teach the policy not to end.
    """
    sequences = []
    for row in progress(frame.to_dict("records"), label="sft: tokens of demonstrations"):
        sequence = TokenSequence(
            encode_prompt(tokenizer, prompt, row["problem"]), encode_response(tokenizer, row["response"])
        )
        if sequence.tokens > max_sequence_tokens:
            funnel.drop(row, "too_long", f"{sequence.tokens} tokens, limit {max_sequence_tokens}")
        else:
            sequences.append(sequence)
    return sequences
