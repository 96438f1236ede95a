"""Taking over: a server goes, its clients share its place, and what a client shows meanwhile."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from msgspec import Raw

import trio_relay
from tests.helpers import FakeTab, open_tab, text_result
from tests.relay.ends import (
    EMPTY,
    became,
    calling,
    eventually,
    free_range,
    grace,
    names,
    open_peer,
    plain_tools,
    record,
    serve_by_hand,
    use_range,
)
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change, ToolBackend
from trio_relay.core.roles import Role
from trio_relay.errors import NotSent, SourceLost
from trio_relay.relay.cluster import Cluster, open_cluster


class Member:
    """One relay of several in this process. `leave` ends it and frees its port."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._leave = trio.Event()
        self._left = trio.Event()

    async def leave(self) -> None:
        self._leave.set()
        with trio.fail_after(5):
            await self._left.wait()

    @staticmethod
    async def run(config: RelayConfig, *, task_status: trio.TaskStatus[Member]) -> None:
        async with open_cluster(config) as cluster:
            member = Member(cluster)
            task_status.started(member)
            await member._leave.wait()
        member._left.set()


def fixed() -> RelayConfig:
    return RelayConfig(port=free_range(1)[0], fixed_port=True)


@asynccontextmanager
async def tab_with(port: int, tab_id: str, *tools: object) -> AsyncIterator[FakeTab]:
    async with open_tab(port) as tab:
        await tab.hello(tab_id)
        await tab.offer(*tools)
        yield tab


async def lists(backend: ToolBackend, *tools: str) -> None:
    await eventually(lambda: names(backend) == list(tools))


async def test_a_client_takes_over_the_port_of_its_server(nursery: trio.Nursery) -> None:
    config = fixed()
    server = await nursery.start(Member.run, config)
    client = await nursery.start(Member.run, config)
    assert client.cluster.info()["mode"] == "client"
    await server.leave()
    await became(client.cluster, Role.SERVER)
    assert client.cluster.info() == {"mode": "server", "host": "127.0.0.1", "port": config.port}
    async with tab_with(config.port, "t1", "a"):
        await eventually(lambda: names(client.cluster) == ["a"])
    nursery.cancel_scope.cancel()


