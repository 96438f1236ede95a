"""Waking followers of the catalogue, on the mock clock: bursts are one change, nothing visible is none."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import trio
from trio.testing import MockClock

from trio_relay.core.backend import Change, ToolBackend
from trio_relay.relay.changes import Bell, visible_changes


class StubBackend:
    """A catalogue that changes on a schedule, and the times at which a follower heard of it."""

    def __init__(self) -> None:
        self.start = trio.current_time()
        self._now = Change(0, 0)
        self._bell = Bell()
        self.heard: list[tuple[float, Change]] = []

    def change(self) -> Change:
        return self._now

    async def wait_change(self, seen: Change) -> Change:
        while self._now == seen:
            await self._bell.wait()
        return self._now

    def become(self, names: int, titles: int) -> None:
        self._now = Change(names, titles)
        self._bell.ring()

    async def follow(self) -> None:
        async for change in visible_changes(cast(ToolBackend, self), self._now):
            self.heard.append((round(trio.current_time() - self.start, 6), change))


async def play(*steps: tuple[float, int, int], until: float = 100) -> list[tuple[float, Change]]:
    """Follow a backend that becomes (names, titles) at each time; returns what was heard, and when."""
    backend = StubBackend()
    with trio.move_on_after(until):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(backend.follow)
            for at, names, titles in steps:
                await trio.sleep_until(backend.start + at)
                backend.become(names, titles)
            await trio.sleep_forever()
    return backend.heard


async def test_a_change_is_heard_after_16_ms(autojump_clock: MockClock) -> None:
    assert await play((1, 1, 0)) == [(1.016, Change(1, 0))]


async def test_a_burst_is_one_change(autojump_clock: MockClock) -> None:
    steps = [(1 + n / 1000, n, 0) for n in range(1, 11)]
    assert await play(*steps) == [(1.017, Change(10, 0))]


async def test_a_burst_that_ends_where_it_began_is_silent(autojump_clock: MockClock) -> None:
    assert await play((1, 1, 0), (1.01, 0, 0)) == []


async def test_changes_apart_are_heard_apart(autojump_clock: MockClock) -> None:
    assert await play((1, 1, 0), (1.1, 2, 0)) == [(1.016, Change(1, 0)), (1.116, Change(2, 0))]


async def test_what_changes_while_it_is_told_is_not_lost(autojump_clock: MockClock) -> None:
    backend = StubBackend()
    changes = visible_changes(cast(ToolBackend, backend), backend.change())
    backend.become(1, 0)
    assert await anext(changes) == Change(1, 0)
    backend.become(2, 0)  # nobody waits at this moment
    assert await anext(changes) == Change(2, 0)


async def test_a_difference_that_is_there_already_is_heard(autojump_clock: MockClock) -> None:
    backend = StubBackend()
    backend.become(3, 0)
    assert await anext(visible_changes(cast(ToolBackend, backend), Change(1, 0))) == Change(3, 0)


async def test_titles_alone_are_told_once_a_second(autojump_clock: MockClock) -> None:
    """The first at once, then the latest of each second."""
    steps = [(1 + n / 10, 0, n) for n in range(1, 31)]  # from 1.1 to 4.0
    assert await play(*steps) == [
        (1.116, Change(0, 1)),
        (2.116, Change(0, 11)),
        (3.116, Change(0, 21)),
        (4.116, Change(0, 30)),
    ]


async def test_a_title_that_came_back_within_the_second_is_silent(autojump_clock: MockClock) -> None:
    assert await play((1, 0, 1), (1.2, 0, 2), (1.5, 0, 1)) == [(1.016, Change(0, 1))]


async def test_a_change_of_names_does_not_wait_for_the_titles_second(autojump_clock: MockClock) -> None:
    heard = await play((1, 0, 1), (1.2, 0, 2), (1.5, 1, 2))
    assert heard == [(1.016, Change(0, 1)), (1.5, Change(1, 2))]


async def test_names_that_change_and_come_back_while_titles_wait_are_no_change_of_names(
    autojump_clock: MockClock,
) -> None:
    heard = await play((1, 0, 1), (1.2, 0, 2), (1.5, 1, 2), (1.7, 0, 2))
    assert heard[0] == (1.016, Change(0, 1))
    assert [change for _, change in heard][-1] == Change(0, 2)
    assert all(a != b for (_, a), (_, b) in pairwise(heard))


async def test_titles_that_rest_for_a_second_are_told_at_once_again(autojump_clock: MockClock) -> None:
    assert await play((1, 0, 1), (5, 0, 2)) == [(1.016, Change(0, 1)), (5.016, Change(0, 2))]


async def test_a_bell_wakes_all_who_wait_and_none_who_come_later(autojump_clock: MockClock) -> None:
    bell = Bell()
    woken: list[int] = []

    async def wait(number: int) -> None:
        await bell.wait()
        woken.append(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, 1)
        nursery.start_soon(wait, 2)
        await trio.testing.wait_all_tasks_blocked()
        bell.ring()
        nursery.start_soon(wait, 3)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(woken) == [1, 2]
        nursery.cancel_scope.cancel()
