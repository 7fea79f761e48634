"""How many pictures of a prompt are ranked in a round, before any is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ASSUMED = 6
"""Pictures of a prompt where they are foreign: the paper's have 4 to 9."""


def pictures_of_a_prompt(sections: Mapping[str, Any], round_name: str) -> tuple[int, tuple[str, ...]]:
    """Of a ranking round and the earlier one that counts as well, with what is taken for granted about it."""
    rounds = dict.fromkeys([round_name, sections["ranking_rounds"][round_name].also])
    generators = sections.get("generators", {}).values()
    drawn = sum(own.images_per_prompt for own in generators if own.ranking_round in rounds)
    foreign = [name for name in rounds if sections["ranking_rounds"][name].foreign is not None]
    if not foreign:
        return drawn, ()
    told = f"{', '.join(foreign)}: {ASSUMED} foreign pictures of every prompt (assumed)"
    return drawn + ASSUMED * len(foreign), (told,)
