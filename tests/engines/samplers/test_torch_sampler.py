"""The built-in sampler compared with transformers' forward pass and generation, and its deliberate mismatch.

The last part: the weights of a sampler with a mismatch, by hand-worked rounding and by the log-probs it reports.
"""

import json
import threading
from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from stages.algorithms.token_statistics import likeliest_tokens, safe_vocabulary
from stages.engines.samplers import decoder
from stages.engines.samplers.decoder import Decoder
from stages.engines.samplers.params import Bfloat16Weights, Int8Weights, StaleWeights
from stages.engines.samplers.protocol import SamplingSettings, StopReason, Trajectory, sample_trajectories
from stages.engines.samplers.torch_sampler import TorchSampler, rounded
from tests.fakes.drawing import sample_numbered
from tests.fakes.engine_params import TORCH_SAMPLER
from tests.fakes.tiny_policy import plain_logits, plain_logprobs, write_tiny_policy

PARAMS = TORCH_SAMPLER.model_copy(update={"max_sequences": 16})
SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=12, log_threshold=None)
PROMPTS = [[3, 4, 5], [6], [7, 8, 9, 10, 11], [12, 13]]
END = 1
SIZES = dict(
    vocab_size=40,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
    initializer_range=0.3,
    pad_token_id=0,
    eos_token_id=END,
    bos_token_id=None,
)


def replace_params(**changes):
    return PARAMS.model_copy(update=changes)


def make(kind, seed=0, **sizes):
    torch.manual_seed(seed)
    model_class, config_class = {
        "llama": (LlamaForCausalLM, LlamaConfig),
        "qwen2": (Qwen2ForCausalLM, Qwen2Config),
        "qwen3": (Qwen3ForCausalLM, Qwen3Config),
    }[kind]
    return model_class(config_class(**{**SIZES, **sizes})).eval()


MODELS = [
    pytest.param("llama", dict(num_key_value_heads=4, tie_word_embeddings=True), id="llama"),
    pytest.param("llama", dict(num_key_value_heads=2, tie_word_embeddings=False), id="llama-grouped-heads"),
    pytest.param("qwen2", dict(num_key_value_heads=2), id="qwen2-biases"),
    pytest.param("qwen3", dict(num_key_value_heads=2, head_dim=16), id="qwen3-query-norms"),
]


def random_biases(model):
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("bias"):
                weight.normal_(0, 0.3)
    return model


