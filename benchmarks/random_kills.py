"""kill -9 at random moments during a whole run through `make ui`, continued after each kill as by an operator.

    python -m benchmarks.random_kills --work FOLDER [--kills 50] [--seed 0] [--recipe laptop] [--reference DVC_LOCK]

Victims: the stage's process, DVC, the flow's process, the worker, the Prefect server, the MLflow server. Each kill
takes one of them; all are equally likely. Moments: each stage has the same number of kills, and the rest fall on
stages by chance. A kill comes after a drawn number of changes on disk since the stage began: an output, a file of the
stage's state or of DVC is new, written or gone. A stage that ends earlier is killed at its end, while DVC records it.
Then dead processes are started again: `make ui` if it has ended (it replaces a dead worker by itself), and a new flow
run of the deployment `reproduce` if the last one did not complete.

Checks at the end: all outputs equal those of an undisturbed run (`--reference`; without it, one is run first). MLflow
has each completed execution once and nothing else. No flow run is left running, and no process of the clone is left.
FOLDER gets the clone and random_kills.json, which is rewritten after each kill. Exit code 1 when a check fails, with
every difference; 2 for a wrong flag; Ctrl-C ends all started processes.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from benchmarks.kill_checks import Check, check_mlflow, check_outputs, check_prefect, check_processes
from benchmarks.laptop_clone import (
    ENDED,
    PROJECT,
    UNREACHABLE,
    CloneUi,
    GaveUp,
    exit_code_of,
    git,
    last_lines,
    make_clone,
    make_work_folder,
    recorded_outputs,
    reproduce_undisturbed,
    say,
    stage_name,
    working_processes,
)
from pipelines.graph.graph import stages_in_order
from stages.foundations.errors import UserError
from stages.foundations.files import write_json

VICTIMS = ("stage", "dvc", "flow", "worker", "prefect", "mlflow")
SECONDS_BETWEEN_LOOKS = 0.02
SECONDS_BETWEEN_QUESTIONS = 1.0
SECONDS_UNTIL_NOTICED = 20.0
"""A kill has not disturbed a flow run that is still running this long after it."""
SECONDS_OF_STANDSTILL = 300.0
STANDSTILLS = 3
CHANGES = (0, 1, 2, 4, 8, 16, 32)
"""Numbers of changes on disk after which a kill comes: close together at a stage's start, where the most happens."""
WATCHED = ("data", "state/scratch", ".dvc/cache", ".dvc/tmp", "dvc.lock")


class Plan:
    """How many kills each stage has left, and after how many changes on disk the next one comes."""

    def __init__(self, stages: list[str], kills: int, chance: random.Random) -> None:
        every, rest = divmod(kills, len(stages))
        self.kills = dict.fromkeys(stages, every) | {name: every + 1 for name in chance.sample(stages, rest)}
        self.chance = chance
        self.stage, self.changes_left = "", 0

    def is_due(self, stage: str, changes: int) -> bool:
        """Whether the kill comes now. `stage` is the one at work ("" for none), `changes` those since the last call."""
        ended = self.stage if self.stage != stage else ""
        if self.stage != stage:
            self.stage, self.changes_left = stage, self.chance.choice(CHANGES)
        else:
            self.changes_left -= changes
        if self.kills.get(ended):
            self.kills[ended] -= 1
            return True
        if self.kills.get(stage) and self.changes_left <= 0:
            self.kills[stage] -= 1
            # After it the stage begins anew.
            self.stage = ""
            return True
        return False

    @property
    def left(self) -> int:
        return sum(self.kills.values())


def files_of(project: Path) -> dict[str, int]:
    """Returns each watched file's time of change, in nanoseconds."""
    found = {}
    pending = [project / name for name in WATCHED]
    while pending:
        # A file may go between the listing and the look at it.
        with suppress(FileNotFoundError):
            place = pending.pop()
            if place.is_dir() and not place.is_symlink():
                pending += place.iterdir()
            else:
                found[str(place.relative_to(project))] = place.lstat().st_mtime_ns
    return found


