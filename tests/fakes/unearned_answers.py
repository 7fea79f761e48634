r"""Answers that look paid for: golds and forms drawn at random, by class of what a policy could try without solving.

Classes of UNEARNED must never be called correct; those of EARNED are right and must be. Each draws (gold, response).
"""

from __future__ import annotations

import random
from collections.abc import Callable

Draw = random.Random
Pair = tuple[str, str]


def _boxed(draw: Draw, gold: str, answer: str) -> Pair:
    form = draw.choice([r"\boxed{%s}", r"So we get $\boxed{%s}$.", r"\[ \boxed{%s} \]", "The answer is $%s$."])
    return gold, form.replace("%s", answer)


def _linear(draw: Draw, name: str) -> tuple[str, str]:
    """A term with a zero in sight or far away, and the term with the other sign."""
    shift = draw.choice([1, 1, 1, 100]) * draw.randint(1, 40)
    slope = draw.choice([1, 1, 2, 3])
    first = name if slope == 1 else f"{slope}{name}"
    if draw.random() < 0.5:
        return f"{first}+{shift}", f"-{first}-{shift}"
    return f"{first}-{shift}", f"{shift}-{first}"


def one_sided(draw: Draw) -> Pair:
    """An expression beside what it equals on one side of a kink or a pole, or where both are defined."""
    name = draw.choice("xyta")
    term, negative = _linear(draw, name)
    shift = draw.randint(1, 30)
    gold, answer = draw.choice(
        [
            (f"|{term}|", draw.choice([term, negative])),
            (rf"\sqrt{{({term})^2}}", draw.choice([term, negative])),
            (rf"\sqrt{{{name}^2+{2 * shift}{name}+{shift * shift}}}", f"{name}+{shift}"),
            (rf"\sqrt{{{name}^2-{2 * shift}{name}+{shift * shift}}}", f"{shift}-{name}"),
            (rf"|{name}|\frac{{{name}+{shift}}}{{{name}+{shift}}}", draw.choice([name, f"-{name}"])),
            (rf"\frac{{{name}({term})}}{{|{term}|}}", draw.choice([name, f"-{name}"])),
            (rf"{shift}\arctan(\tan({name}/{shift}))", name),
            (rf"\arcsin(\sin({term}))", term),
            (rf"\arccos(\cos({name}-{shift}))", draw.choice([f"{name}-{shift}", f"{shift}-{name}"])),
            (rf"\ln(({term})^2)", rf"2\ln({term})"),
            (rf"\sqrt{{{name}^2({name}+{shift})}}", rf"{name}\sqrt{{{name}+{shift}}}"),
            (rf"\sqrt{{{name}({term})}}", rf"\sqrt{{{name}}}\sqrt{{{term}}}"),
            (rf"(\sqrt{{{term}}})^2", term),
            (rf"\ln({name}({term}))", rf"\ln({name})+\ln({term})"),
            (f"|{term}|+|{name}|", rf"|{term}+{name}|"),
            (rf"\sqrt[4]{{({term})^4}}", term),
            (rf"e^{{\ln({term})}}", term),
        ]
    )
    return _boxed(draw, *((gold, answer) if draw.random() < 0.5 else (answer, gold)))


def _shuffled(draw: Draw, letters: str) -> str:
    while True:
        other = "".join(draw.sample(letters, len(letters)))
        if other != letters:
            return other


_ORDERED_FIGURES = [(r"\angle", 3), (r"\overrightarrow", 2), ("ray ", 2), (r"\triangle", 3), (r"\overline", 3)]
"""Figures with as many letters as make their order count: an angle has its vertex in the middle, a ray its start first,
vertices of a triangle correspond to another one's, and three letters under a line are digits."""
_UNORDERED_FIGURES = [(r"\angle", 3), (r"\overline", 2), (r"\widehat", 2), (r"\overleftrightarrow", 2)]
"""Those that are the same when read from the other end."""


def _figure(draw: Draw, sign: str, letters: str) -> str:
    is_braced = sign.startswith(r"\over") or sign == r"\widehat" or (sign.startswith("\\") and draw.random() < 0.5)
    return f"{sign}{{{letters}}}" if is_braced else f"{sign} {letters}"


