"""The writer knows whether its client has read what is out; an answer waits for that after progress."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator

import pytest
import trio

from trio_relay.core.pending import Progress
from trio_relay.surface.inflight import PROGRESS_READ_S, Call, ProgressTeller
from trio_relay.surface.lines import LineWriter
from trio_relay.surface.stdio import open_stream

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells for both kinds")

Ends = tuple[int, Callable[[], bytes]]


@pytest.fixture(params=["pipe", "socket"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """A descriptor to write to, and a function that reads everything at the other end."""
    if request.param == "pipe":
        reader, writer = os.pipe()
        yield writer, lambda: os.read(reader, 65_536)
        os.close(reader)
    else:
        near, far = socket.socketpair()
        with far:
            yield near.detach(), lambda: far.recv(65_536)


async def test_what_is_out_is_unread_until_the_client_reads(ends: Ends) -> None:
    fd, read = ends
    stream = open_stream(fd)
    writer = LineWriter(stream, fd)
    assert not writer.has_unread()
    await writer.write(b"{}\n")
    assert writer.has_unread()
    assert read() == b"{}\n"
    assert not writer.has_unread()
    await stream.aclose()
    assert not writer.has_unread()


async def test_an_answer_waits_until_the_progress_before_it_is_read(
    ends: Ends, nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    """In one read with the answer, the TypeScript clients would lose the progress."""
    fd, read = ends
    stream = open_stream(fd)
    teller = ProgressTeller(LineWriter(stream, fd))
    nursery.start_soon(teller.run_reports)
    for reads, expected in ((True, 0.1), (False, PROGRESS_READ_S)):
        call = Call(1, b"1")
        teller.report(call, Progress(b"1", None, None))
        if reads:

            async def read_later() -> None:
                await trio.sleep(0.1)
                read()

            nursery.start_soon(read_later)
        start = trio.current_time()
        await teller.settle(call)
        assert expected <= trio.current_time() - start < expected + 0.01
    nursery.cancel_scope.cancel()
    await stream.aclose()
