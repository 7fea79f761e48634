"""extract_web: exercises in many label styles, formulas as LaTeX, noise left out; real pages when they are there."""

import gzip
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml
from lxml import etree

from stages.__main__ import main
from stages.extract_web.blocks import Block
from stages.extract_web.candidates import short_answer
from stages.extract_web.extraction import extract_page
from stages.extract_web.labels import Part, find_label
from stages.extract_web.readers.mathml import mathml_to_latex
from stages.foundations.tables import CANDIDATE, PAGE, read_table, write_table

REAL_PAGES = Path(__file__).parents[2].parent / "shared" / "data" / "pages"


def page(content, form="html"):
    return {"page_id": "site/1", "url": "u", "format": form, "content": content, "licence": "MIT"}


def exercises(content, form="html"):
    found, reason, _ = extract_page(page(content, form), max_answer_characters=40)
    assert bool(found) != bool(reason)
    return [(row["problem"], row["solution"], row["answer"]) for row in found]


TWO = [("Compute 1+2.", "1+2=3\nThe answer is \\boxed{3}.", "3"), ("Compute 9-4.", "9-4=5", "5")]
STYLES = {
    "headings": "<h2>Problem 1</h2><p>Compute 1+2.</p><h3>Solution</h3><p>1+2=3</p><p>The answer is \\boxed{3}.</p>"
    "<h3>Final answer</h3><p>3</p><h2>Problem 2</h2><p>Compute 9-4.</p><h3>Solution</h3><p>9-4=5</p>"
    "<h3>Final answer</h3><p>5</p><h2>About us</h2><p>We like sums.</p>",
    "buttons driven by script": "<div><b>Ex. 1.</b> Compute 1+2."
    "<button onclick='t()'>Click to reveal the solution</button><div style='display:none'>1+2=3<br>"
    "The answer is \\boxed{3}.</div></div><div><b>Ex. 2.</b> Compute 9-4."
    "<button onclick='t()'>Click to reveal the solution</button><div style='display:none'>9-4=5</div>"
    "<button>Show answer</button><div>5</div></div><button>Buy now</button>",
    "toggles without a label for the exercise": "<section><p>Compute 1+2.</p><details><summary>Solution</summary>"
    "<p>1+2=3</p><p>The answer is \\boxed{3}.</p></details></section><section><p>Compute 9-4.</p>"
    "<details><summary>Solution</summary><p>9-4=5</p></details></section>",
    "emphasised numbers": "<p><strong>1.</strong> Compute 1+2.</p><p><em>Solution.</em> 1+2=3<br>"
    "The answer is \\boxed{3}.</p>"
    "<p><strong>2.</strong> Compute 9-4.</p><p><em>Solution.</em> 9-4=5</p>",
    "boxes side by side": "<div class='q'><h4>Exercise 7</h4><p>Compute 1+2.</p></div><div class='s'><h4>Solution</h4>"
    "<p>1+2=3</p><p>The answer is \\boxed{3}.</p></div><div class='q'><h4>Exercise 8</h4><p>Compute 9-4.</p></div>"
    "<div class='s'><h4>Solution</h4><p>9-4=5</p></div><p>Well done!</p>",
}


@pytest.mark.parametrize("style", STYLES)
def test_label_styles(style):
    noise = "<nav><a href='/'>Question 1</a></nav><script>Answer: 9</script><!-- <h4>Solution</h4> 7 -->"
    footer = "<hr><p>This work is licensed under CC BY.</p><footer>Answer: none</footer>"
    assert exercises(f"<html><body>{noise}{STYLES[style]}{footer}</body></html>") == TWO


def test_markdown():
    text = "# Sums\n\n**Exercise 1.** Compute 1+2.\n\n**Solution:** 1+2=3\nThe answer is \\boxed{3}.\n\n---\nBye\n"
    assert exercises(text, "markdown") == TWO[:1]


def test_exercise_without_solution_does_not_take_the_next_ones():
    content = "<h4>1.</h4><p>Open?</p><h4>2.</h4><p>Compute 9-4.</p><h4>Solution</h4><p>9-4=5</p>"
    assert exercises(content) == [("Open?", None, None), TWO[1]]


def test_first_of_several_forum_answers_counts_and_prose_between_breaks_the_tie():
    forum = "<h3>Question: what is 9-4?</h3><h4>Answer by ann (12 votes)</h4><p>5</p><h4>Answer by bob</h4><p>6</p>"
    assert exercises(forum) == [("what is 9-4?", "5", "5")]
    gap = "<h1>Sums</h1><div><h4>Exercise 1</h4><p>Open?</p></div><p>New topic.</p><div><h4>Solution</h4><p>7</p></div>"
    assert exercises(gap)[0] == ("Open?", None, None)


