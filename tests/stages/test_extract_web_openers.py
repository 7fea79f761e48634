"""extract_web where links and buttons open hidden parts by identifier, and where spans stand beside a label."""

import pytest
from lxml import etree

from stages.extract_web.blocks import Block
from stages.extract_web.html_badges import badges_beside_label
from stages.extract_web.html_openers import opened_parts
from stages.extract_web.labels import find_label
from tests.stages.test_extract_web_blind import SOLVED, SUMS, each, pairs

HIDDEN = "<div id=s{n} style='display:none'>{s}</div>"
ROWS = {
    "script in the address": (
        "<a href=\"javascript:flip('s{n}')\">[Solution]</a>",
        "<a href=\"javascript:flip('t{n}')\">[Views]</a>",
    ),
    "script on a click": (
        "<a href='#' onclick='flip(\"s{n}\"); return false'>Solution</a>",
        "<a onclick='flip(t{n})'>Views</a>",
    ),
    "buttons": ("<button aria-controls=s{n}>Solution</button>", "<button aria-controls=t{n}>Views</button>"),
    "addresses": ("<a href='#s{n}'>Show solution</a>", "<a href='#t{n}'>Views</a>"),
}


def rows(first, second):
    """Exercises with a row of openers each, before the hidden parts that they open."""
    return "".join(
        f"<div><p><b>Problem {n}.</b> {p}</p><p>{(first if s else '').format(n=n)} {second.format(n=n)}</p>"
        + (HIDDEN.format(n=n, s=s) if s else "")
        + f"<div id=t{n} style='display:none'>Seen {n}0 times.</div></div>"
        for n, p, s in SUMS
    )


@pytest.mark.parametrize("name", ROWS)
def test_hidden_parts_belong_to_the_openers_that_name_them(name):
    assert pairs(rows(*ROWS[name])) == SOLVED


@pytest.mark.parametrize("name", ROWS)
def test_an_opener_of_something_else_before_that_of_the_solution(name):
    first, second = ROWS[name]
    middle = "".join(
        f"<p><b>Problem {n}.</b> {p}</p><p>{second.format(n=n)} {(first if s else '').format(n=n)}</p>"
        f"<div id=t{n} hidden>Seen {n}0 times.</div>" + (HIDDEN.format(n=n, s=s) if s else "")
        for n, p, s in SUMS
    )
    assert pairs(middle) == SOLVED


def test_hidden_parts_at_the_end_of_the_page():
    asked = each("<h3>Problem {n}</h3><p>{p}</p>", "<a href='#s{n}'>Solution</a>")
    assert pairs(asked + "".join(HIDDEN.format(n=n, s=s) for n, _, s in SUMS if s)) == SOLVED


def test_what_stands_under_an_opened_part_is_none_of_it():
    card = "<div><div class=b2><span>Question {n} of 14</span><span>{tag}</span><span>Hard</span></div><p>{p}</p>"
    opened = "<button aria-expanded=false aria-controls=s{n}>Show explanation</button><div id=s{n}>{s}</div>"
    middle = "".join(
        card.format(n=n, p=p, tag=("Data", "Reasoning")[n % 2])
        + (opened.format(n=n, s=s) if s else "")
        + f"<div class=b2><span>{20 + n}% of users got it right</span></div></div>"
        for n, p, s in SUMS
    )
    assert pairs(middle) == SOLVED


def test_openers_that_open_the_rest_of_a_text():
    middle = each(
        "<h3>Problem {n}</h3><p>Read this.</p><a href=#r{n}>Read more</a><div id=r{n} hidden>{p}</div>",
        "<h4>Solution</h4><div>{s}</div>",
    )
    assert pairs(middle) == [(f"Read this.\n{p}", s) for p, s in SOLVED]


def test_only_hidden_boxes_after_the_opener_that_names_them_alone():
    page = etree.HTML(
        "<div id=a hidden>1</div><a href=#a>Answer</a><a href=#b>Answer</a><div id=b>2</div><a href=#c>Answer</a>"
        "<a onclick=\"f('c','d')\">Answer</a><div id=c class=collapse>3</div><div id=d hidden>4</div>"
        "<a href=#d>Once</a><a href=#e>Once</a><div id=e hidden>5</div>"
    )
    assert [(one.get("href"), part.get("id")) for one, part in opened_parts(page).items()] == [("#c", "c")]


@pytest.mark.parametrize(
    ("row", "count"),
    [
        ("<span>Question 3 of 14</span><span>Word problems</span><span>2 min</span><span>Unit 2</span>", 3),
        ("<span>Question 3</span><span>Simplify</span>", 0),
        ("<span>Question 3</span><span>x+2</span>", 0),
        ("<span>Question 3</span> asks <span>Data</span>", 0),
        ("<span>Question</span><span>Solution</span>", 0),
        ("<span>Solution 3</span><span>Data</span>", 0),
        ("<span>Some text</span><span>Data</span>", 0),
    ],
)
def test_spans_beside_a_label(row, count):
    assert len(badges_beside_label(etree.fromstring(f"<div>{row}</div>"))) == count


@pytest.mark.parametrize(
    "name", ["<div>{title}<a href='#x{n}' aria-label='Link: Exercise {n}'></a></div>", "{title}"]
)
def test_who_added_an_exercise_is_no_part_of_it(name):
    people = ("@map_leaf", "Jo K.", "nightowl", "pi_eater")
    middle = "".join(
        name.format(n=n, title=f"<h2>Exercise 4.{n}</h2>")
        + f"<ul><li>added by <code>{people[n - 1]}</code></li><li>status: {'done' if s else 'help wanted'}</li></ul>"
        f"<p>{p}</p>" + (f"<h3>Solution</h3><p>{s}</p>" if s else "") + "<hr>"
        for n, p, s in SUMS
    )
    assert pairs(middle) == SOLVED


def test_solutions_by_long_roman_numbers():
    numbers = ("XXXVII", "XXXVIII", "XXXIX", "XL")
    asked = (
        "".join(
            f"<div><p><b>Puzzle {numbers[n - 1]}.</b> {p}</p><p><a href='#s{n}'>Jump to the solution</a></p></div><hr>"
            for n, p, s in SUMS
            if s
        )
        + "<div><p><strong>Puzzle XXXIX.</strong> Explain why.</p></div>"
    )
    solved = "".join(
        f"<h4>Solution to Puzzle {numbers[n - 1]} <a href='#p{n}'>↩</a></h4><p>{s}</p>"
        for n, _, s in SUMS
        if s
    )
    assert pairs(f"{asked}<h2>Solutions</h2>{solved}") == SOLVED


@pytest.mark.parametrize(
    ("title", "number"),
    [
        ("Puzzle XLVIII", "XLVIII"),
        ("Exercise xciv", "xciv"),
        ("Problem CLXXXIX.", "CLXXXIX"),
        ("Exercise IX", "IX"),
    ],
)
def test_roman_numbers(title, number):
    label = find_label(Block(title, "paragraph"))
    assert label is not None and label.number == number


@pytest.mark.parametrize("title", ["Example CV", "Exercise IIII", "Problem C", "Exercise XXL", "Exercise l"])
def test_letters_that_are_no_roman_numbers(title):
    assert find_label(Block(title, "paragraph")) is None
