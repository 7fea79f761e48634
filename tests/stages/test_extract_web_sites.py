"""extract_web on what site software writes: panels named elsewhere, boxes without labels, formulas shown twice."""

import pytest

from stages.extract_web.extraction import extract_page
from stages.extract_web.numbering import Numbered, longest_ascending, runs


def pairs(content, form="html"):
    page = {"page_id": "p", "url": "", "format": form, "content": content, "licence": ""}
    return [(row["problem"], row["solution"]) for row in extract_page(page, 40)[0]]


def numbered(*numbers):
    return [Numbered(index, number, "", ("text", 0)) for index, number in enumerate(numbers)]


def numbers(run):
    return [one.number for one in run]


def test_a_panel_is_named_by_its_tab():
    page = (
        "<h3>1.</h3><ul role=tablist><li><a role=tab href='#a'>Problem</a>"
        "<li><a role=tab href='#b' id=t>Solution</a></ul><div role=tabpanel id=a><p>What is 2+3?</p></div>"
        "<div role=tabpanel id=b aria-labelledby=t><p>It is 5.</p></div>"
    )
    assert pairs(page) == [("What is 2+3?", "It is 5.")]


def test_a_heading_inside_its_own_section_names_it_once():
    page = (
        "<section aria-labelledby=p><h3 id=p>Exercise 1</h3><p>Add 2 and 3.</p></section>"
        "<section aria-label=Solution><p>5</p></section>"
    )
    assert pairs(page) == [("Add 2 and 3.", "5")]


SUMS = (("What is 1+1?", "Two."), ("What is 2+1?", "Three."), ("Compute 2+2.", "<p>It is</p><p>four.</p>"))
ACCORDION = "".join(
    f"<div class=accordion-item><h3><button aria-expanded=false>{head}</button></h3><div>{body}</div></div>"
    for head, body in SUMS
)


def test_boxes_that_repeat_are_exercises_when_their_heads_ask():
    assert pairs(f"<div>{ACCORDION}</div>") == [
        ("What is 1+1?", "Two."),
        ("What is 2+1?", "Three."),
        ("Compute 2+2.", "It is\nfour."),
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("What is", "About"),  # nothing asks: the menu of a site (the numbers go too, see below)
        ("accordion-item", "box"),  # nothing says that the heads open the bodies
    ],
)
def test_boxes_that_repeat_are_left_alone_without_both_signs(old, new):
    page = ACCORDION.replace(old, new)
    if new == "About":
        page = page.replace("1+1?", "us").replace("2+1?", "them").replace("Compute 2+2.", "Contact")
    else:
        page = page.replace(" aria-expanded=false", "")
    assert not any(solution for _, solution in pairs(f"<div>{page}</div>"))


def test_labels_in_words_win_over_boxes_that_repeat():
    page = "".join(
        f"<div class=accordion><div>What is {n}+1?</div><div><b>Solution:</b> {n + 1}</div></div>"
        for n in (1, 2, 3)
    )
    assert pairs(page)[0] == ("What is 1+1?", "2")


def test_two_beginnings_that_take_turns():
    page = "".join(
        f"<p><b>Pupil:</b> What is {n}+1?</p><p><b>Teacher:</b> It is {n + 1}.</p>" for n in (1, 2, 3)
    )
    assert pairs(page) == [(f"What is {n}+1?", f"It is {n + 1}.") for n in (1, 2, 3)]
    chat = "<p><b>Pupil:</b> I like sums.</p><p><b>Teacher:</b> So do I.</p>" * 3
    assert pairs(chat) == []


