"""When a change of the catalogue is told: coalesced, silent when nobody could see it, titles once a second.

A backend of our own on a clock of our own; the eras' ways of telling it are in test_eras.py.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from tests.helpers import LineClient, open_tab
from tests.surface.test_answers import Catalogue
from trio_relay.core.backend import Change
from trio_relay.relay.changes import COALESCE_S, TITLE_S, Bell, visible_changes
from trio_relay.relay.hub import Hub


class Changing(Catalogue):
    def __init__(self) -> None:
        super().__init__()
        self.now = Change(0, 0)
        self.bell = Bell()

    def change(self) -> Change:
        return self.now

    def become(self, names: int | None = None, titles: int | None = None) -> None:
        self.now = Change(
            self.now.names if names is None else names,
            self.now.titles if titles is None else titles,
        )
        self.bell.ring()

    async def wait_change(self, seen: Change) -> Change:
        while self.now == seen:
            await self.bell.wait()
        return self.now


@asynccontextmanager
async def following() -> AsyncIterator[tuple[Changing, list[tuple[float, Change]]]]:
    backend = Changing()
    told: list[tuple[float, Change]] = []
    start = trio.current_time()

    async def follow() -> None:
        async for change in visible_changes(backend, backend.change()):
            told.append((round(trio.current_time() - start, 3), change))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        await trio.testing.wait_all_tasks_blocked()
        yield backend, told
        nursery.cancel_scope.cancel()


async def test_a_burst_is_one_change(autojump_clock: MockClock) -> None:
    async with following() as (backend, told):
        for number in range(1, 11):
            backend.become(names=number)
            await trio.sleep(0.001)
        await trio.sleep(60)
    assert told == [(COALESCE_S, Change(10, 0))]


async def test_a_change_that_is_taken_back_within_a_frame_is_none(autojump_clock: MockClock) -> None:
    """A tab that reloads within 16 ms with the same bytes."""
    async with following() as (backend, told):
        backend.become(names=0)
        backend.become(names=5)
        await trio.sleep(COALESCE_S / 2)
        backend.become(names=0)
        await trio.sleep(60)
        backend.bell.ring()
        await trio.sleep(60)
    assert told == []


async def test_a_change_during_the_telling_of_another_is_told_too(autojump_clock: MockClock) -> None:
    async with following() as (backend, told):
        backend.become(names=1)
        await trio.sleep(COALESCE_S * 1.5)
        backend.become(names=2)
        await trio.sleep(1)
    assert [change.names for _, change in told] == [1, 2]


async def test_titles_alone_are_told_at_most_once_a_second(autojump_clock: MockClock) -> None:
    async with following() as (backend, told):
        for number in range(1, 51):
            backend.become(titles=number)
            await trio.sleep(0.1)
        await trio.sleep(10)
    times = [at for at, _ in told]
    assert times[0] == COALESCE_S, "the first one at once"
    assert all(later - earlier >= TITLE_S for earlier, later in itertools.pairwise(times))
    assert 5 <= len(times) <= 6
    assert told[-1][1] == Change(0, 50), "the last one is told"


async def test_a_real_change_does_not_wait_for_the_second_of_the_titles(autojump_clock: MockClock) -> None:
    async with following() as (backend, told):
        backend.become(titles=1)
        await trio.sleep(0.1)
        backend.become(titles=2)
        await trio.sleep(0.1)
        backend.become(names=1)
        await trio.sleep(10)
    assert [change for _, change in told] == [Change(0, 1), Change(1, 2)]
    assert told[1][0] <= 0.2 + 2 * COALESCE_S


async def test_a_title_that_returns_to_what_was_told_is_no_change(autojump_clock: MockClock) -> None:
    async with following() as (backend, told):
        backend.become(titles=1)
        await trio.sleep(0.1)
        for _ in range(3):
            backend.become(titles=2)
            await trio.sleep(0.1)
            backend.become(titles=1)
            await trio.sleep(0.1)
        await trio.sleep(10)
    assert [change for _, change in told] == [Change(0, 1)]


async def test_the_last_of_many_waiters_hears_the_bell_too() -> None:
    bell = Bell()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(bell.wait)
        await trio.testing.wait_all_tasks_blocked()
        bell.ring()
    with trio.move_on_after(0) as scope:
        await bell.wait()
    assert scope.cancelled_caught


@pytest.mark.parametrize("names", [1, 2])
async def test_a_change_that_happened_before_the_follower_began_is_told(autojump_clock: MockClock, names: int) -> None:
    backend = Changing()
    backend.become(names=names)
    changes = visible_changes(backend, Change(0, 0))
    with trio.fail_after(1):
        assert await anext(changes) == Change(names, 0)


async def test_a_client_that_lists_before_it_may_hear_is_told_as_soon_as_it_may(client: LineClient, hub: Hub) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    await client.request("initialize", params)
    assert await client.tool_names() == []
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer("late")
        with trio.fail_after(5):
            while not hub.listing():
                await hub.wait_change(hub.change())
        await trio.sleep(2 * COALESCE_S)
        await client.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (await client.message())["method"] == "notifications/tools/list_changed"
