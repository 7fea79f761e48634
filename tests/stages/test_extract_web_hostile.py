"""extract_web on hostile pages: each ends within a time limit with a reason, and none raises."""

import pytest

from stages.extract_web.extraction import MAX_CHARACTERS, MAX_TAGS, extract_page
from tests.fakes.web_pages import page

ENTITIES = '<!ENTITY a "aaaaaaaaaa">' + "".join(
    f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 40}">' for i in range(9)
)
N = 10_000
PAGES = {
    "tags": ("html", "<b>" * (MAX_TAGS + 1)),
    "size": ("html", "<p>" + "x" * MAX_CHARACTERS),
    "many tags": ("html", "<p><a href=x>" + "<b>x</b>" * 100_000 + "</p>" + "<ul><li>" * 500),
    "nothing": ("html", ""),
    "nothing to solve": ("html", "<p>Nothing to solve here.</p>"),
    "another format": ("pdf", "%PDF"),
    "labels without a problem": ("html", "<h3>Solution</h3>" * N),
    "toggles": ("html", "<button>Show solution</button>" * N),
    "exercises on one level": ("html", "<p>Exercise 1. Compute.</p><p>Solution: 3</p>" * N),
    "items": ("html", "<ol>" + "<li>Compute 1+2<p><b>Solution:</b> 3</p></li>" * N),
    "lines": ("html", "<p>" + "1. x<br>" * N),
    "answer headings": ("html", "<h2>Answers</h2><p>1. y</p>" * N),
    "a long key": ("html", "<p>1. x</p><h2>Answers</h2>" + "<p>1. y</p>" * N),
    "nested marks": ("html", "<div class=answer>" * 100 + "x" + "<div class=answer>y</div>" * N),
    "nested tables": ("html", "<table><tr><th>a<th>b<th>Answer<tr><td>x" * 60 + "y " * N),
    "nested links": ("html", "<div><a href=x>y</a><a href=x>y</a><a href=x>y</a>" * 3_000),
    "hidden renderings": ("html", "<span><span aria-hidden=true>x</span>" * N + "<math><mi>x</mi></math>"),
    "interrupted numbers": ("html", "<h2>Answers</h2>" + "<p>7. a</p><p>180. b</p><p>8. c</p>" * N),
    "openings": ("html", "<h3>Task 1</h3><details><summary>Show me how</summary></details>" * N),
    "buttons": ("html", "<button>Way</button><div hidden>x</div>" * N),
    "questions in questions": (
        "html",
        "<!-- QAPage -->"
        + "".join(f"<p itemscope itemtype=schema.org/{kind} itemprop=text>" for kind in ("Question", "Answer"))
        + "<div itemscope itemtype=schema.org/Answer itemprop=text>x" * N,
    ),
    "open answers": ("html", "<p>1. x" + "(Answer: " * N),
    "sections of a key": ("html", "<h2>4.1</h2><p>1. x</p>" * N + "<h2>Answers</h2>" + "<h3>4.1</h3><p>1. y</p>" * N),
    "open elements": ("html", "<div>" * N * 4),
    "broken MathML": ("html", "<p>Exercise 1: <math><mfrac><mi>x</math></p>" * N),
    "boxes of formulas in boxes": ("html", "<span class=katex>" * N + "x" + "<p>Exercise 1: </p>" * N),
    "previews": ("html", "<p>Exercise 1: " + "<span class=MathJax_Preview>x</span><span class=MathJax></span>" * N),
    "hidden neighbours": ("html", "<p>Exercise 1: <math><mi>x</mi></math>" + "<span class=sr-only>x</span>" * N),
    "open delimiters": ("html", "<p>Exercise 1: " + "\\( \\[ [tex] $ \\begin{align} " * N),
    "furniture in furniture": ("html", ("<div class=share>" * 100 + "<p>Solution: x</p>" + "</div>" * 100) * 300),
    "deep MathML": ("html", "<math>" + "<mrow>" * N + "x"),
    "white space": ("html", "<p>Answer" + " \n" * 500_000 + "x"),
    "stars": ("markdown", "*" * 500_000),
    "brackets": ("markdown", "[" * 200_000),
    "comments": ("markdown", "<!--" * 200_000),
    "summaries": ("markdown", "<summary>" * N),
    "bold": ("markdown", "**a " * 100_000),
    "ends of fences": ("markdown", "```{exercise-end}\n" * 100_000 + "::: solution\nx\n:::\n"),
    "solutions in a fence": ("markdown", "::: exercise\nx\n:::\n:::: w\n" + "::: solution\nx\n:::\n" * 50_000),
    "numbered lines": ("markdown", "1. a\n" * 100_000),
    "open environments": ("latex", r"\begin{exercise}" * N),
    "open braces": ("latex", r"\solution{" * N),
    "open formulas": ("latex", r"\begin{exercise}" + r"\(" * N + "$a " * N + r"\end{exercise}"),
    "open align": ("latex", r"\begin{exercise}" + r"\begin{align}" * N + r"\end{exercise}"),
    "open drawings": ("latex", r"\begin{exercise}" + r"\begin{tikzpicture}" * N + r"\unit[a" * N + r"\end{exercise}"),
    "many commands": ("latex", r"\begin{exercise}\end{exercise}" * 150_000),
    "entities": ("cnxml", f"<!DOCTYPE x [{ENTITIES}]><document><exercise><problem>&j;</problem></exercise></document>"),
    "outside file": (
        "cnxml",
        '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><document><exercise><problem>&f;'
        "</problem></exercise></document>",
    ),
    "deep XML": ("pretext", "<section>" * N),
    "no XML": ("cnxml", "Dear sir, 3 < 4"),
    "binary": ("html", "\x00\x01\ufffd" * 1_000),
}


REASONS = {
    "tags": "too_many_tags",
    "size": "too_large",
    "many commands": "too_many_commands",
    "nothing": "not_html",
    "nothing to solve": "no_exercise",
    "another format": "format_not_read",
    "many tags": "no_exercise",
    "open elements": "no_exercise",
}


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.timeout(480)
def test_a_hostile_page_ends_with_candidates_or_a_reason(name):
    """Takes seconds at most; a reader with quadratic cost would take hours and is stopped."""
    form, content = PAGES[name]
    candidates, reason, *_ = extract_page(page(content, form), 40)
    assert bool(candidates) != bool(reason) and reason == REASONS.get(name, reason)
    assert not any("root:" in row["problem"] for row in candidates)