def letters(draw: Draw) -> Pair:
    """The letters of a word, a figure or a sequence of choices in another order."""
    capitals = "".join(draw.sample("ABCDEFGHKLMNOPQRST", draw.randint(2, 6)))
    word = draw.choice(["no", "on", "was", "odd", "ten", "saw", "even", "north", "heart", "below", "two", "stop"])
    capital_word = draw.choice(["NO", "TEN", "EAST", "YES", "ODD", "EVEN", "TRUE"])
    text = draw.choice([capitals, capitals, capitals, word, capital_word])
    form = draw.choice(["%s", "%s", r"\text{%s}", r"\mathrm{%s}", r"\textbf{%s}"])
    if text == capitals and draw.random() < 0.5:
        sign, count = draw.choice(_ORDERED_FIGURES)
        vertices = "".join(draw.sample("ABCDEFPQR", count))
        other = _shuffled(draw, vertices)
        while sign == r"\angle" and other == vertices[::-1]:
            other = _shuffled(draw, vertices)
        return _boxed(draw, _figure(draw, sign, vertices), _figure(draw, sign, other))
    return _boxed(draw, draw.choice(["%s", form]).replace("%s", text), form.replace("%s", _shuffled(draw, text)))


_BASE_NAMES = {2: "two", 3: "three", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


def _numeral(draw: Draw, digits: str, base: int) -> str:
    subscript = chr(0x2080 + base)
    return draw.choice(
        [
            f"{digits}_{base}",
            f"{digits}_{{{base}}}",
            rf"{digits}_{{\text{{{_BASE_NAMES[base]}}}}}",
            f"({digits})_{base}",
            f"({digits})_{{{base}}}",
            f"{digits}{subscript}",
            rf"{digits}_{{({base})}}",
            rf"\text{{{digits}}}_{{{base}}}",
            rf"{digits} \text{{ base }} {base}",
            rf"{digits} \text{{ (base {base})}}",
            f"{digits} in base {base}",
            rf"\overline{{{digits}}}_{base}",
        ]
    )


def bases(draw: Draw) -> Pair:
    """The same digits in another base, or without one."""
    base, other = draw.sample(sorted(_BASE_NAMES), 2)
    digits = str(draw.randint(1, min(base, other) - 1)) + "".join(
        str(draw.randrange(min(base, other))) for _ in range(draw.randint(1, 4))
    )
    sides = draw.choice(
        [
            (_numeral(draw, digits, base), digits),
            (digits, _numeral(draw, digits, base)),
            (f"{digits}_{base}", _numeral(draw, digits, other)),
            (f"{digits}_{{{base}}}", _numeral(draw, digits, other)),
        ]
    )
    return _boxed(draw, *sides)


def left_over(draw: Draw) -> Pair:
    """A second value, a condition or an operation in words around the gold answer."""
    value = draw.randint(2, 99)
    other = value + draw.choice([-1, 1, 2, 10])
    gold = draw.choice([str(value), f"n={value}"])
    words = draw.choice(["squared", "cubed", "factorial", "halves", "thirds", "doubled", "plus one", "and a half"])
    answer = draw.choice(
        [
            rf"{value} \text{{ or }} {other}",
            rf"{other} \text{{ or }} {value}",
            rf"{value} \text{{ if }} n>0, {other} \text{{ otherwise}}",
            rf"{value} \text{{ if }} n \text{{ is even}}",
            rf"n={value} \lor n={other}",
            rf"n={other} \vee n={value}",
            rf"{value} \text{{ {words}}}",
            f"{value} {words}",
            rf"{value} \text{{ and }} {other}",
            rf"\text{{either }} {value} \text{{ or }} {other}",
            rf"{value} \text{{ unless }} n = {other}",
            rf"{value} \text{{ when }} x<0",
            rf"{value} \text{{ but not }} {other}",
            rf"\text{{not }} {value}",
            rf"\text{{more than }} {value}",
            rf"{value} \text{{ less than }} {other}",
            rf"\text{{half of }} {value}",
            rf"\text{{twice }} {value}",
            rf"{value} \text{{ times }} {other}",
            rf"{value} \text{{ (or }} {other}\text{{)}}",
            rf"{value}\ /\ {other}\text{{ maybe}}",
            rf"{value} \text{{ minus }} {other}",
            rf"{value} \text{{ or more}}",
            rf"\text{{at least }} {value}",
            rf"{value} \wedge {other}",
            rf"{value} \text{{ versus }} {other}",
            rf"{value} \to {other}",
            rf"{value} \quad {other}",
        ]
    )
    if draw.random() < 0.1:
        return _boxed(
            draw, gold, rf"{value} \text{{ {draw.choice(['upper bound', 'estimate', 'is a bound', 'guesses'])}}}"
        )
    if draw.random() < 0.2:
        gold, other_word = draw.choice([("yes", "no"), ("true", "false"), ("even", "odd"), ("east", "west")])
        answer = draw.choice(
            [
                rf"{gold} \text{{ and {other_word}}}",
                rf"\text{{{gold} or {other_word}}}",
                f"{gold}/{other_word}",
                rf"\text{{not {gold}}}",
            ]
        )
    return _boxed(draw, gold, answer)


def _about_a_value(draw: Draw, value: str) -> str:
    """A sentence that bounds the value, estimates it, or says that it was another step's."""
    noun = draw.choice(
        ["bound", "upper bound", "lower bound", "estimate", "best estimate", "first guess", "rough approximation"]
    )
    noun = draw.choice(
        [
            noun,
            "error",
            "previous result",
            "intermediate value",
            "tentative total",
            "earlier answer",
            "square of it",
            "sum so far",
            "opposite",
            "inverse of the answer",
            "estimated cost",
        ]
    )
    subject = draw.choice([noun, noun, f"{noun} of the sum", f"{noun} for $x$"])
    if draw.random() < 0.6:
        copula = draw.choice(["is", "equals", "is equal to", "is exactly"])
        return f"{draw.choice(['The', 'the', 'Its', 'So the', 'This'])} {subject} {copula} {value}"
    return f"{value} " + draw.choice([f"is the {subject}", f"as {noun}", f"because it is a {noun}", f"({noun})", noun])


def prose(draw: Draw) -> Pair:
    """A marker, and then a sentence in which the gold answer is a number that is not what it says."""
    value, other = draw.randint(2, 99), draw.randint(2, 99)
    marker = draw.choice(["The answer is ", "Answer: ", "#### ", "**Final Answer:** ", "So the final answer is "])
    sentence = draw.choice(
        [
            f"{other} more than {value}",
            f"{value} more than {other}",
            f"less than {value}",
            f"greater than {value}",
            f"unknown, but my lucky number is {value}",
            f"see equation {value}",
            f"given on page {value}",
            f"in step {value}",
            f"not {value}",
            f"one of {value} possibilities",
            f"I do not know, maybe {value}",
            f"the {value}th prime",
            f"between {other} and {value}",
            f"at most {value}",
            f"twice {value}",
            f"the square of {value}",
            f"{other} times {value}",
            f"half of {value}",
            f"the sum of {other} and {value}",
            f"left to the reader, who needs {value} minutes",
            f"anything but {value}",
            f"obtained from {value} by adding {other}",
            f"{value} divided by {other + 100}",
            f"a number whose square is {value}",
            f"the solution of $x+{other}={value}$",
            f"clear. The problem has {value} parts",
            f"wrong if it is {value}",
            f"either {other} or {value}",
            f"hard to find; problem {value} was easier",
            f"any number from 1 to {value}",
            f"what you get when you add 0 to {value} and {other}",
            f"about {value}, perhaps",
            f"{other}, not {value}",
            f"no more than $ {value} $",
            f"the remainder when ${value}$ is divided by ${other + 100}$",
            f"equal to ${value}$ only if $x={other}$",
            _about_a_value(draw, str(value)),
            _about_a_value(draw, f"${value}$"),
        ]
    )
    return str(value), draw.choice(["", "We count the cases.\n", r"Let $x=3$. "]) + marker + sentence + draw.choice(
        [".", "", "\n"]
    )


def chains(draw: Draw) -> Pair:
    """Equations in a row whose parts do not agree."""
    value = draw.randint(2, 99)
    other = value + draw.choice([-3, -1, 1, 2, 10])
    third = other + draw.randint(1, 9)
    gold = draw.choice([str(value), f"x={value}"])
    answer = draw.choice(
        [
            f"x={other}={value}",
            f"x={value}={other}",
            f"{other}={third}={value}",
            f"{other}={value}",
            f"{value}={other}",
            f"x={other}+1={value + third}={value}",
            rf"x \approx {other} = {value}",
            rf"x = {other} \approx {value}",
            f"x={third}={other}={value}",
            rf"f(x) = {other} = {value}",
            rf"\sqrt{{{other * other}}} = {value}",
            rf"{value} = {other} = {value}",
            rf"x = \frac{{{2 * other}}}{{2}} = {value}",
            rf"\text{{Area}} = {other} = {value}",
        ]
    )
    return _boxed(draw, gold, answer)


def restated(draw: Draw) -> Pair:
    """The problem itself instead of its value."""
    a, b, c = (draw.randint(2, 30) for _ in range(3))
    gold, answer = draw.choice(
        [
            (a + b, f"{a}+{b}"),
            (a - b, f"{a}-{b}"),
            (a * b, rf"{a} \times {b}"),
            (a * b, rf"{a} \cdot {b}"),
            (a * b + c, rf"{a} \cdot {b} + {c}"),
            (a + b + c, f"{a}+{b}+{c}"),
            (c * (a + b), f"{c}({a}+{b})"),
            (a * a, rf"\int_0^{{{a}}} 2x \, dx"),
            (b, rf"\int_{{0}}^{{1}} {b} \, dt"),
            (a * (a + 1) // 2, rf"\sum_{{k=1}}^{{{a}}} k"),
            (24, r"\prod_{k=1}^{4} k"),
            (a, rf"\lim_{{x \to 0}} \frac{{\sin({a}x)}}{{x}}"),
            (a % b, rf"{a} \bmod {b}"),
            (a % b, rf"{a} \mod {b}"),
            (max(a, b), rf"\max({a}, {b})"),
            (2 * a, rf"\frac{{d}}{{dx}} (x^2) \big|_{{x={a}}}"),
            (a * a + b, rf"{a}^2 + {b}"),
            (a, rf"\lfloor {a}.5 \rfloor"),
        ]
    )
    if draw.random() < 0.2:
        whole = a * b + c
        return (
            _boxed(draw, rf"\frac{{{whole}}}{{{b}}}", rf"{a} + \frac{{{c}}}{{{b}}}")
            if c % b
            else _boxed(draw, str(a + b), f"{b}+{a}")
        )
    return _boxed(draw, str(gold), answer)


def towers(draw: Draw) -> Pair:
    """What no computer can write out, beside golds of every kind."""
    gold = draw.choice(
        [r"\sqrt 2", "7", "x+1", r"\pi", "(1,2)", r"\{1,2\}", r"\frac12", "[0,1)", r"\lfloor x \rfloor", "yes"]
    )
    a, b, c = draw.randint(2, 9), draw.randint(2, 12), draw.choice([100, 99, 10**3, 10**6])
    huge = draw.choice(["10^9", "10^{12}", str(10**9), "2^{40}", "9" * 11])
    tower = draw.choice(
        [
            f"{a}^{{{b}^{{{c}}}}}",
            f"{a}^{{{b}^{{{a}^{{{b}}}}}}}",
            f"{a}^({b}^{c})",
            f"{a}**{b}**{c}",
            rf"\prod_{{k=1}}^{{{huge}}} k",
            rf"\sum_{{k=1}}^{{{huge}}} \frac{{1}}{{k}}",
            rf"\sum_{{n=0}}^{{{huge}}} n^{{{a}}}",
            f"({huge})!",
            f"{c}!!!",
            rf"\binom{{{huge}}}{{{c}}}",
            rf"\lfloor {a}^{{{b}^{{{c}}}}} \rfloor",
            rf"\sqrt{{{a}^{{{b}^{{{c}}}}}}}",
            rf"\log({a}^{{{b}^{{{c}}}}})",
            rf"\int_0^1 {a}^{{{b}^{{{c}}}}} dx",
            rf"{a}^{{{huge}}} \bmod {b}",
            rf"(x+1)^{{{huge}}}",
            rf"\frac{{{huge}!}}{{{c}!}}",
            rf"{a}\uparrow\uparrow {b}",
        ]
    )
    answer = draw.choice(["%s", "%s+1", r"\frac{%s}{2}", r"\sqrt{2}+%s", "2, %s"]).replace("%s", tower)
    return gold, rf"\boxed{{{answer}}}"


def owed(draw: Draw) -> Pair:
    """Right answers in forms that a reader takes as such."""
    value, other = draw.randint(2, 99), draw.randint(2, 99)
    gold = str(value)
    power, base = draw.randint(2, 4), draw.randint(2, 5)
    letter = draw.choice("ABCDE")
    sign, count = draw.choice(_UNORDERED_FIGURES)
    vertices = "".join(draw.sample("ABCDEFPQR", count))
    return draw.choice(
        [
            (gold, f"<answer>{value}</answer>"),
            (gold, f"<think>perhaps {other}</think>\n<answer> {value} </answer>"),
            (gold, rf"<answer>\boxed{{{value}}}</answer>"),
            (gold, rf"<answer>The result is $\boxed{{{value}}}$.</answer>"),
            (str(power), rf"\boxed{{\log_{base} {base**power}}}"),
            (str(power), rf"\boxed{{\log_{{{base}}}({base**power})}}"),
            (rf"\log_{base} {base**power}", rf"\boxed{{{power}}}"),
            (gold, rf"\boxed{{{other}}}, no, that is wrong: \boxed{{{value}}}"),
            (gold, rf"\boxed{{{other}}}. Wait, and I forgot one case, so \boxed{{{value}}}."),
            (gold, rf"\boxed{{{other}}} or rather \boxed{{{value}}}"),
            (gold, rf"We get \boxed{{{other}}}, correction: \boxed{{{value}}}"),
            (str(value % base), rf"\boxed{{{value} \bmod {base} = {value % base}}}"),
            (str(value % base), rf"\boxed{{{value} \mod {base} = {value % base}}}"),
            (str(base), rf"\boxed{{\sqrt[3]{{{base**3}}}}}"),
            (str(base), rf"\boxed{{∛{base**3}}}"),
            (rf"\sqrt[3]{{{value * 8 + 1}}}", rf"\boxed{{∛{value * 8 + 1}}}"),
            (rf"(-\infty, {value})", rf"\boxed{{(-infinity, {value})}}"),
            (rf"[{value}, \infty)", rf"\boxed{{[{value}, infinity)}}"),
            (rf"\frac{{{value}}}{{101}}", rf"\boxed{{{value}⁄101}}"),
            (rf"{value}^\circ", rf"\boxed{{{value}°}}"),
            (gold, rf"\boxed{{{value}º}}"),
            (_figure(draw, sign, vertices), rf"\boxed{{{_figure(draw, sign, vertices[::-1])}}}"),
            (rf"\angle {vertices[:2]}K = 30^\circ", rf"\boxed{{\angle K{vertices[1::-1]} = 30^\circ}}"),
            (letter, f"I think it's ({letter})."),
            (letter, f"It must be {letter}."),
            (f"({letter})", f"So the answer is option {letter}."),
            (letter, f"The correct choice is ({letter})."),
            (gold, f"答案是{value}。"),
            (gold, f"所以，最终答案为：{value}。"),
            (gold, f"因此答案是 ${value}$。"),
            (gold, f"La réponse est {value}."),
            (gold, f"Réponse finale : {value}"),
            (gold, f"La respuesta es {value}."),
            (gold, f"Por lo tanto, la respuesta final es ${value}$."),
            (gold, f"Respuesta: {value}"),
            (gold, f"Die Antwort ist {value}."),
            (gold, f"Die endgültige Antwort lautet {value}."),
            (gold, f"Antwort: {value}"),
            (gold, f"उत्तर है {value}।"),
            (gold, f"अतः अंतिम उत्तर {value} है।"),
            (gold, f"उत्तर: {value}"),
            (gold, f"الجواب هو {value}."),
            (gold, f"الإجابة النهائية هي {value}."),
            (gold, f"الإجابة: {value}"),
        ]
    )


UNEARNED: dict[str, Callable[[Draw], Pair]] = {
    "one_sided": one_sided,
    "letters": letters,
    "bases": bases,
    "left_over": left_over,
    "prose": prose,
    "chains": chains,
    "restated": restated,
}
EARNED: dict[str, Callable[[Draw], Pair]] = {"owed": owed}


def drawn(make: Callable[[Draw], Pair], count: int, seed: int) -> list[Pair]:
    """`count` different pairs; the same seed gives the same ones."""
    draw = random.Random(seed)
    pairs: dict[Pair, None] = {}
    while len(pairs) < count:
        pairs[make(draw)] = None
    return list(pairs)
