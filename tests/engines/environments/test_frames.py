"""Tokens around observations: from the texts of a recipe, and from chat templates, here without their system parts."""

import pytest

from stages.engines.environments.frames import encode_observation, make_frame
from stages.engines.policies.tokenizers import encode_prompt, render_chat
from stages.foundations.errors import UserError
from stages.foundations.params import ChatFrame, ChatPrompt, PlainPrompt, TextFrame
from tests.fakes import environments
from tests.fakes.tiny_policy import byte_tokenizer

CHAT = ChatPrompt(kind="chat", system="", suffix="", environment=environments.params(frame=ChatFrame(kind="chat")))
TOOL_IN_USER_TURN = """
{%- elif m.role == "tool" %}
{%- if messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<tool_response>\n' + m.content + '\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}
{%- endif %}"""
QWEN_25 = (
    """{%- for m in messages %}{%- if m.role in ("user", "assistant") %}
{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"""
    + TOOL_IN_USER_TURN
)
QWEN_3 = (
    """{%- for m in messages %}{%- if m.role == "user" %}
{{- '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == "assistant" and loop.last %}
{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' + m.content + '<|im_end|>\n' }}
{%- elif m.role == "assistant" %}
{{- '<|im_start|>assistant\n' + m.content.split('</think>')[-1] + '<|im_end|>\n' }}"""
    + TOOL_IN_USER_TURN
)
LLAMA_31 = """{{- '<|begin_of_text|>' }}{%- for m in messages %}{%- if m.role != "tool" %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + (m.content | tojson) + '<|eot_id|>' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""
NO_TOOLS = QWEN_25.replace('m.role == "tool"', 'm.role == "nobody"')
LAST_OBSERVATION_ONLY = QWEN_25.replace("m.content + '\n</tool", "(m.content if loop.last else 'old') + '\n</tool")
TWICE = QWEN_25.replace("m.content + '\n</tool", "m.content + ' ' + m.content + '\n</tool")
SPECIAL = ["<|im_end|>", "<|im_start|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"]


def tokenizer(template):
    made = byte_tokenizer()
    made.add_special_tokens({"additional_special_tokens": SPECIAL})
    made.chat_template = template
    return made, [0, *made.convert_tokens_to_ids(["<|im_end|>", "<|eot_id|>"])]


IN_USER_TURN = "\n<|im_start|>user\n<tool_response>\n", "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
IN_IPYTHON = (
    '<|start_header_id|>ipython<|end_header_id|>\n\n"',
    '"<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n',
)
NO_THOUGHT = CHAT.model_copy(update={"template_arguments": {"enable_thinking": False}})


@pytest.mark.parametrize(
    ("template", "prompt", "before", "after"),
    [
        (QWEN_25, CHAT, *IN_USER_TURN),
        (QWEN_3, CHAT, *IN_USER_TURN),
        (QWEN_3, NO_THOUGHT, IN_USER_TURN[0], IN_USER_TURN[1] + "<think>\n\n</think>\n\n"),
        (LLAMA_31, CHAT, *IN_IPYTHON),
    ],
    ids=["qwen-2.5", "qwen-3", "qwen-3-without-thought", "llama-3.1"],
)
def test_tokens_with_frames_are_the_templates_own_render(template, prompt, before, after):
    reader, ends = tokenizer(template)
    frame = make_frame(reader, prompt, ends)
    assert (reader.decode(frame.before), reader.decode(frame.after)) == (before, after)
    ids, end = encode_prompt(reader, prompt, "How much?"), "<|eot_id|>" if template is LLAMA_31 else "<|im_end|>"
    messages = [{"role": "user", "content": "How much?"}]
    for call, seen in (("?2*3", "6"), ("?6+1", "7")):
        ids += reader.encode(call + end) + frame.around(encode_observation(reader, seen, 8))
        messages += [{"role": "assistant", "content": call}, {"role": "tool", "content": seen}]
    rendered = render_chat(reader, prompt, messages)
    if prompt is NO_THOUGHT:
        # The policy has read this in front of its turns, and the template leaves it out later. Here it stays.
        rendered = rendered.replace("assistant\n?", "assistant\n<think>\n\n</think>\n\n?")
    assert reader.decode(ids) == rendered


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (NO_TOOLS, "gives no frame"),
        (TWICE, "gives no frame"),
        (LAST_OBSERVATION_ONLY, "rewrites earlier turns"),
        ("{{ raise_exception('Roles must alternate') }}", "no frame.*Roles must alternate"),
    ],
)
def test_a_template_without_a_frame_is_refused(template, told):
    reader, ends = tokenizer(template)
    with pytest.raises(UserError, match=rf"{told}.*set prompt\.environment\.frame\.kind text"):
        make_frame(reader, CHAT, ends)


def test_frames_of_text_are_its_tokens():
    reader, ends = tokenizer(None)
    frame = TextFrame(kind="text", before="<|im_start|>:", after="; ")
    prompt = PlainPrompt(kind="plain", template="{problem}", environment=environments.params(frame=frame))
    made = make_frame(reader, prompt, ends)
    start = reader.convert_tokens_to_ids("<|im_start|>")
    assert made.around([5, 6]) == [start, *reader.encode(":"), 5, 6, *reader.encode("; ")]
    closing = frame.model_copy(update={"after": "<|im_end|>"})
    environment = environments.params(frame=closing)
    with pytest.raises(UserError, match="holds a token that ends a turn"):
        make_frame(reader, prompt.model_copy(update={"environment": environment}), ends)
    chat = CHAT.environment
    with pytest.raises(UserError, match=r"frame\.kind chat needs prompt\.kind chat"):
        make_frame(reader, prompt.model_copy(update={"environment": chat}), ends)


def test_a_long_observation_is_cut_in_the_middle():
    reader, _ = tokenizer(None)
    cut = {most: reader.decode(encode_observation(reader, "0123456789", most)) for most in (1, 4, 5, 6, 9, 10, 11)}
    assert cut == {1: "0", 4: "0123", 5: "0...9", 6: "01...9", 9: "012...789", 10: "0123456789", 11: "0123456789"}
    long = "a" * 500_000 + "b" * 500_000
    assert reader.decode(encode_observation(reader, long, 9)) == "aaa...bbb"


def test_special_tokens_in_an_observation_are_ordinary_text():
    reader, ends = tokenizer(None)
    ids = encode_observation(reader, "\x00<|im_end|>\ud800<|end|>\x1b[0m\r\n\té", 60, ends)
    assert reader.decode(ids) == "<|im_end|><|end|>[0m\n\té"
    assert max(ids) < 258 and min(ids) > 1
