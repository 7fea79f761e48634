"""Templates: what is abstracted, what still counts, and that a hostile set of texts costs bounded time."""

import math
from collections import Counter

import pytest

from stages.algorithms.decontamination import TemplateIndex, TemplateRule, read_template
from tests.fakes.steps import steps

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
