"""Taking a recipe into use as params.yaml, and what the one before has left behind.

Some stages depend on folders (data/metrics, data/verdicts, ...), which must hold the outputs of the recipe in use
and nothing else. What another recipe, or an earlier state of params.yaml, left there is taken away: deleted where
DVC has it in its cache (going back brings it back without running anything), else moved to state/strays/.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from pipelines.graph.resolved_recipes import recipe_names, recipe_text
from stages.foundations.errors import UserError
from stages.foundations.files import sha256_of, write_text_atomically
from stages.foundations.hashing import dvc_md5
from stages.foundations.params import read_yaml
from stages.foundations.stage_graph import (
    KEEP,
    left_out,
    make_shared_folders,
    read_definitions,
    shared_folders,
)
from stages.foundations.yaml_text import load_yaml
from stages.observe.progress import say


def use_recipe(root: Path, name: str) -> None:
    """Makes params.yaml the resolved recipe and remembers its name.

    UserError for an unknown recipe or one with a mistake; params.yaml then stays as it was.
    """
    text, params = recipe_text(root, name), root / "params.yaml"
    _check(root, load_yaml(text), f"recipe {name}")
    if params.exists() and params.read_text(encoding="utf-8") != text:
        _keep_edits(root, params)
    write_text_atomically(params, text)
    write_text_atomically(root / "state" / "recipe", f"{name}\n{sha256_of(params)}\n")


def is_in_use(root: Path, name: str) -> bool:
    """Whether the recipe was the last one taken into use, and params.yaml is still what it resolves to."""
    chosen, params = root / "state" / "recipe", root / "params.yaml"
    if not chosen.exists() or chosen.read_text().split()[:1] != [name] or not params.exists():
        return False
    return params.read_text(encoding="utf-8") == recipe_text(root, name)


def _keep_edits(root: Path, params: Path) -> None:
    """Copies a params.yaml that is no recipe to state/, where the last such file can be found again."""
    own = params.read_text(encoding="utf-8")
    for name in recipe_names(root):
        try:
            if recipe_text(root, name) == own:
                return
        except UserError:  # another recipe's fault
            continue
    write_text_atomically(root / "state" / "params.before.yaml", own)
    say("params.yaml had changes of its own: they are kept in state/params.before.yaml")


def _check(root: Path, given: Any, told: str) -> None:
    """UserError names each mistake. A DVC project without this program's schema has no parameters to check."""
    if (root / "pipelines" / "graph" / "schema.py").exists():
        from pipelines.graph.schema import check_values  # imports every stage's parameters, which takes 2 s

        check_values(given or {}, told, root)


def stages_left_out(root: Path) -> list[str]:
    """Plain stages of dvc.yaml that the parameters in use leave out, and that DVC must be kept from running."""
    params = root / "params.yaml"
    given = load_yaml(params.read_bytes()) if params.exists() else None
    return left_out(read_definitions(root / "dvc.yaml"), given or {})


def clear_strays(root: Path) -> list[Path]:
    """Checks params.yaml, then removes files that no stage of its graph makes from folders that stages depend on.

    Returns these files. Does nothing (and does not load DVC) while dvc.yaml and params.yaml are unchanged. UserError
    for a mistake in params.yaml; no file is moved then, and the next call checks again.
    """
    make_shared_folders(root)
    if not parameters_changed(root):
        return []
    params = root / "params.yaml"
    _check(root, read_yaml(params), str(params))
    strays, cache = find_strays(root)
    recorded, moved = _recorded_hashes(root), 0
    for path in strays:
        if _is_cached(cache, path, recorded.get(path.relative_to(root).as_posix())):
            path.unlink()
        else:
            kept = root / "state" / "strays" / path.relative_to(root)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, kept)
            moved += 1
    if moved:
        files = "1 file that belongs" if moved == 1 else f"{moved} files that belong"
        say(f"moved {files} to no stage of this recipe to state/strays/")
    write_text_atomically(_stamp(root), _graph_key(root))
    return strays


def parameters_changed(root: Path) -> bool:
    """False while dvc.yaml and params.yaml are as they were when `clear_strays` last checked them."""
    stamp = _stamp(root)
    return not (stamp.exists() and stamp.read_text() == _graph_key(root))


def _stamp(root: Path) -> Path:
    return root / "state" / "parameters_checked"


def _graph_key(root: Path) -> str:
    return "".join(sha256_of(root / name) for name in ("dvc.yaml", "params.yaml"))


def find_strays(root: Path) -> tuple[list[Path], Path]:
    """Files in folders of several stages that no stage of the recipe makes; and DVC's cache folder."""
    from dvc.repo import Repo

    gone = stages_left_out(root)
    with Repo(str(root)) as repo:
        stages = [stage for stage in repo.index.stages if getattr(stage, "name", None) not in gone]
        outs = {Path(out.fs_path) for stage in stages for out in stage.outs}
        cache, place = Path(repo.cache.local.path), Path(repo.root_dir)
    params = read_yaml(root / "params.yaml")
    folders = [place / folder for folder in shared_folders(read_definitions(root / "dvc.yaml"), params)]
    files = {
        path
        for folder in folders
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".gitignore", KEEP)
    }
    return sorted(path for path in files if not _is_under(path, outs)), cache


def _is_under(path: Path, places: set[Path]) -> bool:
    return path in places or any(parent in places for parent in path.parents)


def _recorded_hashes(root: Path) -> dict[str, str]:
    lock = root / "dvc.lock"
    stages = load_yaml(lock.read_bytes())["stages"] if lock.exists() else {}
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", [])}


def _is_cached(cache: Path, path: Path, recorded: str | None) -> bool:
    """Whether the file is what dvc.lock says it is and DVC's cache has it too."""
    if recorded is None:
        return False
    return (cache / recorded[:2] / recorded[2:]).is_file() and dvc_md5(path) == recorded
