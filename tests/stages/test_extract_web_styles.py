"""extract_web on label styles, answers, answer keys and shared instructions; no rule may need more than the page."""

from stages.extract_web.extraction import extract_page

SOLVED = {
    "Compute the sum of 12 and 30.": "We add the tens and the ones. The sum is 42.",
    "Simplify 6/8.": "3/4",
    "Solve 2x + 1 = 9 for x. Check your result.": "Subtract 1 from both sides. Divide by 2 to find x = 4.",
    "Name the first four primes.": "2, 3, 5, 7",
}
"""What every page of `label_styles.jsonl.gz` holds, with "Is 91 a prime number?" unsolved as the second."""


def extracted(content, form="html"):
    page = {"page_id": "p", "url": "", "format": form, "content": content, "licence": ""}
    return extract_page(page, 40)[0]


def pairs(content, form="html"):
    return [(row["problem"], row["solution"]) for row in extracted(content, form)]


def words(text):
    return "".join(c for c in text if c.isalnum())


def test_a_key_answers_by_number_and_leaves_the_others_open():
    asked = "".join(f"<p>{n}. Compute {n}+1.</p>" for n in (1, 2, 3, 4))
    key = "<h2>Answers to Odd-Numbered Exercises</h2><p>1. 2</p><p>3. 4</p>"
    assert pairs(f"<h2>Exercises</h2>{asked}{key}") == [
        ("Compute 1+1.", "2"),
        ("Compute 2+1.", None),
        ("Compute 3+1.", "4"),
        ("Compute 4+1.", None),
    ]


def test_two_sections_with_their_own_numbers_and_keys():
    def section(start):
        return "".join(f"<p>{n}. Add {start} to {n}.</p>" for n in (1, 2))

    key = "<h3>Answers</h3><p>1. {0}</p><p>2. {1}</p>"
    page = f"<h2>A</h2>{section(10)}{key.format(11, 12)}<h2>B</h2>{section(20)}{key.format(21, 22)}"
    assert [solution for _, solution in pairs(page)] == ["11", "12", "21", "22"]


def test_shared_instructions_stay_beside_the_problem_until_the_next_heading():
    rows = extracted(
        "<h2>Practice</h2><p>For the following exercises, solve for x.</p><h4>1.</h4><p>x+1=3</p><h4>Solution</h4>"
        "<p>2</p>"
        "<h4>2.</h4><p>x+2=7</p><h4>Solution</h4><p>5</p><h2>More</h2><h4>3.</h4><p>Name a prime.</p>"
    )
    asked = "For the following exercises, solve for x."
    assert [(row["instructions"], row["problem"]) for row in rows] == [
        (asked, "x+1=3"),
        (asked, "x+2=7"),
        ("", "Name a prime."),
    ]
    counted = extracted(
        "<p>Use the data to answer the next two exercises: 4, 6.</p><h4>1.</h4><p>Sum?</p><h4>Solution</h4><p>10</p>"
        "<h4>2.</h4><p>Mean?</p><h4>Solution</h4><p>5</p><h4>3.</h4><p>Name a prime.</p><h4>Solution</h4><p>7</p>"
    )
    assert [bool(row["instructions"]) for row in counted] == [True, True, False]


def test_numbered_steps_of_a_solution_are_not_exercises():
    page = (
        "<h3>Exercise 1</h3><p>Solve x+1=3.</p><h4>Solution</h4><p>1. Subtract 1.</p><p>2. Read off x=2.</p>"
        "<h3>Exercise 2</h3><p>Solve x+1=4.</p><h4>Solution</h4><p>1. Subtract 1.</p><p>2. Read off x=3.</p>"
    )
    assert len(pairs(page)) == 2 and pairs(page)[0][1] == "1. Subtract 1.\n2. Read off x=2."


MARKDOWN = """# Sums

## 1.1-1

> Compute 1+2.
>
> Show the steps.

$$
1+2=3
$$

## 1.1-2

> Compute 4+4.

It is 8.
"""


