"""Pages for people: every link and anchor leads somewhere, and the docs site lists every page once."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pipelines import docs_site

PROJECT = Path(__file__).resolve().parents[2]
SITE = yaml.safe_load((PROJECT / "mkdocs.yml").read_text())
PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("*/README.md"), *(PROJECT / "docs").rglob("*.md")])
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page):
    """The addresses that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\s-]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def links(page):
    """Links to pages of the project: `file#anchor`."""
    found = re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text()))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def leaves(tree):
    return [tree] if isinstance(tree, str) else [leaf for one in tree for leaf in leaves(next(iter(one.values())))]


def test_the_anchors_of_a_page_by_hand(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A b: `c_d`, e-f\n```bash\n# not one\n```\n## G (h)\n[x](y.md#z) `[no](no.md)` [w](https://a.b)\n"
    )
    assert anchors(page) == {"a-b-c_d-e-f", "g-h"} and links(page) == ["y.md#z"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_every_link_leads_somewhere(page):
    for link in links(page):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{link}: there is no such file"
        assert not anchor or anchor in anchors(target), f"{link}: there is no such heading"


def test_the_site_shows_links_out_of_docs_as_text():
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/one.md"), meta={})
    text = "[a](../tutorial.md#x) [b](two.md) [`c`](../../stages/x.py) [d](../../README.md#y) [e](https://f.g)"
    shown = docs_site.on_page_markdown(text, page, config=None, files=None)
    assert shown == "[a](../tutorial.md#x) [b](two.md) `c` d [e](https://f.g)"
    assert page.meta == {"search": {"boost": 2.0}}


def test_the_site_lists_every_page_once_and_loads_nothing_from_elsewhere():
    pages = {page.relative_to(PROJECT / "docs").as_posix() for page in (PROJECT / "docs").rglob("*.md")}
    listed = leaves(SITE["nav"])
    assert sorted(listed) == sorted(pages)
    assert SITE["strict"] and SITE["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css", "extra"} & SITE.keys()
