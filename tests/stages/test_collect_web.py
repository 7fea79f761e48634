"""collect_web: every kind of source, every reason for a drop, equal bytes on a second run."""

import gzip
import hashlib
import json
import random
import re
import zlib

import brotli
import psutil
import pytest

from stages.algorithms.digit_tasks import read_problem
from stages.collect_web.generated_pages import STYLES
from stages.collect_web.generated_pages import arithmetic_pages as render_pages
from stages.collect_web.sources import decode
from stages.collect_web.stage import ArithmeticPages
from stages.foundations.errors import UserError
from stages.foundations.machine import MIRROR_VARIABLE
from stages.foundations.tables import DROPPED, PAGE, read_table
from tests.fakes.file_server import serving
from tests.fakes.one_stage import run_stage

GENERATED = {"exercises": 120, "exercises_per_page": 10, "licence": "generated", "answer_only": 0.3, "rambling": 0.1}
GENERATED |= {"unfinished": 0.05, "rambling_without_end": 0.25, "missing_solution": 0.05, "missing_answer": 0.1}
GENERATED |= {"wrong_answer": 0.05, "repeated": 0.1}
ARITHMETIC = GENERATED | {"kind": "arithmetic_pages", "step_error": 0.1}
DIGITS = GENERATED | {"kind": "digit_pages", "exercises": 90, "sizes": {3: 1.0, 6: 1.0}, "coefficients": [2, 3, 4]}
DIGITS |= {"jump": 0.2, "slip": 0.05, "retry": 0.1, "near_misses": 0.3}
HTML = "<html><body><p>Exercise 1: 1+1?</p></body></html>"


def collect(tmp_path, max_page_kib=64, **sources):
    sections = {"seed": 3, "collect_web": {"max_page_kib": max_page_kib, "sources": sources}}
    metrics = run_stage("collect_web", tmp_path / "out", sections)
    dropped = read_table(tmp_path / "out/dropped", DROPPED)
    pages = read_table(tmp_path / "out/pages", PAGE)
    return pages, dict(zip(dropped["row_id"], dropped["reason"], strict=True)), metrics


def folder(path, glob="*"):
    return {"kind": "folder", "path": str(path), "glob": glob, "licence": "CC0"}


def jsonl(path):
    fields = {"content_field": "html", "url_field": "url", "id_field": "page", "format": "html"}
    return {"kind": "jsonl", "path": str(path), "licence": "CC BY 4.0", "max_pages": None} | fields


def warc(path):
    return {"kind": "warc", "path": str(path), "licence": "x", "max_pages": None}


def warc_record(url, body, status="200 OK", kind="text/html; charset=utf-8"):
    http = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n\r\n".encode() + body
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url}\r\nWARC-Date: 2024-01-01T00:00:00Z\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-{abs(hash(url)) % 10**12:012d}>\r\n"
        f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
    )
    return head.encode() + http + b"\r\n\r\n"


def crawl(tmp_path, *records):
    """Returns the pages of an archive of these responses, and one good one after them, and the reasons of drops."""
    path = tmp_path / "crawl.warc"
    path.write_bytes(b"".join([*records, warc_record("http://last", HTML.encode())]))
    pages, reasons, _ = collect(tmp_path, crawl=warc(path))
    *before, last = pages["content"]
    assert last == HTML
    return before, list(reasons.values()), pages["format"].tolist()[:-1]


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_link_out_of_a_folder_is_refused(tmp_path, is_folder):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "page.html").write_text(HTML)
    (tmp_path / "site").mkdir()
    place = tmp_path / "site" / ("deep" if is_folder else "page.html")
    place.symlink_to(outside if is_folder else outside / "page.html")
    with pytest.raises(UserError, match=f"{place} is a link to {outside}"):
        collect(tmp_path, site=folder(tmp_path / "site", "*/*" if is_folder else "*"))


