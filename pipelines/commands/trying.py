"""`retrace reward` and `retrace environment`: try your function or class before a round trains on it."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.output import aligned, printable
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT

if TYPE_CHECKING:
    from stages.engines.custom_functions import FunctionValue
    from stages.engines.environments.pool import EnvironmentPool
    from stages.rl_round.methods import FunctionReward

COLUMNS = ("problem_id", "problem", "answer", "response", "response_tokens", "is_truncated", "verdict")
COLUMNS += ("turns", "calls", "failed_calls", "final_response", "environment_reward")  # of several turns
"""Columns of a row that a function may read, as in a round."""
SHOWN = 3
"""Responses shown at each end."""
TEXT_SHOWN = 300
"""Characters shown of the end of a response, where its answer is."""
FAULTS_SHOWN = 5
LINE_END = "\n"


def reward(
    file: Annotated[Path, typer.Argument(help="the Python file; a round reads it from custom/")],
    responses: Annotated[
        Path, typer.Argument(help="a table of rollouts or responses (Parquet), or JSON lines with such columns")
    ],
    name: Annotated[str, typer.Option(help="the function in the file")] = "score",
    arguments: Annotated[
        str | None, typer.Option(help="more arguments, as JSON: '{\"limit\": 200}'", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="rows to take, spread evenly over the table; 0: all")] = 2000,
    jobs: Annotated[int, typer.Option(min=1, help="worker processes")] = 2,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="allow network, files and processes (sandbox: off)")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="file for all values, one JSON line each")] = None,
) -> None:
    """Score stored responses with your function, and show what it rewards.

    It runs as in a round: in workers with limits and without network, unless it is trusted. If `rl.reward` of
    params.yaml names it, its weights apply, and its arguments unless you give some. Exit code 1: it fails on a row,
    2: a mistake of the caller.
    """
    from stages.engines.custom_functions import CustomFunction, CustomFunctionParams
    from stages.engines.verifier.params import VerifierParams
    from stages.foundations.params import load_section
    from stages.observe.progress import progress

    named = _in_recipe(file, name)
    parsed = parsed_arguments(arguments) if arguments is not None else named.arguments if named else None
    table = _evenly(read_responses(responses), rows)
    known = {"kind": "function", "file": "custom/_.py", "name": name}
    params = CustomFunctionParams(**known, arguments=parsed, sandbox="off" if trusted else None)
    limits = load_section(PROJECT / "params.yaml", "verifier", VerifierParams)
    limits = limits.model_copy(update={"workers": jobs})
    values: list[FunctionValue] = []
    with CustomFunction(params, limits, file) as function:
        # In pieces, to show progress; 500 rows keep every worker busy.
        for start in progress(range(0, len(table), 500), label=file.name, unit="pieces"):
            values += function.ask(table[start : start + 500])
    if named:
        typer.echo(f"as in rl.reward of params.yaml: arguments {parsed or {}}, weights {named.weights or {}}")
        values = [replace(value, value=value.weighted(named.weights)) for value in values]
    if out is not None:
        pairs = zip(table, values, strict=True)
        lines = [json.dumps({"problem_id": row["problem_id"], **_as_json(value)}) for row, value in pairs]
        out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    typer.echo("\n".join(describe(table, values)))
    if any(value.fault for value in values):
        raise typer.Exit(1)


def _in_recipe(file: Path, name: str) -> FunctionReward | None:
    """Returns the reward of params.yaml with this function, alone or in a sum; None if there is none."""
    from stages.foundations.params import load_section, read_yaml
    from stages.rl_round.methods import RewardParams, function_rewards

    recipe = PROJECT / "params.yaml"
    if "rl" not in read_yaml(recipe):
        return None
    rewards = function_rewards(load_section(recipe, "rl.reward", RewardParams)).values()
    return next((one for one in rewards if one.name == name and (PROJECT / one.file).resolve() == file.resolve()), None)


def parsed_arguments(text: str) -> dict[str, Any]:
    """Returns the JSON object of `--arguments`; UserError for anything else."""
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise UserError(f"--arguments {text!r} is no JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise UserError(f"--arguments {text!r}: give an object, as in '{{\"limit\": 200}}'")
    return parsed


def read_responses(path: Path) -> list[dict[str, Any]]:
    """Returns rows with COLUMNS; UserError for a file without responses. Rollouts' problems are from data/problems."""
    import pandas
    import pyarrow

    try:
        if path.suffix == ".parquet":
            table = pandas.read_parquet(path)
        else:
            table = pandas.read_json(path, lines=True, dtype=False)
    except (OSError, ValueError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} cannot be read ({error}): give Parquet or JSON lines") from error
    if "response" not in table or table.empty:
        raise UserError(f"{path} has no rows with a column `response`: its columns are {', '.join(map(str, table))}")
    # Rollouts have only the ids of their problems, because each problem has dozens of responses.
    if "problem" not in table and "problem_id" in table:
        from pipelines.rollouts.command import problems_by_id

        known = problems_by_id(PROJECT)
        table["problem"] = [known.get(one, ("", ""))[0] for one in table["problem_id"]]
        table["answer"] = [known.get(one, ("", ""))[1] for one in table["problem_id"]]
    kept = table[[column for column in COLUMNS if column in table]]
    rows = json.loads(kept.to_json(orient="records"))
    for number, row in enumerate(rows):
        row.setdefault("problem_id", f"row {number}")
    return rows


