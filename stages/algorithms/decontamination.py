"""Finds problems that a benchmark contains, verbatim or reworded, and near-duplicates within one set.

Four rules, each of which a recipe can switch off (None or false):
- exact: equal after `normalise_problem`, or whole sentences of the text, as where "Put your final answer in a box."
  follows;
- ngrams: shared word n-grams (GPT-3, arXiv 2005.14165, appendix C: 13 words; s1, arXiv 2501.19393: 8 words);
- near_duplicates: Jaccard similarity of word shingles, candidates by MinHash (Broder 1997, datasketch);
- templates: compares the wording without numbers and names. It finds changed numbers, names and wording, which n-grams
  miss.
The last three ignore the names of letters in formulas. Read `Contamination.find_all` first; each rule has a
class or a section below it.
Deviations:
1. One shared n-gram is not enough; a share of all n-grams is. Phrases such as "how many more apples does she have
   than" occur in problems that have nothing else in common.
2. MinHash only proposes pairs. The exact Jaccard similarity decides, so the result is not an estimate.
3. `same_numbers`: if the recipe sets it, two texts of one template with different numbers, signs or decisive words are
   two problems.
4. An n-gram that occurs in more than 200 different benchmark problems is not looked up. It still counts as not shared.
Equal benchmark problems are compared once: a benchmark that repeats itself takes no more time.

A template is a problem without numbers, number words, names and function words. The stems of its words are weighted by
their rarity among the benchmarks' problems (inverse document frequency, Sparck Jones 1972). A problem can be hit
in three ways, in the order of certainty:
- `template`, similarity 1: the templates are word for word the same (re-numbered, other names);
- `template`: the weighted Jaccard similarity of the stems reaches `similarity` (re-numbered, lightly reworded);
- `reworded`: it reaches only `reworded_similarity`, but the two texts contain the same quantities and share rare
  features. Features are stems, quantities, and quantities of the same thing ("20 miles"). The last count for more than
  their parts.
Short texts have no useful template: see the bounds below. The rules match words, not meaning: a paraphrase without
common words or numbers is not found (recall by kind: docs/explanation/curation.md).

Decisive words: `x + y = 10` and `x - y = 10`, "a perfect square" and "a perfect cube" differ in one word of many, and
are two problems. Adding "at a constant speed" adds four words, and the problem is the same. So the rule compares
numbers and formulas with their signs, and words that name an operation, a quantity, an extreme or a direction.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stages.algorithms.problem_text import (
    CARDINALS,
    fold_lookalikes,
    is_letter,
    normalise_problem,
    problem_words,
    quantities,
    renamed_again,
    renamed_words,
    without_ordinal_endings,
    word_runs,
)

# Weights of false alarms and misses. Alarms are checked exactly, so only misses matter. With datasketch's even weights
# a pair at the threshold is found in 44 of 100 cases, with these in 93 (128 permutations, 0.7; 99.8 at 0.8).
MISSES_COUNT_MORE = (0.05, 0.95)
MOST_COMMON_NGRAM = 200
"""An n-gram in more benchmark problems is boilerplate: it proposes none of them, which bounds the time of a search."""
MOST_CANDIDATES = 2_000
"""Most texts that MinHash may propose for one text. It limits sets whose texts are all similar, but not enough."""
# The inner lookahead keeps an unclosed [asy] from swallowing the text up to another drawing's end.
_DRAWING = re.compile(
    r"\[asy\](?:(?!\[asy\]).)*?\[/asy\]|\\begin\{tikzpicture\}(?:(?!\\begin\{tikz).)*?\\end\{tikzpicture\}", re.DOTALL
)
_SENTENCE_BORDER = re.compile(r"(?<=[.?!:;])[\"')\]}*$]*\s+|\n")
FEWEST_CONTAINED_WORDS = 4
"""Words of the shortest problem that is looked for inside a text."""
_CAPITALS = re.compile(r"\b[A-Z]{5,}\b")
"""Shortest word that a problem can be about (`the letters of RADII`): shorter ones name points."""
MOST_PAIRS = 50
"""Most pairs kept for one benchmark problem."""


@dataclass(frozen=True)
class NgramRule:
    """Word n-grams in common."""

    words: int
    """Length of an n-gram, in words; a text with fewer words is compared by the other rules only."""
    shared_fraction: float
    """A hit needs at least this share of the shorter text's different n-grams, in (0, 1]."""

    def __post_init__(self) -> None:
        _require(self.words >= 1, "words must be at least 1")
        _require(0 < self.shared_fraction <= 1, "shared_fraction must be in (0, 1]")


