"""`retrace doctor`: is this machine ready, and what to do where it is not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pipelines.doctor import machine, project
from pipelines.doctor.finding import Finding, Level
from stages.foundations.scratch import PROJECT, state_folder


def doctor(as_json: Annotated[bool, typer.Option("--json", help="the findings as JSON")] = False) -> None:
    """Check Python, packages, GPU, memory, workers, disk, ports, git, parameters, DVC and the tracking database.

    Each line is ok, a warning or a problem, with what to do. Exit code 1: there is a problem.
    """
    findings = list(examine(PROJECT, state_folder()))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        typer.echo("\n".join(lines_of(findings)))
    raise typer.Exit(1 if any(finding.level is Level.PROBLEM for finding in findings) else 0)


def examine(root: Path, state: Path) -> Iterator[Finding]:
    """All findings on the project in `root`, as they come."""
    yield from machine.check_python(root)
    yield from machine.check_packages(root)
    yield from machine.check_gpu()
    yield from machine.check_memory()
    yield from machine.check_sandbox()
    cache = cache_folder(root)
    yield from machine.check_disk({"the project": root, "DVC's cache": cache, "state": state})
    yield from project.check_link(root, cache)
    yield from project.check_remote(root)
    yield from project.check_git(root)
    yield from project.check_params(root)
    yield from project.check_bfloat16(root)
    yield from project.check_tracking(state)
    yield from machine.check_servers()


def cache_folder(root: Path) -> Path:
    """DVC's cache of the project, from its configuration; the usual place where that cannot be read."""
    from dvc.config import Config, ConfigError

    try:
        configured = Config(str(root / ".dvc"))["cache"].get("dir")
    except ConfigError:
        configured = None
    return Path(configured) if configured else root / ".dvc" / "cache"


def lines_of(findings: list[Finding]) -> list[str]:
    """A line each, the remedy below it, and a sum."""
    width = max(len(finding.name) for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{finding.level:8} {finding.name:{width}}  {finding.found}")
        if finding.remedy:
            lines.append(f"{'':8} {'':{width}}  -> {finding.remedy}")
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    return [*lines, "", f"{counts[Level.PROBLEM]} problems, {counts[Level.WARNING]} warnings"]
