import pytest

from stages.algorithms.answers.decisions import math_verify_texts


@pytest.mark.parametrize(
    ("gold", "prediction", "texts"),
    [
        ("x+1", "1+x", ("$x+1$", "$1+x$")),
        ("$x+1$", "$1+x$", ("$x+1$", "$1+x$")),
        ("f(x) = x", "f(x)=2x - x", ("$x$", "$2x - x$")),
        ("x = 1+t", "y = t+1", ("$x = 1+t$", "$y = t+1$")),
        ("2x = 4", "x = 2", ("$2x = 4$", "$x = 2$")),
        (r"2.5\%", r"2\frac12%", (r"$2.5\%$", r"$2\frac12\%$")),
        ("9", "9$ foo", ("$9$", "$9 foo$")),
        ("1\n2", "1 \\\\\n2", ("$1 2$", r"$1 \\ 2$")),
    ],
)
def test_both_are_formulas_without_a_common_name(gold, prediction, texts):
    assert math_verify_texts(gold, prediction) == texts


@pytest.mark.parametrize("unit", ["$", r"\(", r"\[", "x =", "a(", "%", "\\", "word ", "_{"])
@pytest.mark.timeout(240)
def test_a_million_characters_of_one_kind_are_read_at_once(unit):
    """0.4 s at most; a reading whose cost grows with the square takes a million times as long and is stopped."""
    text = unit * (1_000_000 // len(unit))
    math_verify_texts("x", text)