def test_markdown_quotations_details_and_boxes():
    assert pairs(MARKDOWN, "markdown") == [
        ("Compute 1+2.\nShow the steps.", "$$\n1+2=3\n$$"),
        ("Compute 4+4.", "It is 8."),
    ]
    boxes = '**Exercise 1.** Compute 1+2.\n\n??? note "Solution"\n    3\n\n**Exercise 2.** Compute 4+4.\n\n'
    details = "<details>\n<summary>Solution</summary>\n\n8\n\n</details>\n"
    assert pairs(boxes + details, "markdown") == [("Compute 1+2.", "3"), ("Compute 4+4.", "8")]


def test_latex_environments_arguments_footnotes_and_items():
    source = r"""
\newcommand{\base}{10}
\begin{exercise} % a comment
What is $\base + 1$? \label{e1}
\end{exercise}
\begin{solution} It is $11$. \end{solution}
\begin{example}{How many sides does a triangle have?} It has \emph{three}. \end{example}
\begin{exercise} Round 9.7.\footnotemark{} \end{exercise}
\footnotetext{(a)~10}
\begin{enumerate} \item What is half of 8? \begin{answer} 4 \end{answer} \end{enumerate}
"""
    assert pairs(source, "latex") == [
        ("What is $10 + 1$?", "It is $11$."),
        ("How many sides does a triangle have?", "It has three."),
        ("Round 9.7.", "(a) 10"),
        ("What is half of 8?", "4"),
    ]


def test_cnxml_and_pretext():
    cnxml = (
        '<document xmlns="http://cnx.rice.edu/cnxml" xmlns:m="http://www.w3.org/1998/Math/MathML"><content><para>In '
        "the following exercises, solve.</para><exercise><problem><para><m:math><m:mfrac><m:mn>1</m:mn><m:mi>x</m:mi>"
        "</m:mfrac><m:mo>=</m:mo><m:mn>2</m:mn></m:math></para></problem><solution><para>x is a half</para></solution>"
        "</exercise></content></document>"
    )
    row = extracted(cnxml, "cnxml")[0]
    assert (row["instructions"], row["problem"]) == ("In the following exercises, solve.", r"$\frac{1}{x}=2$")
    pretext = (
        "<section><exercise><statement><p>Find <m>2^3</m>.</p></statement><hint><p>Eight?</p></hint><answer><p><m>8</m>"
        "</p></answer></exercise><exercise><introduction><p>Let <m>a=1</m>.</p></introduction><task><statement><p>Find "
        "<m>a+1</m>.</p></statement><solution><p>2</p></solution></task></exercise></section>"
    )
    assert pairs(pretext, "pretext") == [("Find $2^3$.", "$8$"), ("Let $a=1$.\nFind $a+1$.", "2")]


def test_numbers_alone_are_no_exercises_on_a_page_without_solutions():
    versions = "".join(f"<h2>2.{n}.0</h2><p>Find files faster.</p>" for n in (3, 2, 1))
    assert pairs(versions) == []
    assert len(pairs(versions + "<h4>Solution</h4><p>None.</p>")) == 3


QUIZ = (
    "## Question 1\nWhich metal melts first?\n\n- A: tin\n- B: iron\n\nAnswer: A\n\n"
    "## Question 2\nWhich one rusts?\n\n- A: gold\n- B: iron\n\nAnswer: B\n"
)


def test_a_is_an_option_or_a_point_where_b_follows_and_an_answer_elsewhere():
    assert pairs(QUIZ, "markdown") == [
        ("Which metal melts first?\n- A: tin\n- B: iron", "A"),
        ("Which one rusts?\n- A: gold\n- B: iron", "B"),
    ]
    points = "### Problem 1\nA square has the corners\n\nA: (1,1), B: (4,1). Find its area.\n\n### Solution\n$9$"
    assert pairs(points, "markdown") == [("A square has the corners\nA: (1,1), B: (4,1). Find its area.", "$9$")]
    assert pairs("Q: What is 2+3?\n\nA: 5\n\nQ: And 3+3?\n\nA: 6", "markdown") == [
        ("What is 2+3?", "5"),
        ("And 3+3?", "6"),
    ]


