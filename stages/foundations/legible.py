"""Texts of others as they may be shown: without invisible characters, without end, and without passwords."""

from __future__ import annotations

import base64
import os
import re
from urllib.parse import unquote, urlsplit

_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
"""Control characters, and those that turn the direction of text or take no room."""


def legible(text: str, characters: int) -> str:
    """At most `characters` of the text, with what cannot be seen named by its code point."""
    cut = text.replace("\r\n", "\n")[:characters]
    seen = _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", cut)
    return seen if len(cut) >= len(text.replace("\r\n", "\n")) else f"{seen} … [cut: {len(text):,} characters in all]"


_ACCOUNT = re.compile(r"(\w[\w+.-]*://[^\s:/@'\"]*):[^\s'\"]*@")
# As in postgresql://host/db?password=..., and in the signed addresses of object stores.
_QUERY = re.compile(r"([?&][\w.-]*(?:pass|pwd|secret|token|key|sig|credential)[\w.-]*=)[^\s&#'\"]*", re.IGNORECASE)


def without_password(text: str) -> str:
    """`scheme://user:password@host/path?token=...` without what is secret; other text as it is.

    Takes an address, or a message with addresses in it. Where a path has an `@`, more than the password may go.
    """
    return _QUERY.sub(r"\1", _ACCOUNT.sub(r"\1@", text))


def with_login(address: str) -> tuple[str, dict[str, str]]:
    """An HTTP address without its login, and the header that carries it.

    An address without one gets MLflow's variables, as MLflow's client reads them. No header where there is no login.
    """
    parts = urlsplit(address)
    account, _, place = parts.netloc.rpartition("@")
    plain = parts._replace(netloc=place).geturl()
    user, _, word = account.partition(":")
    user = unquote(user) or os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    word = unquote(word) or os.environ.get("MLFLOW_TRACKING_PASSWORD", "")
    if user and word:
        return plain, {"Authorization": f"Basic {base64.b64encode(f'{user}:{word}'.encode()).decode()}"}
    token = os.environ.get("MLFLOW_TRACKING_TOKEN", "")
    return plain, {"Authorization": f"Bearer {token}"} if token else {}
