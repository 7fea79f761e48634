"""A format of web pages is known everywhere: by its endings and types, by a reader, on the page that lists them."""

from collections import Counter
from itertools import chain
from pathlib import Path

import pytest

from stages.extract_web.readers import READERS
from stages.foundations.page_formats import FORMATS, format_of_name, format_of_response

PROJECT = Path(__file__).resolve().parents[2]


def test_every_format_has_a_reader_and_every_reader_a_format():
    assert READERS.keys() == FORMATS.keys()
    files = (PROJECT / "stages/extract_web/readers").glob("*_reader.py")
    used = {reader.__module__.rpartition(".")[2] for reader in READERS.values()}
    assert used == {file.stem for file in files}


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_recognised_and_named_on_the_page_about_extraction(name):
    form = FORMATS[name]
    assert {format_of_name(f"a{suffix.upper()}") for suffix in form.suffixes} == {name}
    assert {format_of_response(kind, "", b"") for kind in form.media_types} <= {name}
    assert {format_of_response("text/xml", "", b"<?xml?>" + mark) for mark in form.xml_marks} <= {name}
    [listed] = [
        line for line in (PROJECT / "docs/explanation/extraction.md").read_text().split("\n- ") if "Formats:" in line
    ]
    # The list ends with formats that are not read.
    assert form.title in listed.partition("Other files")[0]


def test_no_ending_type_or_mark_means_two_formats():
    of_all = (chain(form.suffixes, form.media_types, form.xml_marks) for form in FORMATS.values())
    assert set(Counter(chain.from_iterable(of_all)).values()) == {1}