def test_numbered_headings_are_exercises_where_toggles_answer_them():
    one = "### {}. What does it print?\n\n```\n{}\n```\n\n- A: 1\n- B: 2\n\n"
    one += "<details><summary><b>Answer</b></summary>\n\n#### Answer: B\n\nIt adds.\n\n</details>\n\n"
    found = pairs(one.format(1, "1+1") + one.format(2, "3-1"), "markdown")
    assert found == [
        (f"What does it print?\n```\n{code}\n```\n- A: 1\n- B: 2", "B\nIt adds.") for code in ("1+1", "3-1")
    ]
    chapters = "# 1. Sums\n\nText on sums.\n\n# 2. Products\n\nText on products.\n\n### Answer\n\n7\n"
    assert all(solution is None or "Text" not in solution for _, solution in pairs(chapters, "markdown"))


def test_a_question_in_a_summary_hides_its_answer():
    page = "<p>Quiz</p>" + "".join(
        f"<details><summary>Question {n}: What is {n}+2?</summary><p>It is {n + 2}.</p></details>" for n in (1, 2)
    )
    assert pairs(page) == [("What is 1+2?", "It is 3."), ("What is 2+2?", "It is 4.")]


def test_optional_arguments_and_blanks_of_exam_papers():
    source = r"""\begin{questions}
\question[$**$] Find $a$ with $2a=6$. \begin{solution}[60 mm] It is $3$. \end{solution}
\question[4] Solve $x+2=9$. \begin{solutionorlines}[\stretch{1}] $x=7$ \end{solutionorlines}
\question The capital of Italy is \fillin[Rome][2in]. \begin{solution} Rome \end{solution}
\end{questions}"""
    assert pairs(source, "latex") == [
        ("Find $a$ with $2a=6$.", "It is $3$."),
        ("Solve $x+2=9$.", "$x=7$"),
        ("The capital of Italy is ____ .", "Rome"),
    ]


def test_of_several_solutions_in_one_box_the_first_counts_and_a_hint_is_none():
    box = "::: challenge\n\nHow much is 2+2?\n\n{}:::: solution\n4\n::::\n\n:::: solution\nFour.\n::::\n\n:::\n"
    assert pairs(box.format(""), "markdown") == [("How much is 2+2?", "4")]
    hint = ":::: solution\n\n## Hint\n\nCount.\n::::\n\n"
    assert pairs(box.format(hint), "markdown") == [("How much is 2+2?", "4")]
    several = "::: box\n\nFirst one?\n\n:::: solution\n1\n::::\n\nSecond one?\n\n:::: solution\n2\n::::\n\n:::\n"
    assert pairs(several, "markdown") == [("First one?", "1")]


def test_callouts_are_what_their_titles_say():
    beside = (
        "::: {.callout-note}\n## Exercise 2\n\nWhat is 2+3?\n:::\n\n"
        '::: {.callout-caution collapse="true"}\n## Solution\n\nIt is 5.\n:::\n'
    )
    titled = (
        '::: {.callout-tip title="Exercise 2"}\nWhat is 2+3?\n:::\n\n'
        '::: {.callout-note collapse="true" title="Solution"}\nIt is 5.\n:::\n'
    )
    assert pairs(beside, "markdown") == pairs(titled, "markdown") == [("What is 2+3?", "It is 5.")]


def test_values_that_a_program_fills_in_leave_no_exercise_and_blanks_do():
    source = (
        "<section><exercise><webwork><pg-code>$a=random(1,9);</pg-code><statement><p>Solve <m>x+{}=5</m>.</p>"
        '<p><m>x=</m><var name="$x" width="5"/></p></statement><solution><p>3</p></solution>'
        "</webwork></exercise></section>"
    )
    assert pairs(source.format('<var name="$a"/>'), "pretext") == []
    assert pairs(source.format("2"), "pretext") == [("Solve $x+2=5$.\n$x=$", "3")]


def answer(solution):
    return extracted(f"### Problem 1\nFind it.\n\n### Solution\n{solution}\n", "markdown")[0]["answer"]


