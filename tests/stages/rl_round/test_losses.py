"""The loss: every estimator with every policy loss moves in the right direction; masks and weights act as counted."""

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch

from stages.algorithms.answers.verdicts import Verdict
from stages.algorithms.rollout_corrections import error_bounds
from stages.algorithms.token_statistics import TokenStatistics, likeliest_tokens, pruned_logprobs
from stages.engines.policies.language_model import language_model
from stages.engines.samplers.protocol import FullSample, StopReason
from stages.engines.trainers.params import TorchTrainerParams
from stages.engines.trainers.torch_trainer import TorchTrainer
from stages.rl_round.records import Group
from stages.rl_round.samples import training_samples, with_advantages
from stages.rl_round.update import (
    logprob_gap,
    make_micro_batches,
    policy_loss,
    policy_metrics,
    rates_by_staleness,
    shares_by_staleness,
    update_policy,
)
from stages.rl_round.update_methods import AdvantageParams, PolicyLossParams
from tests.fakes.rounds import ASYNCHRONOUS, CLIP_COV, EXACT, NONE, OTB, SAFE_SET, TRM, WEIGHTS, rollout, settings
from tests.fakes.step_plans import micro_batches, places_of, prepare
from tests.fakes.taught_policy import PARAMS
from tests.fakes.tiny_policy import write_tiny_policy

TRAINER = TorchTrainerParams.model_validate(PARAMS["trainer"])
LOSSES = {
    "clipped_surrogate": {"kind": "clipped_surrogate", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 10.0},
    "gspo": {"kind": "gspo", "clip_low": 0.2, "clip_high": 0.28},
    "cispo": {"kind": "cispo", "clip_low": 1.0, "clip_high": 0.28},
    "clip_cov": {**CLIP_COV, "covariance_low": 90.0, "covariance_high": 100.0},
    "kl_cov": {"kind": "kl_cov", "fraction": 0.1, "coefficient": 1e-3},
    "dppo": {"kind": "dppo", "divergence": "kl", "limit_low": 0.05, "limit_high": 0.05, "ratio_cap": 20.0},
    "sapo": {"kind": "sapo", "temperature_positive": 1.0, "temperature_negative": 1.05},
    "reinforce": {"kind": "reinforce"},
}
ESTIMATORS = [
    {"kind": "group_normalized", "divide_by_std": True},
    {"kind": "group_normalized", "divide_by_std": False},
    {"kind": "batch_normalized", "deviation_of": "rewards"},
    {"kind": "pass_at_k", "k": 2},
    {"kind": "leave_one_out"},
    {"kind": "length_weighted"},
    OTB,
    {**OTB, "lone_tail": "return"},
    {"kind": "reward"},
]


def params(**changes):
    return settings(**{"minibatches": 1, "overlong": NONE, **changes})


@pytest.fixture
def folder(tmp_path):
    return write_tiny_policy(tmp_path / "policy")


@pytest.fixture
def trainer(folder):
    return TorchTrainer(TRAINER, params().optimizer, 1.0, language_model(folder, TRAINER))


TOKENS = [[5, 6, 7], [8, 9], [10, 11, 12], [13, 14]]
REWARDS = [1.0, -1.0, -1.0, 1.0]


def one_group(logprobs=None):
    rows = logprobs or [None] * len(TOKENS)
    verdicts = [Verdict.CORRECT if reward > 0 else Verdict.WRONG for reward in REWARDS]
    made = zip(TOKENS, verdicts, REWARDS, rows, strict=True)
    return [Group("a", [3, 4], tuple(rollout(*one, logprobs=row) for *one, row in made))]


def logprobs_of(trainer, choice=None):
    """Returns the trainer's current log-probs of the group's responses."""
    choice = choice or params()
    samples, _ = prepare(one_group(), choice, trainer)
    pairs = zip(samples.proximal_logprobs, samples.response_tokens, strict=True)
    return [row[:tokens].tolist() for row, tokens in pairs]


def shifted(rows, index, by):
    """Returns the rows with the first token of row `index` moved."""
    return [[row[0] + by, *row[1:]] if number == index else row for number, row in enumerate(rows)]


def update(trainer, groups, choice, reference=None):
    trained, plan = prepare(groups, choice, trainer, reference)
    return policy_metrics(update_policy(trained, plan, choice, 1.0, trainer), plan, choice)


