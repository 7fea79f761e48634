"""Weights and masks that correct for the sampler: by hand, against reference code, and their edges."""

import math

import pytest
import torch

from stages.algorithms.rollout_corrections import (
    bad_response_mask,
    error_bounds,
    exact_divergences,
    geometric_mask,
    ice_pop_weights,
    importance_weights,
    length_neutral_scores,
    likeliest_divergences,
    normalising_factor,
    sampled_divergences,
    trust_region_masks,
)
from stages.algorithms.token_statistics import likeliest_tokens


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(0)
    policy = -torch.rand(5, 9, generator=generator, dtype=torch.float64) * 4
    rollout = policy + 0.5 * torch.randn(5, 9, generator=generator, dtype=torch.float64)
    mask = torch.rand(5, 9, generator=generator) < 0.7
    mask[3] = False  # a response that a mask has emptied
    return policy, rollout, mask


def trust_region_mask(policy, rollout, mask, max_threshold=None, mean_threshold=None):
    """Returns the responses whose sampled tokens are within both thresholds."""
    within = trust_region_masks(*sampled_divergences(policy, rollout, mask), mask, max_threshold, mean_threshold)
    return within[0] & within[1]


def test_the_trust_region_by_hand():
    policy = torch.tensor([[math.log(1.3), 0.0], [math.log(1.4), 0.0], [math.log(0.7), 0.0]])
    rollout, mask = torch.zeros(3, 2), torch.ones(3, 2)
    # k2: 0.5 log(1.3)^2 = 0.0344, 0.5 log(1.4)^2 = 0.0566, 0.5 log(0.7)^2 = 0.0636.
    assert trust_region_mask(policy, rollout, mask, max_threshold=0.05).tolist() == [True, False, False]
    assert trust_region_mask(policy, rollout, mask, max_threshold=0.06).tolist() == [True, True, False]
    # Mean k3 over two tokens: (0.3 - 0.26236) / 2 = 0.01882, (0.4 - 0.33647) / 2 = 0.03176, (-0.3 + 0.35667) / 2 =
    # 0.02834.
    assert trust_region_mask(policy, rollout, mask, mean_threshold=0.03).tolist() == [True, False, True]
    assert trust_region_mask(policy, rollout, mask, 0.06, 0.03).tolist() == [True, False, False]
    assert trust_region_mask(policy, rollout, mask).tolist() == [True, True, True]
    # What lies outside the mask counts for nothing, a NaN inside is never accepted.
    broken, inside = torch.where(torch.eye(3, 2).bool(), math.nan, policy), 1 - torch.eye(3, 2)
    assert trust_region_mask(broken, rollout, inside, max_threshold=0.06).tolist() == [True, True, False]
    assert trust_region_mask(broken, rollout, inside, mean_threshold=0.05).tolist() == [True, False, True]
    for thresholds in ((1e9, None), (None, 1e9)):
        assert trust_region_mask(broken, rollout, mask, *thresholds).tolist() == [False, False, True]


def test_the_exact_trust_region_by_hand():
    kl = torch.tensor([[0.01, 0.03, 9.0], [0.06, 0.0, 9.0], [0.04, 0.04, 9.0]])
    mask = torch.tensor([[1, 1, 0]] * 3)
    # Maxima 0.03, 0.06, 0.04; means 0.02, 0.03, 0.04.
    within_max, within_mean = trust_region_masks(kl, kl, mask, 0.05, 0.035)
    assert within_max.tolist() == [True, False, True] and within_mean.tolist() == [True, True, False]
    assert [one.all() for one in trust_region_masks(kl, kl, mask, None, None)] == [True, True]
    nothing = torch.zeros(2, 0)
    assert trust_region_mask(nothing, nothing, nothing, 0.1, 0.1).tolist() == [True, True]


