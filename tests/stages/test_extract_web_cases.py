"""Reduced cases of held-out pages: what an author marked, run-in answers, keys by section, nothing at all."""

import json
from pathlib import Path

import pytest

from stages.extract_web.extraction import extract_page

CASES = Path(__file__).parents[2].parent / "shared" / "data" / "extraction_cases"
FORMS = {".html": "html", ".md": "markdown", ".tex": "latex"}
RUN_IN = [
    "(a) 12.5 m/s\n(b) 750 m",
    "(a) 19.6 m/s\n(b) 19.6 m",
    None,
    "We use Newton's second law.\nThe acceleration is a = 50/20 = 2.5 m/s^2.\nAfter 3 s its speed is 7.5 m/s.",
    "E = P t = 60 W x 7200 s\n= 432 kJ",
    "2.0 s",
]
TWO = ["v = s/t = 100/8.0 = 12.5 m/s.", "s = g t^2 / 2 = 19.6 m"]
KEY = ["12.5 m/s", None, "2.5 m/s^2", None]
SOLUTIONS = {
    **{f"{name}_{form}.html": RUN_IN for name in ("qa", "ex", "pb", "n", "exa") for form in ("flat", "box")},
    **dict.fromkeys(("qa.md", "ex.md", "pb.md"), RUN_IN),
    **dict.fromkeys(("divs.md", "quarto.md", "mkdocs.md"), TWO),
    "myst.md": [*TWO, "T = 2.0 s"],
    "details.md": [TWO[0] + "\nSo the answer is 12.5 m/s.", TWO[1], "T = 2.0 s"],
    **dict.fromkeys(("key_a.html", "key_b.html"), [None] * 3 + KEY),
    "key3.html": ["It stays the same.", "At the lowest point.", *[None] * 3, *KEY],
    "hint.tex": [
        "The numbers are $25 = 5^2$, $26 = 2 \\cdot 13$ and $27 = 3^3$, and none of them is prime.",
        "The answer is $2$.",
        "$2$",
    ],
    "noisy.html": [],
}


def found(content, form):
    row = {"page_id": "p", "url": "", "format": form, "content": content, "licence": ""}
    return extract_page(row, 40)[0]


@pytest.mark.skipif(not CASES.is_dir(), reason="shared/data/extraction_cases is not there")
@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_case_of_a_held_out_page(name):
    rows = found((CASES / name).read_text(), FORMS[Path(name).suffix])
    assert [row["solution"] for row in rows] == SOLUTIONS[name]


@pytest.mark.parametrize(
    "pointer",
    ["on page 12.", "see the back of the book", '<a href="s.pdf">PDF</a>', "Log in to see the solution.", "Show"],
)
def test_a_solution_that_stands_elsewhere_is_none(pointer):
    page = "".join(f"<p><b>Exercise {n}.</b> Compute {n}+1.</p><p><b>Solution.</b> {pointer}</p>" for n in range(1, 5))
    assert not any(row["solution"] for row in found(page, "html"))


def test_references_keep_their_place_in_the_sentence():
    page = '<p><b>Exercise 1.</b> Let x=1.</p><p><b>Solution.</b> By <a href="#s">Solution 1</a>, we have 2.</p>'
    assert found(page, "html")[0]["solution"] == "By Solution 1, we have 2."
    latex = r"\begin{exercise}Go.\end{exercise}\begin{solution}So by \cref{a}, \href{u}{it} holds.\end{solution}"
    assert found(latex, "latex")[0]["solution"] == "So by [link], it holds."
    xml = '<exercise><statement><p>Go.</p></statement><solution><p>So by <xref ref="a"/>, 2.</p></solution></exercise>'
    assert found(f"<section>{xml}</section>", "pretext")[0]["solution"] == "So by [link], 2."


def test_a_mathml_row_without_cells_is_kept():
    rows = "<mtable><mtr><mi>x</mi><mo>=</mo><mn>1</mn></mtr><mtr><mtd><mn>2</mn></mtd></mtr></mtable>"
    page = f"<p>Q1: Go.</p><p>Answer: <math>{rows}</math></p>"
    assert r"x=1 \\ 2" in found(page, "html")[0]["solution"]


