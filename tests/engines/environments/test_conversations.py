"""Conversations with tools as tokens: only appended, observations in their frame, the loss on the policy's turns."""

from itertools import pairwise

import pytest

from stages.engines.environments.conversations import turn_encoder, turn_reader
from stages.engines.samplers.protocol import Episode, Sample, StopReason
from stages.foundations.errors import UserError
from stages.foundations.params import PromptParams, validate_section
from tests.fakes.environments import section
from tests.fakes.tiny_policy import END_OF_SEQUENCE as END
from tests.fakes.tiny_policy import byte_tokenizer

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
CALLED = [("user", "2+2"), ("assistant", "?2+2"), ("tool", "4"), ("assistant", "!4")]


def prompt(frame, **prompt):
    calls = {"kind": "marked", "call": "?", "answer": "!"}
    environment = section("tools", tools={}, calls=calls, frame=frame, max_observation_tokens=12)
    return validate_section({**prompt, "environment": environment}, "prompt", PromptParams, "params.yaml")


PLAIN = prompt({"kind": "text", "before": ":", "after": ";"}, kind="plain", template="{problem}=")
CHAT = prompt({"kind": "chat"}, kind="chat", system="", suffix="")


def shown(policy, params, turns):
    """Returns the text of the tokens with the policy's parts in brackets."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE if params is CHAT else None
    messages = [{"role": role, "content": content} for role, content in turns]
    ids, is_written, context = turn_encoder(tokenizer, params, policy)(messages)
    assert context == 0 and len(ids) == len(is_written)
    borders = [0, *(place for place, (a, b) in enumerate(pairwise(is_written), 1) if a != b), len(ids)]
    parts = [(tokenizer.decode(ids[start:end]), is_written[start]) for start, end in pairwise(borders)]
    return "".join(f"[{text}]" if mine else text for text, mine in parts)


def test_an_observation_stands_in_its_frame_and_the_policy_writes_the_rest(policy):
    assert shown(policy, PLAIN, CALLED) == f"2+2=[?2+2{END}]:4;[!4{END}]"
    assert shown(policy, PLAIN, [("user", "2+2"), ("assistant", "!4")]) == f"2+2=[!4{END}]"


def test_a_chat_frame_gives_what_the_template_writes(policy):
    rendered = f"u:2+2{END}\na:[?2+2{END}]\nt:4{END}\na:[!4{END}]"
    assert shown(policy, CHAT, CALLED) == rendered
    # Without a tool, a conversation may have a system turn and several of a user, as without an environment.
    talk = [("system", "s"), ("user", "hi"), ("assistant", "yo"), ("user", "ok"), ("assistant", "no")]
    assert shown(policy, CHAT, talk) == f"s:s{END}\nu:hi{END}\na:[yo{END}]\nu:ok{END}\na:[no{END}]"


def test_a_long_observation_is_cut_as_in_sampling(policy):
    turns = [*CALLED[:2], ("tool", "0123456789abcdefghij"), CALLED[3]]
    assert shown(policy, PLAIN, turns) == f"2+2=[?2+2{END}]:01234...ghij;[!4{END}]"


@pytest.mark.parametrize(
    "turns",
    [
        [("system", "s"), *CALLED],
        [*CALLED, ("user", "2+3"), ("assistant", "!5")],
        [*CALLED, ("assistant", "!5")],
        [*CALLED[:3]],
    ],
)
def test_what_sampling_cannot_produce_is_refused(policy, turns):
    with pytest.raises(UserError, match="turns of assistant and tool alternate"):
        shown(policy, CHAT, turns)


@pytest.mark.parametrize("params", [PLAIN, CHAT], ids=["plain", "chat"])
def test_a_sample_is_taken_apart_into_the_turns_that_it_was_made_of(policy, params):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE if params is CHAT else None
    messages = [{"role": role, "content": content} for role, content in [*CALLED[:3], *CALLED[1:]]]
    ids, is_written, _ = turn_encoder(tokenizer, params, policy)(messages)
    first = is_written.index(True)
    borders = [place for place in range(first + 1, len(ids)) if is_written[place] != is_written[place - 1]]
    observed = [(start - first, end - first) for start, end in zip(borders[::2], borders[1::2], strict=True)]
    sample = Sample(ids[first:], [], StopReason.END_OF_SEQUENCE, 0, Episode(tuple(observed), 3, "!4"))
    assert turn_reader(tokenizer, params, policy)("2+2", sample) == messages
