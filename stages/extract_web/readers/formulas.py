r"""Finds the formulas of an HTML page, in whatever form its generator writes them. Each comes out once, as LaTeX.

A generator writes one formula several times: for the eye, for screen readers, as source and as a preview. `settle`
replaces all of these by one element `FORMULA` at the formula's place. `with_formulas` does the same for formulas
between delimiters in a text. The tables below are the only place that names generators:

| form | source | copies of it |
|---|---|---|
| MathML | TeX annotation, else converted | a picture or spans beside it that are hidden from screen readers |
| MediaWiki | as MathML | the fallback picture in the same box |
| KaTeX | as MathML | its spans for the eye, in the same box |
| MathJax 2 | script `math/tex` or `math/mml`; without one, assistive MathML | preview and rendering before the script |
| MathJax 3, 4 | `data-latex`, assistive MathML or copied text | the rest of `mjx-container` |
| pictures | the address, `data-equation-content` or `alt` | MathML beside it that is hidden from the eye |
| delimiters | the text between them | |
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import unescape
from urllib.parse import unquote, unquote_plus

from lxml import etree
from lxml.etree import _Element

from stages.extract_web.readers.mathml import bare_tex, mathml_to_latex, name_of, names

FORMULA = "retrace-formula"
"""Element of a settled formula: its text is `$...$`, or nothing for a formula without content."""

BOXES = names(
    "mwe-math-element katex katex-display mjx-container "
    "MathJax MathJax_Display MathJax_CHTML mjx-chtml MathJax_SVG MathJax_SVG_Display MathJax_MathML MathJax_PHTML"
)
"""Elements, by name or class, that hold all forms of one formula."""
PREVIEW = "MathJax_Preview"
SOURCE_ATTRIBUTES = ("data-latex", "data-tex", "data-equation-content")
SOURCE_TEXTS = (names("math inline"), names("math display"), names("js-render-math"), names("katex-error"))
"""Classes of elements whose text is LaTeX without delimiters: Pandoc's, GitLab's, and those KaTeX could not draw."""
HIDDEN_FROM_EYE = names("hidden-readable sr-only visually-hidden screen-reader-text tex-text")
_NO_DISPLAY = re.compile(r"display\s*:\s*none")

IMAGE_CLASSES = names(
    "latex latexcenter tex texrender tex-image mathtex equation_image ql-img-inline-formula ql-img-displayed-equation "
    "mwe-math-fallback-image-inline mwe-math-fallback-image-display"
)
"""Classes of pictures whose `alt` is the formula's source."""
_ALT_ADDRESS = re.compile(
    r"/media/math/render/|/wikipedia/[a-z]+/math/|upload\.wikimedia\.org/math/|/_images/math/|quicklatex\.com-"
    r"|latex\.artofproblemsolving\.com/|/filter/tex/pix\.php"
)
"""Addresses that hold a hash, of pictures whose `alt` is the formula's source."""
_KEYED_ADDRESS = re.compile(r"[?&](?:latex|tex|math|equation|(?<=cht=tx&)chl)=([^&]+)", re.IGNORECASE)
"""The source is a form's value: WordPress, Zhihu, GitHub's and Google's charts."""
_BARE_ADDRESS = re.compile(r"(?:codecogs\.com/[\w./]*|(?:math|mime)tex\.\w+)\?(.+)", re.IGNORECASE | re.DOTALL)
"""The source is the whole query: CodeCogs, mathTeX, mimeTeX."""
_PATH_ADDRESS = re.compile(r"(?:/equation_images/|//i\.upmath\.me/\w+/)([^?]+)")
"""The source is the end of the path: Canvas, which encodes it twice, and Upmath."""
_IMAGE_OPTIONS = re.compile(
    r"\A(?:\s|\\(?:dpi\s*\{\d+\}|bg(?:_\w+|\s*\{\w+\})|fn_\w+|inline|tiny|small|normalsize|large|Large|LARGE|huge"
    r"|opaque)(?![A-Za-z])|\\,)+"
)
"""Settings of size and colour before a formula."""
_ADDRESSES = ("src", "data-src", "data-lazy-src", "data-original")
_IS_DELIMITED = re.compile(r"\s*(?:\$.+\$|\\\(.+\\\)|\\\[.+\\\])\s*", re.DOTALL)
_IS_TEX = re.compile(r"\\[A-Za-z]{2,}\s*[\[{(^_]|[\^_]\{")
"""A description in words has none of these."""
_IS_WORDS = re.compile(r"(?!.*[\\^_{}=<>+*/|])(?:.*\b[^\W\d_]{2,}\s+[^\W\d_]{2,}\b|.*\b[^\W\d_]{4,}\b)", re.DOTALL)
"""A description or a flag where a source may be: two words or a long one, and no sign of a formula."""
_IS_DRAWING = re.compile(r"\[asy\]|\\begin\{(?:tikzpicture|tikzcd|asy|pspicture|circuitikz)\}|\\(?:draw|xymatrix)\b")
_MATHML_QUOTES = str.maketrans("«»¨§`", "<>\"&'")
"""MathType keeps MathML in attributes with these signs."""
MAX_CLIMB = 4
"""Elements around a formula, with nothing else in them, whose neighbours may be its copies."""
_INLINE = names("span nobr img svg i") | {FORMULA}
_NO_FORMULAS = names("html body button option input textarea")
"""Buttons of editors have the formula that they insert in an attribute."""
_BLOCKS = ("p", "li", "h1", "h2", "h3", "h4", "h5", "h6", "article", "section", "pre", "form")
"""No formula contains these: such an element only has the class of one."""
_WRITTEN = etree.XPath(
    "//*[self::math or self::img or self::mjx-container or substring-after(name(), ':') = 'math'"
    " or (self::script and starts-with(@type, 'math/')) or contains(@class, 'ath') or contains(@class, 'katex')"
    " or contains(@class, 'mjx') or contains(@class, 'mwe-') or @data-latex or @data-tex or @data-equation-content]"
)


