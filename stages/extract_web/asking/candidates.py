"""What a model said of a page's windows, as rows of the candidate table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from stages.extract_web.asking.spans import Refusal, read_answer
from stages.extract_web.pairing.candidates import candidate_rows
from stages.extract_web.pairing.confidence import confidence, judged


def model_candidates(
    page: Mapping[str, str],
    windows: Sequence[str],
    answers: Sequence[str],
    known: Sequence[str],
    max_answer_characters: int,
    precision: float,
) -> list[list[dict[str, Any]]]:
    """The rows of a page, and what was refused: `Refusal` as a mapping.

    `known` are problems that the rules found on the page and are sure of: one that holds, or is held by, such a problem
    is refused as `known_to_rules`. `precision` is the confidence of a row that fails no check.
    """
    certain = [_words(problem) for problem in known]
    exercises, refused = [], []
    for window, answer in zip(windows, answers, strict=True):
        found, not_taken = read_answer(answer, window)
        refused += not_taken
        for one in found:
            words = _words(one.problem)
            if any(words in other or other in words for other in certain):
                refused.append(Refusal("known_to_rules", one.problem[:500]))
            else:
                exercises.append(one)
    exercises = judged(exercises)
    rows = candidate_rows(page, exercises, max_answer_characters)
    for number, (row, exercise) in enumerate(zip(rows, exercises, strict=True)):
        row |= {
            "candidate_id": f"{page['page_id']}#model-{number}",
            "confidence": confidence(exercise, precision),
        }
        del row["instructions"]
    return [rows, [asdict(one) for one in refused]]


def _words(text: str) -> str:
    return " ".join(text.split())
