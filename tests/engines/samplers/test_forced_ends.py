"""Forced ends: a phrase at the budget of a response, which the policy did not sample, and an answer behind it."""

from contextlib import closing
from dataclasses import replace

import pytest

from stages.engines.samplers.forced_ends import ForcedEndSampler
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.protocol import PartialResponse, SamplingSettings, StopReason, Trajectory
from stages.engines.samplers.torch_sampler import TorchSampler
from stages.engines.turns import turn_contradictions
from stages.foundations.params import ForcedEnd, PlainPrompt
from tests.fakes.engine_params import TORCH_SAMPLER
from tests.fakes.tiny_policy import byte_tokenizer, tiny_model

SETTINGS = SamplingSettings(1.0, 1.0, 0, max_response_tokens=24, log_threshold=None)
TOKENIZER = byte_tokenizer()
MARK = TOKENIZER.decode([70])
TEXT = f" so{MARK}"
PHRASE = TOKENIZER.encode(TEXT, add_special_tokens=False)
ENDS = [0, *range(240, 258)]
"""Some, so that a random policy ends responses before and behind the budget."""
LOW, HIGH = 7, 10


def params(**changes):
    return ForcedEnd(**{"kind": "phrase", "thinking_tokens": (LOW, HIGH), "mark": MARK, "text": TEXT, **changes})


def plain(sequences=5):
    return TorchSampler(TORCH_SAMPLER.model_copy(update={"max_sequences": sequences}), tiny_model(), ENDS)


def trajectories(count=24):
    return [Trajectory([3 + number % 4, 5], 1000 + 7 * number) for number in range(count)]


def expected(one):
    """Returns tokens, log-probs and spans, from whole responses of the plain sampler and nothing else."""
    budget = LOW + one.seed % (HIGH - LOW + 1)
    (_, whole), *_ = plain().stream([one], SETTINGS)
    ids = whole.token_ids[:budget]
    if len(whole.token_ids) < budget or ids[-1] in ENDS or MARK in TOKENIZER.decode(ids):
        return whole.token_ids, whole.logprobs, (), whole.stop_reason
    begun = PartialResponse([*ids, *PHRASE], [*whole.logprobs[:budget], *[0.0] * len(PHRASE)])
    (_, sample), *_ = plain().stream([replace(one, begun=begun)], SETTINGS)
    return sample.token_ids, sample.logprobs, ((budget, budget + len(PHRASE)),), sample.stop_reason


def check(given, samples):
    for one, sample in zip(given, samples, strict=True):
        ids, logprobs, spans, reason = expected(one)
        assert (sample.token_ids, sample.observed, sample.stop_reason) == (ids, spans, reason)
        assert sample.logprobs == pytest.approx(logprobs, abs=1e-4)
        answer = [token for token in ids[spans[0][1] if spans else 0 :] if token not in (0, 1)]
        assert sample.episode.response == TOKENIZER.decode(answer, skip_special_tokens=True)
        assert sample.episode.turns == 1 + len(spans) and sample.policy_tokens == len(ids) - len(PHRASE) * len(spans)


def test_long_thoughts_are_asked_to_end_at_the_budget_of_their_seed(policy):
    given = trajectories()
    samples = dict(ForcedEndSampler(plain(), params(), policy).stream(given, SETTINGS))
    check(given, [samples[index] for index in range(len(given))])
    forced = [sample for sample in samples.values() if sample.observed]
    others = [sample for sample in samples.values() if not sample.observed]
    assert len({sample.observed[0][0] for sample in forced}) == HIGH - LOW + 1
    assert any(len(sample.token_ids) > HIGH for sample in others), "its thought had ended"
    assert any(len(sample.token_ids) < LOW for sample in others)
    reasons = {sample.stop_reason for sample in forced}
    assert reasons == {StopReason.MAX_TOKENS, StopReason.END_OF_SEQUENCE}


@pytest.mark.parametrize("moves_every", [3, 5])
def test_responses_that_move_to_another_decoding_and_are_reported_in_parts_are_the_same(policy, moves_every):
    given, parts, samples, step = trajectories(12), {}, {}, 0
    sampler = ForcedEndSampler(plain(4), params(), policy)
    decoding = sampler.open(SETTINGS)
    decoding.admit(dict(enumerate(given)))
    while not decoding.is_idle:
        samples |= decoding.step()
        step += 1
        for name, new in decoding.new_tokens().items():
            ids, spans = parts.get(name, ([], ()))
            assert all(span[0] >= len(ids) for span in new.observed)
            parts[name] = [*ids, *new.token_ids], spans + new.observed
        if step % moves_every == 0:
            moving = [name for name in range(len(given)) if name not in samples]
            moved = decoding.withdraw(moving)
            for name, part in moved.items():
                assert ([*part.token_ids], part.observed) == parts.get(name, ([], ()))
            decoding.close()
            decoding = sampler.open(SETTINGS)
            decoding.admit({name: replace(given[name], begun=part) for name, part in moved.items()})
    check(given, [samples[index] for index in range(len(given))])


def test_a_limit_without_room_forces_nothing(policy):
    short = replace(SETTINGS, max_response_tokens=HIGH + len(PHRASE))
    samples = dict(ForcedEndSampler(plain(), params(), policy).stream(trajectories(8), short))
    assert all(not sample.observed for sample in samples.values())
    assert any(sample.is_truncated for sample in samples.values())


def test_settings_that_do_not_fit_are_told(policy):
    prompt = PlainPrompt(kind="plain", template="{problem}", forced_end=params())
    sampler = TorchSamplerParams.model_validate({**TORCH_SAMPLER.model_dump(), "stop": ["so"]})
    told = turn_contradictions(prompt, sampler, {"respond.max_response_tokens": HIGH + len(TEXT)})
    assert "sampler.stop" in told[0] and "no room for an answer in respond.max_response_tokens 14" in told[1]
    assert not turn_contradictions(prompt, TORCH_SAMPLER, {"respond.max_response_tokens": HIGH + len(TEXT) + 1})
    with pytest.raises(ValueError, match="more than the largest, 5"):
        params(thinking_tokens=(6, 5))
    with closing(ForcedEndSampler(plain(), params(), policy)) as sampler:
        assert sampler.policy_version == 0
