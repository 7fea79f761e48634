"""Collects one source of problems: a pinned file, a file of a hub's data set, or a generator.

`collect_source` reads the upstream rows, maps their fields, and counts every dropped row. After it come conversations,
the origins, and `read_field`, which reads a field of a row. `file_rows` beside it reads each format.
"""

from __future__ import annotations

import difflib
import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from stages.algorithms import arithmetic_tasks, calculator_tasks, digit_tasks
from stages.algorithms.answers.extraction import extract_answer
from stages.collect.file_rows import BrokenRow, Row, read_json, read_rows
from stages.collect.stage import (
    AfterMarker,
    ArithmeticSource,
    BeforeMarker,
    Boxed,
    CalculatorConversations,
    CalculatorSource,
    ChoiceLetter,
    DigitSource,
    FieldMap,
    FieldParams,
    HubSource,
    JoinedFields,
    Listed,
    LocalSource,
    Matches,
    Origin,
    QuestionWithChoices,
    SourceParams,
    UrlSource,
    require_word,
)
from stages.engines.pinned_files import pinned_file
from stages.foundations.errors import UserError
from stages.foundations.files import require_sha256, write_metrics
from stages.foundations.job import Job
from stages.foundations.machine import from_root
from stages.foundations.packages import require_package
from stages.foundations.params import ReasoningGymSource
from stages.foundations.tables import DROPPED, PROBLEM, Funnel, write_table
from stages.observe.progress import progress
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Reads the source and writes its problems and dropped rows, metrics last."""
    paths, source = job.paths, job.sections["sources"]
    require_word(job.item)
    described = {"source": job.item, **source.model_dump(mode="json", by_alias=True)}
    with track(job.attempt(described)) as run:
        problems, funnel = collect_source(job.item, source)
        write_table(problems, paths.problems, PROBLEM)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        metrics = funnel.metrics(len(problems))
        run.summary(metrics)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})


# Generators use our field names.
GENERATED = FieldMap(problem="problem", answer="answer", solution="solution")
Problem = dict[str, str | None]


def collect_source(name: str, source: SourceParams) -> tuple[list[Problem], Funnel]:
    """Returns the source's problems, in upstream's order, and the drops; UserError when no row is usable.

    `problem_id` is `<source>/<number of the row, from 0>`, so that each problem can be located upstream.
    """
    rows, fields, only = _upstream(name, source)
    funnel, problems = Funnel("collect", len(rows)), []
    drawn = _drawn(source.origin, len(rows))
    for number, row in enumerate(rows):
        row_id = f"{name}/{number}"
        if number not in drawn:
            funnel.drop({}, "not_drawn", row_id=row_id)
            continue
        problem = problem_of_row(row, row_id, fields, only, funnel)
        if problem:
            problems.append({**problem, "source": name, "licence": source.licence})
    _require_usable(name, fields, problems, funnel)
    return problems, funnel


def _upstream(name: str, source: SourceParams) -> tuple[list[Row], FieldMap | str, Mapping[str, list[Any]]]:
    match source.origin:
        case ArithmeticSource() as origin:
            return list(arithmetic_rows(name, origin)), GENERATED, {}
        case DigitSource() as origin:
            return list(digit_rows(name, origin)), GENERATED, {}
        case CalculatorSource() as origin:
            return list(calculator_rows(origin)), GENERATED, {}
        case CalculatorConversations() as origin:
            return list(calculator_conversations(origin)), "messages", {}
        case ReasoningGymSource() as origin:
            return list(reasoning_gym_rows(name, origin)), GENERATED, {}
        case origin:
            path = locate_file(name, origin)
            return read_rows(path, origin.format, origin.max_rows), origin.fields, origin.only


def _drawn(origin: Origin, rows: int) -> Collection[int]:
    """Returns the numbers of the rows to use, in `range(rows)`."""
    draw = getattr(origin, "draw", None)  # generators have none
    if draw is None or draw.rows >= rows:
        return range(rows)
    return set(random.Random(draw.seed).sample(range(rows), draw.rows))


def problem_of_row(
    row: Row, row_id: str, fields: FieldMap | str, only: Mapping[str, list[Any]], funnel: Funnel
) -> Problem | None:
    """Returns a row's id, problem, answer and solution, or id, first user turn and messages; None if it is dropped."""
    if isinstance(row, BrokenRow):
        funnel.drop({"text": row.text}, "malformed_row", row.reason, row_id)
        return None
    # Before the texts are read, because a row that is not selected may lack them.
    for field, allowed in only.items():
        if field_value(field, row) not in allowed:
            funnel.drop(row, "not_selected", f"`{field}` is {field_value(field, row)!r}"[:200], row_id)
            return None
    if isinstance(fields, str):
        return _conversation(row, row_id, fields, funnel)
    found: Problem = {"problem_id": row_id}
    # The problem first: the first missing field gives the reason of the drop.
    for target in ("problem", "answer"):
        try:
            found[target] = read_field(getattr(fields, target), row)
        except MissingField as error:
            funnel.drop(row, f"missing_{target}", str(error), row_id)
            return None
        except UnusableField as error:
            funnel.drop(row, f"unusable_{target}", str(error), row_id)
            return None
    found["solution"] = _solution(fields.solution, row)
    return found


