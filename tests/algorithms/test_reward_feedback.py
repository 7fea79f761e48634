"""Feedback to a generator: worked by hand, which steps have a gradient, and which way one gradient step goes."""

import math

import pytest
import torch
from diffusers import DDIMScheduler

from stages.algorithms.text_to_image_losses import (
    diffusion_preference_loss,
    drawn_with_gradient,
    feedback_loss,
    guess_at,
)

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


def test_the_preference_loss_is_of_each_pair():
    """The mean of losses is not the loss of mean errors: what a pair weighs does not depend on its batch."""
    torch.manual_seed(0)
    errors = [torch.rand(4) for _ in range(4)]
    together = diffusion_preference_loss(*errors, beta=5.0)
    alone = [diffusion_preference_loss(*(one[i : i + 1] for one in errors), beta=5.0) for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone))
    of_means = diffusion_preference_loss(*(one.mean().reshape(1) for one in errors), beta=5.0)
    assert abs(together.mean() - of_means) > 1e-3


def test_a_step_against_the_preference_loss_denoises_the_better_image_better():
    better, worse = (torch.tensor([0.1], requires_grad=True) for _ in range(2))
    diffusion_preference_loss(better, worse, torch.tensor([0.1]), torch.tensor([0.1]), 10.0).sum().backward()
    assert better.grad > 0 > worse.grad, "a step against the gradient lowers the better image's error"


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
