"""The prompts of the text-to-image branch: generated or read, decontaminated against the test split, split by prompt.

Files are JSON lines; a bad line never stops the reading.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from stages.foundations.errors import UserError
from stages.foundations.files import write_metrics
from stages.foundations.job import Job
from stages.foundations.params import chosen
from stages.foundations.seeds import derive_seed
from stages.foundations.tables import DROPPED, PROMPT, Funnel, prompt_id, write_table
from stages.images.algorithms.shape_world import KINDS, all_prompts
from stages.images.t2i_prompts.stage import FilePrompts, PromptFile, ShapePrompts, T2iPromptsParams
from stages.observe.tracking import track


def main(job: Job) -> None:
    """Makes the prompts and writes them and the drops, metrics last."""
    paths = job.paths
    with track(job.attempt()) as run:
        rows, funnel, metrics = make_prompts(job.sections["t2i_prompts"], job.seed)
        write_table(rows, paths.prompts, PROMPT)
        write_table(funnel.dropped_frame(), paths.dropped, DROPPED)
        write_metrics(paths.metrics, metrics, {paths.headline: {"kept": "rows/kept"}})
        run.summary(metrics)


Row = dict[str, str]
SPLITS = ("train", "validation", "test")


def make_prompts(params: T2iPromptsParams, seed: int) -> tuple[list[Row], Funnel, dict[str, float]]:
    """Returns rows of the `prompt` table in the order of their source, the funnel of dropped ones, and metrics.

    UserError where a split would be empty or too few prompts are left.
    """
    rng, contaminated = random.Random(derive_seed(seed, "t2i_prompts")), 0
    match chosen("t2i_prompts", params):
        case ShapePrompts():
            rows, funnel = _shape_prompts(params, rng)
        case FilePrompts():
            rows, funnel, contaminated = _file_prompts(params, rng)
    counts = Counter(row["split"] for row in rows)
    if empty := [split for split in SPLITS if not counts[split]]:
        raise UserError(f"t2i_prompts: no prompts are left for {', '.join(empty)}: name more of them")
    metrics = {f"prompts/{split}": counts[split] for split in SPLITS}
    return rows, funnel, {**metrics, "contamination/test_prompts": contaminated, **funnel.metrics(len(rows))}


def comparable(prompt: str) -> str:
    """Prompts with equal results here are one prompt: case and spaces do not count."""
    return " ".join(prompt.lower().split())


def _shape_prompts(params: ShapePrompts, rng: random.Random) -> tuple[list[Row], Funnel]:
    if unknown := sorted(set(params.max_of_kind) - set(KINDS)):
        raise UserError(f"t2i_prompts.max_of_kind: there are no kinds {unknown}, there are {', '.join(KINDS)}")
    rows = [
        {"prompt_id": prompt_id(prompt), "prompt": prompt, "split": "train", "source": f"shapes/{scene.kind}"}
        for prompt, scene in all_prompts().items()
    ]
    funnel, order = Funnel("t2i_prompts", len(rows)), rng.sample(range(len(rows)), len(rows))
    kept, seen = [], Counter[str]()
    for place in order:
        kind = rows[place]["source"].removeprefix("shapes/")
        if seen[kind] < params.max_of_kind.get(kind, len(rows)):
            seen[kind] += 1
            kept.append(place)
        else:
            funnel.drop(rows[place], "beyond_max_of_kind", f"{kind} has enough prompts")
    # Shuffled again, or a kind with a limit would come first, into the test split.
    rng.shuffle(kept)
    held_out = params.test_prompts + params.validation_prompts
    if held_out >= len(kept):
        raise UserError(f"t2i_prompts: {held_out} prompts to validate and test leave none of {len(kept)} to train")
    for place in kept[: params.test_prompts]:
        rows[place]["split"] = "test"
    for place in kept[params.test_prompts : held_out]:
        rows[place]["split"] = "validation"
    # In the world's order again, which a reader of the table can follow.
    return [rows[place] for place in sorted(kept)], funnel


def _file_prompts(params: FilePrompts, rng: random.Random) -> tuple[list[Row], Funnel, int]:
    """Returns rows, funnel, and how many test prompts were among the others."""
    lines = [line for name, source in params.sources.items() for line in read_prompts(name, source)]
    funnel = Funnel("t2i_prompts", len(lines))
    usable = [line for line in lines if _is_usable(line, params.max_prompt_characters, funnel)]
    # Before dropping duplicates: a train line must not displace the equal test line.
    tested = {comparable(line["prompt"]) for line in usable if line["split"] == "test"}
    rows: list[Row] = []
    seen: set[str] = set()
    contaminated: set[str] = set()
    for line in usable:
        text = comparable(line["prompt"])
        if line["split"] == "train" and text in tested:
            contaminated.add(text)
            funnel.drop(line, "contaminated", "it stands in the test split", line["row_id"])
        elif text in seen:
            funnel.drop(line, "duplicate_prompt", "it came before, but for case and spaces", line["row_id"])
        else:
            seen.add(text)
            told = {name: line[name] for name in ("prompt", "split", "source")}
            rows.append({"prompt_id": prompt_id(line["prompt"]), **told})
    train = [row for row in rows if row["split"] == "train"]
    if params.validation_prompts >= len(train):
        raise UserError(
            f"t2i_prompts.validation_prompts {params.validation_prompts} leaves none of {len(train)} prompts to train"
        )
    for row in rng.sample(train, params.validation_prompts):
        row["split"] = "validation"
    return rows, funnel, len(contaminated)


def _is_usable(line: dict[str, Any], most_characters: int, funnel: Funnel) -> bool:
    """Returns False for a line that is dropped, with its reason."""
    prompt, problem = line.get("prompt"), None
    if line["reason"]:
        problem = line["reason"], line["detail"]
    elif not isinstance(prompt, str):
        problem = "not_text", f"the prompt is {type(prompt).__name__}"
    elif not prompt.strip():
        problem = "empty_prompt", ""
    # JSON can hold half a character, Parquet cannot.
    elif prompt.encode("utf-8", "replace").decode() != prompt:
        line["prompt"] = repr(prompt)
        problem = "not_unicode", "half of a surrogate pair"
    elif len(prompt) > most_characters:
        problem = "too_long", f"{len(prompt)} characters"
    if problem is not None:
        funnel.drop(line, *problem, line["row_id"])
    return problem is None


MAX_LINE_BYTES = 1 << 20
"""Most bytes of a line: one without an end must not fill the memory."""


def read_prompts(name: str, source: PromptFile) -> Iterator[dict[str, Any]]:
    """Yields for each line: row_id, source, split, and prompt or the reason why there is none.

    UserError when the file is missing or is not JSONL at all.
    """
    path = Path(source.path)
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            # One byte more than the limit distinguishes a line that is too long from one that just fits.
            lines = iter(lambda: file.readline(MAX_LINE_BYTES + 1), b"")
            for number, line in enumerate(islice(lines, source.max_prompts)):
                common = {"row_id": f"{name}/{number}", "source": name, "split": source.split}
                yield {**common, **_prompt_of(line, source.prompt_field)}
    except FileNotFoundError:
        raise UserError(f"t2i_prompts.sources.{name}: {path} does not exist: correct `path`") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"t2i_prompts.sources.{name}: {path} cannot be read ({error}): fetch it again") from None


def _prompt_of(line: bytes, field: str) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        return {"reason": "line_too_long", "detail": f"more than {MAX_LINE_BYTES} bytes"}
    try:
        content = json.loads(line)
    # A line of a hundred thousand brackets ends in a RecursionError.
    except (ValueError, RecursionError) as error:
        return {"reason": "not_json", "detail": str(error)[:200]}
    if not isinstance(content, dict) or field not in content:
        return {"reason": "no_prompt_field", "detail": f"the line has no {field!r}"}
    return {"prompt": content[field], "reason": "", "detail": ""}
