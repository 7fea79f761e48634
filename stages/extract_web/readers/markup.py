"""What the markup of an element says about its content: a part of an exercise, noise, a toggle.

Only words of the trade count, wherever a site puts them (class, id, role, microdata); no rule names a site.
"""

from __future__ import annotations

import re

from lxml.etree import _Element

from stages.extract_web.readers.mathml import name_of, names

NOISE_WORDS = re.compile(
    r"(?:^|[\s_-])(?:nav|navbar|navigation|menu|breadcrumbs?|sidebar|site-?footer|footer|ads?|advert\w*|sponsor\w*"
    r"|promo\w*|cookies?|share|sharing|social|related|recommended|newsletter|subscribe|comments?|copyright|licen[cs]e"
    r"|banner|contentinfo|toolbar|vote|votes|upvotes?|pagination|pager|editsection|byline|avatar|signature|timestamp"
    r"|userinfo|user-?info|user-?card|poster|postauthor|author-?info|tag-?list|tags|post-?menu|tablist)(?:$|[\s_-])",
    re.IGNORECASE,
)
_LABEL_WORDS = re.compile(r"(?:^|[\s_-])(?:label|title|heading|number|num|qno)(?:$|[\s_-])", re.IGNORECASE)
_EMPHASIS = names("b strong em i u")
_PARTS = {
    **dict.fromkeys(("question", "problem", "exercise"), "problem"),
    **dict.fromkeys(("solution", "soln", "sol", "explanation", "generalfeedback"), "solution"),
    **dict.fromkeys(
        ("answer", "ans", "acceptedanswer", "suggestedanswer", "rightanswer", "correctanswer"), "answer"
    ),
    **dict.fromkeys(("hint", "hints"), "aside"),
}
_WRAPS_OR_NAMES = names(
    "list container wrapper wrap section count counts title header heading nav link links btn button toggle toggler "
    "form input meta tags tag actions action controls number num label labels index menu page site set bank sheet "
    "grid group area more ask new write post-link status icon footer info summary tab tabs type id key block-list "
    "navigator asker owner author date time stats views choices options option choice"
)
_FORMULA_WORDS = frozenset(["latex", "tex", "mathtex", "mathjax", "texrender", "mwe"])
_DELIMITERS = re.compile(r"^(?:\$\$?|\\[(\[])|(?:\$\$?|\\[)\]])$")
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_ACCEPTED = frozenset(["accepted", "best", "chosen", "selected", "correct", "verified", "acceptedanswer"])
_TOGGLES = re.compile(r"toggle|collaps|spoiler|reveal|expand|accordion|show|hide", re.IGNORECASE)


def tokens(value: str) -> list[str]:
    """Lower-case words of a class or id, parted at hyphens, underscores and camel case."""
    return [word.lower() for word in _TOKEN.findall(value)]


def own_name(element: _Element) -> str:
    """The name of an element that a page made itself, which HTML wants a hyphen in; empty for HTML's own."""
    return element.tag if "-" in element.tag else ""


def is_marked_noise(element: _Element) -> bool:
    """True for site furniture by class, id or role."""
    return any(
        (value := element.get(attribute)) and NOISE_WORDS.search(value)
        for attribute in ("class", "id", "role")
    )


def is_emphasis(element: _Element, name: str) -> bool:
    """True for what sets off the beginning of a text: bold, italic, or named as a label."""
    return name in _EMPHASIS or bool(_LABEL_WORDS.search(element.get("class") or ""))


def role(element: _Element) -> tuple[str, bool] | None:
    """(part, whether it is the accepted answer) by microdata, class, id or own name; None for other elements."""
    kind = (element.get("itemtype") or "").rstrip("/").rpartition("/")[2].lower()
    given = [
        element.get("itemprop") or "",
        element.get("data-type") or "",
        *(element.get("class") or "").split(),
    ]
    given.append(element.get("id") or "")
    given.append(own_name(element))
    part = {"question": "problem", "answer": "answer"}.get(kind)
    every = [tokens(name) for name in given if name]
    accepted = any(not _ACCEPTED.isdisjoint(words) or "".join(words) == "acceptedanswer" for words in every)
    if part is None:
        for words in every:
            part = part_of_words(words)
            if part:
                break
    return (part, accepted and part == "answer") if part else None


def part_of_words(words: list[str]) -> str | None:
    joined = _PARTS.get("".join(words))
    if joined:
        return joined
    if not words or not _WRAPS_OR_NAMES.isdisjoint(words) or len(words) > 4:
        return None
    parts = {_PARTS[word] for word in words if word in _PARTS}
    return parts.pop() if len(parts) == 1 else None


def is_toggle(element: _Element, name: str) -> bool:
    """True for a link or button that shows or hides a part of the same page."""
    if name == "button" or element.get("onclick") or element.get("role") == "button":
        return True
    if any(
        element.get(attribute)
        for attribute in (
            "aria-controls",
            "aria-expanded",
            "data-toggle",
            "data-bs-toggle",
            "data-target",
            "data-bs-target",
        )
    ):
        return True
    target = element.get("href") or ""
    if name == "a" and (target.startswith(("#", "javascript:")) or not target):
        return True
    return bool(_TOGGLES.search(element.get("class") or ""))


def first_ordinal(element: _Element) -> int | None:
    """The number before the first item of an ordered list; None for letters and Roman numbers."""
    start = element.get("start") or "1"
    is_number = (element.get("type") or "1") == "1" and start.isdecimal() and len(start) <= 6
    return int(start) if is_number else None


def image_text(image: _Element) -> str:
    """A picture of a formula as its TeX; any other image as Markdown, so that later rules see that the text leans on
    one. Counting pixels, and what shows a formula that stands beside it, are left out."""
    if image.get("width") in ("0", "1") or image.get("height") in ("0", "1") or is_rendering(image):
        return ""
    source = (image.get("src") or "").strip()
    alternative = " ".join((image.get("alt") or "").split())
    if alternative and not _FORMULA_WORDS.isdisjoint(tokens(f"{image.get('class') or ''} {source[:200]}")):
        return f" ${_DELIMITERS.sub('', alternative).strip()}$ "
    return f"![{alternative}]({'' if source.startswith('data:') else source})"


def is_rendering(element: _Element) -> bool:
    """True for what shows a formula to the eye and is hidden from assistive software, beside the same as MathML."""
    if element.get("aria-hidden") != "true":
        return False
    return any(
        other is not None
        and not (between or "").strip()
        and (name_of(other) == "math" or other.find(".//math") is not None)
        for other, between in ((element.getprevious(), ""), (element.getnext(), element.tail))
    )