def test_choices_are_not_labels():
    content = "<h4>3.</h4><p>Pick.</p><ol><li>a. one</li><li>b. two</li></ol><h4>Solution</h4><p>a</p>"
    assert exercises(content) == [("Pick.\n- a. one\n- b. two", "a", "a")]


def test_images_stay_visible_without_their_description():
    content = "<h4>1.</h4><p>Look. <img src='x.png' alt='Answer: 5'></p><h4>Solution</h4><img src='y.png' alt='a line'>"
    assert exercises(content) == [("Look. ![]()", "![a line](y.png)", None)]


@pytest.mark.parametrize(
    ("text", "part", "rest", "number"),
    [
        ("Exercise 12.", Part.PROBLEM, "", "12"),
        ("Q12: Compute 3+4.", Part.PROBLEM, "Compute 3+4.", "12"),
        ("Show the full solution", Part.SOLUTION, "", ""),
        ("Answer: 7", Part.ANSWER, "7", ""),
        ("A: 7", Part.ANSWER, "7", ""),
        ("Solution to problem 4", Part.SOLUTION, "", "4"),
        ("Hint", Part.ASIDE, "", ""),
    ],
)
def test_labels(text, part, rest, number):
    label = find_label(Block(text, "paragraph"))
    assert (label.part, label.rest, label.number) == (part, rest, number)


@pytest.mark.parametrize(
    "text", ["a", "A GIVEN B", "a. one", "12", "Problem solving is fun", "Answers vary", "Question 3 asks"]
)
def test_no_labels(text):
    assert find_label(Block(text, "paragraph")) is None


@pytest.mark.parametrize(
    ("mathml", "latex"),
    [
        ("<mfrac><mn>1</mn><mi>x</mi></mfrac>", r"\frac{1}{x}"),
        ("<msup><mrow><mi>x</mi><mo>+</mo><mn>1</mn></mrow><mn>2</mn></msup>", "{x+1}^2"),
        ("<msqrt><mn>2</mn></msqrt><mo>−</mo><mroot><mi>y</mi><mn>3</mn></mroot>", r"\sqrt{2}-\sqrt[3]{y}"),
        ("<mi>sin</mi><mo>(</mo><mi>θ</mi><mo>)</mo><mo>≤</mo><mn>1</mn>", r"\operatorname{sin}(\theta)\le1"),
        ("<mi>α</mi><mi>b</mi>", r"\alpha b"),
        ("<mover><mi>x</mi><mo>¯</mo></mover>", r"\overline{x}"),
        ("<mn>5</mn><mtext> if </mtext><mi>x</mi><mo>&gt;</mo><mn>0</mn>", r"5\text{ if }x>0"),
        (
            "<mo>[</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd><mtd>"
            "<mn>4</mn></mtd></mtr></mtable><mo>]</mo>",
            r"[\begin{matrix} 1 & 2 \\ 3 & 4 \end{matrix}]",
        ),
        ("<mtable><mtr><mtd></mtd></mtr></mtable>", ""),
        ("<mfrac><mn>1</mn></mfrac>", r"\frac{1}{}"),
        ("<semantics><mi>x</mi><annotation encoding='application/x-tex'>x_1^2</annotation></semantics>", "x_1^2"),
    ],
)
def test_mathml(mathml, latex):
    assert mathml_to_latex(etree.fromstring(f"<math>{mathml}</math>"))[0] == latex


def test_punctuation_leaves_the_formula():
    assert exercises(
        "<p>Q1: Is <math><mi>x</mi><mo>=</mo><mn>2.</mn></math></p><p>Answer: <math><mn>2</mn></math></p>"
    ) == [("Is $x=2$.", "$2$", "2")]


@pytest.mark.parametrize(
    ("solution", "labelled", "answer"),
    [
        ("long work\nThe answer is \\boxed{7}.", None, "7"),
        ("We add, so $x=5$.", None, "x=5"),
        ("So $x=5$ or $x=6$.", None, None),
        ("It rained all day and nobody came.", None, None),
        ("$\\frac{1}{2}$", None, "\\frac{1}{2}"),
        ("work", "12 apples", "12 apples"),
        ("We count.\nTherefore $T$ is not surjective.", None, None),
        ("It moves. After 3 s its speed is 7.5 m/s.", None, "7.5 m/s"),
        ("The order of $G$ is $12$.", None, "12"),
        ("E = P t = 60 W x 7200 s\n= 432 kJ", None, "432 kJ"),
        ("v = s/t = 100/8.0 = 12.5 m/s", None, "12.5 m/s"),
        ("It is 3 more than twice the other.", None, None),
        ("We get $a_n=2^n$ for all $n$.", None, None),
        ("(a) 12.5 m/s\n(b) 750 m", None, None),
        ("mean = 25 and standard deviation = 7.0711", None, None),
        ("Yes, degree = 5, leading coefficient = 4", None, None),
        ("SS = 5,700.4;\nMS = 2,850.2", None, None),
        ("Domain is $(-\\infty,2)$\nRange is $(1,\\infty)$.", None, None),
        ("The domain of $f$\nis $(1,2)$\nand the range is $(3,4)$.", None, None),
        ("Since $x=3$, and y is 4, the sum is 7.", None, "7"),
        ("The slope is $3$.\nSo the line is $y=3x+2$.", None, "y=3x+2"),
        ("The train is 30 m long and moves at 10 m/s. It takes 3 s. The time is 3 s.", None, "3 s"),
        ("![a graph](x.png)", None, None),
        (None, None, None),
    ],
)
def test_short_answer_only_when_unambiguous(solution, labelled, answer):
    assert short_answer(solution, labelled, 40) == answer


