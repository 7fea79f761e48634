"""One answer in many writings, and different answers in like writings, worked by hand."""

import pytest

from stages.algorithms.answers.decisions import Outcome, decide
from stages.algorithms.answers.extraction import extract_answer
from stages.algorithms.answers.verdicts import Verdict


def verdict(gold, prediction):
    found = decide(gold, extract_answer(rf"\boxed{{{prediction}}}"), require_marker=True)
    return found.verdict if isinstance(found, Outcome) else None


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        (r"5", r"m+n=5"),
        (r"5", r"a+b+c=5"),
        (r"5", r"p+q+r = 2+2+1 = 5"),
        (r"5", r"x_1+x_2=5"),
        (r"5", r"f'(2)=5"),
        (r"5", r"f^{-1}(2)=5"),
        (r"5", r"m\angle ABC=5^\circ"),
        (r"5", r"\lim f(x)=5"),
        (r"5", r"\int_0^1 f=5"),
        (r"x+y=5", r"y=5-x"),
        (r"2^6\cdot3^2", r"2^63^2"),
        (r"2^6\cdot3^2", r"2^6 3^2"),
        (r"2^{n}\cdot 3^{m}", r"2^{n}3^{m}"),
        (r"1260", r"\frac{7!}{2!2!}"),
        (r"2880", r"5!4!"),
        (r"5!\cdot4!", r"5!4!"),
        (r"2^6 3^5 5^4", r"2^6\cdot 3^5\cdot 5^4"),
        (r"5", r"\textcolor{blue}{5}"),
        (r"5", r"\color{red}5"),
        (r"5", r"{\color{red}5}"),
        (r"\frac12", r"\mathbf{\frac12}"),
        (r"\frac12", r"\boldsymbol{\frac12}"),
        (r"\frac12", r"\bm{\frac12}"),
        (r"5", r"\bf 5"),
        (r"5", r"\Large 5"),
        (r"5", r"\hbox{5}"),
        (r"5", r"\underline{5}"),
        (r"5", r"\mathit{5}"),
        (r"5", r"5\\"),
        (r"5", r"\boxed{x=5}"),
        (r"5", r"5\checkmark"),
        (r"90^\circ", r"{90^\circ}"),
        (r"5", r"\text{The answer is }5"),
        (r"5", r"\text{Answer: }5"),
        (r"5", r"\text{Total: }5"),
        (r"5", r"\text{exactly }5"),
        (r"\text{no solution}", r"\varnothing"),
        (r"\text{no solution}", r"\emptyset"),
        (r"\text{no solution}", r"\text{no real solutions}"),
        (r"\text{no solution}", r"\text{none}"),
        (r"\text{no solution}", r"\{\}"),
        (r"\emptyset", r"\text{No solution}"),
        (r"2(x+1)", r"2\left[x+1\right]"),
        (r"\frac{1+\sqrt3}{2}", r"\frac12[1+\sqrt3]"),
        (r"\{2,3\}", r"\lbrace 2,3\rbrace"),
        (r"(2,3)", r"\begin{cases}x=2\\y=3\end{cases}"),
        (r"(0,6)", r"]0,6["),
        (r"p\land q", r"p \land q"),
        (r"xy", r"x\cdot y"),
        (r"xy", r"x\times y"),
        (r"2x\cdot 3", r"6x"),
        (r"x\cdot y", r"y\cdot x"),
        (r"A^TA", r"A^{T}A"),
        (r"x=1 \lor x=2", r"x=1, x=2"),
        (r"x<0 \lor x>1", r"(-\infty,0)\cup(1,\infty)"),
        (r"500", r"5\text{ hundreds}"),
        (r"300\text{ K}", r"300"),
        (r"5\text{ km}", r"5\text{ Km}"),
        (r"\frac\pi4+k\pi", r"\frac\pi4+n\pi, n\in\mathbb{Z}"),
        (r"\frac\pi4+k\pi, k\in\mathbb{Z}", r"\frac\pi4+n\pi, n\in\mathbb{Z}"),
        (r"\frac\pi4+k\pi", r"\frac\pi4+k\pi, k\in\mathbb{Z}"),
        (r"x^2+C", r"x^2+c"),
        (r"\binom{5}{2}", r"\tbinom{5}{2}"),
        (r"10", r"\dbinom{5}{2}"),
        (r"67", r"６７"),
        (r"67", r"٦٧"),
        (r"\$67", r"USD 67"),
        (r"\$67", r"US\$67"),
        (r"67", r"US\$67"),
        (r"A, C", r"AC"),
        (r"AC", r"A, C"),
        (r"A, C", r"\text{A and C}"),
        ("67", "6\u200b7"),
    ],
)
def test_another_writing_of_the_answer_is_paid(gold, prediction):
    assert verdict(gold, prediction) is Verdict.CORRECT


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        (r"5", r"m+n=6"),
        (r"5", r"m+n = 2+2 = 5"),
        (r"10", r"2x=10"),
        (r"5", r"m+n = 3+2"),
        (r"x+y=5", r"5"),
        (r"5", r"\text{not }5"),
        (r"5", r"\text{more than }5"),
        (r"5", r"\text{at least }5"),
        (r"5", r"\text{no solution}"),
        (r"\text{no solution}", r"\{0\}"),
        (r"p\land q", r"p\lor q"),
        (r"p\wedge q", r"p\vee q"),
        (r"\nabla\cdot F", r"\nabla\times F"),
        (r"u\cdot v", r"u\times v"),
        (r"A\times B", r"B\times A"),
        (r"A^TA", r"AA^T"),
        (r"X^{-1}Y", r"YX^{-1}"),
        (r"\mathbf a\times\mathbf b", r"\mathbf b\times\mathbf a"),
        (r"\mathbf{a}\times\mathbf{b}", r"\mathbf{b}\times\mathbf{a}"),
        (r"\mathbf{a}\cdot\mathbf{b}", r"\mathbf{a}\times\mathbf{b}"),
        (r"p\land q", r"p, q"),
        (r"5", r"5\text{ M}"),
        (r"5", r"5\text{ k}"),
        (r"5", r"5\text{K}"),
        (r"5", r"5\text{ bn}"),
        (r"5", r"5\text{ hundreds}"),
        (r"5", r"5\text{ tens}"),
        (r"5", r"5\text{ gross}"),
        (r"5", r"5\text{ score}"),
        (r"5\text{ mW}", r"5\text{ MW}"),
        (r"5\text{ mm}", r"5\text{ Mm}"),
        (r"5\text{ mg}", r"5\text{ Mg}"),
        (r"5\text{ kb}", r"5\text{ kB}"),
        (r"5\text{ kg}", r"5\text{ kg m}"),
        (r"\frac\pi4+k\pi", r"\frac\pi4+2n\pi, n\in\mathbb{Z}"),
        (r"x^2+C", r"x^2"),
        (r"x^2+a", r"x^2+b"),
        (r"n", r"m"),
        (r"A, C", r"A, B"),
        (r"A, C", r"A"),
        (r"A", r"A, C"),
        (r"0.5", r"Z \sim N(0, 1)"),
    ],
)
def test_another_answer_in_a_like_writing_is_not_paid(gold, prediction):
    assert verdict(gold, prediction) in (Verdict.WRONG, Verdict.UNPARSED)


@pytest.mark.parametrize("response", ["Answer: $m+n = 256+37 = 293$", "Answer: m+n = 256+37 = 293"])
def test_a_named_sum_after_a_marker_is_paid(response):
    assert decide("293", extract_answer(response), require_marker=True).verdict is Verdict.CORRECT
