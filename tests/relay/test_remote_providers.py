"""Tools of provider extensions through another relay: the same names and definitions, calls, rows, and odd servers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import Raw

from tests.helpers import open_tab
from tests.hubs import offer
from tests.relay.ends import (
    EMPTY,
    became,
    error_of,
    eventually,
    free_range,
    grace,
    names,
    open_peer,
    open_remote,
    plain_tools,
    record,
    serve_by_hand,
    shown,
    text,
    text_of,
)
from tests.relay.providing import Extending, FakeProviders, admin, definition, providing, row
from tests.relay.test_hub_providers import open_client
from tests.relay.test_promotion import Member
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change, Target, ToolBackend
from trio_relay.core.pending import Progress
from trio_relay.core.roles import Role
from trio_relay.errors import InvalidArguments, NotSent, SourceNotFound, ToolNotFound
from trio_relay.relay.cluster import Cluster, open_cluster
from trio_relay.relay.hub import open_hub
from trio_relay.relay.providers import HandedOver
from trio_relay.relay.remote import Remote
from trio_relay.wire.codec import encode


def catalogue(backend: ToolBackend) -> dict[str, bytes]:
    return {tool.name: tool.definition for tool in backend.tools()}


def provided(*tools: str, **members: object) -> dict[str, Any]:
    """A list of a server with a tab's tool `page`, and tools of a provider."""
    frame = plain_tools("page", providers=json.loads(encode([row(count=len(tools))])), providerTools=list(tools))
    frame["tools"] = [json.loads(definition(name)) for name in tools] + frame["tools"]
    return frame | members


# -- lists


async def test_they_are_listed_as_the_server_lists_them_byte_for_byte() -> None:
    async with providing("notes_read", "notes_write") as (hub, _), open_tab(hub.port) as tab:
        await offer(tab, "t1", "search", "notes_read")
        async with open_remote(hub.port) as remote:
            assert catalogue(remote) == catalogue(hub)
            assert remote.listing() == hub.listing()
            assert remote.change() == hub.change(), "a client sees no difference between the roles"
            assert remote.provider_rows() == hub.provider_rows() == [row(count=2)]
            assert [source.tool_count for source in remote.sources()] == [2]
            assert {tool.name: tool.source_ids for tool in remote.tools()}["notes_read"] == ()


async def test_the_frame_names_the_tools_of_providers_and_gives_them_no_source() -> None:
    async with providing("notes_read") as (hub, _), open_tab(hub.port) as tab, open_peer(hub.port) as peer:
        await offer(tab, "t1", "search")
        frame = await peer.list_tools()
        assert frame["providerTools"] == ["notes_read"]
        assert frame["providers"] == json.loads(encode([row(count=1)]))
        assert list(frame["toolSourceMap"]) == list(frame["originalNames"]) == ["search"]


async def test_a_relay_without_providers_says_nothing_of_them() -> None:
    async with open_hub(RelayConfig(port=0)) as hub, open_peer(hub.port) as peer:
        assert not {"providers", "providerTools"} & (await peer.list_tools()).keys()


async def test_changes_of_tools_and_of_rows_arrive() -> None:
    async with providing("notes_read") as (hub, fake), open_remote(hub.port) as remote:
        fake.offer("notes_read", "notes_write")
        await shown(remote, "notes_read", "notes_write")
        before = remote.change()
        fake.show(row("error"))
        await eventually(lambda: remote.provider_rows() == [row("error")])
        assert remote.change() == before, "rows are no change that a client sees"
        fake.offer()
        await shown(remote)
        with pytest.raises(ToolNotFound):
            await text(remote, "notes_read")


async def test_the_list_of_sources_of_a_client_has_the_rows() -> None:
    async with providing("notes_read") as (hub, _), open_remote(hub.port) as remote:
        backend: Any = remote
        async with open_client(backend) as client:
            assert await client.tool_names() == ["notes_read"]
            body = (await client.call("webmcp_list_sources"))["structuredContent"]
            assert body["mode"] == "client"
            assert body["providers"] == json.loads(encode([row(count=1)]))


async def test_lists_that_are_too_large_keep_the_tools_of_providers() -> None:
    """At 9.5 MB the least recently seen tabs go first."""
    async with providing("notes_read", max_payload=12_000_000) as (hub, fake), open_peer(hub.port) as peer:
        fake.offer("notes_read", description="p" * 1_000_000)
        large = [{"name": f"f{number}", "description": "d" * 190_000} for number in range(10)]
        async with AsyncExitStack() as stack:
            for number in range(6):
                tab = await stack.enter_async_context(open_tab(hub.port))
                await offer(tab, f"{number}", *large)
            frame = await peer.list_tools()
            assert len(json.dumps(frame, separators=(",", ":"))) <= 9_500_000
            assert frame["providerTools"] == ["notes_read"]
            assert frame["tools"][0] == json.loads(definition("notes_read", description="p" * 1_000_000))
            assert sorted(source["tabId"] for source in frame["sources"]) == ["2", "3", "4", "5"]
            assert len(frame["tools"]) == 41


