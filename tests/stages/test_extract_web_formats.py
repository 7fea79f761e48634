"""extract_web on Markdown, LaTeX, CNXML and PreTeXt: an author's markup, and text that only looks like markup.

The held-out cases, which are reduced from real pages, are in these formats and in HTML.
"""

from pathlib import Path

import pytest

from tests.fakes.web_pages import extracted, pairs

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


@pytest.mark.skipif(not CASES.is_dir(), reason="shared/data/extraction_cases is not there")
@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_case_of_a_held_out_page(name):
    rows = extracted((CASES / name).read_text(), FORMS[Path(name).suffix])
    assert [row["solution"] for row in rows] == SOLUTIONS[name]


def each(text, numbers=(1, 2)):
    """Returns the text once for each number; `{0}` is the number and `{1}` the next one."""
    return "".join(text.format(n, n + 1) for n in numbers)


FORMULA = "$$\na\n=\nb\n\n- c\n$$"
ASKED = "Add 1 to the value obtained in\nexercise 7, and show all\nsteps. Check it."
CHALLENGE = "::: challenge\n\nHow much is 2+2?\n\n{}:::: solution\n4\n::::\n\n:::: solution\nFour.\n::::\n\n:::\n"
CODE = "```{code-cell} python\n# double\ndef f(x):\n    return 2*x\n```"
BOX = '<div class="{}" markdown="1">\n{}\n</div>\n\n'
DETAILS = "<details>\n<summary>{}</summary>\n\n{}\n\n</details>\n\n"
HIDDEN = (
    ("Which port does SSH use?", "It is 22.\n\nSee the manual."),
    ("What do these do?\n\n- `cd`\n- `ls`", "- change\n- list"),
    ("Describe <code>ping</code>", "It sends echo requests."),
    ("How long is a byte?", "8 bits"),
)
FAQ = "# Networks\n\n" + "".join(DETAILS.format(*one) for one in HIDDEN)
MARKDOWN = {
    "labels in bold": (
        "# Sums\n\n**Exercise 1.** Compute 1+2.\n\n**Solution:** 1+2=3\nThe answer is \\boxed{3}.\n\n---\nBye\n",
        [("Compute 1+2.", "1+2=3\nThe answer is \\boxed{3}.")],
    ),
    "a quotation is the problem and the rest works it out": (
        "# Sums\n\n## 1.1-1\n\n> Compute 1+2.\n>\n> Show the steps.\n\n$$\n1+2=3\n$$\n\n"
        "## 1.1-2\n\n> Compute 4+4.\n\nIt is 8.\n",
        [("Compute 1+2.\nShow the steps.", "$$\n1+2=3\n$$"), ("Compute 4+4.", "It is 8.")],
    ),
    "solutions in an admonition and in details": (
        '**Exercise 1.** Compute 1+2.\n\n??? note "Solution"\n    3\n\n**Exercise 2.** Compute 4+4.\n\n'
        + DETAILS.format("Solution", 8),
        [("Compute 1+2.", "3"), ("Compute 4+4.", "8")],
    ),
    "an admonition ends where the indentation does": (
        each(
            '!!! warning "Exercise {0}: Sums"\n    Add {0} and 1.\n\n!!! details "Solution:"\n    It is {1}.\n\n'
            "Other prose.\n\n"
        ),
        [("Sums\nAdd 1 and 1.", "It is 2."), ("Sums\nAdd 2 and 1.", "It is 3.")],
    ),
    "A is an option where B follows": (
        "## Question 1\nWhich metal melts first?\n\n- A: tin\n- B: iron\n\nAnswer: A\n\n"
        "## Question 2\nWhich one rusts?\n\n- A: gold\n- B: iron\n\nAnswer: B\n",
        [("Which metal melts first?\n- A: tin\n- B: iron", "A"), ("Which one rusts?\n- A: gold\n- B: iron", "B")],
    ),
    "A is a point where B follows": (
        "### Problem 1\nA square has the corners\n\nA: (1,1), B: (4,1). Find its area.\n\n### Solution\n$9$",
        [("A square has the corners\nA: (1,1), B: (4,1). Find its area.", "$9$")],
    ),
    "A is an answer elsewhere": (
        "Q: What is 2+3?\n\nA: 5\n\nQ: And 3+3?\n\nA: 6",
        [("What is 2+3?", "5"), ("And 3+3?", "6")],
    ),
    "numbered headings are exercises where toggles answer them": (
        each(
            "### {0}. What does it print?\n\n```\n{0}+1\n```\n\n- A: 1\n- B: 2\n\n"
            "<details><summary><b>Answer</b></summary>\n\n#### Answer: B\n\nIt adds.\n\n</details>\n\n"
        ),
        [(f"What does it print?\n```\n{n}+1\n```\n- A: 1\n- B: 2", "B\nIt adds.") for n in (1, 2)],
    ),
    "summaries that ask hide answers": (
        FAQ,
        [
            ("Which port does SSH use?", "It is 22.\nSee the manual."),
            ("What do these do?\n- `cd`\n- `ls`", "- change\n- list"),
            ("Describe `ping`", "It sends echo requests."),
            ("How long is a byte?", "8 bits"),
        ],
    ),
    "other summaries hide text": (each(DETAILS.format("Version {0}", "Fixed things."), range(5)), []),
    "a summary that only says show hides the solution of what stands before": (
        each("### List {0} pods\n\n" + DETAILS.format("show", "`get {0}`"), (1, 2, 3)),
        [(f"List {n} pods", f"`get {n}`") for n in (1, 2, 3)],
    ),
    "an unfinished picture and a formula do not become one": (
        "### Problem 1\nOne?\n\n### Answer\n![](http://a.b/c?f\\(n)\n\n### Problem 2\nTwo?\n\n### Answer\n$g\\)$",
        [("One?", "![](http://a.b/c?f\\(n)"), ("Two?", "$g\\)$")],
    ),
    "code in a list begins at the margin, and a formula may hold what Markdown reads": (
        "### Problem 1\nGo.\n\n### Solution\n- First:\n\n  ```\n  if x:\n      y\n  ```\n- Then stop.\n\n> "
        + FORMULA.replace("\n", "\n> "),
        [("Go.", f"- First:\n```\nif x:\n    y\n```\n- Then stop.\n{FORMULA}".replace("\n\n", "\n"))],
    ),
    "a line within a sentence may begin like a label": (f"### Problem 1\n{ASKED}\n\n### Solution\n5", [(ASKED, "5")]),
    "spans with classes are labels": (
        "__[Q1]{.Q}__: What is 1+1?\n\n__[A]{.solved}__: It is 2.\n",
        [("What is 1+1?", "It is 2.")],
    ),
    "of several solutions in one box the first counts": (CHALLENGE.format(""), [("How much is 2+2?", "4")]),
    "a hint is no solution": (
        CHALLENGE.format(":::: solution\n\n## Hint\n\nCount.\n::::\n\n"),
        [("How much is 2+2?", "4")],
    ),
    "of a box that asks twice the first question is read": (
        "::: box\n\nFirst one?\n\n:::: solution\n1\n::::\n\nSecond one?\n\n:::: solution\n2\n::::\n\n:::\n",
        [("First one?", "1")],
    ),
    "callouts are what their headings say": (
        "::: {.callout-note}\n## Exercise 2\n\nWhat is 2+3?\n:::\n\n"
        '::: {.callout-caution collapse="true"}\n## Solution\n\nIt is 5.\n:::\n',
        [("What is 2+3?", "It is 5.")],
    ),
    "callouts are what their titles say": (
        '::: {.callout-tip title="Exercise 2"}\nWhat is 2+3?\n:::\n\n'
        '::: {.callout-note collapse="true" title="Solution"}\nIt is 5.\n:::\n',
        [("What is 2+3?", "It is 5.")],
    ),
    "a fenced container with one solution is an exercise, and one with two headings is none": (
        "Text.\n\n:::: challenge\n\n## Sums\n\nWhat is 1+1?\n\n::: solution\n\n## Solution\n\n2\n:::\n::::\n\n"
        ":::: {.row}\n## A\n\nText.\n\n## B\n\nMore.\n\n::: {.solution}\nNobody's.\n:::\n::::\n",
        [("Sums\nWhat is 1+1?", "2")],
    ),
    "fences end as in Pandoc and may be indented": (
        ":::::: challenge\nWhat is 1+1?\n\n:::: solution\n2\n::::\n:::\n\nText.\n\n"
        "    :::{exercise}\n    Go.\n    :::\n    :::{solution}\n    Done.\n    :::\n",
        [("What is 1+1?", "2"), ("Go.", "Done.")],
    ),
    "code and formulas of a directive keep their lines": (
        "```{exercise}\n:label: a\nGo.\n```\n````{solution} a\n```{code-cell} python\n:tags: [hide]\n"
        "# double\ndef f(x):\n    return 2*x\n```\n```{math}\n:label: e\nx = 1\n```\n````\n",
        [("Go.", f"{CODE}\n$$\nx = 1\n$$")],
    ),
    "code of a notebook in a box of HTML keeps its lines": (
        BOX.format("question", "Go.") + BOX.format("answer", "So:\n\n```{r one, echo=FALSE}\nif (x) {\n  y\n}\n```\n"),
        [("Go.", "So:\nif (x) {\n  y\n}")],
    ),
}
SECTION = "<section>{}</section>"
PRETEXT = "<exercise><statement><p>{}</p></statement><solution><p>{}</p></solution></exercise>"
CHOICES = (
    '<section><exercise><statement><p>Which is odd?</p><ol marker="A."><li><p>2</p></li><li>{0}</li></ol></statement>'
    "<answer><p>{1}</p></answer></exercise></section>"
)
TASK = "<task><statement><p>Find {}.</p></statement><answer><p>{}</p></answer></task>"
WEBWORK = (
    "<section><exercise><webwork><pg-code>$a=random(1,9);</pg-code><statement><p>Solve <m>x+{}=5</m>.</p>"
    '<p><m>x=</m><var name="$x" width="5"/></p></statement><solution><p>3</p></solution></webwork></exercise></section>'
)
XML = {
    "hints are left out": (
        "<section><exercise><statement><p>Find <m>2^3</m>.</p></statement><hint><p>Eight?</p></hint><answer><p><m>8</m>"
        "</p></answer></exercise></section>",
        [("Find $2^3$.", "$8$")],
    ),
    "a file may be one exercise": (PRETEXT.format("Add 1 and 2.", 3), [("Add 1 and 2.", "3")]),
    "tasks are exercises with a common beginning": (
        "<exercise><introduction><p>Let <m>a=1</m>.</p></introduction>"
        + TASK.format("a", 1)
        + TASK.format("2a", 2)
        + "</exercise>",
        [("Let $a=1$.\nFind a.", "1"), ("Let $a=1$.\nFind 2a.", "2")],
    ),
    "a reference keeps its place in the sentence": (
        SECTION.format(PRETEXT.format("Go.", 'So by <xref ref="a"/>, 2.')),
        [("Go.", "So by [link], 2.")],
    ),
    "older dialects mark parts, references and formulas": (
        "<d><static><statement><p>Go.</p></statement><solution><p>Done.</p></solution></static>"
        '<exercise><problem>By <acroref type="t" acro="A"/>.</problem>'
        "<solution><alignmath>x=1</alignmath></solution></exercise></d>",
        [("Go.", "Done."), ("By [link].", r"$\begin{aligned} x=1 \end{aligned}$")],
    ),
    "a value that a program fills in leaves no exercise": (WEBWORK.format('<var name="$a"/>'), []),
    "a blank does": (WEBWORK.format("2"), [("Solve $x+2=5$.\n$x=$", "3")]),
    "lettered choices keep their letters": (CHOICES.format(3, "B"), [("Which is odd?\nA. 2\nB. 3", "B")]),
}
LATEX = {
    "environments, arguments, footnotes and items": (
        r"""
\newcommand{\base}{10}
\begin{exercise} % a comment
What is $\base + 1$? \label{e1}
\end{exercise}
\begin{solution} It is $11$. \end{solution}
\begin{example}{How many sides does a triangle have?} It has \emph{three}. \end{example}
\begin{exercise} Round 9.7.\footnotemark{} \end{exercise}
\footnotetext{(a)~10}
\begin{enumerate} \item What is half of 8? \begin{answer} 4 \end{answer} \end{enumerate}
""",
        [
            ("What is $10 + 1$?", "It is $11$."),
            ("How many sides does a triangle have?", "It has three."),
            ("Round 9.7.", "(a) 10"),
            ("What is half of 8?", "4"),
        ],
    ),
    "environments and commands of the preamble": (
        r"\newtheorem{aufg}{Exercise}\newenvironment{lsg}{\par\textbf{Solution.}}{}"
        r"\newcommand{\rk}[1]{\emph{Answer:} #1}"
        r"\begin{document}\begin{aufg}Find $1+1$.\end{aufg}\begin{lsg}It is 2.\end{lsg}"
        r"\begin{aufg}Find $2+1$.\end{aufg}\rk{3}\end{document}",
        [("Find $1+1$.", "It is 2."), ("Find $2+1$.", "3")],
    ),
    "optional arguments and blanks of exam papers": (
        r"""\begin{questions}
\question[$**$] Find $a$ with $2a=6$. \begin{solution}[60 mm] It is $3$. \end{solution}
\question[4] Solve $x+2=9$. \begin{solutionorlines}[\stretch{1}] $x=7$ \end{solutionorlines}
\question The capital of Italy is \fillin[Rome][2in]. \begin{solution} Rome \end{solution}
\end{questions}""",
        [
            ("Find $a$ with $2a=6$.", "It is $3$."),
            ("Solve $x+2=9$.", "$x=7$"),
            ("The capital of Italy is ____ .", "Rome"),
        ],
    ),
    "references keep their place in the sentence": (
        r"\begin{exercise}Go.\end{exercise}\begin{solution}So by \cref{a}, \href{u}{it} holds.\end{solution}",
        [("Go.", "So by [link], it holds.")],
    ),
    "units and tasks": (
        r"\begin{exercise}Fill \unitfrac[$3$]{L}{min}.\begin{tasks}(2)\task One. \task Two.\end{tasks}"
        r"\end{exercise}\begin{explanation}Yes.\end{explanation}",
        [("Fill $3$ L/min.\n- One.\n- Two.", "Yes.")],
    ),
    "blanks in formulas are no answers and drawings are pictures": (
        r"\begin{exercise}See \begin{tikzpicture}\draw (0,1);\end{tikzpicture} and $x=\answer{1}$.\end{exercise}"
        r"\begin{solution}It is $1$.\end{solution}",
        [(r"See ![]() and $x=\answer{1}$.", "It is $1$.")],
    ),
    "a diagram of arrows is a picture": (
        r"\begin{problem} Prove it. \begin{tikzcd} A \ar[r, two heads] & B \end{tikzcd} "
        r"\begin{sol} By chase. \end{sol}\end{problem}",
        [("Prove it. ![]()", "By chase.")],
    ),
    "numbered headings are exercises and the next heading their solution": (
        r"""\subsection*{Exercise 6.1}
Find $2+2$.
\subsection*{Solution}
It is $4$.
\section{Problem statement}
Words.
\subsection*{Solution 3}
Of no exercise.
""",
        [("Find $2+2$.", "It is $4$.")],
    ),
}


