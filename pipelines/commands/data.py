"""Commands that show what is in a file of data.

`retrace data` shows a file of problems or conversations, how Retrace reads it, and the recipe's lines for it.

`retrace phrases` counts the texts that contain a phrase of a list, or a sentence much like it.
Source: Demystifying Long CoT (arXiv 2502.03373, section 6.5), which looks for phrases of long reasoning in OpenWebMath,
and the authors' `minhash/find_similar_strings.py`. Deviations:
1. MinHash only proposes sentences; their exact Jaccard similarity decides.
2. A phrase of one or two words is found only as a whole sentence; the authors compare its single words.
3. Sentences end at line ends, and at punctuation that no small letter follows; the authors use NLTK.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from pipelines.output import aligned, printable, shortened
from stages.foundations.errors import UserError
from stages.foundations.files import dump_yaml, load_yaml, sha256_of

if TYPE_CHECKING:
    from stages.collect.stage import FieldMap

USUAL = {
    "problem": ("problem", "question", "prompt", "instruction", "query", "input"),
    "answer": ("answer", "final_answer", "gold", "target", "expected_answer", "label", "output"),
    "solution": ("solution", "rationale", "explanation", "worked_solution", "generated_solution", "response"),
}
"""Names that data sets use for our fields, the most specific first."""
CHAT = ("messages", "conversations", "conversation", "dialogue", "turns")
"""Names that they use for the turns of a conversation."""
FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet", ".csv": "csv"}
TEXT_SHOWN = 160
REASONS_SHOWN = 8


def data(
    file: Annotated[Path, typer.Argument(help="CSV, JSON lines, JSON or Parquet; .gz is recognised")],
    problem: Annotated[str, typer.Option(help="field with the problem: a name, or a map as in sources, in YAML")] = "",
    answer: Annotated[str, typer.Option(help="field with the short final answer: a name or a map")] = "",
    solution: Annotated[str, typer.Option(help="field with the worked solution; `null` for none")] = "",
    messages: Annotated[str, typer.Option(help="field with the turns of a conversation")] = "",
    rows: Annotated[int, typer.Option(min=1, help="rows to read from the beginning")] = 1000,
    show: Annotated[int, typer.Option(min=0, help="problems shown in full")] = 3,
) -> None:
    """Show what Retrace makes of your data before anything runs.

    Prints the columns with an example each, the problems that the fields give, and how many rows are dropped and why.
    Prints also the lines of `sources` to put into a recipe. Fields that are not named are guessed by their usual names.
    """
    from stages.collect.file_rows import BrokenRow, read_rows
    from stages.collect.run import problem_of_row
    from stages.foundations.tables import Funnel

    if not file.is_file():
        raise UserError(f"{file} is no file: name one of CSV, JSON lines, JSON or Parquet")
    kind = file_format(file)
    table = read_rows(file, kind, rows)
    sound = [row for row in table if not isinstance(row, BrokenRow)]
    if not sound:
        raise UserError(f"{file} has no valid row in its first {len(table)}: {_first_fault(table)}")
    typer.echo("\n".join(describe_columns(sound)))
    named = {"problem": problem, "answer": answer, "solution": solution}
    fields = messages or _guessed_messages(sound, named) or field_map(sound, named)
    funnel, problems = Funnel("collect", len(table)), []
    for number, row in enumerate(table):
        if made := problem_of_row(row, f"{file.stem}/{number}", fields, {}, funnel):
            problems.append(made)
    typer.echo("\n".join(["", *describe_problems(problems, funnel, len(table), show, isinstance(fields, str))]))
    typer.echo("\n".join(["", *recipe_lines(file, kind, fields, sha256_of(file))]))
    if not problems:
        raise typer.Exit(1)


def _guessed_messages(rows: Sequence[Mapping[str, Any]], named: Mapping[str, str]) -> str:
    """Returns the field with the turns; empty for a file of problems, which may also have its texts as messages."""
    known = {str(name).lower(): name for row in rows[:50] for name in row}
    has_problems = known.keys() & {*USUAL["problem"]} and known.keys() & {*USUAL["answer"], *USUAL["solution"]}
    return "" if has_problems or any(named.values()) else next((known[name] for name in CHAT if name in known), "")


def file_format(file: Path) -> Any:
    """Returns the format of a file of rows, by the end of its name; UserError for another end."""
    # Not from the content: JSON lines and a CSV with one column look alike.
    suffix = next((end for end in reversed(file.suffixes) if end in FORMATS), None)
    if suffix is None:
        raise UserError(f"{file}: its name should end in {', '.join(FORMATS)} (and .gz), so that the format is known")
    return FORMATS[suffix]


def _first_fault(table: Sequence[Any]) -> str:
    return table[0].reason if table else "it is empty"


def describe_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describes each field: the kind of its values, how many rows have it, and the first value."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"{len(rows):,} rows read, {len(names)} fields:"]
    for name in names:
        values = [row[name] for row in rows if row.get(name) not in (None, "", [])]
        kinds = "/".join(sorted({type(value).__name__ for value in values})) or "empty"
        example = on_one_line(values[0]) if values else ""
        lines.append(f"  {name} ({kinds}, {len(values):,} filled): {example}")
    return lines


def field_map(rows: Sequence[Mapping[str, Any]], named: Mapping[str, str]) -> FieldMap:
    """Returns the field map from the caller's names, and usual names for the rest. UserError names missing fields."""
    from stages.collect.stage import FieldMap

    # More than the first row, which may lack a field, but not all rows: names repeat after a few.
    known = {str(name).lower(): name for row in rows[:50] for name in row}
    values: dict[str, Any] = {}
    for target, usual in USUAL.items():
        guess = next((known[name] for name in usual if name in known and known[name] not in values.values()), None)
        values[target] = load_yaml(named[target]) if named[target] else guess
    if values["answer"] is None and values["solution"] is not None:
        values["answer"] = {"kind": "boxed", "field": values["solution"]}  # as in MATH and similar data sets
    for target in ("problem", "answer"):
        if values[target] is None:
            raise UserError(
                f"no field is called {', '.join(USUAL[target])}: name the field of the {target} with --{target}. "
                f"The fields are {', '.join(map(str, known.values()))}"
            )
    try:
        return FieldMap.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"--{where.partition('.')[0]}: {first['msg']} (at {where})") from error


