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
        (r"(0,6)", r"x>0 \text{ and } x<6"),
        (r"(0,6)", r"0<x \land x<6"),
        (r"(0,6)", r"x>0, x<6"),
        (r"(-\infty,\infty)", r"x>0 \text{ or } x<6"),
        (r"(-\infty,0)\cup(0,\infty)", r"\text{all real numbers except }0"),
        (r"(-\infty,1)\cup(1,2)\cup(2,\infty)", r"\text{all reals except } x = 1 \text{ and } 2"),
        (r"\mathbb R\setminus\{0\}", r"\mathbb{R} - \{0\}"),
        (r"\mathbb R\setminus\{-\frac12\}", r"\text{All real numbers except $-\frac{1}{2}$}"),
        (r"x \neq 1, 2", r"x \neq 1 \text{ and } x\neq 2"),
        (r"[2,\infty)", r"\text{all real numbers greater than or equal to }2"),
        (r"(2,\infty)", r"\text{all } x > 2"),
        (r"(0,\infty)", r"\mathbb{R}^+"),
        (r"1234567", r"1'234'567"),
        (r"1234567", r"1.234.567"),
        (r"1234567", r"12,34,567"),
        (r"10^{13}", r"10¹³"),
        (r"10^{-3}", r"10⁻³"),
        (r"67", r"६७"),
        (r"10:25 PM", r"10.25 PM"),
        (r"\frac{13}{33}", r"0.\dot3\dot9"),
        (r"\frac{13}{33}", r"0.(39)"),
        (r"55", r"{}_{11}C_2"),
        (r"1:11", r"1\text{ to }11"),
        (r"5 km/h", r"5\ \mathrm{km\,h^{-1}}"),
        (r"5\text{ m/s}^2", r"5\ \frac{\mathrm m}{\mathrm s^2}"),
        (r"5\text{ m/s}", r"5 \text{ m}\cdot\text{s}^{-1}"),
        (r"18\text{ km/h}", r"5 \text{ m s}^{-1}"),
        (r"5\text{ J/(mol K)}", r"5\ \mathrm{J\,mol^{-1}\,K^{-1}}"),
        (r"5\text{ ohms}", r"5\ \Omega"),
        (r"5\text{ µm}", r"5\ \mu\mathrm{m}"),
        (r"5", r"5\ \mathrm{km\,h^{-1}}"),
        (r"55", r"\sum_{k=1}^{10} k = 55"),
        (r"1,2,\ldots,n", r"1,2,\dots,n"),
        (r"New York City", r"New York City!"),
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
        (r"(0,6)", r"x>0 \text{ or } x<6"),
        (r"(0,6)", r"x\ge 0 \text{ and } x<6"),
        (r"(0,6)", r"x>0 \text{ and } y<6"),
        (r"0", r"\text{all real numbers except }0"),
        (r"(-\infty,0)\cup(0,\infty)", r"\text{all real numbers except }1"),
        (r"1.234", r"1.234.567"),
        (r"12, 34, 567", r"1234567"),
        (r"1013", r"10¹³"),
        (r"5 \text{ m/s}", r"5\ \mathrm{m\,s^{-2}}"),
        (r"5 \text{ m/s}", r"5\text{ m s}"),
        (r"5\text{ kg/m}^3", r"5\text{ kg m}^{3}"),
        (r"42", r"|x|=42"),
        (r"42", r"--42"),
        (r"42", r"42\text{ish}"),
        (r"42", r"42\text{ fewer}"),
        (r"P(5,2)=20", r"P(3,3)=6"),
        (r"P(A)=0.3", r"P(B)=0.4"),
    ],
)
def test_another_answer_in_a_like_writing_is_not_paid(gold, prediction):
    assert verdict(gold, prediction) in (Verdict.WRONG, Verdict.UNPARSED)


@pytest.mark.parametrize("response", ["Answer: $m+n = 256+37 = 293$", "Answer: m+n = 256+37 = 293"])
def test_a_named_sum_after_a_marker_is_paid(response):
    assert decide("293", extract_answer(response), require_marker=True).verdict is Verdict.CORRECT


@pytest.mark.parametrize(
    "response",
    [
        "最终答案是 192 公斤。",
        "答えは192です。",
        "答案是192个苹果",
        "Ответ: 192 кг",
        "정답은 192입니다.",
        "Ответ: 192",
        "La risposta è 192.",
        "A resposta é 192.",
        "Đáp án: 192",
        r"\[Answer: 192\]",
        r"First \boxed{191}, on reflection \boxed{192}",
        "So it is 192.\n</think>\n\nThe answer is 192.",
    ],
)
def test_a_marked_answer_in_any_language_is_paid(response):
    assert decide("192", extract_answer(response), require_marker=True).verdict is Verdict.CORRECT


@pytest.mark.parametrize(
    "response", ["所以他一共有192公斤。", "所以，总共有 192 个苹果。", "…" * 200 + "。所以一共有192公斤。"]
)
def test_a_last_sentence_in_another_script_holds_the_answer(response):
    assert decide("192", extract_answer(response), require_marker=False).verdict is Verdict.CORRECT


@pytest.mark.parametrize(
    "response",
    [
        "答案是大于192",
        "答案是192以上",
        "答案是192的一半",
        "答案是192万",
        "Ответ: не 192",
        "Die Antwort ist nicht 192.",
        "Die Antwort ist 192 oder mehr.",
        "La réponse est au moins 192.",
        "192ではない",
        "答えは192より大きい",
        "답은 192보다 크다",
        "उत्तर 192 से अधिक है",
        "Ответ: 192 в квадрате",
        "Die Antwort ist 192 zum Quadrat",
        "La réponse est 192 divisé par deux",
        "答案是192加上一",
        "**Answer:** ~~192~~",
        r"~~\boxed{192}~~",
    ],
)
def test_a_denied_or_bounded_answer_in_any_language_is_not_paid(response):
    assert decide("192", extract_answer(response), require_marker=True).verdict is not Verdict.CORRECT
