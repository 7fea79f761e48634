"""Says whether a problem is, in other words or the same, one of a benchmark; and finds near-duplicates in one set.

Three rules, each of which a recipe can leave out (None or false):
- exact: equal after `normalise_problem`;
- ngrams: shared word n-grams (GPT-3, arXiv 2005.14165, appendix C: 13 words; s1, arXiv 2501.19393: 8 words);
- near_duplicates: Jaccard similarity of word shingles, candidates by MinHash (Broder 1997, datasketch).
Deviations:
1. One shared n-gram does not count, a share of all n-grams does: phrases such as "how many more apples does she
   have than" stand in problems that have nothing else in common.
2. What MinHash proposes is decided on the exact Jaccard similarity, so that the result is not an estimate.
3. `same_numbers`: two texts of one template with other numbers are two problems, if the recipe says so.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

# Weights of false alarms and misses. Alarms are checked exactly, so misses are what costs: with datasketch's even
# weights a pair at the threshold is found in 44 of 100 cases, with these in 93 (128 permutations, 0.7; 99.8 at 0.8).
MISSES_COUNT_MORE = (0.05, 0.95)

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "×": "*", "·": "*", "⋅": "*", "÷": "/", "≤": "<=", "≥": ">=", "’": "'"}
    | {sign: f"^{digit}" for digit, sign in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
)
_LATEX_LAYOUT = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|quad|qquad|text|textbf|textit|mathrm|mathbf|[bB]igg?[lr]?)(?![a-zA-Z])"
    r"|\\[][(),;:! $]"
)
_LATEX_SIGNS = (
    (re.compile(r"\\[dt]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(r"\\(?:times|cdot)(?![a-zA-Z])"), "*"),
    (re.compile(r"\\div(?![a-zA-Z])"), "/"),
    (re.compile(r"\\leq?(?![a-zA-Z])"), "<="),
    (re.compile(r"\\geq?(?![a-zA-Z])"), ">="),
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WORD = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)*|(?<=[\d)])!|[-+*/=<>^_%|()\[\]√]")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True)
class NgramRule:
    """Word n-grams in common."""

    words: int
    """Length of an n-gram, in words; a text with fewer words is compared by the other rules only."""
    shared_fraction: float
    """Hit from this share of the shorter text's different n-grams on, in (0, 1]."""

    def __post_init__(self) -> None:
        _require(self.words >= 1, "words must be at least 1")
        _require(0 < self.shared_fraction <= 1, "shared_fraction must be in (0, 1]")


@dataclass(frozen=True)
class NearDuplicateRule:
    """Jaccard similarity of the sets of word shingles."""

    shingle_words: int
    """Length of a shingle, in words; a shorter text is one shingle."""
    similarity: float
    """Near-duplicates from this Jaccard similarity on, in (0, 1)."""
    permutations: int
    """Hash functions of MinHash: more of them miss fewer pairs close to the threshold (datasketch: 128)."""
    same_numbers: bool
    """Only texts that hold the same numbers, each as often, are near-duplicates."""

    def __post_init__(self) -> None:
        _require(self.shingle_words >= 1, "shingle_words must be at least 1")
        _require(0 < self.similarity < 1, "similarity must be in (0, 1)")
        _require(16 <= self.permutations <= 1024, "permutations must be in 16..1024")


@dataclass(frozen=True)
class DecontaminationRules:
    """What counts as standing in a benchmark."""

    exact: bool
    """Equal normalised texts."""
    ngrams: NgramRule | None
    near_duplicates: NearDuplicateRule | None


@dataclass(frozen=True)
class BenchmarkProblem:
    """A problem that must not be trained on."""

    benchmark: str
    problem_id: str
    problem: str


@dataclass(frozen=True)
class Hit:
    """A benchmark's problem that a text stands in."""

    benchmark: str
    benchmark_problem_id: str
    benchmark_problem: str
    rule: str
    """`exact`, `ngrams` or `near_duplicates`: the first of them that applies."""
    overlap: float
    """1 for exact, else the share or similarity found."""


