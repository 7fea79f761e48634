"""Episodes as columns of tables and as JSON, the text of a sample that is judged, and verdicts of environments.

JSON keeps everything. A table has no seconds, because outputs hold no times, and rounds rewards to float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stages.algorithms.answers.verdicts import Verdict
from stages.engines.samplers.protocol import Episode, Sample


def judged_text(sample: Sample, response: str) -> str:
    """Returns the text that a verifier judges; `response` is the decoded sample.

    Of an episode it is the answer alone: a box that a tool printed, or one inside a call, is no answer of the policy.
    """
    return response if sample.episode is None else sample.episode.response


def environment_verdict(episode: Episode | None) -> Verdict | None:
    """Returns the verdict when the environment has failed (`crashed`) or decides itself; None leaves it to the
    verifier."""
    if episode is None:
        return None
    decided = {None: None, True: Verdict.CORRECT, False: Verdict.WRONG}[episode.is_correct]
    return Verdict.CRASHED if episode.fault else decided


def episode_columns(sample: Sample) -> dict[str, Any]:
    """Returns the values of columns `EPISODE`; empty without an episode, so that tables of one turn lack them."""
    episode = sample.episode
    if episode is None:
        return {}
    return {
        "observed": [place for span in episode.observed for place in span],
        "turns": episode.turns,
        "calls": episode.calls,
        "failed_calls": episode.failed_calls,
        "final_response": episode.response,
        "ending": sample.stop_reason.value,
        "environment_reward": episode.reward,
        "environment_correct": episode.is_correct,
        "environment_fault": episode.fault,
    }


def episode_of(row: Mapping[str, Any]) -> Episode | None:
    """Returns the episode of a table's row, the inverse of `episode_columns`; None if the row has none."""
    # pandas reads a missing value as None or NaN, by the column's type.
    if _is_missing(row.get("final_response")):
        return None
    places = [int(place) for place in row["observed"]]
    reward, is_correct = row["environment_reward"], row["environment_correct"]
    return Episode(
        tuple(zip(places[::2], places[1::2], strict=True)),
        int(row["turns"]),
        row["final_response"],
        int(row["calls"]),
        int(row["failed_calls"]),
        reward=None if _is_missing(reward) else float(reward),
        is_correct=None if _is_missing(is_correct) else bool(is_correct),
        fault=row["environment_fault"],
    )


def fields_for_functions(episode: Episode | None) -> dict[str, Any]:
    """Returns what a user's function may read of an episode, as JSON values; None in each field without one."""
    return {
        "turns": episode and episode.turns,
        "calls": episode and episode.calls,
        "failed_calls": episode and episode.failed_calls,
        "final_response": episode and episode.response,
        "environment_reward": episode and episode.reward,
    }


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def episode_to_json(episode: Episode | None) -> dict[str, Any] | None:
    """Returns the episode as JSON values, bit for bit."""
    return None if episode is None else asdict(episode)


def episode_from_json(stored: Mapping[str, Any] | None) -> Episode | None:
    return None if stored is None else Episode(**{**stored, "observed": tuple(map(tuple, stored["observed"]))})