def gradient_of(trained, choice, statistics, batch):
    """Returns the gradient for the log-probs as they are, and the diagnostics."""
    given = statistics._replace(logprobs=statistics.logprobs.clone().requires_grad_())
    vars(given).update(vars(statistics))
    scalar, shown = policy_loss(trained, choice)(given, batch)
    return torch.autograd.grad(scalar, given.logprobs)[0], shown


def gradients(trainer, groups, choice):
    """Returns the gradient of the loss for each token's log-prob: (responses, tokens) in the group's order."""
    trained, _ = prepare(groups, choice, trainer)
    (batch,) = micro_batches(trained, choice, trainer)
    gradient, shown = gradient_of(trained, choice, trainer.evaluate(batch), batch)
    return in_order(gradient, trained, trainer), {name: float(value) for name, value in shown.items()}


def in_order(rows, trained, trainer):
    """Returns rows of the only micro-batch, which is sorted by length, in the order of the rollouts."""
    (order,) = places_of(trained, trainer)
    return rows[torch.tensor(order).argsort()]


PAIRS = [*((loss, ESTIMATORS[0]) for loss in LOSSES), *(("clipped_surrogate", one) for one in ESTIMATORS[1:])]


def test_every_loss_and_estimator_is_tried():
    """`mean_normalized` takes no negative reward: test_update.py has it. `gae` needs a critic: test_critic.py."""

    def kinds(union):
        return {get_args(one.model_fields["kind"].annotation)[0] for one in get_args(get_args(union)[0])}

    assert kinds(PolicyLossParams) == LOSSES.keys()
    assert kinds(AdvantageParams) == {"mean_normalized", "gae", *(one["kind"] for one in ESTIMATORS)}


@pytest.mark.parametrize(("loss", "estimator"), PAIRS)
def test_one_step_raises_the_rewarded_and_lowers_the_others(trainer, loss, estimator):
    proximal = "rollout" if loss == "dppo" else "recompute"
    choice = params(advantage=estimator, policy_loss=LOSSES[loss], proximal=proximal)
    before = logprobs_of(trainer)
    shown = update(trainer, one_group(before), choice)
    after = logprobs_of(trainer)
    for old, new, reward in zip(before, after, REWARDS, strict=True):
        assert (sum(new) - sum(old)) * reward > 0
    assert shown["optim/gradient_norm"] > 0 and shown["clip_fraction/low"] == shown["clip_fraction/high"] == 0
    assert shown["variance_proxy/power"] > 0


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean_token_mean", "constant"])
def test_the_trust_region_drops_whole_responses_and_up_weights_none(trainer, aggregation):
    choice = params(proximal="rollout", aggregation=aggregation, rollout_correction=TRM)
    agreeing = logprobs_of(trainer)
    all_in, shown_all = gradients(trainer, one_group(agreeing), choice)
    masked, shown = gradients(trainer, one_group(shifted(agreeing, 1, 0.4)), choice)  # k2 0.08 > 0.05
    assert shown_all["trust_region/acceptance_rate"] == 1 and shown_all["mask/fraction_dropped"] == 0
    assert torch.allclose(masked[[0, 2, 3]], all_in[[0, 2, 3]])
    assert masked[1].abs().sum() == 0 < all_in[1].abs().sum()
    assert shown["trust_region/acceptance_rate"] == shown["mask/fraction_dropped"] + 0.5 == 0.75
    assert shown["mask/trust_region_max_fraction"] == shown["mask/trust_region_mean_fraction"] == 0.25
    assert shown["mask/token_fraction_dropped"] == pytest.approx(0.2)  # 2 of 10 tokens


def test_the_bound_stands_beside_the_acceptance_rate(trainer):
    choice = params(proximal="rollout", rollout_correction={**TRM, "mean_threshold": None})
    shown = update(trainer, one_group(shifted(logprobs_of(trainer), 0, 0.2)), choice)
    k3 = torch.tensor(-0.2).expm1().item() + 0.2
    assert shown["trust_region/divergence_max"] == pytest.approx(0.02, rel=1e-3)
    assert shown["trust_region/sequence_divergence"] == pytest.approx(k3 / 4, rel=1e-3)
    bound = error_bounds(choice.max_response_tokens, 0.02, sequence_kl=k3 / 4)["unified"]
    assert shown["trust_region/error_bound"] == pytest.approx(bound, rel=1e-3)
    assert shown["trust_region/acceptance_rate"] == 1


