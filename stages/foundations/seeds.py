"""Independent random streams from one seed."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed for the stream named by `parts` (`derive_seed(seed, "rl_1", step)`).

    Hashing keeps streams apart: neighbouring seeds or steps share nothing, on any platform.
    """
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