@dataclass(frozen=True)
class NearDuplicateRule:
    """Jaccard similarity of the sets of word shingles."""

    shingle_words: int
    """Length of a shingle, in words; a shorter text is one shingle."""
    similarity: float
    """A near-duplicate needs at least this Jaccard similarity, in (0, 1)."""
    permutations: int
    """Hash functions of MinHash: more of them miss fewer pairs close to the threshold (datasketch: 128)."""
    same_numbers: bool
    """Only texts with the same numbers, formulas and decisive words (`decisive`) are near-duplicates."""

    def __post_init__(self) -> None:
        _require(self.shingle_words >= 1, "shingle_words must be at least 1")
        _require(0 < self.similarity < 1, "similarity must be in (0, 1)")
        _require(16 <= self.permutations <= 1024, "permutations must be in 16..1024")


@dataclass(frozen=True)
class TemplateRule:
    """Templates in common: numbers and names abstracted."""

    similarity: float
    """A hit needs at least this weighted Jaccard similarity of stems, in (0, 1]; the numbers may differ."""
    reworded_similarity: float
    """Where the numbers are the same, a hit needs only this smaller similarity, in (0, 1]."""

    def __post_init__(self) -> None:
        if not 0 < self.reworded_similarity <= self.similarity <= 1:
            raise ValueError("must be 0 < reworded_similarity <= similarity <= 1")


@dataclass(frozen=True)
class DecontaminationRules:
    """The rules by which a text counts as contained in a benchmark."""

    exact: bool
    """Equal normalised texts."""
    ngrams: NgramRule | None
    near_duplicates: NearDuplicateRule | None
    templates: TemplateRule | None

    @property
    def is_used(self) -> bool:
        """False when all rules are off."""
        return bool(self.exact or self.ngrams or self.near_duplicates or self.templates)


@dataclass(frozen=True)
class BenchmarkProblem:
    """A problem that must not be trained on."""

    benchmark: str
    problem_id: str
    problem: str
    revision: str = ""
    """Version of the benchmark, as the recipe pins it."""


@dataclass(frozen=True)
class Hit:
    """A benchmark problem that a text contains."""

    benchmark: str
    benchmark_problem_id: str
    benchmark_problem: str
    rule: str
    """`exact`, `ngrams`, `near_duplicates`, `template` or `reworded`: the first of them that applies."""
    overlap: float
    """1 for exact, else the share or similarity."""
    benchmark_revision: str

    def columns(self) -> dict[str, str | float]:
        """The benchmark's side of a row of the `contamination` table."""
        return dict(vars(self))


RULES = ("exact", "ngrams", "near_duplicates", "template", "reworded")
"""The rules that can produce a hit, worst first."""


