"""Prompts with one thing changed: each differs, can be read, and is less true of a picture of the given one."""

import pytest

from stages.algorithms.shape_world import all_prompts, changed_scenes, render, scene_of, true_score

SOME = list(all_prompts())[::29]


@pytest.mark.parametrize("prompt", SOME)
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
