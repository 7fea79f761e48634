"""Says whether a problem is, in other words or the same, one of a benchmark; and finds near-duplicates in one set.

Four rules, each of which a recipe can leave out (None or false):
- exact: equal after `normalise_problem`;
  (the other three do not see how the letters of formulas are named)
- ngrams: shared word n-grams (GPT-3, arXiv 2005.14165, appendix C: 13 words; s1, arXiv 2501.19393: 8 words);
- near_duplicates: Jaccard similarity of word shingles, candidates by MinHash (Broder 1997, datasketch);
- templates: numbers and names abstracted, wording compared (stages/algorithms/problem_templates.py).
Deviations:
1. One shared n-gram does not count, a share of all n-grams does: phrases such as "how many more apples does she
   have than" stand in problems that have nothing else in common.
2. What MinHash proposes is decided on the exact Jaccard similarity, so that the result is not an estimate.
3. `same_numbers`: two texts of one template with other numbers, signs or decisive words are two problems, if the
   recipe says so.
4. An n-gram that stands in more than 200 different benchmark problems is not looked up. It still counts as not shared.
Equal benchmark problems are compared once: a benchmark that repeats itself costs no more than one that does not.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stages.algorithms.decisive_words import decisive
from stages.algorithms.problem_templates import TemplateIndex, TemplateRule
from stages.algorithms.problem_text import (
    normalise_problem,
    problem_words,
    renamed_again,
    renamed_words,
    word_runs,
)

# Weights of false alarms and misses. Alarms are checked exactly, so misses are what costs: with datasketch's even
# weights a pair at the threshold is found in 44 of 100 cases, with these in 93 (128 permutations, 0.7; 99.8 at 0.8).
MISSES_COUNT_MORE = (0.05, 0.95)

MOST_COMMON_NGRAM = 200
"""An n-gram of more benchmark problems is boilerplate: it proposes none of them, which bounds the time of a search."""
MOST_CANDIDATES = 2_000
"""Texts that MinHash may propose for one text: a bound for sets in which all are alike and none alike enough."""

_DRAWING = re.compile(
    r"\[asy\](?:(?!\[asy\]).)*?\[/asy\]|\\begin\{tikzpicture\}(?:(?!\\begin\{tikz).)*?\\end\{tikzpicture\}",
    re.DOTALL,
)
_CAPITALS = re.compile(r"\b[A-Z]{5,}\b")
"""A word that a problem is about (`the letters of RADII`): shorter ones name points."""
MOST_PAIRS = 50
"""Pairs kept of one benchmark problem."""


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
    """Only texts with the same numbers, formulas and decisive words (`decisive_words.py`) are near-duplicates."""

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
    templates: TemplateRule | None

    @property
    def is_used(self) -> bool:
        """False when nothing is looked for."""
        return bool(self.exact or self.ngrams or self.near_duplicates or self.templates)


@dataclass(frozen=True)
class BenchmarkProblem:
    """A problem that must not be trained on."""

    benchmark: str
    problem_id: str
    problem: str
    revision: str = ""
    """Which version of the benchmark, as the recipe pins it."""


@dataclass(frozen=True)
class Hit:
    """A benchmark's problem that a text stands in."""

    benchmark: str
    benchmark_problem_id: str
    benchmark_problem: str
    rule: str
    """`exact`, `ngrams`, `near_duplicates`, `template` or `reworded`: the first of them that applies."""
    overlap: float
    """1 for exact, else the share or similarity found."""
    benchmark_revision: str

    def columns(self) -> dict[str, str | float]:
        """The benchmark's side of a row of the `contamination` table."""
        return dict(vars(self))


RULES = ("exact", "ngrams", "near_duplicates", "template", "reworded")
"""What a hit may be found by, worst first."""


class Contamination:
    """An index of the benchmarks' problems."""

    def __init__(self, benchmarks: Iterable[BenchmarkProblem], rules: DecontaminationRules) -> None:
        self._rules = rules
        self._problems: list[list[BenchmarkProblem]] = []  # of each different text
        self._exact: dict[str, int] = {}
        for benchmark in benchmarks:
            text = normalise_problem(benchmark.problem)
            if text not in self._exact:
                self._exact[text] = len(self._problems)
                self._problems.append([])
            self._problems[self._exact[text]].append(benchmark)
        texts = [same[0].problem for same in self._problems]
        self._ngrams, self._ngram_counts = _ngram_index(texts, rules.ngrams)
        self._near = NearDuplicates(rules.near_duplicates) if rules.near_duplicates else None
        self._templates = TemplateIndex(texts, rules.templates) if rules.templates else None
        for index, text in enumerate(texts if self._near else ()):
            self._near.add(index, text)

    def find(self, problem: str) -> Hit | None:
        """The worst hit: in the order of `RULES`, then the largest overlap; None when clean."""
        return next(iter(self.find_all(problem)), None)

    def find_all(self, problem: str) -> list[Hit]:
        """Every benchmark problem that is hit, each by its first rule; worst first, then in the benchmarks' order."""
        found: dict[int, tuple[str, float]] = {}
        words = problem_words(problem)
        if self._rules.exact and words and (same := self._exact.get(" ".join(words))) is not None:
            found[same] = ("exact", 1.0)
        if self._rules.ngrams:
            for index, shared in self._shared_ngrams(problem, self._rules.ngrams):
                found.setdefault(index, ("ngrams", shared))
        if self._near:
            for index, similarity in self._near.find(problem):
                found.setdefault(index, ("near_duplicates", similarity))
        if self._templates:
            for index, rule, similarity in self._templates.find(problem):
                found.setdefault(index, (rule, similarity))
        ranked = sorted(found.items(), key=lambda hit: (RULES.index(hit[1][0]), -hit[1][1], hit[0]))
        return [
            Hit(own.benchmark, own.problem_id, own.problem, rule, overlap, own.revision)
            for index, (rule, overlap) in ranked
            for own in self._problems[index]
        ]

    def _shared_ngrams(self, problem: str, rule: NgramRule) -> list[tuple[int, float]]:
        ngrams = _ngrams(problem, rule.words)
        shared = Counter(index for ngram in ngrams for index in self._ngrams.get(ngram, ()))
        shares = ((index, n / min(len(ngrams), self._ngram_counts[index])) for index, n in shared.items())
        return [(index, share) for index, share in shares if share >= rule.shared_fraction]


