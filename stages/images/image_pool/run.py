"""Gathers the images of a round: those of generators, then those of the foreign list; each once, safely decoded."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy

from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool
from stages.foundations.errors import UserError
from stages.foundations.files import require_sha256, write_metrics
from stages.foundations.job import Job
from stages.foundations.tables import DROPPED, IMAGE, PROMPT, Funnel, prompt_id, read_table, write_table
from stages.images.engines.pictures.params import ForeignImages, ImageParams, RankingRoundParams
from stages.images.engines.pictures.shards import image_id, image_row, read_image_rows, write_shards, written_shards
from stages.images.image_pool.decoding import decode, prepare
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Decodes the round's images, writes the pool and the dropped rows, metrics last; UserError when none is left."""
    paths = job.paths
    params: ImageParams = job.sections["images"]
    this_round: RankingRoundParams = job.sections["ranking_rounds"]
    prompts = read_table(paths.prompts, PROMPT)
    with track(job.attempt(round=job.item)) as run:
        entries = generated_entries(paths.generated)
        if this_round.foreign is not None:
            entries = chain(entries, foreign_entries(this_round.foreign, int(params.max_file_mib * 2**20)))
        funnel, noted = Funnel("image_pool", 0), Counter[str]()
        known = dict(zip(prompts["prompt_id"], prompts["prompt"], strict=True))
        kept = write_shards(sound_images(entries, known, params, funnel, noted), paths.pool, params.images_per_shard)
        counts = funnel.metrics(kept)
        if not kept:
            raise UserError(
                f"round `{job.item}` has no image ({counts}): name it as `ranking_round` of a generator, or give "
                f"ranking_rounds.{job.item}.foreign"
            )
        with_images = read_image_rows(paths.pool)["prompt_id"].nunique()
        metrics = {**counts, **noted, "prompts/with_images": with_images}
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)


AT_ONCE = 64
"""Images that are in memory at a time."""
Entry = dict[str, Any]
"""Facts about an image, `content` (bytes) or None, and `reason` and `detail` if it is already rejected."""


def generated_entries(folder: Path) -> Iterator[Entry]:
    """Yields the rows of a round's shards; none where no generator works for the round."""
    for path in written_shards(folder):
        for row in read_table(path, IMAGE).to_dict("records"):
            yield {**row, "name": "", "content": row.pop("png"), "is_foreign": False}


def foreign_entries(foreign: ForeignImages, max_bytes: int) -> Iterator[Entry]:
    """Yields the rows of a list of foreign images. UserError when the list is missing or has another hash."""
    root, path = Path(foreign.folder).resolve(), Path(foreign.list_path)
    if not path.is_file():
        raise UserError(f"{path} does not exist: correct `foreign.list_path` of the round")
    require_sha256(path, foreign.sha256, "which `foreign` of the round names: correct one of them")
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield {**_read_line(line, root, max_bytes), "name": f"{path.name}:{number}", "is_foreign": True}


def _read_line(line: str, root: Path, max_bytes: int) -> Entry:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("image", "prompt")):
        return {"content": None, "reason": "malformed_row", "detail": f"needs `image` and `prompt`: {line[:100]!r}"}
    # Half a character, which JSON allows and UTF-8 does not, becomes a question mark.
    row = {key: str(value).encode("utf-8", "replace").decode() for key, value in row.items()}
    entry = {
        "prompt_id": prompt_id(row["prompt"]),
        "prompt": row["prompt"],
        "generator": row.get("generator", ""),
        "seed": -1,
        "source": row["image"],
        "licence": row.get("licence", ""),
        "content": None,
    }
    try:
        # Links are followed first: their target must be inside too.
        path = (root / row["image"]).resolve()
        is_inside = path.is_relative_to(root) and path.is_file()
        size = path.stat().st_size if is_inside else 0
    except (OSError, ValueError):
        is_inside, size = False, 0
    if not is_inside:
        return entry | {"reason": "image_missing", "detail": f"no file {row['image']!r} in the folder"}
    if size > max_bytes:
        return entry | {"reason": "image_too_large", "detail": f"{size} bytes, at most {max_bytes}"}
    # Only now is the file read: a file that is too large has returned above.
    content = path.read_bytes()
    if (listed := row.get("sha256")) is not None and hashlib.sha256(content).hexdigest() != listed:
        return entry | {"reason": "image_changed", "detail": "the file has another sha256 than the list says"}
    return entry | {"content": content}


