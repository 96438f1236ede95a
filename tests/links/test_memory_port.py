"""Ports joined in memory: order, waiting, and an end that both sides learn of with its reason."""

from __future__ import annotations

import pytest
import trio

from trio_relay.core.port import Port, PortClosed
from trio_relay.links.memory_port import QUEUE, port_pair

A, B = "a" * 32, "b" * 32


async def test_messages_go_both_ways_in_order_and_ends_know_who_is_there() -> None:
    ours: Port
    ours, theirs = port_pair(A, B)
    assert (ours.extension_id, theirs.extension_id) == (B, A)
    for number in range(5):
        await ours.send(b"%d" % number)
        await theirs.send(b"-%d" % number)
    assert [await theirs.receive() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]
    assert await ours.receive() == b"-0"


async def test_what_arrived_before_the_end_is_handed_out_and_then_the_reason() -> None:
    ours, theirs = port_pair(A, B)
    await ours.send(b"last")
    ours.close("the worker died")
    ours.close("something later")
    assert await theirs.receive() == b"last"
    with pytest.raises(PortClosed, match="the worker died"):
        await theirs.receive()
    with pytest.raises(PortClosed, match="the worker died"):
        await theirs.send(b"x")
    with pytest.raises(PortClosed, match="the worker died"):
        await ours.receive()


async def test_an_end_on_purpose_needs_no_reason() -> None:
    ours, theirs = port_pair(A, B)
    ours.close()
    with pytest.raises(PortClosed, match="the other end closed the port"):
        await theirs.receive()
    with pytest.raises(PortClosed, match="closed here"):
        await ours.send(b"x")


async def test_a_sender_waits_for_a_slow_reader_and_learns_of_the_end_while_it_waits(nursery: trio.Nursery) -> None:
    ours, theirs = port_pair(A, B)
    for _ in range(QUEUE):
        await ours.send(b"x")
    failed: list[str] = []

    async def send_one_more() -> None:
        try:
            await ours.send(b"y")
        except PortClosed as closed:
            failed.append(closed.reason)

    nursery.start_soon(send_one_more)
    await trio.testing.wait_all_tasks_blocked()
    assert failed == []
    theirs.close("enough")
    await trio.testing.wait_all_tasks_blocked()
    assert failed == ["enough"]
