"""Statistics of packed responses: at the batch's temperature, over its safe vocabulary."""

import pytest
import torch

from stages.algorithms.vocabulary_pruning import pruned_logprobs
from stages.engines.packing import TokenSequence, pack
from stages.engines.reference import ReferencePolicy
from stages.engines.statistics import policy_statistics
from tests.fakes.tiny_policy import tiny_model, write_tiny_policy

SEQUENCES = [TokenSequence([3, 4], [5, 6, 7]), TokenSequence([8], [9, 10])]


def plain_logits(model, temperature):
    rows = [model(torch.tensor([[*one.prompt, *one.response]])).logits[0] / temperature for one in SEQUENCES]
    return [row[len(one.prompt) - 1 : -1] for row, one in zip(rows, SEQUENCES, strict=True)]


@pytest.mark.parametrize(
    ("temperature", "log_threshold"), [(1.0, None), (0.7, None), (0.7, -2.0), (1.0, -0.5)]
)
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
