from fractions import Fraction

import pytest

from stages.algorithms.answers.equivalence import exact_verdict
from stages.algorithms.answers.normalisation import clean, compact, read_number
from stages.algorithms.answers.verdicts import Verdict

LONG = "7" * 15_000


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("18", "18."),
        ("18", "$18$"),
        ("18", "018"),
        ("-3", "−3"),
        ("7425000", "7,425,000"),
        ("1000", "1 000"),
        ("11111111100", r"11,\! 111,\! 111,\! 100"),
        ("10{,}000", "10000"),
        ("1000.99", r"\$1,000.99"),
        ("0.5", ".50"),
        ("0.5", r"\frac{1}{2}"),
        ("1/3", r"\dfrac13"),
        ("-10/9", r"-\frac{10}{9}"),
        ("2", "4/2"),
        (r"28\%", "28 percent"),
        ("10", r"10\%"),
        ("0.6", "60%"),
        (r"90^\circ", "90°"),
        ("7.8\\times 10^2", "780"),
        ("x=5", "5"),
        ("5", "x = 5"),
        ("1.22", "1,22"),
        ("seven", "7"),
        (r"\text{Evelyn}", "evelyn"),
        ("True", "yes"),
        ("(B)", r"\textbf{B}"),
        ("B", "(B) 14 cm"),
        ("(B) 14", "14"),
        ("(3,4)", "(3.0, 4)"),
        (r"\{1, 2, 3\}", r"\{3,1,2\}"),
        ("[1, 2)", "[1,2)"),
        ("2.6667", "8/3"),
        ("0.1", "0.10000000001"),
        (r"\frac{\pi r}{h+r}", r"\frac{\pi r}{h + r}"),
        (r"\sqrt3", r"\sqrt{3}"),
        (LONG, "0" + LONG),
        (r"x \leq 2", r"x \le 2"),
        (r"\left( 1, x \right)", "(1,x)"),
    ],
)
def test_equal_answers_are_correct(gold, prediction):
    assert exact_verdict(gold, prediction)[0] is Verdict.CORRECT


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("18", "19"),
        ("18", "-18"),
        ("1/3", "1/4"),
        ("16386.17", "16386.169"),
        ("0.0000001", "0.0000002"),
        ("1/3", "0.333"),
        ("2/3", "0.6666"),
        ("1/3", "0.3333"),
        ("3", "3.0004"),
        ("1.25", "1.250004"),
        ("B", "C"),
        ("(B) 14", "(C) 15"),
        ("yes", "no"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "(1,2,3)"),
        (r"\{1, 2\}", r"\{1, 3\}"),
        (LONG, LONG + "7"),
        (LONG, "-" + LONG),
        (LONG, "7"),
        ("5", "x = 6"),
        ("A", "A or B"),
        ("A", "(A), (B)"),
        (r"\$5", "€5"),
        (r"90\%", "90^\\circ"),
    ],
)
def test_different_answers_are_wrong(gold, prediction):
    assert exact_verdict(gold, prediction)[0] is Verdict.WRONG


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("32349", "32, 349"),  # a list, or a badly spaced number
        ("x=5", "y=5"),
        ("0.64N", "0.64"),
        ("5", r"5\sqrt{2}"),
        ("25", "5²"),  # NFKC would make this 52
        ("52", "5²"),
        ("12", r"1\cdot 2"),
        ("3", "2, 3"),
        ("7", "3+4"),
        ("(1,000)", "1000"),
        ("B", "(B) 3 (C) 4"),
        ("x", "X"),
        ("ab", "AB"),
        ("5", "1 = 5"),
        ("1.5", r"1\frac{1}{2}"),
        ("204_5", "204"),
        ("9", "9^(9^(9^9))"),
        (r"\frac{1}{0}", r"\frac{2}{0}"),
        ("(1,2)", r"\{1,2\}"),
        (r"2\text{ m}", r"2\text{ cm}"),
        ("1e5", "1e9999999"),
    ],
)
def test_doubt_gives_no_opinion(gold, prediction):
    assert exact_verdict(gold, prediction) is None


@pytest.mark.parametrize("prediction", ["infinitely many", "a dozen", "5 6", "7 7.5"])
def test_what_is_no_number_is_unparsed_beside_one(prediction):
    assert exact_verdict("11", prediction)[0] is Verdict.UNPARSED


@pytest.mark.parametrize("text", ["", "$", "$$", "\\", "{", "}", "\\frac", "\\text{", "(", "%", "/", "\ud800", "\x00"])
def test_fragments_never_raise(text):
    exact_verdict("5", text)
    exact_verdict(text, "5")
    exact_verdict(text, text)


@pytest.mark.parametrize(
    "unit", ["(", "{", "\\frac", "\\frac1", "\\text{", "9^(", "1,", "1 ", "9", "$", "\\", "A)", "\\!", ",\\! ", " "]
)
@pytest.mark.timeout(240)
def test_a_million_characters_of_one_kind_are_read_at_once(unit):
    """0.4 s at most; a reading whose cost grows with the square takes hours and is stopped."""
    text = unit * (1_000_000 // len(unit))
    exact_verdict("5", text)
    exact_verdict(text, text + "1")


def test_numbers_are_read_exactly():
    assert read_number("0.1").value == Fraction(1, 10)
    assert read_number("-1,234.50").value == Fraction(-246900, 200)
    assert read_number(r"\frac{-6}{4}").value == Fraction(-3, 2)
    assert read_number("28%").value == Fraction(7, 25)
    assert read_number(LONG).digits == LONG
    for text in ("1,23", "0,111", "1.2.3", "--1", "1/0", "", ".", "-", "1e9999", "٣", "x", "1 00"):
        assert read_number(text) is None, text


def test_one_spelling():
    assert clean(r" \( \left(\tfrac12,\ 3\right) \). ") == r"(\frac{1}{2}, 3)"
    assert compact(clean(r"19, 46, \text{ and } 82")) == compact(clean("19, 46, and 82"))
    assert clean("$5$ or $6$") == "$5$ or $6$"
    assert compact("2 \\sin b \\cos a") != compact("2\\sin bcos a")