def test_a_short_answer_goes_without_its_reason_and_prose_is_none():
    assert answer("$2+2=4$. Ответ: 4.") == "4"
    assert answer("$1$, т.к. все числа равны") == "1"
    assert answer("B, because 12 = 2*6") == "B"
    assert answer(r"$L\approx 2.44$ (actual value $L=2.42$)") == r"L\approx 2.44"
    assert answer("$a_n = 1/3^n$ and $b_n = 1/2^n$") == "$a_n = 1/3^n$ and $b_n = 1/2^n$"
    assert answer("Обе ситуации возможны.") is None
    assert answer("Fine") is answer("Theorem 3.1.") is answer("这种情况下不会破坏距离") is None
    assert answer("(Omit!)") is answer("(Removed)") is answer("Same as 6.3.3.") is None
    assert (answer("Even!"), answer("$n!$"), answer("10!")) == ("Even", "n!", "10!")
    assert (answer("$$45^\\circ$$"), answer("So \\( x \\) is \\( \\frac{1}{3} \\).")) == ("45^\\circ", "\\frac{1}{3}")
    assert answer("Answer: The probability of a 2 is \\( \\frac{1}{6} \\).") == "\\frac{1}{6}"
    assert answer("$$t = \\left(2+3\\right) = 5$$") == "5"
    assert answer("b.ii: The mean is 4.") is answer("We reject the claim that the mean is 30 minutes.") is None
    assert answer(r"We find $\begin{bmatrix}\boxed{1}&0\\0&1\end{bmatrix}$, and the system has no solution.") is None
    assert answer(r"Then $\begin{aligned}x&=2+2\\&=\boxed{4}\end{aligned}$") == "4"
    assert answer("Approximately $867$ meters.") == "$867$ meters"
    assert answer("$x=3$ or $x=4$") == "$x=3$ or $x=4$"


DETAILS = "<details>\n<summary>{}</summary>\n\n{}\n\n</details>\n\n"


def test_summaries_that_ask_hide_answers_and_other_summaries_hide_text():
    page = "# Networks\n\n" + "".join(
        DETAILS.format(question, answer)
        for question, answer in (
            ("Which port does SSH use?", "It is 22.\n\nSee the manual."),
            ("What do these do?\n\n- `cd`\n- `ls`", "- change\n- list"),
            ("Describe <code>ping</code>", "It sends echo requests."),
            ("How long is a byte?", "8 bits"),
        )
    )
    assert pairs(page, "markdown") == [
        ("Which port does SSH use?", "It is 22.\nSee the manual."),
        ("What do these do?\n- `cd`\n- `ls`", "- change\n- list"),
        ("Describe `ping`", "It sends echo requests."),
        ("How long is a byte?", "8 bits"),
    ]
    assert all(row["confidence"] < 0.8 for row in extracted(page, "markdown"))  # a FAQ has this form
    texts = ((f"Version {n}", "Fixed things.") for n in range(5))
    assert pairs("# News\n\n" + "".join(DETAILS.format(*text) for text in texts), "markdown") == []


def test_a_summary_that_only_says_show_hides_the_solution_of_what_stands_before():
    page = "".join(f"### List {n} pods\n\n" + DETAILS.format("show", f"`get {n}`") for n in (1, 2, 3))
    assert pairs(page, "markdown") == [(f"List {n} pods", f"`get {n}`") for n in (1, 2, 3)]


def test_a_label_in_backticks_a_rule_below_a_label_and_dollars_that_are_prices():
    one = "### Exercises 2.1-{0}\n***\nAdd {0} and 1. It costs $$$.\n\n### `Answer`\n{1}\n\n"
    rows = extracted(one.format(1, 2) + one.format(2, 3), "markdown")
    assert [(row["problem"], row["solution"], row["confidence"]) for row in rows] == [
        ("Add 1 and 1. It costs $$$.", "2", 0.97),
        ("Add 2 and 1. It costs $$$.", "3", 0.97),
    ]
    picture = r"![](http://a.b/c?f\(n)" + "\n\n"
    lost = "### Problem 1\nOne?\n\n### Answer\n" + picture + "### Problem 2\nTwo?\n\n### Answer\n" + r"$g\)$"
    assert [problem for problem, _ in pairs(lost, "markdown")] == ["One?", "Two?"]


