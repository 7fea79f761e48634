"""`retrace extract`: any page to JSON lines, reasons for pages without candidates, and errors of the user."""

import gzip
import json

import pytest
from typer.testing import CliRunner

from pipelines.cli import app
from stages.foundations.page_formats import format_of_text

HTML = "<html><body><h3>Exercise 1</h3><p>Compute 1+2.</p><h4>Solution</h4><p>3</p></body></html>"


def run(*paths):
    return CliRunner().invoke(app, ["extract", *map(str, paths)])


def test_pages_of_many_formats(tmp_path):
    (tmp_path / "a.html").write_text(HTML)
    (tmp_path / "b.unknown").write_text("# Sums\n\n1. Compute 1+2.\n2. Compute 2+2.\n\n## Answers\n\n1. 3\n2. 4\n")
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as lines:
        lines.write(json.dumps({"page": "site/1", "html": HTML}) + "\n{broken\n" + json.dumps({"page": "x"}) + "\n")
    (tmp_path / "d.warc").write_bytes(
        b"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://example.org/\r\nContent-Length: 400000\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + HTML.encode()
    )
    result = run(*(tmp_path / name for name in ("a.html", "b.unknown", "c.jsonl.gz", "d.warc")))
    assert result.exit_code == 0
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["problem"] for row in rows][:4] == ["Compute 1+2.", "Compute 1+2.", "Compute 2+2.", "Compute 1+2."]
    assert set(rows[0]) == {"page", "format", "problem", "solution", "answer", "instructions"} | {
        "number",
        "evidence",
        "confidence",
    }
    assert rows[3]["page"] == "site/1" and rows[0]["answer"] == "3"
    assert result.stderr.count("row_malformed") >= 2


def test_a_line_that_is_too_long_is_one_bad_row(tmp_path, monkeypatch):
    monkeypatch.setattr("pipelines.commands.extracting.MAX_CHARACTERS", 25)
    lines = [json.dumps({"html": "x" * 900}), json.dumps({"page": "second", "html": HTML})]
    (tmp_path / "pages.jsonl").write_text("\n".join(lines))
    result = run(tmp_path / "pages.jsonl")
    assert [json.loads(line)["page"] for line in result.stdout.splitlines()] == ["second"]
    assert "pages.jsonl:1: too_large" in result.stderr and "pages: 1 read, 1 too_large" in result.stderr


def test_a_row_may_name_its_format_in_any_words(tmp_path):
    """ "pretext xml" is not text."""
    text = "<section><exercise><statement><p>Go.</p></statement><solution><p>3</p></solution></exercise></section>"
    (tmp_path / "pages.jsonl").write_text(json.dumps({"format": "PreTeXt XML", "text": text}))
    row = json.loads(run(tmp_path / "pages.jsonl").stdout)
    assert (row["format"], row["problem"], row["evidence"]) == ("pretext", "Go.", "marked")


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
        ("# Exercise 1\n\nx < 3", "markdown"),
        ("Exercise 1: x < 3", ""),
        ('{"cells": [{"source": ["<p>Exercise 1</p>"]}]}', ""),
    ],
)
def test_formats_are_told_by_content(text, form):
    assert format_of_text(text) == form


def test_a_folder_in_two_processes_with_what_is_wanted(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.html").write_text(HTML + "<h3>Exercise 2</h3><p>Compute 2+2.</p>")
    (tmp_path / "b.md").write_text("Compute 9.\n\n<details>\n<summary>Solution</summary>\n\n9\n\n</details>\n")
    (tmp_path / "c.html").write_text("<p>Nothing here.</p>")
    (tmp_path / "d.png").write_bytes(b"x")
    result = run(tmp_path, "--jobs", "2", "--solved-only", "--min-confidence", "0.8")
    [row] = [json.loads(line) for line in result.stdout.splitlines()]
    assert (row["number"], row["confidence"]) == ("1", 0.97)
    assert row["evidence"] == "words+words: Exercise 1 | Solution"
    assert "b.md: no_row_left (every row is below" in result.stderr
    assert "c.html: no_exercise (no label" in result.stderr and "d.png" not in result.stderr
    assert "not read, because no format has their ending: 1 .png" in result.stderr
    assert run(tmp_path, "--format", "word").exit_code == 2


def test_a_format_that_is_not_read_is_said_so_and_may_be_named(tmp_path):
    (tmp_path / "a.rst").write_text("Exercise 1\n----------\n\nCompute 1+2.\n\nSolution\n--------\n\n3\n")
    (tmp_path / "b.ipynb").write_text('{"cells": [{"source": ["<p>Compute 1+2.</p>"]}]}')
    result = run(tmp_path / "a.rst", tmp_path / "b.ipynb")
    assert result.stderr.count("format_not_known (neither its ending nor") == 2 and not result.stdout
    named = json.loads(run(tmp_path / "a.rst", "--format", "markdown").stdout)
    assert (named["problem"], named["solution"]) == ("Compute 1+2.", "3")


def test_macros_of_another_file_are_put_into_formulas(tmp_path):
    (tmp_path / "main.tex").write_text(r"\newcommand{\half}[1]{\frac{#1}{2}} \newcommand{\N}{\mathbb{N}}")
    exercise = r"\begin{exercise} Find $\half{n}$ for $n\in\N$. \end{exercise}\begin{solution} $\half 4$ \end{solution}"
    (tmp_path / "one.tex").write_text(exercise)
    (tmp_path / "info.xml").write_text(r"<docinfo><macros>\newcommand{\less}{a&lt;b}</macros></docinfo>")
    (tmp_path / "two.ptx").write_text(
        r"<section><exercise><statement><p>Is <m>\less</m>?</p></statement>"
        r"<solution><p>Yes, <m>\half{x}</m>.</p></solution></exercise></section>"
    )
    rows = [json.loads(line) for line in run(tmp_path).stdout.splitlines()]
    assert [(row["problem"], row["solution"]) for row in rows] == [
        (r"Find $\frac{n}{2}$ for $n\in\mathbb{N}$.", r"$\frac{4}{2}$"),
        ("Is $a<b$?", r"Yes, $\frac{x}{2}$."),
    ]
