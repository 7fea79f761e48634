"""Annotations from any source: the checks that all of them pass, the two plain file formats, and the tasks.

`checked_tables` is the only check. Label Studio accepts a rating of 99, a rating "a", an unknown image and an image in
two slots. Below it: how an annotation file is read, and which images a task shows.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas

from stages.foundations.errors import UserError
from stages.foundations.files import stable_hash
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import (
    ASPECTS,
    ISSUES,
    PROMPT_ANNOTATION,
    PROMPT_CATEGORIES,
    PROMPT_PROBLEMS,
    RANKING,
    RATING,
    Funnel,
    prompt_id,
)

SLOTS = 5
"""Slots of a ranking; the first is best."""
MOST_IN_SLOT = 2
"""Images that the paper's annotators may put into one slot."""
MOST_POINTS = 7
"""Most points of a rating; the least is 1."""


class Refused(Exception):
    """A reason and a detail: the annotation is dropped."""


@dataclass(frozen=True)
class Annotation:
    """One annotator's judgement of the images of one task, unchecked."""

    row_id: str
    """Its place in the file."""
    prompt_id: str
    annotator_id: str
    """Empty for an anonymous vote."""
    source: str
    image_ids: Sequence[str]
    """The images that were shown."""
    ranks: Mapping[str, Any]
    """Image -> slot."""
    ratings: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    """(image, aspect) -> points; absent ones were not rated."""
    issues: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Image -> flags."""
    seconds: Any = None
    created: str = ""
    weight: Any = 1.0
    is_gold: bool = False
    occasion: str = ""
    """Distinguishes tasks with equal images."""
    is_anonymous: bool = False
    """Does not depend on the annotator."""
    category: Any = ""
    """Of the prompt; empty where it was not asked."""
    problems: Sequence[Any] = ()
    """Of the prompt."""

    @property
    def task_id(self) -> str:
        """Returns a hash of the prompt and the images, in any order."""
        return stable_hash([self.prompt_id, sorted(map(str, self.image_ids)), self.occasion])[:16]


@dataclass(frozen=True)
class Known:
    """The existing prompts and images."""

    prompts: Mapping[str, str]
    """Prompt id -> prompt."""
    images: Mapping[str, str]
    """Image id -> the id of its prompt."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The original name of a foreign image -> its id."""

    def image(self, name: str) -> str:
        """Returns the id of an image given by its id or its foreign name; `name` itself where neither is known."""
        return self.names.get(name, name)


def checked_tables(
    annotations: Iterable[Annotation | tuple[str, str, str]], known: Known
) -> tuple[pandas.DataFrame, pandas.DataFrame, Funnel, Counter[str]]:
    """Returns rankings, ratings, the drops with their reasons, and warnings.

    An annotation is dropped as a whole: if one value is wrong, none can be trusted. A reader's refusal is
    (row id, reason, detail). Of several annotations by one annotator on one task the latest counts.
    """
    annotations, funnel, warnings = list(annotations), Funnel("annotate", 0), Counter[str]()
    problematic = prompts_with_problems(prompt_annotations(annotations, known))
    accepted: dict[tuple[str, str, bool], tuple[Annotation, list[int]]] = {}
    for number, one in enumerate(annotations):
        funnel.rows_in += 1
        if isinstance(one, tuple):
            row_id, reason, detail = one
            funnel.drop({}, reason, detail, row_id)
            continue
        try:
            ranks = _checked(one, known, problematic)
        except Refused as refused:
            _drop(funnel, one, *refused.args)
            continue
        if max(Counter(ranks).values()) > MOST_IN_SLOT and not one.is_gold:
            warnings["warnings/too_many_in_slot"] += 1
        # Anonymous votes are all kept: whether two of them are from one voter is unknown.
        key = (one.task_id, one.annotator_id or f"anonymous {number}", one.is_gold)
        if key in accepted:
            # Stable: where both have the same time, or none, the later one in the file counts.
            older, newer = sorted([accepted[key], (one, ranks)], key=lambda pair: pair[0].created)
            _drop(funnel, older[0], "duplicate_annotation", f"{newer[0].row_id} is the same annotator's later one")
            accepted[key] = newer
        else:
            accepted[key] = (one, ranks)
    rankings = [
        _shared(one)
        | {"is_gold": one.is_gold, "image_ids": list(one.image_ids), "ranks": ranks, "weight": float(one.weight)}
        for one, ranks in accepted.values()
    ]
    ratings = [row for one, _ in accepted.values() for row in _ratings(one)]
    return (
        pandas.DataFrame(rankings, columns=RANKING.names),
        pandas.DataFrame(ratings, columns=RATING.names),
        funnel,
        warnings,
    )


