"""Hooks of the docs site, which mkdocs calls (mkdocs.yml).

Pages are read on GitHub too, where a link may lead to any file of the repository. The site has only docs/.
"""

from __future__ import annotations

import re
from posixpath import dirname, join, normpath
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
BOOSTS = {"how-to": 2.0, "reference": 2.0, "evidence": 0.5}
"""By folder: a search should find what to do, and the meaning of a word, before a measurement."""


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Returns the page with plain text in place of links that lead out of docs/."""
    address = page.file.src_uri
    page.meta["search"] = {"boost": BOOSTS.get(dirname(address), 1.0)}

    def shown(link: re.Match[str]) -> str:
        is_outside = normpath(join(dirname(address), link[2])).startswith("..")
        return link[1] if is_outside else link[0]

    return LINK.sub(shown, markdown)