def test_folder(tmp_path):
    contents = {
        "deep/good.html": HTML.encode(),
        "latin.htm": "<p>caf\u00e9 \u00bd</p>".encode("cp1252"),
        "notes.md": b"# Exercise 1\n2+2?",
        "letter.html": b"Dear sir, 3 < 4.",
        "empty.html": b" \n",
        "big.html": b"<p>" + b"x" * 70_000,
        "picture.png": b"\x89PNG",
        "binary.html": b"<p>" + bytes(range(32)) * 40,
    }
    (tmp_path / "site" / "deep").mkdir(parents=True)
    for name, content in contents.items():
        (tmp_path / "site" / name).write_bytes(content)
    pages, reasons, metrics = collect(tmp_path, site=folder(tmp_path / "site", "**/*"))
    assert pages["page_id"].tolist() == ["site/deep/good.html", "site/latin.htm", "site/notes.md"]
    assert pages["format"].tolist() == ["html", "html", "markdown"]
    assert "caf\u00e9 \u00bd" in pages["content"][1]
    assert reasons == {
        "site/big.html": "too_large",
        "site/binary.html": "undecodable",
        "site/empty.html": "empty",
        "site/letter.html": "not_html",
        "site/picture.png": "format_not_known",
    }
    assert metrics["rows/in"] == 8 and metrics["rows/kept"] == 3 == metrics["pages/site"]


def write_list(path, server, contents):
    """Writes a list of pages that the server has; returns the source that names it."""
    rows = ["url\tsha256\tbytes"]
    for name, content in contents.items():
        sha256 = hashlib.sha256(content).hexdigest()
        rows.append(f"http://127.0.0.1:{server.server_port}/book/{name}\t{sha256}\t{len(content)}")
    path.write_text("\n".join(rows) + "\n")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"kind": "listed", "path": str(path), "sha256": sha256, "licence": "CC0", "max_pages": None}


def test_listed_pages_are_fetched_once_and_never_other_ones(tmp_path, monkeypatch):
    monkeypatch.setenv(MIRROR_VARIABLE, "")
    contents = {
        "one/a.html": HTML.encode(),
        "two/a.md": b"# Exercise 1\n2+2?",
        "two/b.png": b"\x89PNG",
        "two/c.html": b"<p>" + b"x" * 70_000,
    }
    site = tmp_path / "site"
    for name, content in contents.items():
        (site / "book" / name).parent.mkdir(parents=True, exist_ok=True)
        (site / "book" / name).write_bytes(content)
    with serving(site) as server:
        book = write_list(tmp_path / "list.tsv", server, contents)
        pages, reasons, metrics = collect(tmp_path, book=book)
        assert pages["page_id"].tolist() == ["book/one/a.html", "book/two/a.md"]
        assert pages["format"].tolist() == ["html", "markdown"] and pages["content"][0] == HTML
        assert reasons == {"book/two/b.png": "format_not_known", "book/two/c.html": "too_large"}
        assert metrics["rows/in"] == 4
        first = (tmp_path / "out" / "pages").read_bytes()
        asked = server.handler.requests
        collect(tmp_path, book=book)
        assert server.handler.requests == asked and (tmp_path / "out" / "pages").read_bytes() == first
        with pytest.raises(UserError, match=r"collect_web\.sources\.book\.sha256 says"):
            collect(tmp_path, book=book | {"sha256": "0" * 64})
        other = write_list(tmp_path / "list.tsv", server, {"one/a.html": b"<p>other</p>"})
        with pytest.raises(UserError, match=r"one/a\.html has sha256 .*, but its sha256 in .*list\.tsv is"):
            collect(tmp_path, book=other)
        (tmp_path / "list.tsv").write_text("url\tsha256\nfile:///etc/passwd\t" + "0" * 64 + "\n")
        sha256 = hashlib.sha256((tmp_path / "list.tsv").read_bytes()).hexdigest()
        with pytest.raises(UserError, match=r"list\.tsv, line 2: no `url`"):
            collect(tmp_path, book=other | {"sha256": sha256})


