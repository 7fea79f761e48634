"""Reads CNXML and PreTeXt into exercises: both mark problems and solutions, so nothing has to be guessed.

The parser resolves no entities, loads no DTD, opens no connection, and recovers from broken markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

from lxml import etree
from lxml.etree import _Element

from stages.algorithms.latex_macros import definitions, expander
from stages.extract_web.blocks import Unreadable, decoded, tidy
from stages.extract_web.exercises import Exercise
from stages.extract_web.page_labels import is_instruction, without_descriptions
from stages.extract_web.readers.mathml import mathml_to_latex, name_of, names

EXERCISES = names("exercise example question problem task activity investigation exploration project webwork")
PROBLEMS = names("problem statement")
APART = names(
    "problem statement solution answer hint title label commentary task webwork feedback response shortdescription"
)
BLOCKS = names(
    "para p list item li ol ul dl row line note figure table tabular sidebyside equation section quote blockquote "
    "statement problem solution answer introduction caption title program pre me men md mdn conclusion"
)
# Programs that make values or drawings, and indexes: they are not text of an exercise.
DROPPED = names(
    "idx index notation latex-image metadata shortdescription description setup pg-code pg-macros colspec source "
    "asymptote sage"
)
_TASKS = names("task webwork")
_SOLVES = names("solution answer")
FORMULAS = names("m me men md mdn alignmath")
REFERENCES = names("xref link url cite")
"""Elements without text: they show the number or title of their target."""
# An item whose text is a separate paragraph would have its mark alone on a line.
_ITEM_OF_PARAGRAPHS = re.compile(r"^(-|\(?(?:[A-Za-z]|\d{1,3})[.)]) *\n\s*(?!-)", re.MULTILINE)
_DOLLARS = re.compile(r"\$[^$]{1,4000}\$")
MAX_DEPTH = 100
MAX_LETTERS = 26


def read_xml(content: str) -> list[Exercise]:
    """Returns the exercises in document order, including those without a solution; Unreadable when parsing fails."""
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        # libxml2's limits on depth and size stay, because pages are hostile.
        huge_tree=False,
        recover=True,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(decoded(content).encode("utf-8"), parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise Unreadable("not_xml", str(error)) from error
    if root is None:
        raise Unreadable("not_xml", "no element")
    _expand_macros(root, content)
    _mark_items(root)
    if _is_exercise(root):  # a separate file, which a book includes
        return list(_exercises(root, ""))
    found: list[Exercise] = []
    _collect(root, "", 0, found)
    return found


def _expand_macros(root: _Element, content: str) -> None:
    """Expands the macros that the file defines, in PreTeXt's `macros` or a comment, in its formulas."""
    # From the source and not the tree: `collect_web` adds macros in a comment, which the parser drops.
    defined = definitions(unescape(content))
    if not defined:
        return
    expanded = expander(defined)
    for element in root.iter(etree.Element):
        if name_of(element) in FORMULAS or name_of(element) == "mrow":
            element.text = expanded(element.text or "")
        elif "$" in (element.text or ""):
            element.text = _DOLLARS.sub(lambda formula: expanded(formula[0]), element.text or "")
        if "$" in (element.tail or ""):
            element.tail = _DOLLARS.sub(lambda formula: expanded(formula[0]), element.tail or "")


def _mark_items(root: _Element) -> None:
    """Adds the letters or numbers of list items (`<ol marker="A.">`): answers refer to them."""
    for items in root.iter("{*}ol"):
        marker = items.get("marker") or items.get("label") or ""
        first = next((sign for sign in marker if sign in "Aa1"), "")
        for place, item in enumerate(items.iterchildren("{*}li") if first else ()):
            number = str(place + 1) if first == "1" else chr(ord(first) + place) if place < MAX_LETTERS else ""
            item.set("mark", marker.replace(first, number))


def _collect(element: _Element, shared: str, depth: int, found: list[Exercise]) -> None:
    """Yields exercises under `element`; `shared` are the instructions that apply there."""
    if depth > MAX_DEPTH:
        return
    for child in element:
        name = name_of(child)
        if name in ("para", "p") and is_instruction(text := _text(child)):
            shared = text
        elif name == "introduction" and name_of(element) == "exercisegroup":
            shared = _text(child)
        elif _is_exercise(child):
            # Content inside belongs to this exercise, so the search does not continue there.
            found += _exercises(child, shared)
            continue
        _collect(child, shared, depth + 1, found)


def _is_exercise(element: _Element) -> bool:
    """True when its parts are marked, or it consists of tasks; both parts make any element an exercise."""
    if name_of(element) in EXERCISES:
        return _part(element, PROBLEMS | _TASKS | _SOLVES) is not None
    return _part(element, PROBLEMS) is not None and _part(element, _SOLVES) is not None


