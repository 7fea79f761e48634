"""Recipes: puts one into use as params.yaml, removes the files of the previous one, and resolves recipe files.

Some stages depend on folders (data/metrics, data/verdicts, ...), which must contain only the outputs of the recipe in
use. Files that another recipe, or an earlier params.yaml, left there are removed. A file in DVC's cache is deleted, and
switching back restores it without running anything. Any other file is moved to state/strays/.

A recipe is a file, pipelines/recipes/<name>.yaml. It is complete, or has `extends: other.yaml` and the differences:

    extends: gsm8k-smollm2.yaml    # a file beside it
    without: [collect_web]         # dotted names to leave out; applied first
    sft: {steps: 1000}             # merged into the existing mapping
    sampler.dtype: bfloat16        # dotted names work as well

A mapping of another `kind`, an empty mapping, a list and any other value replace the existing value.

A recipe leaves out the sections of branches that it does not use. The resolved, complete file is what runs. It has no
`extends`. If DVC needs a section over which stages run, and the recipe leaves it out, the resolved file has `{}` there.

A run holds a lock on params.yaml (`recipe_in_use`), so that no other run changes its parameters before it ends.
"""

from __future__ import annotations

import copy
import fcntl
import io
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from pipelines.output import there_are
from pipelines.runtime.checkouts import cache_folder
from pipelines.runtime.locks import try_lock, wait_for
from stages.foundations.dvc_lock import lock_of, recorded_outs
from stages.foundations.errors import UserError
from stages.foundations.files import dvc_md5, load_yaml, sha256_of, write_bytes_atomically, write_text_atomically
from stages.foundations.params import read_yaml
from stages.foundations.recorded_files import object_path
from stages.foundations.stage_graph import (
    KEEP,
    foreach_sections,
    left_out,
    make_shared_folders,
    optional_sections,
    read_definitions,
    shared_folders,
    stages_of,
)
from stages.observe.progress import say


def use_recipe(root: Path, name: str) -> None:
    """Makes params.yaml the resolved recipe and remembers its name.

    UserError for an unknown recipe or one with a mistake; params.yaml then stays as it was.
    """
    text, params = recipe_text(root, name), root / "params.yaml"
    _check(root, load_yaml(text), f"recipe {name}")
    if params.exists() and params.read_bytes() != text.encode():
        _keep_edits(root, params)
    write_text_atomically(params, text)
    # The hash shows later whether params.yaml was edited: tracking then calls it a recipe with changes.
    write_text_atomically(root / "state" / "recipe", f"{name}\n{sha256_of(params)}\n")


def is_in_use(root: Path, name: str) -> bool:
    """True if the recipe was the last one taken into use, and params.yaml still equals its resolved form."""
    chosen, params = root / "state" / "recipe", root / "params.yaml"
    if not chosen.exists() or chosen.read_text().split()[:1] != [name] or not params.exists():
        return False
    return params.read_bytes() == recipe_text(root, name).encode()


def _keep_edits(root: Path, params: Path) -> None:
    """Copies a params.yaml that is no recipe to state/, which keeps the last such file."""
    edited, chosen = params.read_bytes(), root / "state" / "recipe"
    if chosen.exists() and chosen.read_text().split()[1:] == [sha256_of(params)]:
        # `use_recipe` wrote it: the recipe has been edited since, not params.yaml.
        return
    for name in recipe_names(root):
        try:
            if recipe_text(root, name).encode() == edited:
                return
        except UserError:
            # A mistake in another recipe does not matter for this run.
            continue
    write_bytes_atomically(root / "state" / "params.before.yaml", edited)
    say("params.yaml matched no recipe: it is saved as state/params.before.yaml")


def _check(root: Path, given: Any, label: str) -> None:
    """UserError names each mistake. A DVC project without this program's schema has no parameters to check."""
    if (root / "pipelines" / "graph" / "schema.py").exists():
        # It imports the parameters of every stage, which takes 2 s.
        from pipelines.graph.schema import check_values

        check_values(given or {}, label, root)


