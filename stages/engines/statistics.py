"""Token statistics of packed responses from a transformers model: the only way a trainer gets log-probs."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from stages.algorithms.token_statistics import TokenStatistics, token_statistics
from stages.engines.packing import ResponseBatch
from stages.foundations.errors import UserError

CHUNK_TOKENS = 4096
"""Tokens whose logits exist at once: 4,096 x 151,936 in float32 is 2.5 GB, and small vocabularies lose nothing."""


def refuse_scaled_logits(model: PreTrainedModel) -> None:
    """UserError for models whose logits are not hidden states times the head (soft caps, logit scales)."""
    for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"):
        if getattr(model.config, name, None) not in (None, 1, 1.0):
            raise UserError(
                f"the policy's config sets {name}: its logits are not head times hidden state, "
                "which training relies on; choose a policy without it"
            )


def policy_statistics(
    model: PreTrainedModel, batch: ResponseBatch, chunk_tokens: int = CHUNK_TOKENS
) -> TokenStatistics:
    """Statistics [responses, tokens] of the batch's response tokens; 0 where the mask is 0. Gradients flow.

    At the batch's temperature and over its safe vocabulary; `outside` tells the tokens that lie outside that. Only
    hidden states that predict a response token meet the head.
    """
    mask = batch.attention_mask(model.dtype)
    hidden = model.base_model(
        input_ids=batch.row_ids,
        position_ids=None if batch.segment_ids is None else batch.position_ids,
        attention_mask=mask,
        use_cache=False,
    ).last_hidden_state
    counted = batch.response_mask.bool()
    statistics = token_statistics(
        hidden.flatten(0, 1)[batch.source[counted]][None],
        model.get_output_embeddings().weight,
        batch.response_ids[counted][None],
        temperature=batch.temperature,
        log_threshold=batch.log_threshold,
        chunk_tokens=chunk_tokens,
    )
    spread = TokenStatistics(*(_spread(value, counted) for value in statistics))
    spread.outside = _spread(statistics.outside, counted)
    return spread


def _spread(values: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    return torch.zeros(counted.shape, dtype=values.dtype, device=values.device).masked_scatter(
        counted, values
    )
