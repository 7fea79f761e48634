"""The update: advantages by token, the responses that it trains on, its divisors, its sign."""

from dataclasses import replace

import pytest
import torch

from stages.algorithms.advantages import logit_gradient_proxy, optimal_token_baseline
from stages.algorithms.answers.verdicts import Verdict
from stages.engines.policies.language_model import language_model
from stages.engines.samplers.protocol import Sample, StopReason
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.rl_round.drawing import make_rollout
from stages.rl_round.records import Group
from stages.rl_round.samples import (
    prepare_samples,
    rows,
    training_samples,
    whitened,
    with_advantages,
    with_proximal_statistics,
)
from stages.rl_round.update import OVER_TOKENS, policy_loss, policy_metrics, update_policy
from tests.fakes.host_waits import HostWaits
from tests.fakes.rounds import GAE, OTB, rollout, settings
from tests.fakes.step_plans import micro_batches, plan_of
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import write_tiny_policy

RL = settings()
TRAINER = TorchTrainerParams.model_validate(PARAMS["trainer"])


GSPO = {"kind": "gspo", "clip_low": 0.0003, "clip_high": 0.0004}


RIGHT, WRONG = (Verdict.CORRECT, 1.0), (Verdict.WRONG, -1.0)
GROUPS = [
    Group("a", [3, 4], (rollout([5, 6], *RIGHT), rollout([7], *WRONG), rollout([8, 9, 10], *WRONG))),
    Group("b", [11], (rollout([12], *RIGHT), rollout([13, 14], Verdict.TIMED_OUT, 0.0), rollout([15], *WRONG))),
]


@pytest.fixture
def trainer(tmp_path):
    write_tiny_policy(tmp_path / "policy")
    return TorchTrainer(TRAINER, RL.optimizer, 1.0, language_model(tmp_path / "policy", TRAINER))


def prepared(groups, params, version=0):
    return with_advantages(training_samples(groups, params, version), params)


def recomputed(samples, trainer, params=RL):
    return with_proximal_statistics(samples, plan_of(samples, params, trainer), params, trainer)


def reported(samples, params, trainer, scale=1.0):
    plan = plan_of(samples, params, trainer)
    return policy_metrics(update_policy(samples, plan, params, scale, trainer), plan, params)


def test_undecided_rollouts_are_neither_trained_on_nor_a_baseline():
    trained = prepared(GROUPS, RL)
    assert len(trained) == 5
    # Group b: rewards 1 and -1, mean 0, sample standard deviation sqrt(2).
    assert trained.advantages[3:, 0].tolist() == pytest.approx([2**-0.5, -(2**-0.5)], abs=1e-5)


def test_surplus_is_not_fresh():
    newer = tuple(replace(one, sample=replace(one.sample, policy_version=1)) for one in GROUPS[1].rollouts)
    trained = prepared([GROUPS[0], replace(GROUPS[1], rollouts=newer)], RL, 1)
    assert trained.is_fresh.tolist() == [False] * 3 + [True] * 2


def test_recomputed_proximal_logprobs_start_with_ratio_one(trainer):
    trained = recomputed(prepared(GROUPS, RL), trainer)
    batches = micro_batches(trained, RL, trainer)
    update = trainer.update(batches, policy_loss(trained, RL), 0.0)
    # Every ratio is 1, so the loss is -sum(advantage x tokens) / tokens.
    expected = -float(trained.advantages.sum()) / sum(trained.response_tokens)
    assert update.loss == pytest.approx(expected, abs=1e-5)
    for end in ("low", "high"):
        assert update.diagnostics[f"{OVER_TOKENS}clip_fraction/{end}"] == 0


@pytest.mark.parametrize(
    "aggregation", ["token_mean", "sequence_mean_token_mean", "sequence_mean_token_sum", "constant"]
)
def test_micro_batches_change_neither_loss_nor_gradient(trainer, aggregation):
    params = settings(aggregation=aggregation, minibatches=1)
    trained = prepared(GROUPS, params)
    updates = []
    for micro_batch_tokens in (4, 512):
        batches = micro_batches(trained, RL, trainer, micro_batch_tokens)
        updates.append(trainer.update(batches, policy_loss(trained, params), 0.0))
    assert len(micro_batches(trained, RL, trainer, 4)) > 1
    assert updates[0].gradient_norm == pytest.approx(updates[1].gradient_norm, rel=1e-4)
    assert updates[0].loss == pytest.approx(updates[1].loss, rel=1e-4, abs=1e-7)


