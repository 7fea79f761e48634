"""A simulated panel: annotators who see the truth of the shape world through individual taste and noise.

It imitates people as far as quality control needs it. Annotators differ in taste (the weight of alignment), leniency,
noise and time. They rate with whole points from 1 to 7, and rank in five slots with at most two images each. Careless
annotators answer most tasks at random, ranks and ratings independently. Their times are within those of careful ones,
so that time does not reveal them. No annotator ranks by the truth itself: two annotators would then agree to its last
float digits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from stages.foundations.seeds import derive_seed
from stages.foundations.tables import ASPECTS
from stages.images.algorithms.shape_world import TrueScore
from stages.images.annotate.annotations import MOST_IN_SLOT, MOST_POINTS, SLOTS, Annotation, Task
from stages.images.annotate.stage import PanelAnnotations

SOURCE = "panel"
SECONDS_PER_IMAGE = 12.0
"""Median; the paper does not state it, and only the rule about time reads it."""
TIE = 0.03
"""Images whose apparent difference is smaller than this share a slot."""
BLURRED = 0.3
"""An image with less apparent fidelity is flagged."""


@dataclass(frozen=True)
class Annotator:
    """One of the panel."""

    annotator_id: str
    is_careless: bool
    alignment_weight: float
    leniency: float
    noise: float


def seat_panel(params: PanelAnnotations, seed: int) -> list[Annotator]:
    """Returns the annotators, in the order of their names; the seed selects the careless ones."""
    names = [f"annotator_{number:02}" for number in range(1, params.annotators + 1)]
    drawn = random.Random(derive_seed(seed, "panel"))
    careless = set(drawn.sample(names, params.careless))
    return [
        Annotator(
            name,
            name in careless,
            # Taste: the truth itself weighs alignment by 0.6, the middle of this.
            alignment_weight=drawn.uniform(0.45, 0.75),
            leniency=drawn.gauss(0, 0.05),
            noise=params.noise * drawn.uniform(0.7, 1.3),
        )
        for name in names
    ]


def gold_tasks(
    tasks: Sequence[Task], truths: Mapping[str, TrueScore], splits: Mapping[str, str], params: PanelAnnotations
) -> list[Task]:
    """Returns the tasks of train prompts whose images' truths differ most: their order is beyond doubt."""

    def width(task: Task) -> float:
        values = sorted(truths[name].overall for name in task.image_ids)
        return values[-1] - values[0]

    train = [task for task in tasks if splits[task.prompt_id] == "train"]
    return sorted(train, key=lambda task: (-width(task), task.prompt_id, task.image_ids))[: params.gold_tasks]


def annotate_tasks(
    tasks: Sequence[Task],
    truths: Mapping[str, TrueScore],
    splits: Mapping[str, str],
    params: PanelAnnotations,
    seed: int,
) -> Iterator[Annotation]:
    """Yields judgements of the tasks: each by one annotator or by several, gold ones by all, with the answer."""
    panel, gold = seat_panel(params, seed), set(gold_tasks(tasks, truths, splits, params))
    for task in tasks:
        drawn = random.Random(derive_seed(seed, "who", task.prompt_id, *task.image_ids))
        # All of the test split, to measure annotators against each other on the scorers' test prompts.
        is_shared = splits[task.prompt_id] == "test" or drawn.random() < params.shared_fraction
        chosen = drawn.sample(panel, params.annotators_per_task if is_shared else 1)
        for annotator in panel if task in gold else sorted(chosen, key=lambda one: one.annotator_id):
            yield annotate(annotator, task, truths, params, seed)
        if task in gold:
            yield Annotation(
                f"{SOURCE}:{task.prompt_id}/gold",
                task.prompt_id,
                "reference",
                SOURCE,
                task.image_ids,
                _known_answer({name: truths[name].overall for name in task.image_ids}, params.gold_margin),
                is_gold=True,
            )


