"""DAPO's rewriting into integers: exact where it rewrites, with a way back, and a reason where it does not."""

import random
import re

import pytest

from stages.algorithms.integer_answers import Inexact, IntegerQuestion, ask_for_integer


def value(latex):
    """An independent reading of the LaTeX that the forms use."""
    import sympy

    text = latex.replace("\\pi", "*pi")
    for _ in range(2):
        text = re.sub(r"\\sqrt\{(\w+)\}", r"*sqrt(\1)", text)
        text = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))", text)
    text = re.sub(r"(?<![\w)])\*", "", text)
    return sympy.sympify(text, rational=True)


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("-\\dfrac{3}{4}", [3, 4]),
        ("6/4", [3, 2]),
        ("2\\sqrt{3}", [2, 3]),
        ("\\sqrt{51}", [1, 51]),
        ("\\sqrt{8}", [2, 2]),  # 2 sqrt 2
        ("\\frac{5\\sqrt{2}}{3}", [5, 2, 3]),
        ("\\frac{2\\sqrt{3}}{4}", [1, 3, 2]),  # sqrt 3 / 2
        ("\\frac{3}{4}\\sqrt{12}", [3, 3, 2]),  # 6 sqrt 3 / 4
        ("\\frac{\\pi}{4}", [1, 4]),
        ("$16\\pi$", [16]),
        ("-3\\pi", [3]),
        ("1+\\sqrt{2}", [1, 1, 2]),
        ("\\sqrt{2} + 1", [1, 1, 2]),
        ("3 - 2\\sqrt{5}", [3, 2, 5]),
        ("-1-\\sqrt{3}", [1, 1, 3]),
        ("\\frac{1 + \\sqrt{5}}{2}", [1, 1, 5, 2]),
        ("\\frac{-1+\\sqrt{5}}{2}", [1, 1, 5, 2]),
        ("-\\frac{4-2\\sqrt{3}}{6}", [2, 1, 3, 3]),
        ("(2+\\sqrt{7})/3", [2, 1, 7, 3]),
        ("\\sqrt{3}/2", [1, 3, 2]),
        ("4 - \\pi", [4, 1]),
        ("\\frac{4+\\pi}{2}", [4, 1, 2]),
    ],
)
def test_exact_forms_and_their_way_back(answer, parts):
    question = ask_for_integer(answer, "How much is it?")
    assert list(question.parts.values()) == parts and question.answer == str(sum(parts))
    assert min(question.parts.values()) > 0
    cleaned = answer.replace("\\dfrac", "\\frac").strip("$")
    assert (value(question.original) - value(cleaned)).simplify() == 0
    assert question.form in question.request and f"Find ${' + '.join(question.parts)}$" in question.request


def test_random_surds_are_restored():
    import sympy

    draw = random.Random(1)
    for _ in range(60):
        a, b, c, d = (draw.randint(-9, 9), draw.choice([-7, -2, 1, 3, 8]), draw.randint(2, 60), draw.randint(1, 12))
        if sympy.sqrt(c).is_rational:
            continue
        latex = f"\\frac{{{a or ''}{'+' if a and b > 0 else ''}{b}\\sqrt{{{c}}}}}{{{d}}}"
        question = ask_for_integer(latex, "")
        wanted = (sympy.Integer(a) + b * sympy.sqrt(c)) / d
        assert sympy.simplify(value(question.original) - wanted) == 0, latex


def test_tuples_of_integers():
    question = ask_for_integer("\\left( 3, -4 \\right)", "Where do m and n meet?")
    assert (question.answer, question.form, question.original) == ("7", "(p, -q)", "(3, -4)")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("5", None),
        ("8/4", None),
        ("1,234", None),
        ("0.25", Inexact.decimal),
        ("25\\%", Inexact.percent),
        ("3\\frac{1}{2}", Inexact.mixed_number),
        ("(0, 4)", Inexact.zero_part),
        ("(1,2,3,4,5)", Inexact.no_form),
        ("\\sqrt{4}", Inexact.no_form),
        ("1+\\sqrt{2}/3", Inexact.no_form),  # whose divisor is 3?
        ("2^{10}", Inexact.no_form),  # also 4^5
        ("x+1", Inexact.no_form),
        ("\\sqrt{x}", Inexact.no_form),
        ("\\frac{1}{0}", Inexact.no_form),
        ("\\frac{\\sqrt{2}}{0}", Inexact.no_form),
        ("dark red", Inexact.no_form),
        ("", Inexact.no_form),
        ("1" + "0" * 29 + "/7", Inexact.no_form),
        ("\\sqrt{999999999999}", Inexact.no_form),
    ],
)
def test_what_is_left_alone_has_a_reason(answer, reason):
    assert ask_for_integer(answer, "How much is it?") == reason


def test_letters_are_not_the_problems_own():
    assert "$p + q$" in ask_for_integer("1/2", "Let $m=3$ and $n$ be even.").request
    assert "$m + n$" in ask_for_integer("1/2", "Find the maximum of \\mu in metres.").request
    every = " ".join("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
    assert ask_for_integer("1/2", every) is Inexact.no_letters


def test_hostile_answers_end_quickly():
    for text in ("\\frac{" * 5_000, "(" * 20_000, "1+" * 10_000, "\\sqrt{" + "9" * 20_000 + "}"):
        assert not isinstance(ask_for_integer(text, "?"), IntegerQuestion)
