"""A server whose port takes connections and says nothing: it is waited for, and calls stay bounded."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
import trio

from tests.relay.ends import (
    EMPTY,
    HandWrittenServer,
    became,
    eventually,
    grace,
    names,
    plain_tools,
    record,
    serve_by_hand,
    silent_listener,
    use_range,
)
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change
from trio_relay.core.roles import Role
from trio_relay.errors import NotSent
from trio_relay.relay.cluster import Cluster, open_cluster
from trio_relay.relay.hub import open_hub


@asynccontextmanager
async def frozen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ports: range, *, thaw: trio.Event
) -> AsyncIterator[Cluster]:
    """A client whose server's port takes connections and says nothing, until `thaw`."""
    caplog.set_level(logging.DEBUG, "trio_relay")
    monkeypatch.setattr("trio_relay.relay.cluster.SILENT_S", 0.05)
    monkeypatch.setattr("trio_relay.core.roles.FIRST_DELAY_S", 0.05)
    monkeypatch.setattr("trio_relay.core.roles.LONGEST_DELAY_S", 0.1)
    # Time to put the silent listener in the server's place.
    monkeypatch.setattr("trio_relay.relay.cluster.random", SimpleNamespace(random=lambda: 1.0))
    monkeypatch.setattr("trio_relay.relay.cluster.JITTER_S", 0.5)
    async with trio.open_nursery() as nursery:
        left = trio.Event()

        async def first(*, task_status: trio.TaskStatus[HandWrittenServer]) -> None:
            async with serve_by_hand(port=ports[1], tools=plain_tools("a")) as server:
                task_status.started(server)
                await left.wait()

        await nursery.start(first)
        async with open_cluster(RelayConfig(port=ports[0])) as cluster:
            assert cluster.info() == {"mode": "client", "host": "127.0.0.1", "port": ports[1]}
            left.set()
            await became(cluster, Role.PROMOTING)

            async def ice(*, task_status: trio.TaskStatus[None]) -> None:
                with silent_listener(ports[1]):
                    task_status.started()
                    await thaw.wait()

            await nursery.start(ice)
            yield cluster
        nursery.cancel_scope.cancel()


def attempts(caplog: pytest.LogCaptureFixture) -> int:
    return sum("to take over failed" in record.getMessage() for record in caplog.records)


async def test_the_port_of_a_frozen_server_is_waited_for_and_never_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """DECISION 2."""
    ports, thaw = use_range(monkeypatch, 3), trio.Event()
    async with frozen(monkeypatch, caplog, ports, thaw=thaw) as cluster:
        await eventually(lambda: attempts(caplog) >= 3)
        assert cluster.roles.role is Role.PROMOTING
        assert cluster.info()["mode"] == "promoting"
        thaw.set()
        await became(cluster, Role.SERVER)
        assert cluster.info()["port"] == ports[1]


async def test_a_frozen_server_beside_a_live_one_is_left_for_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ports, thaw = use_range(monkeypatch, 3), trio.Event()
    async with frozen(monkeypatch, caplog, ports, thaw=thaw) as cluster:
        await eventually(lambda: attempts(caplog) >= 1)
        async with open_hub(RelayConfig(port=ports[2])):
            await became(cluster, Role.CLIENT)
            assert cluster.info()["port"] == ports[2]


async def test_calls_are_bounded_while_the_server_is_frozen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B26: before the grace time is over, and after it."""
    grace(monkeypatch, 0.8)
    ports, thaw = use_range(monkeypatch, 3), trio.Event()
    async with frozen(monkeypatch, caplog, ports, thaw=thaw) as cluster, trio.open_nursery() as nursery:
        changes = list[Change]()
        nursery.start_soon(record, cluster, changes)
        assert names(cluster) == ["a"]
        for _ in range(2):
            with pytest.raises(NotSent), trio.fail_after(3):
                await cluster.call("a", EMPTY)
            with pytest.raises(NotSent):
                cluster.refresh("https://a.example")
            await eventually(lambda: names(cluster) == [])
        assert cluster.roles.role is Role.PROMOTING
        await eventually(lambda: changes)
        await trio.testing.wait_all_tasks_blocked(0.03)
        assert len(changes) == 1
        assert not cluster.open_in_browser("https://a.example")
        nursery.cancel_scope.cancel()


async def test_after_the_last_attempt_a_relay_stops_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("trio_relay.core.roles.MAX_ATTEMPTS", 2)
    ports, thaw = use_range(monkeypatch, 3), trio.Event()
    async with frozen(monkeypatch, caplog, ports, thaw=thaw) as cluster:
        await became(cluster, Role.STOPPED)
        assert names(cluster) == []
        with pytest.raises(NotSent), trio.fail_after(3):
            await cluster.call("a", EMPTY)
        assert [record.levelname for record in caplog.records].count("ERROR") == 1
