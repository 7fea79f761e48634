"""Layouts by authors who had not seen the rules, group by group in the order in which they were written."""

from benchmarks.blind_layouts import (
    eighteenth,
    eighth,
    eleventh,
    fifteenth,
    fifth,
    first,
    fourteenth,
    fourth,
    nineteenth,
    ninth,
    second,
    seventeenth,
    seventh,
    sixteenth,
    sixth,
    tenth,
    third,
    thirteenth,
    twelfth,
    twentieth,
)
from benchmarks.extraction_styles import Style

_IN_ORDER = (
    first,
    second,
    third,
    fourth,
    fifth,
    sixth,
    seventh,
    eighth,
    ninth,
    tenth,
    eleventh,
    twelfth,
    thirteenth,
    fourteenth,
    fifteenth,
    sixteenth,
    seventeenth,
    eighteenth,
    nineteenth,
    twentieth,
)
BLIND: dict[str, dict[str, Style]] = {
    f"blind {number}": module.LAYOUTS for number, module in enumerate(_IN_ORDER, 1)
}
