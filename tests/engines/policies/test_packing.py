"""Packed rows: neighbours do not attend to each other, rows are balanced, and a batch's statistics are the model's.

Also rows without padding, as used on GPUs, and the body of the model as one graph.
"""

import random
from dataclasses import replace
from statistics import mean

import pytest
import torch

from stages.algorithms.token_statistics import pruned_logprobs
from stages.engines.policies.language_model import ReferencePolicy
from stages.engines.policies.packing import TokenSequence, balanced_passes, pack, split_by_tokens
from stages.engines.policies.statistics import NAME, policy_statistics, use_varlen_attention, uses_varlen_attention
from stages.engines.trainers.params import DeepspeedTrainerParams
from tests.engines.deepspeed_ranks import deepspeed_params
from tests.fakes.tiny_policy import plain_logits, tiny_model, write_tiny_policy

SEQUENCES = [
    TokenSequence([5, 6, 7], [8, 9]),
    TokenSequence([10], [11, 12, 13, 14]),
    TokenSequence([15, 16], [17]),
    TokenSequence([18, 19, 20, 21], [22, 23, 24]),
]


def test_wide_rows_hold_several_sequences_and_a_response_may_be_empty_but_no_prompt():
    batch = pack(SEQUENCES, row_tokens=100)
    assert batch.row_ids.shape == (1, 20)
    assert batch.segment_ids is not None
    batch = pack([TokenSequence([1, 2], []), TokenSequence([3], [4])])
    assert batch.response_mask.sum(dim=1).tolist() == [0, 1]
    with pytest.raises(ValueError, match="token before each response"):
        pack([TokenSequence([], [1])])


PROMPT = 200


def drawn_lengths(responses: int, most: int, seed: int) -> list[int]:
    """Returns truncated log-normal lengths: 99th percentile four medians, mean near a third of `most`, as in DAPO."""
    generator = random.Random(seed)
    limit = most - PROMPT
    return [PROMPT + min(limit, 1 + int(0.3 * limit * generator.lognormvariate(0, 0.596))) for _ in range(responses)]


def useful_share(lengths, max_tokens, ranks, pair_cost) -> float:
    """Returns the useful share of the time of all ranks, which wait for the slowest in each pass."""
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
    """7B on 8 GPUs and 32B on 128; dealt round robin in ascending order of length, the shares were 0.79 and 0.67."""
    shares = [
        useful_share(drawn_lengths(responses, max_tokens, seed), max_tokens, ranks, pair_cost) for seed in range(3)
    ]
    assert mean(shares) >= least


def test_no_rank_is_done_before_the_longest_sequence_and_then_all_are():
    """One long sequence and many short ones on two ranks: it stays alone, the others fill the second rank."""
    assert balanced_passes([8, 1, 1, 2, 1, 1, 1], 100, 2, 0.0) == [[[0], [3, 1, 2, 4, 5, 6]]]
    assert useful_share([8, 1, 1, 2, 1, 1, 1], 100, 2, 0.0) == 15 / 16


