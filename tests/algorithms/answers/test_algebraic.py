r"""The kinds of answers that are decided without math-verify."""

import random
from fractions import Fraction

import pytest

from stages.algorithms.answers.decisions import algebraic_verdict
from stages.algorithms.answers.equivalence import exact_verdict
from stages.algorithms.answers.verdicts import Leniency, Verdict


def verdict(gold, prediction):
    decision = exact_verdict(gold, prediction) or algebraic_verdict(gold, prediction)
    return decision and decision[0]


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("1 hour 30 minutes", "90 minutes"),
        ("5 feet 3 inches", "63 inches"),
        (r"0.1\overline{6}", "1/6"),
        (r"12\frac{1}{2}\%", r"12.5\%"),
        (r"10 \text{ inches}", "10 in"),
        (r"\angle A = 40^\circ", "40"),
        ("all real numbers", r"\mathbb{R}"),
        (r"\text{no solution}", "no solutions"),
        ("14", "(B) 14"),
        ("B", "option (B)"),
        (r"\sqrt[3]{-8}", "-2"),
        (r"-\sqrt[3]{2}", r"\sqrt[3]{-2}"),
        (r"\cos 90^\circ+2", "2"),
        ("2^{10}", "1024"),
        (r"2.5\times10^{-3}", "0.0025"),
        ("3e5", "300000"),
        (r"1.5 \cdot 10^{3}", "1500"),
        (r"\frac{3}{7}", "3/7"),
        (r"-\frac{3}{7}", r"\frac{-3}{7}"),
        (r"\frac{3}{7}", r"\frac{6}{14}"),
        (r"2\frac{1}{3}", r"\frac{7}{3}"),
        ("2 1/3", "7/3"),
        (r"-2\frac{1}{3}", r"-\frac{7}{3}"),
        (r"33.33\%", "33.33%"),
        (r"\frac{100}{3}\%", "1/3"),
        (r"50\%", "0.5"),
        ("12,345", "12345"),
        ("5 km", "5000 m"),
        ("2 hours", "120 minutes"),
        ("2 hours", "2"),
        (r"\$5", "5 dollars"),
        ("50 cents", r"\$0.50"),
        (r"\$1.5 million", "1500000"),
        ("3 m^2", "3 square meters"),
        (r"15\text{ cm}^2", "15"),
        (r"15 \text{ cm}^2", "15 cm^2"),
        (r"15 \text{ cm}^2", "15 square centimeters"),
        ("60 mph", "60 miles per hour"),
        (r"60\text{ km/h}", "60 km/h"),
        ("12 apples", "12"),
        ("3 dozen", "36"),
        (r"\sqrt{12}", r"2\sqrt{3}"),
        (r"\frac{1}{\sqrt2}", r"\frac{\sqrt{2}}{2}"),
        (r"\sqrt{5+2\sqrt6}", r"\sqrt{5+2\sqrt{6}}"),
        (r"\frac{1}{1+\sqrt{2}}", r"\sqrt{2}-1"),
        (r"\sqrt[3]{54}", r"3\sqrt[3]{2}"),
        (r"2\pi", r"\pi \cdot 2"),
        (r"\frac{\pi}{4}", r"0.25\pi"),
        ("3+4i", "4i+3"),
        ("(1+i)^2", "2i"),
        (r"\frac{1}{i}", "-i"),
        (r"\sqrt{-9}", "3i"),
        ("(1,2)", r"\left(1, 2\right)"),
        (r"(1, \frac12)", "(1,0.5)"),
        (r"\{1,2,3\}", "3,2,1"),
        ("[1,2]", r"1 \le x \le 2"),
        ("(1,2)", "1<x<2"),
        (r"[1,\infty)", r"x\geq 1"),
        (r"(-\infty, 3)", "x<3"),
        (r"(-\infty,1)\cup(2,\infty)", "x<1 or x>2"),
        (r"\mathbb{R}", r"(-\infty,\infty)"),
        (r"x \neq 2", r"(-\infty,2)\cup(2,\infty)"),
        (r"\mathbb{R}\setminus\{2\}", r"(-\infty,2)\cup(2,\infty)"),
        ("2x>4", "x>2"),
        (r"-3x \le 9", r"x \ge -3"),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
        (r"\begin{pmatrix}1\\ \frac12\end{pmatrix}", r"\begin{pmatrix}1\\0.5\end{pmatrix}"),
        ("y=2x+1", "2x-y+1=0"),
        ("y=2x+1", "y=1+2x"),
        ("x^2-1", "(x-1)(x+1)"),
        ("(x+1)^3", "x^3+3x^2+3x+1"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        (r"\sin(2x)", r"2\sin x\cos x"),
        (r"\ln(x^2)", r"2\ln|x|"),
        ("e^{x+1}", r"e \cdot e^x"),
        (r"\log_2 8", "3"),
        ("n(n+1)/2", r"\frac{n^2+n}{2}"),
        (r"\binom{5}{2}", "10"),
        ("5!", "120"),
        (r"\frac{n!}{(n-1)!}", "n"),
        ("4:30 p.m.", "4:30 PM"),
        ("16:30", "4:30 PM"),
        ("east", "East"),
        ("no solution", "No solution."),
        ("the midpoint", "midpoint"),
        ("2:3", "4:6"),
        ("2:3", r"\frac23"),
        ("x=1, y=2", "(1,2)"),
        ("x=1, y=2", "y=2, x=1"),
        ("x=1 or x=2", "1, 2"),
        (r"x=\pm 3", "3,-3"),
        (r"\pm 3", "x=3 or x=-3"),
        ("x = 2 + 3 = 5", "5"),
        (r"x \approx 3.14", "3.14"),
        ("AB = 5", "5"),
        (r"\angle ABC = 30^\circ", r"30^\circ"),
        (r"\angle ABC", r"\angle CBA"),
        (r"\angle{ABC}", r"\measuredangle CBA"),
        (r"\overline{AB}", r"\overline{BA}"),
        (r"\widehat{AB}", r"\widehat{BA}"),
        (r"90^\circ", r"\frac{\pi}{2}"),
        ("|x|", "|x|"),
        ("|{-5}|", "5"),
        ("0.1 + 0.2", "0.3"),
        ("2x", "x*2"),
        ("x**2", "x^2"),
        ("sqrt(2)/2", r"\frac{\sqrt 2}{2}"),
        ("2*pi", r"2\pi"),
        ("10^{-3}", "0.001"),
        (r"\langle 1,2,3\rangle", "(1,2,3)"),
        ("204_5", "204_{5}"),
        ("1,2", "2, 1"),
        ("{5}", "5"),
        (r"\{5\}", "5"),
        (r"3 \text{ or } 5", "5, 3"),
        ("a_n = 2n+1", "2n+1"),
        ("f(x) = x^2", "x^2"),
        (r"\frac{a}{b}", "a/b"),
        ("x^{1/2}", r"\sqrt{x}"),
        (r"\frac{\sqrt{x}}{x}", r"\frac{1}{\sqrt x}"),
        ("-(x-1)", "1-x"),
        ("7.0", "7"),
        ("1.50", "1.5"),
        (r"$\frac{1}{2}$ cup", "1/2"),
        ("(x, y) = (1, 2)", "x=1,y=2"),
        ("5x+3 > 0 ", "x > -3/5"),
        (r"\infty", r"+\infty"),
        (r"-\infty", r"-\infty"),
        ("3.1416", r"\pi"),
        ("1/3", "0.333…"),
        ("1/6", "0.1666…"),
        ("1", "0.999…"),
        ("3", r"\log_2 8"),
        ("2", r"17 \bmod 5 = 2"),
        ("2", "∛8"),
        ("(-infinity, 5)", r"(-\infty, 5)"),
        ("3⁄4", r"\frac34"),
        ("3", r"\lfloor 3.7 \rfloor = 3"),
        ("ab", r"b \cdot a"),
        ("7 in", "7''"),
        ("204_5", r"204_{\text{five}}"),
        ("42_{10}", "42"),
        (r"8 \text{ and } -8", r"\pm 8"),
        (r"10\,000", "10000"),
        ("1.2345678", "1.23456780001"),
        ("100 million", "10^8"),
        ("0.5 hours", "30 minutes"),
        (r"3\sqrt{2}\text{ cm}", r"3\sqrt{2}"),
        ("$x=3$", "3"),
        (r"\text{(A)}", "A"),
        (r"2\text{ m}", r"200 \text{ cm}"),
        (r"\frac{\pi}{3}\text{ radians}", r"\pi/3"),
        (r"3.0 \times 10^8 m/s", r"3 \times 10^8"),
        (r"12 \text{ units}^3", "12"),
        ("(2,3)", "x=2, y=3"),
        ("120 degrees", r"120^\circ"),
        (r"\emptyset", r"\varnothing"),
        ("6, 7, 8", "6,7 and 8"),
        (r"\sum_{k=1}^{n} k a_k", r"\sum_{k=1}^n a_k k"),
        (r"1+\prod_{i=1}^n (x+i)", r"\prod_{i=1}^{n} (i+x) + 1"),
        (r"\begin{vmatrix}1&2&0\\0&1&1\\1&0&2\end{vmatrix}", "4"),
        (
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}\begin{pmatrix}0&1\\1&0\end{pmatrix}",
            r"\begin{pmatrix}2&1\\4&3\end{pmatrix}",
        ),
        (r"e^{i\pi}", "-1"),
        (r"\sin 30^\circ", "1/2"),
        (r"\tan 45^\circ", "1"),
        (r"\ln e", "1"),
        (r"\frac{\log 8}{\log 2}", "3"),
        ("x=3", "3=x"),
        ("x<1", "-x>-1"),
        ("y=2x+1", "2y=4x+2"),
        ("x=y", "2x=2y"),
        (r"y=\frac{x}{2}", "2y=x"),
        ("2x=10", "4x=20"),
    ],
)
def test_equal_answers_are_correct(gold, prediction):
    assert verdict(gold, prediction) is Verdict.CORRECT


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("1 hour 30 minutes", "30 minutes"),
        ("4:30", "7:30"),
        ("4:30p", "4:30"),
        (r"\sqrt[3]{-8}", "2"),
        ("2^{10}", "1023"),
        (r"\frac{3}{7}", "0.43"),
        (r"2\frac13", r"\frac{2}{3}"),
        ("5 km", "5 m"),
        ("5 km", "5 kg"),
        (r"\$5", "5 euros"),
        ("15 cm^2", "15 cm"),
        (r"\sqrt{12}", r"3\sqrt{2}"),
        (r"\pi", "3.14"),
        (r"\pi", "3.1415"),
        ("3+4i", "3-4i"),
        ("(1,2)", "(2,1)"),
        ("(1,2)", "[1,2]"),
        ("(1,2)", r"\{1,2\}"),
        (r"\{1,2\}", r"\{1,2,3\}"),
        ("[1,2]", "1<x<2"),
        ("x>2", "x<2"),
        ("x>2", r"x\ge 2"),
        ("5", "4, 5"),
        ("5", "4 or 5"),
        ("1,2", "1"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        ("y=2x+1", "y=2x-1"),
        ("x^2-1", "x^2+1"),
        ("x^2+1", "x^2"),
        (r"\sin x", r"\cos x"),
        (r"\sqrt{x^2}", "x"),
        (r"\sqrt{x^2 i}", "x i^{1/2}"),
        (r"\ln(x^2 y)", r"2\ln x+\ln y"),  # another domain
        (r"\sin 1", r"\frac{8414709848078965}{10000000000000000}"),
        ("2:3", "3:2"),
        ("4:30 PM", "4:30 AM"),
        ("east", "west"),
        (r"\pm 3", "3"),
        ("x=5", "6"),
        ("x+1", "5"),
        (r"\infty", "5"),
        (r"\infty", r"-\infty"),
        ("(1,2,3)", "(1,2)"),
        ("12345678901234567890", "12345678901234567891"),
        ("2^{200}", "2^{200}+1"),
        (r"\sqrt{2}+\sqrt{3}", r"\sqrt{5}"),
        ("ab", "a+b"),
        ("30 minutes", "30 hours"),
        ("1/3", "0.333"),
        ("25%", "0.2"),
        (r"\frac{1}{3}x", "0.33x"),
        ("n", "m"),
        ("2x", "2y"),
        ("e^x", "e^{2x}"),
        ("5!", "24"),
        ("x=1,y=2", "(2,1)"),
        ("(-2,1)", "-2<x<=1"),
        (r"5\text{ apples}", "6"),
        ("12 cm", "12 m"),
        ("3", "3x"),
        ("1 million", "1 billion"),
        ("100", "1,00"),
        ("x<3", "3"),
        ("(0,1)", "0"),
        ("no solution", "3"),
        ("12:30", "1:30"),
        ("0", r"\pi-3.14159"),
        ("7", r"\{7,8\}"),
        ("0.5", r"\frac{1}{3}"),
        (
            r"\begin{pmatrix}1&2\\3&4\end{pmatrix}\begin{pmatrix}0&1\\1&0\end{pmatrix}",
            r"\begin{pmatrix}3&4\\1&2\end{pmatrix}",
        ),
        ("204_5", "204_6"),
        ("54", "204_5"),
        ("204", "204_5"),
        ("ABCD", "BDAC"),
        (r"\angle ABC", r"\angle ACB"),
        (r"\angle{ABC}", r"\angle{ACB}"),
        (r"\angle ABC", r"\angle BCA"),
        (r"\overrightarrow{AB}", r"\overrightarrow{BA}"),
        (r"\triangle ABC", r"\triangle CBA"),
        (r"\overline{ABC}", r"\overline{CBA}"),
        ("AB", "BA"),
        ("on", "no"),
        ("42", "x=41=42"),
        ("42", "41=42"),
        ("42", r"x=41\approx 42"),
        ("4", "2+2"),
        (r"\frac{3}{4}", r"\frac{1}{2}+\frac{1}{4}"),
        (r"\sqrt{1000000.1}", "1000.00005"),
        ("99999/100000", "1.000"),
        (r"\pi", "3.14159265358979"),
        ("100!", "100"),
        ("x=5", "2x=10"),
        ("x=3", "3x+1=x+7"),
        (r"x=\pm 2", "x^2=4"),
        ("x>3", "2x>6"),
        (r"(-\infty,3)", "2x<6"),
        ("2<x<4", "4<2x<8"),
    ],
)
def test_different_answers_are_wrong(gold, prediction):
    assert verdict(gold, prediction) is Verdict.WRONG


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("x=5", "y=5"),
        ("f(x)", "f(y)"),
        (r"\sum_{k=1}^n k", "n(n+1)/2"),
        (r"\sum_{k=1}^n k", r"\sum_{k=0}^n k"),
        (r"\sum_{k=1}^n k", r"\sum_{k=1}^n 2k"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", "(1, 2)"),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix} + 1"),
        ("1" * 500, "x"),
        ("x", "(" * 500),
        ("x", "x\x00"),
    ],
)
def test_doubt_gives_no_opinion(gold, prediction):
    assert algebraic_verdict(gold, prediction) is None