class Contamination:
    """An index of the benchmarks' problems."""

    def __init__(self, benchmarks: Iterable[BenchmarkProblem], rules: DecontaminationRules) -> None:
        self._rules = rules
        self._problems: list[list[BenchmarkProblem]] = []  # of each different text
        self._exact: dict[str, int] = {}
        for benchmark in benchmarks:
            # One entry for each different text, however many benchmarks hold it.
            text = normalise_problem(benchmark.problem)
            if text not in self._exact:
                self._exact[text] = len(self._problems)
                self._problems.append([])
            self._problems[self._exact[text]].append(benchmark)
        self._lengths: dict[tuple[str, ...], set[int]] = defaultdict(set)
        for words in map(str.split, self._exact if rules.exact else ()):
            # Without a number or a sign the problem is a question that many texts end with.
            if len(words) >= FEWEST_CONTAINED_WORDS and not all(map(str.isalpha, words)):
                self._lengths[tuple(words[:FEWEST_CONTAINED_WORDS])].add(len(words))
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
        """Returns every benchmark problem that is hit, by its first rule; worst first, then in their order."""
        hits: dict[int, tuple[str, float]] = {}
        words = problem_words(problem)
        if self._rules.exact and words and (same := self._exact.get(" ".join(words))) is not None:
            # The rules run from the surest to the least sure, and `setdefault` keeps the first that applies.
            hits[same] = ("exact", 1.0)
        for index in self._whole_sentences(problem, words):
            hits.setdefault(index, ("exact", 1.0))
        if self._rules.ngrams:
            for index, shared in self._shared_ngrams(problem, self._rules.ngrams):
                hits.setdefault(index, ("ngrams", shared))
        if self._near:
            for index, similarity in self._near.find(problem):
                hits.setdefault(index, ("near_duplicates", similarity))
        if self._templates:
            for index, rule, similarity in self._templates.find(problem):
                hits.setdefault(index, (rule, similarity))
        ranked = sorted(hits.items(), key=lambda hit: (RULES.index(hit[1][0]), -hit[1][1], hit[0]))
        return [
            Hit(original.benchmark, original.problem_id, original.problem, rule, overlap, original.revision)
            for index, (rule, overlap) in ranked
            for original in self._problems[index]
        ]

    def _whole_sentences(self, problem: str, words: Sequence[str]) -> Iterator[int]:
        """Finds the benchmark problems that are one or more whole sentences of a text."""
        heads = zip(*(words[at:] for at in range(FEWEST_CONTAINED_WORDS)), strict=False)
        if not any(head in self._lengths for head in heads):  # nearly all texts
            return
        words, borders = [], {0}
        for piece in _SENTENCE_BORDER.split(problem):
            words += problem_words(piece)
            borders.add(len(words))
        for start in sorted(borders):
            for length in self._lengths.get(tuple(words[start : start + FEWEST_CONTAINED_WORDS]), ()):
                end = start + length
                if end in borders and (found := self._exact.get(" ".join(words[start:end]))) is not None:
                    yield found

    def _shared_ngrams(self, problem: str, rule: NgramRule) -> list[tuple[int, float]]:
        ngrams = _ngrams(problem, rule.words)
        shared = Counter(index for ngram in ngrams for index in self._ngrams.get(ngram, ()))
        # Share of the shorter text: so a benchmark problem inside a long page is found, too.
        shares = ((index, n / min(len(ngrams), self._ngram_counts[index])) for index, n in shared.items())
        return [(index, share) for index, share in shares if share >= rule.shared_fraction]


