"""Real HTTP servers on loopback: for files that a stage downloads, and for any other answers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

MIRROR = Path(__file__).parents[2].parent / "shared" / "data" / "mirror"


@contextmanager
def serving(files: Mapping[str, Path] | Path) -> Iterator[http.server.ThreadingHTTPServer]:
    """Serves a folder, or files by the paths of their URLs; `handler.requests` counts the requests."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        requests = 0

        def translate_path(self, path):
            name = urlsplit(path).path
            return str(files / name.lstrip("/") if isinstance(files, Path) else files.get(name, "/no such file"))

        def log_message(self, *args):
            type(self).requests += 1

    with _running(Handler) as running:
        running.handler = Handler
        yield running


@contextmanager
def answering(answer: Callable[[http.server.BaseHTTPRequestHandler, bytes], tuple]) -> Iterator[str]:
    """Yields the address of a server; `answer` gets a request and its body: it returns status, page and any headers."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            status, page, *headers = answer(self, self.rfile.read(int(self.headers["Content-Length"] or 0)))
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            for name, value in (pair for more in headers for pair in more.items()):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(page if self.command != "HEAD" else b"")

        do_HEAD = do_POST = do_GET

        def log_message(self, *args):
            pass

    with _running(Handler) as running:
        yield f"http://127.0.0.1:{running.server_port}"


@contextmanager
def _running(handler: type[http.server.BaseHTTPRequestHandler]) -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running
        running.shutdown()


def mirrored() -> dict[str, Path]:
    """Returns the files of the mirror, by the paths of their original URLs."""
    urls = {entry["url"]: entry["sha256"] for entry in json.loads((MIRROR / "sources.json").read_text())}
    chapters = (MIRROR / "textbooks.tsv").read_text().splitlines()[1:]
    urls |= dict(line.split("\t")[:2] for line in chapters)
    return {urlsplit(url).path: MIRROR / sha256 for url, sha256 in urls.items()}