async def test_within_a_range_the_same_port_is_taken_although_a_lower_one_is_free(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    ports = use_range(monkeypatch, 4)
    server = await nursery.start(Member.run, RelayConfig(port=ports[2], fixed_port=True))
    async with open_cluster(RelayConfig(port=ports[0])) as client:
        assert client.roles.role is Role.CLIENT
        await server.leave()
        await became(client, Role.SERVER)
        assert client.info()["port"] == ports[2]
    nursery.cancel_scope.cancel()


async def test_a_hand_over_whose_tabs_come_back_is_no_change_a_client_can_see(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """DECISION 3."""
    grace(monkeypatch, 1.0)
    config = fixed()
    server = await nursery.start(Member.run, config)
    member = await nursery.start(Member.run, config)
    client = member.cluster
    trailing = {"name": "b", "description": "Ends with blanks.  ", "annotations": {"title": "B"}}
    async with tab_with(config.port, "aa11", "search", trailing), tab_with(config.port, "bb22", "search") as last:
        await lists(client, "b", "search_aa11", "search_bb22")
        listed = sorted(b",".join(client.listing()).split(b"},{"))
        before, changes = client.change(), list[Change]()
        nursery.start_soon(record, client, changes)
        await server.leave()
        await last.closed()
        assert client.change() == before
    await became(client, Role.SERVER)
    assert client.change() == before
    assert names(client) == ["b", "search_aa11", "search_bb22"]
    async with tab_with(config.port, "bb22", "search") as two:
        nursery.start_soon(two.serve, lambda invoke: text_result("two"))
        async with tab_with(config.port, "aa11", "search", trailing) as one:
            nursery.start_soon(one.serve, lambda invoke: text_result("one"))
            await trio.sleep(1.3)  # past the grace time, on purpose
            assert changes == []
            assert client.change() == before
            assert len(client.sources()) == 2
            assert sorted(b",".join(client.listing()).split(b"},{"))[0] in listed
            for name, answer in (("search_aa11", "one"), ("search_bb22", "two")):
                result = await client.call(name, EMPTY)
                assert json.loads(bytes(result.json)) == text_result(answer)
    nursery.cancel_scope.cancel()


async def test_tools_whose_tabs_do_not_come_back_vanish_with_one_change(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    grace(monkeypatch, 0.4)
    config = fixed()
    server = await nursery.start(Member.run, config)
    client = (await nursery.start(Member.run, config)).cluster
    async with (
        tab_with(config.port, "aa11", "search"),
        tab_with(config.port, "bb22", "search", "b"),
        tab_with(config.port, "cc33", "search"),
    ):
        await eventually(lambda: len(names(client)) == 4)
        changes = list[Change]()
        nursery.start_soon(record, client, changes)
        await server.leave()
    await became(client, Role.SERVER)
    async with tab_with(config.port, "bb22", "search", "b"):
        await eventually(lambda: any(row.tab_id == "bb22" and row.tool_count == 2 for row in client.sources()))
        await eventually(lambda: len(names(client)) < 4)
        assert names(client) == ["b", "search_bb22"]
        assert [row.tab_id for row in client.sources()] == ["bb22"]
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(changes) == 1
    nursery.cancel_scope.cancel()


async def test_a_tab_that_comes_back_with_other_tools_has_those(nursery: trio.Nursery) -> None:
    config = fixed()
    server = await nursery.start(Member.run, config)
    client = (await nursery.start(Member.run, config)).cluster
    async with tab_with(config.port, "aa11", "old", "same"):
        await lists(client, "old", "same")
        await server.leave()
    await became(client, Role.SERVER)
    async with open_tab(config.port) as tab:
        await tab.hello("aa11")
        assert names(client) == ["old", "same"], "kept until its first list"
        await tab.offer("same", "new")
        await lists(client, "new", "same")
    await eventually(lambda: names(client) == [])
    nursery.cancel_scope.cancel()


async def test_a_tab_of_the_same_id_from_another_origin_does_not_end_the_waiting(nursery: trio.Nursery) -> None:
    """DECISION 3."""
    config = RelayConfig(port=free_range(1)[0], fixed_port=True, allowed_origins=("*",))
    server = await nursery.start(Member.run, config)
    client = (await nursery.start(Member.run, config)).cluster
    async with tab_with(config.port, "aa11", "a"):
        await lists(client, "a")
        await server.leave()
    await became(client, Role.SERVER)
    async with open_tab(config.port, origin="https://other.example") as other:
        await other.hello("aa11")
        await other.offer("b")
        await lists(client, "a", "b")
    await lists(client, "a")
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("through", ["the new server", "its client"])
async def test_a_call_to_a_kept_tool_waits_for_its_tab(nursery: trio.Nursery, through: str) -> None:
    """DECISION 3."""
    config = fixed()
    server = await nursery.start(Member.run, config)
    members = [(await nursery.start(Member.run, config)).cluster for _ in range(2)]
    async with tab_with(config.port, "aa11", "a"):
        for member in members:
            await lists(member, "a")
        await server.leave()
    await eventually(lambda: {member.roles.role for member in members} == {Role.SERVER, Role.CLIENT})
    wanted = Role.SERVER if through == "the new server" else Role.CLIENT
    caller = next(member for member in members if member.roles.role is wanted)
    assert names(caller) == ["a"]
    answers: list[object] = []

    async def call() -> None:
        answers.append(json.loads(bytes((await caller.call("a", Raw(b'{"n":1}'))).json)))

    with trio.fail_after(5):
        async with trio.open_nursery() as calls:
            calls.start_soon(call)
            await trio.testing.wait_all_tasks_blocked(0.05)
            async with open_tab(config.port) as tab:
                await tab.hello("aa11")
                await trio.testing.wait_all_tasks_blocked(0.05)
                assert not any(frame["type"] == "invoke" for frame in tab.seen)
                await tab.offer("a")
                await tab.answer(await tab.expect("invoke"), text_result("back"))
                await eventually(lambda: answers)
    assert answers == [text_result("back")]
    nursery.cancel_scope.cancel()


async def test_a_call_to_a_kept_tool_fails_clearly_when_its_tab_does_not_come_back(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    grace(monkeypatch, 0.4)
    config = fixed()
    server = await nursery.start(Member.run, config)
    client = (await nursery.start(Member.run, config)).cluster
    async with tab_with(config.port, "aa11", "a"):
        await lists(client, "a")
        await server.leave()
    with pytest.raises(NotSent) as caught, trio.fail_after(3):
        await client.call("a", EMPTY)
    assert "'a'" in str(caught.value)
    assert not caught.value.may_have_run
    nursery.cancel_scope.cancel()


async def test_the_waiting_for_a_kept_tool_counts_against_the_deadline_of_the_call(nursery: trio.Nursery) -> None:
    """C12: an outer relay would give up first, and would not know that the call was never sent."""
    config = fixed()
    server = await nursery.start(Member.run, config)
    client = (await nursery.start(Member.run, config)).cluster
    async with tab_with(config.port, "aa11", "a"):
        await lists(client, "a")
        await server.leave()
    await became(client, Role.SERVER)
    async with open_peer(config.port) as peer:
        with trio.fail_after(2):  # the grace time is 5 s
            answer = await peer.call("a", deadlineMs=100)
        assert answer["isError"]
        assert "not sent" in answer["content"][0]["text"]
    nursery.cancel_scope.cancel()


async def test_a_call_made_before_anybody_has_taken_over_is_carried_out(nursery: trio.Nursery) -> None:
    config = fixed()
    async with serve_by_hand(port=config.port, tools=plain_tools("a")) as first:
        client = (await nursery.start(Member.run, config)).cluster
        assert names(client) == ["a"]
        await first.vanish()
        await eventually(lambda: client.roles.role is not Role.CLIENT)
        # The same server is there again: it is rejoined.
        nursery.start_soon(calling, client, "a", EMPTY)
        await first.answer(await first.frame("relay/invoke"), "x")
        assert client.roles.role is Role.CLIENT
        assert first.joined >= 2
    nursery.cancel_scope.cancel()


async def test_calls_under_way_when_the_server_goes_fail_at_once(nursery: trio.Nursery) -> None:
    """B26."""
    config = fixed()
    server = await nursery.start(Member.run, config)
    client = (await nursery.start(Member.run, config)).cluster
    async with tab_with(config.port, "aa11", "slow") as tab:
        await lists(client, "slow")

        async def call() -> None:
            with pytest.raises(SourceLost) as caught:
                await client.call("slow", EMPTY)
            assert caught.value.may_have_run

        with trio.fail_after(5):
            async with trio.open_nursery() as calls:
                calls.start_soon(call)
                await tab.expect("invoke")
                await server.leave()
    nursery.cancel_scope.cancel()


async def test_of_several_clients_exactly_one_takes_over_and_the_others_join_it(nursery: trio.Nursery) -> None:
    """B26."""
    config = fixed()
    server = await nursery.start(Member.run, config)
    members = [await nursery.start(Member.run, config) for _ in range(4)]
    async with tab_with(config.port, "aa11", "a"):
        for member in members:
            await lists(member.cluster, "a")
        seen = [member.cluster.change() for member in members]
        await server.leave()
    for count in (4, 3):
        await eventually(
            lambda: sorted(m.cluster.roles.role.value for m in members) == ["client"] * (len(members) - 1) + ["server"]
        )
        assert len(members) == count
        assert [member.cluster.change() for member in members] == seen[:count], "the kept tool is listed by all"
        next_server = next(m for m in members if m.cluster.roles.role is Role.SERVER)
        members.remove(next_server)
        await next_server.leave()
    nursery.cancel_scope.cancel()


async def test_a_fresh_relay_knows_no_earlier_tools() -> None:
    """B27."""
    config = fixed()
    async with open_cluster(config) as cluster, tab_with(config.port, "t1", "old"):
        await lists(cluster, "old")
    async with open_cluster(config) as cluster, open_tab(config.port) as tab:
        changes = list[Change]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(record, cluster, changes)
            await tab.hello("t1")
            assert [row.tool_count for row in cluster.sources()] == [0]
            assert names(cluster) == []
            await tab.offer("new")
            await eventually(lambda: names(cluster) == ["new"] and changes)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert len(changes) == 1
            nursery.cancel_scope.cancel()


async def test_waiting_for_a_change_goes_on_across_roles(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    grace(monkeypatch, 0.2)
    config = fixed()
    server = await nursery.start(Member.run, config)
    relay = await nursery.start(trio_relay.serve, config)
    views = relay.watch()
    with trio.fail_after(10):
        assert (await anext(views)).mode == "client"
        async with tab_with(config.port, "t1", "a"):
            view = await anext(views)
            assert (view.mode, len(view.tools)) == ("client", 1)
            await server.leave()
        view = await anext(views)
        assert (view.mode, view.tools, view.port) == ("server", (), config.port)
        async with tab_with(config.port, "t1", "a", "b"):
            view = await anext(views)
            assert (view.mode, len(view.tools)) == ("server", 2)
    nursery.cancel_scope.cancel()


async def test_a_relay_client_of_a_server_that_took_over_sees_the_kept_tools(nursery: trio.Nursery) -> None:
    config = fixed()
    server = await nursery.start(Member.run, config)
    client = (await nursery.start(Member.run, config)).cluster
    async with tab_with(config.port, "aa11", "a.b"):
        await lists(client, "a_b")
        await server.leave()
    await became(client, Role.SERVER)
    async with open_peer(config.port) as peer:
        listed = await peer.list_tools()
        assert [tool["name"] for tool in listed["tools"]] == ["a_b"]
        assert listed["originalNames"] == {"a_b": "a.b"}
    nursery.cancel_scope.cancel()
