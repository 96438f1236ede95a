"""Lines that are posted: gathered into few writes, dropped if nobody wants them, and never waited for in vain."""

from __future__ import annotations

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from tests.helpers import PATIENCE
from trio_relay.surface.lines import LineWriter


async def test_posted_lines_go_out_together_and_nobody_waits_for_them(nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    writes: list[bytes] = []

    class Counting:
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            writes.append(bytes(data))
            await ours.send_all(data)

    writer = LineWriter(Counting())  # type: ignore[arg-type]
    nursery.start_soon(writer.run)
    await wait_all_tasks_blocked()
    for number in range(5):
        writer.post(b"%d\n" % number, wanted=lambda number=number: number != 3)  # type: ignore[misc]
    assert writes == []
    with trio.fail_after(PATIENCE):
        await writer.flushed()
    assert writes == [b"0\n1\n2\n4\n"]
    await writer.flushed()
    await theirs.aclose()
    writer.post(b"x\n")
    with trio.fail_after(PATIENCE):
        await writer.flushed()  # it never will be, and nobody waits for ever
    with pytest.raises(trio.BrokenResourceError):
        writer.post(b"y\n")
