"""extract_web on what stands in fields beside an exercise: marks, topics, authors, exams, columns of answers."""

import pytest

from stages.extract_web.blocks import Block
from stages.extract_web.furniture import are_facts, is_about_problem
from stages.extract_web.labels import find_label
from tests.stages.test_extract_web_blind import pairs
from tests.stages.test_extract_web_labels import ALL_SOLVED, MANY, many

NAMES = ("Ann B.", "oldfox", "C. Dumont", "Ann B.", "mira_k", "Pavel", "J. Lind")


def record(end):
    """A list of terms for each exercise, one term of it the answer; `end` gives its last fields."""
    return "".join(
        f"<dl><dt>Code<dd>MA-00{n}<dt>Topic<dd>Sums<dt>Task text<dd><p>{p}</p><dt>Marks<dd>{n % 3 + 1}"
        + (f"<dt>Model answer<dd><p>{s}</p>" if s else "")
        + end.format(name=name)
        + "</dl>"
        for (n, p, s), name in zip(MANY, NAMES, strict=True)
    )


def table(head, row):
    cells = "".join("<tr>" + row.format(n=n, p=p, s=s or "&nbsp;", m=n % 2 + 1) + "</tr>" for n, p, s in MANY)
    return f"<table><tr>{head}</tr>{cells}</table>"


def as_table(lists):
    """The same fields in rows of a head and a cell."""
    for old, new in (
        ("<dl>", "<table>"),
        ("</dl>", "</tr></table>"),
        ("<dt>", "</tr><tr><th>"),
        ("<dd>", "</th><td>"),
    ):
        lists = lists.replace(old, new)
    return lists.replace("<table></tr>", "<table>")


FIELDS = {
    "marks and author": record("<dt>Contributed by<dd>{name}"),
    "nothing after the answer": record(""),
    "a table for each": as_table(record("<dt>Contributed by<dd>{name}")),
    "a table for all": as_table(record("<dt>Contributed by<dd>{name}")).replace("</table><table>", ""),
    "one list for all": record("<dt>Contributed by<dd>{name}").replace("</dl><dl>", ""),
    "numbered terms": "<dl>" + many("<dt><b>{n}.</b> {p}</dt>", "<dd><p>{s}</p></dd>") + "</dl>",
    "numbered terms with tags": "<dl>"
    + many("<dt>{n}. <small class=tag>easy</small> {p}</dt>", "<dd>{s}</dd>")
    + "</dl>",
    "tags of several kinds": many(
        "<p>Question {n} <i class='q-tag'>{tag}</i></p><p>{p}</p>",
        "<p><a class=show-answer href='#'>Show answer</a></p><div>{s}</div>",
    ),
    "marks in a box": many(
        "<div><div><b>Question</b> {p}</div><div><b>Marks</b> 2</div>",
        "<div><b>Model answer</b> {s}</div>",
        "</div>",
    ),
    "numbered terms without a full stop": "<dl>"
    + many("<dt>{n}) {p} Use a=2, b=3</dt>", "<dd>{s}</dd>")
    + "</dl>",
    "a key of the teacher": table(
        "<th>No.<th>Task<th>Marks<th>Teacher's key", "<td>{n}<td>{p}<td>{m}<td>{s}"
    ),
    "a key in brackets": table("<th>Question<th>Marks<th>Key (teacher only)", "<td>{p}<td>{m}<td>{s}"),
    "marks before the answer": table("<th>No.<th>Text<th>Marks<th>Answer", "<td>{n}<td>{p}<td>{m}<td>{s}"),
    "year of an exam": many("<p><b>Que. {n}:</b> <i>[2014]</i> {p}</p>", "<p><b>Ans.</b> {s}</p>"),
    "name of an exam": many("<p>Q.{n} (CBSE Delhi, 2015) {p}</p>", "<p>Ans. {s}</p>"),
    "who sent it in": "<table>"
    + many(
        "<tr><td colspan=2><b>Teaser #{n}</b></td></tr><tr><td colspan=2>Sent in by Margaret T.</td></tr>"
        "<tr><td></td><td>{p}</td></tr>",
        "<tr><td><b>Answer:</b></td><td>{s}</td></tr>",
    )
    + "</table>",
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_beside_an_exercise_are_no_part_of_it(name):
    found = [(p.replace(" Use a=2, b=3", ""), s) for p, s in pairs(FIELDS[name])]
    assert found == ALL_SOLVED


def test_a_field_that_says_what_is_given_belongs_to_the_problem():
    given = ("a circle with its centre", "two sides and an angle", "the sum of two angles")
    page = "".join(
        f"<dl><dt>Problem<dd>What is asked for?<dt>Given<dd>{g}<dt>Solution<dd>7</dl>" for g in given
    )
    assert pairs(page) == [(f"What is asked for?\nGiven\n{g}", "7") for g in given]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("Marks", ["6", "2", "4"], True),
        ("Topic", ["Sums", "Sums", "Roots", "Sums"], True),
        ("Contributed by", ["Ann B.", "oldfox", "Pavel"], True),
        ("Given", ["a circle", "an angle", "two sides"], False),
        ("Given", ["x=1", "x=2", "x=3"], False),
        ("Aim", ["Find x", "Find x", "Find x"], False),
        ("Marks", ["6", "2"], False),
        ("B", ["6", "2", "7"], False),
    ],
)
def test_facts_are_short_and_come_again(name, values, expected):
    assert are_facts(name, values) is expected


