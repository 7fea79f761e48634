"""Measurements of a generator: pictures from fixed noise, their scores, and signs of reward hacking.

Scores are those of the saved pictures, rounded to bytes. `compare_generators` compares the result with the start:
pictures of test prompts from the same noise, scored by all judges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy
import torch
from numpy.typing import NDArray

from stages.algorithms.estimators import Interval, paired_bootstrap
from stages.foundations.tables import prompt_id
from stages.images.algorithms.shape_world import true_score
from stages.images.engines.generators.generator import Generator, images_of
from stages.images.engines.image_scorers.config import Variant
from stages.images.engines.image_scorers.scorer import ImageScorer
from stages.images.engines.pictures.shards import png_of

Values = NDArray[numpy.float64]


@dataclass(frozen=True)
class Draws:
    """Requested pictures, always from the same noise."""

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    steps: int
    guidance: float
    at_once: int

    def of(self, generator: Generator) -> NDArray[numpy.uint8]:
        """Returns pictures of `generator`, uint8[images, side, side, 3]."""
        return numpy.concatenate(
            [
                generator.draw(self.prompts[part], self.seeds[part], self.steps, self.guidance)
                for part in _parts(len(self.prompts), self.at_once)
            ]
        )


@dataclass(frozen=True)
class Judges:
    """The optimised reward, the score that is not optimised, and the truth where it is known."""

    reward: ImageScorer
    held_out: ImageScorer
    held_out_variant: Variant
    at_once: int
    knows_truth: bool

    def scores(self, pictures: NDArray[numpy.uint8], prompts: Sequence[str]) -> dict[str, Values]:
        """Quantity -> value of each picture: reward, held_out, saturation and, where known, truth and its parts."""
        scores = {
            "reward": scores_by(self.reward, "reward", pictures, prompts, self.at_once),
            "held_out": scores_by(self.held_out, self.held_out_variant, pictures, prompts, self.at_once),
            "saturation": saturation(pictures),
        }
        if self.knows_truth:
            truths = [true_score(picture, prompt) for picture, prompt in zip(pictures, prompts, strict=True)]
            for name, part in (("truth", "overall"), ("alignment", "alignment"), ("fidelity", "fidelity")):
                scores[name] = numpy.array([getattr(one, part) for one in truths])
        return scores


@torch.no_grad()
def scores_by(
    scorer: ImageScorer, variant: Variant, pictures: NDArray[numpy.uint8], prompts: Sequence[str], at_once: int
) -> Values:
    """Returns one score of each picture, with `at_once` pictures in a pass."""
    scores = [
        scorer.score(images_of(pictures[part]), prompts[part], variant).cpu() for part in _parts(len(prompts), at_once)
    ]
    return torch.cat(scores).double().numpy()


class Validation:
    """The points of a curve: the same pictures each time, compared with those of the start."""

    def __init__(self, draws: Draws, judges: Judges, start: Generator) -> None:
        self.draws, self.judges = draws, judges
        # Generated again by a resumed run, and not stored in a checkpoint: equal seeds give equal pictures.
        self.start_pictures = draws.of(start)
        self.start_scores = judges.scores(self.start_pictures, draws.prompts)

    def row(self, generator: Generator) -> dict[str, float]:
        """Returns `validation/<quantity>`: means of all scores, diversity, distance to the start, and whether the
        reward rose while the held-out score, or the truth, fell (1 or 0)."""
        pictures = self.draws.of(generator)
        scores = self.judges.scores(pictures, self.draws.prompts)
        gained = gains(self.start_scores, scores, self.draws.prompts)
        row = {
            **{name: float(values.mean()) for name, values in scores.items()},
            "diversity": diversity(pictures, self.draws.prompts),
            "distance_to_start": distance(self.start_pictures, pictures),
            **without(gained),
        }
        return {f"validation/{name}": value for name, value in row.items()}


def saturation(pictures: NDArray[numpy.uint8]) -> Values:
    """Mean saturation of each picture's pixels as in HSV: (max - min) / max, 0 for black."""
    # Over-saturation is the most frequent way to hack a reward, and the first visible one.
    low, high = pictures.min(axis=3).astype(float), pictures.max(axis=3).astype(float)
    # Black has no colour: 0 / 1 instead of 0 / 0.
    return ((high - low) / numpy.maximum(high, 1)).mean(axis=(1, 2))


