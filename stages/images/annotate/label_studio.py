"""Label Studio (1.23): its full JSON export as annotations, and folders of tasks that it can import.

Reading: the images of a task are those of its `image_ids`, which `labelling_task` writes, never Label Studio's paths.
Only results of this project's controls count: `category` and `problems` of the prompt, `ranking`, and for image n
`overall_n`, `alignment_n`, `fidelity_n` and `issues_n`. An annotation that is `ground_truth` is the reference answer of
its task.

Writing (`retrace annotations export`): pictures as PNG, and one project per number of images, because a
configuration names its images one by one.

    images/<image id>.png
    6_images/labelling.xml, 6_images/tasks.json

A prompt is hostile text in an annotator's browser: `html` escapes it, and Label Studio shows `$prompt` as text. Tasks
have the images' ids beside their addresses, so no code has to parse an address. The PNGs are encoded again from pixels
and so have no metadata: text chunks of a foreign file may contain prompts, paths and places.
"""

from __future__ import annotations

import html
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.files import replace_folder, stable_hash, write_json, write_text_atomically
from stages.foundations.tables import (
    ASPECTS,
    ISSUES,
    PROMPT_ANNOTATION,
    PROMPT_CATEGORIES,
    PROMPT_PROBLEMS,
    RANKING,
    RATING,
    read_table,
)
from stages.images.annotate.annotations import MOST_POINTS, SLOTS, Annotation, Found, Refused, set_tasks
from stages.images.engines.pictures.shards import pixels_of, png_of, read_image_rows, read_images

SOURCE = "label_studio"
OF_PROMPT = {"category": PROMPT_CATEGORIES, "problems": PROMPT_PROBLEMS}
"""The two controls that ask about the prompt, and their choices."""
_SLOT = re.compile(r"slot_(-?\d{1,6})")
_OF_IMAGE = re.compile(rf"({'|'.join(ASPECTS)}|issues)_(\d+)")


def export_annotations(rows: list[Any], file_name: str) -> Found:
    """Yields every annotation and draft of the export. UserError for JSON_MIN, which lacks the annotators."""
    if rows and all(isinstance(row, dict) and "annotations" not in row for row in rows):
        raise UserError(f"{file_name} is no full export (no `annotations`): export it as JSON, not as JSON-MIN or CSV")
    # A broken task is a counted drop and never stops the stage.
    for number, task in enumerate(rows):
        told = task if isinstance(task, dict) else {}
        row_id = f"{file_name}:{told.get('id', number)}"
        data, annotations, drafts = (told.get(name) for name in ("data", "annotations", "drafts"))
        if not isinstance(data, dict) or not isinstance(annotations, list):
            yield row_id, "malformed_row", "a task needs `data` and `annotations`"
            continue
        for index, _ in enumerate(drafts if isinstance(drafts, list) else []):
            yield f"{row_id}/draft {index}", "draft", "it was not submitted"
        for index, one in enumerate(annotations):
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
                    raise Refused("image_in_two_slots", f"{name!r} is in slots {ranks[name]} and {rank}"[:200])
                ranks[name] = rank
        elif match := _OF_IMAGE.fullmatch(control):
            # Six digits at most: `int` of a million digits takes minutes.
            what, index = match[1], int(match[2][:6]) - 1
            if not 0 <= index < len(images):
                raise Refused("unknown_image", f"{control} is of no image of the task"[:200])
            if what == "issues":
                issues[images[index]] = _flags(value)
            # 0 is a rating that was withdrawn.
            elif value.get("rating") != 0:
                ratings[images[index], what] = value.get("rating")
    prompt = data.get("prompt_id")
    said = {control: _flags(value) for control, value in map(_item, one["result"]) if control in OF_PROMPT}
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
        # Several categories are none of the known ones.
        category=", ".join(map(str, said.get("category", []))),
        problems=said.get("problems", []),
    )


