"""The two losses that teach a pair of encoders which caption belongs to which picture.

Source: BLIP (arXiv 2201.12086, section 3.2), image-text contrastive and image-text matching loss; captions with one
word changed as further columns of the contrast: Yuksekgonul et al. (arXiv 2210.01936, NegCLIP).

Deviations from BLIP:
1. No momentum encoder and no queue: the negatives are the batch's captions and the changed ones.
2. Negatives for matching are given by the caller and not drawn by the contrastive score.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy


def contrastive_loss(
    images: Float[Tensor, "images width"], texts: Float[Tensor, "texts width"], temperature: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """Mean of both directions' cross entropy; unit vectors, image i belongs to text i, further texts belong to none.

    log(texts) and log(images), halved and summed, where all vectors are equal.
    """
    similarity = images @ texts.T / temperature
    own = torch.arange(len(images), device=images.device)
    return (cross_entropy(similarity, own) + cross_entropy(similarity[:, : len(images)].T, own)) / 2


def matching_loss(logits: Float[Tensor, "images captions 2"]) -> Float[Tensor, ""]:
    """Cross entropy of match or no match; of each image's captions the first is its own and the others are not.

    The own caption weighs as much as all the others together. log 2 where the logits are equal.
    """
    logprobs = logits.log_softmax(-1)
    return -(logprobs[:, 0, 1].mean() + logprobs[:, 1:, 0].mean()) / 2
