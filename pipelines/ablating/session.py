"""The actions of `retrace ablate`: list, plan, run, write.

Several pending runs run at once, each as `dvc repro` in its worktree (`AblationBatch`). A failed run is reported, and
the others continue. When this process ends, every DVC and stage ends with it. Worktrees of unfinished runs stay, so
that the next call resumes from their checkpoints. `jobs_that_fit` computes how many runs fit side by side: small
policies leave most of a card, or of a machine, unused.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pipelines.ablating.definition import Ablation, ablation_names, read_ablation
from pipelines.ablating.plan import (
    PlannedRun,
    check_ablation,
    describe_plan,
    expected_seconds,
    in_order,
    leading,
    next_run,
    plan_runs,
)
from pipelines.ablating.results import ablation_folder, finished, keep_results, record_folder, seconds_of_others
from pipelines.ablating.writing import AblationFindings
from pipelines.graph.graph import repro_arguments
from pipelines.graph.project_lock import repair_dvc_state
from pipelines.output import shortened
from pipelines.planning.memory import CONTEXT_BYTES
from pipelines.planning.plan import PlanRequest, StagePlan, make_plan
from pipelines.runtime.checkouts import (
    LAST_LINES,
    Code,
    checkout,
    code_at,
    code_hashes,
    remove_checkout,
    worktree_environment,
)
from pipelines.runtime.locks import refusing_lock
from pipelines.runtime.machine import gpu_slots, lock_folder, visible_gpus
from pipelines.runtime.process_group import dvc, end_groups, terminated_as_interrupt
from stages.foundations.errors import UserError
from stages.foundations.files import dump_yaml, stable_hash
from stages.observe.git import git


@dataclass(frozen=True)
class Choice:
    """The caller's options."""

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
    """A checked ablation, the requested runs, and their code."""

    choice: Choice
    ablation: Ablation
    runs: list[PlannedRun]
    code: Code
    code_hashes: Mapping[str, Mapping[str, str]]
    """Hashes of the files that each run uses with its parameters, by the run's name."""
    jobs: int
    packed: str
    """The reason for this number; empty where the caller chose it."""

    def is_done(self, run: PlannedRun) -> bool:
        return finished(self.choice.state, self.ablation.name, run, self.code_hashes[run.name]) is not None

    @property
    def pending(self) -> list[PlannedRun]:
        return [run for run in self.runs if not self.is_done(run)]

    def estimate_minutes(self) -> float:
        """Estimated time of the pending runs."""
        measured = seconds_of_others(self.choice.state, self.ablation.name, self.runs)
        return expected_seconds(self.ablation, self.pending, self.jobs, measured, ()) / 60


def list_ablations(root: Path) -> list[str]:
    """Returns a line for each file in pipelines/ablations/; for a broken one, the line says so."""
    lines = []
    for name in ablation_names(root):
        try:
            ablation = read_ablation(root, name)
            text = f"{ablation.title} ({len(ablation.variants)} variants, {len(ablation.seeds)} seeds)"
        except UserError as error:
            text = f"BROKEN: {str(error).splitlines()[0]}"
        lines.append(f"{name:<24} {text}")
    return lines or ["there are no files in pipelines/ablations/"]


def show_plan(choice: Choice) -> list[str]:
    session = _open(choice)
    lines = describe_plan(session.ablation, session.runs, session.is_done, session.ablation.baseline)
    count = len(session.pending)
    text = (
        f"about {session.estimate_minutes():.0f} min with --jobs {session.jobs}{session.packed}"
        if count
        else "nothing to run"
    )
    return [*lines, "", f"{count} of {len(session.runs)} runs to do, {text}; code {_describe_code(session.code)}"]


def show_markdown(choice: Choice) -> str:
    """Returns the table of all finished runs, also of those that other code made."""
    ablation = read_ablation(choice.root, choice.name)
    runs = plan_runs(choice.root, ablation, choice.variants, choice.seeds)
    return AblationFindings(ablation, choice.state, runs).markdown()


