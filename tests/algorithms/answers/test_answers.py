"""Every reader of answers on the rows of cases.tsv, on random formulas, and on text that is there to cost time.

A row of cases.tsv names a reader (below), a group, what the reader must say, and what it reads. In a cell, ⏎ is a line
break, ⟨U+200B⟩ a character that an editor does not show, and ⟨7×5000⟩ a text repeated; ∅ is expected for None.
"""

import json
import random
import re
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import pytest

from stages.algorithms.answers.decisions import algebraic_verdict, decide, is_debris, math_verify_texts
from stages.algorithms.answers.equivalence import exact_verdict
from stages.algorithms.answers.evaluation import is_explosive
from stages.algorithms.answers.extraction import THOUGHT_MARKERS, extract_answer, extract_gold
from stages.algorithms.answers.latex_parser import parse_answer
from stages.algorithms.answers.normalisation import clean, compact, read_number
from stages.algorithms.answers.sentences import (
    is_about_money,
    is_labelled,
    pick_answer,
    pick_choice,
    value_after_marker,
)
from stages.algorithms.answers.verdicts import STRICT, Judgement, Leniency, Verdict

CASES = Path(__file__).with_name("cases.tsv")
ANSWERS = Path(__file__).parents[3] / "stages" / "algorithms" / "answers"
MIRROR = Path(__file__).parents[3].parent / "shared" / "data" / "mirror"
MATH500 = MIRROR / "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"


def spelled_out(cell):
    cell = re.sub(r"⟨U\+(\w+)⟩", lambda code: chr(int(code[1], 16)), cell.replace("⏎", "\n"))
    return re.sub(r"⟨(.+?)×(\d+)⟩", lambda unit: unit[1] * int(unit[2]), cell)


def written(text):
    return "∅" if text is None else text


def said(decision):
    return decision[0].value if decision else "no opinion"


def decided(gold, response, require_marker=True, allowed=STRICT):
    outcome = decide(gold, extract_answer(response), require_marker, allowed)
    return outcome.verdict.value if isinstance(outcome, Judgement) else "no opinion"


def boxed(gold, answer, allowed=STRICT):
    return decided(gold, rf"\boxed{{{answer}}}", allowed=allowed)


def extracted(_, response):
    answer = extract_answer(response)
    return f"{answer.rule}: {written(answer.text).strip()}"


def size(_, formula):
    if is_explosive(parse_answer(formula)):
        return "explosive"
    return "debris" if is_debris(formula) else "plain"


READERS = {
    "exact": lambda gold, answer: said(exact_verdict(gold, answer)),
    "algebraic": lambda gold, answer: said(exact_verdict(gold, answer) or algebraic_verdict(gold, answer)),
    "boxed": boxed,
    "marked": decided,
    "unmarked": lambda gold, response: decided(gold, response, require_marker=False),
    "extracted": extracted,
    "pick_answer": lambda _, sentence: written(pick_answer(sentence)),
    "value_after_marker": lambda _, sentence: written(value_after_marker(sentence)),
    "pick_choice": lambda _, sentence: written(pick_choice(sentence)),
    "size": size,
    "math_verify_texts": lambda gold, answer: " | ".join(math_verify_texts(gold, answer)),
}
"""What a row asks, by its reader: (gold answer, response) -> the text of the column `expected`."""
UNPAID = {"wrong", "unparsed"}


def groups_of_cases():
    groups = defaultdict(list)
    for line in CASES.read_text(encoding="utf-8").splitlines()[1:]:
        reader, group, *cells = line.split("\t")
        groups[reader, group].append(tuple(map(spelled_out, cells)))
    return groups


GROUPS = groups_of_cases()


@pytest.mark.parametrize("group", GROUPS, ids=": ".join)
def test_every_row_is_read_as_it_says(group):
    failed = []
    for expected, gold, response in GROUPS[group]:
        answer = READERS[group[0]](gold, response)
        if answer not in (UNPAID if expected == "not paid" else {expected}):
            failed.append((gold[:200], response[:200], expected, answer))
    assert failed == []


@pytest.mark.parametrize("markers", [("[THINK]", "[/THINK]"), ("<|begin_of_thought|>", "<|end_of_thought|>")])
def test_a_thought_between_other_markers_is_read_in_the_same_way(markers):
    """Rows with the usual markers, written with these instead; the usual ones are then text like any other."""
    rows = [row for (reader, _), rows in GROUPS.items() if reader == "extracted" for row in rows if "think>" in row[2]]
    assert len(rows) > 10
    for expected, _, response in rows:
        for usual, other in zip(THOUGHT_MARKERS, markers, strict=True):
            response = response.replace(usual, other)
        answer = extract_answer(response, thought_markers=markers)
        assert f"{answer.rule}: {written(answer.text).strip()}" == expected, response
    assert extract_answer(r"<think>\boxed{7}</think>", thought_markers=markers).text == "7"
    assert extract_answer(rf"{markers[0]}\boxed{{7}}{markers[1]}").text == "7"


