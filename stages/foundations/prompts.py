"""How a problem is put to a policy: the `prompt` section, shared by every stage that samples or trains."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from stages.foundations.params import StrictParams


class PlainPrompt(StrictParams):
    """The problem inside a template, for policies without a chat format."""

    kind: Literal["plain"]
    template: str
    """Text with `{problem}` once, where the problem stands."""

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


PromptParams = Annotated[PlainPrompt | ChatPrompt, Field(discriminator="kind")]


def format_problem(params: PlainPrompt, problem: str) -> str:
    """The prompt's text; braces in the problem are left alone."""
    return params.template.replace("{problem}", problem)