def test_the_papers_table():
    # T = 4096, delta = 1e-4; both columns of the table as printed in the paper.
    kl_only = error_bounds(4096, 1e-4, sequence_kl=0.01)
    printed = {"classical": 1677, "coupling": 113.8, "pinsker_marginal_kl": 35.0, "mixed_kl": 8.2, "mixed_tv": 8.2}
    for name, value in {**printed, "pinsker_marginal_tv": 35.0, "unified": 8.2}.items():
        assert kl_only[name] == pytest.approx(value, rel=0.01)
    assert kl_only["adaptive"] <= 35.0
    with_tv = error_bounds(4096, 1e-4, max_token_tv=5e-3, sequence_kl=0.01, sequence_tv=0.05)
    printed = {"classical": 839, "coupling": 79.9, "pinsker_marginal_kl": 35.0, "pinsker_marginal_tv": 24.7}
    for name, value in {**printed, "mixed_kl": 8.2, "mixed_tv": 4.1, "unified": 4.1}.items():
        assert with_tv[name] == pytest.approx(value, rel=0.01)
    assert with_tv["adaptive"] <= 24.72


def test_bounds_by_hand():
    # T = 3, delta = 0.02, eps = sqrt(0.01) = 0.1. Classical: 2 * 3 * 2 * 0.01 = 0.12. Coupling: 4 * 0.1 * (0.1 + 0.2).
    # Marginal: 4 * 0.1 * (0.1 + 0.1 sqrt 2) = 0.096569. sequence_kl <= 3 * 0.02 = 0.06: 6 sqrt(0.0012) = 0.207846.
    bounds = error_bounds(3, 0.02)
    assert bounds["classical"] == pytest.approx(0.12) and bounds["coupling"] == pytest.approx(0.12)
    assert bounds["pinsker_marginal_kl"] == pytest.approx(0.0965685)
    assert bounds["mixed_kl"] == pytest.approx(0.2078461)
    assert bounds["mixed_tv"] == pytest.approx(4 * 3 * 0.1 * math.sqrt(0.03))
    # Adaptive with means (0.1, 0.05, 0): 4 * (0.1 * min(0.2, 0.1 sqrt 2) + 0.05 * 0.1) = 0.0765685.
    adaptive = error_bounds(3, 0.02, mean_token_tv=[0.1, 0.05, 0.0])
    assert adaptive["adaptive"] == pytest.approx(0.0765685) == adaptive["unified"]
    assert set(error_bounds(1000, 0.0).values()) == {0.0}
    for arguments in ((0, 0.1), (5, -0.1), (5, 0.1, -1.0)):
        with pytest.raises(ValueError):
            error_bounds(*arguments)
    with pytest.raises(ValueError, match="5 tokens"):
        error_bounds(5, 0.1, mean_token_tv=[0.1])


