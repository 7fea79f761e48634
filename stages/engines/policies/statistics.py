"""Token statistics of packed responses from a transformers model: the only source of a trainer's log-probs.

The last part is attention for GPUs, within sequences that follow each other in a row without padding. A mask
[tokens, tokens] would exclude flash kernels, and cost tokens^2 instead of the sum of the squared lengths. The kernel
is torch's (`torch.nn.attention.varlen`, 16-bit numbers only), with transformers' interface of an attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel

from stages.algorithms.rollout_corrections import exact_divergences, likeliest_divergences
from stages.algorithms.token_statistics import TokenStatistics, capped, listed_statistics, token_statistics
from stages.engines.policies.packing import ResponseBatch
from stages.engines.trainers.params import CHUNK_TOKENS

DIVERGENCE_ELEMENTS = 1 << 25
"""Logits that exist at once while divergences are computed: 256 MB in float64, with intermediates a few times that."""


class Head(NamedTuple):
    """How a model computes logits from hidden states: scale * capped(hidden @ weight.T, cap)."""

    weight: Tensor
    scale: float
    cap: float | None


def head_of(model: PreTrainedModel) -> Head:
    """Returns the head that the config describes. The forward probe detects what it lacks (a bias, a multiplier)."""
    config = model.config.get_text_config()
    # Cohere multiplies the logits, Granite divides them, Gemma 2 caps them.
    scale = (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)
    # In a config the cap is for the scaled logits; here it is applied before the scale, which may be merged with the
    # temperature.
    return Head(model.get_output_embeddings().weight, scale, cap / scale if cap else None)


class PolicyStatistics(TokenStatistics):
    """Token statistics and, if the sampler's distributions are kept, their divergence from the policy's."""

    divergence: Tensor | None = None
    """KL(rollout || policy) at each token, float64, no gradient, or its lower bound from the likeliest tokens; None if
    the distributions are not kept."""


def policy_statistics(
    model: PreTrainedModel, batch: ResponseBatch, chunk_tokens: int = CHUNK_TOKENS
) -> PolicyStatistics:
    """Returns statistics [responses, tokens] of the batch's response tokens, with gradients; 0 where the mask is 0.

    At the batch's temperature and over its safe vocabulary, or over the sampler's set; `outside` marks the tokens
    outside of it. The head is applied only to hidden states that predict a response token.
    """
    predicting, token_ids = hidden_states(model, batch), batch.response_ids.flatten()[batch.counted]
    # Only now: under ZeRO 3 a tied head is the embedding, which is released when the body is done.
    head = head_of(model)
    settings = {"temperature": batch.temperature / head.scale, "chunk_tokens": chunk_tokens, "cap": head.cap}
    if batch.sampler_sets is None:
        settings["log_threshold"] = batch.log_threshold
        statistics = token_statistics(predicting[None], head.weight, token_ids[None], **settings)
    else:
        _check_rows(batch.sampler_sets, batch, 2 * batch.likeliest)
        likeliest = torch.cat(batch.sampler_sets).to(predicting.device)
        statistics = listed_statistics(predicting, head.weight, token_ids, likeliest, **settings)
    in_place = PolicyStatistics(*(spread(value, batch) for value in statistics))
    # These are attributes, not fields of the tuple, so the line above does not handle them.
    in_place.outside, in_place.pruned_mass = spread(statistics.outside, batch), spread(statistics.pruned_mass, batch)
    if batch.rollout_distributions is not None:
        in_place.divergence = spread(rollout_divergences(predicting, head, batch, chunk_tokens), batch)
    return in_place


def hidden_states(model: PreTrainedModel, batch: ResponseBatch) -> Tensor:
    """Returns the hidden state before each counted token: [counted tokens, hidden]. `model` may be a body alone."""
    sources = batch.source.flatten()[batch.counted]
    if uses_varlen_attention(model):
        hidden = model.base_model(
            input_ids=batch.row_ids.flatten()[batch.row_places][None],
            position_ids=batch.position_ids.flatten()[batch.row_places][None],
            use_cache=False,
            ends=batch.ends,
            longest=batch.longest,
        ).last_hidden_state
        # `source` refers to rows with padding; the hidden states have none, so indices are translated.
        places = torch.zeros(batch.row_ids.numel(), dtype=torch.long, device=hidden.device)
        places[batch.row_places] = torch.arange(len(batch.row_places), device=hidden.device)
        return hidden[0].index_select(0, places[sources])
    # The model builds its masks from the positions, which start at 0 in each sequence, and keeps sliding windows. A
    # mask from here would replace all its masks. Padding on the right needs none: no counted token follows it.
    hidden = model.base_model(
        input_ids=batch.row_ids, position_ids=None if batch.segment_ids is None else batch.position_ids, use_cache=False
    ).last_hidden_state
    return hidden.flatten(0, 1).index_select(0, sources)


@torch.no_grad()
def rollout_divergences(hidden: Tensor, head: Head, batch: ResponseBatch, chunk_tokens: int) -> Tensor:
    """Returns KL(rollout || policy) [tokens] in float64 at the batch's response tokens, response after response, or
    its lower bound where only the likeliest tokens are kept.

    `hidden` [tokens, hidden] predicts them. At most `chunk_tokens` and about `DIVERGENCE_ELEMENTS` logits exist at
    once. Raises ValueError if the distributions are not those of these tokens.
    """
    distributions, vocab = batch.rollout_distributions or (), len(head.weight)
    _check_rows(distributions, batch, 2 * batch.likeliest or vocab)
    is_cut = batch.sampler_sets is not None
    size = max(1, min(chunk_tokens, DIVERGENCE_ELEMENTS // vocab))
    temperature = batch.temperature / head.scale
    # The empty first part gives a batch without tokens its shape: torch.cat does not accept an empty list.
    divergences = [torch.zeros(0, dtype=torch.float64, device=hidden.device)]
    for number, rollout in enumerate(_chunks(distributions, size)):
        states = hidden[number * size : (number + 1) * size].to(head.weight.dtype)
        logits, rollout = capped((states @ head.weight.t()).double(), head.cap), rollout.to(hidden.device)
        if batch.likeliest:
            divergences.append(likeliest_divergences(rollout, logits, temperature, is_cut))
        else:
            divergences.append(exact_divergences(rollout, logits, temperature, batch.log_threshold))
    return torch.cat(divergences)


def _check_rows(distributions: Sequence[Tensor], batch: ResponseBatch, columns: int) -> None:
    lengths = [len(rows) for rows in distributions]
    if lengths != batch.response_mask.sum(-1).long().tolist():
        raise ValueError(f"distributions of {lengths} tokens do not belong to the batch's responses")
    if found := {rows.shape[1] for rows in distributions if len(rows)} - {columns}:
        raise ValueError(f"the sampler's distributions have {found} columns, not {columns}: they are another policy's")


def _chunks(distributions: Sequence[Tensor], size: int) -> Iterator[Tensor]:
    """Yields the rows of all distributions, one after another, `size` at a time."""
    for start in range(0, sum(map(len, distributions)), size):
        first, parts = 0, []
        for rows in distributions:
            part = rows[max(0, start - first) : max(0, start + size - first)]
            first += len(rows)
            if len(part):
                parts.append(part)
        yield torch.cat(parts)


def spread(values: Tensor, batch: ResponseBatch) -> Tensor:
    """Returns the values of the counted tokens at their places, [responses, tokens]; 0 elsewhere."""
    places = torch.zeros(batch.response_mask.numel(), dtype=values.dtype, device=values.device)
    # Not in place: gradients must flow through the statistics.
    return places.index_copy(0, batch.counted, values.flatten()).view(batch.response_mask.shape)


# A name that transformers does not use: a model with this attention got it from this module.
NAME = "retrace_varlen"
GROUPED = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
"""Argument that allows fewer key heads than query heads. torch 2.11 lacks it and allows fewer anyway, with equal
results."""


def use_varlen_attention(model: PreTrainedModel, device: torch.device, dtype: torch.dtype) -> None:
    """Sets this attention in a model with torch's usual attention (`sdpa`) that computes in 16 bits on a GPU.

    Any other model keeps its attention.
    """
    if device.type == "cuda" and dtype.itemsize == 2 and model.config._attn_implementation == "sdpa":
        model.config._attn_implementation = NAME


def uses_varlen_attention(model: PreTrainedModel) -> bool:
    """Returns True if the model takes rows without padding."""
    return model.config._attn_implementation == NAME


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    ends: Tensor,
    longest: int,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Computes causal attention in each sequence. `query` [1, heads, tokens, head size]; `key` and `value` have as many
    heads or fewer; `ends` [sequences + 1], int32: start of each sequence and end of the last; `longest` in tokens. With
    a `sliding_window` a token attends to that many tokens, including itself.

    Returns [1, tokens, heads, head size]. Uses the kernel for 16-bit numbers on a GPU; otherwise computes one sequence
    after the other.
    """
    queries, keys, values = (part[0].transpose(0, 1).contiguous() for part in (query, key, value))
    has_groups = query.shape[1] != key.shape[1]
    if query.device.type == "cuda" and query.dtype.itemsize == 2:
        # A window with right side 0 is causal; its left side does not count the token itself.
        mixed = varlen_attn(
            queries,
            keys,
            values,
            ends,
            ends,
            longest,
            longest,
            scale=scaling,
            window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
            **(GROUPED if has_groups else {}),
        )
        return mixed[None], None
    # Without a GPU, for tests and for the probe: the same function without the kernel.
    sizes = ends.diff().tolist()
    parts = zip(*(part.split(sizes) for part in (queries, keys, values)), strict=True)
    mixed = []
    for size, of_one in zip(sizes, parts, strict=True):
        mask = None
        # A sequence that fits into its window needs no mask: causal attention gives the same result.
        if sliding_window is not None and size > sliding_window:
            seen = torch.ones(size, size, dtype=torch.bool, device=query.device)
            mask = seen.tril().triu(1 - sliding_window)
        one = F.scaled_dot_product_attention(
            *(part.transpose(0, 1)[None] for part in of_one),
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=has_groups,
        )
        mixed.append(one[0].transpose(0, 1))
    return torch.cat(mixed)[None], None


# On import, because a model looks up the name in its first forward pass.
AttentionInterface.register(NAME, attend)
