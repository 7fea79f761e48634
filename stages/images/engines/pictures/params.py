"""Parameters of the sections `images` and `ranking_rounds`, and the number of ranked pictures per prompt."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from stages.foundations.params import StrictParams

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ImageParams(StrictParams):
    """Section `images`: limits for an image, and for the cost of decoding it."""

    max_pixels: int = Field(ge=1)
    """Width times height, checked before decoding."""
    max_file_mib: float = Field(gt=0)
    """Of one file."""
    min_side: int = Field(ge=1)
    """Of width and height, in pixels."""
    timeout_seconds: float = Field(gt=0)
    """Seconds of computing for one image. If a process stalls for 20 times as long, the image is tried again, then the
    stage stops."""
    memory_mib: int = Field(ge=256)
    """Address space of the process that decodes."""
    workers: int = Field(ge=1)
    """Processes that decode."""
    images_per_shard: int = Field(ge=1)
    """Rows of one file of the pool."""


class ForeignImages(StrictParams):
    """Images from elsewhere: a folder, and a list that describes them."""

    folder: str
    """Paths in the list start here, and may not leave it."""
    list_path: str
    """JSON lines: `image` (path) and `prompt`, which must be in the table of prompts; `generator`, `licence` and
    `sha256` of the file where they are known."""
    sha256: Sha256
    """Hash of the list's bytes: nothing else detects a change of it."""


class AnnotationFile(StrictParams):
    """People's judgements of the round's images."""

    path: str
    """A Label Studio export, rankings or votes, as `annotate.kind` says."""
    sha256: Sha256
    """Hash of the file's bytes: nothing else detects a change of it."""


class RankingRoundParams(StrictParams):
    """One entry of section `ranking_rounds`: foreign images, and people's judgements."""

    foreign: ForeignImages | None
    """null: only images of generators."""
    annotations: AnnotationFile | None
    """null where `annotate.kind` is panel."""
    also: str
    """An earlier round whose annotations count as well; the round's own name if there is none."""
