"""extract_web on what sites write around exercises: levels, keys, lines, placeholders."""

import pytest

from stages.extract_web.extraction import extract_page
from stages.extract_web.labels import is_placeholder

SUMS = (
    (1, "Find the sum of 11 and 12.", "It is 23, as 1+2=3."),
    (2, "What is 3-1?", "2"),
    (3, "Explain why.", None),
    (4, "Solve $x^2=4$.", "Both roots count: $x=2$ or $x=-2$."),
)
SOLVED = [(problem, solution) for _, problem, solution in SUMS if solution]


def pairs(middle):
    content = f"<html><body><h1>Lesson 4</h1><p>Some practice follows, take your time.</p>{middle}</body></html>"
    page = {"page_id": "p", "url": "", "format": "html", "content": content, "licence": ""}
    return [(row["problem"], row["solution"]) for row in extract_page(page, 40)[0] if row["solution"]]


def each(problem, solution, end=""):
    """Every exercise by the same forms; those without a solution leave `solution` out."""
    return "".join(
        problem.format(n=n, p=p) + (solution.format(n=n, s=s) if s else "") + end.format(n=n) for n, p, s in SUMS
    )


def key(problem, title, entry):
    asked = "".join(problem.format(n=n, p=p) for n, p, _ in SUMS)
    return asked + title + "".join(entry.format(n=n, s=s) for n, _, s in SUMS if s)


AROUND = {
    "level in the label": each("<h3>Problem {n} hard</h3><p>{p}</p>", "<h4>Solution</h4><p>{s}</p>"),
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
    "a value after an emphasised label": each("<p>Q{n}: {p}</p>", "<p><b>Answer</b> {s}</p>"),
    "a value after the label": each("<p>Q-{n}: {p}</p>", "<p>Ans. {s}</p>"),
}
KEYS = {
    "numbers alone": key(
        "<div><span>{n})</span><div><p>{p}</p></div></div>", "<h2>Answers</h2>", "<p><b>{n})</b> {s}</p>"
    ),
    "a link to the key": "<p><a href='#k'>Jump to the answers</a></p>"
    + key("<div><p><b>{n}.</b> {p}</p></div>", "<hr><h2 id=k>Answers</h2>", "<p><b>{n}.</b> {s}</p>"),
    "boxes named for what they hold": key(
        "<div class=problem-box><a href=#s{n}>{n}</a><span>. </span><div class=problem><p>{p}</p></div></div>",
        "<h2>Answer Key</h2>",
        "<div data-type=solution><a href=#e{n}>{n}</a><span>. </span><div class=solution><p>{s}</p></div></div>",
    ),
    "plain title": key(
        "<p>{n}) {p}</p>", "<hr><center><font size=+1>Answers to the Exercises</font></center>", "<p>{n}) {s}</p>"
    ),
    "numbers in bold": key("<p><b>{n}</b> {p}</p>", "<h2>Answers to Selected Exercises</h2>", "<p><b>{n}</b> {s}</p>"),
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


def test_a_form_of_controls_is_left_out():
    page = each("<h3>Problem {n}</h3><p>{p}</p>", "<h4>Solution</h4><p>{s}</p>")
    form = "<form><label>Your solution</label><input><p>Be kind.</p><button>Send</button></form>"
    assert pairs(page + form) == SOLVED


def test_no_solution_may_be_the_answer():
    assert is_placeholder("No solution yet.")
    assert not is_placeholder("No solution.")