CUT = rollout([8, 9, 10], Verdict.UNPARSED, -1.0, StopReason.MAX_TOKENS)
WITH_CUT = [Group("a", [3, 4], (*GROUPS[0].rollouts[:2], CUT))]


def test_filtering_truncated_responses_does_not_up_weight_the_rest(trainer):
    plain, filtered = (recomputed(prepared(WITH_CUT, settings(overlong_filtering=on)), trainer) for on in (False, True))
    assert filtered.is_kept.tolist() == [True, True, False]

    def gradient(rollouts):
        grads = []

        def loss(statistics, batch):
            scalar, shown = policy_loss(rollouts, RL)(statistics, batch)
            grads.append(torch.autograd.grad(scalar, statistics.logprobs, retain_graph=True)[0])
            return scalar, shown

        trainer.update(micro_batches(rollouts, RL, trainer), loss, 0.0)
        return grads[0]

    all_in, without = gradient(plain), gradient(filtered)
    assert torch.allclose(all_in[:2], without[:2])
    assert without[2].abs().sum() == 0 < all_in[2].abs().sum()


def test_tokens_without_gradient_do_not_pull_means_to_zero(trainer):
    """Half of the tokens are filtered out: ratios are still 1, and the entropy is that of all sampled tokens."""
    shown = []
    for is_filtered in (False, True):
        params = settings(overlong_filtering=is_filtered, minibatches=1)
        trained = recomputed(prepared(WITH_CUT, params), trainer, params)
        shown.append(reported(trained, params, trainer, 1e-9))
    plain, filtered = shown
    assert filtered["ratio/mean"] == pytest.approx(1.0, abs=1e-4) == plain["ratio/mean"]
    assert filtered["entropy/mean"] == pytest.approx(plain["entropy/mean"], rel=1e-4)


def test_a_step_reports_the_gap_of_its_first_update_only(trainer):
    trained = recomputed(prepared(GROUPS, RL), trainer)
    agreeing = replace(trained, rollout_logprobs=trained.proximal_logprobs)
    summary = reported(agreeing, RL, trainer)
    assert summary["logprob_gap/token_max"] < 1e-5
    assert summary["entropy/mean"] > 0


@pytest.mark.parametrize(
    ("verdict", "tokens", "reward"),
    [
        (Verdict.CORRECT, 5, 1.0),
        (Verdict.CORRECT, 11, 0.5),  # limit 12, buffer 2: (10 - 11) / 2
        (Verdict.WRONG, 12, -2.0),
        (Verdict.UNPARSED, 1, -1.0),
        (Verdict.EXHAUSTED, 1, -1.0),
        (Verdict.CRASHED, 12, 0.0),
    ],
)
def test_rewards_follow_verdict_and_length(verdict, tokens, reward):
    sample = Sample([5] * tokens, [0.0] * tokens, StopReason.END_OF_SEQUENCE, 0)
    assert make_rollout(sample, "", verdict, RL).reward == pytest.approx(reward)


@pytest.mark.parametrize("loss", [PARAMS["rl"]["policy_loss"], GSPO], ids=["clipped_surrogate", "gspo"])
def test_a_micro_batch_makes_the_host_wait_at_most_twice(trainer, loss):
    """Each wait leaves a GPU idle; the test counts only waits that grow with the number of micro-batches."""
    params = settings(minibatches=1, policy_loss=loss)
    trained = recomputed(prepared(GROUPS, params), trainer)
    counts = []
    for repeats in (1, 3):
        batches = micro_batches(trained, params, trainer) * repeats
        with HostWaits() as waits:
            trainer.update(batches, policy_loss(trained, params), 0.0)
        counts.append(waits.count)
    per_micro_batch = (counts[1] - counts[0]) / 2
    assert 0 < per_micro_batch <= 2


CENTRED = {"kind": "group_normalized", "divide_by_std": False}


def scored(tokens, reward):
    return rollout(tokens, Verdict.CORRECT if reward > 0 else Verdict.WRONG, reward, logprobs=[-1.0] * len(tokens))


