"""Sections of a parameter file as strict models, and section `prompt`, which stages that sample or train share.

`prompt.environment` names what answers the policy's turns, and is absent in recipes of one turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from stages.foundations.errors import UserError
from stages.foundations.files import load_yaml
from stages.foundations.machine import PROJECT

Model = TypeVar("Model")


class StrictParams(BaseModel):
    """Base of every params model: unknown keys are rejected, values cannot change after loading."""

    # YAML has `.nan` and `.inf`, which a metrics file cannot represent.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


_HELD: dict[Path, bytes] = {}
"""Content of the files that `hold` has read."""


def hold(path: Path) -> None:
    """Makes this process always read the current version of the file, even if it is edited later.

    A stage reads its sections one after another, and an edit between two reads must not mix two versions.
    """
    _HELD[path.resolve()] = path.read_bytes()


def read_yaml(path: Path, is_held: bool = True) -> dict[str, Any]:
    """Returns the parameter file as a mapping; UserError when it is missing or `load_yaml` rejects it.

    `is_held=False` reads the file on disk, even after `hold`.
    """
    held = _HELD.get(path.resolve()) if is_held else None
    try:
        content = load_yaml(path.read_bytes() if held is None else held)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: `retrace use laptop` writes one from a recipe") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold a mapping of sections, not {type(content).__name__}")
    return content


def load_value(path: Path, name: str) -> Any:
    """Returns the value at a dotted name (`rl_rounds.rl_1.steps`); UserError names the part that is missing."""
    value: Any = read_yaml(path)
    walked: list[str] = []
    for part in name.split("."):
        walked.append(part)
        if not isinstance(value, dict) or part not in value:
            # YAML keys may be numbers or dates.
            known = ", ".join(map(str, value)) if isinstance(value, dict) else "nothing"
            raise UserError(f"{path} has no `{'.'.join(walked)}`; at that level it has: {known}")
        value = value[part]
    return value


def load_section(path: Path, name: str, model: type[Model]) -> Model:
    """Returns section `name`, validated by `model` (a params class or any type that pydantic can adapt)."""
    return validate_section(load_value(path, name), name, model, path)


def validate_section(value: Any, name: str, model: type[Model], path: Path) -> Model:
    """Returns `value` as `model`; UserError lists each wrong key with the expected and the given value."""
    try:
        return TypeAdapter(model).validate_python(value)
    except ValidationError as error:
        # Pydantic's text names our classes, which the author of a parameter file does not know.
        lines = [_explain(name, detail) for detail in error.errors()]
        raise UserError(f"{path}: section `{name}` is not usable:\n" + "\n".join(lines)) from None


def chosen(section: str, params: Model) -> Model:
    """Returns `params` unchanged. Its `kind` is that of the section with this dotted name in the parameter file.

        match chosen("trainer", params):
            case TorchTrainerParams():
                from stages.engines.trainers.torch_trainer import TorchTrainer

    Marks a `match` for stages/foundations/fingerprints.py: fingerprints cover only the case of the kind that is in the
    parameter file. Imports inside a case avoid loading libraries that only other kinds need.
    """
    return params


def _explain(name: str, detail: Any) -> str:
    key = ".".join([name, *map(str, detail["loc"])])
    if detail["type"] == "missing":
        return f"  {key}: missing; add it (the recipes under pipelines/recipes show a value)"
    if detail["type"] == "extra_forbidden":
        return f"  {key}: unknown key; remove it or correct its spelling"
    given = repr(detail.get("input"))
    # A whole section may be given instead of a number: its beginning is enough to recognise it.
    return f"  {key}: {detail['msg']} (given: {given[:80]})"


# prompt.environment: what answers the policy's turns.


class CalculatorTool(StrictParams):
    """Adds, subtracts, multiplies or divides two whole numbers: `28*36`."""

    kind: Literal["calculator"]
    busy_fraction: float = Field(ge=0, lt=1)
    """Share of calls that are answered with `b` (busy), by the episode's seed: the policy must call again."""


