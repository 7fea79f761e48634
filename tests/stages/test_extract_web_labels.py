"""extract_web where labels carry tags, stand in unusual places, or use words that nobody foresaw."""

import pytest

from stages.extract_web.blocks import Block
from stages.extract_web.furniture import tag_lines
from stages.extract_web.labels import Part, find_label
from tests.stages.test_extract_web_blind import SOLVED, SUMS, each, key, pairs

MORE = (
    (5, "Find the product of 3 and 4.", "It is 12, of course."),
    (6, "Show that 8 is even.", None),
    (7, "Write 10 as a sum of primes.", "For example as 3+7."),
)
MANY = [*SUMS, *MORE]
ALL_SOLVED = [(problem, solution) for _, problem, solution in MANY if solution]
TAGS = (
    "Core 2 pt",
    "Stretch 3 pt",
    "Core 4 pt",
    "Stretch 2 pt",
    "Revision 2 pt",
    "Core 3 pt",
    "Revision 4 pt",
)


def many(problem, solution, end=""):
    """Seven exercises by the same forms, which name {n}, {p}, {s} and a {tag}."""
    return "".join(
        problem.format(n=n, p=p, tag=tag)
        + (solution.format(n=n, s=s) if s else "")
        + end.format(n=n, tag=tag)
        for (n, p, s), tag in zip(MANY, TAGS, strict=True)
    )


SOLUTION = "<h4>Solution</h4><p>{s}</p>"
TAGGED = {
    "spans of a bar": many(
        "<div><div><span>Question {n}</span> <span>{tag}</span></div><p>{p}</p>",
        "<button onclick='f()'>Reveal working</button><div>{s}</div>",
        "</div>",
    ),
    "in a heading": many("<h3>Question {n} <small>{tag}</small></h3><p>{p}</p>", SOLUTION),
    "after a dash": many("<h3>Question {n} – {tag}</h3><p>{p}</p>", SOLUTION),
    "on a second line": many("<h3>Task {n}<br>{tag}</h3><p>{p}</p>", SOLUTION),
    "plain text": many("<p>Task {n} {tag}</p><p>{p}</p>", SOLUTION),
    "beside a word nobody foresaw": many("<p>Brain teaser {n} {tag}</p><p>{p}</p>", SOLUTION),
    "under the label": many("<h3>Task {n}</h3><p>{tag}</p><p>{p}</p>", SOLUTION),
    "under the text": many("<h3>Task {n}</h3><p>{p}</p><p>{tag}</p>", SOLUTION),
    "difficulty under the label": many("<h3>Task {n}</h3><p>Difficulty: ★★☆</p><p>{p}</p>", SOLUTION),
}


@pytest.mark.parametrize("name", TAGGED)
def test_tags_of_a_label_are_no_part_of_the_problem(name):
    assert pairs(TAGGED[name]) == ALL_SOLVED


LINKS = {
    "link": "<div><a href='#' class=bm>Save for later</a></div>",
    "two lines": "<p><a href='/v'>Watch the video</a></p><p>Send to a friend</p>",
    "count": "<p><a href='/d'>Discuss ({n})</a></p>",
}


