"""Stop strings: where a response ends, found by decoding all its prefixes, and how the built-in sampler ends it."""

import random
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from stages.engines.policies.policy_folders import random_model, save_policy, train_tokenizer
from stages.engines.policies.tokenizers import decode_response
from stages.engines.samplers.params import TorchSamplerParams
from stages.engines.samplers.protocol import SamplingSettings, StopReason, Trajectory, sample_trajectories
from stages.engines.samplers.stop_strings import StopStrings, why_ended
from stages.engines.samplers.torch_sampler import TorchSampler
from tests.fakes.engine_params import TORCH_SAMPLER
from tests.fakes.tiny_policy import byte_tokenizer, write_tiny_policy

SETTINGS = SamplingSettings(temperature=1.0, top_p=1.0, top_k=0, max_response_tokens=40, log_threshold=None)
STOPS = ["<stop>", "終わり", "🙂🙂", "ab", "\n\n"]


def merging_tokenizer():
    """Returns a tokenizer with tokens of one to a dozen bytes; some hold two stop strings, or one's end and more."""
    text = "so <stop> then, and <stop>\n\n終わり。終わり, cab 🙂🙂🙂 the cab\n\nstop "
    return train_tokenizer([text, text[::-1]] * 4, 400)


WORDS = ["<end>", "▁so", "▁<", "stop", ">", "<stop", "▁ab", "a", "b", "▁", "\n", "終", "わ"]


