"""Losses of captions: by hand, against loops, and that they fall the right way."""

import math

import pytest
import torch

from stages.algorithms.text_to_image_losses import contrastive_loss, matching_loss


def unit(*shape, seed=0):
    vectors = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors, dim=-1)


def test_the_contrast_of_equal_vectors_is_the_log_of_their_numbers():
    same = torch.tensor([[1.0, 0.0]])
    loss = contrastive_loss(same.repeat(2, 1), same.repeat(6, 1), torch.tensor(0.1))
    assert float(loss) == pytest.approx((math.log(6) + math.log(2)) / 2)


def test_the_contrast_agrees_with_loops():
    images, texts = unit(3, 4), unit(7, 4, seed=1)
    total = 0.0
    for one in range(3):
        to_texts = [math.exp(float(images[one] @ text) / 0.2) for text in texts]
        to_images = [math.exp(float(image @ texts[one]) / 0.2) for image in images]
        total += -math.log(to_texts[one] / sum(to_texts)) / 3 - math.log(to_images[one] / sum(to_images)) / 3
    assert float(contrastive_loss(images, texts, torch.tensor(0.2))) == pytest.approx(total / 2, rel=1e-5)


def test_matching_weighs_the_true_caption_as_much_as_the_others_together():
    logits = torch.zeros(1, 4, 2)
    assert float(matching_loss(logits)) == pytest.approx(math.log(2))
    logits[0, 0, 1] = 2.0  # the true caption: -log sigmoid(2) = 0.126928
    assert float(matching_loss(logits)) == pytest.approx((0.126928 + math.log(2)) / 2, rel=1e-5)


def test_a_step_raises_the_true_caption_and_lowers_the_false_ones():
    logits = torch.zeros(2, 3, 2, requires_grad=True)
    matching_loss(logits).backward()
    odds = -(logits.grad[..., 1] - logits.grad[..., 0])
    assert (odds[:, 0] > 0).all() and (odds[:, 1:] < 0).all()
