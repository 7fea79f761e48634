r"""Responses that attack a verifier: towers of powers, megabyte boxes, unbalanced braces, code, deep nesting, and more.

Gold answers are of every kind, so that each attack reaches the number rules, the algebra and the sentence reader.
"""

from __future__ import annotations

import random
from collections.abc import Callable

# fmt: off
GOLDS = (
    "41", r"\frac{1}{2}", "x+1", r"\sqrt{2}", "(1, 2)", r"\{1, 2, 3\}", "[0, 1)", r"x^2+y^2=1", "east", "4:30", "B",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"5\text{ cm}", "25\\%", r"2\pi",
)
# fmt: on
_FORMS = (
    r"\boxed{%s}",
    "%s",
    "The answer is %s.",
    "#### %s",
    "Answer: $%s$",
    r"so \[ \boxed{%s} \] and more",
    r"\boxed{\frac{%s}{3}}",
    r"\boxed{8, %s}",
)
_CODE = (
    "__import__('os').system('touch HOSTILE')",
    "open('HOSTILE', 'w').write('x')",
    "exec('while True: pass')",
    "eval(compile('open(\"HOSTILE\",\"w\")', '', 'exec'))",
    r"\input{/etc/passwd}",
    r"\write18{touch HOSTILE}",
    r"\def\a{\a\a}\a",
    "lambda: (yield)",
    "9; import os; os.fork()",
    "${jndi:ldap://x}",
    "'; DROP TABLE answers; --",
    "{{9**9**9}}",
    "%s%s%s%n",
    "<script>9</script>",
    r"\csname\endcsname",
    "().__class__.__bases__[0].__subclasses__()",
)
# fmt: off
_REPEATED = (
    "(", "{", "[", r"\{", r"\left(", "\\", "$", "|", ",", " ", "\n", "9 ", "1,", "-", "^", "_", "^{", "_{", "!", "'",
    r"\frac", r"\frac1", r"\sqrt", r"\sqrt{", r"\text{", r"\boxed{", r"\begin{pmatrix}", "&", r"\\", "x", "9",
    r"\sin", r"\pm", r"\cup", "=", "<", ":", ";", "and ", "answer", "A) ", ".5", "%", r"\%", "²", "½",
)
# fmt: on


def _tower(draw: random.Random) -> str:
    base, height = draw.choice("2359"), draw.randint(3, 9)
    opening, closing = draw.choice([("^{", "}"), ("^(", ")"), ("**(", ")"), ("^{{", "}}")])
    return (base + opening) * height + base + closing * height


def _chain(draw: random.Random) -> str:
    return draw.choice(["**", "^"]).join(draw.choice("3579") for _ in range(draw.randint(4, 12)))


def _factorial(draw: random.Random) -> str:
    digits = "9" * draw.randint(5, 200)
    return draw.choice([f"{digits}!", f"(({digits}!)!)!", f"{digits}!!!", rf"\frac{{{digits}!}}{{{digits[1:]}!}}"])


def _nesting(draw: random.Random) -> str:
    depth = draw.choice([30, 100, 1_000, 20_000])
    pairs = ["( )", "{ }", r"\sqrt{ }", r"\frac{1}{1+ }", "-( )", "| |", r"\sin( )", r"\{ \}", "x^{ }"]
    opening, closing = draw.choice(pairs).split()
    return opening * depth + "9" + closing * (depth + draw.choice([0, 0, 1, -1]))


def _expansion(draw: random.Random) -> str:
    power = draw.choice([9, 60, 999])
    return draw.choice(
        [
            "(" * 4 + "x+1)^" + f"{{{power}}}+y)^{{{power}}}+z)^{{{power}}}+w)^{{{power}}}",
            "(" + "+".join(f"x_{{{n}}}" for n in range(draw.randint(5, 60))) + f")^{{{power}}}",
            "".join(f"(x+{n}y)" for n in range(draw.randint(5, 90))),
            "+".join(rf"\frac{{1}}{{x+{n}}}" for n in range(draw.randint(5, 60))),
            rf"\sum_{{k=1}}^{{{'9' * draw.randint(1, 12)}}} k^{{99}}",
            rf"\prod_{{k=1}}^{{{'9' * draw.randint(1, 6)}}} k",
            rf"\sqrt[{power}]{{{'7' * draw.randint(9, 300)}}}",
            rf"\binom{{10^9}}{{{power}}}",
        ]
    )


def _repetition(draw: random.Random) -> str:
    unit = draw.choice(_REPEATED)
    return unit * (draw.choice([50, 500, 5_000, 100_000]) // len(unit))


def _megabyte(draw: random.Random) -> str:
    return draw.choice(["9", "(", "{}", "x+", "1,", r"\frac{1}{2}", "a "]) * (1_000_000 // 4)


def _code(draw: random.Random) -> str:
    return draw.choice(_CODE) * draw.choice([1, 1, 1, 50])


def _characters(draw: random.Random) -> str:
    alphabet = "\x00\x01\x07\x08\x1b\x7f\u200b\u202e\ufeff\ud800\udfff\U0001f600٣９\r\t\n 9x^{}\\$()"
    return "".join(draw.choice(alphabet) for _ in range(draw.choice([5, 50, 500])))


def _soup(draw: random.Random) -> str:
    return "".join(draw.choice(_REPEATED) for _ in range(draw.choice([5, 20, 80, 300])))


_ATTACKS: tuple[tuple[Callable[[random.Random], str], int], ...] = (
    (_tower, 14),
    (_chain, 8),
    (_factorial, 12),
    (_nesting, 14),
    (_expansion, 6),
    (_repetition, 14),
    (_megabyte, 1),
    (_code, 12),
    (_characters, 9),
    (_soup, 10),
)


def hostile_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Returns (gold answer, response) pairs; the same count and seed give the same pairs."""
    draw = random.Random(seed)
    attacks, weights = zip(*_ATTACKS, strict=True)
    pairs = []
    for attack in draw.choices(attacks, weights, k=count):
        pairs.append((draw.choice(GOLDS), draw.choice(_FORMS).replace("%s", attack(draw))))
    return pairs
