"""Full-text search for the tool `search`: BM25 (Robertson and Zaragoza 2009, equation 3.15) in memory.

The weight of a rare word is Lucene's, ln(1 + (N - n + 0.5) / (n + 0.5)), which is never negative.
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
_WORD = re.compile(r"\w+")


class Index:
    """Documents as (title, text)."""

    def __init__(self, documents: list[tuple[str, str]]) -> None:
        self._documents = documents
        counts = [Counter(_words(f"{title} {text}")) for title, text in documents]
        self._lengths = [count.total() for count in counts]
        self._mean = sum(self._lengths) / max(1, len(documents)) or 1.0
        self._places: dict[str, list[tuple[int, int]]] = defaultdict(list)
        """By word: documents that have it, and how often."""
        for number, count in enumerate(counts):
            for word, times in count.items():
                self._places[word].append((number, times))

    def search(self, query: str, results: int, characters: int) -> list[str]:
        """Returns passages of the best documents, the best first; of equally good ones the first in the file.

        A passage begins where the document first has the query's rarest word, and has at most `characters`.
        """
        words = sorted(set(_words(query)) & self._places.keys(), key=lambda word: (len(self._places[word]), word))
        scores: dict[int, float] = defaultdict(float)
        for word in words:
            for number, times in self._places[word]:
                length = K1 * (1 - B + B * self._lengths[number] / self._mean)
                scores[number] += self._weight(word) * times * (K1 + 1) / (times + length)
        best = sorted(scores, key=lambda number: (-scores[number], number))[:results]
        return [self._passage(number, words, characters) for number in best]

    def _weight(self, word: str) -> float:
        count = len(self._places[word])
        return math.log(1 + (len(self._documents) - count + 0.5) / (count + 0.5))

    def _passage(self, number: int, words: list[str], characters: int) -> str:
        title, text = self._documents[number]
        starts = (found.start() for word in words for found in _WORD.finditer(text) if found[0].lower() == word)
        start = next(starts, 0) if len(text) > characters else 0
        passage = " ".join(text[start : start + characters].split())
        return f"{title}: {passage}" if title else passage


@lru_cache(maxsize=4)
def load_index(path: Path) -> Index:
    """Reads the documents of a .jsonl or .parquet file once per process. UserError for a file without texts."""
    rows = []
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            rows = pyarrow.parquet.read_table(path).to_pylist()
        else:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"{path.name} cannot be read ({error}): give one JSON object a line, or Parquet") from error
    documents = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise UserError(f"{path.name} has no text in row {number}: each needs a field `text`, and may have `title`")
        documents.append((str(row.get("title") or ""), row["text"]))
    return Index(documents)


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
