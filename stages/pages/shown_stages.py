"""What the report pages show of each stage: its place in the graph, its funnel of rows, and its tables.

`SHOWN` and `NOT_SHOWN` name every stage between them: tests/architecture checks that, so that a new stage cannot be
left out of the pages in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Shown:
    """One stage."""

    lane: str = ""
    """Heading under which the report lists it."""
    has_funnel: bool = False
    """Its rows are data, and dropping them needs reasons: the report shows how many were kept."""
    way: FunnelStep | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    """Its tables that get a card in the report, by their path under data/ without the ending, and their purpose."""
    contamination: str = ""
    """Its table of rows that are in a benchmark, as in `tables`."""


@dataclass(frozen=True)
class FunnelStep:
    """A stage's place in a chain that rows pass through, shown as one table of the remaining rows."""

    title: str
    """Name of the chain; equal for its stages, which come in graph order."""
    unit: str
    """Unit of the stage's rows: pages, exercises."""
    first: str = ""
    """Label of the input, where its unit differs from that of the stage before: `pages collected`."""
    last: str = ""
    """Label of the rows at the end of the chain."""
    reasons: tuple[str, ...] = ()
    """Reasons of drops in the order in which the stage checks them; others follow."""
    note: Callable[[Mapping[str, Any]], str] = lambda params: ""
    """A sentence for the caption, from the stage's section as the parameter file has it."""


def _describe_agreement(params: Mapping[str, Any]) -> str:
    agreement = params.get("agreement") or {}
    if agreement.get("kind") != "policy":
        return "Answer agreement with a policy is switched off."
    samples = agreement.get("samples")
    responses = "response" if samples == 1 else "responses"
    return f"Answer agreement: one of {samples} sampled {responses} of the base policy must reach the answer."


FILTER_WEB_REASONS = (
    "missing_field",
    "duplicate_id",
    "no_solution",
    "no_short_answer",
    "unfinished",
    "solution_disagrees_with_answer",
    "no_question",
    "multi_part",
    "refers_to_figure_or_other",
    "proof_or_opinion",
    "copy_is_correct",
    "wrong_language",
    "too_long",
    "conflicting_answers",
    "exact_duplicate",
    "near_duplicate",
    "contaminated",
    "not_sampled",
    "no_agreement",
)
"""In the order in which the stage checks; the row rules share one pass, the first that objects counts."""

IMAGE_POOL_REASONS = (
    "malformed_row",
    "unknown_prompt",
    "image_missing",
    "image_changed",
    "image_not_allowed",
    "image_too_large",
    "image_too_small",
    "image_animated",
    "image_truncated",
    "image_broken",
    "duplicate_image",
)
"""In the order in which the stage checks."""

ANNOTATE_REASONS = (
    "malformed_row",
    "draft",
    "cancelled",
    "unknown_prompt",
    "unknown_annotator",
    "unknown_category",
    "unknown_problem",
    "problem_prompt",
    "unknown_image",
    "one_image_only",
    "image_in_two_slots",
    "rank_missing",
    "rank_out_of_range",
    "rating_not_a_number",
    "rating_out_of_range",
    "unknown_issue",
    "weight_out_of_range",
    "seconds_out_of_range",
    "duplicate_annotation",
)
"""In the order in which the stage checks."""

PREFERENCES_REASONS = ("gold_task", "unknown_prompt", "annotator_dropped", "rank_contradicts_rating", "all_tied")
"""In the order in which the stage checks."""

SHOWN: Mapping[str, Shown] = {
    "collect": Shown(
        lane="Problems", has_funnel=True, tables={"problems/collected/*": "Problems of one source, unchanged."}
    ),
    "collect_web": Shown(
        lane="Web solutions",
        has_funnel=True,
        way=FunnelStep("From pages to trusted problems", "pages", first="pages collected"),
        tables={"web/pages": "Web pages and documents, unchanged."},
    ),
    "extract_web": Shown(
        lane="Web solutions",
        has_funnel=True,
        way=FunnelStep("From pages to trusted problems", "pages"),
        tables={"web/candidates": "Exercises found on the pages, not yet filtered."},
    ),
    "filter_web": Shown(
        lane="Web solutions",
        has_funnel=True,
        way=FunnelStep(
            "From pages to trusted problems",
            "exercises",
            first="exercises found",
            last="trusted problems",
            reasons=FILTER_WEB_REASONS,
            note=_describe_agreement,
        ),
        tables={"web/solutions": "Exercises that passed every quality rule."},
        contamination="web/contamination",
    ),
    "curate": Shown(
        lane="Problems",
        has_funnel=True,
        tables={
            "problems/train": "Training problems: gradable, without duplicates and without benchmark problems.",
            "problems/validation": "Problems for validation during training.",
            "problems/benchmarks": "Problems for evaluation only.",
            "problems/transforms": "Questions rewritten for an integer answer, with the original answer.",
            "problems/difficulty": "Pass rates from another source.",
        },
        contamination="problems/contamination",
    ),
    "base": Shown(lane="Policies"),
    "demonstrate": Shown(
        lane="Policies",
        has_funnel=True,
        tables={
            "demonstrations/train": "Rows of supervised fine-tuning.",
            "demonstrations/validation": "Rows for the validation loss.",
        },
    ),
    "sft": Shown(lane="Policies", has_funnel=True),
    "rl_round": Shown(lane="Policies"),
    "respond": Shown(lane="Evaluation"),
    "grade": Shown(lane="Evaluation"),
    "report": Shown(lane="Evaluation"),
    "t2i_prompts": Shown(
        lane="Text to image", has_funnel=True, tables={"t2i/prompts": "Prompts for pictures, with their split."}
    ),
    "t2i_base": Shown(lane="Text to image"),
    "generate": Shown(lane="Text to image"),
    "image_pool": Shown(
        lane="Images",
        has_funnel=True,
        way=FunnelStep(
            "From images to the pool",
            "images",
            first="images generated and taken in",
            last="different, sound images",
            reasons=IMAGE_POOL_REASONS,
        ),
    ),
    "annotate": Shown(
        lane="Annotations",
        has_funnel=True,
        way=FunnelStep(
            "From annotations to preferences", "rankings", first="annotations given", reasons=ANNOTATE_REASONS
        ),
    ),
    "preferences": Shown(
        lane="Annotations",
        has_funnel=True,
        way=FunnelStep(
            "From rankings to preferences",
            "rankings",
            first="rankings accepted",
            last="rankings that give pairs",
            reasons=PREFERENCES_REASONS,
        ),
    ),
    "scorer_base": Shown(lane="Reward model"),
    "reward_model": Shown(lane="Reward model"),
    "reward_evaluation": Shown(lane="Reward model"),
    "refl": Shown(lane="Generators"),
    "refl_control": Shown(lane="Generators"),
    "t2i_report": Shown(lane="Report"),
}
NOT_SHOWN = frozenset(("code", "teacher"))
"""Stages that only copy or count files of others."""


def shown(stage: str) -> Shown:
    """Returns what the pages show of a stage; nothing of one that was added without an entry here."""
    return SHOWN.get(stage, Shown())
