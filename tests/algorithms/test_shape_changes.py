"""Prompts with one thing changed: each differs, can be read, and is less true of a picture of the given one."""

import pytest

from stages.algorithms.shape_world.changes import changed_scenes
from stages.algorithms.shape_world.renderer import render
from stages.algorithms.shape_world.scenes import all_prompts, scene_of
from stages.algorithms.shape_world.truth import true_score

SOME = list(all_prompts())[::29]


@pytest.mark.parametrize("prompt", SOME)
def test_a_picture_is_truer_to_its_own_prompt_than_to_a_changed_one(prompt):
    picture = render(scene_of(prompt), 0)
    own = true_score(picture, prompt).alignment
    changed = [scene.prompt for scene in changed_scenes(scene_of(prompt))]
    assert len(set(changed)) == len(changed) > 3 and prompt not in changed
    for other in changed:
        if scene_of(other) is not None:
            assert true_score(picture, other).alignment < own


def test_the_changes_by_hand():
    found = {scene.prompt for scene in changed_scenes(scene_of("two red circles and a red square"))}
    assert "two red circles and a red triangle" in found
    assert "three red circles and a red square" in found
    assert "two red squares and a red square" in found  # other numbers: not the same item twice
    assert "two red circles above a red square" not in found
    relation = {scene.prompt for scene in changed_scenes(scene_of("a red circle above a blue square"))}
    assert "a red circle below a blue square" in relation
    assert "a red circle to the left of a blue square" not in relation
    place = {scene.prompt for scene in changed_scenes(scene_of("a red circle at the top"))}
    assert "a red circle at the bottom" in place
    assert "a red circle on the left" not in place  # one picture may show both