class HitPairs:
    """Rows of the `contamination` table, at most `MOST_PAIRS` for one benchmark problem: so a benchmark full of equal
    problems cannot fill the disk."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.by_rule: Counter[str] = Counter()
        """All pairs, including those beyond the limit."""
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
    """Texts by n-gram, without boilerplate, and the number of n-grams of each text."""
    index: dict[str, list[int]] = defaultdict(list)
    counts = []
    for number, text in enumerate(texts):
        # Counted before boilerplate is dropped, so that it still counts as not shared.
        ngrams = _ngrams(text, rule.words) if rule else set()
        counts.append(len(ngrams))
        for ngram in ngrams:
            index[ngram].append(number)
    return {ngram: holders for ngram, holders in index.items() if len(holders) <= MOST_COMMON_NGRAM}, counts


def _ngrams(text: str, length: int) -> set[str]:
    """Returns the word n-grams. Letters are renamed in each n-gram, so the text before it does not matter.

    Drawings are left out: with its letters renamed, the code of one right triangle equals that of another.
    """
    words = renamed_words(_DRAWING.sub(" ", text))
    return {renamed_again(words[start : start + length]) for start in range(len(words) - length + 1)}


class NearDuplicates:
    """An index of texts, searched for those similar to another text."""

    def __init__(self, rule: NearDuplicateRule) -> None:
        from datasketch import MinHashLSH  # imported here: it loads scipy, 0.8 s, which only users of this rule need

        self._rule = rule
        self._index = MinHashLSH(rule.similarity, rule.permutations, weights=MISSES_COUNT_MORE)
        self._shingles: dict[int, tuple[frozenset[str], Counter[str]]] = {}

    def add(self, key: int, text: str) -> None:
        """Adds a text under its key; ValueError when the key is taken."""
        self._shingles[key] = shingles, numbers = self._read(text)
        self._index.insert(key, self._min_hash(shingles, numbers))

    def find(self, text: str) -> list[tuple[int, float]]:
        """Returns the keys of similar texts with their Jaccard similarity, most similar first, then by key."""
        shingles, numbers = self._read(text)
        similar = []
        # Sorted: the order of the index's sets differs between runs.
        for key in sorted(self._index.query(self._min_hash(shingles, numbers)))[:MOST_CANDIDATES]:
            other, other_numbers = self._shingles[key]
            # MinHash only proposes: the exact similarity decides.
            similarity = len(shingles & other) / max(1, len(shingles | other))
            if similarity >= self._rule.similarity and (not self._rule.same_numbers or numbers == other_numbers):
                similar.append((key, similarity))
        return sorted(similar, key=lambda pair: (-pair[1], pair[0]))

    def _read(self, text: str) -> tuple[frozenset[str], Counter[str]]:
        words = renamed_words(text)
        # A text shorter than a shingle is one shingle.
        shingles = word_runs(words, min(self._rule.shingle_words, max(1, len(words))))
        if not self._rule.same_numbers:
            return frozenset(shingles), Counter()
        return frozenset(shingles), decisive(words) + Counter(_CAPITALS.findall(text))

    def _min_hash(self, shingles: frozenset[str], numbers: Counter[str]) -> Any:
        from datasketch import MinHash

        # A fixed seed: the same texts meet in each run.
        sketch = MinHash(num_perm=self._rule.permutations, seed=1)
        if shingles:
            sketch.update_batch([shingle.encode() for shingle in shingles])
        if self._rule.same_numbers:
            # Separate buckets for different numbers and formulas, or texts of one template would all propose each other
            written = " ".join(sorted(numbers.elements())).encode()
            sketch.hashvalues = sketch.hashvalues ^ int.from_bytes(hashlib.sha256(written).digest()[:4], "big")
        return sketch


def source_revision(origin: Mapping[str, Any]) -> str:
    """Which version of a source a recipe pins (`sources.<name>.from`): a commit, a file's hash, a generator's seed."""
    pinned = [f"{name} {origin[name]}" for name in ("revision", "sha256", "seed") if name in origin]
    return pinned[0] if pinned else f"kind {origin.get('kind', 'unknown')}"


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise ValueError(message)


# --------------------------------------------------------------------------------------------------- templates
# The thresholds below were set on 44 rewordings and measured on others, written separately
# (docs/explanation/curation.md).
FEWEST_TEMPLATE_WORDS = 8
"""A text needs this many words, without numbers and names, to be compared verbatim."""
FEWEST_STEMS = 5
"""Both texts need this many different stems to be compared by their stems alone."""
FEWEST_NUMBERS = 2
"""Both texts need this many different quantities to be compared by them."""
NUMBERS_AGREE = 0.75
"""From this weighted Jaccard similarity on, quantities count as the same: one may be left out."""
LEAST_EVIDENCE = 22.0
"""Two reworded texts must share features of this summed weight (nats): sharing only 2, 3 and 5 says nothing."""
EVIDENCE_FOR_TWO = 2.0
"""Additional weight for two texts that share only two quantities."""
MEASURE_SHARE = 0.7
"""Weight of a shared quantity of the same thing, added to that of its parts, of which it is not independent."""
LEAST_STEM_EVIDENCE = 20.0
"""Summed weight (nats) of shared stems that a similar template needs: every puzzle about ages has age, old and year."""
MOST_COMMON = 500
"""A stem or number in more benchmark problems than this proposes none of them, which bounds the time of a search."""
_NAME = re.compile(r"\b[A-Z][a-z]+\b")
_LOWER = re.compile(r"\b[a-z]+")
_INSIDE_SENTENCE = re.compile(r"(?<=[a-z0-9,;)] )[A-Z][a-z]+\b")
_NUMBER_WORDS = CARDINALS | {
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "dozen": 12,
    "twice": 2,
    "double": 2,
    "thrice": 3,
    "triple": 3,
    "half": 0.5,
    "quarter": 0.25,
    "once": 1,
    "first": 1,
    "second": 2,
    "third": 3,
    "fourth": 4,
    "fifth": 5,
}
"""Words that a template writes as `#`."""
_UNTELLING = (
    "a an the of to in on at by for from with and or but if then than as is are was were be been being has have had "
    "do does did will would can could may must shall should it its he she they them his her their him hers this that "
    "these those there here how what which who whom whose when where why many much more most some any all each every "
    "both not no so such only also just very into out up down off over under about after before during per i you your "
    "we our my me us now total number find value get got give gives given gave go goes went make makes made take "
    "takes took put altogether compute calculate determine let following answer express suppose "
    "begin end pmatrix bmatrix vmatrix matrix align array cases frac sqrt circ cdots mathbf overline"
)
_FUNCTION_WORDS = frozenset(_UNTELLING.split())
"""English function words, words of any question, and LaTeX that says nothing about the problem."""
_ENDINGS = ("ings", "ing", "edly", "ed", "ies", "es", "s", "ly", "'s")


@dataclass(frozen=True)
class Template:
    """A problem without its numbers and names."""

    words: str
    """Words in order, `#` for a number and `@` for a name; "" where there are too few."""
    stems: frozenset[str]
    numbers: frozenset[float]
    """Values of the quantities, without 1."""
    measures: frozenset[tuple[float, str]]
    """Quantities with the stem of what they count."""


@lru_cache(maxsize=16384)
def read_template(text: str) -> Template:
    """Returns the template of a problem. A capitalised word is a name if it also occurs so inside a sentence."""
    text = fold_lookalikes(text)
    # Inside a sentence a capital marks a name; a word that also occurs in lower case is no name.
    names = {name.casefold() for name in _INSIDE_SENTENCE.findall(text)} - set(_LOWER.findall(text))
    names &= {name.casefold() for name in _NAME.findall(text)}
    words = [_abstract(word, names) for word in renamed_words(text)]
    # Numbers and names are one character after `_abstract`, as are single letters: none of them has a stem.
    kept = (word.removesuffix("'s") for word in problem_words(text) if len(_abstract(word, names)) > 1)
    stems = {_stem(word) for word in kept if len(word) > 1 and word not in _FUNCTION_WORDS}
    is_long = sum(len(word) > 1 for word in words) >= FEWEST_TEMPLATE_WORDS
    counted = quantities(problem_words(without_ordinal_endings(text)))
    nouns = ((one.value, next((_stem(word) for word in one.following if _tells(word)), "")) for one in counted)
    return Template(
        " ".join(words) if is_long else "",
        frozenset(stems),
        frozenset(one.value for one in counted),
        frozenset((value, noun) for value, noun in nouns if noun),
    )


def _abstract(word: str, names: set[str]) -> str:
    """Returns `#` for a number, `@` for a name, and any other word unchanged."""
    if word[0].isdigit() or word in _NUMBER_WORDS:
        return "#"
    return "@" if word.removesuffix("'s") in names else word


def _tells(word: str) -> bool:
    return word[0].isalpha() and word not in _FUNCTION_WORDS


def _stem(word: str) -> str:
    """Deliberately crude: `buys`, `buying` and `buy` get one stem, and only the comparison uses the result."""
    ending = next((e for e in _ENDINGS if word.endswith(e) and len(word) - len(e) >= 3), "")
    stem = word.removesuffix(ending) + ("y" if ending == "ies" else "")
    # `stopped` and `stop`; but `ball` and `glass` keep their double letter.
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "sl":
        stem = stem[:-1]
    return stem[:-1] if stem.endswith("e") and len(stem) > 4 else stem


class TemplateIndex:
    """An index of texts' templates, searched for texts similar to another."""

    def __init__(self, texts: Sequence[str], rule: TemplateRule) -> None:
        self._rule = rule
        self._templates = [read_template(text) for text in texts]
        self._by_words: dict[str, list[int]] = defaultdict(list)
        self._stems = _Weights(template.stems for template in self._templates)
        self._numbers = _Weights(template.numbers for template in self._templates)
        self._measures = _Weights(template.measures for template in self._templates)
        for index, template in enumerate(self._templates):
            if template.words:
                self._by_words[template.words].append(index)

    def find(self, text: str) -> list[tuple[int, str, float]]:
        """(index, rule, similarity) of the texts that are hit; `template` first, most similar first, then by index."""
        template = read_template(text)
        # Word for word the same template, before any weights.
        hits = {index: ("template", 1.0) for index in self._by_words.get(template.words, ())} if template.words else {}
        # Candidates share at least one rare stem or measure: others cannot reach the thresholds.
        for index in sorted({*self._stems.holders(template.stems), *self._measures.holders(template.measures)}):
            other = self._templates[index]
            similarity = self._stems.similarity(template.stems, other.stems)
            if similarity >= self._rule.similarity and self._is_template(template, other):
                hits.setdefault(index, ("template", similarity))
            elif similarity >= self._rule.reworded_similarity and self._is_reworded(template, other):
                hits.setdefault(index, ("reworded", similarity))
        ranked = sorted(hits.items(), key=lambda hit: (hit[1][0] != "template", -hit[1][1], hit[0]))
        return [(index, rule, similarity) for index, (rule, similarity) in ranked]

    def _is_template(self, template: Template, other: Template) -> bool:
        """Whether two templates have enough stems, and share enough rare ones."""
        if min(len(template.stems), len(other.stems)) < FEWEST_STEMS:
            return False
        return self._stems.weight(template.stems & other.stems) >= LEAST_STEM_EVIDENCE

    def _is_reworded(self, template: Template, other: Template) -> bool:
        """Whether two templates have the same quantities, and share enough rare features."""
        stems, numbers = template.stems & other.stems, template.numbers & other.numbers
        if min(len(template.numbers), len(other.numbers)) < FEWEST_NUMBERS or not stems:
            return False
        evidence = self._stems.weight(stems) + self._numbers.weight(numbers)
        evidence += MEASURE_SHARE * self._measures.weight(template.measures & other.measures)
        # Two numbers in common happen by chance more easily than three.
        needed = LEAST_EVIDENCE + (EVIDENCE_FOR_TWO if len(numbers) <= FEWEST_NUMBERS else 0)
        return evidence >= needed and self._numbers.similarity(template.numbers, other.numbers) >= NUMBERS_AGREE


