"""The environment `tools`: the policy's turns call tools, and its answer goes to the verifier.

A mistake of the policy gives an observation of one line, `error: ...`. Mistakes are a call that cannot be parsed, an
unknown tool, wrong arguments, and an exception or a limit inside the sandbox. The calculator is for small policies with
few tokens, so its errors are letters: `e` malformed, `b` busy; and `x` where no tool is there.

Tools get the arguments of a call and nothing else: neither the problem nor its answer. They keep nothing between calls.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from stages.engines.environments.protocol import Done, Observation
from stages.engines.environments.python_programs import TOO_LONG, check_sandbox, run_program, start
from stages.engines.tool_schemas import argument_fault, tool_schemas
from stages.engines.workers.custom_function_worker import load
from stages.foundations.params import (
    CalculatorTool,
    FunctionTool,
    MarkedCalls,
    PythonTool,
    ToolsEnvironment,
    custom_file,
)
from stages.foundations.seeds import derive_seed

CALLS_IN_A_TURN = 8
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
"""As Qwen and Hermes write calls. A turn may end before the closing tag."""
_OPERATION = re.compile(r"\s*(-?\d{1,100})\s*([-+*/])\s*(-?\d{1,100})\s*")
_ERROR_CHARACTERS = 300


def worker_options(params: ToolsEnvironment) -> dict[str, Any]:
    """Returns the arguments of a `WorkerPool` in which these tools work.

    UserError where a tool is not usable: its schema, its file or, on this machine, its sandbox.
    """
    tool_schemas(params)
    runs_programs = any(isinstance(tool, PythonTool) for tool in params.tools.values())
    if runs_programs:
        check_sandbox()
    return {"environment": {"PYTHONHASHSEED": "0"}, "start": start if runs_programs else None}


def build(params: ToolsEnvironment, problem: Mapping[str, Any], seed: int) -> Tools:
    """Returns an episode. UserError where a tool is not usable."""
    return Tools(params, seed)


class CallError(Exception):
    """A call that the policy got wrong; the text is what it observes."""


class Tools:
    def __init__(self, params: ToolsEnvironment, seed: int) -> None:
        self._params, self._seed, self._turns = params, seed, 0
        self._schemas = tool_schemas(params)

    def reset(self) -> None:
        return None

    def step(self, turn: str) -> Observation | Done:
        self._turns += 1
        marks, turn = self._params.calls, turn.strip()
        if isinstance(marks, MarkedCalls):
            if turn.startswith(marks.answer):
                return Done(response=rf"\boxed{{{turn.removeprefix(marks.answer).strip()}}}")
            calls = [turn]
        else:
            # A call inside a thought is none.
            calls = _TAGGED.findall(turn.rpartition("</think>")[2])
            if not calls:
                return Done()
        texts, failed = [], 0
        for number, call in enumerate(calls[: CALLS_IN_A_TURN + 1]):
            try:
                if number == CALLS_IN_A_TURN:
                    raise CallError(f"error: only the first {CALLS_IN_A_TURN} calls of a turn are run")
                name, arguments = _tagged(call) if marks.kind == "tagged" else self._marked(call, marks)
                texts.append(self._answer(name, arguments, derive_seed(self._seed, self._turns, number)))
            except CallError as error:
                texts.append(str(error))
                failed += 1
                # So the time of a turn is bounded, even where every program sleeps.
                if str(error) == f"error: {TOO_LONG}":
                    break
        return Observation("\n".join(texts), len(texts), failed)

    def _marked(self, turn: str, marks: MarkedCalls) -> tuple[str, dict[str, Any]]:
        """Returns the only tool; its only argument is the turn behind the mark."""
        is_short = all(isinstance(tool, CalculatorTool) for tool in self._params.tools.values())
        if not turn.startswith(marks.call):
            raise CallError("e" if is_short else f"error: begin with {marks.call} to call or {marks.answer} to answer")
        if not self._params.tools:
            raise CallError("x")
        [(name, schema)] = self._schemas.items()
        [parameter] = schema["parameters"]["properties"]
        return name, {parameter: turn.removeprefix(marks.call)}

    def _answer(self, name: str, arguments: dict[str, Any], seed: int) -> str:
        if name not in self._params.tools:
            known = ", ".join(self._params.tools)
            raise CallError(_error(f"there is no tool {name}" + (f", only {known}" if known else "")))
        if fault := argument_fault(self._schemas[name], arguments):
            raise CallError(_error(fault))
        match self._params.tools[name]:
            case CalculatorTool(busy_fraction=busy_fraction):
                return calculate(arguments["expression"], busy_fraction, seed)
            case PythonTool():
                workers = self._params.workers
                text, has_failed = run_program(arguments["code"], seed, workers.memory_mib, workers.timeout_seconds)
                if has_failed:
                    raise CallError(text)
                return text or "(no output: use print)"
            case FunctionTool() as tool:
                return call_function(tool, arguments, seed)


def _tagged(call: str) -> tuple[str, dict[str, Any]]:
    try:
        value = json.loads(call)
    except (ValueError, RecursionError) as error:
        raise CallError(_error(f"the call is no JSON ({error})")) from None
    match value:
        case {"name": str(name), "arguments": dict(arguments)}:
            return name, arguments
    raise CallError('error: a call is {"name": "...", "arguments": {...}}')


def calculate(expression: str, busy_fraction: float, seed: int) -> str:
    """Returns the exact result of one operation of two integers; a quotient may be a fraction.

    CallError `e` for anything else, and `b` for a share of the seeds.
    """
    operation = _OPERATION.fullmatch(expression)
    if not operation or (operation[2] == "/" and not int(operation[3])):
        raise CallError("e")
    # Seeds have 63 bits.
    if seed < busy_fraction * 2**63:
        raise CallError("b")
    left, right = Fraction(operation[1]), Fraction(operation[3])
    match operation[2]:
        case "+":
            return str(left + right)
        case "-":
            return str(left - right)
        case "*":
            return str(left * right)
    return str(left / right)


def call_function(tool: FunctionTool, arguments: Mapping[str, Any], seed: int) -> str:
    """Returns the result of the user's function as text. CallError when it raises."""
    function = load(tool.file, tool.name, custom_file(tool.file).read_text(encoding="utf-8"))
    # A function that draws random numbers gives the same in a resumed run, independent of earlier calls.
    random.seed(seed)
    try:
        value = function(**arguments)
    except MemoryError:
        raise
    # SystemExit as well: it would end the worker, and with it the episodes of others.
    except BaseException as error:
        raise CallError(_error(f"{type(error).__name__}: {error}")) from None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _error(text: str) -> str:
    return " ".join(f"error: {text}".split())[:_ERROR_CHARACTERS]
