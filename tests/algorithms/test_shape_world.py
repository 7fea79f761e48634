"""The shape world: prompts, pictures, and a truth that follows what was done to a picture."""

import numpy
import pytest
from scipy.ndimage import gaussian_filter, label

from stages.foundations.errors import UserError
from stages.images.algorithms.shape_world import (
    KINDS,
    RELATIONS,
    SIDE,
    Item,
    Scene,
    all_prompts,
    changed_scenes,
    found_objects,
    render,
    scene_of,
    shape_mask,
    true_score,
)

PROMPTS = all_prompts()
SOME = list(PROMPTS)[::11]


def picture(prompt, seed=0):
    return render(scene_of(prompt), seed)


def test_every_kind_has_prompts_and_every_prompt_reads_back_as_its_scene():
    assert {scene.kind for scene in PROMPTS.values()} == set(KINDS)
    assert all(scene_of(prompt) == scene for prompt, scene in PROMPTS.items())
    assert scene_of("  A red   CIRCLE at the top ") == PROMPTS["a red circle at the top"]
    assert scene_of("a red dog") is None and scene_of("<img onerror=x>") is None


def test_no_two_prompts_ask_for_one_scene():
    scenes = set()
    for scene in PROMPTS.values():
        first, *_ = items = scene.items
        if scene.relation:
            across, down = RELATIONS[scene.relation]
            if across + down < 0:
                items, across, down = items[::-1], -across, -down
            scenes.add((items, across, down))
        else:
            scenes.add(frozenset(items) if scene.kind == "list" else (first, items))
    assert len(scenes) == len(PROMPTS) == 882


def test_both_wordings_of_a_relation_are_drawn_and_judged_alike():
    one, other = "a red circle above a blue square", "a blue square below a red circle"
    assert (one in PROMPTS) != (other in PROMPTS)
    drawn = render(scene_of(one), 3)
    assert true_score(drawn, one) == true_score(drawn, other)


@pytest.mark.parametrize("prompt", SOME)
def test_a_render_is_true_and_another_draw_of_it_is_another_picture(prompt):
    first, second = picture(prompt, 1), picture(prompt, 2)
    assert first.shape == (SIDE, SIDE, 3) and first.dtype == numpy.uint8
    assert numpy.array_equal(first, picture(prompt, 1)) and not numpy.array_equal(first, second)
    for drawn in (first, second):
        assert true_score(drawn, prompt) == pytest.approx(true_score(first, prompt)) and true_score(
            drawn, prompt
        ).overall == pytest.approx(1.0)


def test_worked_case():
    """A red square in the top left corner of a picture by hand: each thing wrong costs what the weights say."""
    drawn = numpy.full((SIDE, SIDE, 3), 236, dtype=numpy.uint8)
    drawn[1:9, 1:9] = (215, 45, 45)

    def alignment(prompt):
        return true_score(drawn, prompt).alignment

    assert alignment("a red square") == 1.0
    assert alignment("a blue square") == 0.5  # the shape alone
    assert alignment("a red circle") == 0.5  # the colour alone
    assert alignment("a blue circle") == 0.0
    assert alignment("two red squares") == 0.5  # one of two
    assert alignment("a red square and a blue circle") == 0.5
    assert alignment("a red square in the top left corner") == 1.0
    assert alignment("a red square at the bottom") == pytest.approx(0.6)  # 0.4 for the place
    assert alignment("a red circle at the bottom") == pytest.approx(0.3)
    assert alignment("a red square in the top right corner") == pytest.approx(0.8)  # half of its place
    assert true_score(drawn, "a red square").fidelity == 1.0
    assert true_score(drawn, "a blue circle").overall == pytest.approx(0.4)


def test_what_is_not_asked_for_costs():
    two = picture("a red circle and a blue square")
    assert true_score(two, "a red circle").alignment == 0.5


def test_swapped_relation_and_swapped_places_are_worse():
    above = render(scene_of("a red circle above a blue square"), 5)
    assert true_score(above, "a red circle above a blue square").alignment == 1.0
    assert true_score(above, "a blue square above a red circle").alignment == pytest.approx(0.6)
    placed = "a red circle on the left and a blue square on the right"
    swapped = "a blue square on the left and a red circle on the right"
    assert true_score(picture(placed), swapped).alignment < 0.7


