r"""Reads LaTeX into exercises: a scanner finds environments and commands for exercises, solutions and answers.

No macro is run. Environments are known by the beginning of their names (`exercise`, `nexercise`, `prob`, `soln`),
commands by their names (`\question`, `\answer{...}`). A solution may also be a footnote of its exercise. Comments are
left out. The file's macros are expanded in formulas; in the text only those that are plain words, once.

The second half turns a piece of LaTeX into text: formulas stay, layout commands go, lists and tables become lines.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from stages.algorithms.latex_macros import definitions, expander
from stages.extract_web.blocks import Unreadable, tidy
from stages.extract_web.exercises import Exercise
from stages.extract_web.readers.formulas import of_environment

_COMMENT = re.compile(r"(?<!\\)%[^\n]*\n?")
_THEOREM = re.compile(r"\\newtheorem\*?\s*\{([A-Za-z]+)\}\s*(?:\[\w+\])?\s*\{([^{}]{1,60})\}")
_DEFINED = re.compile(r"\\(?:re)?new(?:environment|command)\*?\s*\{?\\?([A-Za-z]+)\}?\s*(?:\[[^\]]*\]){0,2}\s*(?=\{)")
_TITLE = re.compile(r"\b(exercise|problem|question|solution|answer|hint)s?\b", re.I)
"""Text before the argument of a definition in the preamble, or the environment that it begins."""
# A longer definition is layout, and its words name no part.
MAX_DEFINITION_CHARACTERS = 300
_MACRO = re.compile(r"\\(?:re)?newcommand\*?\s*\{?\\([A-Za-z]+)\}?\s*\{([^{}\\]{0,200})\}")
_EVENT = re.compile(
    r"\\(?P<which>begin|end)\s*\{(?P<name>[A-Za-z]+\*?)\}"
    r"|\\(?P<command>[A-Za-z]*(?:exercise|problem|question|solution|answer|ans|sol|hint|footnotetext))\b\*?\s*"
)
# Authors put a letter or two before names that others have defined: `nexercise`.
_PROBLEM = re.compile(
    r"(?:[a-z]{0,2}(?:exercise|example|exmp|problem|question)|exer|ex|prob|prb|ques|practice)\*?", re.I
)
_SOLUTION = re.compile(r"(?:[a-z]{0,2}(?:solution|soln|sol)|solutionor[a-z]+|explanation)\*?", re.I)
_ANSWER = re.compile(r"(?:answer|ans)\*?", re.I)
_ASIDE = re.compile(r"hints?\*?", re.I)
# Between an exercise and its solution there may be commands and spaces, but no word.
_BETWEEN = re.compile(r"\\(?:begin|end)\s*\{[^{}]*\}|\\label\s*\{[^{}]*\}|\\[A-Za-z]+\*?|[\s{}\[\]~]+")
_OPENS = re.compile(
    r"\\(?:question|item|problem|exercise|part|section|subsection|chapter)\b\*?(?:\[[^\[\]\n]{0,80}\])?|\n\s*\n"
)
_HEADING = re.compile(
    r"\\(?:chapter|(?:sub){0,2}section|(?:sub)?paragraph)\*?\s*\{([^{}\n]{0,120})\}|\\end\s*\{document\}"
)
_HEADED = re.compile(
    r"(?:(exercise|problem|question)\s+[A-Z]?\d[\w.()-]{0,12}|(solution|answer)(?:\s+[A-Z]?\d[\w.()-]{0,12})?)"
    r"\s*[:.]?(?:\s*\([^()]*\))?",
    re.I,
)
_OPTION = re.compile(r"\[[^\[\]\n]{0,80}\]")
"""An optional argument right after `\\begin{solution}`: a title, points, or room on paper."""
MAX_EVENTS = 200_000
MIN_STATED_CHARACTERS = 20
"""An environment's argument of at least this length is the problem, a shorter one its title."""


@dataclass(frozen=True, slots=True)
class _Piece:
    part: str
    start: int
    inner: int
    inner_end: int
    end: int


