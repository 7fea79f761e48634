"""Packing: responses are found again, and neighbours in a row do not see each other."""

import pytest
import torch

from stages.engines.policies.packing import TokenSequence, pack, split_by_tokens
from stages.engines.policies.statistics import policy_statistics
from tests.fakes.tiny_policy import tiny_model

SEQUENCES = [
    TokenSequence([5, 6, 7], [8, 9]),
    TokenSequence([10], [11, 12, 13, 14]),
    TokenSequence([15, 16], [17]),
    TokenSequence([18, 19, 20, 21], [22, 23, 24]),
]


def naive_logprobs(model, sequence):
    """One sequence at a time, the whole vocabulary at once."""
    ids = torch.tensor([[*sequence.prompt, *sequence.response]])
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)
    first = len(sequence.prompt)
    return [float(logprobs[0, first - 1 + i, token]) for i, token in enumerate(sequence.response)]


@pytest.mark.parametrize("row_tokens", [None, 12, 100])
def test_packed_statistics_equal_one_sequence_at_a_time(row_tokens):
    model = tiny_model().eval()
    batch = pack(SEQUENCES, row_tokens=row_tokens)
    with torch.no_grad():
        found = policy_statistics(model, batch).logprobs
    for row, sequence in enumerate(SEQUENCES):
        expected = naive_logprobs(model, sequence)
        assert found[row, : len(expected)].tolist() == pytest.approx(expected, abs=1e-5)
        assert batch.response_mask[row].sum() == len(expected)


def test_wide_rows_hold_several_sequences():
    batch = pack(SEQUENCES, row_tokens=100)
    assert batch.row_ids.shape == (1, 20)
    assert batch.segment_ids is not None


def test_a_response_may_be_empty():
    batch = pack([TokenSequence([1, 2], []), TokenSequence([3], [4])])
    assert batch.response_mask.sum(dim=1).tolist() == [0, 1]


def test_an_empty_prompt_is_refused():
    with pytest.raises(ValueError, match="token before each response"):
        pack([TokenSequence([], [1])])


def test_micro_batches_keep_every_sequence_once_and_stay_below_the_limit():
    lengths = [5, 3, 9, 40, 2, 7, 7, 1]
    groups = split_by_tokens(lengths, 12)
    assert sorted(index for group in groups for index in group) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in group) <= 12 or len(group) == 1 for group in groups)