class _Weights:
    """The rarity of each feature among several sets of features."""

    def __init__(self, sets: Iterable[frozenset]) -> None:
        self._holders: dict[object, list[int]] = defaultdict(list)
        count = 0
        for count, features in enumerate(sets, start=1):
            for feature in features:
                self._holders[feature].append(count - 1)
        self._weights = {feature: math.log((count + 1) / len(own)) for feature, own in self._holders.items()}
        # A feature that no benchmark problem has is rarer than any feature that one problem has.
        self._unknown = math.log(count + 2)

    def weight(self, features: frozenset) -> float:
        """Summed weight, in nats. `fsum`: sets have no order, and plain float sums would depend on it."""
        return math.fsum(self._weights.get(feature, self._unknown) for feature in features)

    def similarity(self, features: frozenset, other: frozenset) -> float:
        """Weighted Jaccard similarity; 0 for two empty sets."""
        union = self.weight(features | other)
        return self.weight(features & other) / union if union else 0.0

    def holders(self, features: frozenset) -> list[int]:
        """Returns the sets that share a feature that is not too common, in order."""
        counts: Counter[int] = Counter()
        for feature in features:
            sets = self._holders.get(feature, ())
            if len(sets) <= MOST_COMMON:
                counts.update(sets)
        return sorted(counts)


