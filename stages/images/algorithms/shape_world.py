"""A world of coloured shapes: prompts, a renderer, and a detector that measures how true a picture is to its prompt.

The small world of the laptop's text-to-image recipe. The quality that people judge by eye is known here, so scorers,
annotators and generators are measured against the truth.

Prompts: seven kinds, from easy to hard. `object`, `place`, `count`, `list`, `counted_list` and `placed_list` can be
checked object by object; `relation` cannot, and small scorers do not learn it. No two prompts of `all_prompts`
ask for the same scene, so a split of prompts is a split of scenes.

Truth: how true a picture is to a prompt and how clean it is, computed only from its pixels. Objects are located by
colour, classified by outline, and compared with the prompt. The truth is the laptop's substitute for human agreement.
The weights are a choice, and every figure that a recipe reports as `truth` depends on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import permutations, product
from types import MappingProxyType

import numpy

from stages.foundations.errors import UserError

# ------------------------------------------------------------------------------------------ prompts and scenes
SIDE = 24
"""Width and height of a picture, in pixels."""
COLOURS = MappingProxyType(
    {"red": (215, 45, 45), "green": (45, 165, 75), "blue": (50, 85, 215), "yellow": (240, 200, 40)}
)
BACKGROUND = (236, 236, 232)
SHAPES = ("circle", "square", "triangle")
NUMBERS = MappingProxyType({2: "two", 3: "three", 4: "four"})
PLACES = MappingProxyType(
    {
        "at the top": (None, 0.0),
        "at the bottom": (None, 1.0),
        "on the left": (0.0, None),
        "on the right": (1.0, None),
        "in the middle": (0.5, 0.5),
        "in the top left corner": (0.0, 0.0),
        "in the top right corner": (1.0, 0.0),
        "in the bottom left corner": (0.0, 1.0),
        "in the bottom right corner": (1.0, 1.0),
    }
)
"""Place -> position across and down: 0 the first third, 0.5 the middle third, 1 the last; None anywhere."""
OPPOSITE_PLACES = (("at the top", "at the bottom"), ("on the left", "on the right"))
RELATIONS = MappingProxyType({"above": (0, 1), "below": (0, -1), "to the left of": (1, 0), "to the right of": (-1, 0)})
"""Relation -> the direction from the first object to the second, across and down."""
KINDS = ("object", "place", "count", "list", "counted_list", "placed_list", "relation")


@dataclass(frozen=True)
class Item:
    """Objects that a prompt asks for: their number, colour, shape and place."""

    colour: str
    shape: str
    count: int = 1
    place: str | None = None
    """One of `PLACES`; None anywhere."""

    @property
    def words(self) -> str:
        """Returns its words in a prompt: `two red circles`, `a red circle at the top`."""
        named = f"{self.colour} {self.shape}"
        text = f"a {named}" if self.count == 1 else f"{NUMBERS[self.count]} {named}s"
        return f"{text} {self.place}" if self.place else text


@dataclass(frozen=True)
class Scene:
    """The scene that a prompt asks for."""

    kind: str
    """One of `KINDS`."""
    items: tuple[Item, ...]
    relation: str | None = None
    """Position of the first of two items relative to the second; one of `RELATIONS`."""

    @property
    def prompt(self) -> str:
        return f" {self.relation or 'and'} ".join(item.words for item in self.items)


@cache
def all_prompts() -> MappingProxyType[str, Scene]:
    """Returns every prompt of the world with its scene, kind by kind in the order of `KINDS`: 882 of them."""
    return MappingProxyType({scene.prompt: scene for scene in _scenes() if _is_first_wording(scene)})


def scene_of(prompt: str) -> Scene | None:
    """Returns the scene that a prompt asks for, in any case and spacing; None outside this world.

    Understands every order of words: `all_prompts` has only one of "a red circle above a blue square" and "a blue
    square below a red circle", and this function reads both.
    """
    return _readable().get(" ".join(prompt.lower().split()))


@cache
def _readable() -> MappingProxyType[str, Scene]:
    return MappingProxyType({scene.prompt: scene for scene in _scenes()})


def _scenes() -> Iterator[Scene]:
    things = list(product(COLOURS, SHAPES))
    yield from (Scene("object", (Item(*thing),)) for thing in things)
    yield from (Scene("place", (Item(*thing, place=place),)) for thing in things for place in PLACES)
    yield from (Scene("count", (Item(*thing, count=number),)) for number in NUMBERS for thing in things)
    yield from (Scene("list", (Item(*one), Item(*two))) for one, two in permutations(things, 2))
    yield from (Scene("counted_list", (Item(*one, count=2), Item(*two))) for one, two in permutations(things, 2))
    yield from (
        Scene("placed_list", (Item(*one, place=first), Item(*two, place=second)))
        for first, second in OPPOSITE_PLACES
        for one, two in permutations(things, 2)
    )
    yield from (
        Scene("relation", (Item(*one), Item(*two)), relation)
        for relation in RELATIONS
        for one, two in permutations(things, 2)
    )


def _is_first_wording(scene: Scene) -> bool:
    """True for one of the two wordings of a list or a relation, each wording chosen as often as the other."""
    if scene.kind not in ("list", "relation"):
        return True
    first, second = (_number(item) for item in scene.items)
    # Parity decides which wording is kept, so that each colour and shape comes first as often as second.
    return (first < second) == ((first + second) % 2 == 0)


def _number(item: Item) -> int:
    return list(COLOURS).index(item.colour) * len(SHAPES) + SHAPES.index(item.shape)


# ------------------------------ drawing: sizes, places and shades differ from seed to seed, the scene does not
SIDES_OF_OBJECTS = {1: (8, 11), 2: (7, 9), 3: (7, 8), 4: (7, 7)}
"""Objects in the picture -> smallest and largest side of one, in pixels."""
MOST_TRIES = 20_000
"""Attempts to place a scene's objects; scenes of `all_prompts` take at most 150 on average."""
SHADE = 10
"""Largest change of each channel of a colour, of 255."""


