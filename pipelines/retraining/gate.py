"""The gate: whether a retrained policy may replace the champion. A pure function of paired measurements.

A candidate is promoted only when all of these hold, on the problems that both have been measured on:

1. it is better in accuracy: the 95% interval of its gain is above 0 (stages/algorithms/estimators.py);
2. on no benchmark is its interval below 0;
3. on the problems that neither policy's training data contains, its accuracy does not fall;
4. its share of undecided verdicts does not rise: a policy must not gain by answers that cannot be judged.

Each retraining is another sample of the noise: a candidate that is no better passes rule 1 once in forty times.

`decision_page` and `decision_sentence` are the decision in words.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas

from pipelines.launching.params import stage_gpus
from pipelines.records.lock_snapshots import LockSnapshot, snapshot_at, working_snapshot
from pipelines.records.trained_on import trained_problems
from pipelines.retraining.champion import Champion
from pipelines.runtime.checkouts import worktree_environment
from pipelines.runtime.machine import gpu_slots, lock_folder
from pipelines.runtime.process_group import run_in_group
from stages.algorithms.estimators import PairedDifference, compare_paired
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.dvc_lock import CODE, LockedStage
from stages.foundations.errors import UserError
from stages.foundations.tables import RESPONSE, VERDICT, read_table

ROUNDING = 1e-9
"""Means of equal shares may differ by this much through rounding."""


@dataclass(frozen=True)
class Pair:
    """One benchmark problem, measured with both policies: shares of its responses, from 0 to 1."""

    benchmark: str
    champion: float
    """Share of correct responses."""
    candidate: float
    champion_undecided: float
    candidate_undecided: float
    is_clean: bool
    """False when either policy was trained on the problem."""


@dataclass(frozen=True)
class Decision:
    """The gate's decision, with the numbers behind it. `reasons` are empty exactly when the candidate is promoted."""

    reasons: tuple[str, ...]
    gain: PairedDifference | None
    """Candidate - champion over all problems; None without problems, as are the others."""
    by_benchmark: Mapping[str, PairedDifference]
    clean_gain: float | None
    """None when no problem is clean."""
    champion_undecided: float | None
    candidate_undecided: float | None
    problems: int

    @property
    def is_promoted(self) -> bool:
        return not self.reasons


def decide(pairs: Sequence[Pair]) -> Decision:
    """Decides; without a common problem, or without a clean one, nothing is proven and nothing promoted."""
    if not pairs:
        return Decision(("no problem was measured with both policies",), None, {}, None, None, None, 0)
    gain = _gain(pairs)
    names = sorted({pair.benchmark for pair in pairs})
    # With one benchmark its gain is the gain over all problems.
    own = {name: [pair for pair in pairs if pair.benchmark == name] for name in names}
    by_benchmark = {name: _gain(own[name]) if len(names) > 1 else gain for name in names}
    # No interval here: a fall rejects even if it may be noise, because a leak shows only on these problems.
    clean = [pair.candidate - pair.champion for pair in pairs if pair.is_clean]
    clean_gain = fmean(clean) if clean else None
    undecided = (fmean(pair.champion_undecided for pair in pairs), fmean(pair.candidate_undecided for pair in pairs))
    reasons = [
        *_of_gain(gain),
        # The interval and not the verdict: a benchmark too small for a verdict can still warn.
        *(
            f"worse on {name}: {describe_gain(own)}"
            for name, own in by_benchmark.items()
            if own.interval.verdict() == "worse"
        ),
        *_of_clean(clean_gain),
    ]
    if undecided[1] > undecided[0] + ROUNDING:
        reasons.append(f"undecided verdicts rise from {undecided[0]:.2%} to {undecided[1]:.2%}")
    return Decision(tuple(reasons), gain, by_benchmark, clean_gain, *undecided, len(pairs))


def describe_gain(gain: PairedDifference) -> str:
    """`+2.0 points (0.5 to 3.5)`: percentage points with the 95% interval."""
    estimate, low, high = gain.interval
    return f"{100 * estimate:+.1f} points ({100 * low:.1f} to {100 * high:.1f})"


def _gain(pairs: Sequence[Pair]) -> PairedDifference:
    return compare_paired([pair.champion for pair in pairs], [pair.candidate for pair in pairs])


def _of_gain(gain: PairedDifference) -> list[str]:
    if gain.verdict == "better":
        return []
    reason = "worse than the champion" if gain.verdict == "worse" else "inside the noise"
    return [f"{reason}: {describe_gain(gain)}"]


