"""Advantages per token: two streams with their own discounts, and every estimator from its parameters."""

from dataclasses import replace

import pytest
import torch

from stages.algorithms.advantages import logit_gradient_proxy, optimal_token_baseline
from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Sample, StopReason
from stages.rl_round.params import RlParams
from stages.rl_round.records import Group, Rollout
from stages.rl_round.samples import rows, training_samples
from stages.rl_round.update import with_advantages
from tests.fakes.taught_policy import PARAMS

OTB = {"kind": "optimal_token_baseline", "lone_tail": "return", "is_importance_weighted": False}
CENTRED = {"kind": "group_normalized", "divide_by_std": False}


def params(**changes):
    return RlParams.model_validate({**PARAMS["rl"], **changes})


def rollout(tokens, reward):
    sample = Sample(tokens, [-1.0] * len(tokens), StopReason.END_OF_SEQUENCE, 0)
    return Rollout(sample, "", Verdict.CORRECT if reward > 0 else Verdict.WRONG, reward)


def by_response(values, samples):
    return [row[:tokens].tolist() for row, tokens in zip(values, samples.response_tokens, strict=True)]


def advantages(rollouts, **changes):
    samples = training_samples([Group("a", [1], tuple(rollouts))], params(**changes), 0)
    return by_response(with_advantages(samples, params(**changes)).advantages, samples)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (CENTRED, [1.0, -1.0]),  # mean 0
        ({"kind": "group_normalized", "divide_by_std": True}, [2**-0.5, -(2**-0.5)]),  # sample deviation sqrt 2
        ({"kind": "leave_one_out"}, [2.0, -2.0]),  # minus the other's reward
        ({"kind": "length_weighted"}, [1.5, -0.5]),  # lengths 1 and 3: baseline (1 - 3) / 4
        ({"kind": "reward"}, [1.0, -1.0]),
    ],
)
def test_estimators_of_whole_responses(advantage, expected):
    found = advantages([rollout([5], 1.0), rollout([6, 7, 8], -1.0)], advantage=advantage)
    assert [len(row) for row in found] == [1, 3]
    for row, value in zip(found, expected, strict=True):
        assert row == pytest.approx([value] * len(row), abs=1e-5)


def test_the_outcome_is_discounted_towards_the_first_token():
    found = advantages([rollout([5, 6, 7], 1.0), rollout([8], -1.0)], advantage=CENTRED, study={"reward_discount": 0.5})
    assert found == [pytest.approx([0.25, 0.5, 1.0]), pytest.approx([-1.0])]


def test_the_penalty_is_a_stream_of_its_own_with_its_own_discount():
    penalty = {"kind": "ngram", "n": 2, "penalty": -0.1, "discount": 0.5}
    # 5 6 5 6: the second 5 6 repeats. To go: tokens 2 and 3 carry -0.1, so t3 -0.1, t2 -0.15, t1 -0.075, t0 -0.0375.
    rollouts = [rollout([5, 6, 5, 6], 1.0), rollout([7, 8], -1.0)]
    found = advantages(rollouts, advantage=CENTRED, study={"repetition_penalty": penalty})
    assert found == [pytest.approx([0.9625, 0.925, 0.85, 0.9]), pytest.approx([-1.0, -1.0])]
    both = advantages(rollouts, advantage=CENTRED, study={"repetition_penalty": penalty, "reward_discount": 0.5})
    assert both[0] == pytest.approx([0.125 - 0.0375, 0.25 - 0.075, 0.5 - 0.15, 1 - 0.1])


def test_repeated_tokens_are_counted():
    penalty = {"kind": "ngram", "n": 2, "penalty": -0.1, "discount": 1.0}
    group = Group("a", [1], (rollout([5, 6, 5, 6], 1.0), rollout([7, 8], -1.0)))
    choice = params(study={"repetition_penalty": penalty})
    found = with_advantages(training_samples([group], choice, 0), choice)
    assert found.penalised.tolist() == [[False, False, True, True], [False] * 4]


def trained(*groups):
    """Samples of groups of (tokens, reward, probabilities, sums of squared probabilities), as the trainer sees them."""
    made = [Group("a", [1], tuple(rollout(tokens, reward) for tokens, reward, _, _ in group)) for group in groups]
    samples = training_samples(made, params(), 0)
    probs, squares = ([row[place] for group in groups for row in group] for place in (2, 3))
    logprobs = rows([torch.tensor(row).log().tolist() for row in probs], samples.response_mask)
    squared = rows(squares, samples.response_mask)
    return replace(samples, proximal_logprobs=logprobs, sum_squared_probs=squared)


def test_the_optimal_token_baseline_worked_by_hand():
    """Two responses of one group, rewards 1 and 0, both of one token.

    Proxies 1 - 2p + q: p = 0.5, q = 0.5 gives 0.5; p = 0.25, q = 0.4 gives 0.9. Baseline 0.5 / 1.4 at that token.
    """
    samples = trained([([5], 1.0, [0.5], [0.5]), ([6], 0.0, [0.25], [0.4])])
    found = with_advantages(samples, params(advantage=OTB)).advantages
    assert found[:, 0].tolist() == pytest.approx([1 - 5 / 14, -5 / 14])


@pytest.mark.parametrize(("lone_tail", "tail"), [("return", [1.0, 1.0]), ("zero", [0.0, 0.0])])
def test_the_lone_tail_follows_its_rule(lone_tail, tail):
    samples = trained([([5, 6, 7], 1.0, [0.5] * 3, [0.5] * 3), ([6], 0.0, [0.25], [0.4])], [([8], 1.0, [0.5], [0.5])])
    found = with_advantages(samples, params(advantage={**OTB, "lone_tail": lone_tail})).advantages
    assert found[0, 1:].tolist() == pytest.approx(tail)
    assert found[2, :1].tolist() == pytest.approx(tail[:1])  # a group of one is a tail from its first token on


def test_both_streams_enter_the_token_baseline_and_weights_its_energy():
    penalty = {"kind": "ngram", "n": 2, "penalty": -0.1, "discount": 1.0}
    samples = trained([([5, 6, 5, 6], 1.0, [0.2, 0.4, 0.6, 0.8], [0.3] * 4), ([7, 8], 0.0, [0.3, 0.5], [0.4] * 2)])
    weighted = {**OTB, "is_importance_weighted": True}
    correction = {"kind": "importance_weights", "level": "token", "cap": 1.5}
    choice = params(advantage=weighted, rollout_correction=correction, study={"repetition_penalty": penalty})
    found = with_advantages(samples, choice).advantages
    returns = torch.tensor([[0.8, 0.8, 0.8, 0.9], [0.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    probs = torch.tensor([[0.2, 0.4, 0.6, 0.8], [0.3, 0.5, 1.0, 1.0]])
    squares = torch.tensor([[0.3] * 4, [0.4] * 4])
    weights = (probs / torch.tensor(-1.0).exp()).clamp(max=1.5)
    baseline = optimal_token_baseline(
        returns, mask, logit_gradient_proxy(probs.log(), squares), torch.tensor([0, 0]), weights, "return"
    )
    assert torch.allclose(found, (returns - baseline) * mask, atol=1e-6)