def by_response(values, samples):
    return [row[:tokens].tolist() for row, tokens in zip(values, samples.response_tokens, strict=True)]


def advantages(rollouts, **changes):
    samples = training_samples([Group("a", [1], tuple(rollouts))], settings(**changes), 0)
    return by_response(with_advantages(samples, settings(**changes)).advantages, samples)


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [
        (CENTRED, [1.0, -1.0]),  # mean 0
        ({"kind": "group_normalized", "divide_by_std": True}, [2**-0.5, -(2**-0.5)]),  # sample deviation sqrt 2
        ({"kind": "leave_one_out"}, [2.0, -2.0]),  # minus the other's reward
        ({"kind": "length_weighted"}, [1.5, -0.5]),  # lengths 1 and 3: baseline (1 - 3) / 4
        ({"kind": "reward"}, [1.0, -1.0]),
        ({"kind": "mean_normalized"}, [1.0, -1.0]),  # rewards 2 and 0, mean 1
    ],
)
def test_estimators_of_whole_responses(advantage, expected):
    changes, lowest = {"advantage": advantage}, -1.0
    if advantage["kind"] == "mean_normalized":
        reward = {"kind": "by_verdict", "correct": 2.0, "wrong": 0.0, "unparsed": 0.0}
        changes, lowest = changes | {"reward": reward, "overlong": {"kind": "none"}}, 0.0
    found = advantages([scored([5], lowest + 2), scored([6, 7, 8], lowest)], **changes)
    assert [len(row) for row in found] == [1, 3]
    for row, value in zip(found, expected, strict=True):
        assert row == pytest.approx([value] * len(row), abs=1e-5)


def test_the_penalty_is_a_stream_of_its_own_with_its_own_discount():
    penalty = {"kind": "ngram", "n": 2, "penalty": -0.1, "discount": 0.5}
    # 5 6 5 6: the second 5 6 repeats. Tokens 2 and 3 get -0.1; to go: t3 -0.1, t2 -0.15, t1 -0.075, t0 -0.0375.
    rollouts = [scored([5, 6, 5, 6], 1.0), scored([7, 8], -1.0)]
    found = advantages(rollouts, advantage=CENTRED, study={"repetition_penalty": penalty})
    assert found == [pytest.approx([0.9625, 0.925, 0.85, 0.9]), pytest.approx([-1.0, -1.0])]
    both = advantages(rollouts, advantage=CENTRED, study={"repetition_penalty": penalty, "reward_discount": 0.5})
    assert both[0] == pytest.approx([0.125 - 0.0375, 0.25 - 0.075, 0.5 - 0.15, 1 - 0.1])


def over_values(tokens, value, reward, **changes):
    """Returns samples of one response with generalised advantages over values that are all `value`."""
    choice = settings(**changes)
    samples = training_samples([Group("a", [1], (scored(tokens, reward),))], choice, 0)
    values, reference = 0 * samples.rollout_logprobs + value, samples.rollout_logprobs - 0.5
    return with_advantages(replace(samples, values=values, reference_logprobs=reference), choice)


@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_each_stream_has_its_discount_beside_a_critic(discount):
    """Tokens 2 and 3 get -0.1, to go as above; with lambda 1 the value 0.25 is subtracted from the sum of both."""
    penalty = {"kind": "ngram", "n": 2, "penalty": -0.1, "discount": 0.5}
    gae = {**GAE, "discount": discount, "gae_lambda": 1.0}
    found = over_values([5, 6, 5, 6], 0.25, 1.0, advantage=gae, study={"repetition_penalty": penalty})
    outcome, to_go = [discount**3, discount**2, discount, 1.0], [-0.0375, -0.075, -0.15, -0.1]
    expected = [first + second for first, second in zip(outcome, to_go, strict=True)]
    assert found.value_targets[0].tolist() == pytest.approx(expected)
    assert found.advantages[0].tolist() == pytest.approx([target - 0.25 for target in expected])