def stages_left_out(root: Path) -> list[str]:
    """Returns plain stages of dvc.yaml that the parameters in use leave out, and that DVC must not run."""
    params = root / "params.yaml"
    given = load_yaml(params.read_bytes()) if params.exists() else None
    return left_out(read_definitions(root / "dvc.yaml"), given or {})


def remove_orphaned_outputs(root: Path) -> list[Path]:
    """Checks params.yaml, then removes files that no stage of its graph makes from folders that stages depend on.

    Returns these files. Does nothing while dvc.yaml and params.yaml are unchanged. UserError
    for a mistake in params.yaml; no file is moved then, and the next call checks again.
    """
    make_shared_folders(root)
    if not parameters_changed(root):
        return []
    params = root / "params.yaml"
    _check(root, read_yaml(params), str(params))
    strays = find_strays(root)
    cache, recorded, moved = cache_folder(root), recorded_outs(lock_of(root)), 0
    for path in strays:
        # Deleting is safe where DVC has the file; a file that exists only here is kept.
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
    # Last: after a run that is killed before this, the next one checks again.
    write_text_atomically(_stamp(root), _graph_key(root))
    return strays


def parameters_changed(root: Path) -> bool:
    """False while dvc.yaml and params.yaml are as they were when `remove_orphaned_outputs` last checked them."""
    stamp = _stamp(root)
    return not (stamp.exists() and stamp.read_text() == _graph_key(root))


def _stamp(root: Path) -> Path:
    return root / "state" / "parameters_checked"


def _graph_key(root: Path) -> str:
    return "".join(sha256_of(root / name) for name in ("dvc.yaml", "params.yaml"))


def find_strays(root: Path) -> list[Path]:
    """Returns the files in folders of several stages that no stage of the recipe makes."""
    definitions, params = read_definitions(root / "dvc.yaml"), read_yaml(root / "params.yaml")
    outs = {root / out for stage in stages_of(definitions, params) for out in stage.outs}
    return sorted(
        path
        for path in {path for folder in shared_folders(definitions, params) for path in (root / folder).rglob("*")}
        # .gitignore belongs to DVC, and the other file keeps an empty folder in git.
        if path.is_file() and path.name not in (".gitignore", KEEP) and not outs & {path, *path.parents}
    )


def _is_cached(cache: Path, path: Path, recorded: str | None) -> bool:
    """True if the file has the hash in dvc.lock and DVC's cache has it too."""
    return recorded is not None and object_path(cache, recorded).is_file() and dvc_md5(path) == recorded


@contextmanager
def recipe_in_use(root: Path, recipe: str, say: Callable[[str], None]) -> Iterator[None]:
    """Makes params.yaml the recipe ("" leaves it unchanged) and prevents changes to it while the block runs.

    Waits, and says so, while runs with other parameters continue. UserError lists the existing recipes.
    """
    if recipe:
        require_recipe(root, recipe)
    path = root / "state" / "locks" / "params.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as lock:
        waiting = f"recipe {recipe}" if recipe else "params.yaml"
        reason = f"{waiting}: waiting for the runs that use another params.yaml in {root}"
        wait_for(lambda: _is_settled(root, recipe, lock), say, lambda: reason)
        yield


def _is_settled(root: Path, recipe: str, lock: IO[str]) -> bool:
    """True with the shared lock and the right parameters; the file may have changed before the lock was taken."""
    # Exclusive while the file is written. Any number of runs then share it, as long as they use the same recipe.
    if recipe and not is_in_use(root, recipe) and try_lock(lock):
        use_recipe(root, recipe)
    if try_lock(lock, fcntl.LOCK_SH) and (not recipe or is_in_use(root, recipe)):
        return True
    # Released at once: a process that waits to write the file needs it exclusively.
    fcntl.flock(lock, fcntl.LOCK_UN)
    return False


EXTENDS, WITHOUT = "extends", "without"