@pytest.mark.parametrize(
    ("form", "content", "found"),
    [
        pytest.param(form, *case, id=name)
        for form, cases in (("markdown", MARKDOWN), ("pretext", XML), ("latex", LATEX))
        for name, case in cases.items()
    ],
)
def test_exercises_and_nothing_else(form, content, found):
    assert pairs(content, form) == found


def test_a_text_under_numbered_chapters_answers_none_and_the_hidden_answers_of_a_faq_are_doubted():
    chapters = "# 1. Sums\n\nText on sums.\n\n# 2. Products\n\nText on products.\n\n### Answer\n\n7\n"
    assert all(solution is None or "Text" not in solution for _, solution in pairs(chapters, "markdown"))
    assert all(row["confidence"] < 0.8 for row in extracted(FAQ, "markdown"))


def test_a_label_in_backticks_a_rule_below_a_label_and_dollars_that_are_prices():
    text = "### Exercises 2.1-{0}\n***\nAdd {0} and 1. It costs $$$.\n\n### `Answer`\n{1}\n\n"
    assert [(row["problem"], row["solution"], row["confidence"]) for row in extracted(each(text), "markdown")] == [
        ("Add 1 and 1. It costs $$$.", "2", 0.97),
        ("Add 2 and 1. It costs $$$.", "3", 0.97),
    ]


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
    rows = extracted(BOXES, "markdown")
    assert [(row["problem"], row["solution"]) for row in rows] == [
        ("$f=2$\nfor one", "$2^5$"),
        ("No solution here.", None),
    ]
    assert {row["instructions"] for row in rows} == {"For the following exercises, evaluate each function."}
    assert "markup" in rows[0]["evidence"] and rows[0]["confidence"] >= 0.8


