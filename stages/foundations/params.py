"""Sections of a parameter file as strict models, and section `prompt`, which stages that sample or train share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml
from stages.foundations.machine import PROJECT

Model = TypeVar("Model")


class StrictParams(BaseModel):
    """Base of every params model: unknown keys are rejected, values cannot change after loading."""

    # YAML knows `.nan` and `.inf`, which no file of metrics could hold.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


_HELD: dict[Path, str] = {}
"""Text of the files that `hold` has read."""


def hold(path: Path) -> None:
    """Makes this process read the file as it is now, whatever is written to it later.

    A stage reads its sections one after another. An edit between two reads must not mix two versions.
    """
    _HELD[path.resolve()] = path.read_text(encoding="utf-8")


def read_yaml(path: Path, is_held: bool = True) -> dict[str, Any]:
    """The parameter file as a mapping; UserError when it is missing or not YAML.

    With `is_held=False` what is on the disk, also after `hold`.
    """
    held = _HELD.get(path.resolve()) if is_held else None
    try:
        content = load_yaml(path.read_text(encoding="utf-8") if held is None else held)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: `retrace use laptop` writes one from a recipe") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a mapping of sections, not {type(content).__name__}")
    return content


def load_value(path: Path, name: str) -> Any:
    """The value at a dotted name (`rl_rounds.rl_1.steps`); UserError names the part that is missing."""
    value: Any = read_yaml(path)
    walked: list[str] = []
    for part in name.split("."):
        walked.append(part)
        if not isinstance(value, dict) or part not in value:
            # Keys of YAML may be numbers or dates.
            known = ", ".join(map(str, value)) if isinstance(value, dict) else "nothing"
            raise UserError(f"{path} has no `{'.'.join(walked)}`; at that level it has: {known}")
        value = value[part]
    return value


def load_section(path: Path, name: str, model: type[Model]) -> Model:
    """Section `name` validated by `model` (a params class or any type that pydantic can adapt)."""
    return validate_section(load_value(path, name), name, model, path)


def validate_section(value: Any, name: str, model: type[Model], path: Path) -> Model:
    """`value` as `model`; UserError lists each wrong key with what was expected and what was given."""
    try:
        return TypeAdapter(model).validate_python(value)
    except ValidationError as error:
        # Pydantic's own text names our classes, which mean nothing to the author of a parameter file.
        lines = [_explain(name, detail) for detail in error.errors()]
        raise UserError(f"{path}: section `{name}` is not usable:\n" + "\n".join(lines)) from None


def chosen(section: str, params: Model) -> Model:
    """`params` itself, whose `kind` is that of the section at a dotted name in the parameter file.

        match chosen("trainer", params):
            case TorchTrainerParams():
                from stages.engines.trainers.torch_trainer import TorchTrainer

    Tells stages/foundations/fingerprints.py that the class chooses: of such a `match`, fingerprints cover the case of
    the kind that the parameter file has. An import inside a case keeps libraries away that another kind needs.
    """
    return params


def _explain(name: str, detail: Any) -> str:
    key = ".".join([name, *map(str, detail["loc"])])
    if detail["type"] == "missing":
        return f"  {key}: missing; add it (the recipes under pipelines/recipes show a value)"
    if detail["type"] == "extra_forbidden":
        return f"  {key}: unknown key; remove it or correct its spelling"
    given = repr(detail.get("input"))
    # A whole section may stand where a number belongs: its beginning is enough to recognise it.
    return f"  {key}: {detail['msg']} (given: {given[:80]})"


class PlainPrompt(StrictParams):
    """The problem inside a template, for policies without a chat format."""

    kind: Literal["plain"]
    template: str
    """Text with `{problem}` once, at the place of the problem."""

    @field_validator("template")
    @classmethod
    def _has_one_place(cls, template: str) -> str:
        if template.count("{problem}") != 1:
            raise ValueError("the template must contain {problem} exactly once")
        return template


class ChatPrompt(StrictParams):
    """The problem as a user message in the tokenizer's own chat template."""

    kind: Literal["chat"]
    system: str
    """System message; empty for none."""
    suffix: str
    """Text appended to the problem, such as the request to box the final answer; empty for none."""
    template_arguments: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Given to the template by name, such as `enable_thinking: false`."""
    template: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """A Jinja file in place of the tokenizer's template, as `custom/chat.jinja`."""


PromptParams = Annotated[PlainPrompt | ChatPrompt, Field(discriminator="kind")]


def format_problem(params: PlainPrompt, problem: str) -> str:
    """The prompt's text; braces in the problem are left alone."""
    # No `str.format`: a template may have braces of its own, as in `\boxed{}`.
    return params.template.replace("{problem}", problem)


CUSTOM = "custom"
"""The project's folder for what users bring. Stage `code` depends on it: a changed file runs its stages again."""


class CustomFunctionParams(StrictParams):
    """A Python function of the user's. Its limits of time, memory and processes are those of section `verifier`."""

    kind: Literal["function"]
    file: str = Field(pattern=r"^custom/[A-Za-z0-9_./-]*\.py$")
    """Path from the project's root."""
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    arguments: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Given to the function by name, beside what it takes of a row. Absent: nothing."""
    sandbox: Literal["off"] | None = Field(default=None, exclude_if=lambda value: value is None)
    """`off` lets the function use the network, files and other processes, as your programs do. Absent: confined."""


def custom_file(name: str, root: Path = PROJECT) -> Path:
    """The file of a parameter such as `custom/reward.py`. UserError for one outside of that folder, or missing."""
    folder, file = root / CUSTOM, root / name
    # Resolved, so that a link leads nowhere else.
    if not file.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{name} is not in {CUSTOM}/: put it there, so that a change of it is noticed")
    if not file.is_file():
        known = sorted(path.relative_to(root).as_posix() for path in folder.rglob("*.py")) if folder.is_dir() else []
        raise UserError(f"{name} does not exist: there are {', '.join(known) or 'no files'}")
    return file


def custom_files(params: Any) -> set[str]:
    """The values of a parameter file, or of a part of it, that name a file in `custom/`."""
    if isinstance(params, Mapping):
        return set().union(*map(custom_files, params.values()))
    if isinstance(params, list):
        return set().union(*map(custom_files, params))
    return {params} if isinstance(params, str) and params.startswith(f"{CUSTOM}/") else set()