def _conversation(row: Mapping[str, Any], row_id: str, name: str, funnel: Funnel) -> Problem | None:
    reason = "unusable_messages"
    try:
        messages = _value(name, row)
        # A CSV file holds the list as JSON in a text.
        turns = read_conversation(read_json(messages.encode()) if isinstance(messages, str) else messages)
        first = next(turn["content"] for turn in turns if turn["role"] == "user")
        # Half a surrogate pair raises ValueError here, and not when the table is written.
        text = json.dumps(turns, ensure_ascii=False).encode().decode()
        return {"problem_id": row_id, "problem": first, "messages": text}
    except MissingField as error:
        reason, detail = "missing_messages", str(error)
    except UnusableConversation as error:
        reason, detail = error.args
    except (ValueError, RecursionError) as error:
        detail = f"`{name}` is a text, and no list of turns as JSON: {error}"
    funnel.drop(row, reason, detail, row_id)
    return None


ROLES = dict(
    system="system", user="user", human="user", assistant="assistant", gpt="assistant", tool="tool", observation="tool"
)
"""Names of roles in data sets, also as in ShareGPT -> our names."""


class UnusableConversation(ValueError):
    """A conversation to drop. Arguments: the reason of the drop, and a sentence."""


def read_conversation(messages: Any) -> list[dict[str, str]]:
    """Returns the turns {role, content} of turns with these fields, or with `from` and `value` as in ShareGPT.

    UnusableConversation unless, after an optional system turn, a user begins, an assistant ends, and a tool's turn is
    only between turns of the assistant.
    """
    turns = []
    for number, turn in enumerate(messages if isinstance(messages, list) else [messages], 1):
        if not isinstance(turn, Mapping):
            raise UnusableConversation("unusable_messages", f"turn {number} is a {type(turn).__name__}, not a mapping")
        # A table has every column in every row, so the other spelling may exist with the value null.
        role, content = turn.get("role") or turn.get("from"), turn.get("content") or turn.get("value")
        if str(role).lower() not in ROLES:
            raise UnusableConversation("unknown_role", f"turn {number} is {str(role)[:40]!r}, not {', '.join(ROLES)}")
        if not isinstance(content, str) or not content.strip():
            raise UnusableConversation("empty_turn", f"turn {number} holds no text but {str(content)[:40]!r}")
        # Many templates strip a message, and the tokens must match the template's output.
        turns.append({"role": ROLES[str(role).lower()], "content": content.strip()})
    order = [turn["role"] for turn in turns]
    if not re.fullmatch("s?u(u|a|at(?=a))*a", "".join(role[0] for role in order)):
        reason = "wrong_order" if "assistant" in order else "no_assistant_turn"
        raise UnusableConversation(
            reason,
            f"the turns are {', '.join(order)[:200]}: a user begins, an assistant ends, "
            "and a tool stands between two turns of the assistant",
        )
    return turns