def test_attention_counts():
    """Cost t + t^2: one sequence of 4 costs 20, five of 2 cost 30, so only one of the five joins the long one."""
    ((long, short),) = balanced_passes([4, 2, 2, 2, 2, 2], 100, 2, 1.0)
    assert (long, len(short)) == ([0, 5], 4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_nothing_is_lost_and_no_limit_is_passed(ranks):
    generator = random.Random(ranks)
    for count in (0, 1, 4, 40):
        lengths = [generator.randint(1, 14) for _ in range(count)]  # some are longer than a micro-batch
        if ranks == 1:
            groups = split_by_tokens(lengths, 12)
        else:
            passes = balanced_passes(lengths, 12, ranks, 0.01)
            assert passes and all(len(groups) == ranks for groups in passes)
            groups = [group for of_pass in passes for group in of_pass]
        assert sorted(index for group in groups for index in group) == list(range(count))
        assert all(sum(lengths[i] for i in group) <= 12 or len(group) == 1 for group in groups)


UNEVEN_SEQUENCES = [TokenSequence([3, 4], [5, 6, 7]), TokenSequence([8], [9, 10])]


def each_alone(model, temperature, sequences=UNEVEN_SEQUENCES):
    return [plain_logits(model, one.prompt, one.response) / temperature for one in sequences]


@pytest.mark.parametrize("row_tokens", [None, 12, 100])
@pytest.mark.parametrize(("temperature", "log_threshold"), [(1.0, None), (0.7, None), (0.7, -2.0), (1.0, -0.5)])
def test_packed_statistics_are_those_of_each_sequence_alone_renormalised(temperature, log_threshold, row_tokens):
    model = tiny_model()
    batch = pack(SEQUENCES, temperature, row_tokens=row_tokens, log_threshold=log_threshold)
    with torch.no_grad():
        statistics = policy_statistics(model, batch)
    for number, (one, logits) in enumerate(zip(SEQUENCES, each_alone(model, temperature, SEQUENCES), strict=True)):
        threshold, ids = -torch.inf if log_threshold is None else log_threshold, torch.tensor(one.response)
        expected, outside = pruned_logprobs(logits[None], ids[None], threshold)
        length = len(one.response)
        assert torch.allclose(statistics.logprobs[number, :length], expected[0], atol=1e-5)
        assert statistics.outside[number].tolist() == [*outside[0].tolist(), *[False] * (4 - length)]
        assert batch.response_mask[number].sum() == length


def test_a_reference_gives_log_probs_and_no_gradient(tmp_path):
    reference = ReferencePolicy.from_folder(write_tiny_policy(tmp_path), "float32", torch.device("cpu"))
    batch = pack(UNEVEN_SEQUENCES, 0.7)
    found = reference.logprobs(batch)
    assert not found.requires_grad
    assert torch.equal(found, policy_statistics(tiny_model(), batch).logprobs.detach())


@pytest.mark.parametrize(("temperature", "log_threshold"), [(1.0, None), (0.7, None), (0.7, -2.0)])
@pytest.mark.parametrize("chunk_tokens", [1, 2, 100])
def test_divergences_are_those_of_the_whole_logits_whatever_the_chunks(temperature, log_threshold, chunk_tokens):
    model, other = tiny_model(), tiny_model(seed=1)
    rollouts = tuple(row.log_softmax(-1) for row in each_alone(other, temperature))
    policies = each_alone(model, temperature)
    batch = replace(pack(UNEVEN_SEQUENCES, temperature, log_threshold=log_threshold), rollout_distributions=rollouts)
    found = policy_statistics(model, batch, chunk_tokens).divergence
    assert not found.requires_grad and found.shape == (2, 3) and found[1, 2] == 0
    for number, (rollout, logits) in enumerate(zip(rollouts, policies, strict=True)):
        # Every token has a probability in the sampler, so the policy's set is the whole vocabulary.
        expected = (rollout.exp() * (rollout - logits.log_softmax(-1))).sum(-1).double()
        assert torch.allclose(found[number, : len(rollout)], expected, atol=1e-6)


def test_without_distributions_there_is_no_divergence_and_foreign_ones_are_refused():
    batch = pack(UNEVEN_SEQUENCES)
    assert policy_statistics(tiny_model(), batch).divergence is None
    too_few = replace(batch, rollout_distributions=(torch.zeros(3, 258), torch.zeros(1, 258)))
    with pytest.raises(ValueError, match=r"\[3, 1\] tokens do not belong"):
        policy_statistics(tiny_model(), too_few)
    narrow = replace(batch, rollout_distributions=(torch.zeros(3, 10), torch.zeros(2, 10)))
    with pytest.raises(ValueError, match=r"have \{10\} columns, not 258"):
        policy_statistics(tiny_model(), narrow)


@pytest.mark.parametrize("row_tokens", [None, 12, 100])
def test_statistics_and_gradients_are_those_of_padded_rows_with_a_mask(row_tokens):
    """A CPU computes one sequence after the other; a GPU's kernel computes them at once."""
    model, batch = tiny_model(), pack(SEQUENCES, row_tokens=row_tokens)
    found = {}
    for name in ("sdpa", NAME):
        model.config._attn_implementation = name
        model.zero_grad()
        statistics = policy_statistics(model, batch)
        (statistics.logprobs * batch.response_mask).sum().backward()
        found[name] = [*statistics, *(weight.grad for weight in model.parameters())]
    for masked, varlen in zip(found["sdpa"], found[NAME], strict=True):
        torch.testing.assert_close(varlen, masked, atol=1e-5, rtol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("row_tokens", [None, 100])
def test_the_kernel_of_a_gpu_agrees_with_a_mask_in_float32(row_tokens):
    model, batch = tiny_model().eval(), pack(SEQUENCES, row_tokens=row_tokens)
    with torch.no_grad():
        exact = policy_statistics(model, batch).logprobs
        device = torch.device("cuda")
        model.to(device, torch.bfloat16)
        use_varlen_attention(model, device, model.dtype)
        found = policy_statistics(model, batch.to(device)).logprobs
    assert uses_varlen_attention(model)
    torch.testing.assert_close(found.cpu(), exact, atol=0.05, rtol=0.02)


@pytest.mark.gpu
def test_no_mask_is_held_on_a_gpu():
    """8,192 tokens in one row: a mask for them would take 128 MiB, and its float copy more."""
    device = torch.device("cuda")
    model = tiny_model().eval().to(device, torch.bfloat16)
    model.config.max_position_embeddings = 8192
    batch = pack([TokenSequence([5] * 2, [6] * 1022)] * 8, row_tokens=8192).to(device)
    use_varlen_attention(model, device, model.dtype)
    with torch.no_grad():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        policy_statistics(model, batch)
        assert torch.cuda.max_memory_allocated() - before < 100 * 2**20


@pytest.mark.parametrize("attention", ["sdpa", pytest.param(NAME, marks=pytest.mark.gpu)])
def test_the_body_is_one_graph(attention):
    """With checkpointing, which has the most operations to trace."""
    model = tiny_model().train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    batch = pack(SEQUENCES, row_tokens=12)
    arguments = {"position_ids": batch.position_ids}
    if attention == NAME:
        model.to("cuda", torch.bfloat16)
        batch = batch.to(torch.device("cuda"))
        arguments = {"ends": batch.ends, "longest": batch.longest}
    model.config._attn_implementation = attention
    ids = batch.row_ids if attention == "sdpa" else batch.row_ids.flatten()[batch.row_places][None]
    torch._dynamo.reset()
    explained = torch._dynamo.explain(model.base_model)(input_ids=ids, use_cache=False, **arguments)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0), explained.break_reasons


def test_weights_that_are_spread_are_not_compiled():
    two, three = (deepspeed_params(stage, "mixed").model_dump() for stage in (2, 3))
    assert "compile" not in three, "settings that were recorded before stay the same"
    assert DeepspeedTrainerParams(**two, compile="body").compile == "body"
    with pytest.raises(ValueError, match="zero_stage: 2, or leave compile out"):
        DeepspeedTrainerParams(**three, compile="body")
