"""The schedule of a round: the groups that each step trained on, in order. A replay needs only it and the rollouts.

`schedule.jsonl` has a line that identifies the round (`header`), one for each step, and one with the groups that no
step took. A group is `rows` rows of the rollouts table from `first_row` on, in the order of their sample numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically
from stages.rl_round.records import Batch, Group

# Raised with every change to the lines: a replay rejects other formats and never misreads them.
FORMAT = 1
FILE = "schedule.jsonl"


@dataclass(frozen=True)
class RoundIdentity:
    """Data that must be the same in a replay and in the recorded round, so that the weights are the same."""

    round: str
    settings: Mapping[str, Any]
    """All settings that decide training, by dotted section, and the seed."""
    policy: str
    """DVC's hash of the policy that the round starts from."""
    problems: str
    """DVC's hash of the problem table."""


@dataclass(frozen=True)
class PlacedGroup:
    """A group, and the rows of its rollouts in the table."""

    problem_id: str
    draw: int
    """How often the round had drawn the problem before."""
    first_row: int
    rows: int
    custom: tuple[Mapping[str, Any], ...] | None = None
    """`Rollout.custom` of each rollout, if a custom function has rewarded any."""


@dataclass(frozen=True)
class ScheduledStep:
    """A `Batch` without its rollouts."""

    step: int
    """From 1."""
    newest_version: int | None
    draws: int
    signal_fraction: float
    groups: tuple[PlacedGroup, ...]
    left_out: tuple[PlacedGroup, ...]
    drawn: tuple[int, ...]
    """First rows of the groups drawn in this step, in order; a later step may decide their fate."""


@dataclass(frozen=True)
class Schedule:
    identity: RoundIdentity
    rollouts_sha256: str
    steps: tuple[ScheduledStep, ...]
    leftover: tuple[PlacedGroup, ...]
    """Finished groups that no step has taken."""


def step_fates(batch: Batch) -> dict[str, Any]:
    """Returns the fates of a step's groups as JSON values: a line of the schedule without row numbers."""
    return {
        "newest_version": batch.newest_version,
        "draws": batch.draws,
        "signal_fraction": batch.signal_fraction,
        "groups": [_named(group) for group in batch.groups],
        "left_out": [_named(group) for group in batch.left_out],
        "drawn": [[group.problem_id, group.draw] for group in batch.drawn],
    }


def leftover_fates(leftover: Sequence[Group]) -> dict[str, Any]:
    """Returns the fates of the groups left at the end of a round, in the same form."""
    return {"leftover": [_named(group) for group in leftover]}


def _named(group: Group) -> list[Any]:
    named, custom = [group.problem_id, group.draw, len(group.rollouts)], [one.custom for one in group.rollouts]
    # The table rounds rewards to float32, and without calling the function again they could not be restored.
    return [*named, custom] if any(custom) else named