def read_latex(content: str) -> list[Exercise]:
    """Returns the exercises in order, including those without a solution; Unreadable for hostile files."""
    source = _with_macros(_COMMENT.sub("", content.replace("\r\n", "\n")))
    # Headings only where no environment is an exercise: a section "Exercise 1" may contain environments.
    pieces = _pieces(source, _defined(source)) or _headed_pieces(source)
    problems = [piece for piece in pieces if piece.part == "problem"]
    solves = [piece for piece in pieces if piece.part != "problem"]
    found: list[tuple[int, Exercise]] = []
    place = 0
    for index, problem in enumerate(problems):
        limit = problems[index + 1].start if index + 1 < len(problems) else len(source)
        while place < len(solves) and solves[place].start < problem.start:
            found += _unlabelled(source, solves[place], found)
            place += 1
        own: list[_Piece] = []
        end = problem.end
        while place < len(solves) and solves[place].start < limit:
            if solves[place].start >= problem.end and _BETWEEN.sub("", source[end : solves[place].start]):
                break
            own.append(solves[place])
            end = max(end, solves[place].end)
            place += 1
        found.append((end, _exercise(source, problem, own)))
    for piece in solves[place:]:
        found += _unlabelled(source, piece, found)
    return [exercise for _, exercise in found if exercise.problem]


def _with_macros(source: str) -> str:
    defined = definitions(source)
    if defined:
        expanded = expander(defined)
        source = MATH.sub(lambda formula: expanded(formula[0]), source)
    macros = dict(_MACRO.findall(source)[:500])
    if not macros:
        return source
    used = re.compile(
        r"\\(" + "|".join(map(re.escape, sorted(macros, key=len, reverse=True))) + r")(?![A-Za-z])(?:\{\})?"
    )
    # A hostile macro could grow the file without bound.
    limit = 4 * len(source) + 10_000
    replaced = used.sub(lambda macro: macros[macro[1]], source)
    return replaced if len(replaced) <= limit else source


def _defined(source: str) -> dict[str, str]:
    """Returns names that the preamble defines -> the part that their title or their first words name."""
    preamble = source[: max(source.find(r"\begin{document}"), 0)]
    found = {name: title for name, title in _THEOREM.findall(preamble)}
    ends = brace_ends(preamble)
    for one in _DEFINED.finditer(preamble):
        inner = braced(preamble, one.end(), ends)
        if inner and inner[1] - inner[0] <= MAX_DEFINITION_CHARACTERS:
            found[one[1]] = preamble[inner[0] : inner[1]]
    # A name that says its part needs no title.
    titles = {name: _TITLE.search(text) for name, text in found.items() if not _part_of(name)}
    parts = {"exercise": "problem", "question": "problem", "hint": "aside"}
    return {name: parts.get(title[1].lower(), title[1].lower()) for name, title in titles.items() if title is not None}


def _part_of(name: str) -> str:
    for part, pattern in (("problem", _PROBLEM), ("solution", _SOLUTION), ("answer", _ANSWER), ("aside", _ASIDE)):
        if pattern.fullmatch(name):
            return part
    return ""


