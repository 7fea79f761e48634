"""How true a picture is to a prompt and how clean it is, read from its pixels alone.

Nothing here knows who made the picture: objects are found by colour, told apart by outline, and compared with what the
prompt asks for. This is the laptop's stand-in for what people agree on; the weights are a choice, and every figure that
a recipe reports as `truth` depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy

from stages.algorithms.shape_world.renderer import shape_mask
from stages.algorithms.shape_world.scenes import (
    BACKGROUND,
    COLOURS,
    PLACES,
    RELATIONS,
    SHAPES,
    SIDE,
    Item,
    Scene,
    scene_of,
)

ALIGNMENT_WEIGHT = 0.6
"""Of the overall score; fidelity has the rest."""
ARRANGEMENT_WEIGHT = 0.4
"""Of the alignment where the prompt says where things are; the objects have the rest."""
SMALLEST_OBJECT = 12
"""Pixels, of 24 x 24; smaller patches of a colour are specks."""
MOST_OBJECTS = 8
"""The largest patches of a picture that count as objects."""
CLEAN, DIRTY = 30.0, 100.0
"""Distance to the nearest colour of the world, of 255, up to which a pixel is clean and from which it is dirty."""
SQUARE_ENOUGH, UNLIKE = 0.9, 0.5
"""Overlap with its best outline from which an object is whole, and up to which it is none."""
OTHER_SHAPE = 0.15
"""How much less than its best outline an outline overlaps an object that has nothing of it; a clean square overlaps
the circle by 0.2 less. Between, the object looks partly like both."""


@dataclass(frozen=True)
class TrueScore:
    """Scores in [0, 1]."""

    overall: float
    alignment: float
    """What was asked for is there, that often and there, and nothing else."""
    fidelity: float
    """Whole shapes, clean pixels, whatever was asked for."""


@dataclass(frozen=True)
class FoundObject:
    """A patch of one colour."""

    colour: str
    shape_overlaps: dict[str, float]
    """Shape -> intersection over union of the patch and that shape in the patch's box."""
    across: float
    """Middle of the box, from 0 (left) to 1."""
    down: float
    pixels: int

    @property
    def shape(self) -> str:
        """The shape that it is most like."""
        return max(SHAPES, key=self.shape_overlaps.__getitem__)

    def looks_like(self, shape: str) -> float:
        """1 for the shape that it is most like, falling to 0 for one that it is clearly not."""
        behind = self.shape_overlaps[self.shape] - self.shape_overlaps[shape]
        return max(0.0, 1.0 - behind / OTHER_SHAPE)


def true_score(pixels: numpy.ndarray, prompt: str) -> TrueScore:
    """The truth of a picture, uint8[height, width, 3], about 0.5 ms; ValueError for a prompt of another world."""
    scene = scene_of(prompt)
    if scene is None:
        raise ValueError(f"the shape world has no prompt {prompt!r}")
    found, cleanness = found_objects(pixels)
    alignment = _alignment(scene, found)
    fidelity = float(numpy.sqrt(_wholeness(found) * cleanness))
    overall = ALIGNMENT_WEIGHT * alignment + (1 - ALIGNMENT_WEIGHT) * fidelity
    return TrueScore(overall, alignment, fidelity)


def found_objects(pixels: numpy.ndarray) -> tuple[list[FoundObject], float]:
    """The objects of a picture, largest first, and how clean it is in [0, 1].

    Clean pixels of objects against those and all dirty ones: the eye goes to the things and not to the empty ground, so
    a soft edge or a stain weighs by the things that it is seen beside. A blurred edge is dirty, being of no colour.
    """
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != numpy.uint8:
        raise ValueError(f"a picture is uint8[height, width, 3], not {pixels.dtype}{list(pixels.shape)}")
    height, width, _ = pixels.shape
    palette = numpy.array([BACKGROUND, *COLOURS.values()], dtype=numpy.float32)
    away = numpy.linalg.norm(pixels[:, :, None].astype(numpy.float32) - palette, axis=3)
    nearest = away.argmin(axis=2)
    clean = numpy.clip((DIRTY - away.min(axis=2)) / (DIRTY - CLEAN), 0, 1)
    smallest = SMALLEST_OBJECT * height * width / SIDE**2
    patches = _patches(nearest)
    areas = numpy.bincount(patches.ravel(), minlength=height * width)
    is_object = (areas[patches] >= smallest) & (nearest > 0)
    clean[~is_object & (nearest > 0)] = 0.0
    objects = []
    for patch in numpy.flatnonzero(areas >= smallest):
        if (colour := int(nearest.flat[patch])) == 0:
            continue
        rows, columns = numpy.nonzero(patches == patch)
        top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
        mask = patches[top:bottom, left:right] == patch
        overlaps = {shape: _overlap(mask, shape) for shape in SHAPES}
        across, down = float(left + right) / 2 / width, float(top + bottom) / 2 / height
        objects.append(FoundObject(list(COLOURS)[colour - 1], overlaps, across, down, len(rows)))
    objects.sort(key=lambda one: -one.pixels)
    seen, dirt = float(clean[is_object].sum()), float((1 - clean).sum())
    return objects[:MOST_OBJECTS], seen / (seen + dirt) if objects else 0.0


