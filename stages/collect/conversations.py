"""Reads a conversation: turns with role and content, or with `from` and `value` as in ShareGPT."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "tool": "tool",
    "observation": "tool",
}
"""Names of roles in data sets -> our names."""


class UnusableConversation(ValueError):
    """A conversation to drop. Arguments: the reason of the drop, and a sentence."""


def read_conversation(messages: Any) -> list[dict[str, str]]:
    """Returns the turns {role, content}.

    UnusableConversation unless, after an optional system turn, a user begins, an assistant ends, and a tool's turn is
    only between turns of the assistant.
    """
    turns = []
    for number, turn in enumerate(messages if isinstance(messages, list) else [messages], 1):
        if not isinstance(turn, Mapping):
            raise UnusableConversation("unusable_messages", f"turn {number} is a {type(turn).__name__}, not a mapping")
        # A table has every column in every row, so the other spelling may exist with the value null.
        role, content = turn.get("role") or turn.get("from"), turn.get("content") or turn.get("value")
        if str(role).lower() not in ROLES:
            raise UnusableConversation("unknown_role", f"turn {number} is {str(role)[:40]!r}, not {', '.join(ROLES)}")
        if not isinstance(content, str) or not content.strip():
            raise UnusableConversation("empty_turn", f"turn {number} holds no text but {str(content)[:40]!r}")
        # Many templates strip a message, and the tokens must match the template's output.
        turns.append({"role": ROLES[str(role).lower()], "content": content.strip()})
    order = [turn["role"] for turn in turns]
    if not re.fullmatch("s?u(u|a|at(?=a))*a", "".join(role[0] for role in order)):
        reason = "wrong_order" if "assistant" in order else "no_assistant_turn"
        raise UnusableConversation(
            reason,
            f"the turns are {', '.join(order)[:200]}: a user begins, an assistant ends, "
            "and a tool stands between two turns of the assistant",
        )
    return turns
