"""Full-text search for the tool `search`: BM25 (Robertson and Zaragoza 2009, equation 3.15) in memory.

The weight of a word is Lucene's, ln(1 + (N - n + 0.5) / (n + 0.5)), which is never negative.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path

from stages.foundations.errors import UserError

K1, B = 1.2, 0.75


class Index:
    """Documents as (title, text)."""

    def __init__(self, documents: list[tuple[str, str]]) -> None:
        self._documents = documents
        counts = [Counter(_words(f"{title} {text}")) for title, text in documents]
        lengths = [count.total() for count in counts]
        mean = sum(lengths) / max(1, len(documents)) or 1.0
        self._weights: dict[str, dict[int, float]] = defaultdict(dict)
        """By word and number of a document: what the word adds to the document's score."""
        for number, count in enumerate(counts):
            length = K1 * (1 - B + B * lengths[number] / mean)
            for word, times in count.items():
                self._weights[word][number] = times * (K1 + 1) / (times + length)

    def search(self, query: str, results: int, characters: int) -> list[str]:
        """Returns the beginnings of the best documents, the best first; equally good ones in the order of the file."""
        scores: dict[int, float] = defaultdict(float)
        for word in sorted(set(_words(query)) & self._weights.keys()):
            places = self._weights[word]
            rarity = math.log(1 + (len(self._documents) - len(places) + 0.5) / (len(places) + 0.5))
            for number, weight in places.items():
                scores[number] += rarity * weight
        best = sorted(scores, key=lambda number: (-scores[number], number))[:results]
        return [_passage(*self._documents[number], characters) for number in best]


@lru_cache(maxsize=4)
def load_index(path: Path) -> Index:
    """Reads the documents of a .jsonl or .parquet file, once per process. UserError for a row without a text."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            rows = pyarrow.parquet.read_table(path).to_pylist()
        else:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name} cannot be read ({error}): give one JSON object a line, or Parquet") from error
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise UserError(f"row {number} of {path.name} has no `text`: give each a text, and a title if it has one")
    return Index([(str(row.get("title") or ""), row["text"]) for row in rows])


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _passage(title: str, text: str, characters: int) -> str:
    passage = " ".join(text[:characters].split())
    return f"{title}: {passage}" if title else passage
