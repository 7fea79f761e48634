"""The environment `tools`: the policy's turns call tools, and its answer goes to the verifier.

Whatever the policy does wrong is an observation of one line, `error: ...`: a call that cannot be parsed, an unknown
tool, wrong arguments, an exception or a limit inside a sandbox. The calculator is for small policies with few tokens,
so its errors are letters: `e` malformed, `b` busy; and `x` where no tool is there.

Tools get the arguments of a call and nothing else: neither the problem nor its answer. They keep nothing between calls.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stages.engines.environments.protocol import Done, Observation
from stages.engines.environments.python_programs import check_sandbox, run_program, start
from stages.engines.environments.search_tool import load_index
from stages.engines.tool_schemas import argument_fault, tool_schemas
from stages.engines.workers.custom_function_worker import load
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.foundations.params import (
    CUSTOM,
    CalculatorTool,
    FunctionTool,
    MarkedCalls,
    PythonTool,
    SearchTool,
    ToolsEnvironment,
    custom_file,
)
from stages.foundations.seeds import derive_seed

CALLS_IN_A_TURN = 8
_SEARCHED = "RETRACE_SEARCHED"
"""Variable with the files of tools that search."""
_OPENING = "<tool_call>"
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_OPERATION = re.compile(r"\s*(-?\d{1,100})\s*([-+*/])\s*(-?\d{1,100})\s*")
_LONGEST_ERROR = 300


def check_tools(params: ToolsEnvironment) -> None:
    """Raises UserError, before anything runs, where a tool is not usable: its schema, its file or its sandbox."""
    tool_schemas(params)
    for tool in params.tools.values():
        match tool:
            case PythonTool():
                check_sandbox(tool.sandbox)
            case SearchTool():
                custom_file(tool.file)


def worker_options(params: ToolsEnvironment) -> dict[str, Any]:
    """Returns the arguments of a `WorkerPool` in which these tools work. UserError as `check_tools` raises it."""
    check_tools(params)
    tools = params.tools.values()
    searched = [tool.file for tool in tools if isinstance(tool, SearchTool)]
    return {
        "environment": {"PYTHONHASHSEED": "0", _SEARCHED: os.pathsep.join(searched)},
        "prepare": load_indexes if searched else None,
        "readable": [PROJECT / CUSTOM],
        "start": start if any(isinstance(tool, PythonTool) for tool in tools) else None,
    }


def load_indexes() -> None:
    """Reads the documents of tools that search before a worker is ready, as a step's time limit may be short."""
    for name in os.environ[_SEARCHED].split(os.pathsep):
        load_index(custom_file(name))


def build(params: ToolsEnvironment | Mapping[str, Any], problem: Mapping[str, Any], seed: int) -> Tools:
    """Returns an episode. UserError where a tool is not usable."""
    return Tools(params if isinstance(params, ToolsEnvironment) else ToolsEnvironment.model_validate(params), seed)


@dataclass(frozen=True)
class Call:
    """A parsed call, or the reason why it cannot be parsed."""

    name: str = ""
    arguments: Mapping[str, Any] | None = None
    fault: str = ""


class CallError(Exception):
    """A call that the policy got wrong; the text is what it observes."""


