"""Rows without padding: neighbours do not see each other, and the body of the model is one graph."""

import pytest
import torch

from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.statistics import NAME, policy_statistics, use_varlen_attention, uses_varlen_attention
from stages.engines.trainers.params import DeepspeedTrainerParams
from tests.fakes.tiny_policy import tiny_model

SEQUENCES = [
    TokenSequence([5, 6, 7], [8, 9]),
    TokenSequence([10], [11, 12, 13, 14]),
    TokenSequence([15, 16], [17]),
    TokenSequence([18, 19, 20, 21], [22, 23, 24]),
]


@pytest.mark.parametrize("row_tokens", [None, 12, 100])
def test_statistics_and_gradients_are_those_of_padded_rows_with_a_mask(row_tokens):
    """By way of one sequence after the other on a CPU, as the kernel of a GPU does it at once."""
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
    """8,192 tokens in one row: a mask of them would take 128 MiB, and its float twin more."""
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
    """With checkpointing, which leaves the most to trace."""
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
    params = {
        "kind": "deepspeed",
        "dtype": "mixed",
        "offload_optimizer": False,
        "threads": 1,
        "micro_batch_tokens": 64,
        "gradient_checkpointing": True,
        "compile": "body",
    }
    assert DeepspeedTrainerParams(zero_stage=2, **params).compile == "body"
    with pytest.raises(ValueError, match="zero_stage: 2, or leave compile out"):
        DeepspeedTrainerParams(zero_stage=3, **params)
    absent = DeepspeedTrainerParams(zero_stage=3, **params | {"compile": None})
    assert "compile" not in absent.model_dump(), "settings that were recorded before stay the same"
