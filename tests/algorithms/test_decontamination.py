"""Which problems count as the same, and which do not."""

import itertools
import math
from collections import Counter

import pytest

from stages.algorithms.decontamination import (
    BenchmarkProblem,
    Contamination,
    DecontaminationRules,
    NearDuplicateRule,
    NearDuplicates,
    NgramRule,
    TemplateIndex,
    TemplateRule,
    decisive,
    read_template,
    source_revision,
)
from stages.algorithms.problem_text import (
    normalise_problem,
    problem_words,
    quantities,
    renamed_words,
    without_ordinal_endings,
)
from tests.fakes.steps import steps

APPLES = "Tom has 3 apples and buys 4 more. How many apples does Tom have?"
EXACT = DecontaminationRules(exact=True, ngrams=None, near_duplicates=None, templates=None)
NGRAMS = DecontaminationRules(
    exact=False, ngrams=NgramRule(words=4, shared_fraction=0.5), near_duplicates=None, templates=None
)
NEAR = NearDuplicateRule(shingle_words=2, similarity=0.6, permutations=128, same_numbers=False)


def index(rules, *problems):
    return Contamination([BenchmarkProblem("held_out", f"b/{i}", text) for i, text in enumerate(problems)], rules)


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


@pytest.mark.parametrize(
    "around",
    [
        "%s Put your final answer within \\boxed{}.",
        "%s\nPut your final answer within \\boxed{}",
        "Solve this. %s",
        "**Problem 7.** %s **Hint.** Count.",
        "Question: %s\nAnswer:",
        '"%s" was asked at a contest.',
    ],
)
@pytest.mark.parametrize("problem", ["What is $2+2$?", APPLES, "Find $3! + 1$."])
def test_a_problem_that_is_whole_sentences_of_a_text_is_an_exact_hit(problem, around):
    [hit] = index(EXACT, problem).find_all(around.replace("%s", problem))
    assert (hit.rule, hit.overlap) == ("exact", 1.0)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ("Compute 3+4.", "Compute 3+4-2. Then stop."),
        ("Compute 3+4.", "We compute 3+4. Then stop."),
        ("Find x if 2x=4.", "Find x if 2x=4 and y=3. Show work."),
        ("2+2", "What is it? 2+2"),
        ("How many does she have?", "Ann has 3 and buys 4. How many does she have?"),
    ],
)
def test_a_part_of_a_sentence_or_a_few_signs_are_no_hit(problem, text):
    assert index(EXACT, problem).find_all(text) == []


def test_ngrams_count_from_their_share_on():
    # Single letters would be names of points. Benchmark: aa bb cc dd ee ff = 3 four-grams, of which
    # "xx aa bb cc dd ee" shares 2: 2 of min(3, 3) = 0.67.
    hit = index(NGRAMS, "aa bb cc dd ee ff").find("xx aa bb cc dd ee")
    assert hit.rule == "ngrams" and hit.overlap == pytest.approx(2 / 3)
    # "xx yy aa bb cc dd": abcd alone, 1 of 3.
    assert index(NGRAMS, "aa bb cc dd ee ff").find("xx yy aa bb cc dd") is None
    # A long text that quotes the benchmark whole: all of the shorter one's.
    assert (
        index(NGRAMS, "aa bb cc dd ee ff").find("pp qq rr ss tt uu vv ww aa bb cc dd ee ff gg hh ii jj kk ll").overlap
        == 1.0
    )
    assert index(NGRAMS, "aa bb cc").find("aa bb cc") is None  # shorter than an n-gram


def hit(problem, copy, rules=None):
    rules = rules or DecontaminationRules(True, NgramRule(13, 0.2), NearDuplicateRule(3, 0.6, 128, False), None)
    return index(rules, problem).find(copy)