def settle(root: _Element) -> None:
    """Replaces each formula under `root` by one element `FORMULA`, and removes its copies.

    A formula whose source is nowhere becomes an empty picture, so that later rules see that the text has a gap.
    """
    settled: set[_Element] = set()
    for element in _WRITTEN(root):
        if element in settled or element.getparent() is None:
            continue
        form = _form(element)
        if not form:
            continue
        settled.update(element.iter())
        if form != "script" and _is_copy(element, form):
            _remove(element)
        elif form != "preview":
            _replace(element, form, settled)


def _form(element: _Element) -> str:
    """Returns how the element writes a formula: math, script, image, box, text or preview; "" if it writes none."""
    name = name_of(element)
    if name == "math":
        return "math"
    if name == "script":
        return "script" if re.match(r"math/(?:tex|mml)", element.get("type") or "") else ""
    if name == "img":
        return "image" if _of_image(element) else ""
    classes = frozenset((element.get("class") or "").split())
    if PREVIEW in classes:
        return "preview"
    is_box = name in BOXES or not BOXES.isdisjoint(classes) or any(map(element.get, SOURCE_ATTRIBUTES))
    is_text = is_box or any(kind <= classes for kind in SOURCE_TEXTS)
    # Before its script has run, a box may hold the source as its only text.
    if is_text and not len(element) and (element.text or "").strip() and not any(map(element.get, SOURCE_ATTRIBUTES)):
        return "text"
    is_whole = name not in _NO_FORMULAS and next(element.iter(*_BLOCKS), None) is None
    return "box" if is_box and is_whole else ""


def _is_copy(element: _Element, form: str) -> bool:
    """True for MathJax's preview or rendering of the formula that follows, with nothing between them."""
    if form not in ("preview", "box", "text"):
        return False
    following = _beside(element)
    for _ in range(MAX_CLIMB):
        next_form = _form(following) if following is not None else ""
        if next_form == "script" or (form == "preview" and next_form in ("box", "text", "math")):
            return True
        if form == "text" or next_form not in ("preview", "box"):
            return False
        following = _beside(following)
    return False


def _beside(element: _Element) -> _Element | None:
    """Returns the next element, if no text is between, also if the elements around this one end first."""
    for _ in range(MAX_CLIMB):
        if (element.tail or "").strip():
            return None
        following = element.getnext()
        if following is not None:
            return following
        element = element.getparent()
        if element is None:
            return None
    return None


def _replace(element: _Element, form: str, settled: set[_Element]) -> None:
    latex, after = _latex_of(element, form)
    is_gap = latex is None
    # A picture without words shows later rules that the text depends on something that is not there.
    formula = etree.Element("img" if is_gap else FORMULA)
    formula.text = f"${latex}$" if latex else None
    formula.tail = after + (element.tail or "")
    hidden = element.get("aria-hidden")
    if hidden:
        formula.set("aria-hidden", hidden)
    element.getparent().replace(element, formula)
    if not is_gap and hidden != "true":
        _remove_copies(formula, settled)