class PythonTool(StrictParams):
    """Runs a Python program and returns what it prints: whole CPython in a new process that the kernel confines
    (docs/explanation/security.md)."""

    kind: Literal["python"]


class FunctionTool(StrictParams):
    """A Python function of the user with type hints and a docstring."""

    kind: Literal["function"]
    file: str = Field(pattern=r"^custom/[A-Za-z0-9_./-]*\.py$")
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")


Tool = Annotated[CalculatorTool | PythonTool | FunctionTool, Field(discriminator="kind")]


class MarkedCalls(StrictParams):
    """A turn that begins with one mark calls the only tool with the rest; one that begins with the other answers."""

    kind: Literal["marked"]
    call: str = Field(min_length=1)
    answer: str = Field(min_length=1)


class TaggedCalls(StrictParams):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`; a turn without it is the answer."""

    kind: Literal["tagged"]


class TextFrame(StrictParams):
    """Text around an observation, for policies without a chat format."""

    kind: Literal["text"]
    before: str
    after: str


class ChatFrame(StrictParams):
    """The text that the chat template writes around a message of a tool."""

    kind: Literal["chat"]


class EnvironmentWorkers(StrictParams):
    """Processes that run environments, and their limits."""

    processes: int = Field(ge=1)
    memory_mib: int = Field(ge=128)
    timeout_seconds: float = Field(gt=0)
    """Computing time of one step."""


class _Environment(StrictParams):
    frame: Annotated[TextFrame | ChatFrame, Field(discriminator="kind")]
    max_turns: int = Field(ge=1)
    """Turns of the policy; after the last one the episode has ended."""
    max_observation_tokens: int = Field(ge=1)
    """A longer observation is cut in the middle."""
    workers: EnvironmentWorkers


class ToolsEnvironment(_Environment):
    """Tools that the policy calls; the verifier judges its answer."""

    kind: Literal["tools"]
    tools: dict[str, Tool]
    """By the name that the policy uses. Empty: every call is rejected (the control without tools)."""
    calls: Annotated[MarkedCalls | TaggedCalls, Field(discriminator="kind")]


class CustomEnvironment(_Environment):
    """A class of the user (stages/engines/environments/protocol.py)."""

    kind: Literal["custom"]
    file: str = Field(pattern=r"^custom/[A-Za-z0-9_./-]*\.py$")
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    arguments: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)


class ReasoningGymSource(StrictParams):
    """Generated by a task of reasoning-gym (arXiv 2505.24760); tasks without a unique answer give no rows."""

    kind: Literal["reasoning_gym"]
    task: str
    """Name of the task, such as `gcd`."""
    rows: int = Field(ge=1)
    """Number of problems; equal ones are dropped later, by curate."""
    seed: int
    """Seed of the task."""
    config: dict[str, Any]
    """Settings of the task; missing settings keep reasoning-gym's values."""


class ReasoningGymEnvironment(_Environment):
    """Scores the answer as the task of package reasoning-gym that made the problem."""

    kind: Literal["reasoning_gym"]
    tasks: dict[str, ReasoningGymSource]
    """`sources.NAME.from` by NAME, with the same values: the problem is made again, and compared."""


class VerifiersEnvironment(_Environment):
    """An environment of package verifiers, which runs in a separate virtual environment."""

    kind: Literal["verifiers"]
    python: str
    """Python of that virtual environment."""
    id: str
    """Module of the environment, which has `load_environment`."""
    arguments: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)


EnvironmentParams = Annotated[
    ToolsEnvironment | CustomEnvironment | ReasoningGymEnvironment | VerifiersEnvironment, Field(discriminator="kind")
]


def _is_absent(value: Any) -> bool:
    return value is None


class ForcedEnd(StrictParams):
    """Ends the thinking of a policy that thinks for too long: `text` is appended, and the policy continues from
    there."""

    kind: Literal["phrase"]
    thinking_tokens: tuple[Annotated[int, Field(ge=1)], int]
    """Smallest and largest budget, of which each response gets one by its seed (ScaleRL: 10,240 and 12,288). The rest
    of the limit on response tokens is for the answer."""
    mark: str = Field(min_length=1)
    """A response that has this text is not thinking any more (`</think>`)."""
    text: str = Field(min_length=1)
    """Not trained on. ScaleRL: `Okay, time is up. Let me stop thinking and formulate a final answer now. </think>`."""

    @field_validator("thinking_tokens")
    @classmethod
    def _range_is_not_empty(cls, budgets: tuple[int, int]) -> tuple[int, int]:
        if budgets[0] > budgets[1]:
            raise ValueError(f"the smallest budget {budgets[0]} is more than the largest, {budgets[1]}: swap them")
        return budgets


class PlainPrompt(StrictParams):
    """The problem in a template, for policies without a chat format."""

    kind: Literal["plain"]
    template: str
    """Text with `{problem}` once, at the place of the problem."""
    environment: EnvironmentParams | None = Field(default=None, exclude_if=_is_absent)
    """What answers the policy's turns. Absent: a response is one turn."""
    forced_end: ForcedEnd | None = Field(default=None, exclude_if=_is_absent)
    """Absent: a thought may take the whole limit on response tokens."""

    @field_validator("template")
    @classmethod
    def _has_one_place(cls, template: str) -> str:
        if template.count("{problem}") != 1:
            raise ValueError("the template must contain {problem} exactly once")
        return template


class ChatPrompt(StrictParams):
    """The problem as a user message in the tokenizer's chat template."""

    kind: Literal["chat"]
    system: str
    """System message; empty for none."""
    suffix: str
    """Text appended to the problem, such as the request to box the final answer; empty for none."""
    template_arguments: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Arguments of the template, by name, such as `enable_thinking: false`."""
    template: str | None = Field(default=None, exclude_if=lambda value: value is None)
    """A Jinja file that replaces the tokenizer's template, such as `custom/chat.jinja`."""
    environment: EnvironmentParams | None = Field(default=None, exclude_if=_is_absent)
    """What answers the policy's turns. Absent: a response is one turn."""
    forced_end: ForcedEnd | None = Field(default=None, exclude_if=_is_absent)
    """Absent: a thought may take the whole limit on response tokens."""


PromptParams = Annotated[PlainPrompt | ChatPrompt, Field(discriminator="kind")]


def format_problem(params: PlainPrompt, problem: str) -> str:
    """Returns the prompt's text; braces in the problem are kept."""
    # Not `str.format`: a template may contain other braces, as in `\boxed{}`.
    return params.template.replace("{problem}", problem)


CUSTOM = "custom"
"""The project's folder for users' files. Stage `code` depends on it: a changed file re-runs the stages that use it."""


class CustomFunctionParams(StrictParams):
    """A Python function of the user. Section `verifier` sets its limits of time, memory and processes."""

    kind: Literal["function"]
    file: str = Field(pattern=r"^custom/[A-Za-z0-9_./-]*\.py$")
    """Path relative to the project's root."""
    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    arguments: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Arguments of the function, by name, in addition to the columns of a row. Absent: none."""
    sandbox: Literal["off"] | None = Field(default=None, exclude_if=lambda value: value is None)
    """`off` lets the function use the network, files and other processes, like any program. Absent: confined."""


def custom_file(name: str, root: Path = PROJECT) -> Path:
    """Returns the file of a parameter such as `custom/reward.py`. UserError if it is outside that folder or missing."""
    folder, file = root / CUSTOM, root / name
    # Resolved, so that a link cannot lead out of the folder.
    if not file.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{name} is not in {CUSTOM}/: put it there, so that a change of it is noticed")
    if not file.is_file():
        known = sorted(path.relative_to(root).as_posix() for path in folder.rglob("*.py")) if folder.is_dir() else []
        raise UserError(f"{name} does not exist: there are {', '.join(known) or 'no files'}")
    return file


def custom_files(params: Any) -> set[str]:
    """Returns the values of a parameter file, or of a part of it, that name a file in `custom/`."""
    if isinstance(params, Mapping):
        return set().union(*map(custom_files, params.values()))
    if isinstance(params, list):
        return set().union(*map(custom_files, params))
    return {params} if isinstance(params, str) and params.startswith(f"{CUSTOM}/") else set()