@pytest.mark.parametrize(
    "text",
    [
        "[2000, 2014] is an interval.",
        "(2014) is even.",
        "[2] 3 marks",
        "(see 2014) Find x.",
        "[20145] Find x.",
    ],
)
def test_brackets_that_are_no_exam_stay(text):
    label = find_label(Block(f"Question 3: {text}", "paragraph"))
    assert label is not None and label.rest == text


def test_names_of_those_who_sent_a_problem():
    assert is_about_problem("Sent in by Margaret T.")
    assert not is_about_problem("Created by rotating the region about the axis")


@pytest.mark.parametrize(
    "page",
    [
        "<dl>"
        + "".join(
            f"<dt>{n}. {t}<dd>Press the key and wait." for n, t in enumerate(("Install", "Start", "List"), 1)
        )
        + "</dl>",
        "<dl>"
        + "".join(
            f"<dt>{n}. {t}<dd>About {n} months." for n, t in ((3, "Find us"), (1, "Show it"), (2, "Go on"))
        )
        + "</dl>",
        table("<th>Planet<th>Moons<th>Key", "<td>{n}<td>{m}<td>{n}"),
    ],
)
def test_lists_and_tables_without_exercises(page):
    assert not pairs(page)


@pytest.mark.parametrize("number", ["Item", "Question no."])
def test_the_field_right_before_most_solutions_is_the_exercise(number):
    page = "".join(
        f"<dl><dt>{number}<dd>{n}<dt>Subject<dd>Algebra<dt>Stem<dd>{p}<dt>Difficulty<dd>hard"
        + (f"<dt>Worked solution<dd>{s}" if s else "")
        + f"<dt>Marks<dd>{n + 2}</dl>"
        for n, p, s in MANY
    )
    assert [pair for pair in pairs(page) if pair[1]] == [(p, s) for _, p, s in MANY if s]


def test_a_key_of_boxes_each_with_a_number_over_its_solution():
    box = "<article class={}><h4><span>{}<span>.</span></span></h4>{}</article>"
    asked = "".join(box.format("exercise", n, f"<p>{p}</p>") for n, p, _ in MANY)
    told = "".join(
        box.format("exercise", n, f"<div class=solution><p>{s}</p></div>") for n, _, s in MANY if s
    )
    key = f"<section><h3>Solutions to the Exercises</h3>{told}</section>"
    assert pairs(f"<section><h3>Exercises 5.2</h3>{asked}</section>{key}") == [
        (p, s) for _, p, s in MANY if s
    ]


def test_a_mark_scheme_in_one_word():
    assert (
        find_label(Block("Markscheme", "heading")) == find_label(Block("Mark scheme", "heading")) is not None
    )


def test_a_stroke_in_the_place_of_an_answer_is_none():
    rows = "".join(f"<tr><td>{n}<td>{p}<td>{n % 4}<td>{s or '–'}" for n, p, s in MANY)
    page = f"<table><tr><th>No.<th>Task<th>Points<th>Solution{rows}</table>"
    assert pairs(page) == [(p, s) for _, p, s in MANY if s]


@pytest.mark.parametrize(
    ("title", "solution"),
    [
        ("Problem of the Week #{}", "Our solution"),
        ("Weekly Challenge #{}", "Solution to Weekly Challenge #{}"),
        ("Puzzle of the Month {}", "Solution to Puzzle of the Month {}"),
    ],
)
def test_a_problem_of_the_week_and_who_solved_it(title, solution):
    page = "".join(
        f"<h2>{title.format(n)}</h2><p>{p}</p>"
        + (f"<h3>{solution.format(n)}</h3><p>{s}</p><h4>Correct solvers</h4><p>{name}</p>" if s else "")
        + "<hr>"
        for (n, p, s), name in zip(MANY, NAMES, strict=True)
    )
    assert pairs(page) == [(p, s) for _, p, s in MANY if s]
