r"""Answers that only look correct, and correct ones in unusual forms: unearned_answers.tsv, filled at random, by class.

Classes of UNEARNED must never be judged correct; those of EARNED are correct and must be. Each gives (gold, response).
In the table «...» is an expression of the names of `_names`, and ⏎ a line break. The classes:

- one_sided: an expression and one that equals it only on one side of a kink or a pole, or where both are defined.
- letters: the letters of a word, a figure or a sequence of choices in another order; drawn below, without a table.
- bases: the same digits in another base, or without one.
- left_over: a second value, a condition or an operation in words around the gold answer.
- prose: a marker, and then a sentence that contains the gold number with another meaning.
- chains: equations in a row whose parts do not agree.
- restated: the problem itself instead of its value.
- owed: correct answers in forms that a reader accepts.
- towers: numbers that no computer can write out, with golds of every kind.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

Draw = random.Random
Pair = tuple[str, str]
TABLE = Path(__file__).with_name("unearned_answers.tsv")
_BOXES = (r"\boxed{%s}", r"So we get $\boxed{%s}$.", r"\[ \boxed{%s} \]", "The answer is $%s$.")
_AROUND_TOWERS = ("%s", "%s+1", r"\frac{%s}{2}", r"\sqrt{2}+%s", "2, %s")
_ANY_GOLDS = (r"\sqrt 2", "7", "x+1", r"\pi", "(1,2)", r"\{1,2\}", r"\frac12", "[0,1)", r"\lfloor x \rfloor", "yes")
_OPERATIONS = ("squared", "cubed", "factorial", "halves", "thirds", "doubled", "plus one", "and a half")
_MARKERS = ("The answer is ", "Answer: ", "#### ", "**Final Answer:** ", "So the final answer is ")
# fmt: off
_NOUNS = (  # what bounds a value, estimates it, or was another step's
    "bound", "upper bound", "lower bound", "estimate", "best estimate", "first guess", "rough approximation", "error",
    "previous result", "intermediate value", "tentative total", "earlier answer", "square of it", "sum so far",
    "opposite", "inverse of the answer", "estimated cost",
)
# fmt: on
_BASE_NAMES = {2: "two", 3: "three", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


def _read_table() -> dict[str, list[Pair]]:
    rows = defaultdict(list)
    for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]:
        kind, gold, answer = line.split("\t")
        rows[kind].append((gold, answer.replace("⏎", "\n")))
    return rows


ROWS = _read_table()


def _from_table(kind: str, draw: Draw) -> Pair:
    names = _names(draw)
    gold, answer = (
        re.sub("«(.+?)»", lambda found: str(eval(found[1], {}, names)), text) for text in draw.choice(ROWS[kind])
    )
    if kind in ("prose", "owed"):
        return gold, answer
    if kind == "towers":
        return gold, rf"\boxed{{{draw.choice(_AROUND_TOWERS).replace('%s', answer)}}}"
    return _boxed(draw, *((answer, gold) if kind == "one_sided" and draw.random() < 0.5 else (gold, answer)))


def _boxed(draw: Draw, gold: str, answer: str) -> Pair:
    return gold, draw.choice(_BOXES).replace("%s", answer)


def _names(draw: Draw) -> dict[str, str | int]:
    """Returns the names that the table's expressions use."""
    v = draw.randint(2, 99)
    w = v + draw.choice([-3, -1, 1, 2, 10])
    x, n = draw.choice("xyta"), draw.randint(1, 30)
    term, negative = _linear(draw, x)
    base, other_base = draw.sample(sorted(_BASE_NAMES), 2)
    sign, count = draw.choice(_UNORDERED_FIGURES)
    vertices = "".join(draw.sample("ABCDEFPQR", count))
    noun = draw.choice(_NOUNS)
    yes, no = draw.choice([("yes", "no"), ("true", "false"), ("even", "odd"), ("east", "west")])
    lowest = min(base, other_base)
    return {
        "v": v,
        "w": w,
        "u": w + draw.randint(1, 9),
        "gold": draw.choice([str(v), f"{draw.choice('xn')}={v}"]),
        "x": x,
        "n": n,
        "term": term,
        "side": draw.choice([term, negative]),
        "x_side": draw.choice([x, f"-{x}"]),
        "base": base,
        "other_base": other_base,
        "base_name": _BASE_NAMES[base],
        "subscript": chr(0x2080 + base),
        "digits": f"{draw.randint(1, lowest - 1)}" + "".join(draw.choices("012345678"[:lowest], k=draw.randint(1, 4))),
        "operation": draw.choice(_OPERATIONS),
        "yes": yes,
        "no": no,
        "a": draw.randint(2, 30),
        "b": draw.randint(2, 30),
        "c": draw.randint(2, 30),
        "lead": draw.choice(["", "We count the cases.\n", r"Let $x=3$. "]),
        "marker": draw.choice(_MARKERS),
        "end": draw.choice([".", "", "\n"]),
        "noun": noun,
        "subject": draw.choice(["The", "the", "Its", "So the", "This"]) + f" {noun}" + draw.choice(["", " for $x$"]),
        "copula": draw.choice(["is", "equals", "is equal to", "is exactly"]),
        "any_gold": draw.choice(_ANY_GOLDS),
        "height": draw.choice([100, 99, 10**3, 10**6]),
        "huge": draw.choice(["10^9", "10^{12}", str(10**9), "2^{40}", "9" * 11]),
        "p": draw.randint(2, 4),
        "q": draw.randint(2, 5),
        "choice": draw.choice("ABCDE"),
        "vertices": vertices,
        "figure": _figure(draw, sign, vertices),
        "same_figure": _figure(draw, sign, vertices[::-1]),
    }