def test_the_kl_to_the_reference_may_be_a_reward_of_each_token():
    """The trainer's log-probs are 0.5 above the reference's: each token costs 0.1 * 0.5. With lambda 0 and values of
    0.25: d = -0.05, -0.05, 1 - 0.05 - 0.25."""
    kl = {"kind": "in_reward", "coefficient": 0.1}
    found = over_values([5, 6, 7], 0.25, 1.0, advantage={**GAE, "gae_lambda": 0.0}, reference_kl=kl)
    assert found.advantages[0].tolist() == pytest.approx([-0.05, -0.05, 0.7])
    assert found.value_targets[0].tolist() == pytest.approx([0.2, 0.2, 0.95])


def as_trained(*groups):
    """Returns samples of groups of (tokens, reward, probabilities, sums of squared probabilities) for the trainer."""
    made = [Group("a", [1], tuple(scored(tokens, reward) for tokens, reward, _, _ in group)) for group in groups]
    samples = training_samples(made, settings(), 0)
    probs, squares = ([row[place] for group in groups for row in group] for place in (2, 3))
    logprobs = rows([torch.tensor(row).log().tolist() for row in probs], samples.response_mask)
    squared = rows(squares, samples.response_mask)
    return replace(samples, proximal_logprobs=logprobs, sum_squared_probs=squared)


@pytest.mark.parametrize(("lone_tail", "tail"), [("return", [1.0, 1.0]), ("zero", [0.0, 0.0])])
def test_the_lone_tail_follows_its_rule(lone_tail, tail):
    samples = as_trained(
        [([5, 6, 7], 1.0, [0.5] * 3, [0.5] * 3), ([6], 0.0, [0.25], [0.4])], [([8], 1.0, [0.5], [0.5])]
    )
    found = with_advantages(samples, settings(advantage={**OTB, "lone_tail": lone_tail})).advantages
    assert found[0, 1:].tolist() == pytest.approx(tail)
    assert found[2, :1].tolist() == pytest.approx(tail[:1])  # a group of one is all tail


def test_both_streams_enter_the_token_baseline_and_weights_its_energy():
    penalty = {"kind": "ngram", "n": 2, "penalty": -0.1, "discount": 1.0}
    samples = as_trained([([5, 6, 5, 6], 1.0, [0.2, 0.4, 0.6, 0.8], [0.3] * 4), ([7, 8], 0.0, [0.3, 0.5], [0.4] * 2)])
    weighted = {**OTB, "lone_tail": "return", "is_importance_weighted": True}
    correction = {"kind": "importance_weights", "level": "token", "cap": 1.5}
    choice = settings(advantage=weighted, rollout_correction=correction, study={"repetition_penalty": penalty})
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


def test_whitened_advantages_have_mean_0_and_variance_1_over_the_tokens(trainer):
    plain = prepared(GROUPS, RL)
    params = RL.model_copy(update={"advantage_whitening": "tokens"})
    found = prepare_samples(GROUPS, plan_of(plain, params, trainer), params, trainer)
    mask = found.response_mask.bool()
    values = plain.advantages[mask]
    # By hand, in float64: 8 tokens in two groups, one undecided response left out.
    assert len(values) == 8
    expected = (values.double() - values.double().mean()) / values.double().std(correction=0)
    torch.testing.assert_close(found.advantages[mask].double(), expected, rtol=1e-5, atol=1e-6)
    assert found.advantages[mask].mean().abs() < 1e-6 and not found.advantages[~mask].any()


class TwoRanks:
    """The other rank's sums, computed from the responses that it holds."""

    def __init__(self, others):
        self.others = iter(others)

    def gather(self, value):
        return [value, next(self.others)]


def test_ranks_whiten_with_the_sums_of_all_ranks():
    advantages, mask = torch.tensor([[1.0, 1.0], [-2.0, 0.0], [3.0, 3.0]]), torch.tensor([[1.0, 1], [1, 0], [1, 1]])
    values = advantages[mask.bool()].double()
    mean, variance = values.mean(), values.var(correction=0)
    of_other = [2, 6.0, float((values[3:] - mean).square().sum())]  # it holds the third response
    found = whitened(advantages, mask, [0, 1], TwoRanks(of_other))
    expected = (advantages - mean) / variance.sqrt() * mask
    torch.testing.assert_close(found.double(), expected.double(), rtol=1e-6, atol=1e-6)


def test_equal_advantages_are_whitened_to_0():
    class OneRank:
        def gather(self, value):
            return [value]

    ones = torch.ones(2, 3)
    assert not whitened(ones, ones, [0, 1], OneRank()).any()
