"""Pages for people: every link and anchor leads somewhere, the docs site lists every page once, sentences are short."""

import functools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from pipelines import docs_site
from pipelines.commands.reference import MADE

PROJECT = Path(__file__).resolve().parents[2]
SITE = yaml.safe_load((PROJECT / "mkdocs.yml").read_text())
PAGES = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("*/README.md"), *(PROJECT / "docs").rglob("*.md")])
# Without measurements, and without pages whose sentences are in the code.
PROSE = [page for page in PAGES if re.match("README|docs/(?!evidence)", page.relative_to(PROJECT).as_posix())]
PROSE = [page for page in PROSE if not page.read_text().startswith(MADE)]
MOST_WORDS = 30
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@functools.cache
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


def sentences(text):
    """Sentences outside of code, tables and headings, with the texts of links alone."""
    text = re.sub(r"^ *```.*?^ *```$|^ *[|#].*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    for paragraph in re.split(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )", text):
        plain = re.sub(r"\]\([^)]*\)", "]", " ".join(paragraph.split()))
        yield from re.split(r"(?<=[.!?])[*)\"]*\s+(?=[A-Z0-9`*\[\"(])", plain)


def test_the_sentences_of_a_page_by_hand():
    text = (
        "# Not\none [two](x.md) `a.b c`.\n| no |\n```\nno\n```\nThree\nfour? **five** (six.) Seven:\n- eight\n 2. nine"
    )
    parts = ["one [two] `a.b c`.", "Three four?", "**five** (six.", "Seven:", "- eight", "2. nine"]
    assert [part for part in sentences(text) if part] == parts


@pytest.mark.parametrize("page", PROSE, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_sentences_are_short(page):
    words = {sentence: len(re.findall(r"\S*\w\S*", sentence)) for sentence in sentences(page.read_text())}
    assert not [sentence for sentence, number in words.items() if number > MOST_WORDS]


@pytest.mark.parametrize("page", sorted((PROJECT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_a_list_or_table_begins_after_an_empty_line(page):
    """Otherwise the docs site shows it as a part of the paragraph above, though GitHub does not."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    blocks = [block.strip("\n").split("\n") for block in re.split(r"\n\s*\n", text)]
    paragraphs = [block for block in blocks if not re.match(r"[-*#|>]|\d+\.|\s", block[0])]
    assert not [line for block in paragraphs for line in block if re.match(r"- |\* |\d+\. |\|", line)]
