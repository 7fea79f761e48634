"""Comments as replies: some forums call every answer a comment, while most sites have comments beside their answers.

So a page is read without its comments first, and with them only where that finds no solution; comments then have to
answer several questions, because one post with comments is what every blog shows.
"""

from __future__ import annotations

import re

from lxml import etree
from lxml.etree import _Element

_NAMED = re.compile(r"""\bclass\s*=\s*["']?[^"'<>]{0,200}?\bcomment""", re.IGNORECASE)
_WORD = re.compile("comment", re.IGNORECASE)


def has_comments(content: str) -> bool:
    """True where the page's source names something a comment."""
    return bool(_NAMED.search(content))


def name_comments_replies(root: _Element) -> None:
    """Changes the tree: classes and identifiers say "reply" where they said "comment"."""
    for element in root.iter(etree.Element):
        for attribute in ("class", "id"):
            given = element.get(attribute)
            if given and _WORD.search(given):
                element.set(attribute, _WORD.sub("reply", given))
