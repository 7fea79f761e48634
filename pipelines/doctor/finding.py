"""One line of `retrace doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is. A problem stops a run or spoils it; a warning costs something."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Finding:
    """What was looked at, what was found, and what to do about it (empty when all is well)."""

    name: str
    level: Level
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, Level.OK, found)


def warning(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, Level.WARNING, found, remedy)


def problem(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, Level.PROBLEM, found, remedy)
