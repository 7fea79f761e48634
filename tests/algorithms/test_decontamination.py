"""Which problems count as the same, and which do not."""

import itertools

import pytest

from stages.algorithms.decontamination import (
    BenchmarkProblem,
    Contamination,
    DecontaminationRules,
    NearDuplicateRule,
    NearDuplicates,
    NgramRule,
    source_revision,
)
from stages.algorithms.problem_templates import TemplateRule, read_template
from stages.algorithms.problem_text import normalise_problem, problem_words
from tests.fakes.steps import steps

APPLES = "Tom has 3 apples and buys 4 more. How many apples does Tom have?"
EXACT = DecontaminationRules(exact=True, ngrams=None, near_duplicates=None, templates=None)
NGRAMS = DecontaminationRules(
    exact=False, ngrams=NgramRule(words=4, shared_fraction=0.5), near_duplicates=None, templates=None
)
NEAR = NearDuplicateRule(shingle_words=2, similarity=0.6, permutations=128, same_numbers=False)


def index(rules, *problems):
    return Contamination(
        [BenchmarkProblem("held_out", f"b/{i}", text) for i, text in enumerate(problems)], rules
    )


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (APPLES, "tom has 3 apples, and buys 4 more: how many apples does Tom have"),
        ("What is $3 \\times 4$?", "What is \\(3 \\cdot 4\\)"),
        ("Find $\\dfrac{1}{2}$ of it.", "Find \\frac{1}{2}  of it"),
        ("It costs $1,000.50.", "It costs \\$1000.50"),
        ("Solve x² − 4 = 0", "Solve $x^2-4=0$."),
        ("5! − 3!", "5!-3!"),
        ("Café", "cafe\u0301"),
    ],
)
def test_ways_of_writing_one_problem(text, same):
    assert normalise_problem(text) == normalise_problem(same) != ""


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("Compute 3+4-2.", "Compute 3-4+2."),
        ("Compute 3+4-2.", "Compute 34-2."),
        ("Compute (1+2)*3.", "Compute 1+2*3."),
        ("What is 1.5?", "What is 15?"),
        ("Is x < 3?", "Is x > 3?"),
        ("What is 5!?", "What is 5?"),
    ],
)
def test_different_problems_stay_different(text, other):
    assert normalise_problem(text) != normalise_problem(other)


def test_text_without_words_is_empty_and_hits_nothing():
    assert normalise_problem(" ?! … ") == ""
    rules = DecontaminationRules(True, NGRAMS.ngrams, NEAR, None)
    assert index(rules, APPLES).find("?") is None
    assert index(rules).find(APPLES) is None


def test_exact_hit_names_both_sides():
    hit = index(EXACT, "Something else.", APPLES).find(APPLES.upper())
    assert (hit.benchmark, hit.benchmark_problem_id, hit.benchmark_problem) == ("held_out", "b/1", APPLES)
    assert (hit.rule, hit.overlap) == ("exact", 1.0)
    assert index(EXACT, APPLES).find(APPLES.replace("3", "5")) is None


def test_ngrams_count_from_their_share_on():
    # Benchmark: a b c d e f = 3 four-grams. "x a b c d e": abcd, bcde shared, 2 of min(3, 3) = 0.67.
    hit = index(NGRAMS, "a b c d e f").find("x a b c d e")
    assert hit.rule == "ngrams" and hit.overlap == pytest.approx(2 / 3)
    # "x y a b c d": abcd alone, 1 of 3.
    assert index(NGRAMS, "a b c d e f").find("x y a b c d") is None
    # A long text that quotes the benchmark whole: all of the shorter one's.
    assert index(NGRAMS, "a b c d e f").find("p q r s t u v w a b c d e f g h i j k l").overlap == 1.0
    assert index(NGRAMS, "a b c").find("a b c") is None  # shorter than an n-gram


def slow_jaccard(text, other, words):
    def runs(text):
        split = problem_words(text)
        return {split[i : i + words] for i in range(len(split) - words + 1)}

    return len(runs(text) & runs(other)) / len(runs(text) | runs(other))


def test_near_duplicates_agree_with_a_slow_jaccard():
    names, items = ("Tom", "Ann", "Eva"), ("apples", "books")
    texts = [
        f"{name} has {n} {item} in a big red box and buys {m} more today. How many {item} does {name} have in all?"
        for name, item, n, m in itertools.product(names, items, (3, 4), (5, 6))
    ]
    near = NearDuplicates(NEAR)
    for key, text in enumerate(texts):
        near.add(key, text)
    for text in texts:
        similarities = {key: slow_jaccard(text, other, 2) for key, other in enumerate(texts)}
        expected = {key: value for key, value in similarities.items() if value >= 0.6}
        found = dict(near.find(text))
        # MinHash may miss a pair near the threshold; what it finds is exact.
        assert found.items() <= expected.items()
        assert {key for key, value in expected.items() if value > 0.8} <= set(found)


def test_same_numbers_separates_problems_of_one_template():
    strict = NearDuplicateRule(NEAR.shingle_words, NEAR.similarity, NEAR.permutations, same_numbers=True)
    other_name, other_number = APPLES.replace("more", "again"), APPLES.replace("3", "5")
    near = NearDuplicates(strict)
    near.add(0, APPLES)
    assert [key for key, _ in near.find(other_name)] == [0]
    assert near.find(other_number) == []