def annotate(
    annotator: Annotator, task: Task, truths: Mapping[str, TrueScore], params: PanelAnnotations, seed: int
) -> Annotation:
    """Returns ratings, flags and a ranking by one annotator; depends only on the annotator, the task and the seed."""
    drawn = random.Random(derive_seed(seed, annotator.annotator_id, task.prompt_id, *task.image_ids))
    is_random = annotator.is_careless and drawn.random() < params.careless_share
    looks = {name: _look(annotator, truths[name], drawn, is_random) for name in task.image_ids}
    # Careless ranks are sampled separately from the ratings, which therefore contradict them.
    by_rank = {name: drawn.random() if is_random else look[0] for name, look in looks.items()}
    ratings = {
        # Leniency moves points and not ranks: it is the same for all images of a task.
        (name, aspect): _points(value + annotator.leniency)
        for name, look in looks.items()
        for aspect, value in zip(ASPECTS, look, strict=True)
    }
    # Careless annotators are faster, but within the times of careful ones, which spread by 30%.
    haste = drawn.uniform(0.5, 0.8) if is_random else 1.0
    seconds = round(SECONDS_PER_IMAGE * len(looks) * haste * drawn.lognormvariate(0, 0.3), 1)
    return Annotation(
        f"{SOURCE}:{task.prompt_id}/{annotator.annotator_id}",
        task.prompt_id,
        annotator.annotator_id,
        SOURCE,
        task.image_ids,
        dict(zip(task.image_ids, slots_of([by_rank[name] for name in task.image_ids]), strict=True)),
        ratings,
        {name: ["blur"] for name, look in looks.items() if look[2] < BLURRED},
        seconds,
    )


def _look(annotator: Annotator, truth: TrueScore, drawn: random.Random, is_random: bool) -> tuple[float, float, float]:
    """Overall, alignment and fidelity as the annotator sees them."""
    if is_random:
        return drawn.random(), drawn.random(), drawn.random()
    alignment = truth.alignment + drawn.gauss(0, annotator.noise)
    fidelity = truth.fidelity + drawn.gauss(0, annotator.noise)
    weight = annotator.alignment_weight
    return weight * alignment + (1 - weight) * fidelity, alignment, fidelity


def _points(value: float) -> int:
    return 1 + round((MOST_POINTS - 1) * min(1.0, max(0.0, value)))


def slots_of(values: Sequence[float]) -> list[int]:
    """Assigns slots, 1 is best, to 2 to 10 images by apparent quality: neighbours share a slot if they look alike, or
    must.

    At most five slots are filled with one or two neighbours each. Of all ways, it takes the one with the smallest
    sum, over shared slots, of the difference minus `TIE`.
    """
    order = sorted(range(len(values)), key=lambda index: -values[index])
    fillings = [
        sizes
        for slots in range(1, SLOTS + 1)
        for sizes in product(range(1, MOST_IN_SLOT + 1), repeat=slots)
        if sum(sizes) == len(values)
    ]

    def cost(sizes: tuple[int, ...]) -> float:
        total, start = 0.0, 0
        for size in sizes:
            if size > 1:
                total += values[order[start]] - values[order[start + 1]] - TIE
            start += size
        return total

    best = min(fillings, key=cost)
    ranks, start = [0] * len(values), 0
    for slot, size in enumerate(best, start=1):
        for index in order[start : start + size]:
            ranks[index] = slot
        start += size
    return ranks


def _known_answer(truths: Mapping[str, float], margin: float) -> dict[str, int]:
    """Assigns slots by truth: a new one begins where the truth is `margin` below the slot's best, at most five."""
    ranks: dict[str, int] = {}
    slot, best = 1, max(truths.values())
    for truth, name in sorted(((truth, name) for name, truth in truths.items()), reverse=True):
        if best - truth > margin and slot < SLOTS:
            slot, best = slot + 1, truth
        ranks[name] = slot
    return ranks
