"""What `retrace ablate` does: list, plan, run, write."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.ablating.definition import Ablation, ablation_names, read_ablation
from pipelines.ablating.packing import jobs_that_fit, this_machine, wants_one_gpu
from pipelines.ablating.plan import PlannedRun, expected_seconds, plan_runs, told_plan
from pipelines.ablating.records import ablation_folder, finished, seconds_of_others
from pipelines.ablating.runner import Settings, run_pending
from pipelines.ablating.settings import check_ablation
from pipelines.ablating.writing import Findings
from pipelines.graph.project_lock import refusing_lock
from pipelines.runtime.checkouts import Code, cache_folder, code_at, code_hashes
from pipelines.runtime.gpu_slots import gpu_slots, lock_folder, visible_gpus
from stages.foundations.errors import UserError


@dataclass(frozen=True)
class Choice:
    """What the caller asks for."""

    root: Path
    state: Path
    name: str
    variants: Sequence[str] | None
    seeds: Sequence[int] | None
    jobs: int | None
    """Runs at once; None for as many as fit."""
    revision: str
    is_with_changes: bool
    is_kept: bool


@dataclass(frozen=True)
class Session:
    """A checked ablation, the runs that are asked for, and the code that they run."""

    choice: Choice
    ablation: Ablation
    runs: list[PlannedRun]
    code: Code
    code_hashes: Mapping[str, Mapping[str, str]]
    """Hashes of the files that each run runs with its parameters, by the run's name."""
    jobs: int
    packed: str
    """Why so many at once; empty where the caller said how many."""

    def is_done(self, run: PlannedRun) -> bool:
        return finished(self.choice.state, self.ablation.name, run, self.code_hashes[run.name]) is not None

    @property
    def pending(self) -> list[PlannedRun]:
        return [run for run in self.runs if not self.is_done(run)]

    def estimate_minutes(self) -> float:
        """Of what is pending."""
        measured = seconds_of_others(self.choice.state, self.ablation.name, self.runs)
        return expected_seconds(self.ablation, self.pending, self.jobs, measured, ()) / 60


def list_ablations(root: Path) -> list[str]:
    """A line for each file in pipelines/ablations/; a broken one says so."""
    lines = []
    for name in ablation_names(root):
        try:
            ablation = read_ablation(root, name)
            told = f"{ablation.title} ({len(ablation.variants)} variants, {len(ablation.seeds)} seeds)"
        except UserError as error:
            told = f"BROKEN: {str(error).splitlines()[0]}"
        lines.append(f"{name:<24} {told}")
    return lines or ["there are no files in pipelines/ablations/"]


def show_plan(choice: Choice) -> list[str]:
    """The plan as lines."""
    session = _open(choice)
    lines = told_plan(session.ablation, session.runs, session.is_done, session.ablation.baseline)
    count = len(session.pending)
    told = (
        f"about {session.estimate_minutes():.0f} min with --jobs {session.jobs}{session.packed}"
        if count
        else "nothing to run"
    )
    return [*lines, "", f"{count} of {len(session.runs)} runs to do, {told}; code {_told_code(session.code)}"]


def show_markdown(choice: Choice) -> str:
    """The table of the finished runs, whatever code made them."""
    ablation = read_ablation(choice.root, choice.name)
    runs = plan_runs(choice.root, ablation, choice.variants, choice.seeds)
    return Findings(ablation, choice.state, runs).markdown()


def run_ablation(choice: Choice, say: Callable[[str], None]) -> int:
    """Runs what is pending and writes what all finished runs of the file say; 1 when a run failed, else 0."""
    session = _open(choice)
    with refusing_lock(
        ablation_folder(choice.state, choice.name), "this ablation is running already: wait for it"
    ):
        pending = session.pending
        _say_start(session, pending, say)
        failed = []
        if pending:
            gpus = tuple(visible_gpus())
            dealt = gpus if all(wants_one_gpu(run.params) for run in session.runs) else ()
            settings = Settings(
                session.ablation,
                choice.state,
                session.code,
                session.code_hashes,
                cache_folder(choice.root),
                session.jobs,
                dealt,
                choice.is_kept,
                say,
            )
            with gpu_slots(len(gpus), lock_folder(), say):  # the runs share the cards with nobody else
                failed = run_pending(settings, pending)
        if not failed or len(failed) < len(session.runs):
            _write(session, say)
    if failed:
        say(
            f"{len(failed)} runs failed: {', '.join(run.name for run in failed)}; the same command tries them again"
        )
    return 1 if failed else 0


def _open(choice: Choice) -> Session:
    ablation = read_ablation(choice.root, choice.name)
    check_ablation(choice.root, ablation)
    runs = plan_runs(choice.root, ablation, choice.variants, choice.seeds)
    every = plan_runs(choice.root, ablation, None, None)
    code = code_at(choice.root, choice.revision, choice.is_with_changes)
    targets = sorted({target for run in every for target in run.targets})
    hashes = code_hashes(code, targets, [run.params for run in runs])
    jobs, packed = choice.jobs, ""
    if jobs is None:
        jobs, reason = jobs_that_fit(choice.root, [run.params for run in runs], this_machine(visible_gpus()))
        packed = f" ({reason})"
    of_run = dict(zip((run.name for run in runs), hashes, strict=True))
    return Session(choice, ablation, runs, code, of_run, jobs, packed)


def _say_start(session: Session, pending: Sequence[PlannedRun], say: Callable[[str], None]) -> None:
    total, jobs = len(session.runs), session.jobs
    if not pending:
        say(f"{session.ablation.name}: all {total} runs are done, nothing to run")
        return
    say(
        f"{session.ablation.name}: {len(pending)} of {total} runs to do, {jobs} at once{session.packed}, about "
        f"{session.estimate_minutes():.0f} min; code {_told_code(session.code)}"
    )
    threads = max(
        run.params[section].get("threads", 1) for run in pending for section in ("sampler", "trainer")
    )
    cores = len(os.sched_getaffinity(0))
    if threads * jobs > cores and not visible_gpus():
        say(
            f"WARNING: {jobs} runs of {threads} threads on {cores} cores get in each other's way: lower --jobs"
        )


def _told_code(code: Code) -> str:
    told = code.commit[:12]
    if not code.changed:
        return told
    names = ", ".join(code.changed[:5]) + (", ..." if len(code.changed) > 5 else "")
    if code.is_with_changes:
        return f"{told} with uncommitted changes (dirty): {names}"
    return f"{told}; uncommitted changes are not run (--with-changes runs them): {names}"


def _write(session: Session, say: Callable[[str], None]) -> None:
    choice = session.choice
    findings = Findings(session.ablation, choice.state, plan_runs(choice.root, session.ablation, None, None))
    page = findings.write(choice.root / "reports" / "ablations")
    for one in findings.judged:
        claimed = one.claimed
        say(f"  {claimed.metric}: {claimed.variant} {claimed.direction} {claimed.against}: {one.verdict}")
    say(f"results: {page}")
    try:
        if findings.track():
            say("MLflow has the results, tagged ablation and variant")
    except UserError as error:
        say(f"WARNING: {error}")