class HitPairs:
    """Rows of the `contamination` table, at most `MOST_PAIRS` of one benchmark problem: a benchmark full of equal
    problems cannot fill the disk."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.by_rule: Counter[str] = Counter()
        """All pairs, those beyond the limit too."""
        self._of_problem: Counter[tuple[str, str]] = Counter()

    def add(self, problem: Mapping[str, Any], hits: Iterable[Hit]) -> None:
        """Adds the hits of one problem, given as its problem_id, source and text."""
        for hit in hits:
            self.by_rule[hit.rule] += 1
            key = (hit.benchmark, hit.benchmark_problem_id)
            self._of_problem[key] += 1
            if self._of_problem[key] <= MOST_PAIRS:
                self.rows.append({**problem, **hit.columns()})


def _ngram_index(texts: Sequence[str], rule: NgramRule | None) -> tuple[dict[str, list[int]], list[int]]:
    """Texts by n-gram, boilerplate left out, and the number of n-grams of each text."""
    index: dict[str, list[int]] = defaultdict(list)
    counts = []
    for number, text in enumerate(texts):
        ngrams = _ngrams(text, rule.words) if rule else set()
        counts.append(len(ngrams))
        for ngram in ngrams:
            index[ngram].append(number)
    return {ngram: own for ngram, own in index.items() if len(own) <= MOST_COMMON_NGRAM}, counts


def _ngrams(text: str, length: int) -> set[str]:
    """The word n-grams, in each of which letters are named anew: what stands before does not matter.

    Drawings are left out: with other letters, the code of one right triangle is that of another.
    """
    words = renamed_words(_DRAWING.sub(" ", text))
    return {renamed_again(words[start : start + length]) for start in range(len(words) - length + 1)}


class NearDuplicates:
    """Texts that can be asked for the ones similar to another text."""

    def __init__(self, rule: NearDuplicateRule) -> None:
        from datasketch import MinHashLSH  # pulls in scipy: 0.8 s, for those who switch the rule on

        self._rule = rule
        self._index = MinHashLSH(rule.similarity, rule.permutations, weights=MISSES_COUNT_MORE)
        self._shingles: dict[int, tuple[frozenset[str], Counter[str]]] = {}

    def add(self, key: int, text: str) -> None:
        """Adds a text under a key of its own; ValueError when the key is taken."""
        self._shingles[key] = shingles, numbers = self._read(text)
        self._index.insert(key, self._min_hash(shingles, numbers))

    def find(self, text: str) -> list[tuple[int, float]]:
        """Keys of the similar texts with their Jaccard similarity, most similar first, then by key."""
        shingles, numbers = self._read(text)
        similar = []
        for key in sorted(self._index.query(self._min_hash(shingles, numbers)))[:MOST_CANDIDATES]:
            other, other_numbers = self._shingles[key]
            similarity = len(shingles & other) / max(1, len(shingles | other))
            if similarity >= self._rule.similarity and (
                not self._rule.same_numbers or numbers == other_numbers
            ):
                similar.append((key, similarity))
        return sorted(similar, key=lambda pair: (-pair[1], pair[0]))

    def _read(self, text: str) -> tuple[frozenset[str], Counter[str]]:
        words = renamed_words(text)
        shingles = word_runs(words, min(self._rule.shingle_words, max(1, len(words))))
        if not self._rule.same_numbers:
            return frozenset(shingles), Counter()
        return frozenset(shingles), decisive(words) + Counter(_CAPITALS.findall(text))

    def _min_hash(self, shingles: frozenset[str], numbers: Counter[str]) -> Any:
        from datasketch import MinHash

        sketch = MinHash(num_perm=self._rule.permutations, seed=1)
        if shingles:
            sketch.update_batch([shingle.encode() for shingle in shingles])
        if self._rule.same_numbers:
            # Other buckets for other numbers and formulas, or texts of one template would all propose each other
            written = " ".join(sorted(numbers.elements())).encode()
            sketch.hashvalues = sketch.hashvalues ^ int.from_bytes(
                hashlib.sha256(written).digest()[:4], "big"
            )
        return sketch


def source_revision(origin: Mapping[str, Any]) -> str:
    """Which version of a source a recipe pins (`sources.<name>.from`): a commit, a file's hash, a generator's seed."""
    pinned = [f"{name} {origin[name]}" for name in ("revision", "sha256", "seed") if name in origin]
    return pinned[0] if pinned else f"kind {origin.get('kind', 'unknown')}"


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise ValueError(message)
