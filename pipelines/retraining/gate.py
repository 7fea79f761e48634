"""The gate: whether a retrained policy replaces the champion, the policy in use; its promotion, and the way back.

A candidate is promoted only when all of these hold, on the problems that both have been measured on:

1. it is better in accuracy: the 95% interval of its gain is above 0 (stages/algorithms/estimators.py);
2. on no benchmark is its interval below 0;
3. on the problems that neither policy's training data contains, its accuracy does not fall;
4. its share of undecided verdicts does not rise: a policy must not gain by answers that cannot be judged.

Each retraining is another sample of the noise: a candidate that is no better passes rule 1 once in forty times.

Git tags define the champion of a recipe, and the alias in MLflow's registry repeats it:

    champion-<recipe>-v<N>    one for each promotion, never moved; its message is a Champion as JSON
    champion-<recipe>         points to the current champion

The weights stay in DVC's cache: tag and model version name the commit, whose dvc.lock has their hash. If MLflow's
database is lost, `update_registry` writes it again from the tags.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.graph.recipes import recipe_names
from pipelines.launching.launchers import stage_gpus
from pipelines.records.lock_snapshots import LockSnapshot, snapshot_at, working_snapshot
from pipelines.records.tracking_store import is_tracking_off, mlflow_faults, open_store
from pipelines.runtime.checkouts import worktree_environment
from pipelines.runtime.machine import gpu_slots, lock_folder
from pipelines.runtime.process_group import run_in_group
from stages.algorithms.estimators import PairedDifference, compare_paired
from stages.algorithms.problem_text import normalise_problem
from stages.foundations.dvc_lock import CODE, LockedStage
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.observe.git import git, git_as_someone, has_revision
from stages.observe.tracking import recipe_name

if TYPE_CHECKING:
    import pandas

ALIAS = "champion"


@dataclass(frozen=True)
class Champion:
    """A promotion."""

    recipe: str
    version: int
    policy: str
    commit: str
    """The commit with the params.yaml and dvc.lock that made it."""
    policy_hash: str
    """DVC's hash of the policy's folder."""
    run_id: str
    """MLflow's run of the stage that made it; "" when tracking was off."""
    before: int | None
    """Version of the champion that it replaced; None for the first."""
    date: str

    @property
    def tag(self) -> str:
        return f"champion-{self.recipe}-v{self.version}"

    def __str__(self) -> str:
        return f"v{self.version} ({self.policy}, policy {self.policy_hash[:8]}, commit {self.commit[:10]}, {self.date})"


def promotions(root: Path, recipe: str = "") -> list[Champion]:
    """Returns the champions of a recipe, or of all recipes, that were ever promoted, oldest first."""
    found = []
    for message in git(root, "for-each-ref", "--format=%(contents:body)%00", "refs/tags/champion-*-v*").split("\0"):
        # A user may have set a tag that only looks like a promotion.
        with suppress(ValueError, TypeError):
            found.append(Champion(**json.loads(message)))
    return sorted((one for one in found if recipe in ("", one.recipe)), key=lambda one: one.version)


def current(root: Path, recipe: str) -> Champion | None:
    """Returns None when there has been no promotion. UserError when the moving tag points elsewhere."""
    tag = f"champion-{recipe}"
    if not has_revision(root, f"refs/tags/{tag}"):
        return None
    # The moving tag points to the tag object of a promotion, not to the commit: two promotions may share a commit.
    target = git(root, "rev-parse", f"refs/tags/{tag}")
    for one in promotions(root, recipe):
        if git(root, "rev-parse", f"refs/tags/{one.tag}") == target:
            return one
    raise UserError(f"tag {tag} points to no promotion: set it to one of them, such as git tag -f {tag} {tag}-v1")


def promote(root: Path, champion: Champion) -> None:
    """Makes it the champion: its tag, the moving tag, the alias. Every step may be repeated."""
    # If an earlier call was killed after this step, the tag exists, and only the remaining steps are done.
    if not has_revision(root, f"refs/tags/{champion.tag}"):
        message = f"{champion.policy} of {champion.recipe} promoted\n\n{json.dumps(asdict(champion), indent=1)}"
        git_as_someone(root, "tag", "--annotate", champion.tag, champion.commit, "--message", message)
    make_current(root, champion)


def make_current(root: Path, champion: Champion) -> None:
    """Points the moving tag and the alias to a promotion."""
    # Git comes before MLflow, because the registry can be written from the tags and not the other way round. Without
    # --no-sign the setting tag.gpgSign would create a new tag object here, which is not a promotion.
    git(root, "tag", "--force", "--no-sign", f"champion-{champion.recipe}", f"refs/tags/{champion.tag}")
    update_registry(root, champion.recipe)


