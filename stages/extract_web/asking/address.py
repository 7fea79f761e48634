"""A server of OpenAI's chat completions that is asked about windows of pages."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from stages.extract_web.params import AddressModel
from stages.foundations.errors import UserError
from stages.observe.progress import progress

KEY = "RETRACE_EXTRACTOR_KEY"
MAX_BYTES = 4 << 20
"""Of one answer."""
WAITS_SECONDS = (1.0, 4.0, 16.0)
"""Before each further try, where the server is busy or does not answer."""
_REFUSES = (400, 413, 422)
"""What servers say to a request that is longer than their model's context."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the page, and the key, to an address that nobody has named."""

    def redirect_request(self, *_: object) -> None:
        """Refuses; the redirect is then an error."""


class AddressExtractor:
    """Answers requests greedily, as many at once as the parameters say."""

    def __init__(self, params: AddressModel, max_response_tokens: int) -> None:
        self._params = params
        self._max_tokens = max_response_tokens
        # Without proxies: what goes to loopback must not leave the machine.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect()).open

    def ask(self, requests: Sequence[str]) -> list[str | None]:
        """The answer to each request, in order; None for one that the server calls too long or malformed.

        UserError when the server cannot be reached, refuses the key or the model, or answers what is no completion.
        """
        with ThreadPoolExecutor(self._params.requests_at_once) as threads:
            return list(progress(threads.map(self._answer, requests), len(requests), "asking", "requests"))

    def close(self) -> None:
        """Nothing is open between requests."""

    def _answer(self, request: str) -> str | None:
        body = {
            "model": self._params.name,
            "messages": [{"role": "user", "content": request}],
            "temperature": 0,
            "max_tokens": self._max_tokens,
        }
        waits = iter(WAITS_SECONDS)
        while True:
            try:
                return self._completion(json.dumps(body).encode())
            except urllib.error.HTTPError as error:
                if error.code in _REFUSES:
                    return None
                reason, is_final = f"HTTP {error.code}", error.code != 429 and error.code < 500
            except (OSError, http.client.HTTPException) as error:
                reason, is_final = str(getattr(error, "reason", error)), False
            wait = None if is_final else next(waits, None)
            if wait is None:
                raise UserError(
                    f"extract_web.method.model: {self._params.url} does not answer ({reason}): check the address, the "
                    f"model's name {self._params.name!r} and {KEY}; what is done is kept, run the stage again"
                )
            time.sleep(wait)

    def _completion(self, body: bytes) -> str:
        headers = {"Content-Type": "application/json"}
        if os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {os.environ[KEY]}"
        url = self._params.url.rstrip("/") + "/chat/completions"
        asked = urllib.request.Request(url, body, headers)
        with self._open(asked, timeout=self._params.timeout_seconds) as response:
            content = response.read(MAX_BYTES + 1)
        try:
            return "" + (json.loads(content)["choices"][0]["message"]["content"] or "")
        except (ValueError, LookupError, TypeError, RecursionError):
            raise UserError(
                f"extract_web.method.model: {url} answers something else than a chat completion: "
                f"{content[:80]!r}"
            ) from None