def recipe_names(root: Path) -> list[str]:
    return sorted(path.stem for path in (root / "pipelines" / "recipes").glob("*.yaml"))


def require_recipe(root: Path, name: str) -> None:
    """UserError lists the existing recipes."""
    if name not in recipe_names(root):
        known = there_are(name, recipe_names(root))
        raise UserError(f"unknown recipe {name!r}: {known}; a recipe NAME is the file pipelines/recipes/NAME.yaml")


def read_recipe(root: Path, name: str, read: Callable[[str], str | None] | None = None) -> dict[str, Any]:
    """Returns the resolved parameters. UserError for an unknown recipe, a circle, an unknown key, another dotted
    `kind`.

    `read` returns the text of a file by its path from the root, None where there is none (default: the file itself).
    These are the values of `recipe_text`, in a tenth of its time: comments are not parsed.
    """
    if read is None:
        require_recipe(root, name)
        read = partial(_text, root)
    content = _merged(_chain(name, read, load_yaml), name)
    return content | {section: {} for section in _left_out(root, content)}


def recipe_text(root: Path, name: str, read: Callable[[str], str | None] | None = None) -> str:
    """The resolved parameters as text: for a complete recipe, exactly its file. Comments are those of the last one."""
    if read is None:
        require_recipe(root, name)
        read = partial(_text, root)
    # By ruamel, which writes comments back; `read_recipe` is ten times as fast without them.
    chain = _chain(name, read, _with_comments)
    text, content = chain[-1][0], _merged(chain, name)
    if len(chain) > 1:
        text = f"# Recipe {name}, resolved. What it changes: pipelines/recipes/{name}.yaml. Comments are inherited.\n"
        text += _dumped(content)
    missing = _left_out(root, content)
    if missing:
        text = text.rstrip("\n") + "\n\n# Left out by the recipe:\n" + "".join(f"{one}: {{}}\n" for one in missing)
    return text


