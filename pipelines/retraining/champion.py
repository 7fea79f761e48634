"""The champion of a recipe, the policy in use: git tags define it, and the alias in MLflow's registry repeats it.

    champion-<recipe>-v<N>    one for each promotion, never moved; its message is a Champion as JSON
    champion-<recipe>         points to the current champion

The weights stay in DVC's cache: tag and model version name the commit, whose dvc.lock has their hash. If MLflow's
database is lost, `update_registry` writes it again from the tags.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.graph.recipes import recipe_names
from pipelines.records.lock_snapshots import snapshot_at
from pipelines.records.tracking_store import is_tracking_off, mlflow_faults, open_store
from stages.foundations.errors import UserError
from stages.foundations.machine import PROJECT
from stages.observe.git import git, git_as_someone, has_revision

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient


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
        return f"{moving_tag(self.recipe)}-v{self.version}"

    def describe(self) -> str:
        return f"v{self.version} ({self.policy}, policy {self.policy_hash[:8]}, commit {self.commit[:10]}, {self.date})"


def moving_tag(recipe: str) -> str:
    return f"champion-{recipe}"


def promotions(root: Path, recipe: str) -> list[Champion]:
    """Returns all promoted champions, oldest first."""
    return sorted((one for one in _promoted(root) if one.recipe == recipe), key=lambda one: one.version)


def _promoted(root: Path) -> list[Champion]:
    """The promotions of all recipes."""
    listed = git(root, "for-each-ref", "--format=%(contents:body)%00", f"refs/tags/{moving_tag('*')}-v*")
    return [one for text in listed.split("\0") if (one := _read(text))]


def _read(message: str) -> Champion | None:
    """Returns None for the message of a tag that a user set and that only looks like a promotion."""
    try:
        return Champion(**json.loads(message))
    except (ValueError, TypeError):
        return None


def current(root: Path, recipe: str) -> Champion | None:
    """Returns None when there has been no promotion."""
    if not has_revision(root, f"refs/tags/{moving_tag(recipe)}"):
        return None
    # The moving tag points to the tag object of a promotion, not to the commit: two promotions may share a commit.
    target = git(root, "rev-parse", f"refs/tags/{moving_tag(recipe)}")
    for one in promotions(root, recipe):
        if git(root, "rev-parse", f"refs/tags/{one.tag}") == target:
            return one
    raise UserError(
        f"tag {moving_tag(recipe)} points to no promotion: set it to one of them, such as "
        f"git tag -f {moving_tag(recipe)} {moving_tag(recipe)}-v1"
    )


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
    git(root, "tag", "--force", "--no-sign", moving_tag(champion.recipe), f"refs/tags/{champion.tag}")
    update_registry(root, champion.recipe)


def update_registry(root: Path, recipe: str) -> str:
    """Registers every promotion that MLflow lacks and sets the alias; returns the changes, "" when there were none.

    Does nothing with RETRACE_TRACKING=off. UserError when MLflow cannot be reached.
    """
    if is_tracking_off():
        return ""
    every, now = promotions(root, recipe), current(root, recipe)
    if now is None:
        return ""
    with mlflow_faults("git's tags name the champion; `retrace rollback` or the next retrain updates MLflow"):
        return _update_registry(open_store().client, f"retrace-{recipe}", every, now)


def _update_registry(client: MlflowClient, name: str, every: Sequence[Champion], now: Champion) -> str:
    from mlflow.exceptions import MlflowException

    try:
        client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        client.create_registered_model(name, description=f"Champions of the recipe {now.recipe}; weights are in DVC.")
    known = {version.tags.get("git.tag"): version.version for version in client.search_model_versions(f"name='{name}'")}
    changed = [one.tag for one in every if one.tag not in known]
    # Oldest first, so that MLflow counts its versions in the order of the promotions.
    for one in every:
        if one.tag not in known:
            known[one.tag] = _register(client, name, one)
    before = client.get_registered_model(name).aliases.get(ALIAS)
    # MLflow returns a version as a number or as a text, depending on the store.
    if str(before) != str(known[now.tag]):
        client.set_registered_model_alias(name, ALIAS, str(known[now.tag]))
        changed.append(f"alias {ALIAS}")
    return ", ".join(changed)


def _register(client: MlflowClient, name: str, champion: Champion) -> str:
    source = f"dvc://{champion.commit}/data/policies/{champion.policy}#{champion.policy_hash}"
    tags = {
        "git.tag": champion.tag,
        "git.commit": champion.commit,
        "dvc.md5": champion.policy_hash,
        "policy": champion.policy,
        "recipe": champion.recipe,
        "promoted": champion.date,
    }
    return client.create_model_version(name, source, run_id=champion.run_id or None, tags=tags).version


def policy_hash(root: Path, commit: str, policy: str) -> str:
    """Returns DVC's hash of a policy at a commit. UserError when its dvc.lock has none."""
    found = snapshot_at(root, commit).outs.get(f"data/policies/{policy}")
    if found is None:
        raise UserError(f"dvc.lock of commit {commit[:10]} has no data/policies/{policy}: name a policy that it has")
    return found