def allowed(**stated):
    return Leniency(**stated)


def test_what_a_row_may_allow():
    for gold, prediction, stated in (
        ("1/3", "0.333333", allowed(decimals=True)),
        (r"\pi", "3.1416", allowed(decimals=True)),
        ("4", "2+2", allowed(expressions=True)),
        ("ABD", "DBA", allowed(ordered=False)),
        ("(1,2)", "(2,1)", allowed(ordered=False)),
    ):
        assert algebraic_verdict(gold, prediction, stated)[0] is Verdict.CORRECT
        assert algebraic_verdict(gold, prediction)[0] is Verdict.WRONG


def test_a_stated_tolerance_takes_the_place_of_the_rule():
    assert algebraic_verdict("0.003, 5.233", "0.002, 5.234")[0] is Verdict.WRONG
    assert algebraic_verdict("0.003, 5.233", "0.002, 5.234", allowed(tolerance=Fraction(1, 1000)))[0] is Verdict.CORRECT
    assert algebraic_verdict("0.003, 5.233", "0.002, 5.236", allowed(tolerance=Fraction(1, 1000)))[0] is Verdict.WRONG
    assert algebraic_verdict(r"\pi", "3.1", allowed(tolerance=Fraction(1, 10)))[0] is Verdict.CORRECT


