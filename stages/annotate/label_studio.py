"""The full JSON export of Label Studio (1.23): tasks with their annotations.

The images of a task are those of its `image_ids`, which `labelling.py` has put there, never Label Studio's paths. Of
result items those count whose control is ours: `ranking`, and for image n `overall_n`, `alignment_n`, `fidelity_n` and
`issues_n`. An annotation that is `ground_truth` is the reference answer of its task.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from stages.annotate.annotation_files import Found
from stages.annotate.annotations import Annotation, Refused
from stages.foundations.errors import UserError
from stages.foundations.hashing import stable_hash
from stages.foundations.tables.rating import ASPECTS

SOURCE = "label_studio"
_SLOT = re.compile(r"slot_(-?\d{1,6})")
_OF_IMAGE = re.compile(rf"({'|'.join(ASPECTS)}|issues)_(\d+)")


def export_annotations(rows: list[Any], told: str) -> Found:
    """Every annotation and draft of the export. UserError for JSON_MIN, which has lost who said what."""
    if rows and all(isinstance(row, dict) and "annotations" not in row for row in rows):
        raise UserError(
            f"{told} is no full export (no `annotations`): export it as JSON, not as JSON-MIN or CSV"
        )
    # Whatever stands in a task, the next one is read: a broken row is a drop, never the end of the stage.
    for number, task in enumerate(rows):
        row_id = f"{told}:{task.get('id', number)}" if isinstance(task, dict) else f"{told}:{number}"
        data = task.get("data") if isinstance(task, dict) else None
        given = task.get("annotations") if isinstance(task, dict) else None
        if not isinstance(data, dict) or not isinstance(given, list):
            yield row_id, "malformed_row", "a task needs `data` and `annotations`"
            continue
        drafts = task.get("drafts")
        for index, _ in enumerate(drafts if isinstance(drafts, list) else []):
            yield f"{row_id}/draft {index}", "draft", "it was not submitted"
        for index, one in enumerate(given):
            name = f"{row_id}/{one.get('id', index)}" if isinstance(one, dict) else f"{row_id}/{index}"
            try:
                yield _annotation(name, data, one)
            except Refused as refused:
                yield (name, *refused.args)


def _annotation(row_id: str, data: Mapping[str, Any], one: Any) -> Annotation:
    images = data.get("image_ids")
    if not isinstance(one, dict) or not isinstance(one.get("result"), list):
        raise Refused("malformed_row", "an annotation needs `result`")
    if one.get("was_cancelled"):
        raise Refused("cancelled", "the annotator skipped the task")
    if not isinstance(images, list) or not all(isinstance(name, str) for name in images):
        raise Refused("unknown_image", "the task's data has no `image_ids`")
    ranks: dict[str, Any] = {}
    ratings: dict[tuple[str, str], Any] = {}
    issues: dict[str, list[Any]] = {}
    for item in one["result"]:
        control, value = _item(item)
        if control == "ranking":
            for name, rank in _slots(value):
                if name in ranks:
                    raise Refused(
                        "image_in_two_slots", f"{name!r} is in slots {ranks[name]} and {rank}"[:200]
                    )
                ranks[name] = rank
        elif found := _OF_IMAGE.fullmatch(control):
            what, index = (
                found[1],
                int(found[2][:6]) - 1,
            )  # six digits: int() of a million of them takes minutes
            if not 0 <= index < len(images):
                raise Refused("unknown_image", f"{control} is of no image of the task"[:200])
            if what == "issues":
                flags = value.get("choices")
                issues[images[index]] = flags if isinstance(flags, list) else [flags]
            elif value.get("rating") != 0:  # 0 is a rating that was taken back
                ratings[images[index], what] = value.get("rating")
    prompt = data.get("prompt_id")
    return Annotation(
        row_id,
        prompt if isinstance(prompt, str) else "",
        _annotator(one.get("completed_by")),
        SOURCE,
        images,
        ranks,
        ratings,
        issues,
        one.get("lead_time"),
        str(one.get("created_at", "")),
        is_gold=one.get("ground_truth") is True,
    )


def _item(item: Any) -> tuple[str, Mapping[str, Any]]:
    value = item.get("value") if isinstance(item, dict) else None
    if not isinstance(value, dict):
        raise Refused("malformed_row", f"a result needs `from_name` and `value`: {item!r}"[:200])
    return str(item.get("from_name")), value


def _slots(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Image and slot; `_` holds those that stayed in the list and have none. A slot of another name has no number."""
    slots = value.get("ranker")
    if not isinstance(slots, dict):
        raise Refused("rank_missing", "the ranking has no slots")
    for slot, names in slots.items():
        if slot == "_":
            continue
        number = _SLOT.fullmatch(slot)
        for name in names if isinstance(names, list) else [names]:
            yield (name if isinstance(name, str) else repr(name)[:200]), int(number[1]) if number else slot


def _annotator(given: Any) -> str:
    """A name that is no address: `completed_by` is a number, or in some exports {id, email}."""
    if isinstance(given, dict):
        if given.get("id") is None and isinstance(given.get("email"), str):
            return f"{SOURCE}/{stable_hash(given['email'])[:12]}"
        given = given.get("id")
    is_name = isinstance(given, int) and not isinstance(given, bool)
    is_name |= isinstance(given, str) and bool(
        re.fullmatch(r"[0-9a-f]{12}", given)
    )  # of an address, by `slimmed`
    return f"{SOURCE}/{given}" if is_name else ""


def slimmed(rows: list[Any]) -> list[Any]:
    """The export without what nobody reads, addresses of people and paths of the server among it.

    Its tables are those of the whole export; rows that are no tasks stay, to be counted.
    """
    return [_slim_task(row) if isinstance(row, dict) else None for row in rows]


def _slim_task(task: Mapping[str, Any]) -> dict[str, Any]:
    slim = {"id": task.get("id")}
    if isinstance(task.get("data"), dict):
        slim["data"] = {name: task["data"].get(name) for name in ("prompt_id", "prompt", "image_ids")}
    if isinstance(task.get("drafts"), list):
        slim["drafts"] = [{} for _ in task["drafts"]]
    if "annotations" in task:
        given = task["annotations"]
        slim["annotations"] = [_slim_annotation(one) for one in given] if isinstance(given, list) else None
    return slim


def _slim_annotation(one: Any) -> Any:
    if not isinstance(one, dict):
        return None
    names = ("id", "result", "was_cancelled", "ground_truth", "lead_time", "created_at")
    said = {name: one[name] for name in names if name in one}
    return said | {"completed_by": completed_by(_annotator(one.get("completed_by")))}


def completed_by(annotator_id: str) -> int | str:
    """What an export says of this annotator: the number of a user, or the hash of an address."""
    name = annotator_id.rpartition("/")[2]
    return int(name) if name.isdecimal() and str(int(name)) == name else name
