"""The heartbeat: when a tab is pinged, what counts as life, and when it is cut. Exact, on trio's mock clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import trio
from trio.testing import MockClock

from trio_relay.links.outbox import Outbox
from trio_relay.links.socket import Closed, Socket
from trio_relay.links.source import Heartbeat, SourceSink, beat
from trio_relay.wire.browser import PING


class Stage:
    """A heartbeat on a stub socket: notes when it pings and when it cuts, in seconds since its start."""

    def __init__(self, *, accepted: bool = True) -> None:
        self.start = trio.current_time()
        self.metered = SimpleNamespace(last_life=self.start)
        self.accepted = accepted
        self.label = "tab 't1'"
        self.pings: list[float] = []
        self.cut: tuple[float, Closed] | None = None
        self.backlog = 0
        self.answers = False

    @property
    def last_life(self) -> float:
        return cast(float, self.metered.last_life)

    def __len__(self) -> int:
        return self.backlog

    def put(self, message: bytes) -> None:
        assert message == PING
        self.pings.append(self.now)
        if self.answers:
            self.live()

    @property
    def now(self) -> float:
        return trio.current_time() - self.start

    def live(self) -> None:
        self.metered.last_life = trio.current_time()

    def cut_at(self) -> float | None:
        return None if self.cut is None else self.cut[0]

    async def run(self) -> None:
        try:
            await beat(cast(Socket, self), cast(SourceSink, self), cast(Outbox, self), Heartbeat())
        except Closed as closed:
            self.cut = (self.now, closed)

    async def run_for(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self.run()


async def test_a_silent_tab_is_pinged_after_15_s_and_cut_after_25(autojump_clock: MockClock) -> None:
    stage = Stage()
    await stage.run()
    assert stage.pings == [15]
    assert stage.cut is not None
    at, closed = stage.cut
    assert at == 25
    assert closed.code == 1001
    assert closed.ours
    assert "25 s" in closed.reason


async def test_a_tab_that_answers_is_pinged_every_15_s_for_ever(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.answers = True
    await stage.run_for(3600)
    assert stage.pings == [15 * n for n in range(1, 240)]
    assert stage.cut_at() is None


async def test_a_tab_that_sends_other_things_but_no_pong_stays(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """B29."""
    stage = Stage()

    async def send() -> None:
        while True:
            await trio.sleep(5)
            stage.live()

    nursery.start_soon(send)
    await stage.run_for(600)
    assert stage.cut_at() is None
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lives_at", [0.5, 14, 15, 24.999])
async def test_the_25_s_count_from_the_last_sign_of_life(
    lives_at: float, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage()

    async def live_once() -> None:
        await trio.sleep(lives_at)
        stage.live()

    nursery.start_soon(live_once)
    await stage.run()
    assert stage.cut_at() == pytest.approx(lives_at + 25, abs=1e-6)


async def test_no_ping_is_put_behind_a_backlog(autojump_clock: MockClock) -> None:
    stage = Stage()
    stage.backlog = 1
    await stage.run()
    assert stage.pings == []
    assert stage.cut_at() == 25


async def test_a_backlog_that_is_gone_is_pinged_at_the_next_interval(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage()
    stage.answers = True
    stage.backlog = 1

    async def read_slowly() -> None:
        await trio.sleep(14)
        stage.live()
        await trio.sleep(14)
        stage.live()
        stage.backlog = 0

    nursery.start_soon(read_slowly)
    await stage.run_for(50)
    assert stage.pings == [30, 45]


@pytest.mark.parametrize("lively", [False, True])
async def test_a_socket_without_a_hello_is_closed_after_30_s(
    lively: bool, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    stage = Stage(accepted=False)
    stage.answers = True  # pongs are no hello
    if lively:

        async def send() -> None:
            while True:
                await trio.sleep(1)
                stage.live()

        nursery.start_soon(send)
    await stage.run()
    assert stage.cut is not None
    at, closed = stage.cut
    assert at == 30
    assert closed.code == 1008
    assert "hello" in closed.reason
    nursery.cancel_scope.cancel()


async def test_a_hello_in_time_ends_that_limit(autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    stage = Stage(accepted=False)
    stage.answers = True

    async def accept() -> None:
        await trio.sleep(29.5)
        stage.accepted = True

    nursery.start_soon(accept)
    await stage.run_for(300)
    assert stage.cut_at() is None


async def test_silence_while_we_were_stopped_does_not_count(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    """A laptop that slept for an hour: the timer rings much too late, and the tab gets its full 25 s again."""
    stage = Stage()
    nursery.start_soon(stage.run)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(3600)
    await trio.testing.wait_all_tasks_blocked()
    assert stage.cut_at() is None
    assert stage.pings == [3600]  # and it is asked at once
    mock_clock.jump(15)
    await trio.testing.wait_all_tasks_blocked()
    assert stage.cut_at() is None
    assert stage.pings == [3600, 3615]
    mock_clock.jump(9.9)
    await trio.testing.wait_all_tasks_blocked()
    assert stage.cut_at() is None
    mock_clock.jump(0.1)
    await trio.testing.wait_all_tasks_blocked()
    assert stage.cut_at() == 3625


async def test_a_timer_that_is_a_little_late_is_no_excuse(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    stage = Stage()
    nursery.start_soon(stage.run)
    for jump in (15.0, 10.9):
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(jump)
    await trio.testing.wait_all_tasks_blocked()
    assert stage.cut_at() == 25.9


async def test_the_hello_limit_holds_also_when_we_were_late(mock_clock: MockClock, nursery: trio.Nursery) -> None:
    stage = Stage(accepted=False)
    nursery.start_soon(stage.run)
    await trio.testing.wait_all_tasks_blocked()
    mock_clock.jump(100)
    await trio.testing.wait_all_tasks_blocked()
    assert stage.cut is not None
    assert stage.cut[1].code == 1008
