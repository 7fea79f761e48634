"""An environment of package verifiers (its 0.3, whose form the environments of its hub have) as `reset` and `step`.

There the environment's rollout asks a model; here a turn is given to the environment. A client whose answers come from
a queue turns the one into the other. Runs in a worker whose Python is that of the package's own virtual environment.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from stages.engines.environments.custom_environment import EpisodeRandomness, checked_end, checked_text
from stages.engines.environments.protocol import Done, Environment, Observation
from stages.foundations.errors import UserError
from stages.foundations.params import VerifiersEnvironment

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_TOOLS = """Call a tool with <tool_call>{{"name": "...", "arguments": {{...}}}}</tool_call>. The tools:
{tools}"""


def prepare() -> None:
    """Imports the package, which takes seconds of computing, before the first request. UserError where it is absent."""
    try:
        found = version("verifiers")
    except PackageNotFoundError:
        found = "none"
    if not found.startswith("0.3."):
        raise UserError(
            f"prompt.environment.python has verifiers {found}: install verifiers==0.3.1 there "
            "(`PYTHON -m pip install verifiers==0.3.1`)"
        )
    import verifiers.legacy  # noqa: F401


def build(params: VerifiersEnvironment, problem: Mapping[str, Any], seed: int) -> Environment:
    """Returns an episode of the environment's row with this question, else of a row with question and answer alone.

    UserError where the package, its version or the environment is not there.
    """
    prepare()
    environment, rows = _load(params.id, json.dumps(params.arguments or {}))
    question = problem["problem"]
    row = rows.get(_squeezed(question)) or {
        "prompt": [
            *([{"role": "system", "content": environment.system_prompt}] if environment.system_prompt else []),
            {"role": "user", "content": question},
        ],
        "answer": problem["answer"],
        "example_id": 0,
        "info": {},
    }
    return _Episode(environment, row, seed)


@lru_cache(maxsize=4)
def _load(name: str, arguments: str) -> tuple[Any, dict[str, Any]]:
    """Returns the environment, and the rows of its data set by their questions."""
    from verifiers.legacy.utils.env_utils import load_environment

    try:
        environment = load_environment(name, **json.loads(arguments))
    except Exception as error:
        raise UserError(f"prompt.environment.id {name!r} cannot be loaded by verifiers: {error}") from None
    try:
        rows = list(environment.get_dataset())
    except ValueError:
        rows = []  # It has only evaluation data, or none.
    return environment, {
        _squeezed(row["prompt"][-1]["content"]): row for row in rows if isinstance(row["prompt"], list)
    }


class _Episode:
    def __init__(self, environment: Any, row: Mapping[str, Any], seed: int) -> None:
        self._environment, self._row, self._randomness = environment, row, EpisodeRandomness(seed)
        self._client, self._asked = _client(), 0
        self._rollout: asyncio.Task[Any] | None = None

    def __del__(self) -> None:
        # An episode that a worker has forgotten: its rollout would wait for a turn for ever.
        if self._rollout is not None:
            self._rollout.cancel()

    def reset(self) -> str | None:
        """Returns the system's text and the tools; the question is in the prompt already."""
        messages = self._wait()
        if isinstance(messages, float):
            raise ValueError("the environment ended before the first turn")
        tools = "\n".join(
            json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.parameters})
            for tool in self._environment.tool_defs or ()
        )
        texts = [str(message.content) for message in messages[:-1]] + ([_TOOLS.format(tools=tools)] if tools else [])
        return checked_text("\n\n".join(texts), "reset") or None

    def step(self, turn: str) -> Observation | Done:
        """Returns the environment's new messages as a text, or its reward."""
        calls = []
        for found in _CALL.findall(turn):
            try:
                call = json.loads(found)
                calls.append((str(call["name"]), json.dumps(call["arguments"])))
            except (ValueError, KeyError, TypeError, RecursionError):
                calls.append(("malformed", found))
        failed = sum(name == "malformed" for name, _ in calls)
        self._client.given.put_nowait((turn, calls))
        answer = self._wait()
        if isinstance(answer, float):
            return checked_end(Done(answer, calls=len(calls), failed_calls=failed))
        text = "\n".join(str(message.content) for message in answer if message.role != "assistant")
        return Observation(checked_text(text, "step"), len(calls), failed)

    def _wait(self) -> list[Any] | float:
        """Returns the messages that are new in the environment's next question, or at the end the reward."""
        with self._randomness:
            return _loop().run_until_complete(self._next())

    async def _next(self) -> list[Any] | float:
        if self._rollout is None:
            rollout = self._environment.rollout(self._row, self._client, "policy", {})
            self._rollout = asyncio.ensure_future(rollout)
        asked = asyncio.ensure_future(self._client.asked.get())
        await asyncio.wait({asked, self._rollout}, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            messages = asked.result()
            new, self._asked = messages[self._asked :], len(messages)
            return new
        asked.cancel()
        state = self._rollout.result()
        if state.get("error") is not None:
            raise RuntimeError(f"the environment failed: {state['error']!r}")
        await self._environment.rubric.score_rollout(state)
        return float(state["reward"])


def _client() -> Any:
    """Returns a client of verifiers: what it is asked is put into `asked`, as messages, and answered from `given`."""
    import verifiers.legacy as vf
    from verifiers.legacy.types import Response, ResponseMessage, ToolCall

    class Client(vf.Client):
        # The abstract methods translate to a provider's format: only `get_response` is called.
        async def get_response(self, prompt: Any, model: str, *_: Any, **__: Any) -> Any:
            self.asked.put_nowait(list(prompt))
            turn, calls = await self.given.get()
            made = [ToolCall(id=str(place), name=name, arguments=text) for place, (name, text) in enumerate(calls)]
            message = ResponseMessage(
                content=turn,
                tool_calls=made or None,
                finish_reason="tool_calls" if made else "stop",
                is_truncated=False,
            )
            return Response(id="0", created=0, model=model, message=message)

    Client.__abstractmethods__ = frozenset()
    client = Client(object())
    client.asked, client.given = asyncio.Queue(), asyncio.Queue()
    return client


@lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def _squeezed(text: str) -> str:
    return "".join(text.split())