def render(scene: Scene, seed: int) -> numpy.ndarray:
    """Renders the scene, uint8[24, 24, 3]; equal seeds give equal pictures. No two objects touch.

    UserError for a scene that does not fit: more than four objects, or places that leave no room.
    """
    # The order of the random numbers below defines the result of a seed: boxes, ground, then a shade for each object.
    generator = numpy.random.default_rng(seed)
    wanted = [item for item in scene.items for _ in range(item.count)]
    boxes = _boxes(scene, wanted, generator)
    picture = numpy.empty((SIDE, SIDE, 3))
    # The ground's brightness differs from picture to picture.
    picture[:] = numpy.add(BACKGROUND, generator.integers(-SHADE, SHADE + 1))
    for item, (left, top, side) in zip(wanted, boxes, strict=True):
        shade = generator.integers(-SHADE, SHADE + 1, size=3)
        window = picture[top : top + side, left : left + side]
        window[shape_mask(item.shape, side, side)] = numpy.add(COLOURS[item.colour], shade)
    return numpy.clip(picture, 0, 255).astype(numpy.uint8)


def shape_mask(shape: str, height: int, width: int) -> numpy.ndarray:
    """Returns which pixels of a box the shape that fills it covers, bool[height, width]."""
    down, across = numpy.mgrid[0:height, 0:width]
    down, across = (down + 0.5) / height, (across + 0.5) / width  # pixel centres, 0 to 1
    if shape == "square":
        return numpy.ones((height, width), dtype=bool)
    if shape == "circle":
        # Pixel centres within half the width of the middle.
        return (down - 0.5) ** 2 + (across - 0.5) ** 2 <= 0.25
    if shape == "triangle":
        # half a pixel wider than the lines through the corners, or small ones have no tip
        return numpy.abs(across - 0.5) <= down / 2 + 0.5 / width - 1e-9
    raise ValueError(f"no shape is called {shape!r}")


def _boxes(scene: Scene, wanted: list[Item], generator: numpy.random.Generator) -> list[tuple[int, int, int]]:
    """Returns left, top and side of each object: sampled until none touch and the relation holds."""
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
    raise UserError(f"{scene.prompt!r} finds no room in {MOST_TRIES} tries: ask for fewer objects, or other places")


def _start(third: float | None, side: int, generator: numpy.random.Generator) -> int:
    """Returns the first pixel of an object along one axis: within a third of the picture, or anywhere."""
    # One pixel of ground stays on every side.
    last = SIDE - side - 1
    if third is None:
        return int(generator.integers(1, last + 1))
    middle = 1 + third * (last - 1)
    # Two pixels around the third's middle, less for large objects, which have less room.
    slack = min(2.0, (last - 1) / 4)
    low, high = max(1, round(middle - slack)), min(last, round(middle + slack))
    return int(generator.integers(low, high + 1))


def _do_touch(boxes: list[tuple[int, int, int]]) -> bool:
    for number, (left, top, side) in enumerate(boxes):
        for other_left, other_top, other_side in boxes[:number]:
            # At least one pixel between them: touching objects of one colour would be one patch.
            is_apart_across = left > other_left + other_side or other_left > left + side
            is_apart_down = top > other_top + other_side or other_top > top + side
            if not (is_apart_across or is_apart_down):
                return True
    return False


def _do_relate(scene: Scene, boxes: list[tuple[int, int, int]]) -> bool:
    """True when the first object has the scene's relation to the second, without overlap along that axis."""
    if scene.relation is None:
        return True
    across, down = RELATIONS[scene.relation]
    # `below` is `above` with the objects exchanged.
    first, second = boxes if across + down > 0 else boxes[::-1]
    axis = 0 if across else 1
    return first[axis] + first[2] < second[axis]


