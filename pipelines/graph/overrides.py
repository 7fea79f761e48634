"""What differs from a parameter file: how a recipe with `extends:` and a variant of an ablation say it."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any


def with_changes(params: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy of `params` with the dotted changes; a mapping that is missing on the way is made.

    KeyError names a dotted name that leads through something else than a mapping.
    """
    changed = copy.deepcopy(params)
    for name, value in changes.items():
        *sections, last = name.split(".")
        place: Any = changed
        for section in sections:
            place = place.setdefault(section, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise KeyError(name)
        place[last] = copy.deepcopy(value)
    return changed


def without(params: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A deep copy of `params` that lacks the dotted names. KeyError names one that is not there."""
    changed = copy.deepcopy(params)
    for name in names:
        *sections, last = name.split(".")
        place = value_at(changed, sections)
        if not isinstance(place, dict) or last not in place:
            raise KeyError(name)
        del place[last]
    return changed


def dotted(
    params: Mapping[str, Any], changes: Mapping[str, Any], before: str = ""
) -> Iterator[tuple[str, Any]]:
    """Nested changes as dotted ones: mappings go into those that are there, everything else replaces.

    A mapping of another `kind` is another thing, and replaces the whole mapping; so does an empty one.
    """
    for name, value in changes.items():
        there = value_at(params, name.split("."))
        is_inside = isinstance(value, dict) and value and isinstance(there, dict)
        if is_inside and value.get("kind", there.get("kind")) == there.get("kind"):
            yield from dotted(there, value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def value_at(params: Any, names: Iterable[str]) -> Any:
    """The value under the names, from the outermost in; None where there is none."""
    for name in names:
        params = params.get(name) if isinstance(params, dict) else None
    return params
