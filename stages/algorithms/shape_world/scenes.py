"""The prompts of the shape world and the scenes that they ask for.

Seven kinds, from easy to hard. `object`, `place`, `count`, `list`, `counted_list` and `placed_list` can be checked
object by object; `relation` cannot, which is what small scorers do not learn. No two prompts of `all_prompts` ask for
the same scene, so that a split of prompts is a split of scenes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product
from types import MappingProxyType

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
"""Place -> where across and where down: 0 the first third, 0.5 the middle third, 1 the last; None anywhere."""
OPPOSITE_PLACES = (("at the top", "at the bottom"), ("on the left", "on the right"))
RELATIONS = MappingProxyType(
    {"above": (0, 1), "below": (0, -1), "to the left of": (1, 0), "to the right of": (-1, 0)}
)
"""Relation -> the direction from the first object to the second, across and down."""
KINDS = ("object", "place", "count", "list", "counted_list", "placed_list", "relation")


@dataclass(frozen=True)
class Item:
    """Objects that a prompt asks for: so many of one colour and shape, and where."""

    colour: str
    shape: str
    count: int = 1
    place: str | None = None
    """One of `PLACES`; None anywhere."""

    @property
    def words(self) -> str:
        """As a prompt says it: `two red circles`, `a red circle at the top`."""
        named = f"{self.colour} {self.shape}"
        text = f"a {named}" if self.count == 1 else f"{NUMBERS[self.count]} {named}s"
        return f"{text} {self.place}" if self.place else text


@dataclass(frozen=True)
class Scene:
    """What a prompt asks for."""

    kind: str
    """One of `KINDS`."""
    items: tuple[Item, ...]
    relation: str | None = None
    """How the first of two items stands to the second; one of `RELATIONS`."""

    @property
    def prompt(self) -> str:
        """The scene in words."""
        return f" {self.relation or 'and'} ".join(item.words for item in self.items)


def all_prompts() -> dict[str, Scene]:
    """Every prompt of the world with its scene, kind by kind in the order of `KINDS`: 882 of them."""
    return dict(_prompts())


def scene_of(prompt: str) -> Scene | None:
    """The scene that a prompt asks for, whatever its case and spaces; None where it is none of this world.

    Understands every order of words: `all_prompts` has one of "a red circle above a blue square" and "a blue square
    below a red circle", and this reads both.
    """
    return _readable().get(" ".join(prompt.lower().split()))


@cache
def _prompts() -> MappingProxyType[str, Scene]:
    scenes = [scene for scene in _scenes() if _is_first_wording(scene)]
    return MappingProxyType({scene.prompt: scene for scene in scenes})


@cache
def _readable() -> MappingProxyType[str, Scene]:
    return MappingProxyType({scene.prompt: scene for scene in _scenes()})


def _scenes() -> Iterator[Scene]:
    things = list(product(COLOURS, SHAPES))
    yield from (Scene("object", (Item(*thing),)) for thing in things)
    yield from (Scene("place", (Item(*thing, place=place),)) for thing in things for place in PLACES)
    yield from (Scene("count", (Item(*thing, count=number),)) for number in NUMBERS for thing in things)
    yield from (Scene("list", (Item(*one), Item(*two))) for one, two in permutations(things, 2))
    yield from (
        Scene("counted_list", (Item(*one, count=2), Item(*two))) for one, two in permutations(things, 2)
    )
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
    return (first < second) == ((first + second) % 2 == 0)


def _number(item: Item) -> int:
    return list(COLOURS).index(item.colour) * len(SHAPES) + SHAPES.index(item.shape)