def _solution(field: FieldParams | None, row: Mapping[str, Any]) -> str | None:
    """Returns None for a row without a usable solution: its problem is still useful."""
    if field is None:
        return None
    try:
        return read_field(field, row)
    except (MissingField, UnusableField):
        return None


def _require_usable(name: str, fields: FieldMap | str, problems: Sequence[Problem], funnel: Funnel) -> None:
    if not problems:
        dropped = funnel.dropped_frame()
        counts = ", ".join(f"{reason} {count}" for reason, count in sorted(Counter(dropped["reason"]).items()))
        first = f"; the first: {dropped['detail'].iloc[0]}" if len(dropped) else ""
        raise UserError(
            f"source `{name}` gives no usable row out of {funnel.rows_in} ({counts or 'the file is empty'}{first}): "
            f"correct sources.{name}.from"
        )
    # A field that no row has is a mistake in the recipe, which would otherwise show only as missing demonstrations.
    is_promised = isinstance(fields, FieldMap) and fields is not GENERATED and fields.solution is not None
    if is_promised and all(problem["solution"] is None for problem in problems):
        raise UserError(
            f"source `{name}`: no row has a solution where sources.{name}.from.fields.solution says; "
            "correct it, or set it to null"
        )


def locate_file(name: str, origin: UrlSource | LocalSource | HubSource) -> Path:
    """Returns a path to the source's file with the pinned bytes. UserError names the file and the remedy."""
    match origin:
        case HubSource():
            return _hub_file(origin)
        case UrlSource():
            return pinned_file(origin.url, origin.sha256, f"sources.{name}.from.sha256")
    path = from_root(origin.path)
    if not path.is_file():
        raise UserError(f"{path} does not exist: correct sources.{name}.from.path, it counts from the project's root")
    remedy = (
        f"which sources.{name}.from.sha256 says: the file is not the one that the recipe means. "
        "Put its sha256 into the recipe if it is what you want"
    )
    require_sha256(path, origin.sha256, remedy)
    return path


def _hub_file(origin: HubSource) -> Path:
    # Imported here, because most recipes have no source on the hub.
    from huggingface_hub import hf_hub_download

    remedy = "check names, network and, for a gated data set, your token; or fetch it elsewhere and use kind: local"
    try:
        return Path(hf_hub_download(origin.repository, origin.file, repo_type="dataset", revision=origin.revision))
    except Exception as error:  # the hub client raises many kinds; each means that the download failed
        where = f"{origin.file} of {origin.repository} at {origin.revision[:12]}"
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"{where} cannot be fetched from the hub ({reason}): {remedy}") from error


def arithmetic_rows(name: str, origin: ArithmeticSource) -> Iterator[dict[str, str | None]]:
    """Yields rows with problem, answer and a solution without mistakes."""
    weights = {kind.value: weight for kind, weight in origin.weights.items()}
    try:
        problems = arithmetic_tasks.generate_problems(
            origin.seed, origin.rows, weights, origin.operand_max, origin.value_max, origin.steps
        )
    except ValueError as error:
        raise UserError(
            f"sources.{name}.from: {error}; lower `rows` or raise operand_max, value_max or steps"
        ) from None
    for problem in problems:
        solution = "\n".join((*problem.steps, arithmetic_tasks.answer_line(problem.answer)))
        yield {"problem": problem.problem, "answer": problem.answer, "solution": solution}