def _pieces(source: str, named: dict[str, str]) -> list[_Piece]:
    """Environments and commands that are parts, in order; inner parts of the same kind are left to the outer."""
    found: list[_Piece] = []
    open_ones: list[tuple[str, int, int]] = []
    ends = brace_ends(source)
    # The preamble defines these names, and the definitions would be read as parts.
    begin = max(source.find(r"\begin{document}"), 0) if named else 0
    # The longest first: a name may be the beginning of another.
    own = "|".join(sorted(map(re.escape, named), key=len, reverse=True))
    events = re.compile(_EVENT.pattern.replace("footnotetext)", f"footnotetext|{own})")) if own else _EVENT
    formulas: list[tuple[int, int]] | None = None
    for count, event in enumerate(events.finditer(source, begin)):
        if count > MAX_EVENTS:
            raise Unreadable("too_many_commands", f"more than {MAX_EVENTS} environments and commands")
        if event["command"]:
            # Searched only when a command needs it, since most files have no such command.
            if formulas is None:
                formulas = [formula.span() for formula in MATH.finditer(source)]
            place = bisect_right(formulas, (event.start(), len(source))) - 1
            if place >= 0 and event.start() < formulas[place][1]:
                continue  # a blank in a formula is not a part
            piece = _command(source, ends, event["command"], event.start(), event.end(), named)
            if piece:
                found.append(piece)
        elif named.get(event["name"]) or _part_of(event["name"]):
            if event["which"] == "begin":
                open_ones.append((event["name"], event.start(), event.end()))
            elif open_ones and open_ones[-1][0] == event["name"]:
                name, start, inner = open_ones.pop()
                part = named.get(name) or _part_of(name)
                found.append(_Piece(part, start, _after_option(source, part, inner), event.start(), event.end()))
    # Outer pieces first, so that inner ones of the same kind are left to them.
    found.sort(key=lambda piece: (piece.start, -piece.end))
    kept: list[_Piece] = []
    last: dict[str, int] = {}
    for piece in found:
        if piece.start >= last.get(piece.part, 0):
            kept.append(piece)
            last[piece.part] = piece.end
    return kept


def _headed_pieces(source: str) -> list[_Piece]:
    r"""Exercises under numbered headings, `\subsection{Exercise 6.1}`, each with a solution under the next heading."""
    headings = list(_HEADING.finditer(source))
    ends = [*(heading.start() for heading in headings[1:]), len(source)]
    found: list[_Piece] = []
    for heading, end in zip(headings, ends, strict=False):
        title = _HEADED.fullmatch((heading[1] or "").strip())
        follows = found and found[-1].part == "problem" and found[-1].end == heading.start()
        if title and (title[1] or follows):
            part = "problem" if title[1] else title[2].lower()
            found.append(_Piece(part, heading.start(), heading.end(), end, end))
    return found


def _after_option(source: str, part: str, inner: int) -> int:
    """The place after an optional argument at `inner`; that of an exercise may be its text, and is read later."""
    option = _OPTION.match(source, inner) if part != "problem" else None
    return option.end() if option else inner


def _command(
    source: str, ends: dict[int, int], name: str, start: int, after: int, named: dict[str, str]
) -> _Piece | None:
    inner = braced(source, after, ends)
    if inner is None:
        return None
    kind = "footnote" if name == "footnotetext" else named.get(name) or _part_of(name)
    return _Piece(kind, start, inner[0], inner[1], inner[1] + 1) if kind else None


def _exercise(source: str, problem: _Piece, own: list[_Piece]) -> Exercise:
    inside = [piece for piece in own if piece.start < problem.end]
    body = source[problem.inner : min((piece.start for piece in inside), default=problem.inner_end)]
    texts: dict[str, str] = {}
    stated, worked = _argument(body)
    for piece in own:
        part = piece.part
        if part == "footnote":
            # A footnote is a solution only where the exercise carries its mark.
            if r"\footnotemark" not in body or worked:
                continue
            part = "solution"
        texts.setdefault(part, plain(source[piece.inner : piece.inner_end]))
    if worked and "solution" not in texts:
        texts["solution"] = worked
    elif worked:
        stated = f"{stated}\n{worked}"
    answer = texts.get("answer") or None
    return Exercise(stated, texts.get("solution") or answer, answer, "")


def _argument(body: str) -> tuple[str, str]:
    """Returns (problem, worked solution): an argument that asks, then the environment's body solves it."""
    start = len(body) - len(body.lstrip())
    if body[start : start + 1] == "[":
        start = body.find("]", start) + 1
    inner = braced(body, start, brace_ends(body))
    if inner is None or inner[1] - inner[0] < MIN_STATED_CHARACTERS:
        return plain(body[start:] if inner is None else body[inner[1] + 1 :]), ""
    return plain(body[inner[0] : inner[1]]), plain(body[inner[1] + 1 :])


