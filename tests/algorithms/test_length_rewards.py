import math

import numpy as np
import pytest
import torch

from stages.algorithms.length_rewards import (
    cosine_length_reward,
    discounted_to_go,
    ngram_repetition_penalty,
    soft_overlong_punishment,
)


def slow_to_go(rewards, mask, gamma):
    totals = np.zeros_like(rewards)
    for b in range(rewards.shape[0]):
        total = 0.0
        for t in reversed(range(rewards.shape[1])):
            if mask[b, t]:
                total = rewards[b, t] + gamma * total
                totals[b, t] = total
    return totals


def test_soft_overlong_punishment_by_hand():
    # DAPO's setting: 20480 tokens, the last 4096 of them soft, so it starts at 16384.
    # Half-way through, 18432: (16384 - 18432) / 4096 = -0.5. One token in: -1 / 4096.
    cases = {0: 0, 16384: 0, 16385: -1 / 4096, 18432: -0.5, 20480: -1, 20481: -1, 99999: -1}
    for tokens, expected in cases.items():
        assert soft_overlong_punishment(tokens, 20480, 4096) == expected


def test_a_buffer_of_zero_is_a_step_and_a_senseless_one_is_refused():
    assert [soft_overlong_punishment(tokens, 10, 0) for tokens in (9, 10, 11)] == [0, 0, -1]
    for buffer_tokens in (-1, 11):
        with pytest.raises(ValueError, match="buffer_tokens"):
            soft_overlong_punishment(5, 10, buffer_tokens)


def test_cosine_length_reward_by_hand():
    # Correct, half-way: 1 + 0.5 (2 - 1)(1 + cos(pi / 2)) = 1.5. Wrong, half-way: 0 + 0.5 (-10)(1 + 0) = -5.
    # Correct at a third: cos(pi / 3) = 0.5, so 1 + 0.5 * 1.5 = 1.75.
    assert cosine_length_reward(True, 0, 600) == 2
    assert cosine_length_reward(True, 300, 600) == pytest.approx(1.5)
    assert cosine_length_reward(True, 200, 600) == pytest.approx(1.75)
    assert cosine_length_reward(False, 0, 600) == -10
    assert cosine_length_reward(False, 300, 600) == pytest.approx(-5)
    for is_correct in (True, False):
        assert cosine_length_reward(is_correct, 600, 600) == -10
    assert cosine_length_reward(True, 3, 6, 10.0, 9.0, -1.0, 0.5, -7.0) == pytest.approx(9.5)
    assert cosine_length_reward(False, 3, 6, 10.0, 9.0, -1.0, 0.5, -7.0) == pytest.approx(-0.25)


def test_cosine_length_reward_is_monotone_and_constant_past_the_limit():
    correct = [cosine_length_reward(True, tokens, 500) for tokens in range(500)]
    wrong = [cosine_length_reward(False, tokens, 500) for tokens in range(500)]
    assert correct == sorted(correct, reverse=True) and wrong == sorted(wrong)
    assert min(correct) > 1 - 1e-9 and max(wrong) < 0 + 1e-9  # correct stays above wrong at every length
    assert {cosine_length_reward(True, tokens, 500) for tokens in (500, 501, 750, 1000)} == {-10.0}
    with pytest.raises(ValueError, match="max_tokens"):
        cosine_length_reward(True, 0, 0)


def test_repetition_penalty_by_hand():
    # Trigrams of a b c a b c a: (a b c) (b c a) (c a b), then (a b c) at 3 and (b c a) at 4 are repeats: tokens 3 to 6.
    rewards = ngram_repetition_penalty(torch.tensor([1, 2, 3, 1, 2, 3, 1]), n=3, penalty=-0.5)
    assert rewards.tolist() == [0, 0, 0, -0.5, -0.5, -0.5, -0.5]
    # Overlapping repeats set the penalty once, they do not add it: bigrams of a a a a repeat at 1 and 2.
    assert ngram_repetition_penalty([5, 5, 5, 5], n=2, penalty=-1.0).tolist() == [0, -1, -1, -1]


def test_repetition_penalty_edges():
    assert ngram_repetition_penalty(torch.arange(1000)).tolist() == [0.0] * 1000
    for length in (0, 1, 39, 40):
        assert ngram_repetition_penalty([7] * length).tolist() == [0.0] * length
    assert ngram_repetition_penalty([7] * 41).tolist() == pytest.approx([0.0] + [-0.05] * 40)
    # 256 and 1 share bytes when shifted; whole ids must be compared.
    assert ngram_repetition_penalty([256, 1, 65536, 256], n=2).tolist() == [0.0] * 4
    with pytest.raises(ValueError, match="at least 1"):
        ngram_repetition_penalty([1], n=0)


def test_discounted_to_go_by_hand():
    rewards = torch.tensor([[1.0, 0.0, 2.0, 50.0]])
    mask = torch.tensor([[1, 1, 1, 0]])
    # From the end: 2; 0 + 0.5 * 2 = 1; 1 + 0.5 * 1 = 1.5. The padding's 50 counts for nothing.
    assert discounted_to_go(rewards, mask, 0.5).tolist() == [[1.5, 1.0, 2.0, 0.0]]
    # A hole (tool output) costs no discount: 1 + 0.5 * 2.
    assert discounted_to_go(rewards, torch.tensor([[1, 0, 1, 0]]), 0.5).tolist() == [[2.0, 0.0, 2.0, 0.0]]


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("tokens", [1, 7, 65])
def test_discounted_to_go_against_loops(gamma, tokens):
    rng = np.random.default_rng(tokens)
    rewards, mask = rng.normal(size=(4, tokens)), rng.random((4, tokens)) < 0.8
    ours = discounted_to_go(torch.tensor(rewards), torch.tensor(mask), gamma)
    np.testing.assert_allclose(ours, slow_to_go(rewards, mask, gamma), atol=1e-12)


def test_discounted_to_go_of_a_last_reward():
    rewards = torch.zeros(1, 5000)
    rewards[0, -1] = 1.0
    to_go = discounted_to_go(rewards, torch.ones(1, 5000), 0.999)
    torch.testing.assert_close(to_go[0], 0.999 ** torch.arange(4999, -1, -1, dtype=torch.float64).float())
    assert (discounted_to_go(rewards, torch.ones(1, 5000), 1.0) == 1).all()


def test_discounted_to_go_edges():
    nothing = discounted_to_go(torch.full((2, 3), math.nan), torch.zeros(2, 3), 0.9)
    assert (nothing == 0).all()
    assert discounted_to_go(torch.ones(2, 0), torch.ones(2, 0), 0.9).shape == (2, 0)
    for gamma in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="gamma"):
            discounted_to_go(torch.ones(1, 1), torch.ones(1, 1), gamma)