SHOWN = {
    "hidden from readers": "<span><math><mi>x</mi></math></span><span aria-hidden=true>x</span>",
    "script": "<span class=MathJax_Preview></span><span class=MathJax><i>x</i></span>"
    "<script type='math/tex'>x</script>",
    "picture": "<img class=latex alt='$x$' src=a.png>",
    "picture beside MathML": "<span><math><mi>x</mi></math></span><img class=mwe-math aria-hidden=true alt=x>",
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_formula_stands_once(name):
    assert pairs(f"<h3>Problem 1</h3><p>Find {SHOWN[name]}.</p>")[0][0].replace(" ", "") == "Find$x$."


def test_hidden_text_without_a_formula_beside_it_stays():
    page = "<h3>Problem 1</h3><p>Find <span aria-hidden=true>x</span>.</p><h4>Solution</h4>"
    assert pairs(page + "<div aria-hidden=true>3</div>") == [("Find x.", "3")]


def test_solutions_are_counted_within_their_exercise():
    page = "".join(
        f"<h2>Problem {n}</h2><p>Compute {n}+1.</p><h3>Solution 1</h3><p>Count.</p><h3>Solution 2</h3><p>Guess.</p>"
        for n in (1, 2)
    )
    assert pairs(page) == [("Compute 1+1.", "Count."), ("Compute 2+1.", "Count.")]


def test_solutions_named_by_number_go_to_their_exercises():
    page = (
        "<h3>Exercise 1</h3><p>Compute 1+1.</p><h3>Exercise 2</h3><p>Compute 2+1.</p>"
        "<h3>Solution 2</h3><p>3</p><h3>Solution 1</h3><p>2</p>"
    )
    assert pairs(page) == [("Compute 1+1.", "2"), ("Compute 2+1.", "3")]


def test_feedback_solves_a_quiz_and_not_a_site():
    one = "<h3>Question {0}</h3><h4>Question text</h4><p>Add 1 to {0}.</p><h4>Feedback</h4><p>Count on.</p>"
    assert pairs(one.format(1) + one.format(2))[1] == ("Add 1 to 2.", "Count on.")
    site = (
        "<h3>Question 1</h3><p>Add 1 to 2.</p><h4>Solution</h4><p>3</p><h3>Feedback</h3><p>Tell us more.</p>"
    )
    assert pairs(site) == [("Add 1 to 2.", "3")]


def test_a_number_after_a_full_stop_is_what_was_found():
    assert pairs("<p><b>Exercise 1.</b> Add 2 and 3.</p><p><b>Solution.</b> 5</p>") == [("Add 2 and 3.", "5")]
    assert pairs("<p>Exercise 1. Add 2 and 3.</p><p>Sol. 1: It is 5.</p>") == [("Add 2 and 3.", "It is 5.")]


def test_code_between_an_exercise_and_its_solution_parts_nothing():
    page = "<h1>Sums</h1><div><h3>Exercise 1</h3><p>Add.</p></div>{}<div><h4>Solution</h4><p>2</p></div>"
    assert pairs(page.format("<pre># here\nx = 1</pre>")) == [("Add.", "2")]
    assert pairs(page.format("<p>We turn to something else.</p>"))[0] == ("Add.", None)


def test_labels_in_the_middle_of_a_paragraph_need_a_colon():
    assert pairs("<p><b>Problem 1.</b> Add 2 and 3. <b>Solution:</b> 5</p>") == [("Add 2 and 3.", "5")]
    assert pairs("<p><b>Problem 1.</b> Give the <b>answer</b> only.</p>") == [("Give the answer only.", None)]
    hint = "<p><b>Problem 1.</b> Add 2 and 3. (<b>Hint:</b> count.)</p>"
    assert pairs(hint) == [("Add 2 and 3. (Hint: count.)", None)]


@pytest.mark.parametrize(
    ("problem", "solution"),
    [
        ("Aufgabe 1", "Lösung anzeigen"),
        ("Exercice 1", "Corrigé"),
        ("Ejercicio 1", "Ver la solución"),
        ("Esercizio 1", "Svolgimento"),
        ("Exercício 1", "Resolução"),
        ("Opgave 1", "Uitwerking"),
        ("Zadanie 1", "Rozwiązanie"),
        ("Задача 1", "Решение"),
        ("例题 1", "解:"),
        ("Chapter 3, Problem 1E", "Step-by-step solution"),
    ],
)
def test_labels_in_other_languages(problem, solution):
    assert pairs(f"<h3>{problem}</h3><p>2+3</p><h4>{solution}</h4><p>5</p>") == [("2+3", "5")]


def test_runs_survive_numbers_out_of_order():
    assert [numbers(run) for run in runs(numbered("7", "180", "8", "9"), is_gapless=False)] == [
        ["7", "8", "9"]
    ]
    assert [numbers(run) for run in runs(numbered("10", "11", "1.5", "12"), is_gapless=True)] == [
        ["10", "11", "12"],
        ["1.5"],
    ]


def test_a_restart_begins_the_next_run():
    assert [numbers(run) for run in runs(numbered("1", "2", "3", "1", "2", "3", "4"), is_gapless=True)] == [
        ["1", "2", "3"],
        ["1", "2", "3", "4"],
    ]


def test_longest_ascending():
    assert numbers(longest_ascending(numbered("1", "6", "2", "3", "0.9", "5", "4", "9"))) == [
        "1",
        "2",
        "3",
        "4",
        "9",
    ]
    assert longest_ascending([]) == []


def test_text_runs_on_over_printed_pages():
    page = (
        "<div class=page><p>1. Add 2</p><p>– 1 –</p></div><div class=page><p>and 3.</p><p>2. Add 4 and 5.</p>"
        "<p><b>Solutions</b></p><p>1. 5</p><p>2. 9</p></div>"
    )
    assert pairs(page) == [("Add 2\nand 3.", "5"), ("Add 4 and 5.", "9")]


def test_words_of_other_languages_that_are_english_too_label_nothing():
    assert pairs(
        "<h3>Exercise 1</h3><p>Exclude x = 5</p><p>as possible solutions from the solution set.</p>"
    ) == [("Exclude x = 5\nas possible solutions from the solution set.", None)]


@pytest.mark.parametrize(
    "before", ['<?xml version="1.0" encoding="UTF-16"?>\n', "\ufeff<?xml version='1.0'?>", "\x00"]
)
def test_what_belonged_to_the_bytes_is_no_part_of_the_text(before):
    page = "<html><h3>Exercise 1</h3><p>2+3, café \udcff</p><h4>Solution</h4><p>5</p></html>"
    assert pairs(before + page) == [("2+3, café \ufffd", "5")]
    exercise = "<exercise><problem>2+3 \udcff</problem><solution>5</solution></exercise>"
    assert pairs(f"{before}<document>{exercise}</document>", "cnxml") == [("2+3 \ufffd", "5")]