def _patches(colours: numpy.ndarray) -> numpy.ndarray:
    """For each pixel of [height, width] the first pixel, in reading order, of its patch of one colour.

    Pixels that share a side hang together. Numpy alone: the stages that import this hide scipy, which loads slowly.
    """
    first = numpy.arange(colours.size).reshape(colours.shape)
    edges = (
        ((slice(None), slice(1, None)), (slice(None), slice(None, -1))),
        ((slice(1, None), slice(None)), (slice(None, -1), slice(None))),
    )
    alike = [colours[one] == colours[other] for one, other in edges]
    while True:
        before = first.copy()
        for (one, other), same in zip(edges, alike, strict=True):
            for here, there in ((one, other), (other, one)):
                first[here] = numpy.where(same, numpy.minimum(first[here], first[there]), first[here])
        first = first.ravel()[first]  # where my first pixel found an earlier one, it is mine too
        if numpy.array_equal(before, first):
            return first


@cache
def _outline(shape: str, height: int, width: int) -> numpy.ndarray:
    return shape_mask(shape, height, width)


def _overlap(mask: numpy.ndarray, shape: str) -> float:
    outline = _outline(shape, *mask.shape)
    return float((mask & outline).sum() / (mask | outline).sum())


def _wholeness(found: list[FoundObject]) -> float:
    """Mean over the objects, by their pixels, of how well they fill an outline; 0 for an empty picture."""
    if not found:
        return 0.0
    whole = [
        min(1.0, max(0.0, (max(one.shape_overlaps.values()) - UNLIKE) / (SQUARE_ENOUGH - UNLIKE)))
        for one in found
    ]
    return float(numpy.average(whole, weights=[one.pixels for one in found]))


def _alignment(scene: Scene, found: list[FoundObject]) -> float:
    """Share of what was asked for that is there, less what was not, and how well its places or relation hold."""
    wanted = [item for item in scene.items for _ in range(item.count)]
    matches = _matches(wanted, found)
    likeness = [
        0.0 if match is None else _likeness(item, match) for item, match in zip(wanted, matches, strict=True)
    ]
    objects = sum(likeness) / max(len(wanted), len(found))
    arrangement = _arrangement(scene, wanted, matches)
    if arrangement is None:
        return objects
    return (1 - ARRANGEMENT_WEIGHT) * objects + ARRANGEMENT_WEIGHT * arrangement


def _likeness(item: Item, one: FoundObject) -> float:
    """Half for the colour, half for the shape."""
    return 0.5 * (one.colour == item.colour) + 0.5 * one.looks_like(item.shape)


def _closeness(item: Item, one: FoundObject) -> float:
    """1 where the object is in its place, 0 from a third of the picture beside it; 1 for an item of no place.

    A corner is two places, and each counts half: a square in the top left is half in the top right corner.
    """
    if item.place is None:
        return 1.0
    held = []
    for third, middle in zip(PLACES[item.place], (one.across, one.down), strict=True):
        if third is not None:
            low = third * 2 / 3 - 0.05  # of the third in which the middle belongs, with a pixel to spare
            beside = max(0.0, low - middle, middle - low - 1 / 3 - 0.1)
            held.append(max(0.0, 1.0 - 3 * beside))
    return sum(held) / len(held)


def _matches(wanted: list[Item], found: list[FoundObject]) -> list[FoundObject | None]:
    """An object of the picture for each one asked for, the likest first; None where none is left or like it."""
    pairs = sorted(
        (
            (-_likeness(item, one) - 0.1 * _closeness(item, one), place, number)
            for place, item in enumerate(wanted)
            for number, one in enumerate(found)
            if _likeness(item, one) > 0
        )
    )
    matches: dict[int, int] = {}
    for _, place, number in pairs:
        if place not in matches and number not in matches.values():
            matches[place] = number
    return [found[matches[place]] if place in matches else None for place in range(len(wanted))]


def _arrangement(scene: Scene, wanted: list[Item], matches: list[FoundObject | None]) -> float | None:
    """How well places or the relation hold, in [0, 1]; None where the prompt says nothing of them."""
    if scene.relation is not None:
        if any(match is None for match in matches):
            return 0.0
        first, second = matches
        across, down = RELATIONS[scene.relation]
        ahead = across * (second.across - first.across) + down * (second.down - first.down)
        sure = min(_likeness(item, match) for item, match in zip(wanted, matches, strict=True))
        return sure * float(numpy.clip(ahead / 0.25, 0.0, 1.0))
    placed = [(item, match) for item, match in zip(wanted, matches, strict=True) if item.place]
    if not placed:
        return None
    held = [0.0 if one is None else _likeness(item, one) * _closeness(item, one) for item, one in placed]
    return sum(held) / len(held)