def _of_clean(clean_gain: float | None) -> list[str]:
    if clean_gain is None:
        return ["one of the policies was trained on every problem, so nothing clean can be compared"]
    return [f"the clean subset falls by {-100 * clean_gain:.1f} points"] if clean_gain < -ROUNDING else []


def decision_sentence(decision: Decision, champion: Champion) -> str:
    """Returns one sentence: promoted with its gain, or rejected with every reason."""
    against = f"champion v{champion.version}"
    if decision.is_promoted:
        return f"Scores higher than {against} on {decision.problems} problems: {describe_gain(decision.gain)}."
    return f"Refused against {against}: {'; '.join(decision.reasons)}."


def decision_page(decision: Decision, champion: Champion, branch: str, policy: str) -> str:
    """Returns markdown: the sentence, then the numbers behind it."""
    rows = [("all problems", describe_gain(decision.gain) if decision.gain else "none")]
    rows += [(name, describe_gain(found)) for name, found in decision.by_benchmark.items()]
    clean = "no problem is clean" if decision.clean_gain is None else f"{100 * decision.clean_gain:+.1f} points"
    rows.append(("clean subset", clean))
    if decision.candidate_undecided is not None:
        undecided = f"{decision.champion_undecided:.2%} to {decision.candidate_undecided:.2%}"
        rows.append(("undecided verdicts, champion to candidate", undecided))
    table = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(
        [
            f"## {'Promoted' if decision.is_promoted else 'Refused'}: {policy} of {branch}",
            "",
            decision_sentence(decision, champion),
            "",
            f"Paired by problem against champion {champion.describe()}; intervals are 95%, over problems. "
            "The decision is about these two policies, not about their settings.",
            "",
            "| candidate - champion | |",
            "|---|---|",
            *table,
        ]
    )


def candidate_measurement(folder: Path, policy: str) -> Measurement:
    return Measurement(
        folder / "data" / "responses" / f"{policy}.parquet",
        folder / "data" / "verdicts" / f"{policy}.parquet",
        _trained(working_snapshot(folder), policy, "run the flow again"),
    )


def champion_measurement(
    champion: Champion, folder: Path, policy: str, hours: float, on_line: Callable[[str], None]
) -> tuple[Measurement, bool]:
    """Returns the champion's tables, and whether it was measured again in the candidate's worktree `folder`.

    UserError when the cache lacks a needed file, or a command fails; TimedOut when one exceeds so many hours.
    """
    theirs, own = snapshot_at(folder, champion.commit), working_snapshot(folder)
    trained = _trained(theirs, champion.policy, _remedy(champion))
    # Generating all responses of the champion again takes a stage's time, so it is done only where it matters.
    if _conditions(theirs, champion.policy) == _conditions(own, policy):
        tables = (_files_of(theirs, f"data/{kind}/{champion.policy}.parquet", champion)[""] for kind in TABLES)
        return Measurement(*tables, trained), False
    place = folder / "state" / "champion"
    # Tables of an attempt that was killed may be incomplete.
    shutil.rmtree(place, ignore_errors=True)
    weights, measured_by = f"data/policies/{policy}", _measured_by(own, policy)
    moved = [weights, *(path for entry in measured_by for path in entry.outs)]
    for path in moved:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
    for name, file in _files_of(theirs, f"data/policies/{champion.policy}", champion).items():
        goal = place / weights / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        # Links instead of copies: weights are large, and objects in the cache are never written to.
        os.symlink(file, goal)
    for entry in measured_by:
        command = _moved(entry.command, moved)
        gpus = stage_gpus(folder, entry.stage, command)
        # Untracked: this measures the champion again, and is not a run of the recipe.
        surroundings = worktree_environment(folder, is_tracked=False)
        # Other flows and commands on this machine may hold GPUs now.
        with gpu_slots(gpus, lock_folder(), on_line) as slots:
            if slots.gpus:
                surroundings["CUDA_VISIBLE_DEVICES"] = ",".join(slots.gpus)
            shell = ["/bin/sh", "-c", command]
            code = run_in_group(shell, folder, on_line, hours * 3600, surroundings, slots.held)
        if code:
            raise UserError(f"the champion could not be measured again: `{command}` ended with exit code {code}")
    return Measurement(*(place / "data" / kind / f"{policy}.parquet" for kind in TABLES), trained), True


def _trained(snapshot: LockSnapshot, policy: str, remedy: str) -> frozenset[str]:
    trained = trained_problems(snapshot, policy)
    if trained is None:
        raise UserError(f"{snapshot.label} lacks tables that {policy} was trained on: {remedy}")
    return trained