def prompt_annotations(annotations: Iterable[Annotation | Refusal], known: Known) -> pandas.DataFrame:
    """Returns the table of what was said of prompts; annotations that say nothing of it have no row."""
    said = [one for one in annotations if isinstance(one, Annotation) and (one.category or one.problems)]
    rows = []
    for one in sorted(said, key=lambda one: one.created):
        # `checked_tables` counts the rejected rows.
        with suppress(Refused):
            _check_prompt(one, known)
            rows.append({name: getattr(one, name) for name in PROMPT_ANNOTATION.names})
    # Of several annotations by one annotator on one task the latest counts.
    return pandas.DataFrame(rows, columns=PROMPT_ANNOTATION.names).drop_duplicates(
        ["task_id", "annotator_id"], keep="last"
    )


def prompts_with_problems(said: pandas.DataFrame) -> set[str]:
    """Returns the ids of prompts in which at least half of the annotations see a problem."""
    shares = said["problems"].map(len).gt(0).groupby(said["prompt_id"]).mean()
    return set(shares.index[shares >= 0.5])


def _check_prompt(one: Annotation, known: Known) -> None:
    if one.prompt_id not in known.prompts:
        raise Refused("unknown_prompt", f"the table of prompts lacks {one.prompt_id!r}"[:200])
    if not one.annotator_id and not one.is_anonymous:
        raise Refused("unknown_annotator", "it does not say whose it is")
    if one.category and one.category not in PROMPT_CATEGORIES:
        raise Refused("unknown_category", f"{one.category!r}"[:200])
    if unknown := [problem for problem in one.problems if problem not in PROMPT_PROBLEMS]:
        raise Refused("unknown_problem", f"{unknown[0]!r}"[:200])


def _checked(one: Annotation, known: Known, problematic: Collection[str]) -> list[int]:
    """Returns the ranks in the order of the images; raises Refused with the first error."""
    _check_prompt(one, known)
    # Before the images: an annotator who sees a problem need not rank them.
    if one.prompt_id in problematic:
        raise Refused("problem_prompt", f"annotators see a problem in {known.prompts[one.prompt_id]!r}"[:200])
    for name in (*one.image_ids, *one.ranks):
        # An image of another prompt counts as unknown.
        if known.images.get(name) != one.prompt_id or name not in one.image_ids:
            raise Refused("unknown_image", f"{name!r} is no image of this task"[:200])
    if len(set(one.image_ids)) < 2:
        raise Refused("one_image_only", "a ranking needs two different images")
    ranks = _checked_ranks(one)
    _check_ratings(one)
    if not _is_amount(one.weight):
        raise Refused("weight_out_of_range", f"{one.weight!r} is no weight of a vote"[:200])
    if one.seconds is not None and not _is_amount(one.seconds):
        raise Refused("seconds_out_of_range", f"{one.seconds!r}"[:200])
    return ranks


def _checked_ranks(one: Annotation) -> list[int]:
    if len(set(one.image_ids)) < len(one.image_ids):
        raise Refused("image_in_two_slots", "the task shows an image twice")
    if missing := [name for name in one.image_ids if name not in one.ranks]:
        raise Refused("rank_missing", f"{len(missing)} of {len(one.image_ids)} images have no slot")
    ranks = [one.ranks[name] for name in one.image_ids]
    for rank in ranks:
        # In Python True is an integer and would be slot 1.
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= SLOTS:
            raise Refused("rank_out_of_range", f"{rank!r} is none of the slots 1 to {SLOTS}"[:200])
    return ranks


