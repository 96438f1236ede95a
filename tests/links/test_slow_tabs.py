"""Tabs that are slow but not dead, over real sockets: none is cut while it shows life, and no frame is damaged."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.helpers import PATIENCE, RawSocket, client_frame, open_tab
from tests.hubs import Attempt, in_step, join, send_json, wait_listed
from trio_relay.config import RelayConfig
from trio_relay.links.source import Heartbeat
from trio_relay.relay.hub import open_hub


@asynccontextmanager
async def open_narrow(port: int) -> AsyncIterator[RawSocket]:
    """A raw client whose kernel takes little, so that its reading is what counts."""
    narrow = trio.socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    await narrow.connect(("127.0.0.1", port))
    async with trio.SocketStream(narrow) as stream:
        yield RawSocket(stream)


async def read_at(raw: RawSocket, rate: float, size: int) -> bytes:
    """Read `size` bytes at `rate` bytes a second."""
    start = trio.current_time()
    received = bytearray()
    while len(received) < size:
        data = await raw.stream.receive_some(min(16_384, size - len(received)))
        assert data, f"cut after {len(received)} bytes and {trio.current_time() - start:.1f} s"
        received += data
        await trio.sleep_until(start + len(received) / rate)
    return bytes(received)


async def test_a_tab_that_sends_tools_but_never_pong_stays_and_a_silent_one_is_cut(nursery: trio.Nursery) -> None:
    """B29, with 1.5 s for 25."""
    heartbeat = Heartbeat(interval=0.5, limit=1.5)
    async with (
        open_hub(RelayConfig(port=0), heartbeat) as hub,
        open_tab(hub.port) as lively,
        open_tab(hub.port) as silent,
    ):
        await lively.hello("lively")
        await silent.hello("silent")
        gone = trio.Event()

        async def chatter() -> None:
            while True:
                await lively.offer("f", kind="tools/changed")
                await trio.sleep(0.2)

        async def watch() -> None:
            closed = await silent.closed()
            assert closed.code == 1001
            assert "no sign of life" in closed.reason
            gone.set()

        nursery.start_soon(watch)
        nursery.start_soon(chatter)
        with trio.fail_after(PATIENCE):
            await gone.wait()
        await trio.sleep(heartbeat.interval)
        assert [source.tab_id for source in hub.sources()] == ["lively"]
        nursery.cancel_scope.cancel()


async def slow_read(heartbeat: Heartbeat, rate: float, size: int, nursery: trio.Nursery) -> None:
    async with open_hub(RelayConfig(port=0, invoke_timeout=None), heartbeat) as hub, open_narrow(hub.port) as raw:
        await join(raw, "t1", "f")
        await wait_listed(hub, "f")
        start = trio.current_time()
        call = Attempt(nursery, hub, "f", b'{"x":"%s"}' % (b"x" * size))
        begin = await read_at(raw, rate, size)
        assert trio.current_time() - start > 1.5 * heartbeat.limit, "too fast to show anything"
        assert [source.tab_id for source in hub.sources()] == ["t1"]
        await raw.send(client_frame(b'{"type":"result","callId":"%s","result":{"content":[]}}' % call_id(begin)))
        assert await call.result() == {"content": []}


def call_id(begin: bytes) -> bytes:
    return begin.partition(b'"callId":"')[2].partition(b'"')[0]


async def test_a_tab_that_reads_slowly_is_not_cut(nursery: trio.Nursery) -> None:
    """B29: 5 MB at 50 KB/s, in a smaller and quicker copy."""
    await slow_read(Heartbeat(interval=0.4, limit=1.0), 1_000_000, 2_000_000, nursery)


@pytest.mark.slow
async def test_a_tab_that_reads_5_mb_at_50_kb_a_second_is_not_cut(nursery: trio.Nursery) -> None:
    """B29 as it is: 100 s."""
    await slow_read(Heartbeat(), 50_000, 5_000_000, nursery)


async def test_50_large_calls_with_pings_between_and_25_cancelled_leave_every_frame_whole(
    nursery: trio.Nursery,
) -> None:
    """E09."""
    heartbeat = Heartbeat(interval=0.01, limit=25)
    async with open_hub(RelayConfig(port=0), heartbeat) as hub, open_narrow(hub.port) as raw:
        await join(raw, "t1", "f")
        await wait_listed(hub, "f")
        filler = "é" * 150_000
        calls: list[Attempt] = []
        for n in range(50):
            args = json.dumps({"n": n, "x": filler}, ensure_ascii=False)
            calls.append(Attempt(nursery, hub, "f", args.encode()))
            await wait_all_tasks_blocked(0.001)  # the first is being written, the others wait in order
        cancelled, kept = calls[0::2], calls[1::2]
        for call in cancelled:
            call.scope.cancel()
        await raw.send(b"".join(client_frame(b"%d" % n, 9) for n in range(5)))  # pongs between our frames
        seen: list[str] = []
        answered: list[int] = []
        pongs: list[bytes] = []
        with trio.fail_after(PATIENCE):
            while len(answered) < 25 or len(pongs) < 5 or seen.count("ping") < 3:
                frame = await raw.frame()  # asserts that it is a whole, plain frame
                assert frame is not None
                if frame[0] == 10:
                    pongs.append(frame[1])
                    continue
                assert frame[0] == 1
                message = json.loads(frame[1])
                seen.append(message["type"])
                if message["type"] != "invoke":
                    continue
                assert message["args"]["x"] == filler
                number = message["args"]["n"]
                if number % 2:
                    answered.append(number)
                    result = {"content": [], "structuredContent": {"n": number}}
                    await send_json(raw, {"type": "result", "callId": message["callId"], "result": result})
        assert pongs == [b"0", b"1", b"2", b"3", b"4"]
        assert answered == list(range(1, 50, 2))
        results = [(await call.result())["structuredContent"]["n"] for call in kept]
        assert results == answered
        assert seen.count("invoke") - 25 == seen.count("cancel") == 1  # the one that was being written
        assert len(hub.pending) == 0


async def test_a_tab_that_comes_back_to_life_gets_its_calls(nursery: trio.Nursery) -> None:
    """Nothing is lost for a tab that did not read for a while."""
    async with open_hub(RelayConfig(port=0)) as hub, open_tab(hub.port) as tab:
        await tab.hello("t1")
        await tab.offer("f")
        await in_step(tab)
        calls = [Attempt(nursery, hub, "f", b'{"n":%d,"x":"%s"}' % (n, b"x" * 100_000)) for n in range(60)]
        await wait_all_tasks_blocked(0.01)
        nursery.start_soon(tab.serve, lambda invoke: {"content": [], "structuredContent": {"n": invoke["args"]["n"]}})
        assert [(await call.result())["structuredContent"]["n"] for call in calls] == list(range(60))
        nursery.cancel_scope.cancel()


async def test_a_tab_that_never_stops_sending_stops_nobody_else(nursery: trio.Nursery) -> None:
    """Its frames are always there to be read, so reading them never waits."""
    async with open_hub(RelayConfig(port=0)) as hub:
        raw = await trio.open_tcp_stream("127.0.0.1", hub.port)
        await join(RawSocket(raw), "t1", "f")
        await wait_listed(hub, "f")
        frames = client_frame(b'{"type":"pong"}') * 20_000
        end = time.perf_counter() + 1.0

        def flood() -> None:
            with socket.socket(fileno=os.dup(raw.socket.fileno())) as sender:
                sender.setblocking(True)
                while time.perf_counter() < end:
                    sender.sendall(frames)

        sent = trio.Event()

        async def run_flood() -> None:
            await trio.to_thread.run_sync(flood)
            sent.set()

        nursery.start_soon(run_flood)
        longest, last = 0.0, time.perf_counter()
        while not sent.is_set():
            await trio.sleep(0.01)
            now = time.perf_counter()
            longest, last = max(longest, now - last), now
        assert longest < 0.5
        await raw.aclose()
