"""extract_web where a site's own marks and lines stand on and around the labels."""

import pytest

from stages.extract_web.extraction import extract_page
from stages.extract_web.furniture import line_form, repeated_form
from tests.stages.test_extract_web_blind import SOLVED, SUMS, each, pairs

DATES = ("May 7, 2022", "Jun 12, 2021", "May 30, 2022", "Dec 1, 2019", "Mar 3, 2020", "July 4, 2024")

MARKED = {
    "class on the title": each(
        "<h3 class='problem'>Problem {n}</h3><p>{p}</p>", "<h4 class='solution'>Solution</h4><p>{s}</p>"
    ),
    "id on the title": each(
        "<h3 id='q-{n}'>Problem {n}</h3><p>{p}</p>", "<h4 id='q-{n}-ans'>Answer</h4><p>{s}</p>"
    ),
    "edit link in a marked title": each(
        "<h3 class='problem'>Problem {n} <a href='/e'>edit</a></h3><p>{p}</p>", "<h4>Solution</h4><p>{s}</p>"
    ),
    "remark before the sign": each(
        "<p><span>Question {n} (3 points).</span> {p}</p>", "<p><b>Working:</b> {s}</p>"
    ),
    "counted": each("<p><span>Puzzle {n} of 24.</span> {p}</p>", "<p><b>Working:</b> {s}</p>"),
    "level in brackets": each("<p><span>Exercise {n} [easy].</span> {p}</p>", "<p><b>Working:</b> {s}</p>"),
    "unforeseen word with points": each(
        "<p><b>Stretch no. {n} (5 pts)</b></p><p>{p}</p>", "<p><b>Solution</b></p><p>{s}</p>"
    ),
    "numbered terms": "<dl>" + each("<dt><span>{n})</span> {p}</dt>", "<dd><em>Ans.</em> {s}</dd>") + "</dl>",
    "number that is the answer": each("<p><b>Problem {n}.</b> {p}</p>", "<p><b>Sol.</b> {s}</p>"),
}


@pytest.mark.parametrize("name", MARKED)
def test_marks_on_a_title_do_not_cut_off_what_it_stands_over(name):
    assert pairs(MARKED[name]) == SOLVED


@pytest.mark.parametrize(
    "form",
    ["<div><a href='#top'>Back to top</a> | Last edited {date}</div>", "<p>Item {n} · level {letter}</p>"],
)
def test_a_line_under_solved_and_unsolved_exercises_is_no_part_of_either(form):
    middle = "".join(
        f"<h3>Problem {n}</h3><p>{p}</p>"
        + (f"<h4>Solution</h4><p>{s}</p>" if s else "")
        + form.format(date=DATES[n - 1], n=n, letter="ABCBAB"[n - 1])
        for n, p, s in [*SUMS, (5, "Show that 2 is even.", None), (6, "Find 3+4.", "7")]
    )
    assert pairs(middle) == [*SOLVED, ("Find 3+4.", "7")]


def test_the_same_kind_of_result_in_all_solutions_is_no_furniture():
    results = [line_form(f"The answer is {n}.") for n in range(9)]
    assert repeated_form([], results) is None
    assert repeated_form([], [line_form(f"$x = {n}$") for n in range(9)]) is None
    assert repeated_form([], [line_form(f"link to this item, level {letter}") for letter in "ABCABCA"])
    assert repeated_form(["report"] * 2, ["report"] * 7 + ["other"]) == "report"


def test_a_lone_exercise_with_an_edit_link_in_its_title_is_one_exercise():
    page = "<h3 class='problem'>Problem 1 <a href='/e'>edit</a></h3><p>Find 1+1.</p><h4>Answer</h4><p>It is 2.</p>"
    content = f"<html><body><h1>Unit 3</h1>{page}</body></html>"
    row = {"page_id": "p", "url": "", "format": "html", "content": content, "licence": ""}
    assert [(one["problem"], one["solution"]) for one in extract_page(row, 40)[0]] == [
        ("Find 1+1.", "It is 2.")
    ]