def assert_logprobs_are_the_models(model, prompts, drawn, tolerance=2e-5):
    for prompt, samples in zip(prompts, drawn, strict=True):
        for sample in samples:
            expected = plain_logprobs(model, prompt, sample.token_ids).tolist()
            assert sample.logprobs == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize(("kind", "sizes"), MODELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_sampled_logprobs_are_those_of_the_models_forward_pass(kind, sizes, threads):
    """Responses are long enough for the cache to grow, and enough that it is compacted and its groups narrowed."""
    model = random_biases(make(kind, **sizes))
    sampler = TorchSampler(replace_params(max_sequences=64, threads=threads), model, [END])
    drawn = sample_numbered(sampler, PROMPTS, 12, replace(SETTINGS, max_response_tokens=40), seed=1)
    lengths = [len(sample.token_ids) for samples in drawn for sample in samples]
    assert min(lengths) < 10 and max(lengths) == 40
    assert_logprobs_are_the_models(model, PROMPTS, drawn)
    chosen = [drawn[0][0], drawn[3][1]]
    read = sampler.logprobs([PROMPTS[0], PROMPTS[3]], [sample.token_ids for sample in chosen])
    assert read == [pytest.approx(sample.logprobs, abs=2e-5) for sample in chosen]


def test_bfloat16_stays_near_the_models_own_bfloat16():
    model = make("llama", num_key_value_heads=2).to(torch.bfloat16)
    drawn = sample_numbered(TorchSampler(replace_params(dtype="bfloat16"), model, [END]), PROMPTS, 4, SETTINGS, seed=1)
    assert_logprobs_are_the_models(model, PROMPTS, drawn, tolerance=0.25)


@pytest.mark.parametrize(("open_share", "spare_places"), [(0.0, 1.0), (1.01, 1.0), (1.01, 3.0)])
def test_compaction_changes_no_response(open_share, spare_places, monkeypatch):
    sampler = TorchSampler(replace_params(max_sequences=64), make("llama", num_key_value_heads=2), [END])
    settings = replace(SETTINGS, max_response_tokens=40)
    expected = sample_numbered(sampler, PROMPTS, 12, settings, seed=5)
    monkeypatch.setattr(decoder, "OPEN_SHARE", open_share)
    monkeypatch.setattr(decoder, "SPARE_PLACES", spare_places)
    drawn = sample_numbered(sampler, PROMPTS, 12, settings, seed=5)
    for sample, other in zip(chain(*drawn), chain(*expected), strict=True):
        assert sample.token_ids == other.token_ids
        assert sample.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_greedy_responses_equal_transformers_generate():
    model = make("llama", num_key_value_heads=2)
    drawn = sample_numbered(TorchSampler(PARAMS, model, [END]), PROMPTS, 1, replace(SETTINGS, temperature=0.0), seed=0)
    for prompt, (sample,) in zip(PROMPTS, drawn, strict=True):
        ids = torch.tensor([prompt])
        generated = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
        assert sample.token_ids == generated[0, len(prompt) :].tolist()


@pytest.mark.parametrize("changes", [{"max_sequences": 6}, {"threads": 3}], ids=["one lane", "three lanes"])
def test_the_seed_decides_and_prompts_come_back_in_order(changes):
    sampler = TorchSampler(replace_params(**changes), make("llama"), [END])
    first, again, other = (sample_numbered(sampler, PROMPTS, 3, SETTINGS, seed) for seed in (7, 7, 8))
    assert first == again != other
    assert [len(samples) for samples in first] == [3, 3, 3, 3]
    assert torch.get_num_threads() == sampler.params.threads
    assert sample_numbered(sampler, [], 3, SETTINGS, 7) == []


def test_responses_end_with_the_end_token_or_at_the_limit():
    drawn = sample_numbered(TorchSampler(PARAMS, make("llama"), [END]), PROMPTS, 30, SETTINGS, seed=3)
    reasons = Counter()
    for sample in (sample for samples in drawn for sample in samples):
        assert sample.token_ids.count(END) == (sample.stop_reason is StopReason.END_OF_SEQUENCE)
        assert (len(sample.token_ids) == 12) or sample.token_ids[-1] == END
        assert sample.is_truncated == (sample.token_ids[-1] != END)
        reasons[sample.stop_reason] += 1
    assert len(reasons) == 2


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.8, "log_threshold": -1.5}])
def test_kept_distributions_are_the_models_and_change_no_response(changes):
    model, settings = make("llama"), replace(SETTINGS, max_response_tokens=30, **changes)
    sampler = TorchSampler(replace_params(max_sequences=20), model, [END])
    plain = sample_numbered(sampler, PROMPTS, 6, settings, seed=3)
    kept = sample_numbered(sampler, PROMPTS, 6, replace(settings, keeps_distributions=True), seed=3)
    assert len({len(sample.token_ids) for samples in kept for sample in samples}) > 3
    for prompt, samples, twins in zip(PROMPTS, kept, plain, strict=True):
        for sample, twin in zip(samples, twins, strict=True):
            assert (sample.token_ids, sample.logprobs) == (twin.token_ids, twin.logprobs)
            rows, logits = sample.distributions, plain_logits(model, prompt, sample.token_ids) / settings.temperature
            assert rows.dtype == torch.float32 and not rows.is_inference()
            assert rows.untyped_storage().nbytes() == rows.nbytes  # holds no data of other responses
            assert rows[torch.arange(len(rows)), sample.token_ids].tolist() == sample.logprobs
            if settings.log_threshold is not None:
                is_safe = safe_vocabulary(logits, settings.log_threshold)
                assert (is_safe == rows.isfinite()).float().mean() > 0.999  # rounding at the border
                logits = logits.masked_fill(~rows.isfinite(), -torch.inf)
            assert torch.allclose(rows.exp(), logits.softmax(-1), atol=2e-5)
    some = sample_numbered(sampler, PROMPTS, 6, replace(settings, keeps_distributions=True, likeliest=7), seed=3)
    for samples, whole in zip(some, kept, strict=True):
        for one, full in zip(samples, whole, strict=True):
            assert torch.equal(one.distributions, likeliest_tokens(full.distributions, 7))


def trajectories(count, first=0):
    numbers = range(first, first + count)
    return [Trajectory(prompt, 1000 * place + number) for place, prompt in enumerate(PROMPTS) for number in numbers]


def by_identity(sampler, asked, settings=SETTINGS):
    samples = sample_trajectories(sampler, asked, settings)
    return {(tuple(one.prompt), one.seed): drawn for one, drawn in zip(asked, samples, strict=True)}