def distributions_of(trainer):
    """Returns the trainer's current log-probs over the whole vocabulary, for each response of the group."""
    rows = [[3, 4, *tokens] for tokens in TOKENS]
    with torch.no_grad():
        return [trainer.model.module(torch.tensor([row])).logits[0, 1:-1].log_softmax(-1) for row in rows]


def with_distributions(groups, distributions):
    rollouts = (
        replace(one, sample=FullSample(**vars(one.sample), distributions=rows))
        for one, rows in zip(groups[0].rollouts, distributions, strict=True)
    )
    return [replace(groups[0], rollouts=tuple(rollouts))]


def test_the_exact_trust_region_sees_what_the_sampled_tokens_do_not(trainer):
    """Row 1's sampler agrees on the sampled tokens and differs on others: only the exact KL drops it."""
    agreeing, whole = logprobs_of(trainer), distributions_of(trainer)
    other = whole[1].clone()
    mass = other[:, 20:120].exp().sum(-1, keepdim=True)
    moved = torch.linspace(0, 2, 100).softmax(-1)[None] * mass  # the same mass on those tokens, spread otherwise
    other[:, 20:120] = moved.log()
    kl = (other.exp() * (other - whole[1])).sum(-1)
    assert (kl > 0.01).all() and torch.equal(other[[0, 1], TOKENS[1]], whole[1][[0, 1], TOKENS[1]])
    region = {**TRM, "divergence": "exact", "max_threshold": 0.01, "mean_threshold": None}
    exact = params(**EXACT | {"proximal": "rollout", "rollout_correction": region})
    all_in, shown_all = gradients(trainer, with_distributions(one_group(agreeing), whole), exact)
    masked, shown = gradients(trainer, with_distributions(one_group(agreeing), [whole[0], other, *whole[2:]]), exact)
    assert shown_all["trust_region/acceptance_rate"] == 1
    assert shown_all["trust_region/divergence_max"] < 1e-9
    assert torch.allclose(masked[[0, 2, 3]], all_in[[0, 2, 3]])
    assert masked[1].abs().sum() == 0 < all_in[1].abs().sum()
    assert shown["mask/trust_region_max_fraction"] == shown["mask/fraction_dropped"] == 0.25
    sampled = params(proximal="rollout", rollout_correction={**region, "divergence": "sampled"})
    assert gradients(trainer, one_group(agreeing), sampled)[1]["trust_region/acceptance_rate"] == 1


def test_the_bound_of_the_exact_trust_region_is_made_of_its_divergences(trainer):
    agreeing, whole = logprobs_of(trainer), distributions_of(trainer)
    other = [(0.9 * rows).log_softmax(-1) for rows in whole]
    kls = [(a.exp() * (a - b)).sum(-1) for a, b in zip(other, whole, strict=True)]
    region = {**TRM, "divergence": "exact", "max_threshold": 10.0, "mean_threshold": None}
    choice = params(**EXACT | {"proximal": "rollout", "rollout_correction": region})
    shown = update(trainer, with_distributions(one_group(agreeing), other), choice)
    largest, mean = max(float(kl.max()) for kl in kls), sum(float(kl.sum()) for kl in kls) / len(kls)
    assert shown["trust_region/divergence_max"] == pytest.approx(largest, rel=1e-4)
    assert shown["trust_region/sequence_divergence"] == pytest.approx(mean, rel=1e-4)
    bound = error_bounds(choice.max_response_tokens, largest, sequence_kl=mean)["unified"]
    assert shown["trust_region/error_bound"] == pytest.approx(bound, rel=1e-4)


