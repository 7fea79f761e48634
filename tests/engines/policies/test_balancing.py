"""Micro-batches shared out over ranks: nothing lost, no limit passed, nobody waits long."""

import random
from statistics import mean

import pytest

from stages.engines.policies.language_model import language_model
from stages.engines.policies.packing import balanced_passes
from stages.engines.trainers.params import TorchTrainerParams
from tests.fakes.tiny_policy import write_tiny_policy

PROMPT = 200


def drawn_lengths(responses: int, most: int, seed: int) -> list[int]:
    """Log-normal with a 99th percentile of four medians, cut off; the mean is near a third of `most`, as in DAPO."""
    generator = random.Random(seed)
    limit = most - PROMPT
    return [PROMPT + min(limit, 1 + int(0.3 * limit * generator.lognormvariate(0, 0.596))) for _ in range(responses)]


def useful_share(lengths, max_tokens, ranks, pair_cost) -> float:
    """Of the time of all ranks, which wait for the slowest in each pass."""
    costs = [length + pair_cost * length**2 for length in lengths]
    passes = balanced_passes(lengths, max_tokens, ranks, pair_cost)
    lasting = sum(max(sum(costs[index] for index in group) for group in groups) for groups in passes)
    return sum(costs) / (ranks * lasting)


@pytest.mark.parametrize(
    ("ranks", "max_tokens", "responses", "pair_cost", "least"),
    [
        (8, 16_384, 128, 28 * 3584 / 7.62e9, 0.90),
        (8, 32_768, 512, 28 * 3584 / 7.62e9, 0.90),
        (128, 20_480, 512, 64 * 5120 / 32.5e9, 0.80),
    ],
)
def test_ranks_seldom_wait_for_each_other(ranks, max_tokens, responses, pair_cost, least):
    """7B on 8 GPUs and 32B on 128; in ascending order of length, dealt out in turn, it was 0.79 and 0.67."""
    shares = [
        useful_share(drawn_lengths(responses, max_tokens, seed), max_tokens, ranks, pair_cost) for seed in range(3)
    ]
    assert mean(shares) >= least


def test_no_rank_is_done_before_the_longest_sequence_and_then_all_are():
    """One long sequence and many short ones on two ranks: it stays alone, the others fill the second rank."""
    assert balanced_passes([8, 1, 1, 2, 1, 1, 1], 100, 2, 0.0) == [[[0], [3, 1, 2, 4, 5, 6]]]
    assert useful_share([8, 1, 1, 2, 1, 1, 1], 100, 2, 0.0) == 15 / 16


def test_attention_counts():
    """Cost t + t^2: one of 4 weighs 20, five of 2 weigh 30, so the long one takes just one of them beside it."""
    ((long, short),) = balanced_passes([4, 2, 2, 2, 2, 2], 100, 2, 1.0)
    assert (long, len(short)) == ([0, 5], 4)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_nothing_is_lost_and_no_limit_is_passed(ranks):
    generator = random.Random(ranks)
    for count in (0, 1, 4, 40):
        lengths = [generator.randint(1, 14) for _ in range(count)]  # some are longer than a micro-batch
        passes = balanced_passes(lengths, 12, ranks, 0.01)
        assert passes
        assert all(len(groups) == ranks for groups in passes)
        groups = [group for of_pass in passes for group in of_pass]
        assert sorted(index for group in groups for index in group) == list(range(count))
        assert all(sum(lengths[i] for i in group) <= 12 or len(group) == 1 for group in groups)


def test_what_attention_costs_is_told_by_the_model(tmp_path):
    params = TorchTrainerParams(
        kind="torch", device="cpu", dtype="float32", threads=1, micro_batch_tokens=64, gradient_checkpointing=False
    )
    model = language_model(write_tiny_policy(tmp_path), params)
    config = model.module.config
    width = config.num_attention_heads * config.head_dim
    assert model.pair_cost == config.num_hidden_layers * width / model.module.num_parameters()