def run_ablation(choice: Choice, say: Callable[[str], None]) -> int:
    """Runs the pending runs and writes the results of all finished runs of the file; 1 when a run failed, else 0."""
    session = _open(choice)
    with refusing_lock(ablation_folder(choice.state, choice.name), "this ablation is running already: wait for it"):
        pending = session.pending
        _say_start(session, pending, say)
        failed = []
        if pending:
            gpus = visible_gpus()
            # A run that takes several GPUs must see all of them, so none is assigned to it.
            dealt = gpus if all(wants_one_gpu(run.params) for run in session.runs) else []
            with gpu_slots(len(gpus), lock_folder(), say):  # no other process uses these cards
                failed = AblationBatch(session, pending, dealt, say).run()
        # Without a single finished run there is nothing to write.
        if not failed or len(failed) < len(session.runs):
            _write(session, say)
    if failed:
        say(f"{len(failed)} runs failed: {', '.join(run.name for run in failed)}; repeat the command to retry them")
    return 1 if failed else 0


def _open(choice: Choice) -> Session:
    ablation = read_ablation(choice.root, choice.name)
    # All variants are checked first: a mistake in the last one must not show after hours.
    check_ablation(choice.root, ablation)
    runs = plan_runs(choice.root, ablation, choice.variants, choice.seeds)
    # The targets of all runs, so that choosing variants changes no hash of a run's code.
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
        f"{session.estimate_minutes():.0f} min; code {_describe_code(session.code)}"
    )
    threads = max(_threads(run.params) for run in pending)
    cores = len(os.sched_getaffinity(0))
    # Runs on GPUs use the cores little, and small ones are meant to share a card.
    if threads * jobs > cores and not visible_gpus():
        say(f"WARNING: {jobs} runs of {threads} threads compete for {cores} cores: lower --jobs")


def _describe_code(code: Code) -> str:
    text = code.commit[:12]
    if not code.changed:
        return text
    names = ", ".join(code.changed[:5]) + (", ..." if len(code.changed) > 5 else "")
    if code.is_with_changes:
        return f"{text} with uncommitted changes (dirty): {names}"
    return f"{text}; uncommitted changes are not run (--with-changes runs them): {names}"


def _write(session: Session, say: Callable[[str], None]) -> None:
    choice = session.choice
    findings = AblationFindings(session.ablation, choice.state, plan_runs(choice.root, session.ablation, None, None))
    page = findings.write(choice.root / "reports" / "ablations")
    for one in findings.judged:
        claimed = one.claimed
        say(f"  {claimed.metric}: {claimed.variant} {claimed.direction} {claimed.against}: {one.verdict}")
    say(f"results: {page}")
    try:
        # After the files: results that MLflow does not receive are still on disk, and `retrace mirror` sends them.
        if findings.track():
            say("MLflow has the results, tagged ablation and variant")
    except UserError as error:
        say(f"WARNING: {error}")


SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_LINES = 60.0


@dataclass
class ActiveRun:
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

    def __str__(self) -> str:
        """Returns its progress: the last line of its log."""
        last = ""
        with suppress(OSError):
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
            last = shortened(lines[-1].strip(), 100) if lines else ""
        return f"{self.run.variant} seed {self.run.seed}, {self.seconds:.0f} s: {last}"