# ---------------------------------------------------------------------------------------------- decisive words
_OPERATIONS = """\
sum difference product quotient remainder ratio square cube root power factor factorial multiple divisor
reciprocal add subtract multiply divide sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp
sqrt frac binom gcd lcm floor ceil lfloor lceil mod max min inf sup lim int prod pm mp cup cap subset cdot times
union intersection complement derivative integral determinant transpose inverse conjugate real imaginary"""
_QUANTITIES = """\
area perimeter circumference volume surface radius diameter side diagonal hypotenuse median altitude bisector
length width height depth weight angle slope intercept vertex center mean mode range average variance deviation
speed distance time rate cost price profit loss discount interest probability permutation combination percent
fraction numerator denominator digit term coefficient degree"""
_KINDS = """\
odd even prime composite positive negative nonnegative nonzero integer rational irrational real complex circle
triangle rectangle rhombus parallelogram trapezoid pentagon hexagon octagon cone cylinder sphere pyramid prism
ellipse parabola hyperbola equilateral isosceles scalene right acute obtuse parallel perpendicular inscribed
circumscribed arithmetic geometric harmonic increasing decreasing consecutive distinct identical different same
ordered"""
_COMPARISONS = """\
maximum minimum maximal minimal largest smallest greatest least biggest most fewest highest lowest longest
shortest first last more less fewer greater smaller larger longer shorter older younger faster slower higher
lower above below before after between inside outside left right up down north south east west clockwise
counterclockwise increase decrease gain lose gave get buy sell win earn spend remaining twice half double triple
third quarter thrice dozen hundred thousand million not no never none neither without except all any only every
exactly"""
_DECISIVE = frozenset(" ".join((_OPERATIONS, _QUANTITIES, _KINDS, _COMPARISONS)).split())
_IN_FORMULAS = frozenset("+-*/=<>^_%|()[]!√") | {"<=", ">="}
_OPEN = frozenset("-+*/=<>^_|([")


