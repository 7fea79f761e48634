"""Whether a source has a newer revision: real servers on loopback that answer, stay as they were, and break off."""

import http.server
import socket
import threading

import pytest

from pipelines.retraining.new_data import look


def source(origin):
    return {"role": "train", "licence": "MIT", "from": origin}


@pytest.fixture
def server():
    """Serves `content`, with an entity tag, and counts the answers with a body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        content, bodies = b"one", 0

        def do_GET(self):
            tag = f'"{hash(Handler.content)}"'
            is_known = self.headers.get("If-None-Match") == tag
            self.send_response(304 if is_known else 200)
            self.send_header("ETag", tag)
            self.end_headers()
            if not is_known:
                Handler.bodies += 1
                self.wfile.write(Handler.content)

        def log_message(self, *arguments):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield Handler, f"http://127.0.0.1:{running.server_port}/problems.jsonl"
    running.shutdown()


def test_a_changed_file_behind_a_url_is_a_new_revision(tmp_path, server):
    handler, url = server
    one = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"

    def ask(sha256, lines):
        params = {"sources": {"far": source({"kind": "url", "url": url, "sha256": sha256})}}
        return look(params, tmp_path / "none", True, tmp_path / "memory", lines.append)

    lines = []
    assert ask(one, lines).changes == [] and ask(one, lines).changes == []
    assert handler.bodies == 1, "the second time the server says that nothing changed"
    handler.content = b"two"
    found = ask(one, lines)
    assert found.changes[0].startswith("source far has a new revision: sha256 3fc4ccfe7458")
    sha256 = found.params["sources"]["far"]["from"]["sha256"]
    kept = tmp_path / "state" / "downloads" / sha256
    assert kept.read_bytes() == b"two" and not list(kept.parent.glob("*.partial")) and lines == []


def test_a_server_that_does_not_answer_is_told_and_the_pinned_revision_stays(tmp_path):
    lines = []
    params = {"sources": {"far": source({"kind": "url", "url": "http://127.0.0.1:9/x", "sha256": "0" * 64})}}
    assert look(params, tmp_path, True, tmp_path / "memory", lines.append).changes == []
    assert "source far could not be asked for a newer revision" in lines[0]


def test_an_answer_that_breaks_off_is_no_answer_and_leaves_no_file(tmp_path):
    def cut_off(listener):
        connection, _ = listener.accept()
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab")
        connection.close()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        threading.Thread(target=cut_off, args=[listener], daemon=True).start()
        lines, url = [], f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        params = {"sources": {"far": source({"kind": "url", "url": url, "sha256": "0" * 64})}}
        assert look(params, tmp_path, True, tmp_path / "memory", lines.append).changes == []
    assert "could not be asked" in lines[0] and list((tmp_path / "state" / "downloads").iterdir()) == []