FORMULAS = [
    (
        r"Let $p$ and $q$ be the roots of $t^2-7t+3=0$. What is $\frac{p}{q}+\frac{q}{p}$?",
        r"Let $u$ and $v$ be the roots of $w^2-7w+3=0$. What is $\frac{u}{v}+\frac{v}{u}$?",
    ),
    (
        r"In quadrilateral ABCD the sides AB and CD are parallel, $AB=9$, $CD=4$. Find the area of ABCD.",
        r"In quadrilateral WXYZ the sides WX and YZ are parallel, \(WX = 9\), \(YZ = 4\). Find the area of WXYZ.",
    ),
    (
        r"The sequence $a_n$ satisfies \[a_{n+1}=2a_n+\alpha.\] If $a_1=3$ and $a_4=52$, find $\alpha$.",
        r"The sequence $c_k$ satisfies $$c_{k+1}=2c_k+\theta.$$ If $c_1=3$ and $c_4=52$, find $\theta$.",
    ),
]


@pytest.mark.parametrize(("problem", "copy"), FORMULAS)
def test_letters_of_formulas_may_have_any_names(problem, copy):
    assert hit(problem, copy) and renamed_words(problem) == renamed_words(copy)
    preface = "Let $m$ and $n$ be as in the last lesson, and think before you write anything down. "
    assert hit(problem, preface + copy)


@pytest.mark.parametrize(
    ("problem", "other"),
    [
        (r"Find $f(g(3))$.", r"Find $g(f(3))$ where $f$"),
        (r"Compute $2a+3b$.", r"Compute $3a+2b$."),
        (r"Let $x+y=3$. Find $x$.", r"Let $x+y=3$. Find $y$."),
        (r"Find $\sin x$.", r"Find $\cos x$."),
    ],
)
def test_names_do_not_make_different_formulas_equal(problem, other):
    assert renamed_words(problem) != renamed_words(other)


def test_money_is_no_formula():
    text = "Tom pays $5 for apples and $3 for pears, and then $2-$1 for a bag."
    assert renamed_words(text) == problem_words(text)


# The Latin letter first, then those that look like it.
LOOKALIKES = ["aаɑ", "cсϲ", "eе", "hһհ", "iіı", "oоοօ", "pр", "sѕ", "xх", "yуү"]
LOOKALIKES += ["AАΑᎪ", "BВΒ", "EЕΕ", "HНΗ", "KКΚ", "MМΜ", "OОΟ", "PРΡ", "TТΤ", "XХΧ"]


def test_letters_that_look_alike_are_alike():
    text = "THE BOX OF Katy has 12 expensive apples, each of which she chops: how many pieces - at most - has she?"
    for latin, *others in LOOKALIKES:
        for other in others:
            assert normalise_problem(text.replace(latin, other)) == normalise_problem(text), (latin, other)
    unseen = text.replace("e", "e\u00ad").replace("pp", "p\u2063p\ufe0f").replace(" - ", " \u2012 ")
    assert normalise_problem(unseen) == normalise_problem(text)
    assert normalise_problem(text.replace("12", "\u0661\u0662")) == normalise_problem(text)
    russian = "Найдите все значения x, при которых α < 5"
    assert "найди" in normalise_problem(russian)[:5] or len(problem_words(russian)) == len(
        russian.replace(",", "").split()
    )


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
    other_name, other_number = APPLES.replace("does", "did"), APPLES.replace("3", "5")
    near = NearDuplicates(strict)
    near.add(0, APPLES)
    assert [key for key, _ in near.find(other_name)] == [0]
    assert near.find(other_number) == []


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("If $u+v=9$ and $u-v=1$, what is $uv$?", r"If \(a + b = 9\) and \(a - b = 1\), what is \(ab\)?", True),
        ("If $u+v=9$ and $u-v=1$, what is $uv$?", "If $u+v=9$ and $u+v=1$, what is $uv$?", False),
        (r"Find $\sum_{k=1}^{9}k$ for this.", r"Find $\displaystyle \sum^{9}_{k=1} k^{}_{}$ for this.", True),
        (
            "A cone has height 4 and radius 3. Find its volume.",
            "A cone has height 4 and radius 3. Find its surface.",
            False,
        ),
        ("Arrange the letters of BANANA in a row.", "Arrange the letters of CARAVAN in a row.", False),
        ("How many coins has Ann who has three bags of 5?", "How many coins has Ann who has 3 bags of 5?", True),
        ("Tom reads 6 odd numbers off a long list here.", "Tom reads 6 even numbers off a long list here.", False),
        ("What is $h(k(2))$ if $h(t)=t+1$, $k(t)=2t$?", "What is $h(k(2))$ if $h(t)=t-1$, $k(t)=2t$?", False),
        ("Find all $z$ such that $|z-1|\\le 2$.", "Find all $z$ such that $|z-1|\\ge 2$.", False),
    ],
)
def test_signs_and_decisive_words_make_two_problems_letters_and_layout_do_not(one, other, is_same):
    near = NearDuplicates(NearDuplicateRule(1, 0.3, 128, same_numbers=True))
    near.add(0, one)
    assert bool(near.find(other)) is is_same


