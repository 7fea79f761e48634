"""kill -9 and SIGSTOP at seeded moments in an asynchronous round: does it recover by itself without losing data?

    python -m benchmarks.asynchronous_faults --project FOLDER --work FOLDER [--part actors|hub|steps|stopped]
        [--kills 20] [--load 0]

FOLDER of the project: a checkout whose laptop recipe has run, for its sft policy and its problems. Parts:
actors: one round in which a replica, the relay and the trainer are killed, `--kills` times each, at seeded moments.
hub: `--kills` rounds. The hub process of each is killed once, at a seeded moment; then the round is run again to its
end.
steps: one round whose hub process is killed `--kills` times, each time just after another step, and run again. The
moment comes from the journal and not from a clock: a new step and a seeded number of records behind it. The round is
synchronous in its order (window 0, no dynamic sampling, one replica), so its policy must equal that of a round that
nobody disturbs. An attempt that says "no progress", or adds nothing to its journal for ten minutes, is a failure.
stopped: a replica is stopped (SIGSTOP) `--kills` times, and continued after it was replaced.

Checks in each part: the exit code is 0 without help. Every group is in the rollouts table once, and trained rows are
steps times batch. A replay of the schedule gives the same weights. No process and no folder in /dev/shm is left.
`--load N` starts N processes that only compute, beside all of it.
Reports the time until a replica decodes again, and the longest pause of training over its median step. Exit code 1 when
a check fails.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from pipelines.graph.recipes import recipe_text
from stages.foundations.files import dump_yaml, load_yaml, sha256_of
from stages.foundations.tables import ROLLOUT, read_table
from stages.observe.progress import say
from stages.rl_round.asynchronous.journal import MARKER, Finished, Issued, Journal, record_from_json

PROJECT = Path(__file__).resolve().parents[1]
ACTORS = {"replica": "ReplicaActor", "relay": "Relay", "trainer": "TrainerActor"}
SECONDS_BETWEEN = (6.0, 10.0)
"""Longer than a victim takes to be back: the promise is about any one process at a time."""
LEFT_OVER_SECONDS = 10.0
STAND_STILL_SECONDS = 600.0
MOST_RECORDS_BEHIND = 40
"""Journal records behind a step, about as many as a step has with the sizes below."""


@dataclass(frozen=True)
class Places:
    """The folders that a round reads and writes."""

    project: Path
    work: Path
    params: Path

    def command(self, out: Path, params: Path) -> list[str]:
        flags = {
            "params": params,
            "policy": self.project / "data/policies/sft",
            "problems": self.project / "data/problems/train.parquet",
            "validation": self.project / "data/problems/validation.parquet",
            "out": out / "policies/rl_1",
            "rollouts": out / "rollouts/rl_1.parquet",
            "schedule": out / "schedules/rl_1",
            "curves": out / "rl_1.csv",
            "metrics": out / "rl_1.json",
            "headline": out / "rl_1_headline.json",
        }
        pairs = [part for name, value in flags.items() for part in (f"--{name}", str(value))]
        return [sys.executable, "-m", "stages", "rl_round@rl_1", *pairs]

    def environment(self, name: str) -> dict[str, str]:
        """Returns an environment without tracking and with separate scratch folders."""
        state = str(self.work / "state" / name)
        return {**os.environ, "RETRACE_TRACKING": "off", "RETRACE_STATE": state, "PYTHONPATH": str(PROJECT)}

    def start(self, name: str, params: Path | None = None) -> subprocess.Popen:
        """Starts the round, with its output in a separate file."""
        with open(self.work / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                self.command(self.work / name, params or self.params),
                env=self.environment(name),
                cwd=PROJECT,
                stderr=log,
                start_new_session=True,
            )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--project", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--part", choices=["actors", "hub", "steps", "stopped"], default="actors")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(argv)
    if not (asked.project / "data/policies/sft").exists():
        parser.error(f"{asked.project} holds no data/policies/sft: run its laptop recipe first (`make repro`)")
    asked.work.mkdir(parents=True, exist_ok=True)
    places = Places(asked.project.resolve(), asked.work.resolve(), asked.work.resolve() / "params.yaml")
    if asked.part == "steps" and asked.kills >= asked.steps:
        parser.error(f"--kills {asked.kills} must be less than --steps {asked.steps}: each comes after another step")
    params = _params(asked.steps)
    if asked.part == "steps":
        _make_ordered(params)
    places.params.write_text(dump_yaml(params), encoding="utf-8")
    chance = random.Random(asked.seed)
    part = {"actors": kill_actors, "hub": kill_hubs, "steps": kill_between_steps, "stopped": stop_replicas}[asked.part]
    load = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(asked.load)]
    try:
        found, failures = part(places, asked.kills, asked.steps, chance)
    finally:
        for process in load:
            process.kill()
    print(json.dumps({"part": asked.part, **found, "failures": failures}, indent=1))
    return 1 if failures else 0


def _params(steps: int) -> dict[str, Any]:
    """Returns the asynchronous laptop recipe with many small steps: 8 groups of 8, and two replicas.

    The policy learns so little that groups keep their signal for a thousand steps.
    """
    params = load_yaml(recipe_text(PROJECT, "laptop-asynchronous"))
    params["rl"] |= {"problems_per_step": 8, "group_size": 8}
    params["rl"]["optimizer"]["learning_rate"] = 1e-6
    params["rl"]["loop"]["repack"]["every_seconds"] = 1.0
    params["sampler"]["replicas"]["count"] = 2
    params["rl_rounds"]["rl_1"]["steps"] = steps
    return params


def _make_ordered(params: dict[str, Any]) -> None:
    """Changes the recipe so that every run of it trains on the same batches."""
    params["rl"]["dynamic_sampling"] = {"kind": "none"}
    params["rl"]["loop"] |= {"window": 0, "repack": {"kind": "none"}}
    params["sampler"]["replicas"]["count"] = 1


def kill_actors(places: Places, kills: int, steps: int, chance: random.Random) -> tuple[dict[str, Any], list[str]]:
    """Runs one round and kills a process every few seconds."""
    victims = [kind for kind in ACTORS for _ in range(kills)]
    chance.shuffle(victims)
    hub = places.start("actors")
    killed: Counter[str] = Counter()
    _wait_for_first_step(hub, places.work / "actors.log")
    for kind in victims:
        time.sleep(chance.uniform(*SECONDS_BETWEEN))
        if hub.poll() is not None:
            break
        found = _actors(hub, ACTORS[kind])
        if found:
            chance.choice(found).kill()
            killed[kind] += 1
            say(f"killed {kind} {killed[kind]} of {kills}")
    hub.wait()
    found, failures = _check(places, "actors", hub.returncode, steps)
    failures += [
        f"only {killed[kind]} of {kills} {kind}s were killed: the round ended, raise --steps"
        for kind in ACTORS
        if killed[kind] < kills
    ]
    return {"killed": killed, **found}, failures


def kill_hubs(places: Places, kills: int, steps: int, chance: random.Random) -> tuple[dict[str, Any], list[str]]:
    """Runs rounds that are killed once, and resumes them."""
    failures: list[str] = []
    drawn_again, told = 0, []
    for number in range(kills):
        name, killed = f"hub{number}", None
        while killed is None:  # a round that ended before its moment does not count
            killed = _killed(places, name, chance.uniform(0.0, 20.0))
        hub, before = killed
        left = _left_over(hub)
        failures += [f"{name}: {one} was left behind" for one in left]
        again = places.start(name)
        again.wait()
        found, own = _check(places, name, again.returncode, steps)
        failures += own
        told.append(found)
        again_drawn = _drawn_again(before, places.work / name)
        drawn_again += len(again_drawn)
        if again_drawn:
            failures.append(f"{name}: {len(again_drawn)} responses journalled a second before were drawn again")
        say(f"hub {number + 1} of {kills}: {len(before)} responses kept")
        shutil.rmtree(places.work / name)
    return {"hubs": kills, "drawn_again": drawn_again}, failures


def kill_between_steps(
    places: Places, kills: int, steps: int, chance: random.Random
) -> tuple[dict[str, Any], list[str]]:
    """Kills one round after each of its first `kills` steps, and compares it with an undisturbed one."""
    failures: list[str] = []
    calm = places.start("calm")
    if calm.wait():
        return {}, [f"the undisturbed round ended with exit code {calm.returncode}: see {places.work}/calm.log"]
    killed = 0
    for _ in range(kills):
        # One more than the journal has: an attempt may have come a step further than it was asked to.
        step = _records(places.work / "state" / "steps").count(b'"kind":"stepped"') + 1
        hub, behind = places.start("steps"), chance.randrange(MOST_RECORDS_BEHIND)
        if not _wait_for_records(hub, places.work / "state" / "steps", step, behind):
            failures.append(f"no new record for {STAND_STILL_SECONDS:.0f} s before step {step}: it stood still")
        if hub.poll() is None:
            hub.kill()
            killed += 1
        hub.wait()
        failures += [f"after step {step}: {one} was left behind" for one in _left_over(hub.pid)]
        say(f"killed {killed} of {kills}, {behind} records behind step {step}")
    hub = places.start("steps")
    hub.wait()
    found, own = _check(places, "steps", hub.returncode, steps)
    log = (places.work / "steps.log").read_text(encoding="utf-8")
    still = [line for line in log.splitlines() if "no progress for" in line and "Ray" not in line]
    weights = [places.work / run / "policies/rl_1/model.safetensors" for run in ("calm", "steps")]
    if not own and sha256_of(weights[0]) != sha256_of(weights[1]):
        own = ["the policy is not that of the undisturbed round"]
    if killed < kills:
        own.append(f"only {killed} of {kills} kills met a running round")
    return {"killed": killed, "lines_without_progress": len(still), **found}, failures + own + still


def _wait_for_records(hub: subprocess.Popen, state: Path, step: int, behind: int) -> bool:
    """Waits until the journal has `behind` records after that step, or the round has ended.

    Returns False if the journal has not grown for `STAND_STILL_SECONDS`.
    """
    size, grown_at = -1, time.monotonic()
    while hub.poll() is None:
        records = _records(state)
        _, found, after = records.partition(f'"kind":"stepped","step":{step},'.encode())
        if found and after.count(MARKER) >= behind:
            return True
        if len(records) != size:
            size, grown_at = len(records), time.monotonic()
        elif time.monotonic() - grown_at > STAND_STILL_SECONDS:
            return False
        time.sleep(0.02)
    return True


def _records(state: Path) -> bytes:
    return b"".join(path.read_bytes() for path in state.glob("scratch/rl_round-*/journal/records"))


def _killed(places: Places, name: str, seconds: float) -> tuple[int, list[tuple[Issued, Finished]]] | None:
    """Kills a new round `seconds` after the start of training; returns its process, and the responses that were in its
    journal for at least a second.

    None if the round had ended.
    """
    shutil.rmtree(places.work / "state" / name, ignore_errors=True)
    hub = places.start(name)
    _wait_for_first_step(hub, places.work / f"{name}.log")
    time.sleep(seconds)
    if hub.poll() is None:
        before = _journalled(places.work / "state" / name, older_than_seconds=1.0)
        hub.kill()
        if hub.wait() < 0:
            return hub.pid, before
    shutil.rmtree(places.work / name, ignore_errors=True)
    return None


def stop_replicas(places: Places, kills: int, steps: int, chance: random.Random) -> tuple[dict[str, Any], list[str]]:
    """Runs a round with replicas that hang and wake up."""
    hub = places.start("stopped")
    failures: list[str] = []
    seconds: list[float] = []
    _wait_for_first_step(hub, places.work / "stopped.log")
    for _ in range(kills):
        time.sleep(chance.uniform(*SECONDS_BETWEEN))
        found = _actors(hub, ACTORS["replica"])
        if hub.poll() is not None or not found:
            break
        victim = chance.choice(found)
        victim.suspend()
        stopped = time.monotonic()
        while victim.is_running() and victim.status() != psutil.STATUS_ZOMBIE:
            if time.monotonic() - stopped > 60.0:
                failures.append("a stopped replica was not replaced in 60 s")
                break
            time.sleep(0.05)
        seconds.append(time.monotonic() - stopped)
        say(f"replaced after {seconds[-1]:.1f} s")
    hub.wait()
    found, own = _check(places, "stopped", hub.returncode, steps)
    return {"stopped": len(seconds), "replaced_seconds_max": max(seconds), **found}, failures + own


def _actors(hub: subprocess.Popen, name: str) -> list[psutil.Process]:
    """Returns the hub's actors of a class, by the title that Ray gives them."""
    found = []
    for process in psutil.Process(hub.pid).children(recursive=True):
        try:
            if process.cmdline() and process.cmdline()[0].startswith(f"ray::{name}"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _wait_for_first_step(hub: subprocess.Popen, log: Path) -> None:
    """Returns when both replicas and the trainer are at work, or the round has ended."""
    while hub.poll() is None and not (len(_actors(hub, "ReplicaActor")) == 2 and _actors(hub, "TrainerActor")):
        time.sleep(0.2)
    time.sleep(8.0)


def _journalled(state: Path, older_than_seconds: float) -> list[tuple[Issued, Finished]]:
    """Returns responses that were in the journal `older_than_seconds` ago, each with its group's `Issued` record."""
    copies = Path(f"{state}.copy")
    shutil.rmtree(copies, ignore_errors=True)
    (folder,) = state.glob("scratch/rl_round-*/journal")
    shutil.copytree(folder, copies)
    time.sleep(older_than_seconds)
    with Journal(copies) as journal:
        records = [record_from_json(stored) for stored in journal.records()]
    shutil.rmtree(copies)
    issued = {record.group: record for record in records if isinstance(record, Issued)}
    return [(issued[record.group], record) for record in records if isinstance(record, Finished)]


def _drawn_again(before: list[tuple[Issued, Finished]], out: Path) -> list[Finished]:
    """Returns responses of `before` that were sampled again: their group has a fate, but does not contain them.

    A group that was still incomplete when the round took its last batch has no fate, and is in no table.
    """
    frame = read_table(out / "rollouts/rl_1.parquet", ROLLOUT)
    kept = {(row.problem_id, row.policy_version, tuple(row.token_ids)) for row in frame.itertuples()}
    fates = set(_fates(out))
    return [
        done
        for issued, done in before
        if (issued.problem_id, issued.draw) in fates
        and (issued.problem_id, done.sample.policy_version, tuple(done.sample.token_ids)) not in kept
    ]


def _fates(out: Path) -> list[tuple[str, int]]:
    """Returns problem and draw of every group that was trained on, left out, or complete and left over."""
    lines = (out / "schedules/rl_1/schedule.jsonl").read_text().splitlines()
    return [
        (group["problem_id"], group["draw"])
        for line in map(json.loads, lines)
        for fate in ("groups", "left_out", "leftover")
        for group in line.get(fate, [])
    ]


def _left_over(hub: int) -> list[str]:
    """Returns what remains of a dead hub after a while: processes that wrote into its Ray folder, files in memory."""
    deadline = time.monotonic() + LEFT_OVER_SECONDS
    while True:
        left = [f"process {process.pid}" for process in psutil.process_iter() if _is_of_ray(process, hub)]
        left += [str(path) for path in Path("/dev/shm").glob(f"retrace-{hub}.*")]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def _is_of_ray(process: psutil.Process, hub: int) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and any(
            f"/ray/{hub}" in one or f"retrace-ray-{hub}" in one for one in process.cmdline()
        )
    except psutil.Error:
        return False


def _check(places: Places, name: str, code: int, steps: int) -> tuple[dict[str, Any], list[str]]:
    """Checks the invariants of an ended round, and reads its timeline."""
    out = places.work / name
    if code:
        last = (places.work / f"{name}.log").read_text(encoding="utf-8").splitlines()[-3:]
        return {}, [f"{name}: exit code {code}: {' | '.join(last)}"]
    failures = []
    lines = [json.loads(line) for line in (out / "schedules/rl_1/schedule.jsonl").read_text().splitlines()]
    groups = _fates(out)
    if len(groups) != len(set(groups)):
        failures.append(f"{name}: {len(groups) - len(set(groups))} groups have two fates")
    trained = sum(len(line["groups"]) for line in lines if "groups" in line)
    if trained != 8 * steps:
        failures.append(f"{name}: {trained} groups were trained on, not {8 * steps}")
    if not _replays(places, name):
        failures.append(f"{name}: the replay of its schedule gives other weights")
    timeline = json.loads((out / "schedules/rl_1/timeline.json").read_text())
    metrics = json.loads((out / "rl_1.json").read_text())
    told = {key: value for key, value in metrics.items() if key.startswith(("fault/", "repack/", "staleness/m"))}
    return {**told, **_pauses(timeline)}, failures


def _replays(places: Places, name: str) -> bool:
    """Returns True if the recorded schedule gives the same policy again, bit for bit."""
    params = load_yaml(places.params.read_text(encoding="utf-8"))
    recorded = places.work / f"{name}.recorded" / "schedules"
    shutil.rmtree(recorded.parent, ignore_errors=True)
    shutil.copytree(places.work / name / "schedules", recorded)
    shutil.copytree(places.work / name / "rollouts", recorded.parent / "rollouts")
    params["rl"]["loop"] = {"kind": "replay", "schedule": str(recorded)}
    path = places.work / "replay.yaml"
    path.write_text(dump_yaml(params), encoding="utf-8")
    done = places.start(f"{name}.replay", path)
    done.wait()
    weights = [places.work / run / "policies/rl_1/model.safetensors" for run in (name, f"{name}.replay")]
    same = done.returncode == 0 and sha256_of(weights[0]) == sha256_of(weights[1])
    shutil.rmtree(recorded.parent)
    shutil.rmtree(places.work / f"{name}.replay", ignore_errors=True)
    return same


def _pauses(timeline: dict[str, Any]) -> dict[str, float]:
    """Returns seconds from a replica's death until it decodes again, and between the trainer's steps."""
    events = timeline["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    trained = sorted(
        (event["ts"] + event["dur"]) / 1e6
        for event in events
        if event["ph"] == "X" and names[event["pid"]] == "trainer" and event["name"] == "train"
    )
    trainer_faults = [
        event["ts"] / 1e6
        for event in events
        if event["ph"] == "i" and event["name"] == "fault" and names[event["pid"]] == "trainer"
    ]
    gaps = list(pairwise(trained))
    calm = [end - start for start, end in gaps if not any(start <= at <= end for at in trainer_faults)]
    own = [end - start for start, end in gaps if any(start <= at <= end for at in trainer_faults)]
    waits = []
    for pid, name in names.items():
        if not name.startswith("replica/"):
            continue
        faults = [
            event["ts"] for event in events if event["ph"] == "i" and event["pid"] == pid and event["name"] == "fault"
        ]
        work = sorted(
            event["ts"]
            for event in events
            if event["ph"] == "X" and event["pid"] == pid and event["name"] in ("decode", "prefill", "no_prompts")
        )
        for fault in faults:
            later = [start for start in work if start > fault]
            waits += [(later[0] - fault) / 1e6] if later else []
    median = statistics.median(calm) if calm else 0.0
    return {
        "step_seconds_median": round(median, 2),
        "pause_over_median_seconds_max": round(max(calm, default=0.0) - median, 2),
        "trainer_back_seconds_max": round(max(own, default=0.0), 2),
        "replica_back_seconds_max": round(max(waits, default=0.0), 2),
        "replica_deaths": len(waits),
    }


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