@pytest.mark.parametrize("threads", [1, 2])
def test_a_trajectory_is_drawn_the_same_wherever_and_whenever_it_runs(threads):
    """Alone, with others, in another order, in batches of another size, and with all numbers of lanes."""
    settings = replace(SETTINGS, max_response_tokens=40)
    model = make("llama", num_key_value_heads=2)
    together = by_identity(
        TorchSampler(replace_params(max_sequences=64, threads=threads), model, [END]), trajectories(6), settings
    )
    small = TorchSampler(replace_params(max_sequences=5, threads=1), model, [END])
    backwards = by_identity(small, trajectories(6)[::-1], settings)
    few = by_identity(small, trajectories(2, first=3), settings)
    (alone,) = by_identity(small, trajectories(6)[8:9], settings).items()
    for name, one in [*backwards.items(), *few.items(), alone]:
        assert one.token_ids == together[name].token_ids
        assert one.logprobs == pytest.approx(together[name].logprobs, abs=1e-5)
    assert len({tuple(one.token_ids) for one in together.values()}) > 20


def test_responses_are_handed_over_as_they_end_and_a_caller_may_stop(monkeypatch):
    model = make("llama")
    sampler = TorchSampler(replace_params(max_sequences=64), model, [END])
    steps = []
    hidden = Decoder.hidden
    monkeypatch.setattr(Decoder, "hidden", lambda *given: (steps.append(1), hidden(*given))[1])
    settings = replace(SETTINGS, max_response_tokens=40)
    whole = [(len(one.token_ids), len(steps)) for _, one in sampler.stream(trajectories(6), settings)]
    assert whole == sorted(whole) and all(tokens == made for tokens, made in whole)  # none waited for a longer one
    steps.clear()
    stream = sampler.stream(trajectories(6), settings)
    _, first = next(stream)
    stream.close()
    assert len(steps) == len(first.token_ids) < 40


def test_lanes_end_when_the_caller_stops_or_one_of_them_fails():
    model = make("llama")
    sampler = TorchSampler(replace_params(threads=3), model, [END])
    before = threading.active_count()
    stream = sampler.stream(trajectories(3), SETTINGS)
    next(stream)
    stream.close()
    assert threading.active_count() == before and torch.get_num_threads() == 3
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    with pytest.raises(FloatingPointError, match="weights hold NaN"):
        list(sampler.stream(trajectories(3), SETTINGS))
    assert threading.active_count() == before


BFLOAT16, INT8 = Bfloat16Weights(kind="bfloat16_weights"), Int8Weights(kind="int8_weights")
PROMPT, RESPONSE = [3, 4, 5], [6, 7, 8]


def version_of(seed, tie=True):
    return make("llama", seed, num_key_value_heads=2, tie_word_embeddings=tie)


def mismatched(mismatch, tie=True):
    return TorchSampler(PARAMS, version_of(0, tie), [END], mismatch)


def stale(versions):
    return StaleWeights(kind="stale_weights", versions=versions)


def scores(model):
    """Returns log-probs of RESPONSE after PROMPT by the model's forward pass."""
    return pytest.approx(plain_logprobs(model, PROMPT, RESPONSE).tolist(), abs=2e-5)


def scored(sampler):
    return sampler.logprobs([PROMPT], [RESPONSE])[0]


def load(sampler, version):
    sampler.load_weights(version_of(version).named_parameters(), version)


def test_int8_keeps_255_levels_of_each_row():
    # Row 0: step 12.7 / 127 = 0.1. Row 1: step 0.01. A row of zeros and a vector do not change.
    matrix = torch.tensor([[12.7, 0.14, -0.16], [1.27, 0.014, -0.006], [0.0, 0.0, 0.0]])
    expected = torch.tensor([[12.7, 0.1, -0.2], [1.27, 0.01, -0.01], [0.0, 0.0, 0.0]])
    assert rounded(matrix, INT8).tolist() == [pytest.approx(row.tolist(), abs=1e-6) for row in expected]
    assert torch.equal(rounded(matrix[1], INT8), matrix[1])


def test_bfloat16_keeps_eight_bits_of_every_weight():
    weight = torch.tensor([1.0, 1.0 + 2**-7, 1.0 + 2**-9])
    assert rounded(weight, BFLOAT16).tolist() == [1.0, 1.0 + 2**-7, 1.0]
    assert rounded(weight, BFLOAT16).dtype == torch.float32