@pytest.mark.parametrize("line", LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("problem", ["<h3>Task {n}</h3><p>{p}</p>", "<p><b>{n})</b></p><div>{p}</div>"])
def test_a_line_under_every_problem_is_no_part_of_it(line, problem):
    assert pairs(many(problem + line, "<details><summary>Solution</summary>{s}</details>")) == ALL_SOLVED


@pytest.mark.parametrize(
    "line",
    [
        "Simplify",
        "Round to two places",
        "Justify your answer.",
        "Differentiate",
        "All of the above",
        "Choose one",
        "= 0",
    ],
)
def test_an_instruction_under_every_problem_is_part_of_it(line):
    found = pairs(many("<h3>Task {n}</h3><p>{p}</p><p>" + line + "</p>", SOLUTION))
    assert [problem for problem, _ in found] == [f"{problem}\n{line}" for problem, _ in ALL_SOLVED]


@pytest.mark.parametrize("line", ["Simplify", "Differentiate", "True or false"])
def test_an_instruction_over_every_problem_is_part_of_it(line):
    found = pairs(many("<h3>Task {n}</h3><p>" + line + "</p><p>{p}</p>", SOLUTION))
    assert [problem for problem, _ in found] == [f"{line}\n{problem}" for problem, _ in ALL_SOLVED]


def test_lines_of_the_same_words_are_tags():
    assert tag_lines(TAGS, 7) == frozenset(TAGS)
    assert tag_lines(["Ladder", "Bridge", "Train", "Ship"], 4) == frozenset()
    assert tag_lines(["Two cars meet"] * 2, 7) == frozenset()
    assert tag_lines(["x = 3", "x = 4", "x = 5"], 3) == frozenset()


SECTIONS = {
    "section numbers": key(
        "<p><b>Exercise 4.{n}</b> {p}</p>", "<h2>4.10 Solutions</h2>", "<p><b>4.{n}</b></p><p>{s}</p>"
    ),
    "in spans": "<h2><span class=section-number>4.9</span> Exercises</h2>"
    + key(
        "<p><b>Exercise 4.{n}</b> {p}</p>",
        "<h2><span class=section-number>4.10</span> Solutions</h2>",
        "<p><b>4.{n}</b></p><p>{s}</p>",
    ),
    "of an appendix": "<h2>9.9 Exercises</h2>"
    + key("<p>{n}. {p}</p>", "<h2>A.2 Solutions to Selected Exercises</h2>", "<p>{n}. {s}</p>"),
    "number after the word": "<h2>Exercises 3.2</h2><p>Take your time.</p>"
    + each("<p>{n}. {p}</p>", "<p><b>Solution.</b> {s}</p>"),
}


@pytest.mark.parametrize("name", SECTIONS)
def test_headings_with_a_section_number_are_no_exercises(name):
    assert pairs(SECTIONS[name]) == SOLVED


LAYOUTS = {
    "terms that ask": "<dl>" + each("<dt>{n}. {p}</dt>", "<dd>{s}</dd>") + "</dl>",
    "bold terms that ask": "<dl>" + each("<dt><b>{p}</b></dt>", "<dd>{s}</dd>") + "</dl>",
    "columns with other names": "<table><tr><th>What is asked</th><th>Answer</th></tr>"
    + each("<tr><td>{p}</td>", "<td>{s}</td>", "</tr>")
    + "</table>",
    "a table for each exercise": key(
        "<table><tr><td>{n}.</td><td>{p}</td></tr></table>",
        "<h2>Answers</h2>",
        "<table><tr><td>{n}.</td><td>{s}</td></tr></table>",
    ),
    "answers and explanations": key(
        "<p>{n}. {p}</p>", "<h2>Answers and explanations</h2>", "<p>{n}. {s}</p>"
    ),
    "an appendix": key("<p>{n}. {p}</p>", "<h2>Appendix A: Answers</h2>", "<p>{n}. {s}</p>"),
    "brackets in brackets": each("<p>{n}. {p}", " [Answer: {s}]", "</p>"),
    "hashes": key("<p><b>#{n}</b> {p}</p>", "<h2>Answers</h2>", "<p><b>#{n}</b> {s}</p>"),
    "an arrow": each("<p>{n}. {p}", "<br>→ Solution: {s}", "</p>"),
    "a dash": each("<p><b>Q{n}</b> {p}", "<br>— Answer: {s}", "</p>"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name):
    assert pairs(LAYOUTS[name]) == SOLVED


@pytest.mark.parametrize("title", ["4.{part}", "Exercises {part}", "Part {part}"])
def test_a_key_whose_numbers_start_again_in_every_section(title):
    asked = "".join(
        f"<h2>{title.format(part=part)}</h2>"
        + "".join(f"<p>{n}. Find {part}{n}+{n}.</p>" for n in range(1, 6))
        for part in (1, 2)
    )
    told = "".join(
        f"<h3>{title.format(part=part)}</h3>"
        + "".join(f"<p>{n}. It is {part}{n}{n}.</p>" for n in range(1, 6))
        for part in (1, 2)
    )
    found = pairs(asked + "<h2>Solutions</h2>" + told)
    assert found == [(f"Find {part}{n}+{n}.", f"It is {part}{n}{n}.") for part in (1, 2) for n in range(1, 6)]


def test_a_list_that_describes_has_no_exercises():
    names = ("list", "show all", "find", "--state=on", "give name=text")
    assert (
        pairs("<dl>" + "".join(f"<dt>{name}</dt><dd>Prints it to 1.</dd>" for name in names) + "</dl>") == []
    )


def test_a_count_of_answers_is_no_section_number():
    assert find_label(Block("2 Answers", "heading", 2)).part is Part.ASIDE
    assert find_label(Block("2.1 Answers", "heading", 2)).part is Part.ANSWER


def test_an_exercise_with_a_section_number_keeps_it():
    assert pairs(each("<h3>3.{n} Example</h3><p>{p}</p>", SOLUTION)) == SOLVED


PLACES = {
    "icon": each(
        "<div><i class=fa></i> <span>✎ Exercise {n}</span></div><p>{p}</p>",
        "<div><span>💡</span> <span>Solution</span></div><div><p>{s}</p></div>",
    ),
    "data-label": each("<h3>Exercise {n}</h3><p>{p}</p>", "<div data-label='Solution'><p>{s}</p></div>"),
    "title": each("<h3>Exercise {n}</h3><p>{p}</p>", "<div title='Worked answer'><p>{s}</p></div>"),
    "title of an empty box": each(
        "<h3>Exercise {n}</h3><div title='Best answer'>&nbsp;</div><p>{p}</p>", SOLUTION
    ),
    "in brackets": each("<h3>Exercise {n}</h3><p>{p}</p>", "<p>[Answer: {s}]</p>"),
    "number first": each("<h3>{n}. Exercise</h3><p>{p}</p>", SOLUTION),
    "of how many": each("<p>Exercise {n}/24</p><p>{p}</p>", SOLUTION),
    "numero sign": each("<p>Exercise № {n}</p><p>{p}</p>", SOLUTION),
    "hint by a button": each(
        "<h3>Exercise {n}</h3><p>{p}</p>", "<button>Need a hint?</button><div>Look.</div>" + SOLUTION
    ),
    "button that opens what stands after it": each(
        "<h3>Exercise {n}</h3><p>{p}</p><button>Pin it</button>",
        "<button onclick='f()'>What we think</button><div style='display: none'><p>{s}</p></div>",
    ),
    "one column": each(
        "<table><tr><td>Exercise {n}</td></tr><tr><td>{p}</td></tr></table>",
        "<table><tr><td><i>What we think</i></td></tr><tr><td>{s}</td></tr></table>",
    ),
    "clue": each("<h3>Exercise {n}</h3><p>{p}</p>", "<p><i>Clue:</i> Look.</p>" + SOLUTION),
}


@pytest.mark.parametrize("name", PLACES)
def test_labels_in_unusual_places(name):
    assert pairs(PLACES[name]) == SOLVED


@pytest.mark.parametrize(
    "word",
    [
        "Reasoning",
        "Model response",
        "How to do it",
        "Here's how",
        "Let's solve it",
        "Approach",
        "What we did",
        "Peek at the answer",
    ],
)
@pytest.mark.parametrize(
    "form",
    [
        "<h4>{word}</h4><p>{{s}}</p>",
        "<p><b>{word}:</b> {{s}}</p>",
        "<details><summary>{word}</summary>{{s}}</details>",
    ],
)
def test_solutions_by_other_words(word, form):
    assert pairs(each("<h3>Exercise {n}</h3><p>{p}</p>", form.format(word=word))) == SOLVED


def test_titles_that_come_again_in_an_exercise_beside_each_other_are_no_solutions():
    page = each(
        "<h3>Problem {n}</h3><p>{p}</p><h4>Input</h4><p>A number.</p><h4>Output</h4><p>Its sum.</p>", ""
    )
    assert pairs(page) == []
    assert pairs(each("<h3>Problem {n}</h3><p>{p}</p><h4>Figure</h4><p>A square.</p>", "")) == []
    assert pairs(each("<h3>Problem {n}</h3><p>{p}</p><p>Added in: v2.{n}</p><p>Some lines.</p>", "")) == []