def digit_rows(name: str, origin: DigitSource) -> Iterator[dict[str, str | None]]:
    """Yields rows with problem, answer and, as solution, a search without mistakes."""
    try:
        problems = digit_tasks.generate_problems(
            origin.seed, origin.rows, origin.sizes, origin.coefficients, origin.is_held_out
        )
    except ValueError as error:
        raise UserError(
            f"sources.{name}.from: {error}; lower `rows`, or give other sizes or more coefficients"
        ) from None
    # The search is random too: it decides which pairs are tried before the right one.
    rng = random.Random(origin.seed)
    for problem in problems:
        solution, _ = digit_tasks.write_solution(problem, rng, "search", slip=0.0, retry=0.0, near_misses=0.0)
        yield {"problem": problem.problem, "answer": problem.answer, "solution": solution}


def calculator_rows(origin: CalculatorSource) -> Iterator[dict[str, str | None]]:
    """Yields rows with problem and answer; a policy learns calls from conversations, so there is no solution."""
    for problem in calculator_tasks.generate_problems(origin.seed, origin.rows, origin.is_held_out):
        yield {"problem": problem.problem, "answer": problem.answer, "solution": None}


def calculator_conversations(origin: CalculatorConversations) -> Iterator[dict[str, list[dict[str, str]]]]:
    """Yields rows whose `messages` are the turns of one conversation."""
    rng = random.Random(origin.seed)
    for problem in calculator_tasks.generate_problems(origin.seed, origin.rows, is_held_out=False):
        yield {
            "messages": calculator_tasks.write_demonstration(problem, rng, origin.called, origin.miscalled, origin.busy)
        }


def reasoning_gym_rows(name: str, origin: ReasoningGymSource) -> Iterator[dict[str, str | None]]:
    """Yields rows as the task generates them; the answer is None if the task has no unique answer."""
    require_package("reasoning_gym", f"sources.{name}.from.kind: reasoning_gym")
    import reasoning_gym

    known = reasoning_gym.factory.DATASETS
    if origin.task not in known:
        close = difflib.get_close_matches(origin.task, known) or sorted(known)
        raise UserError(
            f"reasoning-gym has no task {origin.task!r} (sources.{name}.from.task); try: {', '.join(close)}"
        )
    try:
        entries = reasoning_gym.create_dataset(origin.task, size=origin.rows, seed=origin.seed, **origin.config)
    except (AssertionError, TypeError, ValueError) as error:
        raise UserError(
            f"reasoning-gym's {origin.task} refuses sources.{name}.from.config {origin.config}: {error}"
        ) from error
    for entry in progress(entries, total=origin.rows, label=origin.task):
        yield {"problem": entry["question"], "answer": entry["answer"], "solution": None}


# The letters that curate accepts.
LETTERS = "ABCDEFGHIJ"
# Not None, because None may be the value of a field.
_ABSENT = object()
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
"""Control characters, which are invisible and not needed in a text."""


class MissingField(Exception):
    """The row has no such field, or it is empty."""


class UnusableField(Exception):
    """The value of the field does not fit the field map."""


def read_field(params: FieldParams, row: Mapping[str, Any]) -> str:
    """Returns the text that `params` describes. MissingField or UnusableField describes a fault of the row."""
    match params:
        case str():
            return _text(params, row)
        case JoinedFields():
            return params.separator.join(_text(name, row) for name in params.fields)
        case AfterMarker():
            return _filled(_around_marker(params, row)[1], params.field)
        case BeforeMarker():
            text = _around_marker(params, row)[0]
            for pattern in params.strip:
                text = re.sub(pattern, "", text)
            return _filled(text, params.field)
        case Matches():
            return _filled(params.separator.join(_pieces(params, row)), params.field)
        case Boxed():
            extraction = extract_answer(_text(params.field, row))
            # The other rules guess answers from prose, which is not reliable for a file.
            if extraction.rule not in ("box", "boxes") or not extraction.text:
                raise UnusableField(f"`{params.field}` holds no \\boxed{{}} answer")
            return extraction.text
        case Listed():
            return _filled(_listed(_value(params.field, row), params), params.field)
        case QuestionWithChoices():
            choices = _choices(params.choices, row)
            lines = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, choices, strict=False)]
            return "\n".join([_text(params.field, row), *lines])
        case ChoiceLetter():
            return _letter(params.field, row)