def byte_fallback_tokenizer():
    """Returns a tokenizer like Llama 2's and Gemma's: a space is part of a word; other characters are bytes."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    vocabulary |= {f"<0x{byte:02X}>": len(WORDS) + byte for byte in range(256)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    parts = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence(list(parts))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


TOKENIZERS = {"bytes": byte_tokenizer, "merges": merging_tokenizer, "byte-fallback": byte_fallback_tokenizer}


def first_end(tokenizer, ids, strings):
    """Returns the number of tokens of the shortest prefix with a stop string, slowly; None if there is none."""
    texts = (decode_response(tokenizer, ids[:count]) for count in range(1, len(ids) + 1))
    return next((count for count, text in enumerate(texts, 1) if any(one in text for one in strings)), None)


def end_by_tails(stops, ids):
    return next((count for count in range(1, len(ids) + 1) if stops.end(ids[:count][-stops.window :])), None)


@pytest.mark.parametrize(
    ("strings", "text", "kept"),
    [
        (["\n\n"], "a\nb\n\nc", "a\nb\n\n"),
        (["END", "ND"], "the END of it", "the END"),
        (["aab"], "aaaab", "aaaab"),
        (["é"], "cafe\u0301 café au lait", "cafe\u0301 café"),
        (["終わり"], "これで終わる。終わり。", "これで終わる。終わり"),
        (["stop"], "no such word", None),
    ],
)
def test_a_response_ends_with_the_first_stop_string(strings, text, kept):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text)
    found = end_by_tails(StopStrings(tokenizer, strings), ids)
    assert found == (None if kept is None else len(kept.encode()))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_tail_of_a_response_says_what_its_whole_text_says(kind):
    """Random tokens, most of them from the stop strings, with special tokens and others in between."""
    tokenizer, choose, ended = TOKENIZERS[kind](), random.Random(0), 0

    def encoded(text):
        return tokenizer.encode(text, add_special_tokens=False)

    # With byte fallback, a byte that is not part of a character makes all neighbouring bytes unreadable.
    if kind == "byte-fallback":
        units = [encoded(letter) for one in STOPS for letter in one] + [[token] for token in range(len(WORDS))]
    else:
        units = [[token] for one in STOPS for token in encoded(one)] * 4 + [[token] for token in range(len(tokenizer))]
    for _ in range(150):
        strings = choose.sample(STOPS, choose.choice((1, 2)))
        stops = StopStrings(tokenizer, strings)
        ids: list[int] = []
        while len(ids) < 60:
            begun = choose.choice(STOPS)[: choose.randrange(1, 7)]
            ids += encoded(begun) if choose.random() < 0.1 else choose.choice(units)
        expected = first_end(tokenizer, ids, strings)
        assert end_by_tails(stops, ids) == expected, (strings, tokenizer.decode(ids))
        ended += expected is not None
    assert 50 < ended < 150


def test_an_end_token_counts_before_a_stop_string_and_both_before_the_limit():
    tokenizer = byte_tokenizer()
    stops, ids = StopStrings(tokenizer, ["ab"]), tokenizer.encode("xab")
    assert why_ended([*ids, 0], [0], stops) is StopReason.END_OF_SEQUENCE
    assert why_ended(ids, [0], stops) is StopReason.STOP_STRING
    assert why_ended(ids, [0], None) is why_ended(ids[:-1], [0], stops) is StopReason.MAX_TOKENS


@pytest.mark.parametrize("stop", [[], [""], ["a", ""], "a"])
def test_empty_stop_strings_are_refused(stop):
    with pytest.raises(ValidationError, match="stop"):
        TorchSamplerParams.model_validate({**TORCH_SAMPLER.model_dump(), "stop": stop})


@pytest.fixture(scope="module", params=["own decoder", "through transformers"])
def policy(request, tmp_path_factory):
    folder = write_tiny_policy(tmp_path_factory.mktemp("policy"))
    if request.param == "through transformers":
        sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2, pad_token_id=1)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            olmo = random_model("olmo2", vocab_size=258, num_key_value_heads=2, eos_token_id=0, **sizes)
        save_policy(olmo, byte_tokenizer(), folder)
    return folder


ASKED = [Trajectory([5 + number % 3, 6], seed=number) for number in range(24)]


def built(policy, stop=None, **changes):
    return TorchSampler.from_folder(TORCH_SAMPLER.model_copy(update={"stop": stop, **changes}), policy)


def cut_at(tokenizer, samples, strings):
    """Returns the samples, drawn without stop strings, as stop strings would have ended them."""
    ends = [first_end(tokenizer, one.token_ids, strings) for one in samples]
    return [one.token_ids[:end] for one, end in zip(samples, ends, strict=True)], ends


def likely_stops(tokenizer, samples):
    """Returns a letter of two bytes and two pairs of letters, each from the middle of a sample."""
    texts = [decode_response(tokenizer, one.token_ids) for one in samples]
    wide = next(letter for text in texts for letter in text if 0x7F < ord(letter) < 0x800)
    pairs = [text[9:11] for text in texts if len(text) > 10 and "\ufffd" not in text[9:11]]
    return [wide, *pairs[:2]]


@pytest.mark.parametrize("threads", [1, 2])
def test_the_tokens_are_those_without_stop_strings_up_to_the_first_one(policy, threads):
    tokenizer = byte_tokenizer()
    plain = sample_trajectories(built(policy), ASKED, SETTINGS)
    strings = likely_stops(tokenizer, plain)
    kept, ends = cut_at(tokenizer, plain, strings)
    stopped = sample_trajectories(built(policy, strings, threads=threads), ASKED, SETTINGS)
    assert [one.token_ids for one in stopped] == kept
    assert sum(end is not None for end in ends) >= 3 and None in ends
    for one, whole, end in zip(stopped, plain, ends, strict=True):
        assert one.logprobs == pytest.approx(whole.logprobs[:end], abs=2e-5)
        is_last = end == len(whole.token_ids) and not whole.is_truncated
        assert one.stop_reason is (whole.stop_reason if end is None or is_last else StopReason.STOP_STRING)
        assert one.is_truncated == (whole.is_truncated and end is None)


def test_a_stop_string_that_another_sampler_began_ends_the_response(policy):
    """Each trajectory is moved between the tokens of its stop string, or inside the bytes of its letter."""
    tokenizer = byte_tokenizer()
    plain = sample_trajectories(built(policy), ASKED, SETTINGS)
    strings = likely_stops(tokenizer, plain)
    kept, ends = cut_at(tokenizer, plain, strings)
    moves = {number: end - 1 for number, end in enumerate(ends) if end}
    assert len(moves) >= 3
    for number, steps in moves.items():
        first, second = built(policy, strings).open(SETTINGS), built(policy, strings).open(SETTINGS)
        first.admit({"it": ASKED[number]})
        assert not any(first.step() for _ in range(steps))
        begun = first.withdraw(["it"])["it"]
        assert list(begun.token_ids) == kept[number][:-1]
        second.admit({"it": replace(ASKED[number], begun=begun)})
        (sample,) = second.step().values()
        assert sample.token_ids == kept[number] and not sample.is_truncated