def test_all_hits_worst_first():
    rules = DecontaminationRules(True, NGRAMS.ngrams, None, None)
    hits = index(rules, "a b c d e x", "a b c d e f", "A B C D E F!").find_all("a b c d e f")
    assert [(hit.benchmark_problem_id, hit.rule) for hit in hits] == [
        ("b/1", "exact"),
        ("b/2", "exact"),
        ("b/0", "ngrams"),
    ]


@pytest.mark.parametrize("wrong", [{"words": 0}, {"shared_fraction": 0.0}, {"shared_fraction": 1.5}])
def test_rules_refuse_values_out_of_range(wrong):
    with pytest.raises(ValueError, match="must be"):
        NgramRule(**({"words": 4, "shared_fraction": 0.5} | wrong))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("Find $\\frac12$ of $x^{2}$.", "find \\(\\tfrac{1}{2}\\) of \\( x^2 \\)"),
        ("Is $2\\leqslant x\\neq 5$?", "Is $2 \\le x \\ne 5$"),
        ("The angle is $90^\\circ$.", "the angle is $90^{\\circ}$"),
        ("The angle is 90°.", "the angle is $90 ^\\circ$"),
        ("Compute $1{,}234\\;+\\,5$.", "Compute 1,234+5"),
        ("Let $x=\\sqrt{2}\\pi$.", "Let $x = \\! √{2} π$"),
        ("Find~$|x|$\\hspace{1cm}now.", "Find $\\lvert x\\rvert$ now"),
        ("\\text{Find } \\left( a_1, \\ldots, a_n \\right)", "Find (a_1,\\dots,a_n)"),
    ],
)
def test_ways_of_typesetting_one_problem(text, same):
    assert normalise_problem(text) == normalise_problem(same) != ""


@pytest.mark.parametrize(
    "piece", ["^ ", "^" + " " * 400, "\\frac ", "\\hspace{", "1,", "a'", "{,}", "\\lvert", "(", "é"]
)
@pytest.mark.timeout(60)
def test_hostile_texts_are_read_in_linear_time(piece):
    """A second at most; a reading whose cost grows with the square takes hours and is stopped."""
    text = piece * (1_000_000 // len(piece)) + " " * 250_000
    problem_words(text)
    read_template(text)


def test_a_benchmark_that_repeats_itself_costs_work_by_its_size_only():
    rules = DecontaminationRules(True, NgramRule(4, 0.5), NEAR, TemplateRule(0.6, 0.1))
    hits = []

    def search(copies):
        repeated = index(rules, *[APPLES] * copies, "Something else entirely, which is about boats.")
        hits[:] = repeated.find_all(APPLES)

    search(1)  # a text that was read is kept
    once = steps(lambda: search(400))
    assert steps(lambda: search(4000)) < 10 * once
    assert len(hits) == 4000 and {hit.rule for hit in hits} == {"exact"}


def test_boilerplate_of_a_benchmark_proposes_nothing_but_leaks_are_still_found():
    preamble = "Answer the following question about arithmetic carefully and give only the final number as your answer"
    questions = [
        f"{preamble} box{i} holds item{i} of sort{i} in room{i} and shelf{i} at place{i}" for i in range(1500)
    ]
    rules = DecontaminationRules(False, NgramRule(words=5, shared_fraction=0.2), None, None)
    own, tenth = index(rules, *questions), index(rules, *questions[:150])
    assert own.find(f"{preamble} how high is the tower of the old town on the hill") is None
    assert own.find(questions[7].replace("Answer", "Please answer")).benchmark_problem_id == "b/7"
    tenth.find(questions[7])  # a text that was read is kept
    assert steps(lambda: own.find(questions[7])) <= steps(lambda: tenth.find(questions[7]))


def test_many_problems_of_one_template_do_not_propose_each_other():
    strict = NearDuplicateRule(NEAR.shingle_words, NEAR.similarity, 64, same_numbers=True)
    texts = [APPLES.replace("3", str(n)).replace("4", str(3 * n + 1)) for n in range(100, 740)]

    def work(count):
        near = NearDuplicates(strict)
        for key, text in enumerate(texts[:count]):
            assert near.find(text) == []
            near.add(key, text)
        assert [key for key, _ in near.find(texts[5].replace("more", "again"))] == [5]

    work(640)  # a text that was read is kept
    assert steps(lambda: work(640)) < 2.1 * steps(lambda: work(320))


def test_templates_come_after_the_other_rules():
    rules = DecontaminationRules(True, None, None, TemplateRule(0.6, 0.1))
    story = "Tom has 3 red apples and buys 4 more apples on the market. How many apples does Tom have?"
    own = index(rules, story, story.replace("3", "8"))
    assert [(hit.benchmark_problem_id, hit.rule) for hit in own.find_all(story)] == [
        ("b/0", "exact"),
        ("b/1", "template"),
    ]
    assert own.find_all(story.replace("3", "9").replace("Tom", "Ann"))[0].columns() == {
        "benchmark": "held_out",
        "benchmark_problem_id": "b/0",
        "benchmark_problem": story,
        "rule": "template",
        "overlap": 1.0,
        "benchmark_revision": "",
    }


@pytest.mark.parametrize(
    ("origin", "revision"),
    [
        ({"kind": "hub", "revision": "abc"}, "revision abc"),
        ({"kind": "url", "sha256": "12"}, "sha256 12"),
        ({"kind": "arithmetic", "seed": 3}, "seed 3"),
        ({}, "kind unknown"),
    ],
)
def test_revisions(origin, revision):
    assert source_revision(origin) == revision
