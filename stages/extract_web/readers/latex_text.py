r"""The text of a piece of LaTeX: formulas kept as they are, layout commands dropped, lists and tables as lines."""

from __future__ import annotations

import re

from stages.extract_web.labels.blocks import tidy

MATH = re.compile(
    r"\$\$(?P<double>[^$]{1,4000})\$\$|(?<!\\)\$(?P<single>(?:\\.|[^$\\]){1,4000})\$"
    r"|\\\((?P<round>.{1,4000}?)\\\)|\\\[(?P<square>.{1,4000}?)\\\]"
    r"|\\begin\{(?P<name>equation|align|gather|multline|eqnarray|displaymath|math|alignat|flalign)(?P<star>\*?)\}"
    r"(?P<inner>.{0,4000}?)\\end\{(?P=name)(?P=star)\}",
    re.DOTALL,
)
_WITH_ARGUMENT = re.compile(
    r"\\(?:label|index|vspace|hspace|foot\w*cite|setlength|setcounter|addtocounter|input"
    r"|color|fontsize|FigureFullPath)\*?\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}(?:\s*\{\\?[^{}]*\})?"
)
_REFERENCE = re.compile(r"\\(?:[A-Za-z]*ref|cite[A-Za-z]*)\*?\s*(?:\[[^\]]*\]){0,2}\s*\{[^{}]*\}")
_LINK = re.compile(r"\\(?:hypertarget|hyperlink|href)\s*\{[^{}]*\}|\\hyperref\s*\[[^\]]*\]")
"""What stands before the words of a link."""
_PICTURE = re.compile(r"\\(?:includegraphics|Figures?)\*?\s*(?:\[[^\]]*\])?\s*(?:\{[^{}]*\})+")
_DRAWING = re.compile(r"\\begin\{(tikzpicture|tikzcd|circuitikz|pspicture|picture|asy)\}")
_ITEM = re.compile(r"\\(?:item|task)\b\s*(?:\[([^\]]{0,40})\])?\s*")
_LINE = re.compile(
    r"\\\\(?:\*|\[[^\]]*\])?|\\(?:par|newline|(?:line|page)break|(?:small|med|big)skip)\b(?:\[\d\])?"
)
_ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\s*\{([A-Za-z]+)\*?\}(?:\s*\[[^\]]*\])?(?:\(\d+\))?(?:\s*\{[^{}]*\})?"
)
_UNIT = re.compile(r"\\unit(?:frac)?\s*\[([^\]]{0,80})\]\s*\{([^{}]{0,80})\}(?:\s*\{([^{}]{0,80})\})?")
"""A number in brackets and its unit, a fraction or not."""
_BLANK = re.compile(r"\\(?:fillin|blank|blankline)\b\*?(?:\s*\[[^\[\]]{0,200}\])*")
"""A blank to fill in, with what belongs into it and its width."""
_FOOTNOTE = re.compile(r"\\(?:footnotemark|footnote)\b")
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?\s*")
_SIGNS = {
    "\\%": "%",
    "\\$": "$",
    "\\&": "&",
    "\\#": "#",
    "\\_": "_",
    "\\{": "{",
    "\\}": "}",
    "~": " ",
    "\\,": " ",
    "\\ ": " ",
    "\\;": " ",
    "\\-": "",
    "``": "“",
    "''": "”",
    "---": "—",
    "--": "–",
    "\\/": "",
}
_SIGN = re.compile("|".join(map(re.escape, sorted(_SIGNS, key=len, reverse=True))))


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def brace_ends(source: str) -> dict[int, int]:
    """Place of each opening brace that closes -> place of its closing brace."""
    ends: dict[int, int] = {}
    opened: list[int] = []
    for found in _BRACE.finditer(source):
        if found[0] == "{":
            opened.append(found.start())
        elif found[0] == "}" and opened:
            ends[opened.pop()] = found.start()
    return ends


def braced(source: str, start: int, ends: dict[int, int]) -> tuple[int, int] | None:
    """(first, end) of what stands in the braces that open at `start`, spaces before them skipped; None without them."""
    while start < len(source) and source[start].isspace():
        start += 1
    return (start + 1, ends[start]) if start in ends else None


def plain(latex: str) -> str:
    """The text with formulas between dollar signs, one line a paragraph or item."""
    latex = _BLANK.sub(" ____ ", _without_drawings(latex))
    latex = _UNIT.sub(lambda unit: f"{unit[1]} {'/'.join(filter(None, unit.groups()[1:]))}", latex)
    pieces, last = [], 0
    for formula in MATH.finditer(latex):
        pieces += [_words(latex[last : formula.start()]), _formula(formula)]
        last = formula.end()
    pieces.append(_words(latex[last:]))
    lines = (line.strip() for line in tidy("".join(pieces)).split("\n"))
    return "\n".join(line for line in lines if line not in ("", "-"))


def _without_drawings(latex: str) -> str:
    """The text with each drawing as a picture."""
    pieces, last = [], 0
    for begin in _DRAWING.finditer(latex):
        if begin.start() >= last:
            end = latex.find(rf"\end{{{begin[1]}}}", begin.end())
            if end < 0:
                break
            pieces += [latex[last : begin.start()], " ![]() "]
            last = latex.index("}", end) + 1
    return "".join([*pieces, latex[last:]])


def _formula(found: re.Match[str]) -> str:
    body = next(
        found[name] for name in ("double", "single", "round", "square", "inner") if found[name] is not None
    )
    body = " ".join(re.sub(r"\\label\s*\{[^{}]*\}|\\notag\b|\\nonumber\b", "", body).split())
    if found["name"] in ("align", "eqnarray", "alignat", "flalign", "gather", "multline"):
        return f"\n$\\begin{{aligned}} {body} \\end{{aligned}}$\n"
    return f"${body}$" if found["single"] or found["round"] else f"\n${body}$\n"


def _words(text: str) -> str:
    text = re.sub(r"\n[ \t]*\n\s*", "\0", text).replace("\n", " ").replace("\0", "\n")
    text = _PICTURE.sub(" ![]() ", _REFERENCE.sub("[link]", _LINK.sub("", _WITH_ARGUMENT.sub("", text))))
    text = _LINE.sub("\n", _ENVIRONMENT.sub("\n", text))
    text = _ITEM.sub(lambda item: f"\n- {item[1] + ' ' if item[1] else ''}", text)
    text = _COMMAND.sub(" ", _FOOTNOTE.sub("", text))
    kept = _SIGN.sub(lambda sign: {"{": "\1", "}": "\2"}.get(_SIGNS[sign[0]], _SIGNS[sign[0]]), text)
    return kept.replace("{", "").replace("}", "").replace("\1", "{").replace("\2", "}")
