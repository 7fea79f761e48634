"""Independent random streams from one seed."""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache


def derive_seed(*parts: int | str) -> int:
    """Returns a 63-bit seed for the stream named by `parts` (`derive_seed(seed, "rl_1", step)`).

    Hashing keeps streams apart: neighbouring seeds or steps share nothing, on any platform.
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@lru_cache(maxsize=4)
def permutation(count: int, *parts: int | str) -> tuple[int, ...]:
    """Returns the numbers below `count` in the order of the stream named by `parts`."""
    order = list(range(count))
    random.Random(derive_seed(*parts)).shuffle(order)
    return tuple(order)


def endless_order(start: int, stop: int, count: int, *parts: int | str) -> list[int]:
    """Returns positions `start` to `stop` of an endless order of the numbers below `count`: one permutation per epoch.

    The order depends only on `parts`, so a run resumed at `start` gets the same numbers as an uninterrupted run.
    """
    return [permutation(count, *parts, position // count)[position % count] for position in range(start, stop)]
