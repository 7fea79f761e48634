"""Finds a problem behind changed numbers, names and wording, which n-grams miss.

A problem becomes its template: numbers, number words and names are taken out, function words too, and the stems of the
words that are left are weighed by how rare they are among the benchmarks' problems (inverse document frequency, Sparck
Jones 1972). Three ways to be hit, in the order of certainty:
- `template`, similarity 1: the templates are word for word the same (re-numbered, other names);
- `template`: the weighted Jaccard similarity of the stems reaches `similarity` (re-numbered, lightly reworded);
- `reworded`: it reaches only `reworded_similarity`, but the two texts hold the same quantities and share what is rare:
  stems, quantities, and quantities of the same thing ("20 miles"), which count for more than their parts.
Short texts have no template worth the name: the bounds below. This is a match of words, not of meaning: a paraphrase
without common words or numbers is not found (recall by kind: docs/curation.md).
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from stages.algorithms.problem_quantities import CARDINALS, quantities, without_ordinal_endings
from stages.algorithms.problem_text import fold_lookalikes, problem_words, renamed_words

FEWEST_TEMPLATE_WORDS = 8
"""Words, numbers and names not counted, that a text needs to be compared word for word."""
FEWEST_STEMS = 5
"""Different stems that both texts need to be compared by their stems alone."""
FEWEST_NUMBERS = 2
"""Different quantities that both texts need to be compared by them."""
NUMBERS_AGREE = 0.75
"""Weighted Jaccard similarity of quantities from which they count as the same: one may be left out."""
LEAST_EVIDENCE = 22.0
"""Summed weight (nats) of what two reworded texts share that they need: 2, 3 and 5 alone say nothing."""
EVIDENCE_FOR_TWO = 2.0
"""What two texts need more that share two quantities only."""
MEASURE_SHARE = 0.7
"""Weight of a shared quantity of the same thing, beside that of its parts, of which it is not independent."""
LEAST_STEM_EVIDENCE = 20.0
"""Summed weight (nats) of shared stems that a similar template needs: every puzzle about ages has age, old and year."""
MOST_COMMON = 500
"""A stem or number that stands in more benchmark problems proposes none of them: bounds the time of a search."""

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
class TemplateRule:
    """Templates in common: numbers and names abstracted."""

    similarity: float
    """Hit from this weighted Jaccard similarity of stems on, in (0, 1]; other numbers do not matter."""
    reworded_similarity: float
    """Where the numbers are the same, hit from this smaller similarity on, in (0, 1]."""

    def __post_init__(self) -> None:
        if not 0 < self.reworded_similarity <= self.similarity <= 1:
            raise ValueError("must be 0 < reworded_similarity <= similarity <= 1")


@dataclass(frozen=True)
class Template:
    """A problem without its numbers and names."""

    words: str
    """Words in order, `#` for a number and `@` for a name; "" where there are too few."""
    stems: frozenset[str]
    numbers: frozenset[float]
    """Values of the quantities, 1 left out."""
    measures: frozenset[tuple[float, str]]
    """Quantities with the stem of what they count."""


@lru_cache(maxsize=16384)
def read_template(text: str) -> Template:
    """The template of a problem. A capitalised word counts as a name when it also stands so inside a sentence."""
    text = fold_lookalikes(text)
    names = {name.casefold() for name in _INSIDE_SENTENCE.findall(text)} - set(_LOWER.findall(text))
    names &= {name.casefold() for name in _NAME.findall(text)}
    words = [_abstract(word, names) for word in renamed_words(text)]
    kept = (word.removesuffix("'s") for word in problem_words(text) if len(_abstract(word, names)) > 1)
    stems = {_stem(word) for word in kept if len(word) > 1 and word not in _FUNCTION_WORDS}
    is_long = sum(len(word) > 1 for word in words) >= FEWEST_TEMPLATE_WORDS
    counted = quantities(problem_words(without_ordinal_endings(text)))
    nouns = (
        (one.value, next((_stem(word) for word in one.following if _tells(word)), "")) for one in counted
    )
    return Template(
        " ".join(words) if is_long else "",
        frozenset(stems),
        frozenset(one.value for one in counted),
        frozenset((value, noun) for value, noun in nouns if noun),
    )


def _abstract(word: str, names: set[str]) -> str:
    """`#` for a number, `@` for a name, and any other word itself."""
    if word[0].isdigit() or word in _NUMBER_WORDS:
        return "#"
    return "@" if word.removesuffix("'s") in names else word


def _tells(word: str) -> bool:
    return word[0].isalpha() and word not in _FUNCTION_WORDS


def _stem(word: str) -> str:
    """Crude on purpose: `buys`, `buying` and `buy` meet, and nothing but the comparison sees the result."""
    ending = next((e for e in _ENDINGS if word.endswith(e) and len(word) - len(e) >= 3), "")
    stem = word.removesuffix(ending) + ("y" if ending == "ies" else "")
    if len(stem) > 3 and stem[-1] == stem[-2] and stem[-1] not in "sl":
        stem = stem[:-1]
    return stem[:-1] if stem.endswith("e") and len(stem) > 4 else stem


class TemplateIndex:
    """The templates of some texts, which can be asked for the ones behind another text."""

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
        own = read_template(text)
        found = {index: ("template", 1.0) for index in self._by_words.get(own.words, ())} if own.words else {}
        for index in sorted({*self._stems.holders(own.stems), *self._measures.holders(own.measures)}):
            other = self._templates[index]
            similarity = self._stems.similarity(own.stems, other.stems)
            if similarity >= self._rule.similarity and self._is_template(own, other):
                found.setdefault(index, ("template", similarity))
            elif similarity >= self._rule.reworded_similarity and self._is_reworded(own, other):
                found.setdefault(index, ("reworded", similarity))
        ranked = sorted(found.items(), key=lambda hit: (hit[1][0] != "template", -hit[1][1], hit[0]))
        return [(index, rule, similarity) for index, (rule, similarity) in ranked]

    def _is_template(self, own: Template, other: Template) -> bool:
        """Enough stems, and enough in common that is rare."""
        if min(len(own.stems), len(other.stems)) < FEWEST_STEMS:
            return False
        return self._stems.weight(own.stems & other.stems) >= LEAST_STEM_EVIDENCE

    def _is_reworded(self, own: Template, other: Template) -> bool:
        """The same quantities, and enough in common that is rare."""
        stems, numbers = own.stems & other.stems, own.numbers & other.numbers
        if min(len(own.numbers), len(other.numbers)) < FEWEST_NUMBERS or not stems:
            return False
        evidence = self._stems.weight(stems) + self._numbers.weight(numbers)
        evidence += MEASURE_SHARE * self._measures.weight(own.measures & other.measures)
        needed = LEAST_EVIDENCE + (EVIDENCE_FOR_TWO if len(numbers) <= FEWEST_NUMBERS else 0)
        return evidence >= needed and self._numbers.similarity(own.numbers, other.numbers) >= NUMBERS_AGREE


class _Weights:
    """How rare each feature is among some sets of features."""

    def __init__(self, sets: Iterable[frozenset]) -> None:
        self._holders: dict[object, list[int]] = defaultdict(list)
        count = 0
        for count, features in enumerate(sets, start=1):
            for feature in features:
                self._holders[feature].append(count - 1)
        self._weights = {feature: math.log((count + 1) / len(own)) for feature, own in self._holders.items()}
        self._unknown = math.log(count + 2)

    def weight(self, features: frozenset) -> float:
        """Summed weight, in nats. `fsum`: sets have no order, and plain float sums would depend on it."""
        return math.fsum(self._weights.get(feature, self._unknown) for feature in features)

    def similarity(self, features: frozenset, other: frozenset) -> float:
        """Weighted Jaccard similarity; 0 for two empty sets."""
        union = self.weight(features | other)
        return self.weight(features & other) / union if union else 0.0

    def holders(self, features: frozenset) -> list[int]:
        """Sets that share a feature that is not too common, in order."""
        found: Counter[int] = Counter()
        for feature in features:
            own = self._holders.get(feature, ())
            if len(own) <= MOST_COMMON:
                found.update(own)
        return sorted(found)