@pytest.mark.parametrize(
    ("content", "form", "reason"),
    [
        ("", "html", "not_html"),
        ("<p>Nothing to solve here.</p>", "html", "no_exercise"),
        ("\\section{x}", "latex", "no_exercise"),
        ("%PDF", "pdf", "format_not_read"),
        ("<div>" * 5_000 + "Exercise 1" + "</div>" * 5_000, "html", "no_exercise"),
        ("<math>" + "<msup>" * 3_000 + "x", "html", "no_exercise"),
    ],
)
def test_bad_pages_have_a_reason(content, form, reason):
    found, given, _ = extract_page(page(content, form), 40)
    assert (found, given) == ([], reason)


@pytest.mark.timeout(480)
def test_many_tags_are_read_at_once():
    """Two seconds; a reading whose cost grows with the square takes hours and is stopped."""
    many = "<p><a href=x>" + "<b>x</b>" * 100_000 + "</p>" + "<ul><li>" * 500
    assert extract_page(page(many), 40)[:2] == ([], "no_exercise")


def test_stage_is_reproducible_with_any_number_of_processes(tmp_path):
    rows = [page(STYLES["headings"]) | {"page_id": f"site/{i}"} for i in range(40)]
    write_table([*rows, page("<p>Hello</p>") | {"page_id": "site/none"}], tmp_path / "pages.parquet", PAGE)
    written = []
    for processes in (1, 2):
        (tmp_path / "params.yaml").write_text(
            yaml.safe_dump(
                {
                    "extract_web": {
                        "method": {"kind": "rules"},
                        "max_answer_characters": 40,
                        "shared_instructions": "prepended",
                        "min_confidence": 0.0,
                        "page_timeout_seconds": 60.0,
                        "page_memory_mib": 1024,
                        "engine": {"kind": "local", "processes": processes},
                    },
                    "sampler": {"kind": "torch", "device": "cpu", "dtype": "float32", "threads": 1, "max_sequences": 8},
                }
            )
        )
        out = [tmp_path / f"{processes}.candidates", tmp_path / f"{processes}.dropped", tmp_path / f"{processes}.json"]
        main(
            [
                "extract_web",
                f"--params={tmp_path / 'params.yaml'}",
                f"--pages={tmp_path / 'pages.parquet'}",
                f"--candidates={out[0]}",
                f"--dropped={out[1]}",
                f"--metrics={out[2]}",
                f"--headline={tmp_path / 'headline.json'}",
            ]
        )
        written.append([path.read_bytes() for path in out])
    assert written[0] == written[1]
    metrics = json.loads(written[0][2])
    assert metrics["candidates/all"] == 80 == metrics["candidates/with_answer"]
    assert metrics["dropped/no_exercise"] == 1 and metrics["rows/in"] == 41
    assert read_table(out[0], CANDIDATE)["candidate_id"].is_unique


def _compared(text):
    """As the scorer of the shared tools compares: without LaTeX commands, letters and digits only."""
    return re.sub(r"[^0-9a-z]", "", re.sub(r"\\(?:begin|end)\{[a-z*]+\}|\\[A-Za-z]+", " ", text or "").lower())


@pytest.mark.parametrize(("book", "floor"), [("algebra_trigonometry", 0.9), ("statistics", 0.9)])
def test_gold_pairs_of_real_pages(book, floor):
    """Exact matches after `_compared`; the scorer itself, which allows small differences, gives 0.98 to 0.99."""
    if not REAL_PAGES.is_dir():
        pytest.skip(f"{REAL_PAGES} is not there")
    gold = defaultdict(set)
    with gzip.open(REAL_PAGES / f"{book}.gold.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            if row["solution"] and len(_compared(row["problem"])) >= 3 and _compared(row["solution"]):
                gold[row["page"]].add((_compared(row["problem"]), _compared(row["solution"])))
    found, predicted = 0, 0
    with gzip.open(REAL_PAGES / f"{book}.pages.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            pairs = {
                (_compared(problem), _compared(solution)) for problem, solution, _ in exercises(row["html"]) if solution
            }
            predicted += len(pairs)
            found += len(pairs & gold[row["page"]])
    assert found >= floor * sum(map(len, gold.values()))
    assert found >= floor * predicted