def test_an_admonition_ends_where_the_indentation_does():
    one = '!!! warning "Exercise {0}: Sums"\n    Add {0} and 1.\n\n!!! details "Solution:"\n    It is {1}.\n\n'
    one += "Other prose.\n\n"
    assert pairs(one.format(1, 2) + one.format(2, 3), "markdown") == [
        ("Sums\nAdd 1 and 1.", "It is 2."),
        ("Sums\nAdd 2 and 1.", "It is 3."),
    ]


def test_code_in_a_list_begins_at_the_margin_and_a_formula_may_hold_what_markdown_reads():
    listed = "- First:\n\n  ```\n  if x:\n      y\n  ```\n- Then stop."
    formula = "$$\na\n=\nb\n\n- c\n$$"
    page = f"### Problem 1\nGo.\n\n### Solution\n{listed}\n\n> {formula.replace(chr(10), chr(10) + '> ')}"
    solution = f"- First:\n```\nif x:\n    y\n```\n- Then stop.\n{formula}".replace("\n\n", "\n")
    assert pairs(page, "markdown") == [("Go.", solution)]


def test_a_line_within_a_sentence_may_begin_like_a_label():
    asked = "Add 1 to the value obtained in\nexercise 7, and show all\nsteps. Check it."
    assert pairs(f"### Problem 1\n{asked}\n\n### Solution\n5", "markdown") == [(asked, "5")]


def test_items_of_paragraphs_keep_their_marks_and_the_last_of_them_is_no_answer():
    source = (
        "<section><exercise><statement><p>Two parts.</p><ol><li><p>Add <m>1</m>.</p></li><li><p>Add 2.</p></li></ol>"
        "</statement><solution><ol><li><p><m>2</m></p></li><li><p>so <m>x=3</m></p></li></ol></solution>"
        "</exercise></section>"
    )
    [row] = extracted(source, "pretext")
    assert (row["problem"], row["answer"]) == ("Two parts.\n- Add $1$.\n- Add 2.", None)
    choices = (
        '<section><exercise><statement><p>Which is odd?</p><ol marker="A."><li><p>2</p></li><li>3</li></ol>'
        "</statement><answer><p>B</p></answer></exercise></section>"
    )
    assert pairs(choices, "pretext") == [("Which is odd?\nA. 2\nB. 3", "B")]
    long = "the number that leaves a remainder of one"
    [row] = extracted(choices.replace("3<", f"{long}<").replace("<p>B", f"<p>B. {long}"), "pretext")
    assert (row["answer"], row["confidence"]) == ("B", 0.97)


def test_a_file_may_be_one_exercise():
    one = "<exercise><statement><p>Add 1 and 2.</p></statement><solution><p>3</p></solution></exercise>"
    assert pairs(one, "pretext") == [("Add 1 and 2.", "3")]
    task = "<task><statement><p>Find {}.</p></statement><answer><p>{}</p></answer></task>"
    tasks = "<introduction><p>Let <m>a=1</m>.</p></introduction>" + task.format("a", 1) + task.format("2a", 2)
    assert pairs(f"<exercise>{tasks}</exercise>", "pretext") == [
        ("Let $a=1$.\nFind a.", "1"),
        ("Let $a=1$.\nFind 2a.", "2"),
    ]


def test_a_diagram_of_arrows_is_a_picture():
    source = r"\begin{problem} Prove it. \begin{tikzcd} A \ar[r, two heads] & B \end{tikzcd} "
    source += r"\begin{sol} By chase. \end{sol}\end{problem}"
    assert pairs(source, "latex") == [("Prove it. ![]()", "By chase.")]


def test_numbered_headings_of_latex_are_exercises_and_the_next_heading_their_solution():
    source = r"""\subsection*{Exercise 6.1}
Find $2+2$.
\subsection*{Solution}
It is $4$.
\section{Problem statement}
Words.
\subsection*{Solution 3}
Of no exercise.
"""
    rows = extracted(source, "latex")
    assert [(row["problem"], row["solution"]) for row in rows] == [("Find $2+2$.", "It is $4$.")]
