"""extract_web on what sites write around exercises: grades, badges, keys, lines, placeholders."""

import pytest

from stages.extract_web.labels.furniture import (
    is_about_problem,
    is_placeholder,
    repeated_first_lines,
    repeated_last_line,
)
from stages.extract_web.labels.line_labels import labelled_lines
from stages.extract_web.running.extraction import extract_page

SUMS = (
    (1, "Find the sum of 11 and 12.", "It is 23, as 1+2=3."),
    (2, "What is 3-1?", "2"),
    (3, "Explain why.", None),
    (4, "Solve $x^2=4$.", "Both roots count: $x=2$ or $x=-2$."),
)
SOLVED = [(problem, solution) for _, problem, solution in SUMS if solution]


def pairs(middle):
    content = (
        f"<html><body><h1>Lesson 4</h1><p>Some practice follows, take your time.</p>{middle}</body></html>"
    )
    page = {"page_id": "p", "url": "", "format": "html", "content": content, "licence": ""}
    return [(row["problem"], row["solution"]) for row in extract_page(page, 40)[0] if row["solution"]]


def each(problem, solution, end=""):
    """Every exercise by the same forms; those without a solution leave `solution` out."""
    return "".join(
        problem.format(n=n, p=p) + (solution.format(n=n, s=s) if s else "") + end.format(n=n)
        for n, p, s in SUMS
    )


def key(problem, title, entry):
    asked = "".join(problem.format(n=n, p=p) for n, p, _ in SUMS)
    return asked + title + "".join(entry.format(n=n, s=s) for n, _, s in SUMS if s)


AROUND = {
    "badge in the label": each(
        "<div><p>Exercise 2.{n} <span class=badge>stretch</span></p><p>{p}</p>",
        "<details><summary>Solution</summary>{s}</details>",
        "</div>",
    ),
    "badges of which one could be a label": "".join(
        f"<div class=card><div>Task {n}\n<span class='badge small'>{level}</span></div><p>{p}</p>"
        + (f"<details><summary>Show solution</summary>{s}</details>" if s else "")
        + "</div>"
        for (n, p, s), level in zip(SUMS, ("basic", "challenge", "standard", "basic"), strict=True)
    ),
    "level in the label": each("<h3>Problem {n} hard</h3><p>{p}</p>", "<h4>Solution</h4><p>{s}</p>"),
    "points before": each("<h3>Problem {n}</h3><p>(3 points)</p><p>{p}</p>", "<h4>Solution</h4><p>{s}</p>"),
    "marks after": each("<h3>Question {n}</h3><p>{p}</p><p>[3 marks]</p>", "<h4>Mark scheme</h4><p>{s}</p>"),
    "level in a list after": "<ol>"
    + each("<li><p>{p}</p><ul><li>Level: hard</li>", "<li>Solution. {s}</li>", "</ul></li>")
    + "</ol>",
    "the same words after each solution": each(
        "<h3>Problem {n}</h3><p>{p}</p>", "<h4>Solution</h4><p>{s}</p><p>Posted in Algebra</p>"
    ),
    "edited": each("<h3>Problem {n}</h3><p>{p}</p>", "<h4>Solution</h4><p>{s}</p>")
    + "<div>This page was last edited on Mar 3, 2019.</div>",
    "words for screen readers": each(
        "<div><p><span class=sr-only>Tip</span>Your turn {n}</p><p>{p}</p>",
        "<details><summary>Answer</summary>{s}</details>",
        "</div>",
    ),
    "no solution yet": "".join(
        f"<h2>Problem {n}</h2><p>{p}</p><h3>Solution</h3><p>{s or 'This problem needs a solution. Add one.'}</p>"
        for n, p, s in SUMS
    ),
}
QUIZ = (
    "<form><div class=que><h3>Question {n}</h3><div class=state>Correct</div>"
    "<div class=grade>Mark 1.00 out of 1.00</div><h4>Question text</h4><p>{p}</p>"
)
REVIEWS = {
    "feedback": each(QUIZ, "<h4>Feedback</h4><div class=generalfeedback>{s}</div>", "</div></form>"),
    "feedback without a head": each(QUIZ, "<div class=generalfeedback>{s}</div>", "</div></form>"),
}
LINES = {
    "two breaks part exercises": "<div>" + each("Q{n}. {p}", "<br>Ans: {s}", "<br><br>") + "</div>",
    "numbers part exercises": "<div>" + each("{n}. {p}", "<br>Answer: {s}", "<br>") + "</div>",
    "a letter answers": each("<p>Q{n}: {p}", "<br>A. {s}", "</p>"),
    "a letter answers in its own paragraph": each("<p>Q{n}: {p}</p>", "<p>A. {s}</p>"),
    "a value after the label": each("<p>Q-{n}: {p}</p>", "<p>Ans. {s}</p>"),
    "a toggle at the paragraph's end": each(
        "<p>{n}. {p} [<a href='javascript:t()'>Answer</a>]</p>", "<div>{s}</div>"
    ),
    "openings nobody foresaw": each(
        "<div><p>Task {n}</p><p>{p}</p></div>", "<details><summary>Show me how</summary>{s}</details>"
    ),
}
KEYS = {
    "numbers alone": key(
        "<div><span>{n})</span><div><p>{p}</p></div></div>", "<h2>Answers</h2>", "<p><b>{n})</b> {s}</p>"
    ),
    "a link to the key": "<p><a href='#k'>Jump to the answers</a></p>"
    + key("<div><p><b>{n}.</b> {p}</p></div>", "<hr><h2 id=k>Answers</h2>", "<p><b>{n}.</b> {s}</p>"),
    "mark scheme in a table of numbers and answers": key(
        "<div><div>Question {n}</div><div>{p}</div></div>",
        "<h2>Mark scheme</h2><table><tr><th>Question<th>Answer",
        "<tr><td>{n}<td><p>{s}</p>",
    )
    + "</table>",
    "two lists before the page's foot": "<ol>"
    + key("<li value={n}>{p}</li>", "</ol><hr><h2>Answers</h2><ol>", "<li value={n}><p>{s}</p></li>")
    + "</ol><p>Course home | PDF</p>",
    "boxes named for what they hold": key(
        "<div class=problem-box><a href=#s{n}>{n}</a><span>. </span><div class=problem><p>{p}</p></div></div>",
        "<h2>Answer Key</h2>",
        "<div data-type=solution><a href=#e{n}>{n}</a><span>. </span><div class=solution><p>{s}</p></div></div>",
    ),
    "plain title": key(
        "<p>{n}) {p}</p>",
        "<hr><center><font size=+1>Answers to the Exercises</font></center>",
        "<p>{n}) {s}</p>",
    ),
    "run in after the title": key("<p>{n}. {p}</p>", "<p><b>Answers:</b> ", " {n}. {s}"),
    "without a title": key("<p><b>{n}.</b> {p}</p>", "<hr>", "<p><b>Answer {n}.</b> {s}</p>"),
    "links there and back": key(
        "<p>{n}. {p}<br>[<a href='#a{n}'>see answer</a>]</p>",
        "<hr><p><b>ANSWERS</b></p>",
        "<p>{n}. {s} <a href='#q{n}'>Back</a></p>",
    )
    + "<hr><p>Written by hand.</p>",
    "numbers in bold": key(
        "<p><b>{n}</b> {p}</p>", "<h2>Answers to Selected Exercises</h2>", "<p><b>{n}</b> {s}</p>"
    ),
}