def update_registry(root: Path, recipe: str) -> str:
    """Registers every promotion that MLflow lacks and sets the alias; returns the changes, "" when there were none.

    Does nothing with RETRACE_TRACKING=off. UserError when MLflow cannot be reached.
    """
    now = current(root, recipe)
    if is_tracking_off() or now is None:
        return ""
    with mlflow_faults("git's tags name the champion; `retrace rollback` or the next retrain updates MLflow"):
        from mlflow.exceptions import MlflowException

        client, name = open_store().client, f"retrace-{recipe}"
        try:
            client.get_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            client.create_registered_model(name, description=f"Champions of the recipe {recipe}; weights are in DVC.")
        known = {one.tags.get("git.tag"): one.version for one in client.search_model_versions(f"name='{name}'")}
        # Oldest first, so that MLflow counts its versions in the order of the promotions.
        missing = [one for one in promotions(root, recipe) if one.tag not in known]
        for one in missing:
            tags = {
                "git.tag": one.tag,
                "git.commit": one.commit,
                "dvc.md5": one.policy_hash,
                "policy": one.policy,
                "recipe": recipe,
                "promoted": one.date,
            }
            source = f"dvc://{one.commit}/data/policies/{one.policy}#{one.policy_hash}"
            made = client.create_model_version(name, source, run_id=one.run_id or None, tags=tags)
            known[one.tag] = made.version
        changed = [one.tag for one in missing]
        # MLflow returns a version as a number or as a text, depending on the store.
        if str(client.get_registered_model(name).aliases.get(ALIAS)) != str(known[now.tag]):
            client.set_registered_model_alias(name, ALIAS, str(known[now.tag]))
            changed.append(f"alias {ALIAS}")
    return ", ".join(changed)


def rollback(
    recipe: Annotated[str, typer.Argument(help="recipe of the champion (default: the recipe in use)")] = "",
    to: Annotated[int | None, typer.Option(min=1, help="version to restore (default: the previous one)")] = None,
) -> None:
    """Make the previous champion of a recipe the champion again: the git tag and MLflow's alias.

    Restores the champion before the last promotion; repeating the command changes nothing. --to restores any version.
    Files and branches do not change. Exit code 2: there is none before.
    """
    recipe = recipe or recipe_name(PROJECT).partition("+")[0] or "laptop"
    every, now = promotions(PROJECT, recipe), current(PROJECT, recipe)
    if not every:
        recipes, crowned = recipe_names(PROJECT), sorted({one.recipe for one in promotions(PROJECT)})
        problem = f"recipe {recipe} has no champion yet: the flow retrain promotes the first"
        if recipes and recipe not in recipes:
            problem = f"unknown recipe {recipe!r}: there are {', '.join(recipes)}"
        raise UserError(problem + (f"; champions have {', '.join(crowned)}" if crowned else ""))
    known = ", ".join(f"v{one.version}" for one in every)
    if now is None and to is None:
        raise UserError(f"the tag champion-{recipe} is gone: name a champion with --to, there are {known}")
    # Relative to the last promotion, not to the current champion: so repeating the command changes nothing.
    version = every[-1].before if to is None else to
    if version is None:
        raise UserError(f"there is no champion of {recipe} before {every[-1]}: it is the first")
    found = next((one for one in every if one.version == version), None)
    if found is None:
        raise UserError(f"recipe {recipe} has no champion v{version}: there are {known}")
    if now == found:
        # MLflow may have been unreachable during the first call: this one updates it.
        mended = update_registry(PROJECT, recipe)
        typer.echo(f"{found} is the champion of {recipe} already" + (f"; mended in MLflow: {mended}" if mended else ""))
        return
    make_current(PROJECT, found)
    if now is not None:
        typer.echo(f"the champion of {recipe} was {now}")
    alias = f"MLflow's alias retrace-{recipe}@{ALIAS}"
    told = f"; RETRACE_TRACKING=off leaves {alias} as it was" if is_tracking_off() else f" and {alias}"
    typer.echo(f"and now is {found}: tag champion-{recipe}{told}")


TABLES = ("responses", "verdicts")


@dataclass(frozen=True)
class Measurement:
    """The two tables behind a policy's scores, and the texts it was trained on."""

    responses: Path
    verdicts: Path
    trained: frozenset[str]
    """Normalised texts (pipelines/records/trained_on.py)."""


def candidate_measurement(folder: Path, policy: str) -> Measurement:
    """Returns the tables of the policy retrained in the worktree `folder`."""
    tables = (folder / "data" / kind / f"{policy}.parquet" for kind in TABLES)
    return Measurement(*tables, _trained(working_snapshot(folder), policy, "run the flow again"))