def sound_images(
    entries: Iterator[Entry], prompts: Mapping[str, str], params: ImageParams, funnel: Funnel, noted: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yields the rows of the pool, in the entries' order; `funnel` gets the others, `noted` the unusual properties."""
    names: dict[str, str] = {}
    """Image id -> name of the first image with these pixels."""
    with ImageDecoder(params) as decoder:
        while part := list(islice(entries, AT_ONCE)):
            for entry in part:
                funnel.rows_in += 1
                if "reason" not in entry and prompts.get(entry["prompt_id"]) != entry["prompt"]:
                    detail = f"the table of prompts lacks {entry['prompt'][:100]!r}"
                    entry |= {"reason": "unknown_prompt", "detail": detail}
            sound = [entry for entry in part if "reason" not in entry]
            # Generated images also go through the confined workers: the shards may be from another source.
            images = decoder.decode([entry["content"] for entry in sound])
            for entry, image in zip(sound, images, strict=True):
                if "reason" in image:
                    entry |= image
                    continue
                name = image_id(image["pixels"])
                if name in names:
                    entry |= {"reason": "duplicate_image", "detail": f"the pixels of {names[name]}"}
                    continue
                names[name] = entry["source"] if entry["is_foreign"] else name
                noted.update(f"image_mode/{change}" for change in image["changes"])
                noted["images/foreign" if entry["is_foreign"] else "images/generated"] += 1
                ending = Path(entry["source"]).suffix.lower().removeprefix(".")
                if entry["is_foreign"] and {"jpg": "jpeg"}.get(ending, ending) != image["format"]:
                    noted["image_mode/mislabelled"] += 1
                known = {key: entry[key] for key in ("prompt_id", "prompt", "generator", "seed", "source", "licence")}
                # Hash of the original file, so that the list's author can find it; the row's PNG is encoded anew.
                sha256 = hashlib.sha256(entry["content"]).hexdigest()
                yield image_row(image["pixels"], **known) | {"file_sha256": sha256}
            # After the sound ones, for the whole part: dropped rows are in the order of the entries.
            for entry in part:
                if "reason" in entry:
                    row = {key: value for key, value in entry.items() if key not in ("content", "reason", "detail")}
                    funnel.drop(row, entry["reason"], entry["detail"], entry["name"] or entry["image_id"])


class ImageDecoder:
    """A context manager, whose end ends the workers; they start with the first image."""

    def __init__(self, params: ImageParams) -> None:
        self._params = params
        limits = WorkerLimits(params.memory_mib, params.timeout_seconds)
        self._pool = WorkerPool(decode, params.workers, limits, prepare=prepare)

    def decode(self, files: Sequence[bytes]) -> list[dict[str, Any]]:
        """Returns for each file's bytes, in order, `pixels` (uint8[height, width, 3]) and what `decoding.decode` tells.

        Instead of pixels there may be `reason` and `detail`. RuntimeError when no worker can be started.
        """
        most = int(self._params.max_file_mib * 2**20)
        # As base64, because the workers read JSON: no pickle reaches the process that decodes a hostile file.
        limits = {"max_pixels": self._params.max_pixels, "min_side": self._params.min_side}
        answers = [
            self._pool.submit(content=base64.b64encode(content).decode(), **limits) if len(content) <= most else None
            for content in files
        ]
        return [
            self._result(answer)
            if answer is not None
            else {"reason": "image_too_large", "detail": f"{len(content)} bytes, at most {most}"}
            for content, answer in zip(files, answers, strict=True)
        ]

    def __enter__(self) -> ImageDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def _result(self, future: Future[Answer]) -> dict[str, Any]:
        try:
            answer = future.result()
        except StartError as error:
            raise RuntimeError(
                f"no process for decoding could be started ({error}): give it memory "
                f"(images.memory_mib is {self._params.memory_mib})"
            ) from error
        if answer.failure:
            return {"reason": "image_broken", "detail": f"decoding {answer.failure} {answer.ending}".strip()}
        image = answer.value
        if "rgb" in image:
            flat = numpy.frombuffer(base64.b64decode(image.pop("rgb")), dtype=numpy.uint8)
            image["pixels"] = flat.reshape(image["height"], image["width"], 3)
        return image
