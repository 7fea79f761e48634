"""The result beside the start: pictures of test prompts from the same noise, scored by all judges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from stages.engines.generators.generator import Generator
from stages.engines.images.shards import png_of
from stages.foundations.tables.prompt import prompt_id
from stages.refl.measurement import Draws, Judges, Values, distance, diversity, gains, means, without


def compare_generators(
    start: Generator, result: Generator, draws: Draws, judges: Judges, shown_images: int
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Rows of the `feedback_image` table and metrics `refl/<quantity>/{before,after,gain,low,high}`."""
    pictures = {"before": draws.of(start), "after": draws.of(result)}
    scores = {when: judges.scores(drawn, draws.prompts) for when, drawn in pictures.items()}
    before, after = scores["before"], scores["after"]
    gained = gains(before, after, draws.prompts)
    metrics: dict[str, float] = {"refl/pairs": len(draws.prompts), "refl/prompts": len(set(draws.prompts))}
    for name, interval in gained.items():
        metrics |= {
            f"refl/{name}/before": means(before)[name],
            f"refl/{name}/after": means(after)[name],
            f"refl/{name}/gain": interval.estimate,
            f"refl/{name}/low": interval.low,
            f"refl/{name}/high": interval.high,
        }
    metrics |= {f"refl/diversity/{when}": diversity(drawn, draws.prompts) for when, drawn in pictures.items()}
    metrics["refl/saturation/change"] = (
        # a start whose pictures are all grey has no share to rise by
        metrics["refl/saturation/after"] / max(metrics["refl/saturation/before"], 1e-9) - 1
    )
    metrics["refl/distance_to_start"] = distance(pictures["before"], pictures["after"])
    metrics |= {f"refl/{name}": value for name, value in without(gained).items()}
    # Never by the reward: pictures that it gained most on would show off the hack.
    judge = "truth" if judges.knows_truth else "held_out"
    reasons = shown_for(after[judge] - before[judge], shown_images)
    rows = [
        {
            "prompt_id": prompt_id(prompt),
            "prompt": prompt,
            "seed": seed,
            **_measured(scores, place),
            "shown_for": reasons[place],
            **{
                f"png_{when}": png_of(drawn[place]) if reasons[place] else None
                for when, drawn in pictures.items()
            },
        }
        for place, (prompt, seed) in enumerate(zip(draws.prompts, draws.seeds, strict=True))
    ]
    return rows, metrics


def _measured(scores: Mapping[str, Mapping[str, Values]], place: int) -> dict[str, float]:
    return {
        f"{name}_{when}": float(values[place])
        for when, found in scores.items()
        for name, values in found.items()
    }


def shown_for(differences: Values, count: int) -> list[str]:
    """Why each pair is shown: a third of `count` each for the largest gain, the largest loss and the middle; else "".

    Of equal differences the earlier pair comes first, so that nobody chooses.
    """
    order = numpy.argsort(-differences, kind="stable").tolist()
    third = min(count, len(order)) // 3
    reasons = [""] * len(order)
    middle = (len(order) - third) // 2
    for reason, places in (
        ("gain", order[:third]),
        ("loss", order[len(order) - third :]),
        ("middle", order[middle : middle + third]),
    ):
        for place in places:
            reasons[place] = reason
    return reasons
