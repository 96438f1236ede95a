"""The queue in front of one socket: order, taking back, its limit, and that each message is built once and whole."""

from __future__ import annotations

from typing import cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.helpers import PATIENCE
from trio_relay.errors import NotSent
from trio_relay.links.metered import SEND_CHUNK
from trio_relay.links.outbox import CROWD_S, TICKET_BYTES, Outbox
from trio_relay.links.socket import Closed, Socket


class StubSocket:
    """A socket whose kernel takes nothing while `blocked`; with `needs_flush`, only a part of the next message."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.batches: list[int] = []
        self.blocked = False
        self.needs_flush = False
        self.gate = trio.Event()
        self.ended = False

    def unblock(self) -> None:
        self.blocked = False
        self.gate.set()

    def send_now(self, message: bytes) -> bool:
        if self.blocked or len(message) > SEND_CHUNK:
            return False
        self.written.append(message)
        return True

    def takes_now(self) -> bool:
        return not self.blocked

    async def send_together(self, messages: list[bytes]) -> None:
        self.batches.append(len(messages))
        for message in messages:
            await self.send(message)

    async def flush(self) -> None:
        await self.gate.wait()
        self.needs_flush = False

    async def send(self, message: bytes) -> None:
        if self.ended:
            raise Closed(1006, "gone", ours=False)
        if self.blocked:
            await self.gate.wait()
        self.written.append(message)


@pytest.fixture
def socket() -> StubSocket:
    return StubSocket()


@pytest.fixture
def outbox(socket: StubSocket) -> Outbox:
    return Outbox(cast(Socket, socket), limit=1000 + 2 * TICKET_BYTES)


def test_a_small_message_goes_out_at_once(socket: StubSocket, outbox: Outbox) -> None:
    ticket = outbox.put(b"a")
    assert socket.written == [b"a"]
    assert ticket.sent
    assert (len(outbox), outbox.backlog) == (0, 0)
    assert not outbox.take_back(ticket)


async def test_messages_leave_in_the_order_they_came(socket: StubSocket, nursery: trio.Nursery) -> None:
    """Large ones wait for the writer task; a small one behind them does not overtake."""
    large = b"x" * (SEND_CHUNK + 1)
    big = Outbox(cast(Socket, socket))
    nursery.start_soon(big.run)
    for message in (b"a", large, b"b", b"c", large, b"d"):
        big.put(message)
    with trio.fail_after(PATIENCE):
        await big.flushed()
    assert socket.written == [b"a", large, b"b", b"c", large, b"d"]
    assert big.backlog == 0
    assert socket.batches == [1, 2, 1, 1]
    await trio.sleep(2 * CROWD_S)
    big.put(b"e")
    assert socket.written[-1] == b"e"


async def test_small_messages_of_one_moment_are_written_together(socket: StubSocket, nursery: trio.Nursery) -> None:
    """The first at once, as there may be no others; as many of the others as one write takes."""
    outbox = Outbox(cast(Socket, socket))
    nursery.start_soon(outbox.run)
    await wait_all_tasks_blocked()
    messages = [b"%03d" % number for number in range(500)]
    for message in messages:
        outbox.put(message)
    assert socket.written == messages[:1]
    with trio.fail_after(PATIENCE):
        await outbox.flushed()
    assert socket.written == messages
    most = SEND_CHUNK // (3 + TICKET_BYTES)
    assert socket.batches == [most, most, 499 - 2 * most]


async def test_a_message_in_the_queue_can_be_taken_back(
    socket: StubSocket, outbox: Outbox, nursery: trio.Nursery
) -> None:
    socket.blocked = True
    nursery.start_soon(outbox.run)
    first, second, third = outbox.put(b"1"), outbox.put(b"22"), outbox.put(b"333")
    await wait_all_tasks_blocked()
    assert (first.sent, second.sent) == (True, False)
    assert not outbox.take_back(first)
    assert outbox.backlog == 6 + 3 * TICKET_BYTES
    assert outbox.take_back(second)
    assert outbox.take_back(second)  # again, and it is not counted twice
    assert outbox.backlog == 4 + 2 * TICKET_BYTES
    socket.unblock()
    await outbox.flushed()
    assert socket.written == [b"1", b"333"]
    assert third.sent
    assert not second.sent
    assert outbox.backlog == 0


def test_a_message_is_built_once(socket: StubSocket, outbox: Outbox) -> None:
    built = 0

    def build() -> bytes:
        nonlocal built
        built += 1
        return b"%d" % built

    outbox.put(build, 1)
    assert socket.written == [b"1"]


async def test_a_message_the_kernel_did_not_take_is_not_built_again(
    socket: StubSocket, outbox: Outbox, nursery: trio.Nursery
) -> None:
    built = 0

    def build() -> bytes:
        nonlocal built
        built += 1
        return b"%d" % built

    socket.blocked = True
    ticket = outbox.put(build, 1)
    assert not ticket.sent
    socket.unblock()
    nursery.start_soon(outbox.run)
    await outbox.flushed()
    assert socket.written == [b"1"]
    assert built == 1


async def test_a_message_behind_others_is_built_when_its_turn_comes(
    socket: StubSocket, outbox: Outbox, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """So a deadline inside it (`deadlineMs`) counts from the moment it is sent."""
    start = trio.current_time()
    socket.blocked = True
    nursery.start_soon(outbox.run)
    outbox.put(b"first")
    outbox.put(lambda: b"%d" % round(trio.current_time() - start), 10)
    await trio.sleep(7)
    socket.unblock()
    await outbox.flushed()
    assert socket.written == [b"first", b"7"]


async def test_a_message_that_was_taken_back_is_never_built(
    socket: StubSocket, outbox: Outbox, nursery: trio.Nursery
) -> None:
    def build() -> bytes:
        raise AssertionError("built")

    socket.blocked = True
    nursery.start_soon(outbox.run)
    outbox.put(b"first")
    outbox.take_back(outbox.put(build, 3))
    socket.unblock()
    await outbox.flushed()
    assert socket.written == [b"first"]


async def test_a_tab_that_takes_nothing_gets_no_more_than_the_limit(
    socket: StubSocket, outbox: Outbox, nursery: trio.Nursery
) -> None:
    socket.blocked = True
    nursery.start_soon(outbox.run)
    outbox.put(b"x" * 600)
    await wait_all_tasks_blocked()
    kept = outbox.put(b"y" * 400)
    with pytest.raises(NotSent, match=f"{1000 + 2 * TICKET_BYTES} bytes"):
        outbox.put(b"z")
    assert len(outbox) == 1
    outbox.take_back(kept)
    outbox.put(b"z" * 400)  # there is room again
    socket.unblock()
    await outbox.flushed()
    assert socket.written == [b"x" * 600, b"z" * 400]


def test_a_single_message_above_the_limit_is_not_refused(socket: StubSocket, outbox: Outbox) -> None:
    """Otherwise a limit below one large call would refuse it for ever."""
    socket.blocked = True
    outbox.put(b"x" * 5000)
    assert outbox.backlog == 5000 + TICKET_BYTES


async def test_flushed_waits_for_what_the_kernel_left_of_a_small_message(
    socket: StubSocket, outbox: Outbox, nursery: trio.Nursery
) -> None:
    nursery.start_soon(outbox.run)
    await wait_all_tasks_blocked()
    socket.needs_flush = True
    outbox.put(b"a")
    outbox.put(b"b")  # must not go out in the middle of `a`
    assert socket.written == [b"a"]
    done = trio.Event()

    async def flushed() -> None:
        await outbox.flushed()
        done.set()

    nursery.start_soon(flushed)
    await wait_all_tasks_blocked()
    assert not done.is_set()
    socket.gate.set()
    with trio.fail_after(PATIENCE):
        await done.wait()
    assert socket.written == [b"a", b"b"]


async def test_flushed_returns_at_once_when_nothing_waits(outbox: Outbox) -> None:
    with trio.fail_after(PATIENCE):
        await outbox.flushed()


async def test_the_writer_ends_with_the_socket(socket: StubSocket, outbox: Outbox) -> None:
    socket.blocked = socket.ended = True
    outbox.put(b"a")
    with pytest.raises(Closed), trio.fail_after(PATIENCE):
        await outbox.run()
    assert outbox.backlog == 0
