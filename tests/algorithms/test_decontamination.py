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
    normalise_problem,
    problem_words,
)

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