def test_exact_divergences_by_hand():
    rollout = torch.tensor([[0.5, 0.25, 0.25], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log()
    policy = torch.tensor([[0.25, 0.5, 0.25], [0.25, 0.25, 0.5], [0.5, 0.25, 0.25]]).log() + 3.0
    # 0.5 log 2 + 0.25 log 0.5 = 0.25 log 2; log 2 twice half; log 2. A shift of the logits changes nothing.
    expected = [0.25 * math.log(2), math.log(2), math.log(2)]
    assert exact_divergences(rollout, policy).tolist() == pytest.approx(expected, abs=1e-7)
    # Heated to p^0.5 the first policy is (1, sqrt 2, 1) / (2 + sqrt 2).
    heated = exact_divergences(rollout[:1], policy[:1], temperature=2.0).item()
    by_hand = 0.5 * math.log(0.5) + 0.5 * math.log(0.25) + math.log(2 + 2**0.5) - 0.25 * math.log(2**0.5)
    assert heated == pytest.approx(by_hand, abs=1e-7)


def test_pruned_divergences_join_the_two_sets():
    """Policy (0.6, 0.3, 0.08, 0.02): a threshold of log 0.4 keeps two tokens, log 0.1 three."""
    policy = torch.tensor([[0.6, 0.3, 0.08, 0.02]]).log()
    same = torch.tensor([[2 / 3, 1 / 3, 0.0, 0.0]]).log()
    assert exact_divergences(same, policy, log_threshold=math.log(0.4)).item() == pytest.approx(0.0, abs=1e-7)
    # One token more on the policy's side: every mass shrinks by 0.9 / 0.98.
    wider = exact_divergences(same, policy, log_threshold=math.log(0.1)).item()
    assert wider == pytest.approx(math.log(0.98 / 0.9), abs=1e-6)
    # One token more on the sampler's side belongs to the policy's set there: finite, and 0 at equal probabilities.
    sampled = torch.tensor([[0.6, 0.3, 0.08, 0.0]]).div(0.98).log()
    assert exact_divergences(sampled, policy, log_threshold=math.log(0.4)).item() == pytest.approx(0, abs=1e-6)


def test_exact_divergences_against_torch_and_their_edges():
    generator = torch.Generator().manual_seed(0)
    rollout = torch.randn(50, 40, generator=generator).log_softmax(-1)
    logits = rollout + 0.3 * torch.randn(50, 40, generator=generator)
    logits.requires_grad_()
    found = exact_divergences(rollout, logits)
    expected = torch.nn.functional.kl_div(
        logits.detach().double().log_softmax(-1), rollout.double(), reduction="none", log_target=True
    ).sum(-1)
    assert not found.requires_grad and found.dtype == torch.float64
    assert torch.allclose(found, expected, atol=1e-6)
    assert 0 <= exact_divergences(rollout, rollout).min() <= exact_divergences(rollout, rollout).max() < 1e-12
    assert exact_divergences(rollout, torch.full_like(rollout, math.nan)).isnan().all()
    assert exact_divergences(rollout[:0], rollout[:0]).shape == (0,)
    with pytest.raises(ValueError, match="temperature"):
        exact_divergences(rollout, rollout, temperature=0.0)


def test_likeliest_divergences_by_hand():
    rollout = torch.tensor([[0.5, 0.3, 0.1, 0.1]]).log()
    policy = torch.tensor([[0.25, 0.25, 0.25, 0.25]]).log() + 3.0
    # One listed: (0.5, 0.5) against (1/4, 3/4). Two: (0.5, 0.3, 0.2) against (1/4, 1/4, 1/2).
    one, two, all_four = (likeliest_divergences(likeliest_tokens(rollout, n), policy).item() for n in (1, 2, 4))
    assert one == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), abs=1e-7)
    assert two == pytest.approx(0.5 * math.log(2) + 0.3 * math.log(1.2) + 0.2 * math.log(0.4), abs=1e-7)
    assert all_four == pytest.approx(exact_divergences(rollout, policy).item(), abs=1e-7)
    # Heated to p^0.5 the policy (0.64, 0.16, 0.16, 0.04) is (4, 2, 2, 1) / 9.
    heated = likeliest_divergences(
        likeliest_tokens(rollout, 1), torch.tensor([[0.64, 0.16, 0.16, 0.04]]).log().requires_grad_(), 2.0
    )
    assert heated.item() == pytest.approx(0.5 * math.log(0.5 * 9 / 4) + 0.5 * math.log(0.5 * 9 / 5), abs=1e-7)
    assert not heated.requires_grad
    assert likeliest_divergences(likeliest_tokens(rollout, 2), torch.full_like(rollout, math.nan)).isnan().all()
    # A sampler that draws from two tokens only: the others have no mass, and none is lost to rounding.
    cut = torch.tensor([[0.7, 0.3, 0.0, 0.0]]).log()
    found = likeliest_divergences(likeliest_tokens(cut, 3), policy).item()
    assert found == pytest.approx(exact_divergences(cut, policy).item(), abs=1e-6)