# ------------------------------------------------------------------------------------------------------- truth
ALIGNMENT_WEIGHT = 0.6
"""Weight of the alignment in the overall score; fidelity has the rest."""
ARRANGEMENT_WEIGHT = 0.4
"""Weight of the places or the relation in the alignment, if the prompt states any; the objects have the rest."""
SMALLEST_OBJECT = 12
"""Pixels, of 24 x 24; smaller patches of a colour are specks."""
MOST_OBJECTS = 8
"""The largest patches of a picture that count as objects."""
CLEAN, DIRTY = 30.0, 100.0
"""Distance to the nearest colour of the world, of 255: a pixel is clean up to the first, dirty from the second on."""
SQUARE_ENOUGH, UNLIKE = 0.9, 0.5
"""Overlap with its best outline from which an object is whole, and up to which it is no object."""
OTHER_SHAPE = 0.15
"""Overlap that a shape may miss to the best outline before the object has nothing of it; a clean square overlaps the
circle by 0.2 less. In between, the object looks partly like both."""


@dataclass(frozen=True)
class TrueScore:
    """Scores in [0, 1]."""

    overall: float
    alignment: float
    """The requested objects are there, in the right number and place, and nothing else."""
    fidelity: float
    """Whole shapes and clean pixels, independent of the prompt."""


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
        return max(SHAPES, key=self.shape_overlaps.__getitem__)

    def looks_like(self, shape: str) -> float:
        """Returns 1 for the shape that it is most like, falling to 0 for one that it is clearly not."""
        behind = self.shape_overlaps[self.shape] - self.shape_overlaps[shape]
        return max(0.0, 1.0 - behind / OTHER_SHAPE)


def true_score(pixels: numpy.ndarray, prompt: str) -> TrueScore:
    """Measures the truth of a picture, uint8[height, width, 3], in about 0.5 ms; ValueError for a foreign prompt."""
    scene = scene_of(prompt)
    if scene is None:
        raise ValueError(f"the shape world has no prompt {prompt!r}")
    seen, cleanness = found_objects(pixels)
    alignment = _alignment(scene, seen)
    fidelity = float(numpy.sqrt(_wholeness(seen) * cleanness))
    overall = ALIGNMENT_WEIGHT * alignment + (1 - ALIGNMENT_WEIGHT) * fidelity
    return TrueScore(overall, alignment, fidelity)


def found_objects(pixels: numpy.ndarray) -> tuple[list[FoundObject], float]:
    """Returns the objects of a picture, largest first, and how clean it is in [0, 1].

    Clean pixels of objects over clean and dirty pixels, without the clean ground, which the eye ignores. So a soft edge
    or a stain counts relative to the objects around it. A blurred edge is dirty, since it has no colour of the world.
    """
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != numpy.uint8:
        raise ValueError(f"a picture is uint8[height, width, 3], not {pixels.dtype}{list(pixels.shape)}")
    height, width, _ = pixels.shape
    # Row 0 is the ground, so that `nearest > 0` means an object.
    palette = numpy.array([BACKGROUND, *COLOURS.values()], dtype=numpy.float32)
    away = numpy.linalg.norm(pixels[:, :, None].astype(numpy.float32) - palette, axis=3)
    nearest = away.argmin(axis=2)
    clean = numpy.clip((DIRTY - away.min(axis=2)) / (DIRTY - CLEAN), 0, 1)
    # The constant is for 24 x 24 pixels: larger pictures have larger specks.
    smallest = SMALLEST_OBJECT * height * width / SIDE**2
    patches = _patches(nearest)
    areas = numpy.bincount(patches.ravel(), minlength=height * width)
    is_object = (areas[patches] >= smallest) & (nearest > 0)
    # Specks count as dirt, however pure their colour.
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
    # Ground is left out when it is clean, and counts as dirt when it is not.
    seen, dirt = float(clean[is_object].sum()), float((1 - clean).sum())
    return objects[:MOST_OBJECTS], seen / (seen + dirt) if objects else 0.0


def _patches(colours: numpy.ndarray) -> numpy.ndarray:
    """Returns for each pixel of [height, width] the first pixel, in reading order, of its patch of one colour.

    Pixels that share a side are connected. Uses only numpy: the stages that import this hide scipy, which loads slowly.
    """
    first = numpy.arange(colours.size).reshape(colours.shape)
    # Pairs of neighbours, across and down, as two views of one array.
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
        first = first.ravel()[first]  # a pixel whose first pixel found an earlier one shares it
        if numpy.array_equal(before, first):
            return first


_outline = cache(shape_mask)


