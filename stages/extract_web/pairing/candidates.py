"""Exercises to rows of the candidate table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stages.extract_web.pairing.confidence import confidence, evidence
from stages.extract_web.pairing.exercises import Exercise
from stages.extract_web.pairing.short_answer import chosen_letter, short_answer


def candidate_rows(
    page: Mapping[str, str], exercises: Sequence[Exercise], max_answer_characters: int
) -> list[dict[str, Any]]:
    """A row an exercise, in order; `instructions` is no column of the table, but what goes in front of the problem."""
    return [
        {
            "candidate_id": f"{page['page_id']}#{index}",
            "page_id": page["page_id"],
            "url": page["url"],
            "problem": exercise.problem,
            "solution": exercise.solution,
            "answer": chosen_letter(exercise.problem, exercise.answer or exercise.solution or "")
            or short_answer(exercise.solution, exercise.answer, max_answer_characters),
            "instructions": exercise.instructions,
            "number": exercise.number,
            "evidence": evidence(exercise),
            "confidence": confidence(exercise),
            "licence": page["licence"],
        }
        for index, exercise in enumerate(exercises)
    ]