@pytest.mark.parametrize("tie", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("mismatch", [BFLOAT16, INT8])
def test_the_sampler_uses_the_rounded_weights_from_the_start_and_after_a_sync(mismatch, tie):
    def perturbed(model):
        with torch.no_grad():
            for weight in model.parameters():
                weight.copy_(rounded(weight, mismatch))
        return model

    sampler = mismatched(mismatch, tie)
    assert scored(sampler) == scores(perturbed(version_of(0, tie)))
    assert scored(sampler) != scores(version_of(0, tie))
    sampler.load_weights(version_of(1, tie).named_parameters(), 1)
    assert sampler.policy_version == 1
    assert scored(sampler) == scores(perturbed(version_of(1, tie)))
    assert scored(sampler) != scores(version_of(1, tie))
    sample = sample_numbered(sampler, [PROMPT], 1, SETTINGS, seed=0)[0][0]
    assert sampler.logprobs([PROMPT], [sample.token_ids])[0] == pytest.approx(sample.logprobs, abs=2e-5)


@pytest.mark.parametrize(
    ("versions", "loaded", "served", "kept"),
    [
        (2, range(5), [0, 0, 0, 1, 2], [2, 3, 4]),
        (None, range(4), [0, 0, 0, 0], [0]),
        (2, range(7, 11), [7, 7, 7, 8], [8, 9, 10]),  # after a resume: the oldest known ones that are not too old
    ],
    ids=["stale", "stale for good", "resumed"],
)
def test_stale_weights_are_those_of_so_many_versions_ago(versions, loaded, served, kept):
    sampler = mismatched(stale(versions))
    for version, expected in zip(loaded, served, strict=True):
        model = version_of(version)
        sampler.load_weights(model.named_parameters(), version)
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(2)  # the trainer continues with its weights
        assert sampler.policy_version == expected
        assert scored(sampler) == scores(version_of(expected))
    assert sorted(sampler.past.kept) == kept


@pytest.mark.parametrize("versions", [2, None])
def test_a_sampler_that_gets_back_what_was_kept_serves_the_same_versions(versions):
    undisturbed = mismatched(stale(versions))
    for version in range(4):
        load(undisturbed, version)
    resumed = mismatched(stale(versions))
    resumed.restore_weights(undisturbed.kept_weights())
    load(resumed, 3)  # the newest version comes from the trainer's checkpoint
    for version in range(4, 7):
        assert resumed.policy_version == undisturbed.policy_version
        assert scored(resumed) == scored(undisturbed)
        for sampler in (resumed, undisturbed):
            load(sampler, version)


def test_samplers_that_are_not_stale_keep_nothing():
    for mismatch in (None, INT8):
        sampler = mismatched(mismatch)
        assert sampler.kept_weights() == {}
        sampler.restore_weights({})


def test_a_tied_head_by_its_own_name_is_the_embedding():
    for mismatch in (None, stale(1)):
        sampler = mismatched(mismatch)
        for version in (1, 2):
            weights = dict(version_of(version).named_parameters())
            weights["lm_head.weight"] = weights.pop("model.embed_tokens.weight")
            sampler.load_weights(((name, weight.detach()) for name, weight in weights.items()), version)
        assert scored(sampler) == scores(version_of(sampler.policy_version))


@pytest.mark.parametrize("mismatch", [None, INT8, stale(1)])
def test_an_unknown_weight_is_refused(mismatch):
    sampler = mismatched(mismatch)
    with pytest.raises(KeyError, match="no weight nonsense"):
        sampler.load_weights([("nonsense", torch.zeros(1))], 5)
    assert sampler.policy_version == 0


def test_every_end_token_of_the_policy_ends_a_response(tmp_path):
    """Chat models name several in generation_config.json (Gemma 3: 1 and 106)."""
    folder = write_tiny_policy(tmp_path / "policy")
    settings = replace(SETTINGS, max_response_tokens=12)
    (first,) = sample_trajectories(TorchSampler.from_folder(PARAMS, folder), [Trajectory([5, 6, 7], 3)], settings)
    ids = list(first.token_ids)
    place = next(at for at in range(3, len(ids)) if ids[at] not in ids[:at])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, ids[place]]}))
    (second,) = sample_trajectories(TorchSampler.from_folder(PARAMS, folder), [Trajectory([5, 6, 7], 3)], settings)
    assert list(second.token_ids) == ids[: place + 1] and not second.is_truncated