def test_environments_and_commands_of_the_preamble():
    latex = (
        r"\newtheorem{aufg}{Exercise}\newenvironment{lsg}{\par\textbf{Solution.}}{}"
        r"\newcommand{\rk}[1]{\emph{Answer:} #1}"
        r"\begin{document}\begin{aufg}Find $1+1$.\end{aufg}\begin{lsg}It is 2.\end{lsg}"
        r"\begin{aufg}Find $2+1$.\end{aufg}\rk{3}\end{document}"
    )
    assert [(row["problem"], row["solution"]) for row in found(latex, "latex")] == [
        ("Find $1+1$.", "It is 2."),
        ("Find $2+1$.", "3"),
    ]


def test_a_question_in_json_ld_has_its_accepted_answer():
    question = {
        "@type": "Question",
        "text": "What is 1+1?",
        "acceptedAnswer": {"@type": "Answer", "text": "<p>It is <b>2</b>.</p>", "upvoteCount": "many"},
        "suggestedAnswer": [{"@type": "Answer", "text": "3", "upvoteCount": 9}],
    }
    data = json.dumps({"@context": "https://schema.org", "@type": "QAPage", "mainEntity": question})
    [row] = found(f"<script type='application/ld+json'>{data}</script><p>What is 1+1?</p>", "html")
    assert (row["problem"], row["solution"]) == ("What is 1+1?", "It is 2.")


def test_a_question_in_microdata_has_its_accepted_answer_and_code_its_lines():
    def item(kind, prop, inner):
        return f"<div itemscope itemtype='https://schema.org/{kind}' itemprop='{prop}'>{inner}</div>"

    def answer(votes, text, prop="suggestedAnswer"):
        count = f"<span itemprop=upvoteCount data-value={votes}>{votes}</span><h2>Sorted by votes</h2>"
        author = item("Person", "author", "<b itemprop=name>Ann</b>")
        comment = item("Comment", "comment", "<p itemprop=text>Thanks.</p>")
        return item("Answer", prop, f"{count}<div itemprop=text>{text}</div>{author}{comment}")

    answers = [answer(2, "<p>3</p>"), answer(9, "<pre>\nif x:\n    y\n</pre>")]
    accepted = answer(1, "<p>It is $2$.</p>", "acceptedAnswer")
    for others, solution in (answers, "if x:\n    y"), ([*answers, accepted], "It is $2$."):
        asked = "<h1 itemprop=name>Sums</h1><p>Viewed 9 times</p><div itemprop=text><p>What is 1+1?</p></div>"
        question = item("Question", "mainEntity", asked + "".join(others))
        page = f"<html itemscope itemtype='https://schema.org/QAPage'><body>{question}</body></html>"
        [row] = found(page, "html")
        assert (row["problem"], row["solution"], row["evidence"]) == ("What is 1+1?", solution, "marked")


def test_a_solution_of_most_problems_is_doubted():
    page = "".join(f"<p><b>Exercise {n}.</b> Compute {n}+1.</p><p><b>Solution.</b> Use sums.</p>" for n in (1, 2, 3))
    assert all(row["confidence"] < 0.3 and "same_solution" in row["evidence"] for row in found(page, "html"))


BOXES = """\
### Section Exercises

For the following exercises, evaluate each function.

<div data-type="exercise">
<div data-type="problem" markdown="1">
<math xmlns="http://www.w3.org/1998/Math/MathML"><mi>f</mi><mo>=</mo><mn>2</mn></math>

for *one*

</div>
<div data-type="solution" markdown="1">
<math xmlns="http://www.w3.org/1998/Math/MathML"><msup><mn>2</mn><mn>5</mn></msup></math>

</div>
</div>

<div data-type="exercise">
<div data-type="problem" markdown="1">
No solution here.
</div>
</div>
"""


def test_boxes_of_html_in_markdown_are_read_as_the_page_that_they_make():
    rows = found(BOXES, "markdown")
    assert [(row["problem"], row["solution"]) for row in rows] == [
        ("$f=2$\nfor one", "$2^5$"),
        ("No solution here.", None),
    ]
    assert {row["instructions"] for row in rows} == {"For the following exercises, evaluate each function."}
    assert all("markup" in row["evidence"] and row["confidence"] >= 0.8 for row in rows[:1])


