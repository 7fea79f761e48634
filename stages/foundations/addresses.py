"""Addresses of servers: as they may be shown, and the login that they hold."""

from __future__ import annotations

import base64
import os
import re
from urllib.parse import unquote, urlsplit

_ACCOUNT = re.compile(r"(\w[\w+.-]*://[^\s:/@'\"]*):[^\s'\"]*@")
# As in postgresql://host/db?password=..., and in the signed addresses of object stores.
_QUERY = re.compile(
    r"([?&][\w.-]*(?:pass|pwd|secret|token|key|sig|credential)[\w.-]*=)[^\s&#'\"]*", re.IGNORECASE
)


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