def test_importance_weights_by_hand():
    policy = torch.tensor([[1.5, 4.0, 0.5, 7.0]]).log()
    mask = torch.tensor([[1, 1, 1, 0]])
    # Token: 1.5, min(4, 2) = 2, 0.5. Sequence: 1.5 * 4 * 0.5 = 3, capped at 2; a cap of 5 leaves it.
    token = importance_weights(policy, torch.zeros(1, 4), mask, "token", 2.0)
    torch.testing.assert_close(token, torch.tensor([[1.5, 2.0, 0.5, 0.0]]))
    sequence = importance_weights(policy, torch.zeros(1, 4), mask, "sequence", 2.0)
    torch.testing.assert_close(sequence, torch.tensor([[2.0, 2.0, 2.0, 0.0]]))
    sequence = importance_weights(policy, torch.zeros(1, 4), mask, "sequence", 5.0)
    torch.testing.assert_close(sequence, torch.tensor([[3.0, 3.0, 3.0, 0.0]]))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_equal_log_probabilities_give_one_and_padding_nothing(level, batch):
    policy, rollout, mask = batch
    assert torch.equal(importance_weights(policy, policy, mask, level, 2.0), mask.double())
    dirty = [torch.where(mask, tensor, math.nan) for tensor in (policy, rollout)]
    clean = importance_weights(policy, rollout, mask, level, 2.0)
    torch.testing.assert_close(importance_weights(*dirty, mask, level, 2.0), clean)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_normalised_weights_have_a_mean_of_one(level, batch):
    policy, proximal, mask = batch
    weights = importance_weights(policy, proximal, mask, level, 1.3)
    scaled = weights * normalising_factor(weights, mask, level)
    tokens = [[float(scaled[b, t]) for t in range(9) if mask[b, t]] for b in range(5)]
    # Over tokens, or over the responses that have any: the fourth has none.
    means = [value for row in tokens for value in row] if level == "token" else [row[0] for row in tokens if row]
    assert len(means) == (int(mask.sum()) if level == "token" else 4)
    assert sum(means) / len(means) == pytest.approx(1.0)
    assert not scaled[~mask].any()
    # As verl does it: truncated first, then divided, so a weight may exceed the cap; weights of 0 stay as they are.
    by_hand = torch.tensor([[0.5, 2.0], [1.0, 0.0]])
    both = torch.tensor([[1, 1], [1, 0]])
    assert float(normalising_factor(by_hand, both, "token")) == pytest.approx(3 / 3.5)
    assert float(normalising_factor(0 * by_hand, both, level)) == 1.0
    # Without rounding errors that grow with the number of tokens.
    many = torch.full((1, 2_000_000), 0.1)
    assert float(normalising_factor(many, torch.ones_like(many), "token")) == pytest.approx(10.0, rel=1e-6)


def test_weights_have_no_gradient_and_no_overflow():
    policy = torch.tensor([[0.0, -500.0]], requires_grad=True)
    rollout = torch.tensor([[-500.0, 0.0]])
    for level in ("token", "sequence"):
        weights = importance_weights(policy, rollout, torch.ones(1, 2), level, math.inf)
        assert weights.isfinite().all() and not weights.requires_grad


def test_masks_of_whole_responses_by_hand():
    rollout = torch.zeros(4, 3)
    policy = torch.tensor([[0.1, -0.1, 0.003], [0.0, 0.0, 0.3], [-0.2, -0.4, 9.0], [0.0, math.nan, 0.0]])
    mask = torch.tensor([[1.0, 1, 1], [1, 1, 1], [1, 1, 0], [1, 1, 1]])
    # Means of the log-ratio: 0.001, 0.1, -0.3 (the third token does not count), NaN.
    assert geometric_mask(policy, rollout, mask, 0.7, 1.05).tolist() == [True, False, True, False]
    assert geometric_mask(policy, rollout, mask, 0.8, 1.2).tolist() == [True, True, False, False]
    bad, good = torch.full((4, 3), -1.0), torch.full((4, 3), 1.0)
    assert bad_response_mask(policy, rollout, bad, mask, 0.25).tolist() == [True, True, False, False]
    assert bad_response_mask(policy, rollout, good, mask, 0.25).tolist() == [True, True, True, False]
    assert geometric_mask(policy, rollout, torch.zeros(4, 3), 0.9, 1.1).all(), "a response without tokens is accepted"


