"""Tools of provider extensions through another relay: the same names and definitions, calls, rows, and odd servers."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from msgspec import Raw

from tests.helpers import open_tab
from tests.hubs import offer
from tests.relay.ends import (
    EMPTY,
    error_of,
    eventually,
    names,
    open_peer,
    open_remote,
    plain_tools,
    serve_by_hand,
    shown,
    text,
    text_of,
)
from tests.relay.providing import definition, providing, row
from tests.relay.test_hub_providers import open_client
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Target, ToolBackend
from trio_relay.core.pending import Progress
from trio_relay.errors import InvalidArguments, SourceNotFound, ToolNotFound
from trio_relay.relay.hub import open_hub
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