def test_cnxml_has_formulas_and_instructions():
    cnxml = (
        '<document xmlns="http://cnx.rice.edu/cnxml" xmlns:m="http://www.w3.org/1998/Math/MathML"><content><para>In '
        "the following exercises, solve.</para><exercise><problem><para><m:math><m:mfrac><m:mn>1</m:mn><m:mi>x</m:mi>"
        "</m:mfrac><m:mo>=</m:mo><m:mn>2</m:mn></m:math></para></problem><solution><para>x is a half</para></solution>"
        "</exercise></content></document>"
    )
    [row] = extracted(cnxml, "cnxml")
    assert (row["instructions"], row["problem"]) == ("In the following exercises, solve.", r"$\frac{1}{x}=2$")


def test_a_problem_that_holds_its_solution_is_doubted():
    worked = "Add one to both sides, then halve both, and find 4."
    solution = f"<solution><para>{worked}</para></solution>"
    content = f"<d><exercise><problem><para>Solve 2x-1=7. {{}}</para></problem>{solution}</exercise></d>"
    assert extracted(content.format(""), "cnxml")[0]["confidence"] > 0.9
    assert "problem_holds_part" in extracted(content.format(worked), "cnxml")[0]["evidence"]


def test_the_last_item_of_a_list_is_no_answer_and_a_choice_is_its_letter():
    items = "<ol><li><p>{}.</p></li><li><p>{}.</p></li></ol>"
    statement, worked = items.format("Add <m>1</m>", "Add 2"), items.format("<m>2</m>", "so <m>x=3</m>")
    [row] = extracted(SECTION.format(PRETEXT.format(f"Two parts.</p>{statement}<p>", f"</p>{worked}<p>")), "pretext")
    assert (row["problem"], row["answer"]) == ("Two parts.\n- Add $1$.\n- Add 2.", None)
    long = "the number that leaves a remainder of one"
    [row] = extracted(CHOICES.format(long, f"B. {long}"), "pretext")
    assert (row["answer"], row["confidence"]) == ("B", 0.97)