def random_expression(draw, depth):
    """An expression over x and y in LaTeX, with the function that computes it in fractions."""
    if depth == 0:
        number = draw.randint(1, 9)
        return draw.choice([("x", lambda x, y: x), ("y", lambda x, y: y), (str(number), lambda x, y: Fraction(number))])
    (left, f), (right, g) = (random_expression(draw, depth - 1) for _ in range(2))
    return draw.choice(
        [
            (f"({left})+({right})", lambda x, y: f(x, y) + g(x, y)),
            (f"({left})-({right})", lambda x, y: f(x, y) - g(x, y)),
            (f"({left})({right})", lambda x, y: f(x, y) * g(x, y)),
            (rf"\frac{{{left}}}{{{right}+7}}", lambda x, y: f(x, y) / (g(x, y) + 7)),
            (f"({left})^{{2}}", lambda x, y: f(x, y) ** 2),
        ]
    )


def test_expressions_agree_with_their_values_in_fractions():
    """An independent slow version: two expressions are equal when their values at random fractions are."""
    draw = random.Random(5)
    points = [(Fraction(draw.randint(-99, 99), 7), Fraction(draw.randint(-99, 99), 11)) for _ in range(6)]
    seen = {True: 0, False: 0}
    for _ in range(150):
        (text, f), (other, g) = random_expression(draw, 3), random_expression(draw, 2)
        rewritten, h = draw.choice(
            [
                (f"{text}+{other}-({other})", f),
                (f"({text})({other})", lambda x, y, f=f, g=g: f(x, y) * g(x, y)),
                (f"({other})+({text})-({other})", f),
            ]
        )
        try:
            is_equal = all(f(*point) == h(*point) for point in points)
        except ZeroDivisionError:
            continue
        decision = algebraic_verdict(text, rewritten)
        if decision is not None:
            seen[is_equal] += 1
            assert (decision[0] is Verdict.CORRECT) == is_equal, (text, rewritten)
    assert seen[True] > 40
    assert seen[False] > 20