def diversity(pictures: NDArray[numpy.uint8], prompts: Sequence[str]) -> float:
    """Mean over prompts of the mean distance of two pictures of the prompt, as `distance`; 0 where none has two."""
    by_prompt: dict[str, list[int]] = defaultdict(list)
    for place, prompt in enumerate(prompts):
        by_prompt[prompt].append(place)
    # Every pair of a prompt's pictures once; other prompts' pictures differ because of the prompts.
    means = [
        numpy.mean([distance(pictures[[one]], pictures[[other]]) for one, other in combinations(places, 2)])
        for places in by_prompt.values()
        if len(places) > 1
    ]
    return float(numpy.mean(means)) if means else 0.0


def distance(some: NDArray[numpy.uint8], others: NDArray[numpy.uint8]) -> float:
    """Mean over pictures of the root mean square difference of their values, of 1."""
    squares = ((some.astype(float) - others) / 255) ** 2
    return float(numpy.sqrt(squares.mean(axis=(1, 2, 3))).mean())


def gains(before: Mapping[str, Values], after: Mapping[str, Values], prompts: Sequence[str]) -> dict[str, Interval]:
    """Quantity -> mean paired difference with its 95% interval, with whole prompts resampled."""
    return {name: paired_bootstrap(before[name], after[name], list(prompts)) for name in before}


def without(gained: Mapping[str, Interval]) -> dict[str, float]:
    """`reward_without_held_out`, and `reward_without_truth` where it is known: 1 where the reward rose and the other
    fell, both by more than the noise, else 0."""
    return {
        f"reward_without_{name}": float(gained["reward"].low > 0 and gained[name].high < 0)
        for name in ("held_out", "truth")
        if name in gained
    }


def _parts(count: int, at_once: int) -> list[slice]:
    return [slice(start, start + at_once) for start in range(0, count, at_once)]


def compare_generators(
    start: Generator, result: Generator, draws: Draws, judges: Judges, shown_images: int
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Returns rows of the `feedback_image` table and metrics `refl/<quantity>/{before,after,gain,low,high}`."""
    pictures = {"before": draws.of(start), "after": draws.of(result)}
    scores = {when: judges.scores(drawn, draws.prompts) for when, drawn in pictures.items()}
    before, after = scores["before"], scores["after"]
    gained = gains(before, after, draws.prompts)
    metrics: dict[str, float] = {"refl/pairs": len(draws.prompts), "refl/prompts": len(set(draws.prompts))}
    for name, interval in gained.items():
        metrics |= {
            f"refl/{name}/before": float(before[name].mean()),
            f"refl/{name}/after": float(after[name].mean()),
            f"refl/{name}/gain": interval.estimate,
            f"refl/{name}/low": interval.low,
            f"refl/{name}/high": interval.high,
        }
    metrics |= {f"refl/diversity/{when}": diversity(drawn, draws.prompts) for when, drawn in pictures.items()}
    # If all pictures of the start are grey, there is no relative rise.
    metrics["refl/saturation/change"] = float(after["saturation"].mean() / max(before["saturation"].mean(), 1e-9) - 1)
    metrics["refl/distance_to_start"] = distance(pictures["before"], pictures["after"])
    metrics |= {f"refl/{name}": value for name, value in without(gained).items()}
    # Never by the reward: its largest gains would be the successes of a hack.
    judge = "truth" if judges.knows_truth else "held_out"
    reasons = shown_for(after[judge] - before[judge], shown_images)
    rows = [
        {
            "prompt_id": prompt_id(prompt),
            "prompt": prompt,
            "seed": seed,
            **{f"{name}_before": float(values[place]) for name, values in before.items()},
            **{f"{name}_after": float(values[place]) for name, values in after.items()},
            "shown_for": reasons[place],
            **{f"png_{when}": png_of(drawn[place]) if reasons[place] else None for when, drawn in pictures.items()},
        }
        for place, (prompt, seed) in enumerate(zip(draws.prompts, draws.seeds, strict=True))
    ]
    return rows, metrics


def shown_for(differences: Values, count: int) -> list[str]:
    """Returns why each pair is shown: a third of `count` each for largest gain, largest loss and the middle; else "".

    Among equal differences the earlier pair comes first, so that the choice is automatic.
    """
    order = numpy.argsort(-differences, kind="stable").tolist()
    # With few pairs the three thirds must not overlap.
    third = min(count, len(order)) // 3
    reasons = [""] * len(order)
    for reason, first in (("gain", 0), ("loss", len(order) - third), ("middle", (len(order) - third) // 2)):
        for place in order[first : first + third]:
            reasons[place] = reason
    return reasons
