"""What a model says of a page: only parts of the page's own text come through, whatever the model writes."""

import random
import time

import pytest

from stages.extract_web.second_reading import model_candidates, page_windows, read_answer, request

WINDOW = """Sums and roots
What is the sum of the first
ten whole numbers? It is known that there are ten.
We add them in pairs: $1+10$, $2+9$ and so on, so the sum is $55$.
Which number has the square 49, if it is negative?
Both 7 and -7 have that square, so it is -7.
Comments are closed."""
SUM = """PROBLEM: What is the sum ... there are ten.
SOLUTION: We add them in pairs: ... so the sum is $55$.
ANSWER: $55$"""
ROOT = """PROBLEM: Which number has the square 49, if it is negative?
SOLUTION: Both 7 and -7 have that square, so it is -7.
ANSWER: -7"""


def reasons(answer, window=WINDOW):
    return [one.reason for one in read_answer(answer, window)[1]]


def test_spans_become_the_pages_own_text():
    found, refused = read_answer(f"Here they are.\n\n**{SUM.replace(': ', ':** ', 1)}\n\n2. {ROOT}\nNONE", WINDOW)
    assert [(one.problem, one.solution, one.answer) for one in found] == [
        (
            "What is the sum of the first\nten whole numbers? It is known that there are ten.",
            "We add them in pairs: $1+10$, $2+9$ and so on, so the sum is $55$.",
            "$55$",
        ),
        ("Which number has the square 49, if it is negative?", "Both 7 and -7 have that square, so it is -7.", "-7"),
    ]
    assert not refused


def test_an_exercise_without_solution_stands_alone_and_lines_go_on():
    found, _ = read_answer("PROBLEM: Which number has\nthe square 49,\n if it is negative?", WINDOW)
    assert [(one.problem, one.solution) for one in found] == [
        ("Which number has the square 49, if it is negative?", None)
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (SUM.replace("in pairs", "in triples"), "span_not_in_page"),
        (SUM.replace("ANSWER: $55$", "ANSWER: $56$"), "span_not_in_page"),
        (SUM.replace("there are ten.", "there were ten."), "span_not_in_page"),
        (SUM.replace("What is", "what is"), "span_not_in_page"),
        ("PROBLEM: ... \nSOLUTION: ...", "span_not_in_page"),
        ("PROBLEM: \nSOLUTION: ", "span_not_in_page"),
        ("PROBLEM: ten\nSOLUTION: Both 7 ... it is -7.", "problem_too_short"),
        ("SOLUTION: Both 7 ... it is -7.", "model_misspoke"),
        ("PROBLEM: What is the sum ... so on\nSOLUTION: It is known ... $55$.", "spans_overlap"),
        ("PROBLEM: What is the sum of\nSOLUTION: We add them ... it is -7.\n" + ROOT, "spans_overlap"),
    ],
)
def test_what_the_page_does_not_have_refuses_the_exercise(answer, reason):
    assert reason in reasons(answer)
    assert all(one.problem.startswith("Which number") for one in read_answer(answer, WINDOW)[0])


def test_an_answer_stands_in_its_solution():
    assert reasons(SUM.replace("ANSWER: $55$", "ANSWER: -7")) == ["span_not_in_page"]


def test_a_model_that_repeats_itself_says_it_once():
    found, refused = read_answer("\n".join([SUM] * 50), WINDOW)
    assert len(found) == 1 and not refused


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "NONE",
        "\0" * 1000,
        "PROBLEM:" * 20_000,
        "PROBLEM: (a+)+$\nSOLUTION: .*\nANSWER: \\",
        "PROBLEM: " + "... " * 20_000,
        "PROBLEM: " + "a " * 20_000 + "b",
        "\n".join(["PROBLEM: What is the ... ten", "SOLUTION: a ... $"] * 5_000),
        "<script>alert(1)</script>",
    ],
    ids=lambda answer: answer[:20],
)
def test_hostile_answers_give_nothing_soon(answer):
    started = time.process_time()
    found, _ = read_answer(answer, WINDOW + "\n" + "a " * 10_000)
    assert not [one for one in found if one.solution]
    assert time.process_time() - started < 2


def test_nothing_is_invented():
    """500 answers of a model that shuffles, cuts and makes up: every text that comes through stands in the window."""
    draw = random.Random(0)
    words = [*WINDOW.split(), "...", "PROBLEM:", "SOLUTION:", "ANSWER:", "\nPROBLEM:", "\nSOLUTION:", "invented", "\n"]
    taken = 0
    for _ in range(500):
        start = draw.randrange(len(words) - 8)
        text = " ".join(["PROBLEM:", *words[start : start + 4], "...", *draw.choices(words, k=draw.randrange(1, 9))])
        for one in read_answer(text, WINDOW)[0]:
            taken += 1
            assert all(part in WINDOW for part in (one.problem, one.solution or "", one.answer or ""))
    assert taken > 20


def page(content, form="html"):
    return {"page_id": "p", "url": "u", "format": form, "content": content, "licence": "MIT"}


def test_windows_are_whole_blocks_with_formulas_as_latex():
    text = "<p>Find <math><msup><mi>x</mi><mn>2</mn></msup></math> for x=3.</p>" + "<p>It is nine.</p>" * 5
    windows, left_out = page_windows(page(text), 40, 3)
    assert windows[0].startswith("Find $") and left_out == 0
    assert all(len(window) <= 40 for window in windows)
    assert page_windows(page("<p>" + "x" * 100 + "</p>"), 40, 2) == [["x" * 40, "x" * 40], 1]
    assert request("text").endswith("Page:\ntext")


def test_rows_say_that_a_model_found_them_and_a_failed_check_costs():
    hint = WINDOW.replace("It is known", "Hint: it is known").replace("? Hint", "?\nHint")
    asked = [SUM, ROOT, SUM.replace("there are ten", "there are $55$")]
    rows, refused = model_candidates(page(""), [WINDOW, WINDOW, WINDOW], asked, ["x " * 9 + "Which number"], 40, 0.5)
    assert [(row["candidate_id"], row["answer"], row["evidence"], row["confidence"]) for row in rows] == [
        ("p#model-0", "55", "model", 0.5),
        ("p#model-1", "-7", "model", 0.5),
    ]
    assert [one["reason"] for one in refused] == ["span_not_in_page"]
    [doubted], _ = model_candidates(page(""), [hint], [SUM], [], 40, 0.5)
    assert doubted["evidence"] == "model; problem_holds_part" and doubted["confidence"] == 0.25


def test_what_the_rules_are_sure_of_is_not_taken_twice():
    known = ["Exercise: which number has the square 49,\nif it is negative?".replace("which", "Which")]
    rows, refused = model_candidates(page(""), [WINDOW], [f"{SUM}\n{ROOT}"], known, 40, 0.5)
    assert [row["answer"] for row in rows] == ["55"]
    assert [one["reason"] for one in refused] == ["known_to_rules"]