def decisive(words: Sequence[str]) -> Counter[str]:
    """The numbers and formulas of `renamed_words`, each as often as it occurs, and each decisive word once.

    A formula is a run of numbers, letters and signs that holds a number or a letter.
    """
    counts: Counter[str] = Counter()
    run: list[str] = []
    # An empty word at the end closes the last run.
    for word in [*words, ""]:
        # Part of a formula: the run continues.
        if word[:1].isdigit() or word in _IN_FORMULAS or (word and is_letter(word)):
            run.append(word)
            continue
        _count_run(run, counts)
        run = []
        if word in CARDINALS:
            counts[f"{CARDINALS[word]:g}"] += 1
        elif base := next((form for form in _bases(word) if form in _DECISIVE), ""):
            counts[base] = 1
    return counts


def _count_run(run: list[str], counts: Counter[str]) -> None:
    while run and run[-1] in _OPEN:  # a hyphen of `6-inch`, a bracket of a remark
        run.pop()
    if any(word[0].isdigit() or is_letter(word) for word in run):
        counts[" ".join(run)] += 1


def _bases(word: str) -> list[str]:
    """Returns the word, and the words of which it may be a plural or past form."""
    endings = ("s", "es", "d", "ed", "ing")
    return [word, *(word.removesuffix(end) for end in endings if word.endswith(end) and len(word) > len(end) + 2)]