def test_fidelity_falls_with_noise_and_blur_and_is_nothing_without_shapes():
    drawn = picture("two red circles and a blue square", 4).astype(float)
    noise = numpy.random.default_rng(0).normal(size=drawn.shape)
    scores = [
        true_score(numpy.clip(drawn + level * noise, 0, 255).astype(numpy.uint8), "a red circle").fidelity
        for level in (0, 20, 40, 80)
    ]
    assert scores == sorted(scores, reverse=True) and scores[0] == 1.0 and scores[-1] < 0.5
    blank = numpy.full((SIDE, SIDE, 3), 236, dtype=numpy.uint8)
    assert true_score(blank, "a red circle").overall == 0.0
    grid = numpy.where(numpy.indices((SIDE, SIDE)).sum(axis=0)[..., None] % 2, 45, 215).astype(numpy.uint8)
    assert true_score(numpy.broadcast_to(grid, (SIDE, SIDE, 3)).copy(), "a red circle").overall < 0.1


def test_blur_weighs_by_the_things_and_not_by_the_empty_ground():
    sharp, blurred = picture("a red circle", 1), gaussian_filter(picture("a red circle", 1), (1.5, 1.5, 0))
    assert true_score(sharp, "a red circle").fidelity == 1.0
    assert true_score(blurred, "a red circle").fidelity < 0.7
    low = numpy.roll(picture("a red circle at the top", 1), 4, axis=0)  # a little too low
    assert true_score(blurred, "a red circle").overall < true_score(low, "a red circle at the top").overall


def test_an_outline_between_two_shapes_counts_for_both_in_part():
    drawn = numpy.full((SIDE, SIDE, 3), 236, dtype=numpy.uint8)
    drawn[1:9, 1:9] = (215, 45, 45)
    for row, column in ((1, 1), (1, 8), (8, 1), (8, 8)):  # a square without its corners
        drawn[row, column] = 236
    square, circle, triangle = (
        true_score(drawn, f"a red {shape}").alignment for shape in ("square", "circle", "triangle")
    )
    assert 0.5 < circle < square == 1.0 and triangle == 0.5


def test_the_detector_finds_what_a_flood_fill_finds():
    """Independent count of patches: pixels far from the background, four-connected."""
    for prompt in SOME:
        drawn = picture(prompt, 9)
        _, patches = label(numpy.abs(drawn.astype(int) - drawn[0, 0]).max(axis=2) > 30)
        found, clean = found_objects(drawn)
        assert len(found) == patches and clean == 1.0


def test_a_larger_picture_is_judged_in_its_own_size():
    drawn = picture("a green triangle at the top", 1).repeat(3, axis=0).repeat(3, axis=1)
    assert true_score(drawn, "a green triangle at the top").overall > 0.9


def test_what_is_no_picture_or_no_prompt_of_the_world_is_refused():
    with pytest.raises(ValueError, match="no prompt"):
        true_score(picture("a red circle"), "a cat")
    with pytest.raises(ValueError, match="uint8"):
        true_score(numpy.zeros((24, 24), dtype=numpy.uint8), "a red circle")
    with pytest.raises(ValueError, match="no shape"):
        shape_mask("star", 8, 8)


def test_a_scene_that_does_not_fit_is_refused():
    cornered = tuple(Item(colour, "square", place="in the top left corner") for colour in ("red", "blue"))
    with pytest.raises(UserError, match="no room"):
        render(Scene("placed_list", cornered), 0)
    with pytest.raises(UserError, match="5 objects"):
        render(Scene("count", (Item("red", "square", count=5),)), 0)


FEWER = SOME[::3]


@pytest.mark.parametrize("prompt", FEWER)
def test_a_picture_is_truer_to_its_own_prompt_than_to_a_changed_one(prompt):
    picture = render(scene_of(prompt), 0)
    own = true_score(picture, prompt).alignment
    changed = [scene.prompt for scene in changed_scenes(scene_of(prompt))]
    assert len(set(changed)) == len(changed) > 3 and prompt not in changed
    for other in changed:
        assert true_score(picture, other).alignment < own
        assert other in all_prompts()  # in words that are true of other pictures: the text alone gives nothing away


def changes_of(prompt):
    return {scene.prompt for scene in changed_scenes(scene_of(prompt))}


def test_the_changes_by_hand():
    counted = changes_of("two red circles and a blue square")
    assert "two red circles and a blue triangle" in counted
    assert "a blue square and a red circle" in counted  # one instead of two, in the words of the list
    assert "three red circles and a blue square" not in counted  # true of no picture
    relation = changes_of("a red circle above a blue square")
    assert "a blue square above a red circle" in relation
    assert not any("left" in prompt for prompt in relation)
    place = changes_of("a red circle at the top")
    assert "a red circle at the bottom" in place
    assert "a red circle on the left" not in place  # one picture may show both
    turned = "a blue square at the top and a red circle at the bottom"
    placed = changes_of("a red circle at the top and a blue square at the bottom")
    assert turned in placed and "a red circle at the bottom and a blue square at the bottom" not in placed
