"""Taking over from a relay with provider extensions: their tools stay listed until the new owner has them itself."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from tests.helpers import open_tab
from tests.hubs import offer
from tests.relay.ends import EMPTY, became, eventually, free_range, grace, names, record, shown, text
from tests.relay.providing import Extending, FakeProviders, row
from tests.relay.test_promotion import Member
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change
from trio_relay.core.roles import Role
from trio_relay.errors import NotSent, ToolNotFound
from trio_relay.relay.cluster import Cluster, open_cluster
from trio_relay.relay.providers import HandedOver
from trio_relay.relay.remote import Remote


async def test_after_a_takeover_the_new_owner_serves_its_own_providers(nursery: trio.Nursery) -> None:
    config = RelayConfig(port=free_range(1)[0], fixed_port=True)
    first, second = Extending(FakeProviders("notes_read")), Extending(FakeProviders("notes_read"))

    async def owner(*, task_status: trio.TaskStatus[Member]) -> None:
        async with open_cluster(config, extending=first) as cluster:
            member = Member(cluster)
            task_status.started(member)
            await member._leave.wait()
        member._left.set()

    member: Member = await nursery.start(owner)
    async with open_cluster(config, extending=second) as cluster:
        assert cluster.roles.role is Role.CLIENT
        assert isinstance(cluster._backend, Remote)
        assert [first.owning, second.owning] == [True, False]
        await text(cluster, "notes_read")
        assert (len(first.fake.calls), len(second.fake.calls)) == (1, 0)
        await member.leave()
        assert names(cluster) == ["notes_read"], "they stay listed meanwhile"
        assert cluster.provider_rows() == [row(count=1)]
        with trio.fail_after(5):
            await text(cluster, "notes_read")  # waits for the new owner
        await became(cluster, Role.SERVER)
        assert (len(first.fake.calls), len(second.fake.calls)) == (1, 1)
        assert [first.owning, second.owning] == [False, True]
        cluster.asked()
        assert second.fake.times_asked == 1


@asynccontextmanager
async def taken_over(
    monkeypatch: pytest.MonkeyPatch, own: FakeProviders, seconds: float = 5.0
) -> AsyncIterator[tuple[Cluster, list[Change]]]:
    """A relay that has just taken over from one that listed `notes_read`, with the changes its client has seen."""
    grace(monkeypatch, seconds)
    config = RelayConfig(port=free_range(1)[0], fixed_port=True)
    before = FakeProviders("notes_read")
    async with trio.open_nursery() as nursery:
        leave, changes = trio.Event(), list[Change]()

        async def owner(*, task_status: trio.TaskStatus[None]) -> None:
            async with open_cluster(config, extending=Extending(before)):
                task_status.started()
                await leave.wait()

        await nursery.start(owner)
        async with open_cluster(config, extending=Extending(own)) as cluster:
            assert names(cluster) == ["notes_read"]
            nursery.start_soon(record, cluster, changes)
            leave.set()
            await became(cluster, Role.SERVER)
            yield cluster, changes
        nursery.cancel_scope.cancel()


async def test_tools_stay_listed_until_the_provider_is_back_and_a_call_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = FakeProviders()
    own.show(row("error"))
    async with taken_over(monkeypatch, own) as (cluster, changes), open_tab(cluster.info()["port"]) as tab:
        assert names(cluster) == ["notes_read"]
        await offer(tab, "t1", "notes_read")
        assert names(cluster) == ["notes_read", "notes_read_2"], "no page takes the name meanwhile"
        await tab.offer()
        await shown(cluster, "notes_read")
        await eventually(lambda: changes and changes[-1] == cluster.change())
        changes.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(text, cluster, "notes_read")
            await trio.testing.wait_all_tasks_blocked()
            assert own.calls == []
            own.offer("notes_read")
            with trio.fail_after(5):
                while not own.calls:  # noqa: ASYNC110  (the call is on its way)
                    await trio.sleep(0.002)
        ((_, _, limit),) = own.calls
        assert limit is not None
        assert limit <= 65
        assert changes == [], "a client need not list again"
        own.offer("notes_write")
        await shown(cluster, "notes_write")


async def test_what_is_not_back_in_time_goes_and_its_calls_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    own = FakeProviders()
    own.show(row("error"))
    async with taken_over(monkeypatch, own, seconds=0.5) as (cluster, _):
        with pytest.raises(ToolNotFound, match="provider Notes cannot be used"), trio.fail_after(5):
            await text(cluster, "notes_read")
        await shown(cluster)


async def test_tools_of_providers_that_the_new_owner_does_not_have_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own = FakeProviders()
    own.show()
    async with taken_over(monkeypatch, own) as (cluster, _):
        await shown(cluster)
        with pytest.raises(ToolNotFound):
            await text(cluster, "notes_read")


async def test_a_call_has_its_own_time_limit_while_it_waits_for_the_provider() -> None:
    own, lost = FakeProviders(), FakeProviders("notes_read")
    own.show(row("error"))
    both = HandedOver(own, lost)
    with pytest.raises(NotSent, match="has not come back"), trio.fail_after(5):
        await both.call("notes_read", EMPTY, limit=0.05)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(both.wait_change, both.change())
        await trio.testing.wait_all_tasks_blocked()
        both.drop()
    assert both.change() == own.change()
    assert both.listing() == []