def roll_back(root: Path, recipe: str, to: int | None, say: Callable[[str], None]) -> None:
    """Makes the previous champion (before the last promotion), or version `to`, champion again; says what it did.

    Repeating it changes nothing. UserError when there was none before, no version `to`, or no champion of that name.
    """
    every, now = promotions(root, recipe), current(root, recipe)
    if not every:
        raise UserError(_no_champion(root, recipe))
    last = every[-1]
    known = ", ".join(f"v{one.version}" for one in every)
    if now is None and to is None:
        raise UserError(f"the tag {moving_tag(recipe)} is gone: name a champion with --to, there are {known}")
    # Relative to the last promotion, not to the current champion: so repeating the command changes nothing.
    target = last.before if to is None else to
    if target is None:
        raise UserError(f"there is no champion of {recipe} before {last.describe()}: it is the first")
    found = next((one for one in every if one.version == target), None)
    if found is None:
        raise UserError(f"recipe {recipe} has no champion v{target}: there are {known}")
    if now == found:
        # MLflow may have been unreachable during the first call: this one updates it.
        mended = update_registry(root, recipe)
        say(
            f"{found.describe()} is the champion of {recipe} already"
            + (f"; mended in MLflow: {mended}" if mended else "")
        )
        return
    make_current(root, found)
    alias = f"MLflow's alias retrace-{recipe}@{ALIAS}"
    if now is not None:
        say(f"the champion of {recipe} was {now.describe()}")
    say(
        f"and now is {found.describe()}: tag {moving_tag(recipe)}"
        + (f"; RETRACE_TRACKING=off leaves {alias} as it was" if is_tracking_off() else f" and {alias}")
    )


def _no_champion(root: Path, recipe: str) -> str:
    recipes, crowned = recipe_names(root), sorted({one.recipe for one in _promoted(root)})
    if recipes and recipe not in recipes:
        problem = f"unknown recipe {recipe!r}: there are {', '.join(recipes)}"
    else:
        problem = f"recipe {recipe} has no champion yet: the flow retrain promotes the first"
    return f"{problem}; champions have {', '.join(crowned)}" if crowned else problem


def rollback(
    recipe: Annotated[str, typer.Argument(help="recipe of the champion (default: the recipe in use)")] = "",
    to: Annotated[int | None, typer.Option(min=1, help="version to restore (default: the previous one)")] = None,
) -> None:
    """Make the previous champion of a recipe the champion again: the git tag and MLflow's alias.

    Restores the champion before the last promotion; repeating the command changes nothing. --to restores any version.
    Files and branches do not change. Exit code 2: there is none before.
    """
    from stages.observe.tracking import recipe_name

    try:
        roll_back(PROJECT, recipe or recipe_name(PROJECT).partition("+")[0] or "laptop", to, typer.echo)
    except UserError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from error
