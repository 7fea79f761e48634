"""Whoever changes params.yaml waits for the runs that use it: one flow must not end with another one's parameters."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from pipelines.graph.recipes import is_in_use, use_recipe
from pipelines.graph.resolved_recipes import require_recipe

SECONDS_BETWEEN_TRIES = 0.5
SECONDS_BETWEEN_LINES = 60.0


@contextmanager
def recipe_in_use(root: Path, recipe: str, say: Callable[[str], None]) -> Iterator[None]:
    """Makes params.yaml the recipe ("" leaves it as it is) and keeps others from changing it while the block runs.

    Waits, and says so, while runs with other parameters go on. UserError names the recipes there are.
    """
    if recipe:
        require_recipe(root, recipe)
    path = root / "state" / "locks" / "params.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as lock:
        said = -SECONDS_BETWEEN_LINES
        while not _is_settled(root, recipe, lock):
            if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
                said = time.monotonic()
                say(
                    f"recipe {recipe or 'as it is'}: waiting for the runs that use another params.yaml in {root}"
                )
            time.sleep(SECONDS_BETWEEN_TRIES)
        yield


def _is_settled(root: Path, recipe: str, lock: IO[str]) -> bool:
    """True with the shared lock and the right parameters; a lock alone may have been got after another change."""
    if recipe and not is_in_use(root, recipe) and _takes(lock, fcntl.LOCK_EX):
        use_recipe(root, recipe)
    if _takes(lock, fcntl.LOCK_SH) and (not recipe or is_in_use(root, recipe)):
        return True
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


def _takes(lock: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
