"""Losses of rewards on images: rankings, image-text scores and feedback through the sampler."""

import math

import pytest
import torch
from diffusers import DDIMScheduler

from stages.images.algorithms.text_to_image_losses import (
    best_of_each,
    best_share,
    contrastive_loss,
    diffusion_preference_loss,
    drawn_with_gradient,
    feedback_loss,
    guess_at,
    matching_loss,
    pairs_from_ranking,
    pairwise_ranking_loss,
    scaled_rewards,
)


def test_loss_by_hand():
    # -log sigmoid(2 - 1) = log(1 + e^-1) = 0.313262; -log sigmoid(0 - 3) = log(1 + e^3) = 3.048587; mean 1.680924.
    loss = pairwise_ranking_loss(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 3.0]))
    assert loss.item() == pytest.approx(1.680924, abs=1e-5)
    assert pairwise_ranking_loss(torch.ones(4), torch.ones(4)).item() == pytest.approx(math.log(2))


def test_loss_edges():
    nothing = torch.zeros(0, requires_grad=True)
    loss = pairwise_ranking_loss(nothing, nothing)
    loss.backward()
    assert loss.item() == 0.0 and nothing.grad.shape == (0,)
    assert pairwise_ranking_loss(torch.tensor([-1e4]), torch.tensor([1e4])).item() == pytest.approx(2e4)


def test_pairs_by_hand():
    # Item 1 is best, items 0 and 3 tie, item 2 is last.
    assert pairs_from_ranking([2, 1, 3, 2]) == [(0, 2), (1, 0), (1, 2), (1, 3), (3, 2)]
    assert pairs_from_ranking(torch.tensor([2, 1, 3, 2])) == pairs_from_ranking([2, 1, 3, 2])
    assert pairs_from_ranking([]) == [] == pairs_from_ranking([1]) == pairs_from_ranking([4, 4, 4])


def unit(*shape, seed=0):
    vectors = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(vectors, dim=-1)


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


TIMESTEPS = [30, 20, 10]


def recording_step(weight, seen):
    """previous = weight * latents, clean = 10 * weight * latents."""

    def step(latents, timestep):
        seen.append((timestep, torch.is_grad_enabled()))
        return weight * latents, 10 * weight * latents

    return step


def test_the_loss_by_hand():
    # relu(2 - 0.5) = 1.5; 2.5 is beyond the bound
    rewards = torch.tensor([0.5, 2.0, 2.5], requires_grad=True)
    loss = feedback_loss(rewards, bound=2.0)
    assert loss.tolist() == [1.5, 0.0, 0.0]
    loss.sum().backward()
    assert rewards.grad.tolist() == [-1.0, 0.0, 0.0]
    assert feedback_loss(torch.tensor([0.5]), None).tolist() == [-0.5]


def test_refl_calls_with_timestep_values_and_one_gradient():
    weight, seen = torch.tensor(3.0, requires_grad=True), []
    guess = guess_at(torch.tensor([1.0]), TIMESTEPS, 2, recording_step(weight, seen))
    # two steps without gradient: 9; then 10 w * 9, whose derivative is 90 and not that of 10 w^3
    assert seen == [(30, False), (20, False), (10, True)]
    assert guess.item() == 270.0
    guess.sum().backward()
    assert weight.grad.item() == 90.0


@pytest.mark.parametrize("gradient_steps, derivative", [(1, 9.0), (2, 18.0), (3, 27.0)])
def test_draft_has_the_gradient_of_its_last_steps(gradient_steps, derivative):
    weight, seen = torch.tensor(3.0, requires_grad=True), []
    drawn = drawn_with_gradient(torch.tensor([1.0]), TIMESTEPS, gradient_steps, recording_step(weight, seen))
    # 27 = 3^3; with k steps in the gradient it is d/dw of 3^(3-k) w^k = k 9
    assert drawn.item() == 27.0
    drawn.sum().backward()
    assert weight.grad.item() == derivative
    with pytest.raises(ValueError, match="gradient_steps 4"):
        drawn_with_gradient(torch.tensor([1.0]), TIMESTEPS, 4, recording_step(weight, seen))


def test_the_preference_loss_by_hand():
    # better got 0.02 less wrong than its reference, worse 0.01 more: -0.03 gained, times -beta/2 = -50 gives 1.5
    loss = diffusion_preference_loss(
        torch.tensor([0.10, 0.10]),
        torch.tensor([0.21, 0.10]),
        torch.tensor([0.12, 0.10]),
        torch.tensor([0.20, 0.10]),
        beta=100.0,
    )
    assert loss.tolist() == pytest.approx([math.log(1 + math.exp(-1.5)), math.log(2)], rel=1e-5)


@pytest.mark.parametrize("kind", ["sample", "epsilon", "v_prediction"])
@pytest.mark.parametrize("position", [0, 7, 15])
def test_a_known_denoiser_gives_the_clean_image_back_at_any_step(kind, position):
    """A denoiser that knows x0 must lead to x0. With an index in place of the timestep's value it does not."""
    scheduler = DDIMScheduler(
        prediction_type=kind, clip_sample=False, timestep_spacing="trailing", beta_schedule="scaled_linear"
    )
    scheduler.set_timesteps(16)
    timesteps = scheduler.timesteps.tolist()
    torch.manual_seed(0)
    clean, start = torch.rand(2, 3, 4, 4), torch.randn(2, 3, 4, 4)

    def step_by(timestep_of):
        def step(latents, timestep):
            kept = scheduler.alphas_cumprod[timestep_of(timestep)]
            noise = (latents - kept.sqrt() * clean) / (1 - kept).sqrt()
            velocity = kept.sqrt() * noise - (1 - kept).sqrt() * clean
            predicted = {"sample": clean, "epsilon": noise, "v_prediction": velocity}[kind]
            return scheduler.step(predicted, timestep, latents, return_dict=False)

        return step

    guess = guess_at(start, timesteps, position, step_by(lambda timestep: timestep))
    torch.testing.assert_close(guess, clean, rtol=1e-4, atol=1e-4)
    if kind != "sample":  # a clean image does not depend on the time
        by_index = guess_at(start, timesteps, position, step_by(timesteps.index))
        assert (by_index - clean).abs().max() > 0.05


def test_pictures_are_chosen_and_weighed_by_hand():
    rewards = torch.tensor([0.5, -1.0, 3.0, 0.5, 1.0])
    assert best_share(rewards, 0.4).tolist() == [0, 0, 1, 0, 1]
    assert best_share(rewards, 0.7).tolist() == [1, 0, 1, 0, 1], "3 of 3.5; of equal ones the earlier"
    assert best_share(rewards, 0.1).tolist() == [0, 0, 1, 0, 0], "at least one"
    assert scaled_rewards(rewards).tolist() == [0.375, 0.0, 1.0, 0.375, 0.5]
    assert scaled_rewards(torch.full((3,), -2.0)).tolist() == [1, 1, 1]
    assert best_of_each(torch.tensor([[1.0, 2.0, 2.0], [0.0, -1.0, -3.0]])).tolist() == [[0, 1, 0], [1, 0, 0]]