def test_what_a_row_may_allow():
    for gold, answer, allowed in (
        ("1/3", "0.333333", Leniency(decimals=True)),
        (r"\pi", "3.1416", Leniency(decimals=True)),
        ("4", "2+2", Leniency(expressions=True)),
        ("ABD", "DBA", Leniency(ordered=False)),
        ("(1,2)", "(2,1)", Leniency(ordered=False)),
        (r"\pi", "3.1", Leniency(tolerance=Fraction(1, 10))),
        ("0.003, 5.233", "0.002, 5.234", Leniency(tolerance=Fraction(1, 1000))),
    ):
        assert boxed(gold, answer, allowed) == "correct", answer
        assert boxed(gold, answer) == "wrong", answer
    strict = Leniency(tolerance=Fraction(1, 1000))
    assert boxed("0.003, 5.233", "0.002, 5.236", strict) == boxed("(1,2)", "(2,3)", Leniency(ordered=False)) == "wrong"


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


@pytest.mark.parametrize("text", ["", "$", "$$", "\\", "{", "}", "\\frac", "\\text{", "(", "%", "/", "\ud800", "\x00"])
def test_fragments_never_raise(text):
    exact_verdict("5", text)
    exact_verdict(text, "5")
    exact_verdict(text, text)


def test_numbers_are_read_exactly():
    assert read_number("0.1").value == Fraction(1, 10)
    assert read_number("-1,234.50").value == Fraction(-246900, 200)
    assert read_number(r"\frac{-6}{4}").value == Fraction(-3, 2)
    assert read_number("28%").value == Fraction(7, 25)
    assert read_number("7" * 15_000).digits == "7" * 15_000
    for text in ("1,23", "0,111", "1.2.3", "--1", "1/0", "", ".", "-", "1e9999", "٣", "x", "1 00"):
        assert read_number(text) is None, text


def test_one_spelling():
    assert clean(r" \( \left(\tfrac12,\ 3\right) \). ") == r"(\frac{1}{2}, 3)"
    assert compact(clean(r"19, 46, \text{ and } 82")) == compact(clean("19, 46, and 82"))
    assert clean("$5$ or $6$") == "$5$ or $6$"
    assert compact("2 \\sin b \\cos a") != compact("2\\sin bcos a")


@pytest.mark.parametrize(
    "response",
    [
        "\\boxed{" * 200_000,
        "\\boxed{" + "(" * 2_000_000 + "}",
        "{" * 500_000 + "\\boxed{" + "}" * 500_000,
        "answer" * 100_000,
        "answer" + " " * 500_000 + "is",
        "A: " + " \n" * 300_000 + "x",
        "$" * 500_000,
        "." * 500_000 + " " * 500_000,
        "\\boxed{1}," * 100_000,
        "\x00\ud800" * 100_000,
    ],
)
@pytest.mark.timeout(240)
def test_hostile_text_costs_no_more_than_its_length(response):
    """A second at most; a reading whose cost grows with the square takes hours and is stopped."""
    extract_answer(response)


def test_a_gold_box_may_lack_its_end():
    assert extract_gold(r"so \boxed{x = 1").text == "x = 1"
    assert extract_gold(r"so \boxed{7}").text == "7"
    assert extract_gold(r"so \boxed{").text is None


def test_what_reads_as_a_value_with_words():
    assert is_labelled("Total : 2,74 $")
    assert not is_labelled("9: 5")
    assert is_about_money("She earns $18.")
    assert not is_about_money("9$A: ^eval(|eval(")


@pytest.mark.parametrize("module", ["verdicts", "extraction", "normalisation", "equivalence", "quantities"])
def test_rules_on_texts_come_first_and_import_no_mathematics(module):
    """The modules that read a tree or compute are those that `decisions` adds."""
    source = (ANSWERS / f"{module}.py").read_text(encoding="utf-8")
    imported = set(re.findall(r"^from stages\.algorithms\.answers\.(\w+) import", source, re.MULTILINE))
    assert imported <= {"verdicts", "extraction", "normalisation", "equivalence", "quantities"}


def test_debris():
    assert all(map(is_debris, ["", "}{", "9\x00", "(9", "9" + "=" * 30, r"\frac{1}{2"]))
    assert not any(map(is_debris, ["[0, 1)", r"\{1, 2\}", "x_{1}", r"\left\{ x \right.", "east"]))


@pytest.mark.skipif(not MATH500.exists(), reason="../shared/data/mirror is not on this machine")
@pytest.mark.parametrize(
    "form", [r"\displaystyle %s", "{%s}", r"\textcolor{blue}{%s}", r"\boldsymbol{%s}", r"\boxed{%s}", "%s.", "x = %s"]
)
def test_gold_answers_of_math_in_another_layout_are_paid(form):
    golds = [json.loads(line)["answer"] for line in MATH500.read_text(encoding="utf-8").splitlines()]
    if form.startswith("x"):
        golds = [gold for gold in golds if gold.isdigit()]
    refused = [gold for gold in golds if boxed(gold, form.replace("%s", gold)) != "correct"]
    assert refused == []


# fmt: off
UNITS = [
    "(", "{", "^", "!", "$", "%", "\\", "_{", "\\frac", "\\frac1", "\\text{", "\\!", "\\(", "\\[", "9", "9^", "9^(",
    "9,", "9!)", "1,", "$9", "A)", "a(", "a:", "1 ", " ", ",\\! ", "x =", "word ", "not ", "9 or ",
]
# fmt: on


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.timeout(240)
def test_half_a_million_characters_of_one_kind_are_read_at_once(unit):
    """0.3 s at most; a reading whose cost grows with the square takes hours and is stopped."""
    text = unit * (500_000 // len(unit))
    exact_verdict("5", text)
    exact_verdict(text, text + "1")
    math_verify_texts("x", text)
    for read in (pick_answer, value_after_marker, pick_choice, is_debris):
        read(text)
