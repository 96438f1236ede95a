"""Real sockets and peers that misbehave: how each is answered, that it costs nobody else, and that no frame is cut."""

from __future__ import annotations

import logging
import struct
from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.helpers import PATIENCE, FakeTab, RawSocket, client_frame, open_raw, open_tab
from tests.hubs import Attempt, in_step, join, next_json, reset, send_json, wait_listed, wait_sources
from trio_relay.errors import SourceLost
from trio_relay.links.metered import MeteredStream
from trio_relay.relay.hub import Hub


@pytest.fixture
async def raw(hub: Hub) -> AsyncIterator[RawSocket]:
    """A tab `t1` with the tool `f`."""
    async with open_raw(hub.port) as raw:
        await join(raw, "t1", "f")
        await wait_listed(hub, "f")
        yield raw


@pytest.fixture
async def good(hub: Hub, nursery: trio.Nursery) -> AsyncIterator[FakeTab]:
    """A tab that answers."""
    async with open_tab(hub.port) as tab:
        await tab.hello("good")
        await tab.offer("good")
        await in_step(tab)
        nursery.start_soon(tab.serve)
        yield tab
        nursery.cancel_scope.cancel()


# -- frames that break the protocol


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (client_frame(b"{}", 2), 1003),
        (client_frame(b'{"type":"\xff\xfe"}'), 1007),
        (client_frame(b"x", 0), 1002),
        (client_frame(b"x", 3), 1002),
        (b"\x81\x02{}", 1002),
        (b"\xc1\x82abcd{}", 1002),
        (client_frame(b"x" * 126, 9), 1002),
    ],
)
async def test_a_broken_frame_is_answered_with_its_code(
    data: bytes, code: int, hub: Hub, good: FakeTab, raw: RawSocket, nursery: trio.Nursery
) -> None:
    """E06: and the calls of that tab fail at once, those of others do not."""
    call = Attempt(nursery, hub, "f")
    await next_json(raw, "invoke")
    await raw.send(data)
    assert await raw.close_code() == code
    assert isinstance(await call.error(), SourceLost)
    await wait_listed(hub, "good")
    assert await Attempt(nursery, hub, "good").text() == "{}"


