"""What the tests of this room share: a good tab beside the bad one, and the question whether all is still well."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from tests.helpers import PATIENCE, FakeTab, LineClient, open_tab
from trio_relay.relay.hub import Hub

HEAD = b'{"jsonrpc":"2.0",'


@asynccontextmanager
async def good_tab(port: int, tab_id: str = "good-tab", tool: str = "good") -> AsyncIterator[FakeTab]:
    """A tab that answers every call of its tool with the arguments as text."""
    async with open_tab(port) as tab, trio.open_nursery() as nursery:
        await tab.hello(tab_id)
        await tab.offer(tool)
        nursery.start_soon(tab.serve)
        yield tab
        nursery.cancel_scope.cancel()


async def still_fine(client: LineClient, tool: str = "good") -> None:
    """A ping is answered, and a good tool is listed and callable."""
    await client.ping()
    assert tool in await client.tool_names()
    assert json.loads(text_of(await client.call(tool, {"n": 1}))) == {"n": 1}


async def response(client: LineClient) -> dict[str, Any]:
    """The next message that is an answer, to whatever request."""
    while "method" in (message := await client.message()):
        pass
    return message


async def published(hub: Hub, count: int = 1) -> None:
    """Return once that many tabs offer tools."""
    with trio.fail_after(PATIENCE):
        while len(hub.listing()) != count:
            await hub.wait_change(hub.change())


def text_of(result: dict[str, Any]) -> str:
    text: str = result["content"][0]["text"]
    return text


async def refused(client: LineClient, name: str, args: dict[str, Any] | None = None, **params: Any) -> str:
    """Call a tool that must answer with isError; returns its text."""
    result = await client.call(name, args, **params)
    assert result["isError"] is True, result
    return text_of(result)


async def initialize_raw(client: LineClient, **params: Any) -> dict[str, Any]:
    """An `initialize` with exactly these params."""
    return await client.request("initialize", params)


CLIENT: dict[str, Any] = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
