"""A user's function in a Python file, called in worker processes that can be killed and are isolated.

    with CustomFunction(params, limits) as function:
        values = function.ask(rows)            # a number, or named parts, or a fault, for each row

The function's parameters name columns of a row (`def score(problem, response, answer)`); if the first parameter is
called `rows`, it takes many rows at once. It must depend only on its arguments: a resumed round calls it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.engines.verifier.params import VerifierParams
from stages.engines.workers.custom_function_worker import ROWS, call_function
from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool
from stages.foundations.errors import UserError
from stages.foundations.params import CustomFunctionParams, custom_file

ROWS_AT_ONCE = 256
"""Rows per call of a function that takes many: a batch for a user's model, and the most that a failure costs."""


@dataclass(frozen=True)
class FunctionValue:
    """The function's result for a row."""

    value: float = 0.0
    """The sum of the parts, if the function returns parts."""
    parts: Mapping[str, float] | None = None
    fault: str = ""
    """The reason why there is no value; empty if there is one."""
    text: str = ""
    """The returned text, if it is one: a fault, unless the caller is a filter."""

    def weighted(self, weights: Mapping[str, float] | None) -> float:
        """Returns the value with its parts weighted by name; a part without a weight has weight 1."""
        if self.parts is None:
            return self.value
        return sum((weights or {}).get(part, 1.0) * one for part, one in self.parts.items())


class CustomFunction:
    """A loaded file. Leaving its context, or `close`, ends the workers. UserError when the file is unreadable."""

    def __init__(self, params: CustomFunctionParams, limits: VerifierParams, file: Path | None = None) -> None:
        self.params, self.limits = params, limits
        self.label = str(file or params.file)
        try:
            self._source = (file or custom_file(params.file)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{self.label} cannot be read ({error}): name a Python file") from error
        confined = WorkerLimits(limits.memory_mib, limits.timeout_seconds, is_trusted=params.sandbox == "off")
        # Equal rows get equal values: the order of a set must not depend on the process.
        self._pool = WorkerPool(call_function, limits.workers, confined, {"PYTHONHASHSEED": "0"})

    def ask(self, rows: Sequence[Mapping[str, Any]]) -> list[FunctionValue]:
        """Returns a value for each row, in order. Rows are mappings of JSON values, all with the same keys.

        UserError when the file itself has a mistake. An exception, a wrong value, an exceeded limit or a crash is a
        fault of its row. If the function takes many rows, it is a fault of all rows of the call.
        """
        size = ROWS_AT_ONCE if self._takes_rows() else 1
        asked = [(size, self._submit(rows[start : start + size])) for start in range(0, len(rows), size)]
        values: list[FunctionValue] = []
        for number, (_, future) in enumerate(asked):
            count = min(size, len(rows) - number * size)
            values += self._values(future, count)
        return values

    def decide(self, rows: Sequence[Mapping[str, Any]], allows_text: bool = False) -> list[FunctionValue]:
        """Works like `ask`, for a function that returns True or False, or 1 or 0; other numbers are faults.

        With `allows_text`, a text also means False and gives the reason.
        """
        decided = []
        for value in self.ask(rows):
            if value.text and allows_text:
                value = FunctionValue(text=value.text)
            elif not value.fault and (value.parts is not None or value.value not in (0, 1)):
                shown = "named parts" if value.parts is not None else f"{value.value:g}"
                value = FunctionValue(fault=f"it returned {shown}, which is neither True nor False")
            decided.append(value)
        return decided

    def close(self) -> None:
        self._pool.close()

    def __enter__(self) -> CustomFunction:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _takes_rows(self) -> bool:
        """Guesses it from the text, as only workers run the file; a wrong guess costs speed, never a value."""
        return f"def {self.params.name}({ROWS}" in self._source.replace(" (", "(")

    def _submit(self, rows: Sequence[Mapping[str, Any]]) -> Future[Answer]:
        return self._pool.submit(
            file=self.label,
            name=self.params.name,
            source=self._source,
            arguments=self.params.arguments or {},
            rows=[dict(row) for row in rows],
        )

    def _values(self, future: Future[Answer], count: int) -> list[FunctionValue]:
        try:
            answer = future.result()
        except StartError as error:
            raise UserError(
                f"a worker for {self.label} did not start ({error}): raise verifier.memory_mib, which is "
                f"{self.limits.memory_mib}"
            ) from error
        match answer.failure:
            case "":
                return [_value(one) for one in answer.value]
            case "exhausted":
                fault = f"it took more than {self.limits.timeout_seconds:g} seconds"
            case "out_of_memory":
                fault = f"it took more than {self.limits.memory_mib} MiB"
            case _:
                fault = f"its process ended ({answer.ending})"
        return [FunctionValue(fault=fault)] * count


def _value(answer: Mapping[str, Any]) -> FunctionValue:
    if "fault" in answer:
        return FunctionValue(**answer)
    if isinstance(answer["value"], Mapping):
        return FunctionValue(sum(answer["value"].values()), answer["value"])
    return FunctionValue(answer["value"])
