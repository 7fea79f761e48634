"""Tasks and labelling configuration for Label Studio, and annotations as it would export them.

A prompt is hostile text in an annotator's browser: in `html` it is escaped, and as `$prompt` Label Studio shows it as
text. Images are referred to by address; their ids go along in the task, so that nothing has to be read out of an
address later. A configuration names its images one by one, so each number of images has a project of its own.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from stages.annotate.annotations import MOST_POINTS, SLOTS
from stages.annotate.label_studio import completed_by
from stages.foundations.tables.rating import ASPECTS, ISSUES

FEWEST, MOST = 2, 9
"""Images of a task; the paper has 4 to 9."""
_QUESTIONS = dict(
    zip(ASPECTS, ("Overall", "Follows the prompt", "Fidelity: no flaws, whatever was asked for"), strict=True)
)


def labelling_configuration(images: int) -> str:
    """The XML for tasks of so many images: three ratings and the issue flags of each, then a ranking in five slots.

    The style hides the ids that Label Studio 1.23 writes under each picture of the ranking: they push the slots apart.
    """
    blocks = "\n".join(map(_image_block, range(1, images + 1)))
    buckets = "\n".join(
        f'      <Bucket name="slot_{slot}" title="{slot}{_slot_words(slot)}"/>'
        for slot in range(1, SLOTS + 1)
    )
    return f"""<View>
  <Style>
    .images {{ display: flex; flex-wrap: wrap; gap: 1.5em; }}
    .image {{ width: 16em; }}
    .htx-ranker-item img {{ width: 100%; }}
    .htx-ranker-item p + p {{ display: none; }}
  </Style>
  <Header value="$prompt"/>
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


def _slot_words(slot: int) -> str:
    return {1: " (best)", SLOTS: " (worst)"}.get(slot, "")


def _image_block(number: int) -> str:
    ratings = "\n".join(
        f'      <Header value="{html.escape(question)}" size="5"/>\n'
        f'      <Rating name="{aspect}_{number}" toName="image_{number}" maxRating="{MOST_POINTS}"/>'
        for aspect, question in _QUESTIONS.items()
    )
    flags = "\n".join(f'        <Choice value="{issue}"/>' for issue in ISSUES)
    return f"""    <View className="image">
      <Header value="Image {number}" size="4"/>
      <Image name="image_{number}" value="$image_{number}" width="100%"/>
{ratings}
      <Choices name="issues_{number}" toName="image_{number}" choice="multiple" showInline="true">
{flags}
      </Choices>
    </View>"""


def labelling_task(
    prompt_id: str, prompt: str, image_ids: Sequence[str], addresses: Sequence[str]
) -> dict[str, Any]:
    """One task: `data` as the configuration reads it."""
    pictures = list(zip(image_ids, addresses, strict=True))
    items = [
        {"id": name, "html": f'<img alt="image {number}" src="{html.escape(address)}"/> {number}'}
        for number, (name, address) in enumerate(pictures, start=1)
    ]
    shown = {f"image_{number}": address for number, (_, address) in enumerate(pictures, start=1)}
    return {
        "data": {
            "prompt_id": prompt_id,
            "prompt": prompt,
            "image_ids": list(image_ids),
            "items": items,
            **shown,
        }
    }


def exported_annotation(
    ranking: dict[str, Any], ratings: Iterable[dict[str, Any]], shown: Sequence[str]
) -> dict[str, Any]:
    """A row of the ranking table and its ratings as Label Studio exports an annotation of a task that shows `shown`."""
    slots: dict[str, list[str]] = {f"slot_{slot}": [] for slot in range(1, SLOTS + 1)}
    for name, rank in zip(ranking["image_ids"], ranking["ranks"], strict=True):
        slots[f"slot_{rank}"].append(name)
    result = [_result("ranking", "items", "ranker", {"ranker": slots})]
    created = ""
    for row in ratings:
        number = shown.index(row["image_id"]) + 1
        created = row["created"] or created
        for aspect in ASPECTS:
            if row[aspect] == row[aspect] and row[aspect] is not None:  # NaN: not rated
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