def _unlabelled(source: str, piece: _Piece, found: list[tuple[int, Exercise]]) -> list[tuple[int, Exercise]]:
    r"""Returns the text back to an `\item`, a `\question` or a blank line before a solution without an exercise."""
    if piece.part in ("footnote", "aside"):
        return []
    # Bounded, because a file with only solutions would take quadratic time.
    first = max(found[-1][0] if found else 0, piece.start - 20_000)
    before = source[first : piece.start].rstrip()
    opened = [place.end() for place in _OPENS.finditer(before)]
    problem = plain(before[opened[-1] :] if opened else before)
    solution = plain(source[piece.inner : piece.inner_end])
    answer = solution if piece.part == "answer" else None
    return [(piece.end, Exercise(problem, solution, answer, ""))] if problem and solution else []


# Each form is bounded at 4,000 characters: an opening sign without an end must not swallow the file.
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
"""The beginning of a link, before its words."""
_PICTURE = re.compile(r"\\(?:includegraphics|Figures?)\*?\s*(?:\[[^\]]*\])?\s*(?:\{[^{}]*\})+")
_DRAWING = re.compile(r"\\begin\{(tikzpicture|tikzcd|circuitikz|pspicture|picture|asy)\}")
_ITEM = re.compile(r"\\(?:item|task)\b\s*(?:\[([^\]]{0,40})\])?\s*")
_LINE = re.compile(r"\\\\(?:\*|\[[^\]]*\])?|\\(?:par|newline|(?:line|page)break|(?:small|med|big)skip)\b(?:\[\d\])?")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{([A-Za-z]+)\*?\}(?:\s*\[[^\]]*\])?(?:\(\d+\))?(?:\s*\{[^{}]*\})?")
_UNIT = re.compile(r"\\unit(?:frac)?\s*\[([^\]]{0,80})\]\s*\{([^{}]{0,80})\}(?:\s*\{([^{}]{0,80})\})?")
"""A number in brackets and its unit, a fraction or not."""
_BLANK = re.compile(r"\\(?:fillin|blank|blankline)\b\*?(?:\s*\[[^\[\]]{0,200}\])*")
"""A blank to fill in, with its expected content and its width."""
_FOOTNOTE = re.compile(r"\\(?:footnotemark|footnote)\b")
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?\s*")
_SIGNS = {
    **{f"\\{sign}": sign for sign in "%$&#_{}"},
    **dict.fromkeys(("~", "\\,", "\\ ", "\\;"), " "),
    **dict.fromkeys(("\\-", "\\/"), ""),
    **{"``": "“", "''": "”", "---": "—", "--": "–"},
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
    """Returns (first, end) of the content of the braces at `start`, after spaces; None without braces."""
    while start < len(source) and source[start].isspace():
        start += 1
    return (start + 1, ends[start]) if start in ends else None


def plain(latex: str) -> str:
    """Returns the text with formulas between dollar signs, one line per paragraph or item."""
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
    """Returns the text with each drawing as a picture."""
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
    body = next(found[name] for name in ("double", "single", "round", "square", "inner") if found[name] is not None)
    body = of_environment(body, found["name"])
    return f"${body}$" if found["single"] or found["round"] else f"\n${body}$\n"


def _words(text: str) -> str:
    # A blank line ends a paragraph, a single line end is a space.
    text = re.sub(r"\n[ \t]*\n\s*", "\0", text).replace("\n", " ").replace("\0", "\n")
    text = _PICTURE.sub(" ![]() ", _REFERENCE.sub("[link]", _LINK.sub("", _WITH_ARGUMENT.sub("", text))))
    text = _LINE.sub("\n", _ENVIRONMENT.sub("\n", text))
    text = _ITEM.sub(lambda item: f"\n- {item[1] + ' ' if item[1] else ''}", text)
    text = _COMMAND.sub(" ", _FOOTNOTE.sub("", text))
    # Escaped braces are text and must survive the removal of all other braces.
    kept = _SIGN.sub(lambda sign: {"{": "\1", "}": "\2"}.get(_SIGNS[sign[0]], _SIGNS[sign[0]]), text)
    return kept.replace("{", "").replace("}", "").replace("\1", "{").replace("\2", "}")
