"""Parameters and paths of stage `collect_web`, and its description for other modules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from stages.foundations.page_formats import FormatName
from stages.foundations.params import StrictParams
from stages.foundations.stage import About, Stage

Fraction = Annotated[float, Field(ge=0, le=1)]


class GeneratedPages(StrictParams):
    """Parameters common to generated exercise pages of all topics: see generated_pages.py."""

    exercises: int = Field(ge=1)
    """Different exercises; repeated ones are added to these."""
    exercises_per_page: int = Field(ge=1)
    answer_only: Fraction
    """Share of solutions that only state the right answer."""
    unfinished: Fraction
    """Share of solutions that stop before they state an answer."""
    rambling: Fraction
    """Share of solutions that continue after they have found the answer."""
    rambling_without_end: Fraction
    """Share of the rambling solutions that never state an answer."""
    missing_solution: Fraction
    """Share of exercises without a solution."""
    missing_answer: Fraction
    """Share of exercises without a short answer beside the solution."""
    wrong_answer: Fraction
    """Share of the short answers that are wrong."""
    repeated: Fraction
    """Share of exercises that occur on a second page in slightly other words."""
    licence: str

    @model_validator(mode="after")
    def _shares_add_up(self) -> GeneratedPages:
        if self.answer_only + self.rambling + self.unfinished > 1:
            raise ValueError("answer_only + rambling + unfinished is more than 1: lower one of them")
        return self


class ArithmeticPages(GeneratedPages):
    """Generated pages of the laptop task family, as noisy as the web: see generated_pages.py.

    All other solutions work step by step; a rambling solution works the steps again one, two or four times.
    """

    kind: Literal["arithmetic_pages"]
    step_error: Fraction
    """Probability that a written step is wrong, in every solution that shows steps."""


class DigitPages(GeneratedPages):
    """Generated pages of the task family "digits": see generated_pages.py. All other solutions are a search."""

    kind: Literal["digit_pages"]
    sizes: dict[Annotated[int, Field(ge=2, le=9)], Annotated[float, Field(gt=0)]] = Field(min_length=1)
    """Number of digits -> relative frequency."""
    coefficients: list[Annotated[int, Field(ge=1)]] = Field(min_length=1)
    """Factors of A and B, all equally likely."""
    jump: Fraction
    """Share of solutions that give up after a few trials and state the right answer."""
    slip: Fraction
    """Probability that the sum of a trial is wrong."""
    retry: Fraction
    """Probability that a trial is written twice."""
    near_misses: Fraction
    """Share of searches that begin with the pairs closest to the target."""

    @model_validator(mode="after")
    def _shares_add_up(self) -> DigitPages:
        # In place of the check above, which does not know `jump`.
        if self.answer_only + self.jump + self.rambling + self.unfinished > 1:
            raise ValueError("answer_only + jump + rambling + unfinished is more than 1: lower one of them")
        return self


class FolderPages(StrictParams):
    """Files of a folder, one page each; the file's ending gives the format."""

    kind: Literal["folder"]
    path: str
    """Folder, absolute or relative to the project's root."""
    glob: str
    """Which files, for example `**/*.html`."""
    licence: str
    """Licence of all of them."""


class FirstPages(StrictParams):
    """Parameters common to sources that have an order."""

    max_pages: int | None = Field(ge=1)
    """Pages read at most, from the beginning; null reads all."""


class JsonlPages(FirstPages):
    """One page per line of a JSONL file, also `.gz`."""

    kind: Literal["jsonl"]
    path: str
    content_field: str
    """Field that holds the page's source text."""
    url_field: str
    """Field that holds its address."""
    id_field: str
    """Field that names it; names are unique within the source."""
    format: FormatName
    licence: str


Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ListedPages(FirstPages):
    """Pages behind pinned URLs, from a list in a file; the URL's ending gives the format."""

    kind: Literal["listed"]
    path: str
    """The list, from the project's root: tab-separated, the header `url`, `sha256`, `bytes`, one page per line."""
    sha256: Sha256
    """Hash of the list: DVC reads the parameters and not the list, so a change of the list must appear here."""
    licence: str


class WarcPages(FirstPages):
    """Responses of a WARC archive, compressed or not, in any format that `extract_web` reads."""

    kind: Literal["warc"]
    path: str
    licence: str


WebSource = Annotated[
    FolderPages | ListedPages | JsonlPages | WarcPages | ArithmeticPages | DigitPages, Field(discriminator="kind")
]


class CollectWebParams(StrictParams):
    """Section `collect_web`."""

    max_page_kib: int = Field(ge=1)
    """Larger pages are dropped, in KiB of UTF-8 source (the web's median is about 30, 2,000 is rare)."""
    sources: dict[str, WebSource] = Field(min_length=1)
    """Name of the source -> where its pages come from."""


STAGE = Stage(
    sections={"seed": int, "collect_web": CollectWebParams},
    outputs={
        "pages": "data/web/pages.parquet",
        "dropped": "data/dropped/collect_web.parquet",
        "metrics": "data/metrics/collect_web.json",
        "headline": "data/headline/collect_web.json",
    },
)
ABOUT = About(
    description="Web pages and documents with worked solutions.",
    headline=("rows/kept", "{:,.0f} pages"),
    raw=lambda params: list((params.get("collect_web") or {}).get("sources", {}).values()),
    sources="collect_web.sources",
    file_kinds=("jsonl", "warc"),
)
