import pytest

from stages.algorithms.answers.decisions import is_debris
from stages.algorithms.answers.evaluation import is_explosive
from stages.algorithms.answers.latex_parser import parse_answer
from stages.algorithms.answers.sentences import (
    is_about_money,
    is_labelled,
    pick_answer,
    pick_choice,
    value_after_marker,
)


@pytest.mark.parametrize(
    ("sentence", "answer"),
    [
        ("the number is not 10 which is 1,000.99€", "1,000.99€"),
        ("so it is 1,000.99m²", r"1,000.99\text{m}²"),
        (r"Therefore $x \ge 5$ is the solution.", r"x \ge 5"),
        ("The largest $n$ is 34", "34"),
        ("the value of $f(x)$ is 19", "19"),
        ("Jane started growing Sphere 3 hours ago", r"3\text{ hours}"),
        ("it is either 5 or 7", "5, 7"),
        ("between $12$ and $13$", "12, 13"),
        (r"We get \[ x + 1 \]", "x + 1"),
        ("she makes $18 every day", "18"),
        ("it costs $5 and then $6 more", "6"),
        ("it is not 7", ""),
        ("AZYUK2A", None),
        ("nothing here", None),
        ("Answer $ \n 9 \n $", ""),
        ("in all 9\x00", ""),
        ("the number is 9; import os; os.fork()", ""),
        (r"that makes \text{ all 9", ""),
    ],
)
def test_the_last_formula_or_number_counts(sentence, answer):
    assert pick_answer(sentence) == answer


@pytest.mark.parametrize(
    ("sentence", "value"),
    [
        ("$42$ dollars", "42"),
        ("therefore 42, because there are two cases", "42"),
        ("The largest $n$ is 34", "34"),
        ("The volume of $ABCDEFGH$ is 120", "120"),
        ("Jane began 3 hours ago", r"3\text{ hours}"),
        ("either 5 or 7", "5, 7"),
        ("3 more than 12", None),
        ("less than 42", None),
        ("unknown, but my lucky number is 42", None),
        ("see equation 42", None),
        ("12, not 42", None),
        ("the square of 42", None),
        ("The upper bound is 42", None),
        ("Its best estimate is $42$", None),
        ("42 as a lower bound", None),
        ("Bounds are 42 m", None),
        ("So the previous result is 42", None),
        ("The square of it is 42", None),
        ("42 might be right", None),
        ("The maximum number of points that could be in the domain is 19", "19"),
    ],
)
def test_a_sentence_after_a_marker_says_its_answer_and_nothing_else(sentence, value):
    assert value_after_marker(sentence) == value


def test_the_one_letter_that_a_sentence_names():
    assert pick_choice("I think it's (D).") == pick_choice("It must be D.") == "D"
    assert pick_choice("It is not (D).") is pick_choice("(A) or (D)") is pick_choice("A dog ran") is None


@pytest.mark.parametrize(
    "sentence", ["B.", "(B) because 3 > 2.", "B because 3 > 2.", "option B", "B) 14", "**B**.", "B。"]
)
def test_a_letter_that_a_clause_ends_with_is_a_choice(sentence):
    assert pick_choice(sentence) == "B"


@pytest.mark.parametrize("sentence", ["B12 deficiency", "B-tree", "B major", "B=mc^2", "vitamin B", "B cells divide."])
def test_a_letter_at_the_head_of_other_words_is_no_choice(sentence):
    assert pick_choice(sentence) is None


def test_what_reads_as_a_value_with_words():
    assert is_labelled("Total : 2,74 $")
    assert not is_labelled("9: 5")
    assert is_about_money("She earns $18.")
    assert not is_about_money("9$A: ^eval(|eval(")


@pytest.mark.parametrize(
    "text",
    [
        "9^{9^{9^{9}}}",
        "9^(9^(9^9))",
        "((99999999!)!)!",
        "500!!",
        "9" * 9 + "!",
        "2^{99999999}",
        "2^{2^{100}}",
        "(((x+1)^{60}+y)^{60}+z)^{60}",
        r"\prod_{k=1}^{10^9} k",
        r"\frac{1}{2}+\sum_{k=1}^{10^{12}} \frac{1}{k}",
        r"\sum_{k=1}^{999} k^{k^k}",
        r"\binom{10^9}{5}",
        r"(1, \lfloor 9^{9^{99}} \rfloor)",
    ],
)
def test_explosive_expressions(text):
    assert is_explosive(parse_answer(text))


@pytest.mark.parametrize(
    "text",
    [
        "x^2y^2z^2",
        "e^{-x^{2}}",
        "2^{100}",
        "10^{10}",
        "(x+1)^{12}",
        "5!",
        "100!",
        r"\frac{n!}{k!(n-k)!}",
        "7^{2^{5}}",
        r"10^{\frac{-5+\sqrt{13}}{6}}",
        r"\sum_{k=1}^{100} k^2",
        "x^{2020}+1",
    ],
)
def test_plain_mathematics_is_not_explosive(text):
    assert not is_explosive(parse_answer(text))
    assert not is_debris(text)


def test_debris():
    assert all(map(is_debris, ["", "}{", "9\x00", "(9", "9" + "=" * 30, r"\frac{1}{2"]))
    assert not any(map(is_debris, ["[0, 1)", r"\{1, 2\}", "x_{1}", r"\left\{ x \right.", "east"]))


@pytest.mark.parametrize("unit", ["(", "^", "9^", "$", "$9", r"\(", r"\[", "not ", "9,", "9 or ", "!", "9!)", "a:"])
@pytest.mark.timeout(240)
def test_a_million_characters_of_one_kind_are_read_at_once(unit):
    """0.4 s at most; a reading whose cost grows with the square takes hours and is stopped."""
    text = unit * (1_000_000 // len(unit))
    pick_answer(text)
    value_after_marker(text)
    pick_choice(text)
    is_debris(text)
