"""Runs what is pending, some at once, each as `dvc repro` in its worktree.

A run that fails is told and the others go on. Whatever ends this process ends every DVC and stage with it; worktrees
of runs that did not finish stay, so that the next call goes on from their checkpoints.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from pipelines.ablating.definition import Ablation
from pipelines.ablating.plan import PlannedRun, expected_seconds, in_order, leading, next_run
from pipelines.ablating.records import ablation_folder, keep_results, record_folder
from pipelines.graph.graph import what_to_repro
from pipelines.graph.killed_dvc import repair_dvc_state
from pipelines.runtime.checkouts import Code, make_checkout, remove_checkout, worktree_environment
from pipelines.runtime.git import git
from pipelines.runtime.process_group import dvc, end_groups, terminated_as_interrupt
from stages.foundations.errors import UserError
from stages.foundations.files import write_text_atomically
from stages.foundations.hashing import stable_hash
from stages.observe.lifetime import die_with_parent

SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_LINES = 60.0
LINES_IN_A_FAILURE = 15


@dataclass(frozen=True)
class Settings:
    """Where and how the runs of one ablation run."""

    ablation: Ablation
    state: Path
    code: Code
    code_hashes: Mapping[str, Mapping[str, str]]
    """Hashes of the files that each run runs, by the run's name."""
    cache: Path
    jobs: int
    gpus: tuple[str, ...]
    """Numbers of those that the runs share, one for each run; empty where there is none, or a run takes several."""
    is_kept: bool
    """True leaves the worktrees of finished runs."""
    say: Callable[[str], None]


@dataclass
class Job:
    """A run that is running."""

    run: PlannedRun
    folder: Path
    log: Path
    process: subprocess.Popen[str]
    gpu: str | None
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


@dataclass
class Progress:
    """How far the runs are."""

    waiting: list[PlannedRun]
    running: list[Job] = field(default_factory=list)
    failed: list[PlannedRun] = field(default_factory=list)
    tried: set[str] = field(default_factory=set)
    """Shared prefixes that some run has made, or failed to make."""
    seconds: list[float] = field(default_factory=list)
    """Times of finished runs that did not make the shared stages."""
    said: float = field(default_factory=time.monotonic)


def run_pending(settings: Settings, pending: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Runs all of `pending`; returns those that failed. On an interrupt nothing is left running."""
    progress = Progress(in_order(pending, settings.ablation.baseline))
    leaders = leading(pending, settings.ablation.baseline)
    with terminated_as_interrupt():
        try:
            while progress.waiting or progress.running:
                _start_what_fits(settings, progress)
                for job in [job for job in progress.running if job.process.poll() is not None]:
                    progress.running.remove(job)
                    progress.tried.add(job.run.prefix)
                    if not _end(settings, job, job.run in leaders):
                        progress.failed.append(job.run)
                    elif job.run not in leaders:
                        progress.seconds.append(job.seconds)
                    _say_rest(settings, progress)
                _say_now_and_then(settings, progress)
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(name, signal.SIG_IGN)  # a second Ctrl-C must not leave a stage behind
            end_groups([job.process for job in progress.running])
    return progress.failed


def _start_what_fits(settings: Settings, progress: Progress) -> None:
    while len(progress.running) < settings.jobs:
        run = next_run(progress.waiting, [job.run for job in progress.running], progress.tried)
        if run is None:
            return
        progress.waiting.remove(run)
        taken = [job.gpu for job in progress.running]
        progress.running.append(_start(settings, run, min(settings.gpus, key=taken.count, default=None)))


def _start(settings: Settings, run: PlannedRun, gpu: str | None) -> Job:
    folder = ablation_folder(settings.state, settings.ablation.name) / run.name
    log = folder.parent / "logs" / f"{run.name}.log"
    key = f"{run.params_hash} {stable_hash(settings.code_hashes[run.name])}\n"
    stamp = folder / "state" / "ablation_run"
    if stamp.exists() and stamp.read_text() == key:
        settings.say(f"{run.variant} seed {run.seed}: goes on")
        repair_dvc_state(folder, settings.say)
    else:
        remove_checkout(settings.code.root, folder)
        make_checkout(settings.code, folder, settings.cache)
        write_text_atomically(folder / "params.yaml", yaml.safe_dump(dict(run.params), sort_keys=False))
        write_text_atomically(folder / "state" / "recipe", settings.ablation.recipe + "\n")
        write_text_atomically(stamp, key)
    log.parent.mkdir(parents=True, exist_ok=True)
    tags = {"RETRACE_ABLATION": settings.ablation.name, "RETRACE_VARIANT": run.variant}
    surroundings = worktree_environment(folder) | tags | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
    with open(log, "w") as output:
        process = subprocess.Popen(
            dvc("repro", *what_to_repro(folder, run.targets)),
            cwd=folder,
            env=surroundings,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    return Job(run, folder, log, process, gpu)


def _end(settings: Settings, job: Job, made_shared_stages: bool) -> bool:
    """Keeps a finished run's results and frees its disk space. False when the run failed."""
    run, name, problem = job.run, settings.ablation.name, ""
    if job.process.returncode == 0:
        about = {
            "ablation": name,
            "variant": run.variant,
            "seed": run.seed,
            "policy": settings.ablation.policy_of(run.variant),
            "params_hash": run.params_hash,
            "code": settings.code_hashes[run.name],
            "commit": git(job.folder, "rev-parse", "HEAD"),
            "is_dirty": settings.code.is_dirty,
            "seconds": round(job.seconds, 1),
            "made_shared_stages": made_shared_stages,
        }
        try:
            keep_results(job.folder, record_folder(settings.state, name, run), run, about)
        except (UserError, OSError) as error:
            problem = str(error)
        else:
            if not settings.is_kept:
                remove_checkout(settings.code.root, job.folder)
            settings.say(f"{run.variant} seed {run.seed}: done in {job.seconds:.0f} s")
            return True
    lines = job.log.read_text(errors="replace").splitlines()[-LINES_IN_A_FAILURE:]
    told = problem or f"dvc ended with exit code {job.process.returncode}"
    settings.say(f"{run.variant} seed {run.seed}: FAILED ({told}); the end of {job.log}:")
    settings.say("\n".join(f"    {line}" for line in lines))
    return False


def _say_rest(settings: Settings, progress: Progress) -> None:
    left = [*(job.run for job in progress.running), *progress.waiting]
    if left:
        estimate = expected_seconds(settings.ablation, left, settings.jobs, progress.seconds, progress.tried)
        settings.say(f"    {len(left)} runs left, about {estimate / 60:.0f} min")


def _say_now_and_then(settings: Settings, progress: Progress) -> None:
    if time.monotonic() - progress.said > SECONDS_BETWEEN_LINES and progress.running:
        progress.said = time.monotonic()
        settings.say("running: " + "; ".join(_told(job) for job in progress.running))


def _told(job: Job) -> str:
    last = ""
    with suppress(OSError):
        lines = [line for line in job.log.read_text(errors="replace").splitlines() if line.strip()]
        last = lines[-1][-70:].strip() if lines else ""
    return f"{job.run.variant} seed {job.run.seed}, {job.seconds:.0f} s: {last}"
