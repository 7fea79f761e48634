"""Dynamic vocabulary pruning: probabilities over the tokens that are not too far below the likeliest one.

Source: "Taming the Tail" (arXiv 2512.23087), re-derived: S = {v : pi(v) >= rho max pi} <=> z_v >= z_max + log rho
(the min-p rule), log pi_S(a) = z_a - LSE_S(z), S treated as a constant. The rule does not depend on a shift of the
logits but does on their scale: apply it after the temperature, on the sampler's side and the trainer's alike.

Deviations:
1. A sampled token outside S (the engines' sets differ at the border) is added to the S of its own position: its
   log-probability is then finite, its gradient is that of a member, and it is reported. The caller counts it and may
   drop the token or the response.
2. The threshold of the paper could not be read; e^-13 is a recollection. It has no default here.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def safe_vocabulary(
    logits: Float[Tensor, "*batch vocab"], log_threshold: float
) -> Bool[Tensor, "*batch vocab"]:
    """True for the tokens with z_v >= z_max + log_threshold; log_threshold = log rho <= 0, in nats.

    The likeliest token is always in, with its ties; -inf keeps everything. ValueError on a threshold above 0.
    """
    if not log_threshold <= 0:
        raise ValueError(f"log_threshold must be at most 0, not {log_threshold}: it is log(p / p_max)")
    return logits >= logits.amax(-1, keepdim=True) + log_threshold


def pruned_logprobs(
    logits: Float[Tensor, "batch tokens vocab"], token_ids: Int[Tensor, "batch tokens"], log_threshold: float
) -> tuple[Float[Tensor, "batch tokens"], Bool[Tensor, "batch tokens"]]:
    """Log-probabilities of `token_ids` renormalised over the safe vocabulary, and which of them lay outside it.

    Never -inf: a token outside S counts as a member at its own position (deviation 1). Gradients flow to the logits of
    members only. The plain version of what `token_statistics` does without holding the logits.
    """
    chosen = token_ids[..., None]
    is_safe = safe_vocabulary(logits.detach(), log_threshold)
    outside = ~is_safe.gather(-1, chosen)[..., 0]
    kept = torch.where(is_safe.scatter(-1, chosen, True), logits, -torch.inf)
    return logits.gather(-1, chosen)[..., 0] - kept.logsumexp(-1), outside