def test_the_likeliest_tokens_drop_the_response_whose_listed_tokens_moved(trainer):
    """Row 1's sampler prefers another token: its likeliest tokens show it, those of the others agree."""
    agreeing, whole = logprobs_of(trainer), distributions_of(trainer)
    other = whole[1].clone()
    other[:, 50] += 3.0
    other = other.log_softmax(-1)
    study = {"rollout_distributions": {"kind": "likeliest", "count": 5, "max_gib": 1.0}}
    region = {**TRM, "divergence": "likeliest", "max_threshold": 0.01, "mean_threshold": None}
    choice = params(proximal="rollout", rollout_correction=region, study=study)
    kept = [likeliest_tokens(rows, 5) for rows in (whole[0], other, *whole[2:])]
    gradient, shown = gradients(trainer, with_distributions(one_group(agreeing), kept), choice)
    assert (gradient.abs().sum(-1) > 0).tolist() == [True, False, True, True]
    assert shown["trust_region/acceptance_rate"] == 0.75 and shown["trust_region/divergence_max"] < 1e-6


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_importance_weights_multiply_the_gradient_up_to_their_cap(trainer, level):
    choice = params(rollout_correction={**WEIGHTS, "level": level})
    agreeing = logprobs_of(trainer)
    plain, _ = gradients(trainer, one_group(agreeing), params())
    # The sampler's probability is lower for row 0's first token (ratio e^0.5), far lower for row 1's (e^2, cap 2).
    rows = shifted(shifted(agreeing, 0, -0.5), 1, -2.0)
    weighted, shown = gradients(trainer, one_group(rows), choice)
    weights = torch.ones_like(plain)
    for row, weight in ((0, torch.tensor(0.5).exp()), (1, 2.0)):
        weights[row, slice(1) if level == "token" else slice(None)] = weight
    assert torch.allclose(weighted, plain * weights, rtol=1e-4)
    assert shown["sum/capped_tokens"] == (1 if level == "token" else 2)


ICE_POP = {"kind": "ice_pop", "low": 0.5, "high": 5.0}


def test_ice_pop_weighs_tokens_and_leaves_out_those_beyond_its_bounds(trainer):
    agreeing = logprobs_of(trainer)
    plain, _ = gradients(trainer, one_group(agreeing), params())
    # Ratios of trainer to sampler: e^0.5 within the bounds, e^2 above, e^-1 below.
    rows = shifted(shifted(shifted(agreeing, 0, -0.5), 1, -2.0), 2, 1.0)
    weighted, shown = gradients(trainer, one_group(rows), params(rollout_correction=ICE_POP))
    weights = torch.ones_like(plain)
    weights[0, 0], weights[1, 0], weights[2, 0] = math.exp(0.5), 0.0, 0.0
    assert torch.allclose(weighted, plain * weights, rtol=1e-4)
    assert shown["sum/left_out_tokens"] == 2
    assert update(trainer, one_group(rows), params(rollout_correction=ICE_POP))["importance/left_out_fraction"] == 0.2


def two_groups():
    """Returns two prompts with four and two responses, which all have other lengths and log-probs."""
    tokens = [[15, 16, 17, 18], [19]]
    rollouts = (rollout(tokens[0], Verdict.CORRECT, 1.0), rollout(tokens[1], Verdict.WRONG, -1.0))
    return [*one_group(), Group("b", [11, 12], rollouts)]


def per_token(trainer, choice, tokens=512):
    """Returns the gradient of an update's loss for each token's log-prob, in the order of the samples."""
    trained, _ = prepare(two_groups(), choice, trainer)
    whole = torch.zeros_like(trained.response_mask)
    for places, batch in zip(
        places_of(trained, trainer, tokens), micro_batches(trained, choice, trainer, tokens), strict=True
    ):
        gradient, _ = gradient_of(trained, choice, trainer.evaluate(batch), batch)
        whole[places, : gradient.shape[1]] = gradient
    return whole, trained