def _linear(draw: Draw, name: str) -> tuple[str, str]:
    """Returns a term with a nearby or distant zero, and the term with the other sign."""
    shift = draw.choice([1, 1, 1, 100]) * draw.randint(1, 40)
    slope = draw.choice([1, 1, 2, 3])
    first = name if slope == 1 else f"{slope}{name}"
    if draw.random() < 0.5:
        return f"{first}+{shift}", f"-{first}-{shift}"
    return f"{first}-{shift}", f"{shift}-{first}"


def _shuffled(draw: Draw, letters: str) -> str:
    while True:
        other = "".join(draw.sample(letters, len(letters)))
        if other != letters:
            return other


_ORDERED_FIGURES = [(r"\angle", 3), (r"\overrightarrow", 2), ("ray ", 2), (r"\triangle", 3), (r"\overline", 3)]
"""Figures with as many letters as make their order count. An angle has its vertex in the middle, and a ray begins with
its start. Vertices of a triangle correspond to those of another. Three letters under a line are digits."""
_UNORDERED_FIGURES = [(r"\angle", 3), (r"\overline", 2), (r"\widehat", 2), (r"\overleftrightarrow", 2)]
"""Figures that are the same when read from the other end."""


def _figure(draw: Draw, sign: str, letters: str) -> str:
    is_braced = sign.startswith(r"\over") or sign == r"\widehat" or (sign.startswith("\\") and draw.random() < 0.5)
    return f"{sign}{{{letters}}}" if is_braced else f"{sign} {letters}"


def letters(draw: Draw) -> Pair:
    """Returns the letters of a word, a figure or a sequence of choices in another order."""
    capitals = "".join(draw.sample("ABCDEFGHKLMNOPQRST", draw.randint(2, 6)))
    word = draw.choice(["no", "on", "was", "odd", "ten", "saw", "even", "north", "heart", "below", "two", "stop"])
    capital_word = draw.choice(["NO", "TEN", "EAST", "YES", "ODD", "EVEN", "TRUE"])
    text = draw.choice([capitals, capitals, capitals, word, capital_word])
    form = draw.choice(["%s", "%s", r"\text{%s}", r"\mathrm{%s}", r"\textbf{%s}"])
    if text == capitals and draw.random() < 0.5:
        sign, count = draw.choice(_ORDERED_FIGURES)
        vertices = "".join(draw.sample("ABCDEFPQR", count))
        other = _shuffled(draw, vertices)
        while sign == r"\angle" and other == vertices[::-1]:
            other = _shuffled(draw, vertices)
        return _boxed(draw, _figure(draw, sign, vertices), _figure(draw, sign, other))
    return _boxed(draw, draw.choice(["%s", form]).replace("%s", text), form.replace("%s", _shuffled(draw, text)))


_IN_TABLE = ("one_sided", "bases", "left_over", "prose", "chains", "restated")
UNEARNED: dict[str, Callable[[Draw], Pair]] = {"letters": letters} | {
    kind: partial(_from_table, kind) for kind in _IN_TABLE
}
EARNED: dict[str, Callable[[Draw], Pair]] = {"owed": partial(_from_table, "owed")}
towers = partial(_from_table, "towers")


def drawn(make: Callable[[Draw], Pair], count: int, seed: int) -> list[Pair]:
    """Returns `count` different pairs; equal seeds give equal pairs."""
    draw = random.Random(seed)
    pairs: dict[Pair, None] = {}
    while len(pairs) < count:
        pairs[make(draw)] = None
    return list(pairs)
