r"""Expands the LaTeX macros that a text defines in the formulas that use them: `\R` becomes `\mathbb{R}`.

Nothing is executed. Reads `\newcommand`, `\providecommand`, `\def` and `\DeclareMathOperator` with braces, without
conditionals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

_DEFINES = re.compile(
    r"\\(?:(?:re)?new|provide)command\*?\s*(?:\{\s*\\(?P<braced>[A-Za-z]+)\s*\}|\\(?P<bare>[A-Za-z]+))"
    r"\s*(?:\[(?P<count>\d)\]\s*(?:\[(?P<default>[^\[\]]{0,200})\]\s*)?)?(?=\{)"
    r"|\\DeclareMathOperator(?P<star>\*?)\s*(?:\{\s*)?\\(?P<operator>[A-Za-z]+)\s*(?:\}\s*)?(?=\{)"
    r"|\\def\s*\\(?P<plain>[A-Za-z]+)\s*(?:(?P<places>(?:#\d)+)\s*)?(?=\{)"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_PLACE = re.compile(r"#([1-9])")
_TOKEN = re.compile(r"\s*(\\[A-Za-z]+|\\?.)", re.DOTALL)
_OPTION = re.compile(r"\s*\[([^\[\]]{0,200})\]")
_SPACE = re.compile(r"\s*")
# Commands without a meaning inside a formula.
_NO_MATHS = re.compile(r"\\(?:ensuremath|xspace|protect)\b\s*")
_BEFORE_PLACE = re.compile(r"(\\[A-Za-z]+)#")
"""`\\bf#1` must not become `\\bfx`."""
MAX_MACROS = 2_000
MAX_BODY = 2_000
"""Characters of a definition or an argument."""
MAX_FORMULA = 20_000
"""Longest formula that is expanded, in characters."""
MAX_ROUNDS = 10
"""Depth of macros in macros; a macro that contains itself stops here, or at the limit of growth."""


class Macro(NamedTuple):
    """`default` is that of the first argument, None where it must be given."""

    arguments: int
    default: str | None
    body: str


def definitions(text: str) -> dict[str, Macro]:
    """Returns name -> macro, the last definition of each; at most `MAX_MACROS`."""
    macros: dict[str, Macro] = {}
    for match in _DEFINES.finditer(text):
        body = _in_braces(text, match.end())
        # Skips a definition without a closing brace, and any beyond the limit: hostile sources may have thousands.
        if body is None or len(macros) >= MAX_MACROS:
            continue
        if match["operator"]:
            starred = f"\\operatorname{match['star']}{{{body}}}"
            macros[match["operator"]] = Macro(0, None, starred)
        else:
            # `\def\a#1#2{...}`: two characters for each place.
            count = int(match["count"] or 0) or len(match["places"] or "") // 2
            name = match["braced"] or match["bare"] or match["plain"]
            body = _BEFORE_PLACE.sub(r"\1 #", _NO_MATHS.sub("", body))
            macros[name] = Macro(count, match["default"], body)
    return macros


def agreed(texts: Iterable[str]) -> dict[str, Macro]:
    """Returns the macros of several texts, without those that two texts define differently."""
    macros: dict[str, Macro] = {}
    disputed: set[str] = set()
    for text in texts:
        for name, macro in definitions(text).items():
            # Chapters of one book may define a name differently: then the meaning is ambiguous.
            if macros.setdefault(name, macro) != macro:
                disputed.add(name)
    return {name: macro for name, macro in macros.items() if name not in disputed}


def used(text: str, macros: Mapping[str, Macro]) -> str:
    """Returns the definitions of macros that `text` uses but does not define, and of the macros inside them."""
    wanted: dict[str, Macro] = {}
    defined = definitions(text)
    left = [text]
    while left:
        for name in re.findall(r"\\([A-Za-z]+)", left.pop()):
            # The text's own definition wins; a definition that was added is searched for others.
            if name in macros and name not in wanted and name not in defined:
                wanted[name] = macros[name]
                left.append(macros[name].body)
    return "".join(
        f"\\newcommand{{\\{name}}}"
        f"{f'[{macro.arguments}]' if macro.arguments else ''}"
        f"{f'[{macro.default}]' if macro.default is not None else ''}{{{macro.body}}}\n"
        for name, macro in wanted.items()
    )


def expander(macros: Mapping[str, Macro]) -> Callable[[str], str]:
    """Returns a function that writes a formula without these macros; a formula that grows too much stays as it is."""
    if not macros:
        return lambda formula: formula
    # Longest first, so that \Rn is not read as \R.
    names = "|".join(map(re.escape, sorted(macros, key=len, reverse=True)))
    call = re.compile(rf"\\({names})(?![A-Za-z])")

    def expanded(formula: str) -> str:
        # A macro that doubles its argument grows the text exponentially: beyond this the formula stays as written.
        limit = 20 * len(formula) + 1_000
        text = formula
        for _ in range(MAX_ROUNDS if len(formula) <= MAX_FORMULA else 0):
            if not call.search(text):
                return text
            text = _once(text, call, macros)
            if len(text) > limit:
                break
        return formula

    return expanded


def _once(text: str, call: re.Pattern[str], macros: Mapping[str, Macro]) -> str:
    pieces: list[str] = []
    last = 0
    for match in call.finditer(text):
        if match.start() < last:
            continue  # within the arguments of the macro before: left to the next round
        macro = macros[match[1]]
        arguments, end = _arguments(text, match.end(), macro)
        body = _PLACE.sub(lambda place: arguments.get(int(place[1]), ""), macro.body)  # noqa: B023
        before = text[last : match.start()]
        # x_\R must become x_{\mathbb{R}}: an index takes one token.
        is_index = before.rstrip()[-1:] in ("_", "^")
        pieces += [before, f"{{{body}}}" if is_index else body]
        if body[-1:].isalpha() and text[end : end + 1].isalpha():
            pieces.append(" ")  # `\a x` written as `\a{}x`
        last = end
    return "".join([*pieces, text[last:]])


def _arguments(text: str, start: int, macro: Macro) -> tuple[dict[int, str], int]:
    """Returns number -> argument, and where the arguments end; a missing argument is empty."""
    arguments: dict[int, str] = {}
    for number in range(1, macro.arguments + 1):
        # The optional argument is in square brackets, and only the first argument may be optional.
        if number == 1 and macro.default is not None:
            option = _OPTION.match(text, start)
            arguments[1] = option[1] if option else macro.default
            start = option.end() if option else start
            continue
        space = _SPACE.match(text, start)
        place = space.end() if space else start
        body = _in_braces(text, place)
        token = _TOKEN.match(text, start)
        if body is not None:
            arguments[number], start = body, place + len(body) + 2
        elif token and token[1] != "}":
            arguments[number], start = token[1], token.end()
    # `\R{}` ends a macro before a letter; the braces go with it.
    if not macro.arguments and text[start : start + 2] == "{}":
        start += 2
    return arguments, start


def _in_braces(text: str, start: int) -> str | None:
    """Returns the text in the braces that open at `start`; None without braces, or where the text is too long."""
    if text[start : start + 1] != "{":
        return None
    depth = 0
    # Bounded: an open brace must not scan the whole book.
    for place in _BRACE.finditer(text, start, start + MAX_BODY):
        depth += {"{": 1, "}": -1}.get(place[0], 0)
        if depth == 0:
            return text[start + 1 : place.start()]
    return None