def champion_measurement(
    champion: Champion, folder: Path, policy: str, hours: float, say: Callable[[str], None]
) -> Measurement:
    """Returns the champion's tables; it is measured again in the candidate's worktree `folder` if the old ones differ.

    UserError when the cache lacks a needed file, or a command fails; TimedOut when one exceeds so many hours.
    """
    theirs, own = snapshot_at(folder, champion.commit), working_snapshot(folder)
    remedy = f"git checkout {champion.tag} && dvc pull, then run the flow again (dvc gc needs --all-tags)"
    trained = _trained(theirs, champion.policy, remedy)

    def files(path: str) -> dict[str, Path]:
        found = theirs.files(path)
        if found is None:
            raise UserError(f"DVC's cache lacks {path} of champion {champion}: {remedy}")
        return found

    # Generating all responses of the champion again takes a stage's time, so it is done only where it matters.
    if _conditions(theirs, champion.policy) == _conditions(own, policy):
        say("the champion was measured alike before")
        return Measurement(*(files(f"data/{kind}/{champion.policy}.parquet")[""] for kind in TABLES), trained)
    place = folder / "state" / "champion"
    # Tables of an attempt that was killed may be incomplete.
    shutil.rmtree(place, ignore_errors=True)
    weights, measuring = f"data/policies/{policy}", _measuring(own, policy)
    moved = [weights, *(path for entry in measuring for path in entry.outs)]
    for path in moved:
        (place / path).parent.mkdir(parents=True, exist_ok=True)
    for name, file in files(f"data/policies/{champion.policy}").items():
        goal = place / weights / name
        goal.parent.mkdir(parents=True, exist_ok=True)
        # Links instead of copies: weights are large, and objects in the cache are never written to.
        os.symlink(file, goal)
    for entry in measuring:
        words = shlex.split(entry.command)
        command = shlex.join(f"state/champion/{word}" if word in moved else word for word in words)
        # Untracked: this measures the champion again, and is not a run of the recipe.
        surroundings = worktree_environment(folder, is_tracked=False)
        # Other flows and commands on this machine may hold GPUs now.
        with gpu_slots(stage_gpus(folder, entry.stage, command), lock_folder(), say) as slots:
            if slots.gpus:
                surroundings["CUDA_VISIBLE_DEVICES"] = ",".join(slots.gpus)
            shell = ["/bin/sh", "-c", command]
            code = run_in_group(shell, folder, say, hours * 3600, surroundings, slots.held)
        if code:
            raise UserError(f"the champion could not be measured again: `{command}` ended with exit code {code}")
    say("the champion was measured again, as the candidate was")
    return Measurement(*(place / "data" / kind / f"{policy}.parquet" for kind in TABLES), trained)


def _trained(snapshot: LockSnapshot, policy: str, remedy: str) -> frozenset[str]:
    # Imported here and below, because `retrace --help` imports this module and needs no tables.
    from pipelines.records.trained_on import trained_problems

    trained = trained_problems(snapshot, policy)
    if trained is None:
        raise UserError(f"{snapshot.label} lacks tables that {policy} was trained on: {remedy}")
    return trained


def _conditions(snapshot: LockSnapshot, policy: str) -> dict[str, Any]:
    """Returns the inputs that decide a policy's verdicts, apart from the policy."""
    asking, judging = _measuring(snapshot, policy)
    # The policy is compared. All other inputs of its responses must be equal.
    asked = {path: digest for path, digest in asking.deps.items() if "data/policies/" not in path}
    # Responses differ anyway; the only other inputs of a verdict are the verifier's code and parameters.
    judged = {path: digest for path, digest in judging.deps.items() if path.startswith(CODE)}
    return {"deps": asked | judged, "params": [asking.params, judging.params]}


def _measuring(snapshot: LockSnapshot, policy: str) -> list[LockedStage]:
    """Returns the stages on record that make the policy's responses and then the verdicts on them."""
    tables = [f"data/{kind}/{policy}.parquet" for kind in TABLES]
    return [entry for table in tables for entry in snapshot.entries.values() if table in entry.outs]


KEY = ["benchmark", "problem", "answer"]
"""Columns that identify a problem: ids are row numbers of a source, and a new revision may renumber them."""
OPINIONS = ("correct", "wrong")
LEAST_COMMON = 0.9
"""Share of the candidate's problems on which the champion must have been measured too."""


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


