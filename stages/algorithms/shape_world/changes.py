"""Prompts that differ from a given one in one thing: what a picture of the given one does not show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stages.algorithms.shape_world.scenes import (
    COLOURS,
    NUMBERS,
    OPPOSITE_PLACES,
    PLACES,
    RELATIONS,
    SHAPES,
    Item,
    Scene,
    all_prompts,
)


def changed_scenes(scene: Scene) -> list[Scene]:
    """The scene with another colour, shape, number or place of one item, or both places or the relation turned round.

    Each is a scene of `all_prompts`, in its words there, so that no caption shows by its text alone that it is false:
    "a red circle at the top and a blue square at the top" would be false of every picture. A place is changed to one
    that excludes it, and above to below alone, so that no picture shows both.
    """
    items = [
        replace(scene, items=(*scene.items[:place], other, *scene.items[place + 1 :]))
        for place, item in enumerate(scene.items)
        for other in _changed_items(item)
    ]
    relations = [
        replace(scene, relation=other)
        for other, direction in RELATIONS.items()
        if scene.relation and direction == tuple(-part for part in RELATIONS[scene.relation])
    ]
    places = tuple(item.place for item in scene.items)
    turned = []
    if places in OPPOSITE_PLACES:
        first, second = scene.items
        turned.append(
            replace(scene, items=(replace(second, place=first.place), replace(first, place=second.place)))
        )
    known = {_meaning(one): one for one in all_prompts().values()}
    return [known[_meaning(one)] for one in [*items, *relations, *turned] if _meaning(one) in known]


def _meaning(scene: Scene) -> tuple[object, ...]:
    """Equal for two wordings of one scene."""
    if scene.relation is None:
        kind = "list" if scene.kind == "counted_list" and scene.items[0].count == 1 else scene.kind
        return (kind, frozenset(scene.items) if kind == "list" else scene.items)
    items = scene.items if sum(RELATIONS[scene.relation]) > 0 else scene.items[::-1]
    axis = "down" if RELATIONS[scene.relation][1] else "across"
    return ("relation", axis, items)


def _changed_items(item: Item) -> Iterator[Item]:
    yield from (replace(item, colour=colour) for colour in COLOURS if colour != item.colour)
    yield from (replace(item, shape=shape) for shape in SHAPES if shape != item.shape)
    if item.count > 1:
        yield from (replace(item, count=count) for count in (1, *NUMBERS) if count != item.count)
    if item.place is not None:
        yield from (replace(item, place=place) for place in PLACES if _do_exclude(item.place, place))


def _do_exclude(first: str, second: str) -> bool:
    """True when the places are the first and the last third, across or down; the truth lets neighbours overlap."""
    return any(
        one is not None and other is not None and abs(one - other) == 1.0
        for one, other in zip(PLACES[first], PLACES[second], strict=True)
    )