def _evenly(rows: list[dict[str, Any]], wanted: int) -> list[dict[str, Any]]:
    """Returns `wanted` rows, evenly spaced, because a table is in the order of training."""
    if not wanted or wanted >= len(rows):
        return rows
    return [rows[number * len(rows) // wanted] for number in range(wanted)]


def _as_json(value: FunctionValue) -> dict[str, Any]:
    return {"fault": value.fault} if value.fault else {"reward": value.value, "parts": value.parts}


def describe(rows: Sequence[Mapping[str, Any]], values: Sequence[FunctionValue]) -> list[str]:
    """Returns the lines to print: distribution, by verdict, parts, faults, and both ends with their texts."""
    sound = [(row, value) for row, value in zip(rows, values, strict=True) if not value.fault]
    faults = Counter(value.fault for value in values if value.fault)
    lines = [f"{len(rows):,} responses, {len(sound):,} scored, {len(rows) - len(sound):,} failed"]
    groups: dict[str, list[float]] = defaultdict(list)
    for row, value in sound:
        groups["reward"].append(value.value)
        if "verdict" in row:
            groups[f"of {row['verdict']} ones"].append(value.value)
        for part, number in (value.parts or {}).items():
            groups[f"part {part}"].append(number)
    head = ("", "rows", "mean", "deviation", "least", "most")
    lines += ["", *aligned([head, *(_row(name, groups[name]) for name in groups)])] if groups else []
    for fault, count in faults.most_common(FAULTS_SHOWN):
        lines.append(f"failed {count:,} times: {fault}")
    # Both ends with their texts: the top shows which responses a policy would learn to write.
    ordered = sorted(sound, key=lambda one: one[1].value)
    ends = (("least", ordered[:SHOWN]), ("most", ordered[: -SHOWN - 1 : -1]))
    for title, some in ends if len(ordered) > 2 * SHOWN else ():
        for row, value in some:
            lines += ["", f"{title}: {value.value:g}  {row['problem_id']}  {row.get('verdict', '')}"]
            if row.get("problem"):
                lines.append(f"  problem   {_end(row['problem'])}  (answer {row.get('answer')})")
            lines.append(f"  response  {_end(row['response'])}")
    return lines


def _end(text: str) -> str:
    text = printable(" ".join(text.split()))
    return text if len(text) <= TEXT_SHOWN else f"...{text[-TEXT_SHOWN:]}"


def _row(name: str, numbers: Sequence[float]) -> tuple[str, ...]:
    mean = sum(numbers) / len(numbers)
    deviation = math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers))
    return name, f"{len(numbers):,}", *(f"{value:.4g}" for value in (mean, deviation, min(numbers), max(numbers)))


def environment(
    file: Annotated[Path, typer.Argument(help="the Python file; a stage reads it from custom/")],
    name: Annotated[str | None, typer.Option(help="the class, if the file has several", show_default=False)] = None,
    problem: Annotated[str, typer.Option(help="text of the problem")] = "",
    answer: Annotated[str, typer.Option(help="its gold answer")] = "",
    seed: Annotated[int, typer.Option(min=0, help="seed of the response")] = 0,
    arguments: Annotated[str, typer.Option(help="more arguments, as JSON: '{\"highest\": 9}'")] = "{}",
    turn: Annotated[
        list[str] | None, typer.Option(help="a turn of the policy; repeat for several (default: type them)")
    ] = None,
) -> None:
    """Play an episode of your environment: type what the policy would write, read what it would read.

    It runs as in a round: in a worker with limits and without network. Then a new process gets the same turns, and has
    to answer the same. Exit code 1: the environment failed, 2: a mistake of the caller.
    """
    from stages.engines.environments.pool import EnvironmentPool
    from stages.foundations.params import EnvironmentParams, custom_file, validate_section

    # As in a recipe, whose paths begin at the project's root.
    named = file.resolve().relative_to(PROJECT).as_posix() if file.resolve().is_relative_to(PROJECT) else str(file)
    section = {"kind": "custom", "file": named, "name": name or _only_class(custom_file(named))}
    section |= {"arguments": parsed_arguments(arguments), "frame": {"kind": "text", "before": "", "after": ""}}
    section |= {"max_turns": 1, "max_observation_tokens": 1}
    section |= {"workers": {"processes": 1, "memory_mib": 1024, "timeout_seconds": 5.0}}
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
        typer.echo(f"the environment failed: {printable(said['fault'], LINE_END)}", err=True)
        raise typer.Exit(1)
    return said


def _typed() -> Iterator[str]:
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
        return printable(said["observation"], LINE_END)
    shown = {name: value for name, value in said["done"].items() if value is not None and "calls" not in name}
    return f"The end: {', '.join(f'{name} {printable(str(value))}' for name, value in shown.items()) or 'no reward'}"
