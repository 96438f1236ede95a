"""What both demos do the same way: a relay process with the official client, and how each step is printed."""

from __future__ import annotations

import json
import os
import site
import socket
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.types import CallToolResult

from trio_relay._version import __version__


class DemoFailed(Exception):
    """Something went another way than the demo is to show."""


class Steps:
    """Prints each step with the time it took."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def done(self, what: str, detail: str = "") -> None:
        now = time.perf_counter()
        milliseconds, self._last = (now - self._last) * 1000, now
        print(f"{milliseconds:8.1f} ms  {what}", flush=True)
        for line in textwrap.wrap(detail, 66):
            print(f"{'':13}{line}", flush=True)


def print_title(way: str) -> None:
    print(_filled(f"trio-relay {__version__} demo: {way}"), end="\n\n", flush=True)


def print_closing(text: str) -> None:
    print(f"\n{_filled(text)}", flush=True)


def _filled(text: str) -> str:
    return textwrap.fill(text, 80, break_on_hyphens=False)


def print_failure(problem: str) -> None:
    """One line, to stderr."""
    print(f"The demo failed: {problem}", file=sys.stderr)


@asynccontextmanager
async def open_relay(steps: Steps) -> AsyncIterator[tuple[Client, int]]:
    """A relay process on a free port: the client that started it, and the port.

    It has no home: with the person's `trio-relay.toml` it would take the place of their own relay in `relay.json`, or
    not start at all.
    """
    port = _free_port()
    arguments = ["-m", "trio_relay", "--port", str(port), "--log-level", "error"]
    # Nothing can be in or under the null device. Python finds what `pip install --user` installed through the home too.
    environ = {"HOME": os.devnull, "USERPROFILE": os.devnull, "PYTHONUSERBASE": site.getuserbase()}
    relay = StdioServerParameters(command=sys.executable, args=arguments, env=environ)
    async with Client(stdio_client(relay)) as client:
        steps.done("An MCP client started a relay and shook hands.", f"port {port} is open for browsers")
        yield client, port


async def show_tab(client: Client, steps: Steps) -> None:
    """What the client is told of the tab and its tools."""
    sources = await client.call_tool("webmcp_list_sources", {})
    for source in (sources.structured_content or {})["sources"]:
        where = f"tab {source['tabId']!r}: {source['title']} ({source['url']}), {source['toolCount']} tools"
        steps.done("webmcp_list_sources", where)
    tools = (await client.list_tools()).tools
    steps.done("tools/list", ", ".join(tool.name for tool in tools))


async def show_call(client: Client, steps: Steps, name: str, args: dict[str, Any], *, refused: bool = False) -> None:
    """One call and its result. Raises `DemoFailed` if it is an error, or none where it is meant to be `refused`."""
    call = f"{name} {json.dumps(args)}"
    said = _text(await client.call_tool(name, args), call, refused)
    steps.done(call, f"refused, as it should be: {said}" if refused else said)


async def show_progress(client: Client, steps: Steps, name: str) -> None:
    """One call without arguments, and the progress that was heard meanwhile. Raises `DemoFailed` if it is an error."""
    heard: list[str] = []

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append(f"{progress:g}/{total:g}" if total is not None else f"{progress:g}")

    call = f"{name} {{}}"
    said = _text(await client.call_tool(name, {}, progress_callback=listen), call)
    steps.done(call, f"{said} (progress: {', '.join(heard)})")


def _text(result: CallToolResult, call: str, refused: bool = False) -> str:
    text: str = getattr(result.content[0], "text", "") if result.content else ""
    if result.is_error != refused:
        raise DemoFailed(f"{call}: {text}")
    return text


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
