"""`retrace extract`: any page to JSON lines, reasons beside them, a user's mistake told."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from pipelines.commands.extracting import told_by_content

HTML = "<html><body><h3>Exercise 1</h3><p>Compute 1+2.</p><h4>Solution</h4><p>3</p></body></html>"


def run(*paths):
    return CliRunner().invoke(app, ["extract", *map(str, paths)])


def test_pages_of_many_formats(tmp_path):
    (tmp_path / "a.html").write_text(HTML)
    (tmp_path / "b.unknown").write_text(
        "# Sums\n\n1. Compute 1+2.\n2. Compute 2+2.\n\n## Answers\n\n1. 3\n2. 4\n"
    )
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as lines:
        lines.write(
            json.dumps({"page": "site/1", "html": HTML}) + "\n{broken\n" + json.dumps({"page": "x"}) + "\n"
        )
    (tmp_path / "d.warc").write_bytes(
        b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://example.org/\r\nContent-Length: 400000\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + HTML.encode()
    )
    result = run(*(tmp_path / name for name in ("a.html", "b.unknown", "c.jsonl.gz", "d.warc")))
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["problem"] for row in rows][:4] == [
        "Compute 1+2.",
        "Compute 1+2.",
        "Compute 2+2.",
        "Compute 1+2.",
    ]
    assert set(rows[0]) == {"page", "format", "problem", "solution", "answer", "instructions"} | {
        "number",
        "evidence",
        "confidence",
    }
    assert rows[3]["page"] == "site/1" and rows[0]["answer"] == "3"
    assert result.stderr.count("row_malformed") >= 2


def test_a_line_that_is_too_long_is_one_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.commands.extracting.LONGEST_LINE", 200)
    lines = [json.dumps({"html": "x" * 900}), json.dumps({"page": "second", "html": HTML})]
    (tmp_path / "pages.jsonl").write_text("\n".join(lines))
    result = run(tmp_path / "pages.jsonl")
    assert [json.loads(line)["page"] for line in result.stdout.splitlines()] == ["second"]
    assert (
        "pages.jsonl:1: row_malformed" in result.stderr and "pages: 1 read, 1 row_malformed" in result.stderr
    )


def test_a_missing_file_is_the_users_mistake(tmp_path):
    result = run(tmp_path / "none.html")
    assert result.exit_code == 2 and "no such file" in result.stderr and not result.stdout


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (HTML, "html"),
        ('<document xmlns="http://cnx.rice.edu/cnxml">', "cnxml"),
        ("<section><exercise><statement>", "pretext"),
        (r"\begin{exercise} x", "latex"),
        ("Exercise 1: x < 3", "markdown"),
    ],
)
def test_formats_are_told_by_content(text, form):
    assert told_by_content(text) == form


def test_a_folder_in_two_processes_with_what_is_wanted(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.html").write_text(HTML + "<h3>Exercise 2</h3><p>Compute 2+2.</p>")
    (tmp_path / "b.md").write_text(
        "Compute 9.\n\n<details>\n<summary>Solution</summary>\n\n9\n\n</details>\n"
    )
    (tmp_path / "c.html").write_text("<p>Nothing here.</p>")
    (tmp_path / "d.png").write_bytes(b"x")
    result = run(tmp_path, "--jobs", "2", "--solved-only", "--min-confidence", "0.8")
    [row] = [json.loads(line) for line in result.stdout.splitlines()]
    assert (row["number"], row["confidence"]) == ("1", 0.97)
    assert row["evidence"] == "words+words: Exercise 1 | Solution"
    assert "b.md: no_row_left (every row is below" in result.stderr
    assert "c.html: no_exercise (no label" in result.stderr and "d.png" not in result.stderr
    assert run(tmp_path, "--format", "word").exit_code == 2