class Contamination:
    """An index of the benchmarks' problems."""

    def __init__(self, benchmarks: Iterable[BenchmarkProblem], rules: DecontaminationRules) -> None:
        self._problems = list(benchmarks)
        self._rules = rules
        self._exact: dict[str, list[int]] = defaultdict(list)
        self._ngrams: dict[str, list[int]] = defaultdict(list)
        self._ngram_counts: list[int] = []
        self._near = NearDuplicates(rules.near_duplicates) if rules.near_duplicates else None
        for index, benchmark in enumerate(self._problems):
            words = problem_words(benchmark.problem)
            self._exact[" ".join(words)].append(index)
            ngrams = _word_runs(words, rules.ngrams.words) if rules.ngrams else set()
            for ngram in ngrams:
                self._ngrams[ngram].append(index)
            self._ngram_counts.append(len(ngrams))
            if self._near:
                self._near.add(index, benchmark.problem)

    def find(self, problem: str) -> Hit | None:
        """The worst hit: exact before n-grams before near-duplicates, then the largest overlap; None when clean."""
        return next(iter(self.find_all(problem)), None)

    def find_all(self, problem: str) -> list[Hit]:
        """Every benchmark problem that is hit, each by its first rule; worst first, then in the benchmarks' order."""
        found: dict[int, tuple[str, float]] = {}
        words = problem_words(problem)
        if self._rules.exact:
            found = {index: ("exact", 1.0) for index in self._exact.get(" ".join(words), ())}
        if self._rules.ngrams:
            for index, shared in self._shared_ngrams(words, self._rules.ngrams):
                found.setdefault(index, ("ngrams", shared))
        if self._near:
            for index, similarity in self._near.find(problem):
                found.setdefault(index, ("near_duplicates", similarity))
        order = ("exact", "ngrams", "near_duplicates")
        ranked = sorted(found.items(), key=lambda hit: (order.index(hit[1][0]), -hit[1][1], hit[0]))
        return [self._hit(index, rule, overlap) for index, (rule, overlap) in ranked]

    def _shared_ngrams(self, words: Sequence[str], rule: NgramRule) -> list[tuple[int, float]]:
        ngrams = _word_runs(words, rule.words)
        shared = Counter(index for ngram in ngrams for index in self._ngrams.get(ngram, ()))
        shares = ((index, n / min(len(ngrams), self._ngram_counts[index])) for index, n in shared.items())
        return [(index, share) for index, share in shares if share >= rule.shared_fraction]

    def _hit(self, index: int, rule: str, overlap: float) -> Hit:
        benchmark = self._problems[index]
        return Hit(benchmark.benchmark, benchmark.problem_id, benchmark.problem, rule, overlap)


class NearDuplicates:
    """Texts that can be asked for the ones similar to another text."""

    def __init__(self, rule: NearDuplicateRule) -> None:
        from datasketch import MinHashLSH  # pulls in scipy: 0.8 s, for those who switch the rule on

        self._rule = rule
        self._index = MinHashLSH(rule.similarity, rule.permutations, weights=MISSES_COUNT_MORE)
        self._shingles: dict[int, tuple[frozenset[str], Counter[str]]] = {}

    def add(self, key: int, text: str) -> None:
        """Adds a text under a key of its own; ValueError when the key is taken."""
        self._shingles[key] = shingles, _ = self._read(text)
        self._index.insert(key, self._min_hash(shingles))

    def find(self, text: str) -> list[tuple[int, float]]:
        """Keys of the similar texts with their Jaccard similarity, most similar first, then by key."""
        shingles, numbers = self._read(text)
        similar = []
        for key in self._index.query(self._min_hash(shingles)):
            other, other_numbers = self._shingles[key]
            similarity = len(shingles & other) / max(1, len(shingles | other))
            if similarity >= self._rule.similarity and (
                not self._rule.same_numbers or numbers == other_numbers
            ):
                similar.append((key, similarity))
        return sorted(similar, key=lambda pair: (-pair[1], pair[0]))

    def _read(self, text: str) -> tuple[frozenset[str], Counter[str]]:
        words = problem_words(text)
        shingles = _word_runs(words, min(self._rule.shingle_words, max(1, len(words))))
        return frozenset(shingles), Counter(word for word in words if _NUMBER.fullmatch(word))

    def _min_hash(self, shingles: frozenset[str]) -> Any:
        from datasketch import MinHash

        sketch = MinHash(num_perm=self._rule.permutations, seed=1)
        if shingles:
            sketch.update_batch([shingle.encode() for shingle in shingles])
        return sketch


def normalise_problem(text: str) -> str:
    """The text's words, numbers and operators, lower case, joined by single blanks: equal for equal problems.

    Punctuation, LaTeX layout and delimiters, accents of typography and thousands separators go; operators and
    brackets stay (`3+4-2` is not `3-4+2`). "" for a text without any word.
    """
    return " ".join(problem_words(text))


@lru_cache(maxsize=16384)  # each rule asks for the same text again
def problem_words(text: str) -> tuple[str, ...]:
    """The words that `normalise_problem` joins; a number or an operator is a word."""
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).casefold().replace("\u2044", "/")
    for pattern, sign in _LATEX_SIGNS:
        text = pattern.sub(sign, text)
    text = _LATEX_LAYOUT.sub(" ", text)
    return tuple(_WORD.findall(_THOUSANDS.sub("", text)))


def _word_runs(words: Sequence[str], length: int) -> set[str]:
    return {" ".join(words[start : start + length]) for start in range(len(words) - length + 1)}


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise ValueError(message)
