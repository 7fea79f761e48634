"""`retrace phrases`: counts the texts of a file that contain a phrase of a list, or a sentence much like it.

Source: Demystifying Long CoT (arXiv 2502.03373, section 6.5), which looks for phrases of long reasoning in OpenWebMath,
and the authors' `minhash/find_similar_strings.py`. Deviations:
1. MinHash only proposes sentences; their exact Jaccard similarity decides.
2. A phrase of one or two words is found only as a whole sentence; the authors compare its single words.
3. Sentences end at line ends, and at punctuation that no small letter follows; the authors use NLTK.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from stages.foundations.errors import UserError

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
    from pipelines.commands.data import file_format, on_one_line
    from pipelines.output import aligned
    from stages.collect.run import BrokenRow, field_value, read_rows
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