def _flags(value: Mapping[str, Any]) -> list[Any]:
    flags = value.get("choices")
    return flags if isinstance(flags, list) else [flags]


def _item(item: Any) -> tuple[str, Mapping[str, Any]]:
    value = item.get("value") if isinstance(item, dict) else None
    if not isinstance(value, dict):
        raise Refused("malformed_row", f"a result needs `from_name` and `value`: {item!r}"[:200])
    return str(item.get("from_name")), value


def _slots(value: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields image and slot; `_` holds images that stayed in the list without a slot. Other names have no number."""
    slots = value.get("ranker")
    if not isinstance(slots, dict):
        raise Refused("rank_missing", "the ranking has no slots")
    for slot, names in slots.items():
        if slot == "_":
            continue
        number = _SLOT.fullmatch(slot)
        for name in names if isinstance(names, list) else [names]:
            yield (name if isinstance(name, str) else repr(name)[:200]), int(number[1]) if number else slot


def _annotator(user: Any) -> str:
    """Returns a name that is not an address: `completed_by` is a number, or in some exports {id, email}."""
    if isinstance(user, dict):
        # Annotators are distinguished by their addresses, and no address reaches a table.
        if user.get("id") is None and isinstance(user.get("email"), str):
            return f"{SOURCE}/{stable_hash(user['email'])[:12]}"
        user = user.get("id")
    is_name = isinstance(user, int) and not isinstance(user, bool)
    # The hash of an address, in an export that `slimmed` wrote.
    is_name |= isinstance(user, str) and bool(re.fullmatch(r"[0-9a-f]{12}", user))
    return f"{SOURCE}/{user}" if is_name else ""


def slimmed(rows: list[Any]) -> list[Any]:
    """Returns the export without unused parts, such as addresses of people and paths of the server.

    Its tables equal those of the whole export; rows that are not tasks stay, to be counted.
    """
    return [_slim_task(row) if isinstance(row, dict) else None for row in rows]


def _slim_task(task: Mapping[str, Any]) -> dict[str, Any]:
    slim = {"id": task.get("id")}
    if isinstance(task.get("data"), dict):
        slim["data"] = {name: task["data"].get(name) for name in ("prompt_id", "prompt", "image_ids")}
    if isinstance(task.get("drafts"), list):
        # Their number is counted, their content is not read.
        slim["drafts"] = [{} for _ in task["drafts"]]
    if "annotations" in task:
        annotations = task["annotations"]
        # A value that is not a list stays so: the row is then dropped for the same reason as in the whole export.
        slim["annotations"] = [_slim_annotation(one) for one in annotations] if isinstance(annotations, list) else None
    return slim


def _slim_annotation(one: Any) -> Any:
    if not isinstance(one, dict):
        return None
    names = ("id", "result", "was_cancelled", "ground_truth", "lead_time", "created_at")
    slim = {name: one[name] for name in names if name in one}
    return slim | {"completed_by": completed_by(_annotator(one.get("completed_by")))}


def completed_by(annotator_id: str) -> int | str:
    """Returns the annotator's name in an export: the number of a user, or the hash of an address."""
    name = annotator_id.rpartition("/")[2]
    return int(name) if name.isdecimal() and str(int(name)) == name else name


_QUESTIONS = dict(
    zip(ASPECTS, ("Overall", "Follows the prompt", "Fidelity: no flaws, regardless of the prompt"), strict=True)
)


def labelling_configuration(images: int) -> str:
    """Returns the XML for tasks of so many images: the prompt's category and problems, three ratings and the issue
    flags of each image, then a ranking in five slots.

    Questions about the prompt name an image, because a control belongs to an object; as a Text the prompt could be
    markup. The style hides the ids that Label Studio 1.23 writes under each picture of the ranking: they push the slots
    apart.
    """
    blocks = "\n".join(map(_image_block, range(1, images + 1)))
    words = {1: " (best)", SLOTS: " (worst)"}
    buckets = "\n".join(
        f'      <Bucket name="slot_{slot}" title="{slot}{words.get(slot, "")}"/>' for slot in range(1, SLOTS + 1)
    )
    return f"""<View>
  <Style>
    .images {{ display: flex; flex-wrap: wrap; gap: 1.5em; }}
    .image {{ width: 16em; }}
    .htx-ranker-item img {{ width: 100%; }}
    .htx-ranker-item p + p {{ display: none; }}
  </Style>
  <Header value="$prompt"/>
  <Header value="Category of the prompt" size="5"/>
  <Choices name="category" toName="image_1" choice="single-radio" showInline="true" required="true">
{_choices(PROMPT_CATEGORIES)}
  </Choices>
  <Header value="Problems of the prompt: with one, the images need no rating" size="5"/>
  <Choices name="problems" toName="image_1" choice="multiple" showInline="true">
{_choices(PROMPT_PROBLEMS)}
  </Choices>
  <View className="images">
{blocks}
  </View>
  <Header value="Rank the images: the best into slot 1, equally good ones into one slot, at most two in each"/>
  <List name="items" value="$items" title="Images"/>
  <Ranker name="ranking" toName="items">
{buckets}
  </Ranker>
</View>
"""


def _choices(values: Sequence[str]) -> str:
    return "\n".join(f'        <Choice value="{value}"/>' for value in values)


def _image_block(number: int) -> str:
    ratings = "\n".join(
        f'      <Header value="{html.escape(question)}" size="5"/>\n'
        f'      <Rating name="{aspect}_{number}" toName="image_{number}" maxRating="{MOST_POINTS}"/>'
        for aspect, question in _QUESTIONS.items()
    )
    return f"""    <View className="image">
      <Header value="Image {number}" size="4"/>
      <Image name="image_{number}" value="$image_{number}" width="100%"/>
{ratings}
      <Choices name="issues_{number}" toName="image_{number}" choice="multiple" showInline="true">
{_choices(ISSUES)}
      </Choices>
    </View>"""


def labelling_task(prompt_id: str, prompt: str, image_ids: Sequence[str], address: str) -> dict[str, Any]:
    """Returns one task: `data` as the configuration reads it. `address` precedes `<image id>.png`."""
    data = {"prompt_id": prompt_id, "prompt": prompt, "image_ids": list(image_ids), "items": []}
    for number, name in enumerate(image_ids, start=1):
        data[f"image_{number}"] = picture = f"{address}{name}.png"
        shown = f'<img alt="image {number}" src="{html.escape(picture)}"/> {number}'
        data["items"].append({"id": name, "html": shown})
    return {"data": data}


def exported_annotation(
    ranking: dict[str, Any], ratings: Iterable[dict[str, Any]], shown: Sequence[str]
) -> dict[str, Any]:
    """Returns a ranking and its ratings in Label Studio's export form, for a task that shows `shown`."""
    slots: dict[str, list[str]] = {f"slot_{slot}": [] for slot in range(1, SLOTS + 1)}
    for name, rank in zip(ranking["image_ids"], ranking["ranks"], strict=True):
        slots[f"slot_{rank}"].append(name)
    result = [_result("ranking", "items", "ranker", {"ranker": slots})]
    created = ""
    for row in ratings:
        number = shown.index(row["image_id"]) + 1
        created = row["created"] or created
        for aspect in ASPECTS:
            # NaN, the only value different from itself, is an image that was not rated.
            if row[aspect] == row[aspect] and row[aspect] is not None:
                # The table has floats; Label Studio shows a whole number of stars.
                points = int(row[aspect]) if row[aspect] == int(row[aspect]) else row[aspect]
                result.append(_result(f"{aspect}_{number}", f"image_{number}", "rating", {"rating": points}))
        if len(row["issues"]):
            flags = {"choices": list(row["issues"])}
            result.append(_result(f"issues_{number}", f"image_{number}", "choices", flags))
    seconds = ranking["seconds"]
    return {
        "result": result,
        "completed_by": completed_by(ranking["annotator_id"]),
        "was_cancelled": False,
        "ground_truth": bool(ranking["is_gold"]),
        "lead_time": seconds if seconds == seconds else None,
        "created_at": created,
    }


def _result(control: str, shown: str, kind: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"from_name": control, "to_name": shown, "type": kind, "value": value}


def export_tasks(
    pool: Path, out: Path, address: str, images_per_task: int, tasks_per_prompt: int, seed: int
) -> dict[str, int]:
    """Writes the folder for the pool's images, without annotations; returns tasks by their number of images."""
    images = read_image_rows(pool)
    prompts = dict(zip(images["prompt_id"], images["prompt"], strict=True))
    tasks = [
        labelling_task(task.prompt_id, prompts[task.prompt_id], task.image_ids, address)
        for task in set_tasks(images, images_per_task, tasks_per_prompt, seed)
    ]
    return _write(tasks, pool, out)


def export_annotated(pool: Path, annotations: Path, out: Path, address: str) -> dict[str, int]:
    """Writes the folder for the annotated tasks, with the judgements of Label Studio's annotators."""
    rankings = read_table(annotations / "rankings.parquet", RANKING)
    ratings = read_table(annotations / "ratings.parquet", RATING)
    if other := sorted(set(rankings["source"]) - {SOURCE}):
        raise UserError(f"{annotations} has annotations of {other}: only those of Label Studio go back into it")
    images = read_image_rows(pool)
    prompts = dict(zip(images["prompt_id"], images["prompt"], strict=True))
    rated = defaultdict(list)
    for row in ratings.to_dict("records"):
        rated[row["task_id"], row["annotator_id"]].append(row)
    said: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(dict)
    if (annotations / "prompts.parquet").exists():
        for row in read_table(annotations / "prompts.parquet", PROMPT_ANNOTATION).itertuples():
            flags = {"category": [row.category] if row.category else [], "problems": list(row.problems)}
            said[row.task_id, row.annotator_id] = flags
    tasks: dict[str, dict[str, Any]] = {}
    for row in rankings.to_dict("records"):
        shown = list(row["image_ids"])
        task = tasks.setdefault(
            row["task_id"],
            labelling_task(row["prompt_id"], prompts[row["prompt_id"]], shown, address) | {"annotations": []},
        )
        # A reference answer has no ratings; its annotator's ratings belong to the annotation beside it.
        of_row = [] if row["is_gold"] else rated[row["task_id"], row["annotator_id"]]
        annotation = exported_annotation(row, of_row, task["data"]["image_ids"])
        for name, flags in said[row["task_id"], row["annotator_id"]].items():
            if flags and not row["is_gold"]:
                annotation["result"].append(_result(name, "image_1", "choices", {"choices": flags}))
        task["annotations"].append(annotation)
    return _write(list(tasks.values()), pool, out)


def _write(tasks: list[dict[str, Any]], pool: Path, out: Path) -> dict[str, int]:
    if out.exists():
        raise UserError(f"{out} exists: give a new folder, or remove it")
    if not tasks:
        raise UserError(f"{pool} has no prompt with two images: there is nothing to rank")
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for task in tasks:
        groups[len(task["data"]["image_ids"])].append(task)
    wanted = {name for task in tasks for name in task["data"]["image_ids"]}
    with replace_folder(out) as folder:
        for count, group in groups.items():
            place = folder / f"{count}_images"
            write_json(place / "tasks.json", group)
            write_text_atomically(place / "labelling.xml", labelling_configuration(count))
        (folder / "images").mkdir()
        for row in read_images([pool], wanted):
            # Encoded anew, without metadata. No atomic write: the whole folder is moved into place at the end.
            (folder / "images" / f"{row.image_id}.png").write_bytes(png_of(pixels_of(row.png)))
    return {f"{count}_images": len(group) for count, group in sorted(groups.items())}
