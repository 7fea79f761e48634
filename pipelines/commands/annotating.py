"""`retrace annotations export|import`: labelling tasks for a round's images, and the annotations of people.

Both print one JSON object. docs/how-to/annotate-images.md describes all steps, including Label Studio's commands.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of, write_json
from stages.foundations.machine import PROJECT
from stages.foundations.params import load_value

LOCAL_FILES = "/data/local-files/?d=images/"
"""Address at which Label Studio serves the folder `images` of an export that is its document root."""
annotations = typer.Typer(
    no_args_is_help=True, help="Let people rank a round's images in Label Studio, and import their annotations."
)
Round = Annotated[str, typer.Argument(metavar="ROUND", help="a name in section ranking_rounds")]
Pool = Annotated[Path | None, typer.Option(help="the round's images [data/images/pool/ROUND]")]


@annotations.command("export")
def export_round(
    ranking_round: Round,
    out: Annotated[Path, typer.Option(help="a new folder")],
    images: Annotated[int, typer.Option(min=2, max=9, help="images per task")] = 6,
    tasks: Annotated[int, typer.Option(min=1, help="most tasks per prompt")] = 1,
    address: Annotated[str, typer.Option(help="address before IMAGE_ID.png in the tasks")] = LOCAL_FILES,
    annotated: Annotated[
        Path | None, typer.Option(help="export the tasks in this folder of annotations (data/annotations/ROUND)")
    ] = None,
    pool: Pool = None,
) -> None:
    """Write pictures, tasks and labelling configuration for Label Studio."""
    # Imported here and below, because `retrace --help` imports this file and these modules read images and tables.
    from stages.images.annotate.label_studio import export_annotated, export_tasks

    pool = pool or PROJECT / "data" / "images" / "pool" / ranking_round
    if annotated is not None:
        written = export_annotated(pool, annotated, out, address)
    else:
        seed = load_value(PROJECT / "params.yaml", "seed")
        written = export_tasks(pool, out, address, images, tasks, seed)
    typer.echo(json.dumps({"folder": str(out), "tasks": written}, indent=2))


@annotations.command("import")
def import_export(
    ranking_round: Round,
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="Label Studio's export in the format JSON")],
    out: Annotated[Path, typer.Option(help="file to write, for ranking_rounds.ROUND.annotations")],
    pool: Pool = None,
    prompts: Annotated[Path | None, typer.Option(help="[data/t2i/prompts.parquet]")] = None,
) -> None:
    """Check an export against the round's images, and write the file that the stage `annotate` reads.

    Every annotation that the stage would drop is counted by its reason; addresses of people are left out.
    """
    from stages.foundations.tables import PROMPT, read_table
    from stages.images.annotate.annotations import checked_tables, json_rows
    from stages.images.annotate.label_studio import export_annotations, read_image_rows, slimmed
    from stages.images.annotate.run import known_from

    if not export.is_file():
        raise UserError(f"{export} does not exist: export the project as JSON")
    rows = json_rows(export.read_bytes(), str(export))
    images = read_image_rows(pool or PROJECT / "data" / "images" / "pool" / ranking_round)
    known = known_from(read_table(prompts or PROJECT / "data" / "t2i" / "prompts.parquet", PROMPT), images)
    # Only kept annotations are checked, so the file and the counts agree.
    slim = slimmed(rows)
    rankings, ratings, funnel, warnings = checked_tables(export_annotations(slim, out.name), known)
    counts = funnel.metrics(len(rankings)) | dict(warnings) | {"ratings/all": len(ratings)}
    write_json(out, slim)
    file = {"path": str(out), "sha256": sha256_of(out)}
    typer.echo(json.dumps({"counts": counts, f"ranking_rounds.{ranking_round}.annotations": file}, indent=2))
