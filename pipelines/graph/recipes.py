"""Recipes: whole parameter files in pipelines/recipes/, one of which is in use as params.yaml.

Some stages depend on folders (data/metrics, data/verdicts, ...), which must hold the outputs of the recipe in use
and nothing else. What another recipe, or an earlier state of params.yaml, left there is taken away: deleted where
DVC has it in its cache (going back brings it back without running anything), else moved to state/strays/.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of, write_bytes_atomically, write_text_atomically
from stages.foundations.hashing import dvc_md5
from stages.observe.progress import say


def recipe_names(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / "pipelines" / "recipes").glob("*.yaml"))


def use_recipe(root: Path, name: str) -> None:
    """Copies the recipe to params.yaml and remembers its name. UserError names the recipes there are."""
    require_recipe(root, name)
    recipe, params = _recipe_file(root, name), root / "params.yaml"
    if params.exists() and params.read_bytes() != recipe.read_bytes():
        _keep_edits(root, params)
    write_bytes_atomically(params, recipe.read_bytes())
    write_text_atomically(root / "state" / "recipe", name + "\n")


def require_recipe(root: Path, name: str) -> None:
    """UserError names the recipes there are."""
    if name not in recipe_names(root):
        known = ", ".join(recipe_names(root)) or f"none in {root / 'pipelines' / 'recipes'}"
        raise UserError(f"unknown recipe {name!r}: there are {known}")


def is_in_use(root: Path, name: str) -> bool:
    """Whether the recipe was the last one taken into use, and params.yaml is still its copy."""
    chosen, params = root / "state" / "recipe", root / "params.yaml"
    if not chosen.exists() or chosen.read_text().strip() != name or not params.exists():
        return False
    return params.read_bytes() == _recipe_file(root, name).read_bytes()


def _recipe_file(root: Path, name: str) -> Path:
    return root / "pipelines" / "recipes" / f"{name}.yaml"


def _keep_edits(root: Path, params: Path) -> None:
    """Copies a params.yaml that is no recipe to state/, where the last such file can be found again."""
    known = {_recipe_file(root, name).read_bytes() for name in recipe_names(root)}
    if params.read_bytes() not in known:
        write_bytes_atomically(root / "state" / "params.before.yaml", params.read_bytes())
        say("params.yaml had changes of its own: they are kept in state/params.before.yaml")


def clear_strays(root: Path) -> list[Path]:
    """Takes away files that no stage of the present graph makes from the folders that stages depend on.

    Returns them. Nothing is done (and DVC is not even loaded) while dvc.yaml and params.yaml are as they were.
    """
    if not parameters_changed(root):
        return []
    strays, cache = find_strays(root)
    recorded = _recorded_hashes(root)
    for path in strays:
        if _is_cached(cache, path, recorded.get(path.relative_to(root).as_posix())):
            path.unlink()
        else:
            kept = root / "state" / "strays" / path.relative_to(root)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, kept)
            say(
                f"{path.relative_to(root)} belongs to no stage of this recipe: moved to {kept.relative_to(root)}"
            )
    write_text_atomically(_stamp(root), _graph_key(root))
    return strays


def parameters_changed(root: Path) -> bool:
    """False while dvc.yaml and params.yaml are as they were when they were last checked and strays were cleared."""
    stamp = _stamp(root)
    return not (stamp.exists() and stamp.read_text() == _graph_key(root))


def _stamp(root: Path) -> Path:
    return root / "state" / "parameters_checked"


def _graph_key(root: Path) -> str:
    return "".join(sha256_of(root / name) for name in ("dvc.yaml", "params.yaml"))


def find_strays(root: Path) -> tuple[list[Path], Path]:
    """Files that no stage makes inside folders that stages depend on and none makes whole; and DVC's cache folder."""
    from dvc.repo import Repo

    with Repo(str(root)) as repo:
        outs = {Path(out.fs_path) for out in repo.index.outs}
        deps = {Path(dep.fs_path) for dep in repo.index.deps if dep.protocol == "local"}
        cache = Path(repo.cache.local.path)
    folders = [dep for dep in deps if dep.is_dir() and not _is_under(dep, outs)]
    files = {
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".gitignore"
    }
    return sorted(path for path in files if not _is_under(path, outs)), cache


def _is_under(path: Path, places: set[Path]) -> bool:
    return path in places or any(parent in places for parent in path.parents)


def _recorded_hashes(root: Path) -> dict[str, str]:
    lock = root / "dvc.lock"
    stages = yaml.safe_load(lock.read_bytes())["stages"] if lock.exists() else {}
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", [])}


def _is_cached(cache: Path, path: Path, recorded: str | None) -> bool:
    """Whether the file is what dvc.lock says it is and DVC's cache has it too."""
    if recorded is None:
        return False
    return (cache / recorded[:2] / recorded[2:]).is_file() and dvc_md5(path) == recorded
