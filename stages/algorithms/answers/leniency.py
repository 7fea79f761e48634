"""What a row may allow beyond the rules for everyone: stated by who poses the problem, never guessed from an answer."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Leniency:
    """Allowances of one row; none of them is for rewards."""

    tolerance: Fraction | None = None
    """How far apart two numbers may be and agree, absolutely; None for the precision rule of `values`."""
    decimals: bool = False
    """A decimal agrees with an exact answer (a fraction, a root) of which it is the rounding."""
    expressions: bool = False
    """An expression that is not worked out, `2+2` or an integral, agrees with its value."""
    ordered: bool = True
    """False where the order of letters (`ABD` for `DBA`) and in brackets does not count."""


STRICT = Leniency()
