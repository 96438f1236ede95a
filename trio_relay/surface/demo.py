"""`trio-relay demo`: the whole way, without a browser. A real relay process, a real WebSocket, the official client.

What it shows is what happens with a browser too; only the tab is played by this module.
"""

from __future__ import annotations

import json
from typing import Any

import trio
from mcp import Client, MCPError

from trio_relay.errors import innermost
from trio_relay.links.socket import Closed, Socket, connect
from trio_relay.surface.demo_steps import (
    DemoFailed,
    Steps,
    open_relay,
    print_closing,
    print_failure,
    print_title,
    show_call,
    show_progress,
    show_tab,
)
from trio_relay.wire.browser import SUBPROTOCOLS
from trio_relay.wire.codec import encode

DEMO_S = 30.0
"""Seconds after which the demo gives up; it takes about one."""

ORIGIN = "chrome-extension://abcdefghijklmnopabcdefghijklmnop"
TAB = {"type": "hello", "tabId": "demo", "title": "Demo shop", "url": "https://shop.example/", "origin": ORIGIN}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "search_products",
        "description": "Finds products by a word in their name.",
        "inputSchema": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "add_to_cart",
        "description": "Puts a product into the cart.",
        "inputSchema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    },
    {"name": "count_slowly", "description": "Counts to three and reports progress.", "inputSchema": {"type": "object"}},
]
PRODUCTS = {1: "Green tea", 2: "Black tea", 3: "Coffee"}


class _Page:
    """The part of the browser: answers `invoke` frames like a page's tools would."""

    def __init__(self) -> None:
        self.cart: list[str] = []

    async def serve(self, ws: Socket, ready: trio.Event) -> None:
        await ws.send(encode(TAB))
        await ws.send(encode({"type": "tools/list", "tools": TOOLS}))
        while True:
            frame = json.loads(await ws.receive())
            if frame["type"] == "hello/accepted":
                ready.set()
            elif frame["type"] == "ping":
                await ws.send(b'{"type":"pong"}')
            elif frame["type"] == "invoke":
                result = await self._run(ws, frame)
                await ws.send(encode({"type": "result", "callId": frame["callId"], "result": result}))

    async def _run(self, ws: Socket, frame: dict[str, Any]) -> dict[str, Any]:
        name, args = frame["toolName"], frame["args"]
        if name == "search_products":
            found = [text for text in PRODUCTS.values() if args["query"].lower() in text.lower()]
            return _text(", ".join(found) or "nothing found")
        if name == "add_to_cart":
            if args["id"] not in PRODUCTS:
                return _text(f"There is no product {args['id']}.") | {"isError": True}
            self.cart.append(PRODUCTS[args["id"]])
            return _text(f"In the cart: {', '.join(self.cart)}")
        for step in (1, 2, 3):
            await ws.send(encode({"type": "progress", "callId": frame["callId"], "progress": step, "total": 3}))
            await trio.sleep(0.05)
        return _text("one, two, three")


def _text(text: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}]}


def run_demo() -> int:
    """Show the way of a call from client to page and back. Returns the exit code."""
    problem = ""
    try:
        trio.run(_demo)
    except* trio.TooSlowError:
        problem = f"it did not finish within {DEMO_S:.0f} s"
    except* (OSError, Closed, MCPError, DemoFailed) as group:
        problem = str(innermost(group))
    if problem:
        print_failure(problem)
    return 1 if problem else 0


async def _demo() -> None:
    steps = Steps()
    print_title("MCP client -> stdio -> relay -> WebSocket -> page -> back")
    with trio.fail_after(DEMO_S):
        async with open_relay(steps) as (client, port), trio.open_nursery() as nursery:
            ready = trio.Event()
            nursery.start_soon(_browser, port, ready)
            await ready.wait()
            steps.done("A browser tab connected and offered three tools.")
            await _use(client, steps)
            nursery.cancel_scope.cancel()
        steps.done("The client left, and the relay with it.")
    print_closing("Now put it into your client's configuration: see README.md, 'Connect a client'.")


async def _browser(port: int, ready: trio.Event) -> None:
    limit = 10_000_000
    async with connect("127.0.0.1", port, subprotocols=SUBPROTOCOLS, origin=ORIGIN, max_message=limit) as ws:
        await _Page().serve(ws, ready)


async def _use(client: Client, steps: Steps) -> None:
    await show_tab(client, steps)
    await show_call(client, steps, "search_products", {"query": "tea"})
    await show_call(client, steps, "add_to_cart", {"id": 2})
    await show_call(client, steps, "add_to_cart", {"id": "2"}, refused=True)
    await show_progress(client, steps, "count_slowly")