def _exercises(element: _Element, shared: str) -> Iterator[Exercise]:
    """Returns one exercise; or one per task, with the common beginning before its text."""
    tasks = [child for child in element if name_of(child) in _TASKS]
    if not tasks:
        # Without the program the text has gaps: in one book 807 of 4,005 rows have such values.
        if not _is_computed(element):
            yield _exercise(element, "", shared)
        return
    before = [child for child in element if name_of(child) in ("introduction", "statement")]
    beginning = "\n".join(filter(None, map(_text, before)))
    for task in tasks:
        # A task may be only the wrapper of a WeBWorK problem, which then contains the parts.
        inner = next((child for child in task if name_of(child) == "webwork"), task)
        exercise = _exercise(inner, beginning, shared)
        if exercise.problem and not _is_computed(inner):
            yield exercise


def _is_computed(element: _Element) -> bool:
    """True where a program inserts a value: WeBWorK's `<var name="$a"/>`; one with a width or a form is a blank."""
    return any(not (var.get("width") or var.get("form")) for var in element.iter("{*}var") if var.get("name"))


def _exercise(element: _Element, beginning: str, shared: str) -> Exercise:
    stated = _part(element, PROBLEMS)
    if stated is None:
        problem = "\n".join(filter(None, (_text(child) for child in element if name_of(child) not in APART))) or tidy(
            element.text or ""
        )
    else:
        problem = _text(stated)
    solution = _first_text(element, "solution")
    answer = _first_text(element, "answer")
    return Exercise("\n".join(filter(None, (beginning, problem))), solution or answer, answer, "", shared)


def _part(element: _Element, wanted: frozenset[str]) -> _Element | None:
    return next((child for child in element if name_of(child) in wanted), None)


def _first_text(element: _Element, name: str) -> str | None:
    texts = (_text(child) for child in element if name_of(child) == name)
    return next((text for text in texts if text), None)


def _text(element: _Element) -> str:
    pieces: list[str] = []
    _render(element, pieces, 0)
    text = _ITEM_OF_PARAGRAPHS.sub(r"\1 ", tidy("".join(pieces)))
    lines = (line.strip() for line in text.split("\n"))
    return without_descriptions("\n".join(line for line in lines if line not in ("", "-")))


def _render(element: _Element, pieces: list[str], depth: int) -> None:
    """Appends the element's text: blocks on separate lines, formulas between dollar signs."""
    name = name_of(element)
    if not name or depth > MAX_DEPTH or name in DROPPED:
        return
    if name == "math":
        latex, after = mathml_to_latex(element)
        pieces.append((f" ${latex}$" if latex else " ") + after)
    elif name in FORMULAS or (name == "equation" and not len(element)):
        pieces.append(_formula(element, name))
    elif (name in REFERENCES or element.get("ref") or element.get("acro")) and not "".join(element.itertext()).strip():
        # The place stays visible, because filter_web drops problems that depend on other parts of the page.
        pieces.append("[link]")
    elif name in ("media", "image"):
        pieces.append(f" {_image(element)} ")
    elif name in ("newline", "br"):
        pieces.append("\n")
    else:
        _render_children(element, name, pieces, depth)


def _render_children(element: _Element, name: str, pieces: list[str], depth: int) -> None:
    is_block = name in BLOCKS
    if is_block:
        pieces.append(f"\n{element.get('mark') or '-'} " if name in ("item", "li") else "\n")
    opening, closing = {"q": ("“", "”"), "sup": ("^", ""), "sub": ("_", "")}.get(name, ("", ""))
    pieces.append(opening + (element.text or "").replace("\n", " "))
    is_row = name == "row"
    for child in element:
        if isinstance(child.tag, str) and name_of(child) not in ("title", "label", "caption"):
            if is_row and child.getprevious() is not None:
                pieces.append(" | ")
            _render(child, pieces, depth + 1)
        pieces.append((child.tail or "").replace("\n", " "))
    pieces.append(closing + ("\n" if is_block else ""))


def _formula(element: _Element, name: str) -> str:
    rows = ["".join(row.itertext()) for row in element if name_of(row) == "mrow"]
    if rows and name in ("md", "mdn"):
        body = r"\begin{aligned} " + r" \\ ".join(" ".join(row.split()) for row in rows) + r" \end{aligned}"
    else:
        body = " ".join("".join(element.itertext()).split())
    # PreTeXt has these commands because XML reserves the signs. LaTeX and graders know the signs.
    body = body.replace("\\amp", "&").replace("\\lt", "<").replace("\\gt", ">")
    body = rf"\begin{{aligned}} {body} \end{{aligned}}" if name == "alignmath" else body
    return f"${body}$" if name == "m" else f"\n${body}$\n"


def _image(element: _Element) -> str:
    source = next((image.get("src") or image.get("source") or "" for image in element.iter("{*}image")), "")
    return f"![{' '.join((element.get('alt') or '').split())}]({source})"
