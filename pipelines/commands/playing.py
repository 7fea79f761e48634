"""`retrace environment`: plays an episode of a user's environment in the terminal before a round trains on it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT

if TYPE_CHECKING:
    from stages.engines.environments.pool import EnvironmentPool


def environment(
    file: Annotated[Path, typer.Argument(help="the Python file; a stage reads it from custom/")],
    name: Annotated[str | None, typer.Option(help="the class, if the file has several", show_default=False)] = None,
    kind: Annotated[Literal["custom", "gym"], typer.Option(help="as in prompt.environment")] = "custom",
    problem: Annotated[str, typer.Option(help="text of the problem")] = "",
    answer: Annotated[str, typer.Option(help="its gold answer")] = "",
    seed: Annotated[int, typer.Option(min=0, help="seed of the response")] = 0,
    arguments: Annotated[str, typer.Option(help="more arguments, as JSON: '{\"highest\": 9}'")] = "{}",
    turn: Annotated[
        list[str] | None, typer.Option(help="a turn of the policy; repeat for several (default: type them)")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.01, help="CPU time limit of a turn")] = 5.0,
    memory: Annotated[int, typer.Option(min=128, help="memory limit of the worker in MiB")] = 1024,
) -> None:
    """Play an episode of your environment: type what the policy would write, read what it would read.

    It runs as in a round: in a worker with limits and without network. Then a new process gets the same turns, and has
    to answer the same. Exit code 1: the environment failed, 2: a mistake of the caller.
    """
    from pipelines.commands.rewarding import parsed_arguments
    from stages.engines.environments.pool import EnvironmentPool
    from stages.foundations.params import EnvironmentParams, custom_file, validate_section

    # As in a recipe, whose paths begin at the project's root.
    named = file.resolve().relative_to(PROJECT).as_posix() if file.resolve().is_relative_to(PROJECT) else str(file)
    section = {"kind": kind, "file": named, "name": name or _only_class(custom_file(named))}
    section |= {"arguments": parsed_arguments(arguments), "frame": {"kind": "text", "before": "", "after": ""}}
    section |= {"max_turns": 1, "max_observation_tokens": 1}
    section |= {"workers": {"processes": 1, "memory_mib": memory, "timeout_seconds": seconds}}
    params = validate_section(section, "prompt.environment", EnvironmentParams, file)
    row = {"problem_id": "played/0", "problem": problem, "answer": answer}
    turns: list[str] = []
    with EnvironmentPool(params) as pool:
        said = [_ask(pool, row, seed, turns)]
        typer.echo(_described(said[-1]))
        for text in turn or _typed():
            if turn:
                typer.echo(f"> {text}")
            turns = [*turns, text]
            said.append(_ask(pool, row, seed, turns))
            typer.echo(_described(said[-1]))
            if "done" in said[-1]:
                break
    with EnvironmentPool(params) as pool:
        if (other := _ask(pool, row, seed + 1, [])) != said[0]:
            raise UserError(f"`reset` returned {said[0]}, and with another seed {other}: it may use only the problem")
        for count, first in enumerate(said):
            if (second := _ask(pool, row, seed, turns[:count])) != first:
                raise UserError(
                    f"{named} is not replayable: after {count} turns it said {first}, in a new process {second}. "
                    "It may depend only on the problem, the seed and the turns"
                )
    typer.echo("A new process gave the same answers to the same turns.")


def _ask(pool: EnvironmentPool, problem: dict[str, str], seed: int, turns: list[str]) -> dict[str, Any]:
    """Returns what the environment answers to the turns. Exit code 1 where it fails."""
    said = pool.reply(pool.submit(problem, seed, turns))
    said.pop("seconds", None)
    if "missing" in said:
        # The pool has asked a new process, in case an earlier turn was to blame.
        said = {"fault": "its process ended: it took too much memory, or ended itself"}
    if "fault" in said:
        typer.echo(f"the environment failed: {_printable(said['fault'])}", err=True)
        raise typer.Exit(1)
    return said


def _typed() -> Iterator[str]:
    """Yields the lines of standard input."""
    while True:
        if sys.stdin.isatty():
            typer.echo("> ", nl=False)
        if not (line := sys.stdin.readline()):
            return
        yield line.rstrip("\n")


def _only_class(file: Path) -> str:
    try:
        found = [one.name for one in ast.parse(file.read_bytes()).body if isinstance(one, ast.ClassDef)]
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{file} cannot be loaded: {error}") from error
    if len(found) != 1:
        raise UserError(f"{file} has {len(found)} classes: name the environment with --name")
    return found[0]


def _described(said: dict[str, Any]) -> str:
    if "done" not in said:
        return _printable(said["observation"])
    shown = {name: value for name, value in said["done"].items() if value is not None and "calls" not in name}
    return f"The end: {', '.join(f'{name} {_printable(str(value))}' for name, value in shown.items()) or 'no reward'}"


def _printable(text: str) -> str:
    # An environment may write control characters for a terminal.
    return "".join(one if one.isprintable() or one == "\n" else " " for one in text)