class Record:
    """The events, in a file that is always complete."""

    def __init__(self, path: Path, about: dict[str, Any]) -> None:
        self.path = path
        self.started = time.monotonic()
        self.content: dict[str, Any] = {
            "about": about,
            "kills": [],
            "starts of make ui": [],
            "flow runs": [],
            "problems": [],
        }
        self.write()

    def add(self, kind: str, **entry: Any) -> None:
        """Adds an event with its time, and prints it."""
        event = {"seconds": round(time.monotonic() - self.started, 1), "at": time.strftime("%H:%M:%S"), **entry}
        self.content[kind].append(event)
        self.write()
        say(f"{kind} {len(self.content[kind])}: " + ", ".join(f"{name} {value}" for name, value in entry.items()))

    def write(self) -> None:
        kills = Counter(kill["victim"] for kill in self.content["kills"])
        self.content["kills by victim"] = {victim: kills[victim] for victim in VICTIMS}
        self.content["seconds"] = round(time.monotonic() - self.started, 1)
        write_json(self.path, self.content)


class Operator:
    """Kills by plan, and restarts dead processes, until a flow run completes."""

    def __init__(self, ui: CloneUi, plan: Plan, chance: random.Random, record: Record, minutes: float) -> None:
        self.ui, self.plan, self.chance, self.record = ui, plan, chance, record
        self.no_kills_after = time.monotonic() + 60 * minutes
        self.flow_run = ""
        self.files = files_of(ui.project)
        self.killed_in, self.killed_at = "", 0.0
        self.moved = self.asked = time.monotonic()
        self.stage = ""
        self.is_complete = False

    def work(self) -> None:
        """Returns when a flow run has completed. GaveUp when there is no more progress."""
        self._start_ui("first start")
        while not self.is_complete:
            if not self.ui.is_alive:
                self._start_ui(f"it had ended: {self._last_words()}")
            self._see_to_the_flow()
            alive = working_processes(self.ui.process.pid)
            self._note_stage(alive)
            self._kill_when_due(alive)
            self._notice_standstill()
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _start_ui(self, reason: str) -> None:
        self.ui.start()
        self.flow_run, self.moved = "", time.monotonic()
        self.record.add("starts of make ui", reason=reason)

    def _last_words(self) -> str:
        lines = [line for line in last_lines(self.ui.log_file, 40).splitlines() if line.startswith("error:")]
        return lines[-1] if lines else f"exit code {self.ui.process.returncode}"

    def _see_to_the_flow(self) -> None:
        """Starts a flow run if none is running."""
        if time.monotonic() - self.asked < SECONDS_BETWEEN_QUESTIONS:
            return
        self.asked = time.monotonic()
        state = self.ui.state_type(self.flow_run) if self.flow_run else "none"
        if self.flow_run and state in ENDED:
            self.record.content["flow runs"][-1]["ended"] = state
            self.is_complete = state == "COMPLETED"
        if self.is_complete or state not in ("none", *ENDED):
            return
        try:
            self.flow_run = self.ui.run("reproduce")
        except (*UNREACHABLE, KeyError):  # the server has just been killed
            return
        self.moved = time.monotonic()
        self.record.add("flow runs", id=self.flow_run)

    def _note_stage(self, alive: dict[str, psutil.Process]) -> None:
        stage = stage_name(alive["stage"]) if "stage" in alive else ""
        if stage:
            self.moved = time.monotonic()
        self.stage = stage

    def _kill_when_due(self, alive: dict[str, psutil.Process]) -> None:
        before, self.files = self.files, files_of(self.ui.project)
        changed = [name for name in {*before, *self.files} if before.get(name) != self.files.get(name)]
        now = time.monotonic()
        is_noticed = self.flow_run != self.killed_in or now - self.killed_at > SECONDS_UNTIL_NOTICED
        can_kill = now < self.no_kills_after and self.ui.is_alive and self.flow_run and is_noticed
        if can_kill and self.plan.is_due(self.stage, len(changed)):
            self._kill(alive, min(changed, default="nothing changed"))

    def _kill(self, alive: dict[str, psutil.Process], changed: str) -> None:
        """Kills one of the living processes, in a random order of kinds."""
        order = self.chance.sample(VICTIMS, len(VICTIMS))
        victim = next((kind for kind in order if kind in alive), "")
        if not victim:
            return
        try:
            target = alive[victim]
            if victim == "mlflow":  # a launcher, and below it the process that answers
                target = self.chance.choice([target, *target.children()])
            target.kill()
        except psutil.Error:  # it has ended in this moment: the next look finds another
            return
        self.killed_in, self.killed_at = self.flow_run, time.monotonic()
        stage = self.stage or "between stages"
        self.record.add("kills", victim=victim, pid=target.pid, stage=stage, changed=changed, flow_run=self.flow_run)

    def _notice_standstill(self) -> None:
        """If no stage has run for minutes, records it and restarts `make ui`, as a user would do."""
        if time.monotonic() - self.moved < SECONDS_OF_STANDSTILL or self.is_complete:
            return
        state = self.ui.state_type(self.flow_run) if self.flow_run else "no flow run"
        self.record.add("problems", problem=f"nothing moved for {SECONDS_OF_STANDSTILL:.0f} s, flow run: {state}")
        if len(self.record.content["problems"]) >= STANDSTILLS:
            raise GaveUp("nothing moves any more: see the logs in state/logs/ of the clone")
        self.ui.end()


