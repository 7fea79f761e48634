"""Restricts access to the servers of `make ui`: only requests to this host, from its pages, and with the login.

Every account of a shared machine can reach a port on loopback, and so can every page in the user's browser. The login
keeps strangers out. The check of the host keeps out pages that point a domain name at 127.0.0.1 (DNS rebinding). The
check of the page keeps out requests to which a browser would add the login. `/enter#LOGIN` gives the login to the
browser.

The login is generated at each start. Standard library only: this module is read before Prefect. A client of the server
can start flows, so the server answers only requests that carry the login.
"""

from __future__ import annotations

import base64
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stages.foundations.machine import state_folder

HOST = "127.0.0.1"
ENTER = "/enter"
HEALTH = "/health"
"""Answered without a login: that the server is up is no secret."""
# The part of an address after `#` never leaves the browser, so the login is in no log. `replace` drops this page from
# the tab's history.
_ENTER_PAGE = """<!doctype html><meta charset="utf-8"><title>Enter</title>
<p id="text">The link has no login. Use the one that <code>make ui</code> printed last.</p>
<script>
const [, login, place] = decodeURIComponent(location.hash).match(/^#([^/]*)(.*)$/s) || [];
if (login) {{{script}}}
</script>
"""
# No frame: a page of another port counts as the same site, and could place a frame under the user's clicks.
_NOT_IN_FRAMES = (b"x-frame-options", b"SAMEORIGIN")


def addresses(port: int) -> list[str]:
    """The addresses under which a browser may show the UI."""
    return [f"http://{HOST}:{port}", f"http://localhost:{port}"]


def refusal(headers: Iterable[tuple[bytes, bytes]], port: int, method: str) -> str:
    """Returns why a request with this method and these headers is rejected; "" when it is accepted."""
    ours, found = addresses(port), [(name, value.decode("latin-1")) for name, value in headers]
    hosts = [value for name, value in found if name == b"host"]
    if len(hosts) != 1 or f"http://{hosts[0]}" not in ours:
        return f"Host must be {HOST}:{port} or localhost:{port}. Open {ours[0]}."
    elsewhere = f"Pages of other sites may not use this server. Open {ours[0]}."
    if any(value not in ours for name, value in found if name == b"origin"):
        return elsewhere
    # Images or scripts that a page loads have no Origin. Following a link to this server is a navigation by GET, which
    # changes nothing, and allowed. A form of another site is a navigation by POST.
    fetched = dict(found)
    is_foreign = fetched.get(b"sec-fetch-site") in ("same-site", "cross-site")
    follows_link = fetched.get(b"sec-fetch-mode") == "navigate" and method == "GET"
    return elsewhere if is_foreign and not follows_link else ""


def guarded(app: Any, port: int, entering: str, login: str = "") -> Any:
    """An ASGI application that answers rejected requests with 403 or 401, and passes the rest to `app`.

    `entering` is JavaScript with `login` and `place`, the parts of the link after `#`. With an empty `login` the
    application checks the login itself.
    """
    wanted = basic(login).get("Authorization", "").encode()
    page = _ENTER_PAGE.format(script=entering)

    def is_known(scope: Mapping[str, Any]) -> bool:
        sent = dict(scope["headers"]).get(b"authorization", b"")
        # Compared in constant time, so that the login cannot be guessed letter by letter.
        return not login or scope["path"] == HEALTH or hmac.compare_digest(sent, wanted)

    async def guard(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await app(scope, receive, send)
        # A websocket has no method, and no page of another site opens one by a link.
        reason = refusal(scope["headers"], port, scope.get("method", ""))
        if scope["type"] == "websocket" and (reason or not is_known(scope)):
            return await send({"type": "websocket.close", "code": 1008, "reason": reason})
        if reason:
            return await _answer(send, 403, "text/plain", f"{reason}\n")
        if scope["type"] == "http" and scope["path"] == ENTER:
            return await _answer(send, 200, "text/html", page)
        if not is_known(scope):
            text = "Open the link that `make ui` printed last: it contains the login.\n"
            return await _answer(send, 401, "text/plain", text, (b"www-authenticate", b'Basic realm="make ui"'))

        async def send_framed(message: Mapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = [one for one in message.get("headers", ()) if one[0].lower() != _NOT_IN_FRAMES[0]]
                message = {**message, "headers": [*headers, _NOT_IN_FRAMES]}
            await send(message)

        return await app(scope, receive, send_framed)

    return guard


async def _answer(send: Any, status: int, kind: str, body: str, *more: tuple[bytes, bytes]) -> None:
    headers = [
        (b"content-type", f"{kind}; charset=utf-8".encode()),
        (b"cache-control", b"no-store"),
        _NOT_IN_FRAMES,
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body.encode()})


LOGIN, PORT = "RETRACE_MLFLOW_LOGIN", "RETRACE_MLFLOW_PORT"
"""Variables that only MLflow's server reads."""


def draw_login() -> str:
    """Returns a new login in the form `user:password`, which Prefect expects."""
    return f"retrace:{secrets.token_urlsafe(24)}"


def login_settings(login: str) -> dict[str, str]:
    """Environment variables for a server that requires the login, and for clients that send it."""
    return {"PREFECT_SERVER_API_AUTH_STRING": login, "PREFECT_API_AUTH_STRING": login}


def basic(login: str) -> Mapping[str, str]:
    """The header that carries the login; none for an empty one."""
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"} if login else {}


def keep_login(state: Path, api: str, login: str) -> None:
    """Writes the login where only this user can read it, for commands that run beside `make ui`."""
    path = _path(state)
    path.parent.mkdir(parents=True, exist_ok=True)
    forget_login(state)
    # O_EXCL with the mode: the file is never readable by others, not even while it is empty.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump({"api": api, "login": login}, file)


def forget_login(state: Path) -> None:
    """Removes the file of `keep_login`; the server with that login is gone."""
    _path(state).unlink(missing_ok=True)


def kept_login(api: str, state: Path | None = None) -> str:
    """Returns the login of the `make ui` whose API has this address; "" when no such `make ui` runs here."""
    try:
        content = json.loads(_path(state or state_folder()).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return content["login"] if content["api"] == api.rstrip("/") else ""


def _path(state: Path) -> Path:
    return state / "prefect" / "login.json"
