"""What the markup of an element says about its content: a part of an exercise, noise, a toggle.

Only words of the trade count, wherever a site puts them (class, id, data-type); no rule names a site.
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
EMPHASIS = names("b strong em i u")
"""What sets off the beginning of a text."""
_PARTS = {
    **dict.fromkeys(("question", "problem", "exercise"), "problem"),
    **dict.fromkeys(("solution", "soln", "sol", "explanation", "generalfeedback"), "solution"),
    **dict.fromkeys(("answer", "ans", "rightanswer", "correctanswer"), "answer"),
    **dict.fromkeys(("hint", "hints"), "aside"),
}
_WRAPS_OR_NAMES = names(
    "list container wrapper wrap section count counts title header heading nav link links btn button toggle toggler "
    "form input meta tags tag actions action controls number num label labels index menu page site set bank sheet "
    "grid group area more ask new write post-link status icon footer info summary tab tabs type id key block-list "
    "navigator asker owner author date time stats views choices options option choice"
)
_TOKEN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_OPENS = names("onclick aria-controls aria-expanded data-toggle data-bs-toggle data-target data-bs-target")


def tokens(value: str) -> list[str]:
    """Lower-case words of a class or id, parted at hyphens, underscores and camel case."""
    return [word.lower() for word in _TOKEN.findall(value)]


def is_marked_noise(element: _Element) -> bool:
    """True for site furniture by class, id or role."""
    return any(
        (value := element.get(attribute)) and NOISE_WORDS.search(value)
        for attribute in ("class", "id", "role")
    )


def role(element: _Element) -> str | None:
    """The part that data-type, class or id name; None for other elements."""
    given = [element.get("data-type") or "", *(element.get("class") or "").split(), element.get("id") or ""]
    return next(filter(None, (part_of_words(tokens(name)) for name in given if name)), None)


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
    return (
        name == "button"
        or element.get("role") == "button"
        or any(element.get(attribute) for attribute in _OPENS)
    )


def image_text(image: _Element) -> str:
    """A picture as Markdown, so that later rules see that the text leans on one."""
    source = (image.get("src") or "").strip()
    alternative = " ".join((image.get("alt") or "").split())
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