def run_kills(flags: argparse.Namespace, record: Record, work: Path) -> list[Check]:
    """Makes the clone, kills, and checks."""
    wanted = recorded_outputs(flags.reference) if flags.reference else _undisturbed(work, flags)
    project = make_clone(work / "project", flags.recipe, flags.commit)
    chance = random.Random(flags.seed)
    plan = Plan([stage.name for stage in stages_in_order(project)], flags.kills, chance)
    ui, code = CloneUi(project), -1
    record.started = time.monotonic()
    try:
        operator = Operator(ui, plan, chance, record, flags.minutes)
        operator.work()
        record.content["kills left over"] = plan.left
        record.write()
        say("the graph is complete: checks")
        prefect = check_prefect(ui)
    finally:
        code = ui.end()
    checks = [check_processes(project, code), prefect, check_outputs(project, wanted), check_mlflow(project)]
    problems = [problem["problem"] for problem in record.content["problems"]]
    problems += [f"make ui did not start: {told}" for told in ui.failures]
    return [*checks, Check("make ui starts each time, and no standstill", {"problems": len(problems)}, problems)]


def _undisturbed(work: Path, flags: argparse.Namespace) -> dict[str, str]:
    say("an undisturbed run first, whose outputs are compared")
    project = make_clone(work / "undisturbed", flags.recipe, flags.commit)
    reproduce_undisturbed(project)
    return recorded_outputs(project / "dvc.lock")


def tell(record: Record, checks: list[Check]) -> None:
    content = record.content
    done, left = len(content["kills"]), content["kills left over"]
    print(
        f"{done} kills in {content['seconds'] / 60:.1f} min: "
        + ", ".join(f"{victim} {count}" for victim, count in content["kills by victim"].items())
    )
    stages = Counter(kill["stage"] for kill in content["kills"])
    print("at work: " + ", ".join(f"{stage} {count}" for stage, count in stages.items()))
    print(f"make ui started {len(content['starts of make ui'])} times, {len(content['flow runs'])} flow runs")
    if left:
        print(f"{left} kills of those asked for did not happen: the graph was complete, or the time was over")
    for check in checks:
        print(check.told())
    print(f"all of it: {record.path}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a new folder: clone, records, logs")
    parser.add_argument("--kills", type=int, default=50, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of moments and victims")
    parser.add_argument("--recipe", default="laptop", help="or miniature: the graph of laptop with small numbers")
    parser.add_argument("--reference", type=Path, help="dvc.lock of an undisturbed run of this commit and recipe")
    parser.add_argument("--commit", default="HEAD", help="what is cloned")
    parser.add_argument("--minutes", type=float, default=600.0, help="no kill later than this; then it runs to its end")
    return exit_code_of(partial(_run, parser.parse_args()))


def _run(flags: argparse.Namespace) -> int:
    if flags.kills < 0 or flags.minutes < 0:
        raise UserError("--kills and --minutes are not negative")
    if flags.reference:
        recorded_outputs(flags.reference)
    work = make_work_folder(flags.work)
    flags.commit = git(PROJECT, "rev-parse", flags.commit)
    record = Record(work / "random_kills.json", {name: str(value) for name, value in vars(flags).items()})
    checks = run_kills(flags, record, work)
    record.content["checks"] = [asdict(check) for check in checks]
    record.write()
    tell(record, checks)
    return int(any(check.differences for check in checks))


if __name__ == "__main__":
    sys.exit(main())
