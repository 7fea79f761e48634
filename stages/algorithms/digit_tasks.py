"""The task family "digits": choose two of several digits that satisfy an equation, by trial and error.

    Digits 8 6 7 4: 2A+5B=43. What is AB?
    8,4:16+20=36 low
    6,7:12+35=47 high, wait
    6,7:12+35=47 high
    4,7:8+35=43 yes
    The answer is \\boxed{47}.

Each problem has one solution. A trial is a look-up of two products, a sum and a comparison, so a policy of 0.7M
parameters can learn it. With n digits there are n(n-1) pairs to try. So longer thinking pays off, and responses differ
in length by tens of trials. `low` and `high` teach the comparison, which `no` does not (measured on a prototype).
Pure functions of their arguments and a `random.Random`; equal seeds give equal problems.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stages.algorithms.arithmetic_tasks import answer_line

HELD_OUT_SHARE = 10
"""One in this many problems is held out; the order of digits and letters does not matter."""
LONGEST_RUN_IN_VAIN = 2_000
"""After this many draws without a new problem, almost no new problems are left."""
FALSE_STARTS = (1, 2, 3, 4, 5)
"""Trials before a jump to the answer."""
MORE_TRIALS = (2, 3, 4, 5, 6)
"""Trials in each check of a rambling solution."""
CHECKS = (1, 2, 3, 4)
NEAR_MISSES = 3
MOST_PASSES = 4
"""After this many passes that all overlook the solution, the search ends and the solution is written down."""
START_OVER = "Hmm, start over."
CHECK = "Let me check."
JUMP = "I see it."

_PROBLEM = re.compile(r"Digits ((?:\d )*\d): (\d+)A\+(\d+)B=(\d+)\. What is AB\?")
_TRIAL = re.compile(r"^(\d+),(\d+):(\d+)\+(\d+)=(\d+) (low|high|yes)(, wait)?$", re.MULTILINE)


class SolutionStyle(StrEnum):
    """How a solution is written down."""

    answer_only = "answer_only"
    jump = "jump"
    """A few trials, `I see it.`, and the answer."""
    search = "search"
    """Trials until one fits."""
    rambling = "rambling"
    """A search that continues with further trials after it has found the solution."""
    unfinished = "unfinished"
    """A search that stops and states no answer."""


class Order(StrEnum):
    """The order in which a search tries the pairs."""

    random = "random"
    listed = "listed"
    """In the order of the digits in the problem."""
    forgetful = "forgetful"
    """At random; pairs can be tried again."""


ORDERS = {Order.random: 0.4, Order.listed: 0.3, Order.forgetful: 0.3}


@dataclass(frozen=True)
class DigitProblem:
    """`first` times A plus `second` times B is `target`; `solution` is the only pair of different digits that fits."""

    digits: tuple[int, ...]
    first: int
    second: int
    target: int
    solution: tuple[int, int]

    @property
    def problem(self) -> str:
        """`Digits 8 6 7 4: 2A+5B=43. What is AB?`"""
        digits = " ".join(map(str, self.digits))
        return f"Digits {digits}: {self.first}A+{self.second}B={self.target}. What is AB?"

    @property
    def answer(self) -> str:
        """A and B as one number."""
        return "{}{}".format(*self.solution)

    @property
    def key(self) -> str:
        """Equal for problems that differ only in the order of their digits or in which letter is which."""
        digits = "".join(map(str, sorted(self.digits)))
        return f"{digits}:{sorted((self.first, self.second))}:{self.target}"

    @property
    def is_held_out(self) -> bool:
        """Decided by a hash of `key`: no problem is on both sides of the split, not even in another order."""
        return int.from_bytes(hashlib.sha256(self.key.encode()).digest()[:8], "big") % HELD_OUT_SHARE == 0

    def pairs(self) -> list[tuple[int, int]]:
        """All pairs that may be tried, in the order of the digits."""
        return list(itertools.permutations(self.digits, 2))

    def value(self, pair: tuple[int, int]) -> int:
        """The left side of the equation for a pair."""
        return self.first * pair[0] + self.second * pair[1]


def generate_problems(
    seed: int, rows: int, sizes: Mapping[int, float], coefficients: Sequence[int], is_held_out: bool
) -> list[DigitProblem]:
    """Draws `rows` different problems of one side of the split.

    `sizes` are numbers of digits, 2 to 9, with their relative frequencies; digits are 1 to 9. Held-out problems also
    differ by `key`, so that each is measured once. ValueError when a size is impossible or no new problems are left.
    """
    wrong = sorted(size for size in sizes if not 2 <= size <= 9)
    if wrong:
        raise ValueError(f"{wrong} digits: a problem has 2 to 9 different ones")
    rng, problems, in_vain = random.Random(seed), {}, 0
    size = None
    while len(problems) < rows:
        # Kept until a usable problem of this size is drawn: otherwise rarer sizes would get less than their share.
        size = size or rng.choices(list(sizes), list(sizes.values()))[0]
        drawn = _draw(rng, size, coefficients)
        is_usable = drawn is not None and drawn.is_held_out == is_held_out
        # Training problems may repeat one another with the digits in another order; held-out ones are measured once
        # each.
        name = (drawn.key if is_held_out else drawn.problem) if is_usable else None
        in_vain = in_vain + 1 if name is None or name in problems else 0
        if is_usable:
            problems.setdefault(name, drawn)
            size = None  # kept until a problem of this size is drawn, so that the size gets its share
        if in_vain > LONGEST_RUN_IN_VAIN:
            raise ValueError(f"only about {len(problems)} different problems exist, but {rows} were requested")
    return list(problems.values())


def read_problem(text: str) -> DigitProblem | None:
    """Returns the problem that a text states; None for another text, or one without exactly one solution."""
    match = _PROBLEM.search(text)
    if match is None:
        return None
    digits = tuple(int(digit) for digit in match[1].split())
    return _with_solution(digits, int(match[2]), int(match[3]), int(match[4]))


def write_solution(
    problem: DigitProblem, rng: random.Random, style: str, slip: float, retry: float, near_misses: float
) -> tuple[str, str | None]:
    """Writes a solution as an author might; returns the text and the answer that it states, right, wrong or None.

    Three probabilities: with `slip`, a sum is off by one or two. With `retry`, a trial is written twice (`, wait`).
    With `near_misses`, a search begins with the pairs whose value is closest to the target. A slip may hide the
    solution, and then the search starts over; or it makes a wrong pair fit, which is then the answer.
    """
    chosen = SolutionStyle(style)
    if chosen is SolutionStyle.answer_only:
        return answer_line(problem.answer), problem.answer
    if chosen is SolutionStyle.jump:
        others = [pair for pair in problem.pairs() if pair != problem.solution]
        tried = rng.sample(others, min(len(others), rng.choice(FALSE_STARTS)))
        lines = [line for pair in tried for line in _trial(problem, pair, rng, 0.0, retry)[0]]
        return "\n".join((*lines, JUMP, answer_line(problem.answer))), problem.answer
    lines, claimed = _search(problem, rng, slip, retry, near_misses)
    if chosen is SolutionStyle.unfinished:
        # At least the beginning of a line, so that the solution is not empty.
        kept = lines[: rng.randrange(len(lines))] or [lines[0].partition("=")[0]]
        return "\n".join(kept), None
    if chosen is SolutionStyle.rambling:
        for _ in range(rng.choice(CHECKS)):
            again = rng.choices(problem.pairs(), k=rng.choice(MORE_TRIALS))
            lines += [CHECK, *(line for pair in again for line in _trial(problem, pair, rng, slip, retry)[0])]
    answer = "{}{}".format(*claimed)
    return "\n".join((*lines, answer_line(answer))), answer


@dataclass(frozen=True)
class Trials:
    """Counts of the trials in a response."""

    trials: int
    repeated: int
    """Trials of a pair that the response had tried before."""
    wrong_sums: int
    """Trials with a wrong product, sum or comparison."""
    claims: int
    """Trials that end in `yes`."""
    false_claims: int
    """Those whose pair does not solve the problem."""


def read_trials(problem: DigitProblem, response: str) -> Trials:
    """Counts the trials of a response; all counts are 0 where it has none."""
    # A pair counts as tried, even if its line is computed wrongly.
    seen: set[tuple[int, int]] = set()
    trials = repeated = wrong = claims = false_claims = 0
    for match in _TRIAL.finditer(response):
        pair = int(match[1]), int(match[2])
        trials += 1
        repeated += pair in seen
        seen.add(pair)
        left, right, total = int(match[3]), int(match[4]), int(match[5])
        # Products, sum and comparison are checked one after the other; a wrong product makes the trial wrong even if
        # the sum fits it.
        is_right = (left, right) == (problem.first * pair[0], problem.second * pair[1])
        wrong += not (is_right and left + right == total and match[6] == _verdict(total, problem.target))
        claims += match[6] == "yes"
        false_claims += match[6] == "yes" and pair != problem.solution
    return Trials(trials, repeated, wrong, claims, false_claims)


def _draw(rng: random.Random, size: int, coefficients: Sequence[int]) -> DigitProblem | None:
    digits = tuple(rng.sample(range(1, 10), size))
    first, second = rng.choice(coefficients), rng.choice(coefficients)
    pair = rng.sample(digits, 2)
    return _with_solution(digits, first, second, first * pair[0] + second * pair[1])


def _with_solution(digits: tuple[int, ...], first: int, second: int, target: int) -> DigitProblem | None:
    """Returns the only pair that fits; None where no pair fits, or more than one."""
    fitting = [pair for pair in itertools.permutations(digits, 2) if first * pair[0] + second * pair[1] == target]
    return DigitProblem(digits, first, second, target, fitting[0]) if len(fitting) == 1 else None


def _verdict(value: int, target: int) -> str:
    return "yes" if value == target else "low" if value < target else "high"


def _trial(
    problem: DigitProblem, pair: tuple[int, int], rng: random.Random, slip: float, retry: float
) -> tuple[list[str], bool]:
    """Returns the lines of a trial, and whether its last line says `yes`."""
    left, right = problem.first * pair[0], problem.second * pair[1]
    total = left + right
    # The slip is in the sum, so that the comparison that follows may hide the solution or claim a wrong pair.
    if rng.random() < slip:
        total = max(0, total + rng.choice((-2, -1, 1, 2)))
    verdict = _verdict(total, problem.target)
    line = f"{pair[0]},{pair[1]}:{left}+{right}={total} {verdict}"
    is_retried = verdict != "yes" and rng.random() < retry
    return ([f"{line}, wait", line] if is_retried else [line]), verdict == "yes"


def _search(
    problem: DigitProblem, rng: random.Random, slip: float, retry: float, near_misses: float
) -> tuple[list[str], tuple[int, int]]:
    """Returns the trials up to the first that says `yes`, and its pair."""
    lines: list[str] = []
    for number in range(MOST_PASSES):
        for pair in _order(problem, rng, near_misses):
            # The last pass makes no slip, so that the search ends.
            written, fits = _trial(problem, pair, rng, slip if number < MOST_PASSES - 1 else 0.0, retry)
            lines += written
            if fits:
                return lines, pair
        lines.append(START_OVER)
    raise AssertionError("the last pass has no slip, and one pair fits")


def _order(problem: DigitProblem, rng: random.Random, near_misses: float) -> list[tuple[int, int]]:
    """Returns all pairs, some of them more than once where the author forgets."""
    pairs = problem.pairs()
    order = rng.choices(list(ORDERS), list(ORDERS.values()))[0]
    if order is not Order.listed:
        rng.shuffle(pairs)
    if order is Order.forgetful:
        # Backwards, so that an inserted pair shifts only positions that are already done.
        for place in range(len(pairs) - 1, 0, -1):
            if rng.random() < 0.25:
                pairs.insert(rng.randint(place, len(pairs)), pairs[rng.randrange(place)])
    if rng.random() < near_misses:
        others = [pair for pair in problem.pairs() if pair != problem.solution]
        closest = sorted(others, key=lambda pair: abs(problem.value(pair) - problem.target))[:NEAR_MISSES]
        rng.shuffle(closest)
        pairs = closest + [pair for pair in pairs if pair not in closest]
    return pairs
