"""`@modelcontextprotocol/inspector --cli` in each protocol era lists and calls a page's tools, through a real relay."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e import npm
from tests.helpers import free_port, open_tab, text_result
from trio_relay.links.socket import Closed

pytestmark = pytest.mark.npm

PATIENCE = 60.0
CLI = npm.NODE_MODULES / "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TOOL = {"name": "double", "description": "Doubles n.", "inputSchema": SCHEMA, "outputSchema": SCHEMA}


class Inspector:
    """Runs the inspector's command line against one port. Every run starts a relay of its own (or two: it probes)."""

    def __init__(self, era: str, home: Path) -> None:
        self.era = era
        self.port = free_port()
        self.calls: list[dict[str, Any]] = []
        self._env = {"HOME": str(home), "PATH": str(Path(npm.node()).parent)}

    async def serve_tab(self) -> None:
        """A tab that is connected whenever a relay is there."""
        while True:
            try:
                async with open_tab(self.port) as tab:
                    await tab.hello()
                    await tab.offer(TOOL)
                    await tab.serve(self._double)
            except (OSError, Closed):
                await trio.sleep(0.01)

    def _double(self, invoke: dict[str, Any]) -> object:
        self.calls.append(invoke["args"])
        n = invoke["args"]["n"]
        if n < 0:
            return text_result("n is negative") | {"isError": True}
        return {"structuredContent": {"n": 2 * n}}

    async def run(self, *args: str) -> tuple[int, dict[str, Any]]:
        """One run: exit code, and what it printed as JSON (result or error)."""
        era = () if self.era == "default" else ("--protocol-era", self.era)
        target = npm.relay_command(self.port, "--log-level", "error")
        command = [npm.node(), str(CLI), "--cli", *args, *era, "--quiet", "--format", "json", "--cwd", str(npm.ROOT)]
        ran = await trio.run_process(
            [*command, "--", *target], capture_stdout=True, capture_stderr=True, check=False, env=self._env
        )
        shown = (ran.stdout or ran.stderr).decode().strip()
        try:
            printed: dict[str, Any] = json.loads(shown)
        except ValueError:
            raise AssertionError(f"exit {ran.returncode}: {ran.stdout!r} {ran.stderr!r}") from None
        return ran.returncode, printed

    async def tools(self) -> dict[str, Any]:
        """The listed tools by name, from a run in which the tab was there in time."""
        with trio.fail_after(PATIENCE):
            while True:
                code, printed = await self.run("--method", "tools/list")
                assert code == 0, printed
                tools = {tool["name"]: tool for tool in printed["result"]["tools"]}
                if "double" in tools:
                    return tools

    async def call(self, arguments: str) -> tuple[int, dict[str, Any]]:
        """A call of `double`, from a run in which the tab was there in time: exit code and output."""
        with trio.fail_after(PATIENCE):
            while True:
                options = ("--tool-name", "double", "--tool-args-json", arguments)
                code, printed = await self.run("--method", "tools/call", *options)
                if printed.get("error", {}).get("code") != "tool_not_found":
                    return code, printed


@asynccontextmanager
async def open_inspector(era: str, home: Path) -> AsyncIterator[Inspector]:
    inspector = Inspector(era, home)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inspector.serve_tab)
        yield inspector
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("era", ["default", "legacy", "auto", "modern"])
async def test_the_inspector_lists_and_calls_a_page_tool(era: str, tmp_path: Path) -> None:
    async with open_inspector(era, tmp_path) as inspector:
        tools = await inspector.tools()
        assert tools["double"]["inputSchema"] == SCHEMA
        assert tools["double"]["outputSchema"] == SCHEMA
        assert [name for name in tools if name.startswith("webmcp_")] == [
            "webmcp_list_sources",
            "webmcp_list_tools",
            "webmcp_open_page",
            "webmcp_tool_call",
        ]
        code, printed = await inspector.call('{"n": 21}')
        assert code == 0
        assert printed["result"]["structuredContent"] == {"n": 42}
        assert json.loads(printed["result"]["content"][0]["text"]) == {"n": 42}
        _, printed = await inspector.call('{"n": -1}')
        assert printed["result"]["isError"] is True
        assert printed["result"]["content"] == [{"type": "text", "text": "n is negative"}]
        assert inspector.calls == [{"n": 21}, {"n": -1}]


@pytest.mark.parametrize("era", ["default", "modern"])
async def test_a_call_with_bad_arguments_is_refused_with_the_path(era: str, tmp_path: Path) -> None:
    async with open_inspector(era, tmp_path) as inspector:
        _, printed = await inspector.call('{"n": 1.5}')
        assert printed["result"]["isError"] is True
        assert "at n:" in printed["result"]["content"][0]["text"]
        assert inspector.calls == []


async def test_the_inspector_finds_no_fault_in_our_own_tools(tmp_path: Path) -> None:
    """`--strict` ends with 6 when a tool's schema has an error."""
    inspector = Inspector("modern", tmp_path)
    code, printed = await inspector.run("--method", "tools/list", "--strict")
    assert code == 0, printed
