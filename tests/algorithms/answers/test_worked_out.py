"""A problem restated is not its answer: what may stand beside which gold answer, worked by hand."""

import json
from pathlib import Path

import pytest

from stages.algorithms.answers.decisions import Outcome, decide
from stages.algorithms.answers.extraction import extract_answer
from stages.algorithms.answers.verdicts import Verdict

MIRROR = Path(__file__).parents[3].parent / "shared" / "data" / "mirror"
MATH500 = MIRROR / "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"


def outcome(gold, prediction):
    found = decide(gold, extract_answer(rf"\boxed{{{prediction}}}"), require_marker=True)
    return found if isinstance(found, Outcome) else None


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        (r"\frac18", r"\cos20^\circ\cos40^\circ\cos80^\circ"),
        ("3", r"\lfloor\pi\rfloor"),
        ("-1", "i^6+i^{16}+i^{-26}"),
        ("5", "2(3-i)+i(2+i)-2"),
        ("27", r"\sqrt[4]{81}\cdot\sqrt[3]{27}\cdot\sqrt9"),
        ("1", r"\sin^2x+\cos^2x"),
        ("361", "49x^2+14x(19-7x)+(19-7x)^2"),
        ("-21", "16^{1/2}-625^{1/2}"),
        ("81", r"\frac{66,\!666^4}{22,\!222^4}"),
        ("4", r"\sqrt{6+4\sqrt2}+\sqrt{6-4\sqrt2}"),
        ("9", "9!/8!"),
        ("289", r"17^9 \div 17^7"),
        (r"\frac25", r"\frac{\frac13}{\frac56}"),
        ("16", "|(1-i)^8|"),
        ("1+2i", r"\frac{-3+4i}{1+2i}"),
        ("-1+i", r"\sqrt2 e^{11\pi i/4}"),
        (r"3\sqrt2", r"\sqrt8+\sqrt2"),
        (r"42\sqrt5", r"\sqrt{28}\cdot\sqrt{15}\cdot\sqrt{21}"),
        (r"\sqrt{14}", r"\sqrt{5+\sqrt{21}}+\sqrt{5-\sqrt{21}}"),
        (r"\frac{\pi}{4}", r"\arctan 1"),
        (r"\cos 58^\circ", r"\cos54^\circ\cos4^\circ-\cos36^\circ\cos86^\circ"),
        (r"\begin{pmatrix}4&6\end{pmatrix}", r"\begin{pmatrix}1&2\end{pmatrix}+\begin{pmatrix}3&4\end{pmatrix}"),
        ("0.2", r"\sqrt{\sqrt[3]{0.000064}}"),
    ],
)
def test_a_formula_whose_value_was_not_worked_out_is_no_answer(gold, prediction):
    assert outcome(gold, prediction).verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("1024", "2^{10}"),
        ("-1024", "-2^{10}"),
        ("6", r"\log_2 64"),
        ("2", "8^{1/3}"),
        ("120", "5!"),
        ("10", r"\binom52"),
        (r"\frac18", r"\frac{1}{2^3}"),
        ("300000", r"3 \times 10^5"),
        (r"\frac{\sqrt3}{2}", r"\sqrt{\frac34}"),
        (r"\frac{\sqrt3}{2}", r"\frac{3}{2\sqrt3}"),
        (r"\frac{\sqrt6-\sqrt2}{4}", r"\frac{\sqrt6}{4}-\frac{\sqrt2}{4}"),
        (r"\frac{\sqrt6+\sqrt2}{2}", r"\sqrt{2+\sqrt3}"),
        (r"\sqrt[4]2", r"\sqrt{\sqrt2}"),
        (r"\frac12+\frac{\sqrt3}{2}i", r"\frac{1+i\sqrt3}{2}"),
        ("-2-2i", "-2(1+i)"),
        (r"2\ln 3", r"\ln 9"),
        (r"\cos 20^\circ", r"\sin 70^\circ"),
        (r"90^\circ", r"\frac{\pi}{2}"),
        ("3.1416", r"\pi"),
        (r"\begin{pmatrix}3/5\\4/5\end{pmatrix}", r"\frac15\begin{pmatrix}3\\4\end{pmatrix}"),
        ("x = 3", "3 = x"),
    ],
)
def test_a_notation_for_the_number_is_an_answer(gold, prediction):
    assert outcome(gold, prediction).verdict is Verdict.CORRECT


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("1", "1-2^{-2024}"),
        (r"\frac13", r"\frac13(1-4^{-2024})"),
        ("x", "x(1-2^{-2024})"),
        (r"\sin x", r"\sin x+10^{-60}"),
        (r"\ln2", r"\ln2+3^{-120}"),
        (r"\ln2", r"\ln2+e^{-300}"),
        ("e^x", "e^x+2^{-200}"),
        ("x", r"x\tanh(1000)"),
        ("0", r"(\frac{1}{23})^{1000}"),
        (r"\frac1{2^{2000}}", r"\frac1{2^{2001}}"),
        (r"\frac1{2^{6000}}", r"\frac1{2^{6001}}"),
        (r"\frac{2^{2023}-1}{2^{2022}}", r"\frac{2^{2023}+1}{2^{2022}}"),
        (r"2-\frac{2025}{2^{2024}}", r"2-\frac{2026}{2^{2024}}"),
        (r"\sin x", r"\sin x+10^{-3000}"),
    ],
)
def test_a_difference_too_small_for_floats_is_a_difference(gold, prediction):
    assert outcome(gold, prediction).verdict in (Verdict.WRONG, Verdict.UNPARSED)


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("2^{2004}", "4^{1002}"),
        (r"\frac{2^{2005}+1}{3\cdot 2^{2006}}", r"\frac{1+2^{2005}}{3\cdot 2^{2006}}"),
        ("1-2^{-2024}", r"\frac{2^{2024}-1}{2^{2024}}"),
        ("x(1-2^{-100})", r"x-\frac{x}{2^{100}}"),
        (r"\sin 2x", r"2\sin x\cos x"),
    ],
)
def test_equal_numbers_of_any_size_are_equal(gold, prediction):
    assert outcome(gold, prediction).verdict is Verdict.CORRECT


@pytest.mark.skipif(not MATH500.exists(), reason="../shared/data/mirror is not on this machine")
@pytest.mark.parametrize(
    "form", [r"\displaystyle %s", "{%s}", r"\textcolor{blue}{%s}", r"\boldsymbol{%s}", r"\boxed{%s}", "%s.", "x = %s"]
)
def test_gold_answers_of_math_in_another_layout_are_paid(form):
    golds = [json.loads(line)["answer"] for line in MATH500.read_text(encoding="utf-8").splitlines()]
    if form.startswith("x"):
        golds = [gold for gold in golds if gold.isdigit()]
    refused = [gold for gold in golds if outcome(gold, form.replace("%s", gold)).verdict is not Verdict.CORRECT]
    assert refused == []