def describe_problems(
    problems: Sequence[Mapping[str, Any]], funnel: Any, count: int, show: int, is_chat: bool
) -> list[str]:
    """Describes how many rows become problems or conversations, why others do not, and the first few."""
    dropped = funnel.dropped_frame()
    chats = [json.loads(one["messages"]) for one in problems] if is_chat else []
    roles = Counter(turn["role"] for turns in chats for turn in turns)
    turns = ", ".join(f"{number:,} {role}" for role, number in roles.most_common()) or "none"
    solved = sum(1 for one in problems if one.get("solution"))
    what = f"conversations; turns: {turns}" if is_chat else f"problems; {solved:,} solved"
    lines = [f"{len(problems):,} of {count:,} rows are {what}"]
    for reason, number in Counter(dropped["reason"]).most_common(REASONS_SHOWN):
        example = dropped[dropped["reason"] == reason].iloc[0]
        lines.append(f"  dropped {number:,}: {reason} ({example['row_id']}: {on_one_line(example['detail'])})")
    for number, one in enumerate(problems[:show]):
        lines.append(f"  {one['problem_id']}")
        told = [(turn["role"], turn["content"]) for turn in chats[number]] if chats else one.items()
        lines += [f"    {name}: {on_one_line(text)}" for name, text in told if text and name != "problem_id"]
    return lines


def recipe_lines(file: Path, kind: str, fields: FieldMap | str, digest: str) -> list[str]:
    """Returns section `sources` with this file, for a recipe."""
    name = "".join(one if one.isalnum() else "_" for one in file.name.partition(".")[0].lower()).strip("_") or "mine"
    source = {
        "role": "chat" if isinstance(fields, str) else "train",
        "licence": "say which",
        "from": {
            "kind": "local",
            "path": str(file),
            # Nothing else would detect a change of a file on this machine.
            "sha256": digest,
            "format": kind,
            "fields": fields if isinstance(fields, str) else fields.model_dump(mode="json"),
            "only": {},
            "max_rows": None,
        },
    }
    text = dump_yaml({"sources": {name: source}}, allow_unicode=True)
    for_chat = f"with prompt.kind: chat, and in demonstrate.sources {{kind: given, sources: [{name}], max_rows: null}}"
    told = for_chat if isinstance(fields, str) else "role: benchmark for problems to be measured on"
    return [f"For a recipe ({told}):", "", *text.splitlines()]