def test_jsonl_counts_what_it_cannot_use(tmp_path):
    rows = [
        json.dumps({"page": "a", "url": "u", "html": HTML}),
        "{not json",
        json.dumps({"page": "b", "url": "u"}),
        json.dumps({"page": "a", "url": "u2", "html": HTML}),
        json.dumps({"page": "huge", "url": "u", "html": "<p>" + "x" * 2_000}),
        json.dumps({"page": "broken", "url": "u", "html": "<p>\ud800</p>"}),
        json.dumps({"page": "c", "url": "u", "html": "<p>" + "y" * 20_000}),
    ]
    path = tmp_path / "pages.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(rows).encode()))
    pages, reasons, metrics = collect(tmp_path, max_page_kib=1, web=jsonl(path))
    assert pages["page_id"].tolist() == ["web/a"]
    assert reasons == {
        "web/line-2": "row_malformed",
        "web/line-3": "row_malformed",
        "web/a": "duplicate_page_id",
        "web/huge": "too_large",
        "web/broken": "undecodable",
        "web/line-7": "too_large",
    }
    assert metrics["rows/in"] == 7


def unlike_pages(count):
    """Returns pages that do not compress."""
    rng = random.Random(0)
    return [HTML + str(rng.getrandbits(4_000)) for _ in range(count)]


def test_a_truncated_archive_keeps_what_came_before(tmp_path):
    rows = [json.dumps({"page": str(i), "url": "u", "html": page}) for i, page in enumerate(unlike_pages(200))]
    records = [warc_record(f"http://a/{i}", page.encode()) for i, page in enumerate(unlike_pages(50))]
    for name, source, content, least in (
        ("pages.jsonl.gz", jsonl, gzip.compress("\n".join(rows).encode())[:60_000], 1),
        ("plain.warc", warc, b"".join(records)[:-600], 45),
        ("members.warc.gz", warc, b"".join(map(gzip.compress, records))[:-600], 45),
    ):
        (tmp_path / name).write_bytes(content)
        pages, reasons, metrics = collect(tmp_path, some=source(tmp_path / name))
        assert least <= len(pages) < 200 and metrics["rows/in"] == len(pages) + len(reasons)
        assert pages["content"][0].startswith(HTML) and set(reasons.values()) <= {"archive_damaged"}
        assert reasons or source is warc


@pytest.mark.parametrize("is_compressed", [False, True])
def test_warc(tmp_path, is_compressed):
    records = [
        warc_record("http://a/1", "<p>\u00bd</p>".encode()),
        warc_record("http://a/2", b"gone", status="404 Not Found"),
        warc_record("http://a/3", b"%PDF", kind="application/pdf"),
        warc_record("http://a/4", b"<p>" + b"x" * 70_000),
    ]
    path = tmp_path / "crawl.warc"
    path.write_bytes(b"".join(gzip.compress(record) if is_compressed else record for record in records))
    pages, reasons, _ = collect(tmp_path, crawl=warc(path))
    assert pages["url"].tolist() == ["http://a/1"] and "\u00bd" in pages["content"][0]
    assert list(reasons.values()) == ["http_status", "format_not_known", "too_large"]