def _conditions(snapshot: LockSnapshot, policy: str) -> dict[str, Any]:
    """Returns the inputs that decide a policy's verdicts, apart from the policy."""
    asking, judging = _measured_by(snapshot, policy)
    # The policy is compared. All other inputs of its responses must be equal.
    asked = {path: digest for path, digest in asking.deps.items() if "data/policies/" not in path}
    # Responses differ anyway; the only other inputs of a verdict are the verifier's code and parameters.
    judged = {path: digest for path, digest in judging.deps.items() if path.startswith(CODE)}
    return {"deps": asked | judged, "params": [asking.params, judging.params]}


def _measured_by(snapshot: LockSnapshot, policy: str) -> list[LockedStage]:
    """Returns the stages on record that make the policy's responses and then the verdicts on them."""
    tables = [f"data/{kind}/{policy}.parquet" for kind in TABLES]
    return [entry for table in tables for entry in snapshot.entries.values() if table in entry.outs]


def _moved(command: str, paths: list[str]) -> str:
    """Returns the command with each of `paths` moved below state/champion."""
    return shlex.join(f"state/champion/{word}" if word in paths else word for word in shlex.split(command))


def _remedy(champion: Champion) -> str:
    return f"git checkout {champion.tag} && dvc pull, then run the flow again (dvc gc needs --all-tags)"


def _files_of(snapshot: LockSnapshot, path: str, champion: Champion) -> dict[str, Path]:
    """Returns the files of an output of the champion. UserError with the remedy when DVC's cache lacks one."""
    files = snapshot.files(path)
    if files is None:
        raise UserError(f"DVC's cache lacks {path} of champion {champion.describe()}: {_remedy(champion)}")
    return files


TABLES = ("responses", "verdicts")
KEY = ["benchmark", "problem", "answer"]
"""Columns that identify a problem: ids are row numbers of a source, and a new revision may renumber them."""
OPINIONS = ("correct", "wrong")
LEAST_COMMON = 0.9
"""Share of the candidate's problems on which the champion must have been measured too."""


@dataclass(frozen=True)
class Measurement:
    """The two tables behind a policy's scores, and the texts it was trained on."""

    responses: Path
    verdicts: Path
    trained: frozenset[str]
    """Normalised texts (pipelines/records/trained_on.py)."""


def pair_up(champion: Measurement, candidate: Measurement) -> list[Pair]:
    """Returns the problems that both were measured on, with sampled responses, or greedy ones where none were sampled.

    UserError when too few problems are common, or one policy was sampled and the other was not.
    """
    first, second = _shares(champion), _shares(candidate)
    if set(first["mode"]) != set(second["mode"]):
        raise UserError(
            f"the champion was measured {_modes(first)}, the candidate {_modes(second)}: nothing can be compared"
        )
    # By text and answer, and not by id: see KEY.
    both = first.merge(second, on=KEY, suffixes=("_champion", "_candidate"))
    if len(both) < LEAST_COMMON * len(second):
        raise UserError(f"the champion answered only {len(both)} of the candidate's {len(second)} benchmark problems")
    trained = champion.trained | candidate.trained
    return [
        Pair(
            benchmark=row.benchmark,
            champion=row.correct_champion,
            candidate=row.correct_candidate,
            champion_undecided=row.undecided_champion,
            candidate_undecided=row.undecided_candidate,
            is_clean=normalise_problem(row.problem) not in trained,
        )
        for row in both.itertuples()
    ]


def _shares(measured: Measurement) -> pandas.DataFrame:
    """Returns a row per problem: KEY, mode, and the shares of correct and of undecided responses."""
    responses = read_table(measured.responses, RESPONSE)
    verdicts = read_table(measured.verdicts, VERDICT)
    names = ["problem_id", "benchmark", "mode", "sample_index"]
    rows = responses[[*names, "problem", "answer"]].merge(verdicts[[*names, "verdict"]], on=names, validate="1:1")
    # The merge keeps only responses with a verdict: fewer rows mean that the tables are of two runs.
    if len(rows) != len(responses):
        raise UserError(f"{measured.verdicts} does not belong to {measured.responses}: run the grade stage again")
    # The mean of several samples is less noisy than one greedy response.
    mode = "sampled" if (rows["mode"] == "sampled").any() else "greedy"
    rows = rows[rows["mode"] == mode]
    # Unparsed, exhausted and crashed: the verifier has no opinion on these.
    rows = rows.assign(correct=rows["verdict"] == "correct", undecided=~rows["verdict"].isin(OPINIONS), mode=mode)
    return rows.groupby([*KEY, "mode"], as_index=False)[["correct", "undecided"]].mean()


def _modes(shares: pandas.DataFrame) -> str:
    modes: Sequence[str] = sorted(set(shares["mode"]))
    return " and ".join(modes) or "on nothing"