def _check_ratings(one: Annotation) -> None:
    for points in one.ratings.values():
        # Only NaN differs from itself.
        if isinstance(points, bool) or not isinstance(points, (int, float)) or points != points:
            raise Refused("rating_not_a_number", f"{points!r}"[:200])
        if not 1 <= points <= MOST_POINTS:
            raise Refused("rating_out_of_range", f"{points!r} is not within 1 to {MOST_POINTS}"[:200])
    for name, flags in one.issues.items():
        if unknown := [flag for flag in flags if flag not in ISSUES]:
            raise Refused("unknown_issue", f"{unknown[0]!r} of {name!r}"[:200])


def _is_amount(value: Any) -> bool:
    # Bounded, because JSON has 1e400, and a sum with infinity is not a measure; NaN fails the comparison.
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 <= value < 1e12


def _drop(funnel: Funnel, one: Annotation, reason: str, detail: str) -> None:
    row = {name: value for name, value in asdict(one).items() if name not in ("ratings", "issues")}
    funnel.drop(row, reason, detail, one.row_id)


def _shared(one: Annotation) -> dict[str, Any]:
    return {name: getattr(one, name) for name in ("task_id", "prompt_id", "annotator_id", "source", "seconds")}


def _ratings(one: Annotation) -> list[dict[str, Any]]:
    """Returns a row for each image that was rated or flagged; none of a reference answer."""
    judged = {name for name, _ in one.ratings} | {name for name, flags in one.issues.items() if flags}
    return [
        _shared(one)
        | {"image_id": name, "created": one.created, "issues": list(one.issues.get(name, []))}
        | {aspect: one.ratings.get((name, aspect)) for aspect in ASPECTS}
        for name in one.image_ids
        if name in judged and not one.is_gold
    ]


Refusal = tuple[str, str, str]
"""Row id, reason, detail."""
Found = Iterator[Annotation | Refusal]
"""The output of a reader of any format. `checked_tables` drops the rejected rows with the others."""
MAX_BYTES = 1 << 30
"""Bytes of a file, unpacked."""