@pytest.mark.parametrize("tokens", [512, 8])
def test_only_the_tokens_of_highest_entropy_give_gradient(trainer, tokens):
    """Of all tokens of the update: no micro-batch has a fraction of its own, and the divisor stays."""
    plain, _ = per_token(trainer, params())
    found, trained = per_token(trainer, params(top_entropy_fraction=0.4), tokens)
    mask = trained.response_mask.bool()
    # The entropies once more, one response after the other.
    entropy = torch.zeros_like(plain)
    for row, (prompt, one) in enumerate(zip(trained.prompts, trained.rollouts, strict=True)):
        ids = torch.tensor([[*prompt, *one.sample.token_ids]])
        with torch.no_grad():
            logprobs = trainer.model.module(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        entropy[row, : len(logprobs)] = -(logprobs.exp() * logprobs).sum(-1)
    border = entropy[mask].sort(descending=True).values[int(0.4 * mask.sum()) - 1]
    expected = torch.where(mask & (entropy >= border - 1e-6), plain, 0.0)
    assert int((expected != 0).sum()) == int(0.4 * mask.sum()) == 6
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("tokens", [512, 8])
def test_clip_cov_takes_the_gradient_of_tokens_between_its_bounds(trainer, tokens):
    """With room for all of them; and with room for one, a seed decides, whatever the micro-batches are."""
    choice = params(policy_loss={**CLIP_COV, "fraction": 0.9, "covariance_low": 0.1, "covariance_high": 9.0})
    plain, trained = per_token(trainer, params())
    found, _ = per_token(trainer, choice, tokens)
    mask = trained.response_mask.bool()
    logprobs, advantages = trained.proximal_logprobs[mask], trained.advantages[mask]
    product = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
    is_between = (product > 0.1) & (product < 9.0)
    assert 0 < is_between.sum() < len(product)
    torch.testing.assert_close(found[mask], torch.where(is_between, 0.0, plain[mask]), rtol=1e-4, atol=1e-6)
    one = choice.model_copy(update={"policy_loss": choice.policy_loss.model_copy(update={"fraction": 0.01})})
    first, _ = per_token(trainer, one, tokens)
    assert int(((first == 0) & (plain != 0)).sum()) == 1
    assert torch.equal((first == 0), (per_token(trainer, one, 512 + 8 - tokens)[0] == 0))


def test_the_mean_over_prompts_divides_by_the_tokens_of_a_prompt(trainer):
    plain, trained = per_token(trainer, params(aggregation="token_mean"))
    found, _ = per_token(trainer, params(aggregation="prompt_mean"), 8)
    # 15 tokens: 10 of the first prompt, 5 of the second.
    factors = torch.tensor([15 / 10 / 2 if group == 0 else 15 / 5 / 2 for group in trained.group_ids])
    torch.testing.assert_close(found, plain * factors[:, None], rtol=1e-4, atol=1e-6)
    choice = params(aggregation="prompt_mean")
    tokens = update(trainer, two_groups(), choice)
    assert tokens["variance_proxy/power"] > 0


def test_normalised_weights_scale_every_token_alike(trainer):
    agreeing = logprobs_of(trainer)
    rows = shifted(shifted(agreeing, 0, -0.5), 1, -2.0)
    plain, _ = gradients(trainer, one_group(rows), params(rollout_correction=WEIGHTS))
    scaled, shown = gradients(
        trainer, one_group(rows), params(rollout_correction={**WEIGHTS, "batch_normalized": True})
    )
    mean = (8 + math.exp(0.5) + 2.0) / 10
    assert torch.allclose(scaled, plain / mean, rtol=1e-4)
    assert shown["sum/weights"] == pytest.approx(10.0, rel=1e-5) and shown["sum/capped_tokens"] == 1


def cut_group():
    """Returns the group with its last response, two of ten tokens, truncated."""
    (whole,) = one_group()
    last = whole.rollouts[3]
    cut = replace(last, sample=replace(last.sample, stop_reason=StopReason.MAX_TOKENS))
    return [replace(whole, rollouts=(*whole.rollouts[:3], cut))]


def test_the_entropy_bonus_adds_its_gradient_where_tokens_give_one(trainer):
    choice = params(overlong_filtering=True)
    trained, _ = prepare(cut_group(), choice, trainer)
    (batch,) = micro_batches(trained, choice, trainer)
    scalars = []
    for coefficient in (0.0, 0.3):
        statistics = trainer.evaluate(batch)
        entropy = statistics.entropy.clone().requires_grad_()
        given = type(statistics)(statistics.logprobs, entropy, statistics.sum_squared_probs)
        given.outside = statistics.outside
        scalar, _ = policy_loss(trained, choice, coefficient)(given, batch)
        scalars.append(float(scalar.detach()))
    kept = batch.fields["loss_mask"]
    assert kept.sum() == 8 and batch.response_mask.sum() == 10
    torch.testing.assert_close(torch.autograd.grad(scalar, entropy)[0], -0.3 * kept / 10)
    assert scalars[1] - scalars[0] == pytest.approx(-0.03 * float((statistics.entropy * kept).sum()), rel=1e-4)


@pytest.mark.parametrize(
    ("change", "name", "expected"),
    [
        ({"top_entropy_fraction": 0.5}, "is_uncertain", 4),
        ({"policy_loss": {"kind": "kl_cov", "fraction": 0.5, "coefficient": 1.0}}, "is_covariant", 4),
        ({"aggregation": "prompt_mean"}, "prompt_tokens", 40),
    ],
)
def test_tokens_that_were_filtered_out_are_not_compared(trainer, change, name, expected):
    """Half of the 8 tokens of the other responses; a prompt's tokens are all 10, for each of its 4 responses."""
    trained, _ = prepare(cut_group(), params(overlong_filtering=True, **change), trainer)
    found = getattr(trained, name)
    assert found.sum() == expected
    assert name == "prompt_tokens" or not found[3].any()


@pytest.mark.parametrize(
    ("kind", "expected", "slopes"),
    [
        ("k1", [0.2, -0.6, 0, 1, -1.5], [1, 1, 1, 1, 1]),
        ("k2", [0.02, 0.18, 0, 0.5, 1.125], [0.2, -0.6, 0, 1, -1.5]),
        ("k3", [0.018731, 0.222119, 0, 0.367879, 1.981689], [0.181269, -0.822119, 0, 0.632121, -3.481689]),
        ("weighted_k3", [0.016948, 0.404727, 0, 0.367879, 0.729023], [0.180967, -1.093271, 0, 1, -0.551819]),
    ],
)
def test_penalties_for_leaving_the_reference_policy_are_those_of_other_code(kind, expected, slopes):
    """k1 to k3: `kl_penalty` of verl at 1dda039b. weighted_k3: `compute_approx_kl` of THUDM/slime at 624b824a, with the
    ratio that its option `use_unbiased_kl` gives. Nothing else is in the loss: the reward is 0.
    """
    kl = {"kind": kind, "coefficient": 0.5}
    choice = params(reference_kl=kl, advantage={"kind": "reward"}, aggregation="sequence_mean_token_sum")
    samples = training_samples([Group("a", [1], (rollout([2, 3, 4, 5, 6], reward=0.0),))], choice, 0)
    samples = replace(
        samples,
        reference_logprobs=torch.tensor([[-0.7, -0.4, -2, -1.1, -1.5]]),
        proximal_logprobs=torch.tensor([[-0.4, -1.6, -2.5, -0.1, -2]]),
    )
    samples = with_advantages(samples, choice)
    (batch,) = make_micro_batches(samples, [[0]], choice)
    policy = torch.tensor([[-0.5, -1, -2, -0.1, -3]], requires_grad=True)
    given = TokenStatistics(policy, torch.zeros(1, 5), torch.zeros(1, 5))
    given.outside = torch.zeros(1, 5, dtype=torch.bool)
    scalar, shown = policy_loss(samples, choice)(given, batch)
    assert scalar.item() == pytest.approx(0.5 * sum(expected), abs=2e-5)
    (slope,) = torch.autograd.grad(scalar, policy)
    assert slope[0].tolist() == pytest.approx([0.5 * one for one in slopes], abs=2e-5)
    assert shown["reference_kl/k3"].item() == pytest.approx(2.590418 / 5, abs=1e-5)


@pytest.mark.parametrize(
    ("correction", "by"),
    [
        ({"kind": "geometric_mask", "low": 0.9, "high": 1.1}, -0.4),
        ({"kind": "bad_response_mask", "max_divergence": 0.1}, 0.4),
        ({"kind": "length_neutral_mask", "token_kl": None, "token_tv": None, "max_score": 0.1}, -0.4),
        ({"kind": "length_neutral_mask", "token_kl": 0.01, "token_tv": 0.05, "max_score": 0.1}, -0.4),
    ],
)
def test_a_mask_drops_a_response_and_up_weights_none(trainer, correction, by):
    """Rows 0 and 1 differ by a mean of 0.13 and 0.2 from the sampler; only row 1 has a negative advantage."""
    agreeing = logprobs_of(trainer)
    plain, _ = gradients(trainer, one_group(agreeing), params())
    rows = shifted(shifted(agreeing, 0, by), 1, by)
    masked, shown = gradients(trainer, one_group(rows), params(rollout_correction=correction))
    dropped = [1] if correction["kind"] == "bad_response_mask" else [0, 1]
    kept = [row for row in range(4) if row not in dropped]
    assert torch.allclose(masked[kept], plain[kept]) and not masked[dropped].any()
    assert shown["mask/correction_fraction"] == shown["mask/fraction_dropped"] == len(dropped) / 4


def test_reinforce_is_weighted_by_the_present_policy(trainer):
    choice = params(proximal="rollout", policy_loss={"kind": "reinforce"}, rollout_correction=WEIGHTS)
    agreeing = logprobs_of(trainer)
    plain, _ = gradients(trainer, one_group(agreeing), choice)
    weighted, _ = gradients(trainer, one_group(shifted(agreeing, 0, -0.5)), choice)
    assert weighted[0, 0] == pytest.approx(plain[0, 0].item() * torch.tensor(0.5).exp().item(), rel=1e-4)


def test_the_effective_sample_size_falls_with_the_gap(trainer):
    agreeing = logprobs_of(trainer)
    same = update(trainer, one_group(agreeing), params(proximal="rollout"))
    assert same["importance/effective_sample_fraction"] == pytest.approx(1.0, abs=1e-5)
    now = logprobs_of(trainer)
    apart = update(trainer, one_group(shifted(now, 0, -2.0)), params(proximal="rollout"))
    # Nine weights of 1 and one of e^2: (9 + e^2)^2 / (10 (9 + e^4)).
    assert apart["importance/effective_sample_fraction"] == pytest.approx(0.4222, abs=1e-3)


def test_the_gap_of_trainer_and_sampler_by_hand():
    policy = torch.tensor([[math.log(2.0), math.log(0.5), 7.0]])
    gap = logprob_gap(policy, torch.zeros(1, 3), torch.tensor([[1, 1, 0]]), tokens=2)
    # |log 2| twice; k3: (2 - 1 - log 2 + 0.5 - 1 + log 2) / 2 = 0.25. The third token is masked.
    assert gap["logprob_gap/mean"].item() == pytest.approx(math.log(2))
    assert gap["logprob_gap/token_max"].item() == pytest.approx(math.log(2))
    assert gap["logprob_gap/k3"].item() == pytest.approx(0.25)
    empty = logprob_gap(policy, torch.zeros(1, 3), torch.zeros(1, 3), tokens=0)
    assert [value.item() for value in empty.values()] == [0.0, 0.0, 0.0]


def pruning_choice(trainer, outside):
    """Returns a threshold that leaves at least one sampled token outside, and the tokens outside."""
    trained, _ = prepare(one_group(), params(), trainer)
    (batch,) = micro_batches(trained, params(), trainer)
    model = trainer.model.module
    logits = model(batch.row_ids, position_ids=batch.position_ids, use_cache=False)
    rows = logits.logits.detach().flatten(0, 1)[batch.source]
    for threshold in (-4.0, -3.0, -2.5, -2.0, -1.5, -1.0):
        logprobs, is_outside = pruned_logprobs(rows, batch.response_ids, threshold)
        is_outside &= batch.response_mask.bool()
        if 0 < is_outside.any(-1).sum() < len(rows):
            choice = params(study={"vocabulary_pruning": {**SAFE_SET, "log_threshold": threshold, "outside": outside}})
            return choice, in_order(logprobs, trained, trainer), in_order(is_outside, trained, trainer)
    raise AssertionError("no threshold separates the responses")


def pruned_masses(trainer, choice):
    """Returns the mass of the tokens outside the safe set at each response token, with all logits at once."""
    masses = []
    for rows, tokens in zip(distributions_of(trainer), TOKENS, strict=True):
        is_out = rows < rows.amax(-1, keepdim=True) + choice.log_threshold
        is_out[range(len(tokens)), tokens] = False
        masses.append((rows.exp() * is_out).sum(-1).tolist())
    return masses


@pytest.mark.parametrize("outside", ["drop_token", "drop_response"])
def test_the_trainer_renormalises_and_handles_tokens_outside_by_rule(trainer, outside):
    choice, expected, is_outside = pruning_choice(trainer, outside)
    found = logprobs_of(trainer, choice)
    for row, values in zip(expected, found, strict=True):
        assert values == pytest.approx(row[: len(values)].tolist(), abs=1e-5)
    gradient, shown = gradients(trainer, one_group(found), choice)
    dropped = is_outside if outside == "drop_token" else is_outside.any(-1, keepdim=True).expand_as(is_outside)
    is_token = torch.tensor([[len(row) > place for place in range(3)] for row in TOKENS])
    assert torch.equal(gradient == 0, dropped | ~is_token)
    assert shown["pruning/outside_fraction"] == pytest.approx(is_outside.sum().item() / 10)
    assert shown["mask/outside_token_fraction"] == pytest.approx((dropped & is_token).sum().item() / 10)
    mass = pruned_masses(trainer, choice)
    assert shown["pruning/bias_bound"] == pytest.approx(sum(map(sum, mass)) / 4, rel=1e-4)
    assert shown["pruning/kept_mass_mean"] == pytest.approx(1 - sum(map(sum, mass)) / 10, rel=1e-6)
    told = update(trainer, one_group(found), choice)
    assert told["pruning/kept_mass_min"] == pytest.approx(1 - max(map(max, mass)), rel=1e-6)
    if outside == "drop_response":
        assert shown["mask/outside_fraction"] == pytest.approx(is_outside.any(-1).sum().item() / 4)


def poisoned(trainer):
    with torch.no_grad():
        next(iter(trainer.named_weights()))[1][5] = torch.nan


@pytest.mark.parametrize(
    "choice",
    [
        params(),
        params(proximal="rollout", rollout_correction=TRM),  # masks every response with a NaN
        params(study={"vocabulary_pruning": {**SAFE_SET, "outside": "drop_response"}}),
    ],
)
def test_a_nan_is_never_masked_away(trainer, choice):
    groups = one_group(logprobs_of(trainer))
    poisoned(trainer)
    with pytest.raises(FloatingPointError):
        update(trainer, groups, choice)


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_a_broken_reward_leaves_weights_and_optimizer_as_they_were(trainer, tmp_path, reward):
    update(trainer, one_group(logprobs_of(trainer)), params())  # the optimizer now has moments
    trainer.save_checkpoint(tmp_path)
    before = (tmp_path / "trainer.safetensors").read_bytes()
    broken = one_group(logprobs_of(trainer))
    broken = [replace(broken[0], rollouts=(replace(broken[0].rollouts[0], reward=reward), *broken[0].rollouts[1:]))]
    with pytest.raises(FloatingPointError, match="the weights were left as they were"):
        update(trainer, broken, params(advantage={"kind": "reward"}))
    trainer.save_checkpoint(tmp_path)
    assert (tmp_path / "trainer.safetensors").read_bytes() == before


def test_shares_and_rates_by_hand():
    weights = torch.tensor([[1.0, 3.0], [2.0, 2.0], [1.0, 1.0], [5.0, 0.0]])
    before = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0]])
    after = before * torch.tensor([[1.0], [1.0], [0.0], [1.0]])
    shares = shares_by_staleness(torch.tensor([0, 1, 1, 9]), weights, before, after)
    rates = rates_by_staleness({name: float(value) / 2 for name, value in shares.items()} | {"loss/x": 1.0})
    assert rates == pytest.approx(
        {
            "loss/x": 1.0,
            "importance/effective_sample_fraction_staleness_0": 16 / 20,
            "importance/effective_sample_fraction_staleness_1": 1.0,
            "importance/effective_sample_fraction_staleness_4": 1.0,
            "trust_region/acceptance_rate_staleness_0": 1.0,
            "trust_region/acceptance_rate_staleness_1": 0.5,
            "trust_region/acceptance_rate_staleness_4": 1.0,
        }
    )