def field_value(name: str, row: Mapping[str, Any]) -> Any:
    """Returns the value at a name or path, None if there is none."""
    value = _walk(name, row)
    return None if value is _ABSENT else value


def _walk(name: str, row: Mapping[str, Any]) -> Any:
    # The whole name first: some files have dots in their column names.
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _ABSENT
    return value


def _value(name: str, row: Mapping[str, Any]) -> Any:
    value = _walk(name, row)
    if value is _ABSENT:
        raise MissingField(f"no field `{name}`; the row has: {', '.join(map(str, row))}")
    if value is None or value == "" or value == []:
        raise MissingField(f"`{name}` is empty")
    return value


def _text(name: str, row: Mapping[str, Any]) -> str:
    return _filled(_scalar(_value(name, row), name), name)


def _filled(text: str, name: str) -> str:
    text = _CONTROL.sub("", text).strip()
    if not text:
        raise MissingField(f"`{name}` is empty")
    return text


def _scalar(value: Any, name: str) -> str:
    """Returns a text or number as text; a whole number loses its `.0`, because some files write 27 as 27.0."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return str(value)
    if isinstance(value, float | Decimal):
        # By its text: the shortest decimal that is this float. Decimals come from Parquet.
        value = Decimal(str(value))
        if not value.is_finite():
            raise UnusableField(f"`{name}` is {value}, not a finite number")
        # `:f` writes no exponent: answers are not written as 1E+22.
        return str(int(value)) if value == value.to_integral_value() else f"{value.normalize():f}"
    if isinstance(value, bytes):  # from Parquet: some writers do not mark texts as texts
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise UnusableField(f"`{name}` holds bytes that are not UTF-8") from None
    raise UnusableField(f"`{name}` holds a {type(value).__name__}, not a text or number")


def _listed(value: Any, params: Listed) -> str:
    if not isinstance(value, list):
        return _scalar(value, params.field)
    if len(value) == 1:
        # Some files write every answer as a list with one value.
        return _listed(value[0], params)
    parts = (_listed(part, params) for part in value)
    return f"{params.open}{params.separator.join(parts)}{params.close}"


def _around_marker(params: AfterMarker | BeforeMarker, row: Mapping[str, Any]) -> tuple[str, str]:
    before, marker, after = _text(params.field, row).rpartition(params.marker)
    if not marker:
        raise UnusableField(f"`{params.field}` has no marker {params.marker!r}")
    return before, after


def _pieces(params: Matches, row: Mapping[str, Any]) -> list[str]:
    found = re.finditer(params.pattern, _text(params.field, row))
    # Group 1 if the pattern has one, else the whole match. A group that did not match is empty.
    pieces = [match.group(min(1, match.re.groups)) or "" for match in found]
    if not pieces:
        raise UnusableField(f"`{params.field}` has nothing that {params.pattern!r} matches")
    return pieces


def _choices(name: str, row: Mapping[str, Any]) -> list[str]:
    choices = _value(name, row)
    if not isinstance(choices, list) or not 2 <= len(choices) <= len(LETTERS):
        raise UnusableField(f"`{name}` is not a list of 2 to {len(LETTERS)} choices")
    return [_scalar(choice, name) for choice in choices]


def _letter(name: str, row: Mapping[str, Any]) -> str:
    index = _scalar(_value(name, row), name)
    if not index.isdigit() or int(index) >= len(LETTERS):
        raise UnusableField(f"`{name}` is {index!r}, not the index of a choice")
    return LETTERS[int(index)]