def test_all_hits_worst_first():
    rules = DecontaminationRules(True, NGRAMS.ngrams, None, None)
    hits = index(rules, "aa bb cc dd ee xx", "aa bb cc dd ee ff", "AA BB CC DD EE FF!").find_all("aa bb cc dd ee ff")
    assert [(hit.benchmark_problem_id, hit.rule) for hit in hits] == [
        ("b/1", "exact"),
        ("b/2", "exact"),
        ("b/0", "ngrams"),
    ]


@pytest.mark.parametrize("wrong", [{"words": 0}, {"shared_fraction": 0.0}, {"shared_fraction": 1.5}])
def test_rules_refuse_values_out_of_range(wrong):
    with pytest.raises(ValueError, match="must be"):
        NgramRule(**({"words": 4, "shared_fraction": 0.5} | wrong))


# fmt: off
PIECES = [
    "^ ", "^" + " " * 400, "\\frac ", "\\hspace{", "1,", "a'", "{,}", "\\lvert", "(", "é", "$", "$x", "\\(", "\\[x",
    "$$x", "[asy]", "\\begin{tikzpicture}", "ABC", "x^{2}", "^{a}_", "аb",
]
# fmt: on


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.timeout(60)
def test_hostile_texts_are_read_in_linear_time(piece):
    """A second at most; a reading whose cost grows with the square takes hours and is stopped."""
    text = piece * (250_000 // len(piece)) + " " * 60_000
    problem_words(text)
    read_template(text)
    hit("Compute $x+1$.", text, DecontaminationRules(True, NgramRule(13, 0.2), None, None))
    decisive(renamed_words(text))


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
    questions = [f"{preamble} box{i} holds item{i} of sort{i} in room{i} and shelf{i} at place{i}" for i in range(1500)]
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
        assert [key for key, _ in near.find(texts[5].replace("does", "did"))] == [5]

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


RULE = TemplateRule(similarity=0.6, reworded_similarity=0.06)
TOM = "On Monday Tom picks 14 red apples in the garden, and then Tom sells 9 of them to a neighbour for 35 cents each."
THINGS = ("lamp", "boat", "chair", "wheel", "ladder", "carpet", "bottle", "basket", "hammer", "pillow")
FILLERS = [
    f"A {thing} costs {i} coins and weighs {i + 3} pounds in the {place} market."
    for place in ("old", "new", "big")
    for i, thing in enumerate(THINGS, start=100)
]


def find(text, *benchmarks):
    return [(index, rule) for index, rule, _ in TemplateIndex([*benchmarks, *FILLERS], RULE).find(text)]


def test_numbers_and_names_are_abstracted():
    template = read_template("Later Tom gave Ann three of his 14 books, so how many of them did Tom keep?")
    assert template.words.startswith("later @ gave @ # of his # books")
    assert template.numbers == {3.0, 14.0}
    assert {"book", "keep"} <= template.stems and "tom" not in template.stems


def test_renumbered_and_renamed_is_a_template():
    other = TOM.replace("Tom", "Ingrid").replace("14", "61").replace("9", "27").replace("35", "80")
    assert find(other, TOM) == [(0, "template")]


def test_reworded_needs_the_same_numbers():
    reworded = "14 apples are taken from a garden. A neighbour pays 35 cents apiece for 9. What is earned?"
    assert find(reworded, TOM) == [(0, "reworded")]
    assert find(reworded.replace("14", "15").replace("35", "36"), TOM) == []


def test_other_stories_and_short_texts_are_let_be():
    assert find("Lisa drives 14 miles to work on each of 9 days and uses 35 litres of fuel.", TOM) == []
    assert find("Compute 3+4.", "Compute 5+6.") == []
    assert find("", TOM) == [] and find("Tom Tom 14 9 35", TOM) == []


def test_similarity_agrees_with_a_slow_one():
    """Weighted Jaccard of stems, weights log((n + 1) / holders), in plain loops."""
    texts = [TOM, *FILLERS]
    stems = [read_template(text).stems for text in texts]
    holders = Counter(stem for own in stems for stem in own)
    query = TOM.replace("red apples", "green pears").replace("sells", "gives")
    own = read_template(query).stems

    def weight(stem):
        return math.log((len(texts) + 1) / holders[stem]) if stem in holders else math.log(len(texts) + 2)

    wanted = sum(map(weight, own & stems[0])) / sum(map(weight, own | stems[0]))
    assert 0.1 < wanted < 1
    found = dict(
        (index, similarity)
        for index, _, similarity in TemplateIndex(texts, TemplateRule(wanted - 1e-9, 0.06)).find(query)
    )
    assert found[0] == pytest.approx(wanted)


def test_a_search_does_not_look_at_the_words_that_all_texts_share():
    few, many = (
        TemplateIndex([f"{TOM} Box number {i} holds item{i}." for i in range(count)], RULE) for count in (400, 4000)
    )
    query = f"{TOM} Somebody else looks on."
    few.find(query)  # a text that was read is kept, so this reads it for both
    assert steps(lambda: many.find(query)) <= steps(lambda: few.find(query))


def test_a_long_text_takes_work_by_its_length():
    own = TemplateIndex([TOM], RULE)
    short, long = ("word " * count + "1 " * count for count in (2_000, 4_000))
    assert steps(lambda: own.find(long)) < 2.1 * steps(lambda: own.find(short))


@pytest.mark.parametrize(("similarity", "reworded"), [(0.0, 0.0), (1.5, 0.1), (0.5, 0.6), (0.5, 0.0)])
def test_thresholds_out_of_range_are_refused(similarity, reworded):
    with pytest.raises(ValueError, match="reworded_similarity"):
        TemplateRule(similarity, reworded)


def values(text):
    return [one.value for one in quantities(problem_words(without_ordinal_endings(text)))]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("half an hour", "30 minutes"),
        ("25 cents", "$0.25"),
        ("75% of it", "three quarters of it"),
        ("half a dozen", "6"),
        ("three and a half boxes", "3.5 boxes"),
        ("3/5 of the hats", "three fifths of the hats"),
        ("two thirds", "2/3"),
        ("the 3rd floor", "the third floor"),
        ("twice as much", "2 times as much"),
        ("a 6-inch fish", "half a foot of fish"),
        ("two hundred", "200"),
        ("2 dozen", "24"),
        ("a fifth of it", "20% of it"),
        ("a decade", "10 years"),
    ],
)
def test_ways_of_writing_one_quantity(one, other):
    assert values(one) == values(other) != []


def test_one_is_left_out_and_zero_divides_nothing():
    assert values("a dog and 1 cat and one bird") == []
    assert values("1/0 of 5") == [0.0, 5.0]


def test_what_a_quantity_counts_ends_at_the_next_number():
    (miles, pounds) = quantities(problem_words("20 miles and 4 pounds"))
    assert miles.following == ("miles", "and") and pounds.following == ("pounds",)


def test_a_text_of_twice_the_length_takes_twice_the_work():
    short, long = (problem_words("half a dozen of 3/4 " * count) for count in (1_000, 2_000))
    assert len(quantities(long)) == 4_000
    assert steps(lambda: quantities(long)) < 2.1 * steps(lambda: quantities(short))
    assert quantities(problem_words("9" * 5_000)) != []
