"""Draws one picture of a scene: sizes, places and shades differ from seed to seed, the scene does not."""

from __future__ import annotations

import numpy

from stages.algorithms.shape_world.scenes import BACKGROUND, COLOURS, PLACES, RELATIONS, SIDE, Item, Scene
from stages.foundations.errors import UserError

SIDES_OF_OBJECTS = {1: (8, 11), 2: (7, 9), 3: (7, 8), 4: (7, 7)}
"""Objects in the picture -> smallest and largest side of one, in pixels."""
MOST_TRIES = 20_000
"""To place a scene's objects; those of `all_prompts` take 150 on average at most."""
SHADE = 10
"""Largest change of each channel of a colour, of 255."""


def render(scene: Scene, seed: int) -> numpy.ndarray:
    """A picture of the scene, uint8[24, 24, 3]; equal seeds give equal pictures. No two objects touch.

    UserError for a scene that does not fit: more than four objects, or places that leave no room.
    """
    generator = numpy.random.default_rng(seed)
    wanted = [item for item in scene.items for _ in range(item.count)]
    boxes = _boxes(scene, wanted, generator)
    picture = numpy.empty((SIDE, SIDE, 3))
    picture[:] = numpy.add(BACKGROUND, generator.integers(-SHADE, SHADE + 1))
    for item, (left, top, side) in zip(wanted, boxes, strict=True):
        shade = generator.integers(-SHADE, SHADE + 1, size=3)
        window = picture[top : top + side, left : left + side]
        window[shape_mask(item.shape, side, side)] = numpy.add(COLOURS[item.colour], shade)
    return numpy.clip(picture, 0, 255).astype(numpy.uint8)


def shape_mask(shape: str, height: int, width: int) -> numpy.ndarray:
    """Which pixels of a box the shape that fills it covers, bool[height, width]."""
    down, across = numpy.mgrid[0:height, 0:width]
    down, across = (down + 0.5) / height, (across + 0.5) / width  # pixel centres, 0 to 1
    if shape == "square":
        return numpy.ones((height, width), dtype=bool)
    if shape == "circle":
        return (down - 0.5) ** 2 + (across - 0.5) ** 2 <= 0.25
    if shape == "triangle":
        # half a pixel wider than the lines through the corners, or small ones have no tip
        return numpy.abs(across - 0.5) <= down / 2 + 0.5 / width - 1e-9
    raise ValueError(f"no shape is called {shape!r}")


def _boxes(scene: Scene, wanted: list[Item], generator: numpy.random.Generator) -> list[tuple[int, int, int]]:
    """Left, top and side of each object: drawn until none touch and the relation holds."""
    if len(wanted) not in SIDES_OF_OBJECTS:
        raise UserError(f"a scene has {len(wanted)} objects: a picture holds 1 to {max(SIDES_OF_OBJECTS)}")
    smallest, largest = SIDES_OF_OBJECTS[len(wanted)]
    for _ in range(MOST_TRIES):
        boxes = []
        for item in wanted:
            side = int(generator.integers(smallest, largest + 1))
            across, down = PLACES[item.place] if item.place else (None, None)
            boxes.append((_start(across, side, generator), _start(down, side, generator), side))
        if not _do_touch(boxes) and _do_relate(scene, boxes):
            return boxes
    raise UserError(
        f"{scene.prompt!r} finds no room in {MOST_TRIES} tries: ask for fewer objects, or other places"
    )


def _start(third: float | None, side: int, generator: numpy.random.Generator) -> int:
    """First pixel of an object of that side along one axis: within a third of the picture, or anywhere."""
    last = SIDE - side - 1
    if third is None:
        return int(generator.integers(1, last + 1))
    middle = 1 + third * (last - 1)
    slack = min(2.0, (last - 1) / 4)
    low, high = max(1, round(middle - slack)), min(last, round(middle + slack))
    return int(generator.integers(low, high + 1))


def _do_touch(boxes: list[tuple[int, int, int]]) -> bool:
    for number, (left, top, side) in enumerate(boxes):
        for other_left, other_top, other_side in boxes[:number]:
            is_apart_across = left > other_left + other_side or other_left > left + side
            is_apart_down = top > other_top + other_side or other_top > top + side
            if not (is_apart_across or is_apart_down):
                return True
    return False


def _do_relate(scene: Scene, boxes: list[tuple[int, int, int]]) -> bool:
    """True when the first object stands to the second as the scene says, with no pixel of overlap along that axis."""
    if scene.relation is None:
        return True
    across, down = RELATIONS[scene.relation]
    first, second = boxes if across + down > 0 else boxes[::-1]
    axis = 0 if across else 1
    return first[axis] + first[2] < second[axis]