class AblationBatch:
    """The runs of one call: several at once, the leader of each shared prefix before the runs that share it."""

    def __init__(
        self, session: Session, pending: Sequence[PlannedRun], gpus: Sequence[str], say: Callable[[str], None]
    ) -> None:
        """`gpus` are numbers of the shared GPUs, one for each run; empty for none, or for several GPUs per run."""
        self.session, self.ablation, self.state, self.say = session, session.ablation, session.choice.state, say
        self.gpus = gpus
        self.waiting = in_order(pending, self.ablation.baseline)
        self.leaders = leading(pending, self.ablation.baseline)
        self.running: list[ActiveRun] = []
        self.failed: list[PlannedRun] = []
        self.tried: set[str] = set()
        """Shared prefixes that some run has made, or failed to make."""
        self.seconds: list[float] = []
        """Times of finished runs that did not make the shared stages."""
        self.said = time.monotonic()

    def run(self) -> list[PlannedRun]:
        """Runs all; returns those that failed. After an interrupt nothing is left running."""
        with terminated_as_interrupt():
            try:
                while self.waiting or self.running:
                    self._start_what_fits()
                    for job in [job for job in self.running if job.process.poll() is not None]:
                        self.running.remove(job)
                        # Also after a failure, or the runs with the same prefix would wait for ever.
                        self.tried.add(job.run.prefix)
                        if not self._end(job):
                            self.failed.append(job.run)
                        elif job.run not in self.leaders:
                            self.seconds.append(job.seconds)
                        self._say_rest()
                    self._say_now_and_then()
                    time.sleep(SECONDS_BETWEEN_LOOKS)
            finally:
                for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    signal.signal(name, signal.SIG_IGN)  # a second Ctrl-C must not leave a stage behind
                end_groups([job.process for job in self.running])
        return self.failed

    def _start_what_fits(self) -> None:
        while len(self.running) < self.session.jobs:
            run = next_run(self.waiting, [job.run for job in self.running], self.tried)
            if run is None:
                return
            self.waiting.remove(run)
            # The card with the fewest runs; among equals the first.
            taken = [job.gpu for job in self.running]
            self.running.append(self._start(run, min(self.gpus, key=taken.count, default=None)))

    def _start(self, run: PlannedRun, gpu: str | None) -> ActiveRun:
        folder = ablation_folder(self.state, self.ablation.name) / run.name
        log = folder.parent / "logs" / f"{run.name}.log"
        # A worktree with other parameters or other code is made anew instead of continued.
        key = f"{run.params_hash} {stable_hash(self.session.code_hashes[run.name])}\n"
        with checkout(self.session.code, folder, key, run.params, self.ablation.recipe) as is_new:
            if not is_new:
                self.say(f"{run.variant} seed {run.seed}: resumes")
                repair_dvc_state(folder, self.say)
        log.parent.mkdir(parents=True, exist_ok=True)
        tags = {"RETRACE_ABLATION": self.ablation.name, "RETRACE_VARIANT": run.variant}
        with open(log, "w") as output:
            process = subprocess.Popen(
                dvc("repro", *repro_arguments(folder, run.targets)),
                cwd=folder,
                env=worktree_environment(folder) | tags | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}),
                stdout=output,
                stderr=subprocess.STDOUT,
                # A run that is one of many has no user at the keyboard.
                stdin=subprocess.DEVNULL,
                text=True,
                # DVC's supervisor gets a separate process group, so that DVC and all its children can be ended at once.
                # If this process is killed, the supervisor ends them.
                start_new_session=True,
            )
        return ActiveRun(run, folder, log, process, gpu)

    def _end(self, job: ActiveRun) -> bool:
        """Keeps a finished run's results and frees its disk space. False when the run failed."""
        run, name, code = job.run, self.ablation.name, self.session.code
        problem = f"dvc ended with exit code {job.process.returncode}"
        if job.process.returncode == 0:
            about = {
                "ablation": name,
                "variant": run.variant,
                "seed": run.seed,
                "policy": self.ablation.policy_of(run.variant),
                "params_hash": run.params_hash,
                "code": self.session.code_hashes[run.name],
                # A resumed worktree may be of another commit, with the same code for this run.
                "commit": git(job.folder, "rev-parse", "HEAD"),
                "is_dirty": code.is_dirty,
                "seconds": round(job.seconds, 1),
                "made_shared_stages": run in self.leaders,
            }
            try:
                keep_results(job.folder, record_folder(self.state, name, run), run, about)
            except (UserError, OSError) as error:
                problem = str(error)
            else:
                # A worktree holds links into the cache and checkpoints; its results have been copied.
                if not self.session.choice.is_kept:
                    remove_checkout(code.root, job.folder)
                self.say(f"{run.variant} seed {run.seed}: done in {job.seconds:.0f} s")
                return True
        lines = job.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        self.say(f"{run.variant} seed {run.seed}: FAILED ({problem}); the end of {job.log}:")
        self.say("\n".join(f"    {line}" for line in lines))
        return False

    def _say_rest(self) -> None:
        left = [*(job.run for job in self.running), *self.waiting]
        if left:
            estimate = expected_seconds(self.ablation, left, self.session.jobs, self.seconds, self.tried)
            self.say(f"    {len(left)} runs left, about {estimate / 60:.0f} min")

    def _say_now_and_then(self) -> None:
        if time.monotonic() - self.said > SECONDS_BETWEEN_LINES and self.running:
            self.said = time.monotonic()
            self.say("running: " + "; ".join(map(str, self.running)))


MIB, GIB = 2**20, 2**30
HOST_BYTES = 2.0 * GIB
"""Bytes of a stage's process with torch's libraries, without its computation; an assumption, generous on a CPU."""
FREE_SHARE = 0.9
"""Share of the free memory; the rest is for memory that a plan does not see."""
ANY_GPU = "H100"
"""A plan needs a device, but only its bytes are used, and a policy's memory is the same on each device."""


@dataclass(frozen=True)
class FreeResources:
    """The resources that runs share."""

    cores: int
    free_bytes: float
    gpu_free_bytes: Mapping[str, float]
    """By the GPU's number; empty without one."""