def _overlap(mask: numpy.ndarray, shape: str) -> float:
    outline = _outline(shape, *mask.shape)
    return float((mask & outline).sum() / (mask | outline).sum())


def _wholeness(seen: list[FoundObject]) -> float:
    """Mean over the objects, weighted by their pixels, of how well they fill an outline; 0 for an empty picture."""
    if not seen:
        return 0.0
    whole = [min(1.0, max(0.0, (max(one.shape_overlaps.values()) - UNLIKE) / (SQUARE_ENOUGH - UNLIKE))) for one in seen]
    return float(numpy.average(whole, weights=[one.pixels for one in seen]))


def _alignment(scene: Scene, seen: list[FoundObject]) -> float:
    """Share of requested objects that are there, minus the others, and how well places or the relation hold."""
    wanted = [item for item in scene.items for _ in range(item.count)]
    matches = _matches(wanted, seen)
    likeness = [0.0 if match is None else _likeness(item, match) for item, match in zip(wanted, matches, strict=True)]
    # Too many objects cost as much as too few.
    objects = sum(likeness) / max(len(wanted), len(seen))
    arrangement = _arrangement(scene, wanted, matches)
    if arrangement is None:
        return objects
    return (1 - ARRANGEMENT_WEIGHT) * objects + ARRANGEMENT_WEIGHT * arrangement


def _likeness(item: Item, one: FoundObject) -> float:
    """Half for the colour, half for the shape."""
    return 0.5 * (one.colour == item.colour) + 0.5 * one.looks_like(item.shape)


def _closeness(item: Item, one: FoundObject) -> float:
    """Returns 1 where the object is in its place, 0 from a third of the picture beside it; 1 for an item without place.

    A corner is two places, and each counts half: a square in the top left is half in the top right corner.
    """
    if item.place is None:
        return 1.0
    held = []
    for third, middle in zip(PLACES[item.place], (one.across, one.down), strict=True):
        if third is not None:
            low = third * 2 / 3 - 0.05  # of the third that contains the middle, with a pixel to spare
            beside = max(0.0, low - middle, middle - low - 1 / 3 - 0.1)
            held.append(max(0.0, 1.0 - 3 * beside))
    return sum(held) / len(held)


def _matches(wanted: list[Item], seen: list[FoundObject]) -> list[FoundObject | None]:
    """An object of the picture for each requested one, the most similar first; None where none is left or similar."""
    pairs = sorted(
        (
            # Similarity first; the place decides between equals. Then the order of the lists, so that the result is
            # unique.
            (-_likeness(item, one) - 0.1 * _closeness(item, one), place, number)
            for place, item in enumerate(wanted)
            for number, one in enumerate(seen)
            if _likeness(item, one) > 0
        )
    )
    matches: dict[int, int] = {}
    for _, place, number in pairs:
        if place not in matches and number not in matches.values():
            matches[place] = number
    return [seen[matches[place]] if place in matches else None for place in range(len(wanted))]


def _arrangement(scene: Scene, wanted: list[Item], matches: list[FoundObject | None]) -> float | None:
    """Returns how well places or the relation hold, in [0, 1]; None where the prompt states neither."""
    if scene.relation is not None:
        if any(match is None for match in matches):
            return 0.0
        first, second = matches
        across, down = RELATIONS[scene.relation]
        ahead = across * (second.across - first.across) + down * (second.down - first.down)
        # A relation between the wrong objects is worth as much as the worse of them.
        sure = min(_likeness(item, match) for item, match in zip(wanted, matches, strict=True))
        # Full score from a quarter of the picture on, 0 for level or reversed.
        return sure * float(numpy.clip(ahead / 0.25, 0.0, 1.0))
    placed = [(item, match) for item, match in zip(wanted, matches, strict=True) if item.place]
    if not placed:
        return None
    held = [0.0 if one is None else _likeness(item, one) * _closeness(item, one) for item, one in placed]
    return sum(held) / len(held)


# ---------------------------------------------------------------------------- prompts that differ in one thing
def changed_scenes(scene: Scene) -> list[Scene]:
    """Yields the scene with another colour, shape, number or place of one item, or both places or the relation
    reversed.

    Each is a scene of `all_prompts`, in its words there, so that no caption's text alone shows that it is false:
    "a red circle at the top and a blue square at the top" would be false of every picture. A place is changed to one
    that excludes it, and above only to below, so that no picture shows both.
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
        turned.append(replace(scene, items=(replace(second, place=first.place), replace(first, place=second.place))))
    # A change may be worded differently in `all_prompts`, or be missing.
    known = {_meaning(one): one for one in all_prompts().values()}
    return [known[_meaning(one)] for one in [*items, *relations, *turned] if _meaning(one) in known]


def _meaning(scene: Scene) -> tuple[object, ...]:
    """Returns a key that two wordings of one scene share."""
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
