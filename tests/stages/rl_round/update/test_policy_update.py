"""The update: whom it trains on, its divisors, its sign."""

from dataclasses import replace

import pytest
import torch

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.policies.language_model import language_model
from stages.engines.samplers.protocol import Sample, StopReason
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.rl_round.drawing import make_rollout
from stages.rl_round.losses import OVER_TOKENS, policy_loss
from stages.rl_round.params import RlParams
from stages.rl_round.records import Group, Rollout
from stages.rl_round.samples import training_samples
from stages.rl_round.update import summarise, update_policy, with_advantages, with_proximal_statistics
from tests.fakes.host_waits import HostWaits
from tests.fakes.step_plans import micro_batches, plan_of
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import write_tiny_policy

RL = RlParams.model_validate(PARAMS["rl"])
TRAINER = TorchTrainerParams.model_validate(PARAMS["trainer"])


GSPO = {"kind": "gspo", "clip_low": 0.0003, "clip_high": 0.0004}


def changed(**changes):
    return RlParams.model_validate({**PARAMS["rl"], **changes})


def rollout(tokens, verdict, reward, stop=StopReason.END_OF_SEQUENCE, version=0):
    return Rollout(Sample(tokens, [-5.0] * len(tokens), stop, version), "", verdict, reward)


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


def updated(samples, params, trainer, scale=1.0):
    return update_policy(samples, plan_of(samples, params, trainer), params, scale, trainer)


def test_undecided_rollouts_are_neither_trained_on_nor_a_baseline():
    trained = prepared(GROUPS, RL)
    assert len(trained) == 5
    # Group b: rewards 1 and -1, mean 0, sample standard deviation sqrt(2).
    assert trained.advantages[3:, 0].tolist() == pytest.approx([2**-0.5, -(2**-0.5)], abs=1e-5)


def test_surplus_is_not_fresh():
    newer = tuple(replace(one, sample=replace(one.sample, policy_version=1)) for one in GROUPS[1].rollouts)
    trained = prepared([GROUPS[0], replace(GROUPS[1], rollouts=newer)], RL, 1)
    assert trained.is_fresh.tolist() == [False] * 3 + [True] * 2


def test_one_step_raises_rewarded_responses_and_lowers_the_others(trainer):
    trained = recomputed(prepared(GROUPS, RL), trainer)
    updated(trained, changed(minibatches=1), trainer)
    moved = recomputed(trained, trainer).proximal_logprobs.sum(-1) - trained.proximal_logprobs.sum(-1)
    assert (moved * trained.advantages[:, 0] > 0).all()


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
def test_micro_batches_change_no_gradient(trainer, aggregation):
    params = changed(aggregation=aggregation, minibatches=1)
    trained = prepared(GROUPS, params)
    norms = []
    for micro_batch_tokens in (4, 512):
        batches = micro_batches(trained, RL, trainer, micro_batch_tokens)
        norms.append(trainer.update(batches, policy_loss(trained, params), 0.0).gradient_norm)
    assert len(micro_batches(trained, RL, trainer, 4)) > 1
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_filtering_truncated_responses_does_not_up_weight_the_rest(trainer):
    cut = rollout([8, 9, 10], Verdict.UNPARSED, -1.0, StopReason.MAX_TOKENS)
    groups = [Group("a", [3, 4], (*GROUPS[0].rollouts[:2], cut))]
    plain, filtered = (recomputed(prepared(groups, changed(overlong_filtering=on)), trainer) for on in (False, True))
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
    """Half of the tokens are filtered out: ratios are still 1, and the entropy is that of all that was drawn."""
    cut = rollout([8, 9, 10], Verdict.UNPARSED, -1.0, StopReason.MAX_TOKENS)
    groups = [Group("a", [3, 4], (*GROUPS[0].rollouts[:2], cut))]
    shown = []
    for is_filtered in (False, True):
        params = changed(overlong_filtering=is_filtered, minibatches=1)
        trained = recomputed(prepared(groups, params), trainer, params)
        shown.append(summarise(updated(trained, params, trainer, 1e-9)))
    plain, filtered = shown
    assert filtered["ratio/mean"] == pytest.approx(1.0, abs=1e-4) == plain["ratio/mean"]
    assert filtered["entropy/mean"] == pytest.approx(plain["entropy/mean"], rel=1e-4)


def test_a_step_reports_the_gap_of_its_first_update_only(trainer):
    trained = recomputed(prepared(GROUPS, RL), trainer)
    agreeing = replace(trained, rollout_logprobs=trained.proximal_logprobs)
    summary = summarise(updated(agreeing, RL, trainer))
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
    """Each wait leaves a GPU without work; what grows with the micro-batches is what counts."""
    params = changed(minibatches=1, policy_loss=loss)
    trained = recomputed(prepared(GROUPS, params), trainer)
    counts = []
    for repeats in (1, 3):
        batches = micro_batches(trained, params, trainer) * repeats
        with HostWaits() as waits:
            trainer.update(batches, policy_loss(trained, params), 0.0)
        counts.append(waits.count)
    per_micro_batch = (counts[1] - counts[0]) / 2
    assert 0 < per_micro_batch <= 2
