"""Serves the sample page of `trio-relay demo --browser` on loopback, from a thread."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SAMPLE = Path(__file__).with_name("sample") / "index.html"
STOP_CHECK_S = 0.05
"""Between looks of the thread at whether it is to end."""


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path == "/"
        body = SAMPLE.read_bytes() if found else b"There is only one page here.\n"
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", f"text/{'html' if found else 'plain'}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """The terminal is the demo's."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Without the base class's question for our host's full name, which takes seconds on some machines."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def handle_error(self, *_: object) -> None:
        """A browser that hangs up in the middle is no news."""


@contextmanager
def serve_sample() -> Iterator[str]:
    """The URL of the page, served on a free port while the context is open. Raises `OSError` if it cannot be."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(STOP_CHECK_S,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