def write_schedule(
    path: Path, identity: RoundIdentity, rollouts_sha256: str, fates: Sequence[Mapping[str, Any]]
) -> None:
    """Writes the schedule of a round from the fates of its steps in order, with those of the leftover last.

    The rollouts table must have, for each of them, the rows of `groups`, then those of `left_out` or `leftover`.
    """
    # The log writes rows in the order of the fates, so counting rows gives every group its place.
    placed, first_rows, row = [], {}, 0
    for step in fates:
        line = {}
        for fate in ("groups", "left_out", "leftover"):
            if fate not in step:
                continue
            line[fate] = []
            for problem_id, draw, rows, *custom in step[fate]:
                placed_group = {"problem_id": problem_id, "draw": draw, "first_row": row, "rows": rows}
                line[fate].append(placed_group | ({"custom": custom[0]} if custom else {}))
                first_rows[problem_id, draw] = row
                row += rows
        placed.append(line)
    # The header has the table's hash: a replay from another table would train on other groups without an error.
    lines: list[Any] = [{"format": FORMAT, **asdict(identity), "rollouts_sha256": rollouts_sha256}]
    for number, (step, line) in enumerate(zip(fates, placed, strict=True)):
        known = {name: step[name] for name in ("newest_version", "draws", "signal_fraction") if name in step}
        # Only now: a later step may decide the fate of groups drawn in this one, and their rows are placed with it.
        if "drawn" in step:
            known |= {"step": number + 1, "drawn": [first_rows[tuple(named)] for named in step["drawn"]]}
        lines.append(known | line)
    # Sorted keys: the synchronous loop writes the same bytes each time, which DVC compares.
    write_text_atomically(path, "".join(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n" for line in lines))


def find_schedule(folder: Path, round_name: str) -> Path:
    """Returns a round's schedule, in the folder or in its subfolder with the round's name. UserError if missing."""
    for place in (folder / FILE, folder / round_name / FILE):
        if place.exists():
            return place
    raise UserError(
        f"rl.loop.schedule {folder} holds neither {FILE} nor {round_name}/{FILE}: name a copy of the folder that a "
        "round has written under data/schedules, or of data/schedules itself. Not those of this project: DVC removes "
        "them before the round starts"
    )


def find_rollouts(schedule: Path, round_name: str) -> Path:
    """Returns the table of a schedule: `rollouts.parquet` next to it, or at its place in a project. UserError if
    missing."""
    # In a project the schedule is data/schedules/<round>/schedule.jsonl: the third parent is data.
    # Resolved: a relative path of one folder has no third parent.
    project = schedule.resolve().parents[2]
    places = (schedule.with_name("rollouts.parquet"), project / "rollouts" / f"{round_name}.parquet")
    for place in places:
        if place.exists():
            return place
    raise UserError(
        f"the rollouts of {schedule} are missing: put the table that the same round has written at {places[0]} or "
        f"{places[1]}"
    )


def read_schedule(path: Path) -> Schedule:
    """Reads a schedule. UserError names the first line that no round would write."""
    lines = _lines(path)
    number, header = next(lines, (1, {}))
    if header.get("format") != FORMAT:
        raise UserError(f"{path} is no schedule of format {FORMAT}: name one that this version has written")
    try:
        identity = RoundIdentity(*(header[name] for name in ("round", "settings", "policy", "problems")))
        steps: list[ScheduledStep] = []
        for number, line in lines:
            if "leftover" in line:
                whole = tuple(steps), tuple(PlacedGroup(**group) for group in line["leftover"])
                return Schedule(identity, header["rollouts_sha256"], *whole)
            if line["step"] != len(steps) + 1:
                # Steps are taken in order, not by number: a lost line would shift the batches of all later steps.
                raise _torn(path, number, f"it is of step {line['step']}, not {len(steps) + 1}")
            groups = {fate: tuple(PlacedGroup(**group) for group in line[fate]) for fate in ("groups", "left_out")}
            steps.append(ScheduledStep(**{**line, **groups, "drawn": tuple(line["drawn"])}))
    # A missing or extra key: the line is JSON, but not a line that a round writes.
    except (KeyError, TypeError) as error:
        raise _torn(path, number, f"{type(error).__name__}: {error}") from None
    raise _torn(path, number, "no line after it says what became of the last groups")


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    # Bytes that are not UTF-8 become a line that JSON rejects, so the error can name its number.
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        try:
            line = json.loads(text)
        # `json` raises RecursionError for thousands of opening brackets; such a line is damaged too.
        except (ValueError, RecursionError) as error:
            raise _torn(path, number, str(error)) from None
        if not isinstance(line, dict):
            raise _torn(path, number, "it is no mapping")
        yield number, line


def _torn(path: Path, number: int, why: str) -> UserError:
    return UserError(f"{path} is torn or changed at line {number} ({why}): copy it again from the round that wrote it")


def refuse_other_round(path: Path, recorded: RoundIdentity, wanted: RoundIdentity) -> None:
    """Raises UserError that names the differences between the recorded round and the round to train."""
    there, here = (
        _flat({"round": one.round, **one.settings, "policy": one.policy, "problems": one.problems})
        for one in (recorded, wanted)
    )
    differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    if not differing:
        return
    # Three are enough to see the cause: another recipe differs in dozens.
    shown = ", ".join(f"{name} ({there.get(name)} there, {here.get(name)} here)" for name in differing[:3])
    more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
    raise UserError(
        f"rl.loop.schedule {path} is of another round: {shown}{more} differ. A replay repeats a round as it was: take "
        "over its parameters and inputs, or name the schedule of this round"
    )


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """Flattens nested mappings: `{"rl.minibatches": 2, ...}`."""
    if not isinstance(value, Mapping):
        return {name: value}
    return {
        place: leaf
        for key, inner in value.items()
        for place, leaf in _flat(inner, f"{name}.{key}" if name else key).items()
    }