def _remove_copies(formula: _Element, settled: set[_Element]) -> None:
    """Removes what is right beside the formula, or beside elements with only the formula, and hidden from someone."""
    anchor = formula
    for _ in range(MAX_CLIMB):
        while (copy := _hidden_copy(anchor)) is not None:
            settled.update(copy.iter())
            _remove(copy)
        parent = anchor.getparent()
        is_alone = parent is not None and len(parent) == 1 and not (parent.text or "").strip()
        if not is_alone or (anchor.tail or "").strip() or parent.getparent() is None or parent.tag in _BLOCKS:
            return
        anchor = parent


def _hidden_copy(anchor: _Element) -> _Element | None:
    """Returns an element before or after this one, with nothing between, that repeats its formula for some readers."""
    before, after = anchor.getprevious(), anchor.getnext()
    for other, between in ((before, before.tail if before is not None else ""), (after, anchor.tail)):
        if other is None or (between or "").strip() or name_of(other) not in _INLINE:
            continue
        if other.get("aria-hidden") == "true" or not HIDDEN_FROM_EYE.isdisjoint((other.get("class") or "").split()):
            return other
        # Without a formula in it this may be a hidden solution.
        is_hidden = _NO_DISPLAY.search(other.get("style") or "") is not None
        if is_hidden and (other.find(".//math") is not None or _IS_DELIMITED.fullmatch("".join(other.itertext()))):
            return other
    return None


def _remove(element: _Element) -> None:
    """Removes the element and keeps the text after it."""
    parent, before, tail = element.getparent(), element.getprevious(), element.tail or ""
    if before is not None:
        before.tail = (before.tail or "") + tail
    else:
        parent.text = (parent.text or "") + tail
    parent.remove(element)


def _latex_of(element: _Element, form: str) -> tuple[str | None, str]:
    """Returns the LaTeX without dollar signs, None if its source is nowhere, and punctuation that follows it."""
    match form:
        case "math":
            return _of_math(element)
        case "image":
            return _of_image(element), ""
        case "text":
            return bare_tex(element.text or ""), ""
        case "script":
            is_mathml = (element.get("type") or "").startswith("math/mml")
            return _of_markup(element.text or "") if is_mathml else (bare_tex(element.text or ""), "")
    return _of_box(element)


def _of_box(box: _Element) -> tuple[str | None, str]:
    """The forms in a box by trust: its author's source, MathML, a picture, MathML in an attribute, a text to copy."""
    inside = list(box.iter(etree.Element))
    source = next((one for inner in inside for one in map(inner.get, SOURCE_ATTRIBUTES) if one), "")
    if source:
        return bare_tex(source), ""
    for inner in inside:
        if name_of(inner) == "math":
            return _of_math(inner)
    for inner in inside:
        latex = _of_image(inner) if inner.tag == "img" else None
        if latex:
            return latex, ""
        if inner.get("data-mathml"):
            return _of_markup(inner.get("data-mathml") or "")
        if not len(inner) and _IS_DELIMITED.fullmatch(inner.text or ""):
            return bare_tex(inner.text or ""), ""
    return None, ""


def _of_math(math: _Element) -> tuple[str | None, str]:
    # Wikis leave `<math>x^2</math>` where their extension is off.
    return mathml_to_latex(math) if len(math) else (bare_tex(math.text or ""), "")


def _of_markup(markup: str) -> tuple[str | None, str]:
    """Reads MathML out of an attribute or script."""
    if "«" in markup:
        markup = markup.translate(_MATHML_QUOTES)
    root = etree.fromstring(f"<html><body>{markup}</body></html>", etree.HTMLParser(remove_comments=True))
    math = next((one for one in root.iter(etree.Element) if name_of(one) == "math"), None)
    return (None, "") if math is None else _of_math(math)


def _of_image(image: _Element) -> str | None:
    """Returns the LaTeX of a picture of a formula, None for other pictures and drawings."""
    # MathType keeps its markup here, and its description in words is no source; older versions have it as description.
    markup = image.get("data-mathml") or image.get("alt") or ""
    if image.get("data-mathml") or markup.startswith("«math"):
        return _of_markup(markup)[0] or None
    content = next(filter(None, map(image.get, SOURCE_ATTRIBUTES)), "")
    addresses = [value for value in map(image.get, _ADDRESSES) if value and not value.startswith("data:")]
    classes = (image.get("class") or "").split()
    return image_latex(image.get("alt") or image.get("title") or "", addresses, classes, content)


