"""A session cancelled at each of its awaits that owns something: nothing hangs, nothing is left behind, and what
the client has of our lines ends at the end of a line, as far as the pipe took it.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.helpers import MODERN_META, PATIENCE, LineClient, open_tab
from tests.surface.setting import published
from tests.surface.test_stdio import Gate
from trio_relay import program
from trio_relay.relay.hub import Hub
from trio_relay.surface.lines import LineWriter
from trio_relay.surface.server import SdkServer
from trio_relay.surface.session import Session

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


class Running:
    """A session over memory streams, and the scope it runs in."""

    def __init__(self, hub: Hub) -> None:
        self.ours, self.theirs = trio.testing.memory_stream_pair()
        self.gate = Gate()
        self.session = Session(hub, self.theirs, LineWriter(self.gate), 10_000_000)
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self) -> None:
        with self.scope:
            await self.session.run(SdkServer(self.session))
        self.ended.set()

    async def send(self, **message: object) -> None:
        await self.ours.send_all(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        await trio.testing.wait_all_tasks_blocked(0.01)

    async def cancel(self) -> None:
        self.scope.cancel()
        with trio.fail_after(PATIENCE):
            await self.ended.wait()


@asynccontextmanager
async def running(hub: Hub, *, reads: bool = True) -> AsyncIterator[Running]:
    made = Running(hub)
    made.gate.open.set() if reads else None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.testing.wait_all_tasks_blocked()
        yield made
        assert made.ended.is_set(), "the test ends the session"


def whole_lines(data: bytes | bytearray) -> None:
    assert data == b"" or data.endswith(b"\n")
    for line in bytes(data).splitlines():
        json.loads(line)


@pytest.mark.parametrize("handshake", [False, True])
async def test_while_it_waits_for_a_line(hub: Hub, handshake: bool) -> None:
    async with running(hub) as it:
        if handshake:
            await it.send(id=1, method="initialize", params=INITIALIZE)
        await it.ours.send_all(b'{"half a line')
        await trio.testing.wait_all_tasks_blocked()
        await it.cancel()
    whole_lines(it.gate.data)


@pytest.mark.parametrize("lane", [{}, {"task": {"ttl": 1}}])
@pytest.mark.parametrize("how", ["cancel", "hang up"])
async def test_while_calls_wait_for_a_page(hub: Hub, lane: dict[str, object], how: str) -> None:
    """The page is told to stop, and the table of pending calls is empty."""
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer("never")
        await published(hub)
        async with running(hub) as it:
            await it.send(id=1, method="initialize", params=INITIALIZE)
            called = set()
            for number in range(2, 5):
                await it.send(id=number, method="tools/call", params={"name": "never", "arguments": {}, **lane})
                called.add((await tab.expect("invoke"))["callId"])
            assert len(hub.pending) == 3
            if how == "cancel":
                await it.cancel()
            else:
                it.session.hang_up()
                with trio.fail_after(PATIENCE):
                    await it.ended.wait()
        assert len(hub.pending) == 0
        assert {(await tab.expect("cancel"))["callId"] for _ in called} == called
    whole_lines(it.gate.data)


async def test_while_a_client_does_not_read(hub: Hub) -> None:
    """The writer is in the middle of a line; requests, answers and notifications wait behind it."""
    async with open_tab(hub.port) as tab, running(hub, reads=False) as it:
        await it.send(id=1, method="initialize", params=INITIALIZE)
        await it.send(method="notifications/initialized")
        for number in range(2, 10):
            await it.send(id=number, method="tools/call", params={"name": "webmcp_list_sources"})
            await it.send(id=number, method="tools/list")
        await tab.hello()
        await tab.offer("t")
        await published(hub)
        await it.cancel()
    assert len(it.gate.data) > 0, "half of the first line was taken"


async def test_while_a_client_that_does_not_read_waits_for_progress(hub: Hub) -> None:
    async with open_tab(hub.port) as tab, running(hub) as it:
        await tab.hello()
        await tab.offer("t")
        await published(hub)
        await it.send(id=1, method="initialize", params=INITIALIZE)
        it.gate.open = trio.Event()
        await it.send(id=2, method="tools/call", params={"name": "t", "_meta": {"progressToken": 1}})
        invoke = await tab.expect("invoke")
        for value in range(1, 5):
            await tab.send({"type": "progress", "callId": invoke["callId"], "progress": value})
        await tab.answer(invoke)
        while len(hub.pending):
            await trio.testing.wait_all_tasks_blocked(0.01)
        await it.cancel()
    assert len(hub.pending) == 0


@pytest.mark.parametrize("how", ["cancel", "hang up"])
async def test_while_it_drains(hub: Hub, how: str) -> None:
    """End of file with a call in flight, then no more patience."""
    async with open_tab(hub.port) as tab, running(hub) as it:
        await tab.hello()
        await tab.offer("never")
        await published(hub)
        await it.send(id=1, method="initialize", params=INITIALIZE)
        await it.send(id=2, method="tools/call", params={"name": "never"})
        await tab.expect("invoke")
        await it.ours.send_stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert not it.ended.is_set()
        it.scope.cancel() if how == "cancel" else it.session.hang_up()
        with trio.fail_after(1):
            await it.ended.wait()
        assert len(hub.pending) == 0
        await tab.expect("cancel")
    whole_lines(it.gate.data)


async def test_while_the_sdk_is_asked_about_an_envelope(hub: Hub) -> None:
    async with running(hub) as it:
        line = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": MODERN_META}}
        await it.ours.send_all(json.dumps(line).encode() + b"\n")
        await trio.lowlevel.checkpoint()
        await it.cancel()
    whole_lines(it.gate.data)


async def test_while_subscriptions_are_open(hub: Hub) -> None:
    async with running(hub) as it:
        params = {"notifications": {"toolsListChanged": True}, "_meta": MODERN_META}
        await it.send(id="l", method="subscriptions/listen", params=params)
        assert b"acknowledged" in it.gate.data
        await it.cancel()
    whole_lines(it.gate.data)


@pytest.mark.parametrize("reads", [True, False])
async def test_stopping_before_it_ran_ends_it_at_once(hub: Hub, reads: bool) -> None:
    """A signal that came while the SDK was imported."""
    it = Running(hub)
    it.session.stop()
    with trio.fail_after(PATIENCE):
        await it.run()
    assert it.gate.data == b""


async def test_while_the_sdk_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread goes on alone; nobody waits for it, and the switch interval is as before."""
    import sys
    import threading

    release = threading.Event()
    before = sys.getswitchinterval()
    monkeypatch.setattr(importlib, "import_module", lambda name: release.wait(PATIENCE))
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(program._import_sdk)
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        assert not release.is_set()
        assert sys.getswitchinterval() == before
    finally:
        release.set()