async def test_tools_of_providers_that_fill_a_list_alone_are_left_out_and_the_rows_stay() -> None:
    async with providing("notes_read") as (hub, fake), open_tab(hub.port) as tab, open_peer(hub.port) as peer:
        fake.offer("notes_read", description="p" * 200_000)
        await offer(tab, "t1", "search")
        await peer.send({"type": "relay/hello", "features": [], "maxPayload": 100_000})
        frame = await peer.list_tools()
        assert [tool["name"] for tool in frame["tools"]] == ["search"]
        assert frame["providerTools"] == []
        assert frame["providers"] == json.loads(encode([row(count=1)]))


# -- calls


async def test_a_call_goes_through_with_progress_and_result() -> None:
    async with providing("notes_read") as (hub, fake), open_remote(hub.port) as remote, trio.open_nursery() as nursery:
        assert await text(remote, "notes_read", Raw(b'{"n":1.50,"x":null}')) == '{"n":1.50,"x":null}'
        ((name, args, limit),) = fake.calls
        assert (name, args) == ("notes_read", '{"n":1.50,"x":null}')
        assert limit is not None
        assert 60 < limit <= 65
        fake.waiting.add("notes_read")
        heard: list[Progress] = []

        async def slow() -> None:
            await remote.call("notes_read", EMPTY, on_progress=heard.append)
            nursery.cancel_scope.cancel()

        nursery.start_soon(slow)
        await eventually(lambda: heard)
        assert heard == [Progress(b"1.50", b"3", b'"half"')]
        fake.go_on.set()
        with trio.fail_after(5):
            await trio.sleep_forever()


async def test_cancelling_reaches_the_provider() -> None:
    async with providing("notes_read") as (hub, fake), open_remote(hub.port) as remote, trio.open_nursery() as nursery:
        fake.waiting.add("notes_read")
        nursery.start_soon(text, remote, "notes_read")
        with trio.fail_after(5):
            await fake.began.wait()
        nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await eventually(lambda: fake.cancelled == ["notes_read"])
        assert len(remote.pending) == 0


async def test_the_time_limit_of_the_client_is_the_providers() -> None:
    config = RelayConfig(invoke_timeout=0.2)
    async with providing("notes_read") as (hub, fake), open_remote(hub.port, config) as remote:
        fake.waiting.add("notes_read")
        with trio.fail_after(5):
            result = json.loads((await remote.call("notes_read", EMPTY)).json)
        assert error_of(result) == "The provider did not answer."


async def test_arguments_are_checked_and_targets_are_for_tabs() -> None:
    async with providing("notes_read") as (hub, fake), open_tab(hub.port) as tab:
        await offer(tab, "t1", "search")
        schema = {"type": "object", "required": ["q"]}
        fake.offer("notes_read", inputSchema=schema)
        async with open_remote(hub.port) as remote:
            with pytest.raises(InvalidArguments):
                await text(remote, "notes_read")
            with pytest.raises(ToolNotFound):
                await text(remote, "notes_read", target=Target("t1"))
            with pytest.raises(SourceNotFound):
                await text(remote, "notes_read", target=Target(tab_id="b" * 32))
            assert await text(remote, "notes_read", Raw(b'{"q":1}'), Target()) == '{"q":1}'
            assert len(fake.calls) == 1


async def test_another_relay_reaches_them_with_the_plain_protocol() -> None:
    """One that validates strictly drops the members it does not know, and says no hello."""
    async with providing("notes_read") as (hub, fake), open_peer(hub.port) as peer:
        frame = await peer.list_tools()
        assert [tool["name"] for tool in frame["tools"]] == ["notes_read"]
        assert None not in frame.values()
        assert all(set(entry) >= {"name", "inputSchema"} for entry in frame["tools"])
        assert text_of(await peer.call("notes_read", args={"n": 1})) == '{"n": 1}'
        assert error_of(await peer.call("notes_read", "c2", requestTabId="t1"))
        assert error_of(await peer.call("notes_gone", "c3"))
        fake.offer("notes_read", "notes_write")
        assert await peer.pushed(lambda frame: len(frame["tools"]) == 2)


# -- looking again


def error_rows() -> list[Any]:
    rows: list[Any] = json.loads(encode([row("error")]))
    return rows


async def test_a_server_is_reminded_of_providers_in_an_error_state_at_most_every_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with serve_by_hand(tools=provided()) as server, open_remote(server.port) as remote:
        await server.frame("relay/list-tools")
        remote.asked()
        await server.send(provided(providers=error_rows(), type="relay/tools-changed"))
        await eventually(lambda: remote.provider_rows() == [row("error")])
        assert server.frames() == [], "what is connected needs no reminder"
        begun, moments = trio.current_time(), [0.0, 0.1, 4.9, 5.0, 9.9, 10.1]
        monkeypatch.setattr("trio_relay.relay.remote.trio.current_time", lambda: begun + moments[0])
        while moments:
            remote.asked()
            del moments[0]
        monkeypatch.undo()
        await remote._link.outbox.flushed()
        await eventually(lambda: server.joined == 4)
        assert [frame["type"] for frame in server.frames()] == ["relay/list-tools"] * 3


