"""`retrace verify`: the reproduction certificate."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stages.foundations.errors import UserError
from stages.foundations.scratch import PROJECT, state_folder


def verify(
    revision: Annotated[
        str, typer.Option(help="git revision with its own dvc.lock (default: HEAD, lock as it is)")
    ] = "",
    targets: Annotated[
        str, typer.Option(help="stages to make from raw data on, with commas (default: all)")
    ] = "",
    stage: Annotated[str, typer.Option(help="one stage alone, on the finished run's inputs")] = "",
    relative: Annotated[float, typer.Option(min=0, help="tolerance of numbers")] = 1e-6,
    absolute: Annotated[float, typer.Option(min=0, help="tolerance of numbers")] = 1e-9,
    weights: Annotated[float, typer.Option(min=0, help="largest difference of a weight")] = 1e-6,
    keep: Annotated[bool, typer.Option("--keep", help="leave the clone under state/verify/")] = False,
) -> None:
    """Run the graph again in a clean clone and say of each output: identical, equal within tolerance, or different.

    Writes reports/certificate.json and certificate.md. Exit code 0: reproduced, 1: not, 2: a mistake of the caller.
    """
    from pipelines.runtime.process_group import terminated_as_interrupt
    from pipelines.verifying.certificate import Order, write_certificate
    from pipelines.verifying.certificate import verify as run
    from pipelines.verifying.comparing import Tolerance

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        if stage and targets:
            raise UserError("--stage runs one stage alone and --targets all that they need: give one of them")
        names = tuple(name.strip() for name in targets.split(",") if name.strip())
        order = Order(revision, names, stage, Tolerance(relative, absolute, weights), keep)
        with terminated_as_interrupt():
            content = run(PROJECT, state_folder(), order, tell)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
    except KeyboardInterrupt:
        tell("interrupted: nothing is left running, and no certificate was written")
        raise typer.Exit(130) from None
    _, page = write_certificate(content, PROJECT / "reports")
    for row in content["outputs"]:
        if row["verdict"] != "identical":
            typer.echo(f"{row['verdict']}: {row['path']}: {row['detail']}")
    typer.echo(
        f"{content['verdict']}: {len(content['outputs'])} outputs in {content['seconds']:.0f} s; {page}"
    )
    raise typer.Exit(0 if content["is_reproduced"] else 1)
