"""A small web server on loopback for the pages of the tests, and the scripts that these are made of."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import trio

from tests.e2e import npm

GLOBAL = "@mcp-b/global/dist/index.iife.js"
POLYFILL = "@mcp-b/webmcp-polyfill/dist/index.iife.js"

ECHO = """
window.runs = 0;
document.modelContext.registerTool({
  name: "echo",
  title: "Echo it",
  description: "Says what it is told",
  inputSchema: {type: "object", properties: {q: {}}},
  annotations: {readOnlyHint: true},
  async execute(args) {
    window.runs += 1;
    return "echo " + JSON.stringify(args);
  },
});
"""

HANG = """
window.aborted = [];
document.modelContext.registerTool({
  name: "hang",
  description: "Never ends by itself",
  inputSchema: {type: "object"},
  execute(args, client) {
    window.started = (window.started ?? 0) + 1;
    return new Promise((resolve, reject) => {
      window.finish = resolve;
      client?.signal?.addEventListener("abort", () => {
        window.aborted.push(String(client.signal.reason?.message));
        reject(client.signal.reason);
      });
    });
  },
});
"""


class Site:
    """The server. The same port is two origins: 127.0.0.1 and localhost."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.files: dict[str, tuple[dict[str, str], bytes]] = {}

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def put(self, path: str, body: str | bytes, kind: str = "text/html; charset=utf-8", **headers: str) -> str:
        """Serve this; returns its URL. In header names `_` stands for `-`."""
        named = {"Content-Type": kind} | {name.replace("_", "-"): value for name, value in headers.items()}
        self.files[path] = named, body if isinstance(body, bytes) else body.encode()
        return self.url(path)

    def page(self, script: str, path: str = "/", *, title: str = "A page", polyfill: str | None = None) -> str:
        """Serve a page that runs this script, after a polyfill (a file in an npm package) if one is given."""
        loads = ""
        if polyfill is not None:
            self.put("/polyfill.js", (npm.NODE_MODULES / polyfill).read_bytes(), "text/javascript; charset=utf-8")
            loads = '<script src="/polyfill.js"></script>'
        return self.put(path, f"<!doctype html><title>{title}</title>{loads}<script>{script}</script>")


@asynccontextmanager
async def open_site() -> AsyncIterator[Site]:
    """The server runs while the context is open."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = site.files.get(self.path.partition("?")[0])
            headers, body = found if found is not None else ({}, b"")
            self.send_response(404 if found is None else 200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    site = Site(server.server_port)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield site
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(server.shutdown)
        server.server_close()
        thread.join()