def test_a_problem_that_holds_its_solution_is_doubted():
    worked = "Add one to both sides, then halve both, and find 4."
    solution = f"<solution><para>{worked}</para></solution>"
    page = f"<d><exercise><problem><para>Solve 2x-1=7. {{}}</para></problem>{solution}</exercise></d>"
    assert found(page.format(""), "cnxml")[0]["confidence"] > 0.9
    assert "problem_holds_part" in found(page.format(worked), "cnxml")[0]["evidence"]


def test_a_fenced_container_with_one_solution_is_an_exercise():
    page = (
        "Text.\n\n:::: challenge\n\n## Sums\n\nWhat is 1+1?\n\n::: solution\n\n## Solution\n\n2\n:::\n::::\n\n"
        ":::: {.row}\n## A\n\nText.\n\n## B\n\nMore.\n\n::: {.solution}\nNobody's.\n:::\n::::\n"
    )
    assert [(row["problem"], row["solution"]) for row in found(page, "markdown")] == [("Sums\nWhat is 1+1?", "2")]


def test_fences_end_as_in_pandoc_and_may_be_indented():
    page = (
        ":::::: challenge\nWhat is 1+1?\n\n:::: solution\n2\n::::\n:::\n\nText.\n\n"
        "    :::{exercise}\n    Go.\n    :::\n    :::{solution}\n    Done.\n    :::\n"
    )
    assert [(row["problem"], row["solution"]) for row in found(page, "markdown")] == [
        ("What is 1+1?", "2"),
        ("Go.", "Done."),
    ]


def test_code_and_formulas_of_a_directive_keep_their_lines():
    page = (
        "```{exercise}\n:label: a\nGo.\n```\n````{solution} a\n```{code-cell} python\n:tags: [hide]\n"
        "# double\ndef f(x):\n    return 2*x\n```\n```{math}\n:label: e\nx = 1\n```\n````\n"
    )
    code = "```{code-cell} python\n# double\ndef f(x):\n    return 2*x\n```"
    assert found(page, "markdown")[0]["solution"] == f"{code}\n$$\nx = 1\n$$"


def test_spans_with_classes_are_read_as_labels():
    page = "__[Q1]{.Q}__: What is 1+1?\n\n__[A]{.solved}__: It is 2.\n"
    assert [(row["problem"], row["solution"]) for row in found(page, "markdown")] == [("What is 1+1?", "It is 2.")]


def test_older_dialects_of_xml_mark_parts_references_and_formulas():
    static = "<static><statement><p>Go.</p></statement><solution><p>Done.</p></solution></static>"
    old = (
        '<exercise><problem>By <acroref type="t" acro="A"/>.</problem>'
        "<solution><alignmath>x=1</alignmath></solution></exercise>"
    )
    rows = found(f"<d>{static}{old}</d>", "pretext")
    assert [(row["problem"], row["solution"]) for row in rows] == [
        ("Go.", "Done."),
        ("By [link].", r"$\begin{aligned} x=1 \end{aligned}$"),
    ]


def test_units_and_tasks_of_latex():
    latex = (
        r"\begin{exercise}Fill \unitfrac[$3$]{L}{min}.\begin{tasks}(2)\task One. \task Two.\end{tasks}"
        r"\end{exercise}\begin{explanation}Yes.\end{explanation}"
    )
    [row] = found(latex, "latex")
    assert (row["problem"], row["solution"]) == ("Fill $3$ L/min.\n- One.\n- Two.", "Yes.")


def test_blanks_in_formulas_are_no_answers_and_drawings_are_pictures():
    latex = (
        r"\begin{exercise}See \begin{tikzpicture}\draw (0,1);\end{tikzpicture} and $x=\answer{1}$.\end{exercise}"
        r"\begin{solution}It is $1$.\end{solution}"
    )
    [row] = found(latex, "latex")
    assert (row["problem"], row["solution"]) == (r"See ![]() and $x=\answer{1}$.", "It is $1$.")


def test_code_of_a_notebook_in_a_box_keeps_its_lines():
    box = '<div class="{}" markdown="1">\n{}\n</div>\n\n'
    page = box.format("question", "Go.") + box.format(
        "answer", "So:\n\n```{r one, echo=FALSE}\nif (x) {\n  y\n}\n```\n"
    )
    assert found(page, "markdown")[0]["solution"] == "So:\nif (x) {\n  y\n}"
