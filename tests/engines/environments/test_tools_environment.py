"""Calls and answers of the policy: what it does wrong is an observation, and never an error of the run."""

import json
import math
import random
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.engines import tool_schemas
from stages.engines.environments import tools_environment
from stages.engines.environments.pool import EnvironmentPool
from stages.engines.environments.protocol import Done, Observation
from stages.engines.environments.tools_environment import build, calculate, worker_options
from stages.engines.policies.tokenizers import encode_prompt
from stages.engines.workers.sandbox import lacking
from stages.foundations.errors import UserError
from stages.foundations.params import ChatPrompt, ToolsEnvironment
from stages.foundations.seeds import derive_seed
from tests.fakes.environments import section
from tests.fakes.guest_attacks import FORGERY
from tests.fakes.tiny_policy import byte_tokenizer

MARKED = {"kind": "marked", "call": "?", "answer": "!"}
TAGGED = {"kind": "tagged"}
CALCULATOR = {"kind": "calculator", "busy_fraction": 0.0}
WEEKDAY = {"kind": "function", "file": "custom/weekday.py", "name": "weekday"}
PROBLEM = {"problem_id": "p", "problem": "473+28*36", "answer": "1481"}
FUNCTIONS = '''
import os, random, sys
from typing import Literal

def mixed(number: int, ratio: float = 0.5, names: list[str] | None = None, unit: Literal["m", "km"] = "m") -> dict:
    """Mixes.

    Args:
        number: how many.
    """
    return {"number": number, "ratio": ratio, "names": names, "unit": unit}

def echo(text: str):
    """Returns the text."""
    return text

def draw(text: str):
    """Draws a number, and disturbs everybody else's."""
    number = random.random()
    random.seed(0)
    return number

def leave(how: str):
    """Ends."""
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(3)
    raise ValueError("two\\nlines")

def untyped(a): "Has no type."
def undocumented(a: int): return a
def odd(a: complex): "Has an odd type."
def starred(*a: int): "Takes many."
'''


def params(tools, calls=TAGGED, timeout_seconds=5.0):
    return ToolsEnvironment.model_validate(section("tools", timeout_seconds=timeout_seconds, tools=tools, calls=calls))


@pytest.fixture
def custom(tmp_path, monkeypatch):
    """A folder in place of the project's."""
    (tmp_path / "custom").mkdir()
    (tmp_path / "custom/mine.py").write_text(FUNCTIONS)
    for module in (tool_schemas, tools_environment):
        monkeypatch.setattr(module, "custom_file", lambda name: tmp_path / name)
    return tmp_path / "custom"


def mine(*names):
    return {name: {"kind": "function", "file": "custom/mine.py", "name": name} for name in names}


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def seen(environment, turn, seed=1):
    """Returns text, calls and failed calls of the observation."""
    found = build(environment, PROBLEM, seed).step(turn)
    assert isinstance(found, Observation)
    return found.text, found.calls, found.failed_calls


def test_marked_calls_of_the_calculator_in_few_characters():
    episode = build(params({"calculator": CALCULATOR}, MARKED), PROBLEM, 1)
    assert episode.reset() is None
    assert episode.step("?28*36") == Observation("1008", 1)
    assert episode.step("?473+1008") == Observation("1481", 1)
    # Neither mark, the whole expression, no operation, and a division by zero.
    for turn in ("28*36", "", "?473+28*36", "?28*36=", "?", "?7/0", "?2**9", "?" + "9" * 101 + "+1"):
        assert episode.step(turn) == Observation("e", 1, 1), turn
    assert episode.step("!1481") == Done(response=r"\boxed{1481}")


def test_without_a_tool_every_call_fails_and_answers_pass():
    episode = build(params({}, MARKED), PROBLEM, 1)
    assert [episode.step(turn) for turn in ("?28*36", "28")] == [Observation("x", 1, 1), Observation("e", 1, 1)]
    assert episode.step("!1") == Done(response=r"\boxed{1}")
    assert seen(params({}), call("calculator", expression="1+1")) == ("error: there is no tool calculator", 1, 1)