def pair_up(champion: Measurement, candidate: Measurement) -> list[Pair]:
    """Returns the problems that both were measured on, with sampled responses, or greedy ones where none were sampled.

    UserError when too few problems are common, or one policy was sampled and the other was not.
    """
    first, second = _shares(champion), _shares(candidate)
    modes = ["".join(shares["mode"].unique()) or "on nothing" for shares in (first, second)]
    if modes[0] != modes[1]:
        raise UserError(f"the champion was measured {modes[0]}, the candidate {modes[1]}: nothing can be compared")
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
    from stages.foundations.tables import RESPONSE, VERDICT, read_table

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
    rows = rows.assign(correct=rows["verdict"] == "correct", undecided=~rows["verdict"].isin(OPINIONS))
    return rows.groupby([*KEY, "mode"], as_index=False)[["correct", "undecided"]].mean()


ROUNDING = 1e-9
"""Means of equal shares may differ by this much through rounding."""


@dataclass(frozen=True)
class Decision:
    """The gate's decision. `reasons` are empty exactly when the candidate is promoted."""

    reasons: tuple[str, ...]
    problems: int
    gain: PairedDifference | None
    """Candidate - champion over all problems; None without problems."""
    clean_gain: float | None
    """None when no problem is clean."""
    numbers: Mapping[str, str]
    """All numbers behind it, in words, by what they measure."""

    @property
    def is_promoted(self) -> bool:
        return not self.reasons


def decide(pairs: Sequence[Pair]) -> Decision:
    """Decides; without a common problem, or without a clean one, nothing is proven and nothing promoted."""
    if not pairs:
        return Decision(("no problem was measured with both policies",), 0, None, None, {"all problems": "none"})
    gain, reasons = _gain(pairs), []
    numbers = {"all problems": describe_gain(gain)}
    if gain.verdict != "better":
        noise = "worse than the champion" if gain.verdict == "worse" else "inside the noise"
        reasons.append(f"{noise}: {describe_gain(gain)}")
    for name in sorted({pair.benchmark for pair in pairs}):
        own = _gain([pair for pair in pairs if pair.benchmark == name])
        numbers[name] = describe_gain(own)
        # The interval and not the verdict: a benchmark too small for a verdict can still warn.
        if own.interval.verdict() == "worse":
            reasons.append(f"worse on {name}: {describe_gain(own)}")
    # No interval here: a fall rejects even if it may be noise, because a leak shows only on these problems.
    clean = [pair.candidate - pair.champion for pair in pairs if pair.is_clean]
    clean_gain = fmean(clean) if clean else None
    numbers["clean subset"] = "no problem is clean" if clean_gain is None else f"{100 * clean_gain:+.1f} points"
    if clean_gain is None:
        reasons.append("one of the policies was trained on every problem, so nothing clean can be compared")
    elif clean_gain < -ROUNDING:
        reasons.append(f"the clean subset falls by {-100 * clean_gain:.1f} points")
    before, after = (fmean(getattr(pair, f"{one}_undecided") for pair in pairs) for one in ("champion", "candidate"))
    numbers["undecided verdicts, champion to candidate"] = f"{before:.2%} to {after:.2%}"
    if after > before + ROUNDING:
        reasons.append(f"undecided verdicts rise from {before:.2%} to {after:.2%}")
    return Decision(tuple(reasons), len(pairs), gain, clean_gain, numbers)


def _gain(pairs: Sequence[Pair]) -> PairedDifference:
    return compare_paired([pair.champion for pair in pairs], [pair.candidate for pair in pairs])


def describe_gain(gain: PairedDifference) -> str:
    """`+2.0 points (0.5 to 3.5)`: percentage points with the 95% interval."""
    estimate, low, high = gain.interval
    return f"{100 * estimate:+.1f} points ({100 * low:.1f} to {100 * high:.1f})"


def decision_sentence(decision: Decision, champion: Champion) -> str:
    """Returns one sentence: promoted with its gain, or rejected with every reason."""
    against = f"champion v{champion.version}"
    if decision.is_promoted:
        return f"Scores higher than {against} on {decision.problems} problems: {describe_gain(decision.gain)}."
    return f"Refused against {against}: {'; '.join(decision.reasons)}."


def decision_page(decision: Decision, champion: Champion, branch: str, policy: str) -> str:
    """Returns markdown: the sentence, then the numbers behind it."""
    return "\n".join(
        [
            f"## {'Promoted' if decision.is_promoted else 'Refused'}: {policy} of {branch}",
            "",
            decision_sentence(decision, champion),
            "",
            f"Paired by problem against champion {champion}; intervals are 95%, over problems. "
            "The decision is about these two policies, not about their settings.",
            "",
            "| candidate - champion | |",
            "|---|---|",
            *(f"| {name} | {value} |" for name, value in decision.numbers.items()),
        ]
    )