@pytest.mark.parametrize(
    "page",
    [*AROUND.values(), *REVIEWS.values(), *LINES.values(), *KEYS.values()],
    ids=[*AROUND, *REVIEWS, *LINES, *KEYS],
)
def test_exercises_and_nothing_else(page):
    assert pairs(page) == SOLVED


def test_openings_that_follow_no_exercise_each_are_no_solutions():
    options = "<p>--check</p><details><summary>History</summary>Since 1.0</details>" * 5
    assert pairs("<h2>Example 1</h2><p>Run it.</p>" + options) == []


def test_choices_are_no_answers():
    page = "<p>Q1. What is 1+1?<br>A. 2<br>B. 3<br>Ans: A</p>" * 2
    assert pairs(page)[0] == ("What is 1+1?\nA. 2\nB. 3", "A")


def test_the_last_solution_ends_where_all_others_do():
    page = each("<p><b>Problem {n}.</b> {p}</p>", "<p><b>Solution.</b> {s}</p>")
    assert pairs(page + "<p>I hope these helped. See you next week!</p>") == SOLVED


def test_a_form_of_controls_is_left_out():
    page = each("<h3>Problem {n}</h3><p>{p}</p>", "<h4>Solution</h4><p>{s}</p>")
    form = "<form><label>Your solution</label><input><p>Be kind.</p><button>Send</button></form>"
    assert pairs(page + form) == SOLVED


def test_lines():
    assert labelled_lines("1. a\n2. b\nand c\n3. d") == ["1. a", "2. b\nand c", "3. d"]
    assert labelled_lines("1. a\n2. b") == ["1. a\n2. b"]


def test_lines_that_repeat():
    assert repeated_last_line(["a\nShare", "b\nShare", "c\nShare"]) == "Share"
    assert repeated_last_line(["a\nso $x=1$", "b\nso $x=1$", "c\nso $x=1$"]) is None
    assert repeated_first_lines(["Fluency\nFind a.", "Fluency\nFind b.", "Fluency\nFind c."]) == {"Fluency"}
    assert repeated_first_lines(["Simplify\n$a$", "Simplify\n$b$", "Simplify\n$c$"]) == frozenset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Mark 1.00 out of 1.00", True), ("Level: hard", True), ("★★", True), ("Hard work pays.", False)],
)
def test_what_stands_beside_a_problem(text, expected):
    assert is_about_problem(text) is expected


def test_no_solution_may_be_the_answer():
    assert is_placeholder("No solution yet.")
    assert not is_placeholder("No solution.")