def this_machine(gpus: Iterable[str]) -> FreeResources:
    """Measures the free memory of the machine and of these GPUs. UserError when nvidia-smi does not report it."""
    free = {gpu: _gpu_free_bytes(gpu) for gpu in gpus}
    return FreeResources(len(os.sched_getaffinity(0)), psutil.virtual_memory().available, free)


def jobs_that_fit(root: Path, params: Iterable[Mapping[str, Any]], machine: FreeResources) -> tuple[int, str]:
    """Returns runs at once by memory and cores, at least 1, and the reason in words.

    `params`: those of every run; the largest decides. A run computes on `threads` cores; a run on a GPU needs only one
    core. vLLM takes a fixed share of a card, even for a small policy. Lower `sampler.memory_fraction` to fit more runs.
    """
    every = list(params)
    on_gpu = bool(machine.gpu_free_bytes)
    # Runs start in any order, so each place must have room for the largest.
    bytes_each = max(_bytes_of(root, one, machine) for one in _distinct(every))
    threads = 1 if on_gpu else max(_threads(one) for one in every)
    host_each = HOST_BYTES + (0 if on_gpu else bytes_each)
    limits = [
        (machine.cores // threads, f"{machine.cores} cores, {threads} for a run"),
        (
            int(FREE_SHARE * machine.free_bytes / host_each),
            f"{machine.free_bytes / 1e9:.0f} GB of memory are free, {host_each / 1e9:.1f} for a run",
        ),
    ]
    if on_gpu:
        free = list(machine.gpu_free_bytes.values())
        limits.append(
            (
                sum(int(FREE_SHARE * one / bytes_each) for one in free),
                f"{sum(free) / 1e9:.0f} GB on {len(free)} GPUs are free, {bytes_each / 1e9:.1f} for a run",
            )
        )
    if on_gpu and not all(map(wants_one_gpu, every)):
        # Two such runs side by side would use the same cards.
        limits.append((1, "a run takes several GPUs"))
    count, reason = min(limits)
    # At least one run is tried, however little is free: the estimate may be too careful.
    return max(1, count), reason


def wants_one_gpu(params: Mapping[str, Any]) -> bool:
    """False where ranks, a wide sampler or replicas take more; such a run must see all GPUs of the machine."""
    # A recipe of pictures has none.
    sampler = params.get("sampler", {})
    replicas = (sampler.get("replicas") or {}).get("count", 1)
    is_split = params.get("rl", {}).get("loop", {}).get("kind") == "asynchronous"
    ranks = params.get("launch", {}).get("gpus_per_node", 1)
    return max(ranks, replicas, sampler.get("tensor_parallel", 1)) == 1 and not is_split


def _distinct(every: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Runs that differ only in the seed need the same memory."""
    return list({stable_hash({**one, "seed": 0}): one for one in every}.values())


def _bytes_of(root: Path, params: Mapping[str, Any], machine: FreeResources) -> float:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "params.yaml"
        file.write_text(dump_yaml(dict(params)))
        stages = make_plan(root, str(file), PlanRequest(gpu=ANY_GPU)).stages
    sampler = params.get("sampler", {})
    card = max(machine.gpu_free_bytes.values(), default=0.0)
    # vLLM always fills its share of the card, so the plan's bytes do not count.
    share = card * sampler["memory_fraction"] if sampler.get("kind") == "vllm" else None
    return max(_held(stage, share) for stage in stages) + (CONTEXT_BYTES if machine.gpu_free_bytes else 0.0)


def _held(stage: StagePlan, vllm_bytes: float | None) -> float:
    """Bytes of trainer and sampler together; a context counts once per process, and a CPU has none."""
    held = stage.training.total if stage.training else 0.0
    if stage.sampling is None:
        return held
    drawn_with = stage.sampling.weights + max(0.0, stage.sampling.kv_cache)
    return held + (drawn_with if vllm_bytes is None else vllm_bytes)


def _threads(params: Mapping[str, Any]) -> int:
    return max(params.get(section, {}).get("threads", 1) for section in ("sampler", "trainer"))


def _gpu_free_bytes(gpu: str) -> float:
    # nvidia-smi instead of torch: a CUDA context in this process would take memory from the runs.
    command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return float(done.stdout) * MIB
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise UserError(
            f"--jobs auto: nvidia-smi does not say how much of GPU {gpu} is free ({error}): give a number of jobs"
        ) from error