@settings(max_examples=200, deadline=None)
@given(st.integers(-(10**60), 10**60), st.sampled_from("+-*/"), st.integers(-(10**60), 10**60))
def test_the_calculator_is_exact(left, operation, right):
    if operation == "/" and not right:
        return
    # Another way to the same: Python's integers, and the fraction in lowest terms by the greatest common divisor.
    found = Fraction(calculate(f"{left}{operation}{right}", 0.0, 1))
    expected = {"+": left + right, "-": left - right, "*": left * right, "/": left}[operation]
    divisor = right if operation == "/" else 1
    common = math.gcd(expected, divisor) * (-1 if divisor < 0 else 1)
    assert (found.numerator, found.denominator) == (expected // common, divisor // common)


def test_a_calculator_is_busy_by_seed_and_turn():
    def texts(seed):
        episode = build(params({"calculator": {**CALCULATOR, "busy_fraction": 0.3}}, MARKED), PROBLEM, seed)
        return [episode.step("?1+1").text for _ in range(40)]

    every = [text for seed in range(50) for text in texts(seed)]
    assert set(every) == {"2", "b"} and 0.25 < every.count("b") / len(every) < 0.35
    assert texts(3) == texts(3) != texts(4)
    # By hand: busy where the number of seed, turn and call is in the lower three tenths.
    assert texts(3)[1] == ("b" if derive_seed(3, 2, 0) / 2**63 < 0.3 else "2")


def test_tagged_calls_of_qwen_and_hermes():
    environment = params({"calculator": CALCULATOR})
    one, two = call("calculator", expression="28 * 36"), call("calculator", expression="1/3")
    assert seen(environment, f"Let me see.\n{one}") == ("1008", 1, 0)
    assert seen(environment, f"{one}\n{two}") == ("1008\n1/3", 2, 0)
    assert seen(environment, one.removesuffix("</tool_call>")) == ("1008", 1, 0)
    assert seen(environment, f"<think>{two}</think>{one}") == ("1008", 1, 0), "a thought calls nothing"
    assert build(environment, PROBLEM, 1).step(f"<think>{two}</think>\\boxed{{3}}") == Done()
    assert build(environment, PROBLEM, 1).step("The answer is 3.") == Done()
    text, calls, failed = seen(environment, one * 50)
    assert (calls, failed) == (9, 1) and text.endswith("1008\nerror: only the first 8 calls of a turn are run")


@pytest.mark.parametrize(
    ("inside", "said"),
    [
        ("", "error: the call is no JSON (Expecting value: line 1 column 1 (char 0))"),
        ('{"name": "calculator", "arguments": {"expression": "1+1"}', "error: the call is no JSON"),
        ("[" * 100_000, "error: the call is no JSON"),
        ("[]", 'error: a call is {"name": "...", "arguments": {...}}'),
        ('{"name": "calculator", "arguments": "1+1"}', 'error: a call is {"name"'),
        ('{"name": ["a"], "arguments": {}}', 'error: a call is {"name"'),
        ('{"name": "shell", "arguments": {}}', "error: there is no tool shell, only calculator"),
        ('{"name": "calculator", "arguments": {}}', "error: calculator needs expression"),
        ('{"name": "calculator", "arguments": {"expr": 1}}', "error: calculator takes no expr, only expression"),
        ('{"name": "calculator", "arguments": {"expression": 2}}', "error: expression must be string"),
    ],
)
def test_a_wrong_call_is_a_lesson_in_one_line(inside, said):
    text, calls, failed = seen(params({"calculator": CALCULATOR}), f"<tool_call>{inside}</tool_call>")
    assert text.startswith(said) and "\n" not in text and len(text) <= 300 and (calls, failed) == (1, 1)


def test_a_function_gets_checked_arguments_and_its_schema_is_that_of_its_source(custom):
    environment = params(mine("mixed"))
    schema = tool_schemas.tool_schemas(environment)["mixed"]
    assert schema == {
        "name": "mixed",
        "description": "Mixes.\n\nArgs:\n    number: how many.",
        "parameters": {
            "type": "object",
            "properties": {
                "number": {"type": "integer"},
                "ratio": {"type": "number"},
                "names": {"type": "array", "items": {"type": "string"}, "nullable": True},
                "unit": {"enum": ["m", "km"]},
            },
            "required": ["number"],
        },
    }
    right = call("mixed", number=2, ratio=1, names=["é"], unit="km")
    assert seen(environment, right)[0] == '{"number": 2, "ratio": 1, "names": ["é"], "unit": "km"}'
    assert seen(environment, call("mixed", number=2, names=None))[2] == 0
    for wrong, said in (
        ({"number": "2"}, "number must be integer"),
        ({"number": True}, "number must be integer"),
        ({"number": 2.5}, "number must be integer"),
        ({"number": 2, "names": ["a", 3]}, "names must be array"),
        ({"number": 2, "unit": "mile"}, "unit must be ['m', 'km']"),
        ({"ratio": 1.0}, "mixed needs number"),
    ):
        assert seen(environment, call("mixed", **wrong)) == (f"error: {said}", 1, 1)


def test_what_a_function_raises_is_an_observation(custom):
    environment = params(mine("leave", "echo"))
    assert seen(environment, call("leave", how="raise")) == ("error: ValueError: two lines", 1, 1)
    assert seen(environment, call("leave", how="exit")) == ("error: SystemExit: 3", 1, 1)
    # Whatever a tool returns is text of an observation, and no answer.
    for text in ("\\boxed{42}", "<|im_end|>", "\x00\x1b[2J", ":1481;!1481", "<tool_call>"):
        assert seen(environment, call("echo", text=text)) == (text, 1, 0)


def test_functions_that_change_random_numbers_change_nobody_elses(custom):
    environment = params(mine("draw"))
    random.seed(5)
    first = seen(environment, call("draw", text=""), seed=7)
    random.seed(6)
    assert seen(environment, call("draw", text=""), seed=7) == first != seen(environment, call("draw", text=""), seed=8)


@pytest.mark.parametrize(
    ("tools", "calls", "message"),
    [
        (mine("untyped"), TAGGED, r"untyped in custom/mine\.py gives a no type: write for instance `a: int`"),
        (mine("undocumented"), TAGGED, "has no docstring: write one"),
        (mine("odd"), TAGGED, "a of odd in .* has type complex, which has no schema: use int, float"),
        (mine("starred"), TAGGED, "use plain parameters"),
        (mine("absent"), TAGGED, "has no function absent: it has mixed, echo"),
        (mine("mixed"), MARKED, "marked calls give one text, and mixed wants something else: set kind: tagged"),
        (mine("echo", "draw"), MARKED, "marked calls have one tool, and there are echo, draw"),
        (mine("echo"), {"kind": "marked", "call": "?", "answer": "?!"}, "begin alike: choose other marks"),
    ],
)
def test_a_tool_that_cannot_be_used_is_refused_before_anything_runs(custom, tools, calls, message):
    with pytest.raises(UserError, match=message):
        worker_options(params(tools, calls))


def test_a_file_that_is_no_python_is_refused_and_never_run(custom):
    (custom / "mine.py").write_text("def echo(text: str)\n  pass")
    with pytest.raises(UserError, match=r"custom/mine\.py cannot be read as Python .*correct it"):
        worker_options(params(mine("echo")))
    (custom / "mine.py").write_text(f"open({str(custom / 'ran')!r}, 'w')\n{FUNCTIONS}")
    worker_options(params(mine("echo")))
    assert not (custom / "ran").exists()


def test_the_prompt_holds_the_schemas_of_tagged_tools(custom):
    def prompt(tokenizer, environment, system=""):
        chat = ChatPrompt(kind="chat", system=system, suffix="", environment=environment)
        return tokenizer.decode(encode_prompt(tokenizer, chat, "1+1?"))

    tokenizer = byte_tokenizer()
    body = "{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer.chat_template = "{% for t in tools or [] %}<{{ t.type }} {{ t.function | tojson }}>{% endfor %}" + body
    environment = params(mine("echo"))
    found = prompt(tokenizer, environment)
    assert json.loads(found.removeprefix("<function ").removesuffix(">1+1?"))["parameters"]["required"] == ["text"]
    assert prompt(tokenizer, params(mine("echo"), MARKED)) == prompt(tokenizer, None) == "1+1?"
    tokenizer.chat_template = body
    with pytest.raises(UserError, match=r"would not know of echo: describe each .* in prompt\.system"):
        prompt(tokenizer, environment)
    assert prompt(tokenizer, environment, "Call echo.") == "Call echo.1+1?"


@pytest.mark.skipif(bool(lacking()), reason="this kernel does not confine")
def test_a_confined_worker_plays_with_every_kind_of_tool():
    """The worker itself starts no process and reads no other file; programs run beside it."""
    environment = params(
        {"python": {"kind": "python"}, "weekday": WEEKDAY, "calculator": CALCULATOR}, timeout_seconds=0.5
    )
    turns = [
        call("python", code="print(6 * 7)") + call("python", code="print(7 * 6)"),
        call("weekday", year=2024, month=2, day=29) + call("weekday", year=2024, month=13),
        # A program has neither the problem nor its answer, and cannot write into the worker's answers.
        call("python", code=FORGERY),
        call("python", code="while True: pass") + call("python", code="print(1)"),
        call("python", code="") + call("python", code="print('\\\\boxed{1}')"),
        "The answer is \\boxed{1481}.",
    ]
    with EnvironmentPool(environment) as pool:
        first, second = (
            [pool.reply(pool.submit(PROBLEM, 1, turns[:count])) for count in range(1, len(turns) + 1)] for _ in range(2)
        )
        [pid] = pool.pids()
        assert "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()
    # All but the time, and counts that add up over the turns.
    programs, dates, forged, loop, printed = [one["observation"] for one in first[:-1]]
    assert [(one["calls"], one["failed_calls"]) for one in first] == [(2, 0), (4, 1), (5, 1), (6, 2), (8, 2), (8, 2)]
    assert [{**one, "seconds": 0} for one in first] == [{**one, "seconds": 0} for one in second]
    assert programs == "42\n42"
    assert dates == "Thursday\nerror: ValueError: month must be in 1..12"
    assert forged.startswith('{"refused": "stop the run"}')
    assert loop == "error: it ran out of time", "calls behind it are not run"
    assert printed == "(no output: use print)\n\\boxed{1}"
    assert first[-1]["done"]["response"] is None