def test_a_length_neutral_score_by_hand():
    policy = torch.tensor([[1.1, 0.8, 1.5]]).log()
    rollout, mask = torch.zeros(1, 3), torch.ones(1, 3)
    # |ratio - 1| = 0.1, 0.2, 0.5. SER: their mean. With token_tv 0.25 the weights are 0.5, 0.25, 0.
    assert length_neutral_scores(policy, rollout, mask, None, None).item() == pytest.approx(0.8 / 3)
    assert length_neutral_scores(policy, rollout, mask, None, 0.25).item() == pytest.approx(0.1 / 0.75)
    # token_kl 0.25: sqrt(2 * 0.125) = 0.5 and sqrt(0.125) = 0.3536; together the smaller of the two counts.
    root = math.sqrt(0.125)
    expected = (0.5 * 0.1 + root * 0.2) / (0.5 + root)
    assert length_neutral_scores(policy, rollout, mask, 0.25, None).item() == pytest.approx(expected)
    assert length_neutral_scores(policy, rollout, mask, 0.25, 0.25).item() == pytest.approx(0.1 / 0.75)
    # Both at 0.5: min(1, sqrt(0.5)) and min(0.5, 0.5). No weight is above 1, as with token_kl 8: sqrt(8) and 2.
    root = math.sqrt(0.5)
    expected = (root * 0.1 + 0.5 * 0.2) / (root + 0.5)
    assert length_neutral_scores(policy, rollout, mask, 0.5, 0.5).item() == pytest.approx(expected)
    assert length_neutral_scores(policy, rollout, mask, 8.0, None).item() == pytest.approx(0.15)


def test_a_length_neutral_score_does_not_grow_with_the_length_and_sees_nan():
    def score(length):
        return length_neutral_scores(
            torch.full((1, length), 0.01), torch.zeros(1, length), torch.ones(1, length), 1e-4, 5e-3
        )

    # Every token differs by the same ratio, so responses of any length have one score.
    assert [score(length).item() for length in (2, 10, 5000)] == pytest.approx([math.expm1(0.01)] * 3)
    # The only token of a response has weight 0: deviation 5. NaN at a weighted token is no score that is accepted.
    assert score(1).item() == 0
    broken = length_neutral_scores(torch.tensor([[math.nan, 0.0]]), torch.zeros(1, 2), torch.ones(1, 2), 1e-4, None)
    assert not broken <= 1e9


# Five responses, of 4, 4, 4, 2 and 3 tokens. The geometric means of their ratios: 1.007, 0.645, 1.813, 0.548, 1.016.
RATIOS = [[1.02, 0.97, 1.05, 0.99], [0.4, 0.9, 0.6, 0.8], [3, 1.2, 6, 0.5], [1.5, 0.2, 1, 9], [1.04, 0.98, 1.03, 9]]
ROLLOUT = [
    [-0.5, -1.2, -0.8, -0.3],
    [-0.2, -0.9, -0.4, -0.7],
    [-3, -1, -4, -0.6],
    [-1, -0.1, -2, -5],
    [-0.3, -0.6, -0.9, -4],
]
MASK = torch.tensor([[1] * 4, [1] * 4, [1] * 4, [1, 1, 0, 0], [1, 1, 1, 0]])


def weights_of(level):
    """Followed by the inverse of the factor that normalises them, which is their mean."""

    def found(policy, rollout):
        weights = importance_weights(policy, rollout, MASK, level, 2.0)
        return torch.cat([weights.flatten(), 1 / normalising_factor(weights, MASK, level)[None]])

    return found