@pytest.mark.parametrize("correction", [WEIGHTS, ICE_POP, {**TRM, "max_threshold": 20.0, "mean_threshold": None}])
def test_the_loop_adds_its_numbers_and_changes_no_other(folder, correction):
    right, wrong = (Verdict.CORRECT, 1.0), (Verdict.WRONG, -1.0)
    groups = [
        Group("a", [3, 4], (rollout([5, 6], *right, version=3), rollout([7], *wrong, version=3))),
        Group("b", [11], (rollout([12], *right, version=1), rollout([13, 14], *wrong, version=1))),
    ]
    found = {}
    for loop in ({"kind": "synchronous"}, ASYNCHRONOUS):
        choice = settings(loop=loop, proximal="recompute", rollout_correction=correction)
        trainer = TorchTrainer(TRAINER, choice.optimizer, 1.0, language_model(folder, TRAINER))
        samples, plan = prepare(groups, choice, trainer, version=3)
        found[loop["kind"]] = policy_metrics(update_policy(samples, plan, choice, 1.0, trainer), plan, choice)
    own = {name for name in found["asynchronous"] if "_staleness_" in name}
    assert {f"importance/effective_sample_fraction_staleness_{place}" for place in (0, 2)} <= own
    is_masked = correction["kind"] == "trust_region_masking"
    assert ("trust_region/acceptance_rate_staleness_2" in own) == is_masked
    rest = {name: value for name, value in found["asynchronous"].items() if name not in own}
    assert rest == found["synchronous"]
    assert not any(name.startswith("by_staleness") for name in rest)
