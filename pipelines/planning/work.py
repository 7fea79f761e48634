"""FLOPs of what the stages of a recipe do on their device: tokens through the trainer, tokens drawn.

Products are counted, two FLOPs a multiplication and addition: 2 a weight and token forward, twice that backward
(Kaplan et al., arXiv 2001.08361, section 2.1), attention at its causal half. Stages that read and write tables do
next to nothing of this and are left out of the work, not out of the list.
"""

from __future__ import annotations

from pipelines.planning.shapes import Shape
from stages.foundations.planned_work import Sampling, Training

HEAD_PRODUCTS = 4
"""The head's logits are computed, and computed again while going backward, where their two gradients are made."""


def training_flops(work: Training, shape: Shape, is_checkpointed: bool) -> float:
    """Forward and backward; with gradient checkpointing the layers go forward once more."""
    layers = layer_flops(shape, work.context)
    head = 2 * shape.vocabulary * shape.hidden
    forward_head = head * work.response_tokens / max(1.0, work.tokens)
    return (
        work.tokens * layers * (4 if is_checkpointed else 3)
        + work.response_tokens * head * HEAD_PRODUCTS
        + work.forward_tokens * (layers + forward_head)
    )


def sampling_flops(work: Sampling, shape: Shape) -> float:
    """Prompts read once, then every token drawn."""
    read = work.calls * work.prompts * work.prompt_tokens * layer_flops(shape, work.prompt_tokens)
    return read + work.tokens * token_flops(shape, work.context)


def layer_flops(shape: Shape, context: float) -> float:
    """One token forward through all layers; it attends over half of `context`."""
    return shape.layers * (2 * shape.layer_matrices + 2 * shape.heads * shape.head_size * context)


def token_flops(shape: Shape, attended: float) -> float:
    """One drawn token: all layers over `attended` tokens, and the head."""
    return layer_flops(shape, 2 * attended) + 2 * shape.vocabulary * shape.hidden