async def test_the_server_asks_its_providers_when_it_is_reminded() -> None:
    async with providing("notes_read") as (hub, fake), open_remote(hub.port) as remote:
        fake.show(row("error"))
        await eventually(lambda: remote.provider_rows() == [row("error")])
        before = fake.times_asked
        remote.asked()
        await eventually(lambda: fake.times_asked == before + 1)
        remote.asked()
        await text(remote, "notes_read")  # behind it on the same socket
        assert fake.times_asked == before + 1


# -- odd servers

NONSENSE: list[dict[str, Any]] = [
    {"providers": None},
    {"providers": 7},
    {"providers": {}},
    {"providers": "x"},
    {"providers": [7]},
    {"providers": [{"extensionId": "x"}]},
    {"providers": [{**json.loads(encode(row())), "toolCount": "many"}]},
    {"providerTools": None},
    {"providerTools": {"notes_read": 1}},
    {"providerTools": [None]},
    {"providers": [], "providerTools": ["nothing_such", "nothing_such"]},
]


@pytest.mark.parametrize("members", NONSENSE, ids=str)
async def test_nonsense_about_providers_costs_nothing_else(members: dict[str, Any]) -> None:
    async with (
        serve_by_hand(tools=provided("notes_read", **members)) as server,
        open_remote(server.port) as remote,
        trio.open_nursery() as nursery,
    ):
        assert names(remote) == ["notes_read", "page"]
        assert [source.source_id for source in remote.sources()] == ["s-page"]
        for name in ("page", "notes_read"):
            nursery.start_soon(text, remote, name)
            invoke = await server.frame("relay/invoke")
            assert invoke["toolName"] == name
            await server.answer(invoke, "x")
        await server.send(provided("notes_read", type="relay/tools-changed"))
        await eventually(lambda: remote.provider_rows() == [row(count=1)])


async def test_providers_that_nest_too_deeply_cost_nothing_else() -> None:
    deep = "[" * 5_000 + "]" * 5_000
    async with serve_by_hand(tools=provided("notes_read")) as server, open_remote(server.port) as remote:
        frame = json.dumps(provided(type="relay/tools-changed", providers="HERE")).replace('"HERE"', deep)
        await server.send(frame)
        await server.send(provided("notes_read", "notes_write", type="relay/tools-changed"))
        await shown(remote, "notes_read", "notes_write", "page")


async def test_two_definitions_of_one_name_are_one_tool() -> None:
    frame = provided("notes_read")
    frame["tools"].append(json.loads(definition("notes_read", description="another")))
    async with serve_by_hand(tools=frame) as server, open_remote(server.port) as remote:
        assert names(remote) == ["notes_read", "page"]
        assert b"another" not in catalogue(remote)["notes_read"]


async def test_a_name_that_the_server_gives_to_a_provider_and_to_a_tab_is_the_providers() -> None:
    async with serve_by_hand(tools=provided(providerTools=["page"])) as server, open_remote(server.port) as remote:
        assert names(remote) == ["page"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(text, remote, "page")
            await server.answer(await server.frame("relay/invoke"), "x")


# -- commands of a person


async def test_a_command_is_answered_by_who_does_something_with_extensions() -> None:
    extending = Extending(FakeProviders())
    async with open_hub(RelayConfig(port=0), extending=extending) as hub, open_peer(hub.port) as peer:
        answer = await admin(peer, ask="providers", args={"a": [1]})
        assert answer == {"type": "relay/admin-result", "requestId": "1", "result": {"all": "right"}}
        answer = await admin(peer, token="wrong", requestId="é")
        assert answer == {"type": "relay/admin-result", "requestId": "é", "error": "not you"}
        assert extending.asked == [("right", "providers", b'{"a": [1]}'), ("wrong", "x", b"null")]


async def test_a_command_to_a_relay_that_does_nothing_with_extensions_says_how_to_start_it() -> None:
    async with open_hub(RelayConfig(port=0)) as hub, open_peer(hub.port) as peer:
        answer = await admin(peer)
        assert "--serve-extensions" in str(answer["error"])
        assert "result" not in answer


@pytest.mark.parametrize("members", [{"token": 7}, {"ask": None}, {"requestId": None}], ids=str)
async def test_a_command_that_cannot_be_read_is_not_answered_and_costs_nothing(members: dict[str, object]) -> None:
    extending = Extending(FakeProviders())
    async with open_hub(RelayConfig(port=0), extending=extending) as hub, open_peer(hub.port) as peer:
        await peer.send({"type": "relay/admin", "requestId": "1", "token": "right", "ask": "x"} | members)
        assert (await admin(peer, requestId="2"))["requestId"] == "2"
        assert len(extending.asked) == 1


async def test_a_client_drops_answers_to_commands_it_never_gave() -> None:
    async with serve_by_hand(tools=provided("notes_read")) as server, open_remote(server.port) as remote:
        await server.send({"type": "relay/admin-result", "requestId": "1", "result": {}})
        await server.send(provided(type="relay/tools-changed"))
        await shown(remote, "page")


# -- taking over


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