@pytest.mark.parametrize(
    "text",
    [
        "(x+1)^{60}" * 20,
        "+".join(f"x_{n}" for n in range(60)) + "^2",
        "(" + "+".join(f"x_{n}" for n in range(40)) + ")^{60}",
        r"\sqrt{" * 20 + "2" + "}" * 20,
        r"\frac{1}{1+" * 20 + "x" + "}" * 20,
        "9^{99999}!",
        "2^{99}" * 90,
        "1,2," * 190 + "3",
        "((((((x+1)^9+1)^9+1)^9+1)^9+1)^9+1)^9",
        r"\sqrt{" + "7" * 300 + "}",
        r"\pm 1" * 99,
        "x^{y^{z^{x^{y^{z}}}}}" * 9,
        "|" * 99 + "x" + "|" * 99,
        r"\begin{pmatrix}1&2\\3&x\end{pmatrix}" * 60,
        r"\begin{vmatrix}" * 20 + "x" + r"&1\\1&x\end{vmatrix}" * 20,
        r"\sum_{k=1}^{9}" * 60 + "k",
    ],
)
@pytest.mark.timeout(240)
def test_hostile_formulas_are_given_up_early(text):
    """A second at most; what is worked out in full takes hours and is stopped."""
    for gold in ("x+1", r"\sqrt{2}", text + "+1", r"\{1, 2\}"):
        algebraic_verdict(gold, text)