def json_rows(content: bytes, file_name: str) -> list[Any]:
    """Returns the rows of a JSON list or of JSON lines, gzipped or not; a line that is not JSON is None.

    UserError when it is neither. Half characters, which JSON allows and UTF-8 does not, become question marks.
    """
    # Gzip by its first bytes and not by its name. Unpacking is bounded: a file of megabytes may contain gigabytes.
    if content[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(content)) as unpacked:
                content = unpacked.read(MAX_BYTES + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{file_name} is a damaged gzip file: {error}") from None
        if len(content) > MAX_BYTES:
            raise UserError(f"{file_name} unpacks to more than {MAX_BYTES >> 20} MiB: split it")
    text = content.decode("utf-8", "replace").lstrip("\ufeff")
    # Lines that are not JSON become dropped rows; a list that is not JSON has no rows to count.
    if text.lstrip().startswith("["):
        rows = _loads(text)
        if not isinstance(rows, list):
            raise UserError(f"{file_name} is not JSON: export it again")
        return rows
    # Not by `splitlines`, which also cuts at characters that may occur inside a prompt.
    rows = [_loads(line) for line in text.split("\n") if line.strip()]
    if not any(isinstance(row, dict) for row in rows):
        raise UserError(f"{file_name} is neither a JSON list nor JSON lines")
    return rows


def _loads(text: str) -> Any:
    try:
        # Python would read NaN and Infinity, which are not JSON. They are kept as texts here, and rejected later as no
        # numbers.
        row = json.loads(text, parse_constant=str)
        # Once through bytes: half characters become question marks, which Parquet can store.
        return json.loads(json.dumps(row, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def ranking_annotations(rows: list[Any], file_name: str, known: Known) -> Found:
    """Yields rankings of the paper's form; one without `annotator` is anonymous."""
    for number, row in enumerate(rows):
        row_id = f"{file_name}:{number}"
        images, ranks = (row.get("generations"), row.get("ranking")) if isinstance(row, dict) else (None, None)
        if not isinstance(images, list) or not isinstance(ranks, list) or not isinstance(row.get("prompt"), str):
            yield row_id, "malformed_row", "needs `prompt`, `generations` and `ranking`"
            continue
        names = [known.image(_text(name)) for name in images]
        annotator = row.get("annotator", "")
        yield Annotation(
            row_id,
            prompt_id(row["prompt"]),
            annotator if isinstance(annotator, str) else "",
            file_name,
            names,
            # Fewer ranks than images are not an error of this reader: the check reports `rank_missing`.
            dict(zip(names, ranks, strict=False)),
            is_anonymous="annotator" not in row,
        )


def vote_annotations(rows: list[Any], file_name: str, known: Known) -> Found:
    """Yields each vote of Rapidata's form as an anonymous ranking of two, whose weight is the voter's score."""
    for number, row in enumerate(rows):
        row_id, told = f"{file_name}:{number}", row if isinstance(row, dict) else {}
        prompt, *pair = (told.get(name) for name in ("prompt", "image_a", "image_b"))
        votes = told.get("votes")
        if not isinstance(votes, list) or not all(isinstance(text, str) for text in (prompt, *pair)):
            yield row_id, "malformed_row", "needs `votes`, and `prompt`, `image_a` and `image_b` as texts"
            continue
        images = [known.image(name) for name in pair]
        for index, vote in enumerate(votes):
            vote_id = f"{row_id}:{index}"
            if not isinstance(vote, Mapping):
                yield vote_id, "malformed_row", "a vote needs `votedFor` and `userScore`"
                continue
            # Rapidata names the winner by its file, the pair by its path; with two equal file names neither won.
            chosen = [name for name in pair if vote.get("votedFor") in (name, Path(name).name)]
            ranks = (
                {image: 1 if name == chosen[0] else 2 for name, image in zip(pair, images, strict=True)}
                if len(chosen) == 1
                else {_text(vote.get("votedFor")): 1}
            )
            yield Annotation(
                vote_id,
                prompt_id(prompt),
                "",
                file_name,
                images,
                ranks,
                weight=vote.get("userScore"),
                # Rows may repeat a pair, and each row is a separate comparison with separate voters.
                occasion=str(number),
                is_anonymous=True,
            )


def _text(name: Any) -> Any:
    """A list or an object as an image's name matches no image."""
    return name if isinstance(name, str) else repr(name)[:200]


@dataclass(frozen=True)
class Task:
    """Images of a prompt that are ranked side by side."""

    prompt_id: str
    image_ids: tuple[str, ...]


def set_tasks(images: pandas.DataFrame, images_per_task: int, tasks_per_prompt: int, seed: int) -> list[Task]:
    """Returns tasks of each prompt's images, rows of the pool: no image twice, generators mixed evenly.

    The last task of a prompt may have fewer images, but never one.
    """
    tasks = []
    for prompt, rows in images.groupby("prompt_id", sort=True):
        drawn = random.Random(derive_seed(seed, "tasks", prompt))
        left: dict[str, list[str]] = {}
        # Sorted, or the pool's order of writing would decide which images are shown together.
        for image_id, generator in sorted(zip(rows["image_id"], rows["generator"], strict=True)):
            left.setdefault(generator, []).append(image_id)
        for image_ids in left.values():
            drawn.shuffle(image_ids)
        # One image of each generator in turn: a task should compare generators, not samples of one.
        mixed = []
        while any(left.values()):
            turn = [name for name in sorted(left) if left[name]]
            drawn.shuffle(turn)
            mixed += [left[name].pop() for name in turn]
        cut = [tuple(mixed[start : start + images_per_task]) for start in range(0, len(mixed), images_per_task)]
        tasks += [Task(prompt, part) for part in cut[:tasks_per_prompt] if len(part) > 1]
    return tasks