class Tools:
    """One episode."""

    def __init__(self, params: ToolsEnvironment, seed: int) -> None:
        self._params, self._seed = params, seed
        self._schemas = tool_schemas(params)
        self._taken = 0

    def reset(self) -> None:
        return None

    def step(self, turn: str) -> Observation | Done:
        self._taken += 1
        if isinstance(self._params.calls, MarkedCalls):
            answer = turn.strip().removeprefix(self._params.calls.answer)
            if answer != turn.strip():
                return Done(response=rf"\boxed{{{answer.strip()}}}")
            calls = [self._marked_call(turn.strip())]
        else:
            calls = tagged_calls(turn)
            if not calls:
                return Done()
        texts, failed = [], 0
        for number, call in enumerate(calls):
            try:
                if number == CALLS_IN_A_TURN:
                    raise CallError(f"error: a turn may have {CALLS_IN_A_TURN} calls; the rest was not run")
                texts.append(self._answer(call, derive_seed(self._seed, self._taken, number)))
            except CallError as error:
                texts.append(str(error))
                failed += 1
            if number == CALLS_IN_A_TURN:
                break
        return Observation("\n".join(texts), len(texts), failed)

    def _marked_call(self, turn: str) -> Call:
        """The whole turn behind the mark is the only argument of the only tool."""
        marks = self._params.calls
        assert isinstance(marks, MarkedCalls)
        is_short = all(isinstance(tool, CalculatorTool) for tool in self._params.tools.values())
        if not turn.startswith(marks.call):
            fault = f"error: a turn begins with {marks.call} for a call or {marks.answer} for the answer"
            return Call(fault="e" if is_short else fault)
        if not self._params.tools:
            return Call(fault="x")
        [(name, schema)] = self._schemas.items()
        [parameter] = schema["parameters"]["properties"]
        return Call(name, {parameter: turn.removeprefix(marks.call)})

    def _answer(self, call: Call, seed: int) -> str:
        if call.fault:
            raise CallError(call.fault)
        if call.name not in self._params.tools:
            known = ", ".join(self._params.tools)
            raise CallError(_error(f"there is no tool {call.name}; " + (f"use {known}" if known else "there are none")))
        schema, arguments = self._schemas[call.name], call.arguments or {}
        if fault := argument_fault(schema, arguments):
            raise CallError(_error(fault))
        match self._params.tools[call.name]:
            case CalculatorTool(busy_fraction=busy_fraction):
                return calculate(arguments["expression"], busy_fraction, seed)
            case PythonTool(sandbox=sandbox):
                workers = self._params.workers
                code, seconds = arguments["code"], workers.timeout_seconds
                text, has_failed = run_program(sandbox, code, seed, workers.memory_mib, seconds)
                if has_failed:
                    raise CallError(text)
                return text or "(no output: use print)"
            case SearchTool(file=file, results=results, result_characters=characters):
                found = load_index(custom_file(file)).search(arguments["query"], results, characters)
                return "\n".join(found) or "nothing found"
            case FunctionTool() as tool:
                return call_function(tool, arguments, seed)


def tagged_calls(turn: str) -> list[Call]:
    """Returns the calls of a turn as Qwen and Hermes write them; those inside a thought do not count."""
    text = turn.rpartition("</think>")[2]
    calls = [_tagged_call(found[1]) for found in _TAGGED.finditer(text)]
    if _OPENING in _TAGGED.sub("", text):
        calls.append(Call(fault="error: <tool_call> without </tool_call>"))
    return calls


def _tagged_call(text: str) -> Call:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Call(fault=_error(f"the call is no JSON ({error})"))
    name, arguments = (value.get("name"), value.get("arguments", {})) if isinstance(value, dict) else (None, None)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return Call(fault='error: a call is {"name": "...", "arguments": {...}}')
    return Call(name, arguments)


def calculate(expression: str, busy_fraction: float, seed: int) -> str:
    """Returns the exact result of one operation of two integers, a fraction if it is none.

    CallError `e` for anything else, and `b` for a share of the seeds.
    """
    operation = _OPERATION.fullmatch(expression)
    if not operation:
        raise CallError("e")
    if seed < busy_fraction * 2**63:
        raise CallError("b")
    left, right = int(operation[1]), int(operation[3])
    match operation[2]:
        case "+":
            return str(left + right)
        case "-":
            return str(left - right)
        case "*":
            return str(left * right)
    if not right:
        raise CallError("e")
    return str(Fraction(left, right))


def call_function(tool: FunctionTool, arguments: Mapping[str, Any], seed: int) -> str:
    """Returns the result of the user's function as text. CallError when it raises."""
    file = custom_file(tool.file)
    function = load(tool.file, tool.name, file.read_text(encoding="utf-8"))
    # A function that draws random numbers gives the same in a resumed run, whatever was called before.
    random.seed(seed)
    try:
        value = function(**arguments)
    except (MemoryError, UserError):
        raise
    # SystemExit as well: it would end the worker, and with it the episodes of others.
    except BaseException as error:
        raise CallError(_error(f"{type(error).__name__}: {error}")) from None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _error(text: str) -> str:
    line = " ".join(f"error: {text}".split())
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}..."
