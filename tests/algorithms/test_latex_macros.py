"""Macros of LaTeX: put in with their arguments, bounded, and never a guess."""

import pytest

from stages.algorithms.latex_macros import agreed, definitions, expander, used

SOURCE = r"""
\newcommand{\R}{\mathbb{R}} \newcommand\norm[1]{\left\|#1\right\|} \renewcommand{\vec}[1]{\mathbf{#1}}
\newcommand{\pd}[2][x]{\frac{\partial #2}{\partial #1}} \def\half#1{\tfrac{#1}{2}} \DeclareMathOperator{\rank}{rk}
\providecommand{\Rn}{\ensuremath{\R^n}} \newcommand{\loop}{\loop\loop} \newcommand{\fat}[1]{{\bf#1}}
"""


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        (r"x\in\R^2", r"x\in\mathbb{R}^2"),
        (r"\norm{\vec v}", r"\left\|\mathbf{v}\right\|"),
        (r"\norm x + \Rational", r"\left\|x\right\| + \Rational"),
        (r"\pd{f}+\pd[y]{f}", r"\frac{\partial f}{\partial x}+\frac{\partial f}{\partial y}"),
        (r"\half{ab}\rank A", r"\tfrac{ab}{2}\operatorname{rk} A"),
        (r"\Rn{}x", r"{\mathbb{R}^n}x"),
        (r"2^\R", r"2^{\mathbb{R}}"),
        (r"\loop", r"\loop"),
        (r"\fat{x}", r"{\bf x}"),
        (r"\norm", r"\left\|\right\|"),
    ],
)
def test_a_formula_without_the_macros(formula, expected):
    assert expander(definitions(SOURCE))(formula) == expected


def test_files_that_disagree_define_nothing_and_a_page_takes_what_it_uses():
    macros = agreed([SOURCE, r"\newcommand{\R}{\mathbf{R}}"])
    assert "R" not in macros and "norm" in macros
    taken = used(r"$\Rn$ and $\norm{x}$ with \newcommand{\norm}[1]{|#1|}", definitions(SOURCE))
    assert set(definitions(taken)) == {"Rn", "R"}


def test_macros_that_double_end_at_the_limit_of_growth():
    bomb = "".join(
        f"\\newcommand{{\\x{a}}}{{{chr(92)}x{b}{chr(92)}x{b}}}" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    bomb += r"\newcommand{\xi}{" + "y" * 1000 + "}"
    assert expander(definitions(bomb))(r"\xa") == r"\xa"