def _merged(chain: list[tuple[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    content = chain[-1][1]
    for _, recipe in reversed(chain[:-1]):
        content = _on_top(content, recipe, name)
    return content


def _left_out(root: Path, content: dict[str, Any]) -> list[str]:
    """Sections over which stages run, and which DVC needs."""
    graph = root / "dvc.yaml"
    optional = optional_sections(graph)
    needed = [name for name in foreach_sections(read_definitions(graph)) if name not in optional]
    return [name for name in needed if name not in content]


def _chain(
    name: str, read: Callable[[str], str | None], load: Callable[[str], Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Returns text and content of the recipe, of the one that it extends, and so on."""
    chain: dict[str, tuple[str, dict[str, Any]]] = {}
    wanted, asked_by = f"{name}.yaml", ""
    while True:
        if wanted in chain:
            raise UserError(f"recipe {name}: `extends` forms a cycle: {' -> '.join([*chain, wanted])}")
        # A recipe extends a file beside it. A path could lead anywhere.
        text = read(f"pipelines/recipes/{wanted}") if "/" not in wanted else None
        if text is None:
            raise UserError(
                f"recipe {asked_by or name}: it extends {wanted}, but there is no pipelines/recipes/{wanted}"
            )
        content = _loaded(text, wanted, load)
        chain[wanted] = (text, content)
        _refuse_old_spelling(content, wanted)
        below = content.get(EXTENDS)
        if below is None:
            return list(chain.values())
        if not isinstance(below, str):
            raise UserError(f"recipe {wanted}: `extends` is {below!r}: write a file name, `extends: laptop.yaml`")
        wanted, asked_by = below, wanted


def _on_top(content: dict[str, Any], recipe: dict[str, Any], name: str) -> dict[str, Any]:
    changes = {key: value for key, value in recipe.items() if key not in (EXTENDS, WITHOUT)}
    try:
        content = without(content, recipe.get(WITHOUT) or [])
        found = dict(dotted(content, changes))
        _refuse_other_kinds(content, found, name)
        return with_changes(content, found)
    except KeyError as error:
        raise UserError(f"recipe {name}: {error.args[0]}: {recipe[EXTENDS]} has no such key") from None


def _refuse_old_spelling(content: dict[str, Any], file: str) -> None:
    """`base` was formerly the key of inheritance; now it is only a section."""
    below = content.get("base")
    if isinstance(below, str):
        raise UserError(f"recipe {file}: `base: {below}` is the old spelling: write `extends: {below}`")


def _refuse_other_kinds(content: dict[str, Any], changes: dict[str, Any], name: str) -> None:
    """UserError for a dotted `kind` that would keep the keys of the previous kind."""
    for key, kind in changes.items():
        *sections, last = key.split(".")
        there = value_at(content, sections)
        # Only a change of kind is dangerous: the other keys belong to the previous kind.
        if last != "kind" or not isinstance(there, dict) or there.get("kind") == kind:
            continue
        staying = [other for other in there if other != "kind"]
        if sections and staying:
            section = ".".join(sections)
            raise UserError(
                f"recipe {name}: `{key}: {kind}` would keep {', '.join(staying)} of kind {there.get('kind')}: write "
                f"the mapping whole, `{section}: {{kind: {kind}, ...}}`"
            )


def _yaml() -> Any:
    from ruamel.yaml import YAML

    reader = YAML()
    # Unchanged parts must come out as they were written: no line is folded.
    reader.preserve_quotes, reader.width = True, 4096
    reader.indent(mapping=2, sequence=4, offset=2)
    # ruamel would write nothing for null, and an empty value looks like a forgotten one.
    reader.representer.add_representer(type(None), lambda to, _: to.represent_scalar("tag:yaml.org,2002:null", "null"))
    return reader


def _with_comments(text: str) -> Any:
    """Returns a document that can be written again unchanged; ValueError when it is not valid YAML."""
    # ruamel reads any depth, until Python's stack ends. This reader stops earlier.
    load_yaml(text)
    return _yaml().load(text)


def _loaded(text: str, file: str, load: Callable[[str], Any]) -> dict[str, Any]:
    try:
        content = load(text)
    except ValueError as error:
        raise UserError(f"pipelines/recipes/{file} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"pipelines/recipes/{file} must hold a mapping of sections")
    return content


def _dumped(content: dict[str, Any]) -> str:
    stream = io.StringIO()
    _yaml().dump(content, stream)
    return stream.getvalue()


def _text(root: Path, file: str) -> str | None:
    path = root / file
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 ({error}): save it as UTF-8") from None


def with_changes(params: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a deep copy of `params` with the dotted changes; missing mappings on the way are created.

    KeyError names a dotted name that leads through a value that is not a mapping.
    """
    changed = copy.deepcopy(params)
    for name, value in changes.items():
        *sections, last = name.split(".")
        place: Any = changed
        for section in sections:
            place = place.setdefault(section, {}) if isinstance(place, dict) else None
        if not isinstance(place, dict):
            raise KeyError(name)
        place[last] = copy.deepcopy(value)
    return changed


def without(params: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Returns a deep copy of `params` without the dotted names. KeyError names one that does not exist."""
    changed = copy.deepcopy(params)
    for name in names:
        *sections, last = name.split(".")
        place = value_at(changed, sections)
        if not isinstance(place, dict) or last not in place:
            raise KeyError(name)
        del place[last]
    return changed


def dotted(params: Mapping[str, Any], changes: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Returns nested changes as dotted ones: mappings are merged into existing ones, everything else replaces.

    A mapping of another `kind` replaces the whole mapping; so does an empty one.
    """
    for name, value in changes.items():
        there = value_at(params, name.split("."))
        is_inside = isinstance(value, dict) and value and isinstance(there, dict)
        if is_inside and value.get("kind", there.get("kind")) == there.get("kind"):
            yield from dotted(there, value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def value_at(params: Any, names: Iterable[str]) -> Any:
    """Returns the value under the names, from the outermost in; None where there is none."""
    for name in names:
        params = params.get(name) if isinstance(params, dict) else None
    return params