def on_one_line(value: Any) -> str:
    """Returns the beginning of a value as text for a terminal, without control characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return shortened(printable(" ".join(text.split())), TEXT_SHOWN)


URL = (
    "https://raw.githubusercontent.com/eddycmu/demystify-long-cot/e90cf9b30203bb74b1ea4ba008fa54bf731ad1a4/"
    "minhash/queries.yaml"
)
SHA256 = "94c0136d289359ec66562c8546713ff49a3b3e654e4520581b5acc1de59a9c64"
SENTENCE_END = re.compile(r"(?<=[.!?…])\s+(?![a-z])|\n+")
SHINGLE_WORDS, PERMUTATIONS = 3, 128


def phrases(
    file: Annotated[Path, typer.Argument(help="a table of texts: CSV, JSON lines, JSON or Parquet; .gz is recognised")],
    field: Annotated[str, typer.Option(help="field with the text: `text`, or `response` of rollouts")] = "text",
    queries: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="YAML with a list `queries` [default: the paper's]")
    ] = None,
    similarity: Annotated[float, typer.Option(min=0.01, max=0.99, help="least Jaccard similarity")] = 0.5,
    rows: Annotated[int, typer.Option(min=1, help="rows to read from the beginning")] = 100_000,
) -> None:
    """Count the texts that contain phrases of long reasoning, such as `Let me verify that.`

    Prints each phrase with its number of texts and the first sentence found. Works on any table of texts: web pages,
    demonstrations, the rollouts of a round.
    """
    from stages.collect.file_rows import BrokenRow, read_rows
    from stages.collect.run import field_value
    from stages.engines.pinned_files import pinned_file
    from stages.foundations.params import read_yaml
    from stages.observe.progress import progress

    if not file.is_file():
        raise UserError(f"{file} is no file: name a table of texts")
    place = queries or pinned_file(URL, SHA256, "the hash of the paper's list")
    known = read_yaml(place).get("queries")
    if not isinstance(known, list) or not known or not all(isinstance(phrase, str) for phrase in known):
        raise UserError(f'{place} has no list `queries` of texts: write `queries: ["Let me verify that."]`')
    table = read_rows(file, file_format(file), rows)
    values = [None if isinstance(row, BrokenRow) else field_value(field, row) for row in table]
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        raise UserError(f"{file} has no text in the field {field!r}: name another with --field")
    found = find_phrases(progress(texts, label="phrases", unit="texts"), known, similarity)
    ranked = sorted((hits for hits in found.items() if hits[1]), key=lambda hits: -len(hits[1]))
    lines = [
        (phrase, f"{len(of_phrase):,}", on_one_line(next(iter(of_phrase.values())))) for phrase, of_phrase in ranked
    ]
    typer.echo("\n".join(aligned([("phrase", "texts", "first sentence"), *lines])))
    holding = len({number for of_phrase in found.values() for number in of_phrase})
    share = f"{holding:,} of {len(texts):,} texts hold one of {len(known)} phrases ({holding / len(texts):.2%})"
    typer.echo(f"{share}; {len(table) - len(texts):,} rows without such a text")


def find_phrases(texts: Iterable[str], known: Sequence[str], similarity: float) -> dict[str, dict[int, str]]:
    """Returns for each phrase the texts that hold it, by their number, each with its first sentence like it."""
    from stages.algorithms.decontamination import NearDuplicateRule, NearDuplicates

    index = NearDuplicates(NearDuplicateRule(SHINGLE_WORDS, similarity, PERMUTATIONS, same_numbers=False))
    for place, phrase in enumerate(known):
        index.add(place, phrase)
    found: dict[str, dict[int, str]] = {phrase: {} for phrase in known}
    for number, text in enumerate(texts):
        for sentence in SENTENCE_END.split(text):
            for place, _ in index.find(sentence):
                found[known[place]].setdefault(number, sentence.strip())
    return found
