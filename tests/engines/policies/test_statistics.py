"""Statistics of packed responses: at the batch's temperature, over its safe vocabulary."""

from dataclasses import replace

import pytest
import torch

from stages.algorithms.token_statistics import pruned_logprobs
from stages.engines.policies.language_model import ReferencePolicy
from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.statistics import policy_statistics
from tests.fakes.tiny_policy import tiny_model, write_tiny_policy

SEQUENCES = [TokenSequence([3, 4], [5, 6, 7]), TokenSequence([8], [9, 10])]


def plain_logits(model, temperature):
    rows = [model(torch.tensor([[*one.prompt, *one.response]])).logits[0] / temperature for one in SEQUENCES]
    return [row[len(one.prompt) - 1 : -1] for row, one in zip(rows, SEQUENCES, strict=True)]


@pytest.mark.parametrize(("temperature", "log_threshold"), [(1.0, None), (0.7, None), (0.7, -2.0), (1.0, -0.5)])
def test_statistics_are_those_of_the_renormalised_distribution(temperature, log_threshold):
    model = tiny_model()
    statistics = policy_statistics(model, pack(SEQUENCES, temperature, log_threshold=log_threshold))
    for number, (one, logits) in enumerate(zip(SEQUENCES, plain_logits(model, temperature), strict=True)):
        ids = torch.tensor(one.response)
        expected, outside = pruned_logprobs(
            logits[None], ids[None], -torch.inf if log_threshold is None else log_threshold
        )
        length = len(one.response)
        assert torch.allclose(statistics.logprobs[number, :length], expected[0], atol=1e-5)
        assert statistics.outside[number].tolist() == [*outside[0].tolist(), *[False] * (3 - length)]


def test_a_reference_gives_log_probs_and_no_gradient(tmp_path):
    reference = ReferencePolicy.from_folder(write_tiny_policy(tmp_path), "float32", torch.device("cpu"))
    batch = pack(SEQUENCES, 0.7)
    found = reference.logprobs(batch)
    assert not found.requires_grad
    assert torch.equal(found, policy_statistics(tiny_model(), batch).logprobs.detach())


@pytest.mark.parametrize(("temperature", "log_threshold"), [(1.0, None), (0.7, None), (0.7, -2.0)])
@pytest.mark.parametrize("chunk_tokens", [1, 2, 100])
def test_divergences_are_those_of_the_whole_logits_whatever_the_chunks(temperature, log_threshold, chunk_tokens):
    model, other = tiny_model(), tiny_model(seed=1)
    with torch.no_grad():
        rollouts = tuple(row.log_softmax(-1) for row in plain_logits(other, temperature))
        policies = plain_logits(model, temperature)
    batch = replace(pack(SEQUENCES, temperature, log_threshold=log_threshold), rollout_distributions=rollouts)
    found = policy_statistics(model, batch, chunk_tokens).divergence
    assert not found.requires_grad and found.shape == (2, 3) and found[1, 2] == 0
    for number, (rollout, logits) in enumerate(zip(rollouts, policies, strict=True)):
        # Every token has a probability with the sampler, so the policy's set is the whole vocabulary.
        expected = (rollout.exp() * (rollout - logits.log_softmax(-1))).sum(-1).double()
        assert torch.allclose(found[number, : len(rollout)], expected, atol=1e-6)


def test_without_distributions_there_is_no_divergence_and_foreign_ones_are_refused():
    batch = pack(SEQUENCES)
    assert policy_statistics(tiny_model(), batch).divergence is None
    too_few = replace(batch, rollout_distributions=(torch.zeros(3, 258), torch.zeros(1, 258)))
    with pytest.raises(ValueError, match=r"\[3, 1\] tokens do not belong"):
        policy_statistics(tiny_model(), too_few)
    narrow = replace(batch, rollout_distributions=(torch.zeros(3, 10), torch.zeros(2, 10)))
    with pytest.raises(ValueError, match="not over the policy's 258 tokens"):
        policy_statistics(tiny_model(), narrow)