@pytest.mark.parametrize("trouble", ["list", "no request", "call", "page", "nothing"])
async def test_a_stdout_that_breaks_ends_the_session_whoever_notices(hub: Hub, trouble: str) -> None:
    """Whichever task writes next (the reader, a call, the announcer, the SDK): an end, not a crash."""
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer("t")
        await published(hub)
        async with running(hub) as it:
            await it.send(id=1, method="initialize", params=INITIALIZE)
            await it.send(method="notifications/initialized")
            it.gate.open = trio.Event()
            it.gate.broken = True
            if trouble == "list":
                await it.send(id=2, method="tools/list")
            elif trouble == "no request":
                await it.ours.send_all(b"{oops\n[]\n")
            elif trouble == "call":
                await it.send(id=2, method="tools/call", params={"name": "webmcp_list_sources"})
                await it.send(id=3, method="tools/call", params={"name": "t", "_meta": {"progressToken": 1}})
            elif trouble == "page":
                await tab.offer("other")
            else:
                await it.send(id=2, method="ping")
            it.gate.open.set()
            with trio.fail_after(PATIENCE):
                await it.ended.wait()
    assert len(hub.pending) == 0


async def test_a_client_that_went_away_leaves_the_hub_to_the_next_one(hub: Hub) -> None:
    for _ in range(3):
        async with running(hub) as it:
            await it.send(id=1, method="initialize", params=INITIALIZE)
            await it.cancel()
    async with trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        session = Session(hub, theirs, LineWriter(theirs), 10_000_000)
        nursery.start_soon(session.run, SdkServer(session))
        client = LineClient(ours.send_stream, ours.receive_stream)
        await client.initialize()
        await client.ping()
        nursery.cancel_scope.cancel()