@pytest.mark.parametrize(
    ("kind", "url", "body", "form"),
    [
        ("text/html; charset=utf-8", "http://a/1.md", HTML, "html"),
        ("application/xhtml+xml", "http://a/1", HTML, "html"),
        ("Text/Markdown", "http://a/1", "# Exercise 1", "markdown"),
        ("text/plain", "http://a/README.md?raw=1", "# Exercise 1", "markdown"),
        ("text/plain", "http://a/notes", "Exercise 1. Compute 1+1.", "text"),
        ("application/x-tex", "http://a/1", r"\section{One}", "latex"),
        ("application/octet-stream", "http://a/book.tex#top", r"\section{One}", "latex"),
        ("application/xml", "http://a/1", '<document xmlns="http://cnx.rice.edu/cnxml">', "cnxml"),
        ("text/xml", "http://a/1", "<?xml version='1.0'?><pretext>", "pretext"),
        ("text/xml", "http://a/feed.xml", "<rss><p>Exercise 1</p></rss>", None),
        ("application/octet-stream", "http://a/1", HTML, None),
        ("application/json", "http://a/1.html", "{}", None),
        ("image/svg+xml", "http://a/1", "<svg/>", None),
        ("", "http://a/1", HTML, "html"),
        ("", "http://a/1", "no element", "not_html"),
    ],
)
def test_warc_responses_are_read_by_their_type(tmp_path, kind, url, body, form):
    _, reasons, formats = crawl(tmp_path, warc_record(url, body.encode(), kind=kind))
    is_read = form not in (None, "not_html")
    assert (formats, reasons) == (([form], []) if is_read else ([], [form or "format_not_known"]))


@pytest.mark.parametrize(
    ("encoding", "compress"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda page: zlib.compress(page, wbits=-15)),
        ("br", brotli.compress),
        ("gzip", bytes),
        ("br", bytes),
        ("identity", bytes),
        ("gzip", lambda page: gzip.compress(page[:20]) + gzip.compress(page[20:])),
    ],
)
def test_what_the_server_compressed_is_read(tmp_path, encoding, compress):
    kind = f"text/html\r\nContent-Encoding: {encoding}"
    assert crawl(tmp_path, warc_record("http://a", compress(HTML.encode()), kind=kind)) == ([HTML], [], ["html"])


@pytest.mark.parametrize("label", ["undefined", "punycode", "idna", "unicode_escape", "rot13", "utf-7", "utf-8\0"])
def test_an_encoding_that_no_browser_knows_is_passed_over(tmp_path, label):
    page = f"<p>caf\u00e9 <meta charset={label}>".encode("cp1252") + b"a" * 50_000
    [content], reasons, _ = crawl(tmp_path, warc_record("http://a/1", page, kind=f"text/html; charset={label}"))
    assert content.startswith("<p>caf\u00e9 ") and not reasons


@pytest.mark.parametrize(
    ("label", "codec", "text"),
    [
        ("windows-1251", "cp1251", "\u0437\u0430\u0434\u0430\u0447\u0430"),
        ("koi8-r", "koi8-r", "\u0437\u0430\u0434\u0430\u0447\u0430"),
        ("iso-8859-1", "cp1252", "\u201cwhat?\u201d"),
        ("Shift_JIS", "cp932", "\u554f\u984c\u2460"),
        ("x-sjis", "cp932", "\u554f\u984c"),
        ("gb2312", "gb18030", "\u9898\u76ee\u9555"),
        ("euc-kr", "cp949", "\ubb38\uc81c"),
        ("windows-874", "cp874", "\u0e42\u0e08\u0e17\u0e22\u0e4c"),
        ("x-mac-cyrillic", "mac-cyrillic", "\u0437\u0430\u0434\u0430\u0447\u0430"),
    ],
)
def test_a_stated_encoding_is_read_as_browsers_read_it(label, codec, text):
    assert decode(text.encode(codec), label) == text
    page = f'<meta charset="{label}">{text}'
    assert decode(page.encode(codec), "") == page


def test_thousands_of_gzip_members_are_no_page(tmp_path):
    members = gzip.compress(b"") * 2_000 + gzip.compress(HTML.encode())
    record = warc_record("http://a", members, kind="text/html\r\nContent-Encoding: gzip")
    assert crawl(tmp_path, record)[:2] == ([], ["undecodable"])


