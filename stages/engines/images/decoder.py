"""Decodes foreign images in processes that can be killed: one that hangs, crashes or fills memory costs only itself."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy

from stages.engines.images.decoding import decode, prepare
from stages.engines.images.params import ImageParams
from stages.engines.workers.pool import Answer, StartError, WorkerLimits, WorkerPool


@dataclass(frozen=True)
class DecodedImage:
    """What became of a file: pixels, or a reason."""

    pixels: numpy.ndarray | None
    """uint8[height, width, 3]."""
    form: str = ""
    """png, jpeg or webp, by the content."""
    changes: tuple[str, ...] = ()
    """What was not plain RGB before (`decoding.decode`)."""
    reason: str = ""
    detail: str = ""


class ImageDecoder:
    """A context manager, whose end ends the workers; they start with the first image."""

    def __init__(self, params: ImageParams) -> None:
        self._params = params
        limits = WorkerLimits(params.memory_mib, params.timeout_seconds)
        self._pool = WorkerPool(decode, params.workers, limits, prepare=prepare)

    def decode(self, files: Sequence[bytes]) -> list[DecodedImage]:
        """One result for each file's bytes, in order. RuntimeError when no worker can be started."""
        most = int(self._params.max_file_mib * 2**20)
        # As base64, because the workers read JSON: no pickle crosses the border to what decodes a hostile file.
        limits = {"max_pixels": self._params.max_pixels, "min_side": self._params.min_side}
        asked = [
            self._pool.submit(content=base64.b64encode(content).decode(), **limits) if len(content) <= most else None
            for content in files
        ]
        return [
            DecodedImage(None, reason="image_too_large", detail=f"{len(content)} bytes, at most {most}")
            if answer is None
            else self._result(answer)
            for content, answer in zip(files, asked, strict=True)
        ]

    def __enter__(self) -> ImageDecoder:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    def _result(self, asked: Future[Answer]) -> DecodedImage:
        try:
            answer = asked.result()
        except StartError as error:
            raise RuntimeError(
                f"no process for decoding could be started ({error}): give it memory "
                f"(images.memory_mib is {self._params.memory_mib})"
            ) from error
        if answer.failure:
            detail = f"decoding {answer.failure} {answer.ending}".strip()
            return DecodedImage(None, reason="image_broken", detail=detail)
        found = answer.value
        if "reason" in found:
            return DecodedImage(None, reason=found["reason"], detail=found["detail"])
        flat = numpy.frombuffer(base64.b64decode(found["rgb"]), dtype=numpy.uint8)
        pixels = flat.reshape(found["height"], found["width"], 3)
        return DecodedImage(pixels, found["format"], tuple(found["changes"]))
