"""Prompts that differ from a given one in one thing: what a picture of the given one does not show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from stages.algorithms.shape_world.scenes import COLOURS, NUMBERS, PLACES, RELATIONS, SHAPES, Item, Scene


def changed_scenes(scene: Scene) -> list[Scene]:
    """The scene with another colour, shape, number or place of one item, or the opposite relation.

    A place is changed to one that excludes it, and above to below alone, so that no picture shows both. None has two
    equal items.
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
    return [one for one in [*items, *relations] if len(set(one.items)) == len(one.items)]


def _changed_items(item: Item) -> Iterator[Item]:
    yield from (replace(item, colour=colour) for colour in COLOURS if colour != item.colour)
    yield from (replace(item, shape=shape) for shape in SHAPES if shape != item.shape)
    if item.count > 1:
        yield from (replace(item, count=count) for count in NUMBERS if count != item.count)
    if item.place is not None:
        yield from (replace(item, place=place) for place in PLACES if _do_exclude(item.place, place))


def _do_exclude(first: str, second: str) -> bool:
    """True when the places are the first and the last third, across or down; the truth lets neighbours overlap."""
    return any(
        one is not None and other is not None and abs(one - other) == 1.0
        for one, other in zip(PLACES[first], PLACES[second], strict=True)
    )
