"""A page's source as a tree."""

from __future__ import annotations

from lxml import etree
from lxml.etree import _Element

from stages.extract_web.labels.blocks import decoded


class NotHtml(Exception):
    """The text has no element that an HTML page is made of."""


def parse_html(content: str) -> _Element:
    """The root of the page's tree, without comments of its source; NotHtml when there is nothing to parse."""
    try:
        root = etree.fromstring(decoded(content), etree.HTMLParser(remove_comments=True, remove_pis=True))
    except (etree.ParserError, etree.XMLSyntaxError, ValueError) as error:
        raise NotHtml(str(error)) from error
    if root is None:
        raise NotHtml("no element")
    return root