@pytest.mark.parametrize(
    "message",
    [
        *(b"", b" ", b"null", b"[]", b"42", b'"x"', b"{}", b"{oops", b'{"type":5}', b'{"type":null}'),
        *(b'{"type":"__proto__"}', b'{"type":"constructor"}', b'{"type":"invoke"}', b'{"type":"server-hello"}'),
        *(b'{"type":"relay/invoke","callId":"1","toolName":"good"}', b'{"type":"pong","type":"x"}', b'{"a":NaN}'),
        *(b'{"type":"result"}', b'{"type":"progress"}', b'{"type":"tools/list"}', b'{"type":"tools/list","tools":5}'),
        *(b"\xef\xbb\xbf{}", b"[" * 100_000, b'{"type":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ],
)
async def test_a_message_that_says_nothing_is_ignored(
    message: bytes, hub: Hub, raw: RawSocket, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """E06, B17 (`relay/invoke` on a browser socket): the tab stays, its tools stay, its next call is answered."""
    await raw.send(client_frame(message))
    call = Attempt(nursery, hub, "f", b'{"a":1}')
    invoke = await next_json(raw, "invoke")
    await send_json(raw, {"type": "result", "callId": invoke["callId"], "result": {"content": []}})
    assert await call.result() == {"content": []}
    await wait_listed(hub, "f")
    assert [r.message for r in caplog.records if r.levelno >= logging.ERROR] == []


# -- closing


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (b"", 1005),
        *((struct.pack("!H", code) + b"bye", code) for code in (1000, 1001, 1011, 3000, 4000, 4999)),
        *((struct.pack("!H", code), 1002) for code in (0, 999, 1004, 1005, 1006, 1015, 2999, 5000)),
        (b"\x03", 1002),
        (b"\x03\xe8\xff", 1007),
    ],
)
async def test_a_peer_that_closes_is_answered(payload: bytes, answer: int, hub: Hub, raw: RawSocket) -> None:
    """E03: with its own code, or with 1002 when it must not be sent."""
    await raw.send(client_frame(payload, 8))
    assert await raw.close_code() == answer
    assert await raw.frame() is None
    await wait_listed(hub)


async def test_a_peer_that_never_answers_our_close_is_gone_within_about_a_second(hub: Hub) -> None:
    async with open_raw(hub.port) as raw:
        await raw.upgrade("Origin: https://evil.example")
        await send_json(raw, {"type": "hello", "tabId": "t1"})
        await next_json(raw, "hello/rejected")
        assert await raw.close_code() == 1008
        with trio.fail_after(5):
            assert await raw.frame() is None


async def test_a_peer_that_hangs_up_without_a_close_frame_is_gone_at_once(
    hub: Hub, raw: RawSocket, nursery: trio.Nursery
) -> None:
    call = Attempt(nursery, hub, "f")
    await next_json(raw, "invoke")
    await raw.stream.send_eof()
    assert isinstance(await call.error(), SourceLost)
    await wait_listed(hub)


async def test_websocket_pings_are_answered_in_order(raw: RawSocket) -> None:
    await raw.send(b"".join(client_frame(b"%d" % n, 9) for n in range(20)))
    assert [await raw.frame() for _ in range(20)] == [(10, b"%d" % n) for n in range(20)]


# -- resets


async def test_200_connections_reset_in_the_middle_of_everything_reach_nobody_else(
    hub: Hub, good: FakeTab, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """E01: before, during and after the handshake, in a frame, in a call, in our close."""

    async def reset_one(number: int) -> None:
        async with open_raw(hub.port) as raw:
            stage = number % 8
            if stage == 1:
                await raw.send(b"GET / HTTP/1.1\r\nHost: 127")
            elif stage == 2:
                await raw.send(client_frame(b"no handshake"))
            elif stage >= 3:
                await raw.upgrade("Sec-WebSocket-Protocol: webmcp.v1", "Origin: chrome-extension://x")
            if stage == 4:
                await raw.send(client_frame(b'{"type":"hello","tabId":"x"}')[:-5])
            elif stage >= 5:
                await send_json(raw, {"type": "hello", "tabId": f"r{number}"})
                await next_json(raw, "hello/accepted")
            if stage == 6:
                await raw.send(client_frame(b"x" * 100_000, fin=False) + client_frame(b"x" * 70_000, 0)[:-1])
            elif stage == 7:
                await send_json(raw, {"type": "tools/list", "tools": [{"name": "f"}]})
                await raw.send(client_frame(b"\x03\xe8", 8))
            await reset(raw)

    async with trio.open_nursery() as storm:
        for number in range(200):
            storm.start_soon(reset_one, number)
    await wait_listed(hub, "good")
    await wait_sources(hub, 1)
    assert await Attempt(nursery, hub, "good").text() == "{}"
    assert [r.message for r in caplog.records if r.levelno >= logging.ERROR] == []


async def test_a_reset_during_a_call_fails_it_at_once(hub: Hub, raw: RawSocket, nursery: trio.Nursery) -> None:
    call = Attempt(nursery, hub, "f")
    await next_json(raw, "invoke")
    await reset(raw)
    error = await call.error()
    assert isinstance(error, SourceLost)
    assert error.may_have_run


# -- frames are never cut


async def test_a_cancelled_call_never_cuts_the_frame_that_carries_it(
    hub: Hub, raw: RawSocket, nursery: trio.Nursery
) -> None:
    """The tab reads nothing, so the write of 8 MB waits; its caller gives up; then the tab reads on."""
    args = b'{"x":"%s"}' % (b"x" * 8_000_000)
    call = Attempt(nursery, hub, "f", args)
    await wait_all_tasks_blocked(0.01)
    call.scope.cancel()
    invoke = await next_json(raw, "invoke")
    assert len(invoke["args"]["x"]) == 8_000_000
    cancel = await next_json(raw, "cancel")
    assert cancel["callId"] == invoke["callId"]


async def test_a_connection_that_ends_in_the_middle_of_a_frame_sends_nothing_more(
    hub: Hub, raw: RawSocket, nursery: trio.Nursery
) -> None:
    """What the peer would read next, it would take for the rest of the frame."""
    call = Attempt(nursery, hub, "f", b'{"x":"%s"}' % (b"x" * 8_000_000))
    await wait_all_tasks_blocked(0.01)
    await raw.send(client_frame(b"x", 2))
    assert isinstance(await call.error(), SourceLost)
    received = b""
    with trio.fail_after(PATIENCE):
        try:
            while data := await raw.stream.receive_some(1 << 20):
                received += data
        except trio.BrokenResourceError:
            pass
    assert 100_000 < len(received) < 8_000_000
    assert received.endswith(b"x" * 1000)


async def test_a_stream_whose_write_was_cancelled_refuses_to_write_on() -> None:
    async with trio.open_nursery() as nursery:
        ours, theirs = await stream_pair(nursery)
        metered = MeteredStream(ours)
        scope = trio.CancelScope()

        async def write() -> None:
            with scope:
                await metered.send_all(b"x" * 20_000_000)

        nursery.start_soon(write)
        received = bytearray(await theirs.receive_some(1000))
        scope.cancel()
        await wait_all_tasks_blocked()
        assert metered.cut

        async def drain() -> None:
            async with theirs:
                async for data in theirs:
                    received.extend(data)

        nursery.start_soon(drain)
        assert not metered.send_now(b"more")
        with pytest.raises(trio.BrokenResourceError):
            await metered.send_all(b"more")
        await metered.aclose()
    assert b"more" not in received
    assert set(received) == set(b"x")


async def stream_pair(nursery: trio.Nursery) -> tuple[trio.SocketStream, trio.SocketStream]:
    """Two ends of a TCP connection."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        theirs = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        return await listener.accept(), theirs


async def test_what_the_kernel_left_of_a_small_message_goes_first() -> None:
    async with trio.open_nursery() as nursery:
        ours, theirs = await stream_pair(nursery)
        metered = MeteredStream(ours)
        sent = b""
        for number in range(10_000):
            message = b"%07d" % number * 1000
            if not metered.send_now(message):
                break
            sent += message
        assert metered.cut or len(sent) > 100_000
        received = bytearray()

        async def drain() -> None:
            async with theirs:
                async for data in theirs:
                    received.extend(data)

        nursery.start_soon(drain)
        with trio.fail_after(PATIENCE):
            await metered.send_all(b"the end")
        assert not metered.cut
        await metered.aclose()
    assert bytes(received) == sent + b"the end"