def bad_responses(positive, max_divergence):
    """All advantages are negative, except that of one response."""
    advantages = torch.full((5, 4), -1.0)
    advantages[positive] = 1.0
    return lambda *logprobs: bad_response_mask(*logprobs, advantages, MASK, max_divergence)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        # verl-project/verl at 1dda039b, `compute_rollout_correction_weights`; last the mean that it divides by when it
        # normalises. slime (below) gives the same weights of tokens.
        pytest.param(
            weights_of("token"),
            [
                *[1.02, 0.97, 1.05, 0.99],
                *[0.4, 0.9, 0.6, 0.8],
                *[2, 1.2, 2, 0.5],
                *[1.5, 0.2, 0, 0],
                *[1.04, 0.98, 1.03, 0],
                1.0105882,
            ],
            id="token_weights",
        ),
        pytest.param(
            weights_of("sequence"),
            [*[1.028481] * 4, *[0.1728] * 4, *[2] * 4, 0.3, 0.3, 0, 0, *[1.049776] * 3, 0, 0.9102115],
            id="sequence_weights",
        ),
        # The same function with bounds 0.5 and 5; the type `icepop` of OpenRLHF/OpenRLHF at 3c3be623, `PolicyLoss`.
        pytest.param(
            lambda *logprobs: ice_pop_weights(*logprobs, MASK, 0.5, 5.0).flatten(),
            [1.02, 0.97, 1.05, 0.99, 0, 0.9, 0.6, 0.8, 3, 1.2, 0, 0.5, 1.5, 0, 0, 0, 1.04, 0.98, 1.03, 0],
            id="ice_pop",
        ),
        # THUDM/slime at 624b824a, `compute_mis_weights` of examples/train_infer_mismatch_helper, level `geometric`;
        # OpenRLHF's `seq-mask-tis`; `compute_rollout_rejection_mask` of the verl inside sail-sg/Stable-RL at c6af1d11,
        # level `geometric`. verl at 1dda039b differs: its `seq_mean_k1` bounds the inverse, and drops the second one.
        pytest.param(lambda *logprobs: geometric_mask(*logprobs, MASK, 0.6, 1.3), [1, 1, 0, 0, 1], id="geometric_wide"),
        pytest.param(
            lambda *logprobs: geometric_mask(*logprobs, MASK, 0.99, 1.01), [1, 0, 0, 0, 0], id="geometric_narrow"
        ),
        # slime, `compute_opsm_mask`; huggingface/trl at f2cd5771, `get_off_policy_mask`.
        pytest.param(bad_responses(positive=2, max_divergence=0.3), [1, 0, 1, 0, 1], id="bad_low"),
        pytest.param(bad_responses(positive=2, max_divergence=0.5), [1, 1, 1, 0, 1], id="bad_high"),
        pytest.param(bad_responses(positive=3, max_divergence=0.3), [1, 0, 1, 1, 1], id="bad_but_positive"),
        # verl at 1dda039b, `compute_rollout_rejection_mask` with `seq_max_k2` and with `seq_mean_k3`.
        pytest.param(
            lambda *logprobs: torch.cat(trust_region_masks(*sampled_divergences(*logprobs, MASK), MASK, 0.5, 0.1)),
            [1, 1, 0, 0, 1, 1, 0, 0, 0, 1],
            id="trust_region",
        ),
    ],
)
def test_weights_and_masks_are_those_of_reference_code(function, expected):
    rollout = torch.tensor(ROLLOUT, dtype=torch.float64)
    found = function(torch.tensor(RATIOS, dtype=torch.float64).log() + rollout, rollout)
    assert found.double().tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [0.143841, 0.311239, 0.036535]), (2, [0.218012, 0.330671, 0.036613]), (3, [0.218012, 0.356834, 0.038642])],
)
def test_likeliest_divergences_are_those_of_the_authors_of_dppo(count, expected):
    """`compute_topk_kl` in verl/workers/actor/utils.py of sail-sg/Stable-RL at c6af1d11."""
    rollout = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.4, 0.4, 0.15, 0.05], [0.97, 0.01, 0.01, 0.01]]).log()
    policy = torch.tensor([[0.25] * 4, [0.7, 0.1, 0.1, 0.1], [0.9, 0.05, 0.03, 0.02]]).log()
    found = likeliest_divergences(likeliest_tokens(rollout, count), policy)
    assert found.tolist() == pytest.approx(expected, abs=2e-6)
