"""What stage `refl` runs with, and what others may ask of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.engines.trainers.params import TrainerParams
from stages.foundations.stage import About, Sections, Stage
from stages.refl.params import ReflParams, ReflRound

if TYPE_CHECKING:
    from stages.foundations.planned_work import NetworkWork

STAGE = Stage(
    sections={"seed": int, "trainer": TrainerParams, "refl": ReflParams, "refl_rounds": dict[str, ReflRound]},
    inputs={
        "generator": "data/generators/${item.start_from}",
        "prompts": "data/t2i/prompts.parquet",
        "scorer": "data/image_scorers/${item.reward_model}",
        "held_out": "data/image_scorers/${item.held_out.scorer}",
        "pairs": "data/preferences/${item.reward_model}",
        "pool": "data/images/pool/${item.reward_model}",
    },
    outputs={
        "out": "data/generators/${key}",
        "pictures": "data/images/feedback/${key}.parquet",
        "curves": "data/curves/refl/${key}.csv",
        "metrics": "data/metrics/refl/${key}.json",
        "headline": "data/headline/refl/${key}.json",
    },
    foreach="refl_rounds",
    is_launched=True,
    depends_on_ranks=True,
    quick_imports=True,
)


def _contradictions(sections: Sections) -> list[str]:
    found = []
    for name, one in sections["refl_rounds"].items():
        if one.held_out.scorer == one.reward_model and one.held_out.variant == "reward":
            found.append(
                f"refl_rounds.{name}.held_out is the reward that the round climbs: name another scorer or variant"
            )
    return found


def _networks(sections: Sections, address: str, prompts: Mapping[str, int]) -> NetworkWork:
    from stages.engines.generators.costs import generator_costs
    from stages.engines.image_scorers.config import base_scorer_costs
    from stages.foundations.planned_work import NetworkWork

    refl, this_round = sections["refl"], sections["refl_rounds"][address.partition("@")[2]]
    drawn, scored = generator_costs(sections["t2i_base"]), base_scorer_costs(sections["scorer_base"])
    step, picture = drawn.step_flops, drawn.decode_flops + scored.score_flops
    feedback = refl.feedback
    if feedback.kind == "refl":
        # Free of a gradient: the steps before the one that has it, on average the middle of the window.
        free, climbed = sum(feedback.window) / 2 * step, step + picture
    elif feedback.kind == "draft":
        free = (refl.sampling_steps - feedback.gradient_steps) * step
        climbed = feedback.gradient_steps * step + picture
    else:  # of a pair both images, by the generator and by the one it started from
        free, climbed = 2 * (step + drawn.encode_flops), 2 * step
    images = refl.batch_images if this_round.reward_weight else 0
    learned, measured = refl.pretraining.batch_images, refl.measurement
    points = this_round.updates // refl.evaluate_every_updates + 2  # the start's pictures, and the first row
    judged = points * measured.validation_images + 2 * measured.test_images
    seen = drawn.draw_flops(refl.sampling_steps, measured.guidance) + 2 * scored.score_flops
    return NetworkWork(
        trained=drawn.unet_parameters,
        # The start and the average; the reward model that is climbed, and the two that judge.
        held=2 * drawn.unet_parameters + drawn.other_parameters + 3 * scored.parameters,
        forward=this_round.updates * (images * free + learned * drawn.encode_flops) + judged * seen,
        with_gradient=this_round.updates * (images * climbed + learned * step),
        taken_for_granted=drawn.assumptions,
    )


ABOUT = About(
    description="A generator learns from a reward model, or from preferred images; compared with what it started from.",
    plot=("validation/reward", "Reward feedback ${key}"),
    headline=("score", "score {:.3f}"),
    networks=_networks,
    contradictions=_contradictions,
    runs_model=lambda params: True,
    named_after=("policy", "round"),
    is_varied=True,
    lane="Generators",
)