def test_bombs_are_bounded(tmp_path):
    """100 MB from a small file: a response that its server compressed, and a line of JSON."""
    zeros = b"<p>" + bytes(100_000_000)
    bomb = warc_record("http://a/1", gzip.compress(zeros, 1), kind="text/html\r\nContent-Encoding: gzip")
    (tmp_path / "a.warc").write_bytes(bomb + warc_record("http://last", HTML.encode()))
    last = b"\n" + json.dumps({"page": "last", "url": "u", "html": HTML}).encode()
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(zeros + last, 1))
    del zeros, bomb
    before = psutil.Process().memory_info().rss
    pages, reasons, _ = collect(tmp_path, warc=warc(tmp_path / "a.warc"), lines=jsonl(tmp_path / "c.jsonl.gz"))
    assert pages["page_id"].tolist() == ["warc/2:http://last", "lines/last"]
    assert set(reasons.values()) == {"too_large"} and len(reasons) == 2
    assert psutil.Process().memory_info().rss - before < 50 << 20


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "folder", "path": "/nowhere", "glob": "*", "licence": "x"}, "does not exist"),
        (jsonl("/nowhere.jsonl"), "does not exist"),
        ({"kind": "arithmetic_pages"}, "missing"),
        (ARITHMETIC | {"answer_only": 0.9}, "more than 1"),
        (ARITHMETIC | {"colour": "red"}, "unknown key"),
    ],
)
def test_user_errors_name_the_remedy(tmp_path, source, message):
    with pytest.raises(UserError, match=message):
        collect(tmp_path, web=source)


def test_nothing_usable_is_an_error_that_leaves_no_table(tmp_path):
    path = tmp_path / "pages.jsonl"
    path.write_text("nonsense\n")
    with pytest.raises(UserError, match="no usable page"):
        collect(tmp_path, web=jsonl(path))
    assert not (tmp_path / "out" / "pages").exists()


def test_arithmetic_pages_are_complete_and_follow_the_seed(tmp_path):
    pages, _, _ = collect(tmp_path, arithmetic=ARITHMETIC)
    assert len(pages) == 14  # 120 exercises and 12 repeated ones, 10 a page
    source = ArithmeticPages(**ARITHMETIC)
    text = "".join(found.content for found in render_pages(source, seed=3))
    assert len({found.content for found in render_pages(source, seed=4)} & set(pages["content"])) == 0
    assert "Let me check." in text and "ad-slot" in text and len(STYLES) == 6


def test_digit_pages_are_reproducible_and_hold_no_held_out_problem(tmp_path):
    pages, _, _ = collect(tmp_path, digits=DIGITS)
    first = (tmp_path / "out" / "pages").read_bytes()
    collect(tmp_path, digits=DIGITS)
    assert (tmp_path / "out" / "pages").read_bytes() == first and len(pages) == 10
    text = "\n".join(pages["content"])
    found = [read_problem(match) for match in re.findall(r"Digits [^?]*\?", text)]
    assert len({own.problem for own in found if own}) >= 85 and not any(own.is_held_out for own in found if own)
    assert "I see it." in text and "Let me check." in text and " yes" in text
    with pytest.raises(UserError, match=r"only about .* lower `exercises`"):
        collect(tmp_path, digits={**DIGITS, "sizes": {2: 1.0}, "coefficients": [2], "exercises": 5000})
    with pytest.raises(UserError, match=r"answer_only \+ jump .* more than 1"):
        collect(tmp_path, digits={**DIGITS, "jump": 0.7})


def test_decode_tries_transport_then_page_then_cp1252():
    assert decode("\u00bd".encode(), "") == "\u00bd"
    assert decode(b"<meta charset='iso-8859-7'>\xe1", "") == "<meta charset='iso-8859-7'>\u03b1"
    assert decode("\u03b1".encode("iso-8859-7"), "iso-8859-7") == "\u03b1"
    assert decode("a\u03b1".encode("utf-16"), "") == "a\u03b1"
    assert decode(b"\x81\x8d", "no-such-charset") is None