def image_latex(
    alternative: str, addresses: Iterable[str], classes: Iterable[str] = (), content: str = ""
) -> str | None:
    """Returns the LaTeX that a picture shows, by its source, its addresses or its description; None without one."""
    is_known = not IMAGE_CLASSES.isdisjoint(classes)
    source = content
    for address in addresses:
        source = source or _of_address(address)
        is_known |= bool(_ALT_ADDRESS.search(address))
    if not source and (is_known or _IS_DELIMITED.fullmatch(alternative) or _IS_TEX.search(alternative)):
        source = alternative.removeprefix("LaTeX:")
    is_other = _IS_DRAWING.search(source) or (source != content and _IS_WORDS.match(source))
    return None if is_other else bare_tex(source) or None


def _of_address(address: str) -> str:
    keyed, bare, path = (form.search(address) for form in (_KEYED_ADDRESS, _BARE_ADDRESS, _PATH_ADDRESS))
    if keyed:
        return _IMAGE_OPTIONS.sub("", unescape(unquote_plus(keyed[1])))
    if bare:
        # CodeCogs writes blanks and plus signs as entities that HTML does not have.
        return _IMAGE_OPTIONS.sub("", unescape(unquote(bare[1].replace("&space;", " ").replace("&plus;", "+"))))
    return unquote(unquote(path[1])) if path else ""


ALIGNED = names("align eqnarray alignat flalign gather multline")
"""Environments of several lines."""
_UNSEEN = re.compile(r"\\label\s*\{[^{}]*\}|\\notag\b|\\nonumber\b")
_TAGS = r"latex|tex|itex|math|imath|dmath"
# A formula is bounded, and none contains the beginning of another one, so that a page of openings stays linear.
_DELIMITED = re.compile(
    # The description of a picture is none. Markdown escapes brackets in it.
    r"!\[(?P<picture>[^\n]{0,2000}?)\]\([^()\n]{0,500}\)|"
    r"(?<!\\)\\\((?P<round>(?:[^\\]|\\[^()\[\]]){1,4000}?)\\\)"
    r"|(?<!\\)\\\[(?P<square>(?:[^\\]|\\[^()\[\]]){1,4000}?)\\\]"
    r"|(?<![\\$])\$\$(?P<double>[^$]{1,4000})\$\$(?!\$)"
    r"|(?<![\\$])\$(?P<is_wordpress>latex\s+)?(?P<single>(?![\s$])(?:\\.|[^$\\]){0,1000}(?<![\s\\]))\$(?![\d$])"
    rf"|\[(?P<tag>{_TAGS})\](?P<tagged>(?:[^\[]|\[(?!/?(?:{_TAGS})\])){{1,4000}}?)\[/(?P=tag)\]"
    r"|\\begin\{(?P<name>equation|displaymath|align|eqnarray|alignat|flalign|gather|multline)(?P<star>\*?)\}"
    r"(?P<inner>(?:[^\\]|\\(?!(?:begin|end)\{(?P=name))){1,4000}?)\\end\{(?P=name)(?P=star)\}",
    re.DOTALL,
)


def with_formulas(text: str) -> str:
    """Returns the text with its delimited formulas between dollar signs and without their comments.

    Dollar signs of prices stay: a formula neither begins nor ends with a blank, and no digit follows it.
    """
    if "$" not in text and "\\" not in text and "[/" not in text:
        return text
    return _DELIMITED.sub(_written, text)


def _written(found: re.Match[str]) -> str:
    name = found["name"]
    is_settled = found["picture"] is not None or ("%" not in found[0] and not found["is_wordpress"])
    if is_settled and found[0][0] in "!$":
        return found[0]
    body = next(found[form] for form in ("round", "square", "double", "single", "tagged", "inner") if found[form])
    signs = "$$" if found["double"] else "$"
    return f"{signs}{of_environment(bare_tex(body), name)}{signs}"


def of_environment(body: str, name: str | None) -> str:
    """Returns a displayed formula in one line without its numbering; environments of several lines are `aligned`."""
    body = " ".join(_UNSEEN.sub("", body).split())
    return rf"\begin{{aligned}} {body} \end{{aligned}}" if name in ALIGNED else body
