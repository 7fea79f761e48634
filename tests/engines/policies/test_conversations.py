"""Tokens of conversations: which of them the assistant writes, and the loss on them."""

import pytest
import torch

from stages.engines.policies.packing import TokenSequence, pack
from stages.engines.policies.statistics import policy_statistics
from stages.engines.policies.tokenizers import encode_conversation, encode_response
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, PlainPrompt
from tests.fakes.tiny_policy import END_OF_SEQUENCE, byte_tokenizer, plain_logprobs, tiny_model

PROMPT = ChatPrompt(kind="chat", system="", suffix="")
PLAIN = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}<|end|>\n{% endfor %}"
KEEPS = PLAIN + "{% if add_generation_prompt %}a:{% endif %}"
DROPS_THOUGHTS = KEEPS.replace("m.content", "m.content.split('</think>')[-1]")
"""As in Qwen3's template: the text before `</think>` is removed from all earlier turns."""
REFUSES_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + KEEPS


def tokenizer(template):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def turns(*contents, first="user"):
    roles = ["system"] * (first == "system") + ["user", "assistant"] * len(contents)
    return [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]


def shown(template, messages, params=PROMPT):
    """Returns the text of the tokens, with the assistant's parts in brackets, and the number of context turns."""
    reader = tokenizer(template)
    ids, is_written, context = encode_conversation(reader, params, messages)
    assert len(ids) == len(is_written)
    text, inside = "", False
    for token, mine in zip(ids, is_written, strict=True):
        text += ("[" if mine and not inside else "]" if inside and not mine else "") + reader.decode([token])
        inside = mine
    return text + ("]" if inside else ""), context


def test_the_assistant_writes_its_turns_and_the_token_that_closes_each():
    end = END_OF_SEQUENCE
    assert shown(KEEPS, turns("hi", "yo", "ok", "no")) == (f"u:hi{end}\na:[yo{end}]\nu:ok{end}\na:[no{end}]", 0)
    assert shown(KEEPS, turns("be brief", "hi", "yo", first="system"))[0] == f"s:be brief{end}\nu:hi{end}\na:[yo{end}]"
    with_system = PROMPT.model_copy(update={"system": "be kind"})
    assert shown(KEEPS, turns("hi", "yo"), with_system)[0] == f"s:be kind{end}\nu:hi{end}\na:[yo{end}]"
    assert shown(KEEPS, turns("own", "hi", "yo", first="system"), with_system)[0].startswith(f"s:own{end}\nu:hi")


def test_turns_that_the_template_writes_anew_are_context_only():
    end = END_OF_SEQUENCE
    thinking = turns("hi", "hm</think>yo", "ok", "er</think>no")
    assert shown(DROPS_THOUGHTS, thinking) == (f"u:hi{end}\na:yo{end}\nu:ok{end}\na:[er</think>no{end}]", 1)
    # The second turn has no thought: from it on no turn is rendered differently later.
    later = turns("hi", "hm</think>yo", "ok", "no", "so", "er</think>do")
    assert shown(DROPS_THOUGHTS, later) == (
        f"u:hi{end}\na:yo{end}\nu:ok{end}\na:[no{end}]\nu:so{end}\na:[er</think>do{end}]",
        1,
    )
    assert shown(DROPS_THOUGHTS, turns("hi", "yo", "ok", "no"))[1] == 0


def test_what_cannot_be_written_is_one_sentence():
    with pytest.raises(UserError, match=r"needs `prompt\.kind: chat`"):
        encode_conversation(tokenizer(KEEPS), PlainPrompt(kind="plain", template="{problem}"), turns("hi", "yo"))
    with pytest.raises(UserError, match="no chat template"):
        encode_conversation(byte_tokenizer(), PROMPT, turns("hi", "yo"))
    with pytest.raises(UserError, match="the chat template raises"):
        encode_conversation(tokenizer(REFUSES_SYSTEM), PROMPT, turns("be brief", "hi", "yo", first="system"))


@pytest.mark.parametrize("row_tokens", [None, 200])
def test_packed_with_others_the_loss_counts_what_the_assistant_writes(row_tokens):
    """Compares with each turn alone after its prompt, one forward pass each."""
    model, reader = tiny_model(), tokenizer(KEEPS)
    messages = turns("hi there", "yo", "ok?", "no, not at all", "so", "do")
    ids, is_written, _ = encode_conversation(reader, PROMPT, messages)
    start = is_written.index(True)
    sequence = TokenSequence(ids[:start], ids[start:], is_written[start:])
    other = TokenSequence([5, 6], [7, 8, 9])
    expected = 0.0
    for place in (1, 3, 5):
        prompt = encode_conversation(reader, PROMPT, messages[: place + 1])[0]
        response = encode_response(reader, messages[place]["content"], PROMPT)
        assert prompt[-len(response) :] == response
        expected += float(plain_logprobs(model, prompt[: -len(response)], response).sum())
    batch = pack([other, sequence], row_tokens=row_tokens)
    with torch.no_grad():
        found = policy_statistics(model, batch).logprobs
    assert batch.response_mask[1].sum() == sequence.written_tokens == sum(is_written)
    assert float(found[1].sum()) == pytest.approx(expected, abs=1e-4)
    assert batch.response_mask[0].sum() == other.written_tokens == 3
