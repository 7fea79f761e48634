"""Prime factors of the numbers under roots."""

from __future__ import annotations

from stages.algorithms.answers.latex_tokens import UnreadableError

_LARGEST_DIVISOR = 1_000


def prime_factors(value: int) -> dict[int, int]:
    """How often each prime divides `value`; UnreadableError where two factors above 1,000 may be left."""
    found: dict[int, int] = {}
    divisor = 2
    while divisor * divisor <= value and divisor < _LARGEST_DIVISOR:
        while value % divisor == 0:
            found[divisor] = found.get(divisor, 0) + 1
            value //= divisor
        divisor += 1 if divisor == 2 else 2
    if value >= _LARGEST_DIVISOR**2:
        raise UnreadableError("a root of a large number")
    if value > 1:
        found[value] = found.get(value, 0) + 1
    return found
