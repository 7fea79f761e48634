"""What two problems must have in common to be one: numbers, formulas, and the words that say what is computed.

`x + y = 10` and `x - y = 10`, "a perfect square" and "a perfect cube" differ in one word of many, and are two problems.
"At a constant speed" is three words more, and the same problem. So numbers and formulas are compared with the signs in
them, and of the other words those that name an operation, a quantity, an extreme or a direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stages.algorithms.problem_quantities import CARDINALS
from stages.algorithms.problem_text import is_letter

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
    found: Counter[str] = Counter()
    run: list[str] = []
    for word in [*words, ""]:
        if word[:1].isdigit() or word in _IN_FORMULAS or (word and is_letter(word)):
            run.append(word)
            continue
        _count_run(run, found)
        run = []
        if word in CARDINALS:
            found[f"{CARDINALS[word]:g}"] += 1
        elif base := next((form for form in _bases(word) if form in _DECISIVE), ""):
            found[base] = 1
    return found


def _count_run(run: list[str], found: Counter[str]) -> None:
    while run and run[-1] in _OPEN:  # a hyphen of `6-inch`, a bracket of a remark
        run.pop()
    if any(word[0].isdigit() or is_letter(word) for word in run):
        found[" ".join(run)] += 1


def _bases(word: str) -> list[str]:
    """The word, and what it may be a plural or past form of."""
    endings = ("s", "es", "d", "ed", "ing")
    return [
        word,
        *(word.removesuffix(end) for end in endings if word.endswith(end) and len(word) > len(end) + 2),
    ]
