"""Client mode: the tools of another relay's browser behind the contract of a hub; here the server is one."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from msgspec import Raw

from tests.helpers import PATIENCE, FakeTab, open_tab, text_result
from tests.relay.ends import EMPTY, calling, eventually, open_remote, shown, text
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Target, ToolBackend
from trio_relay.core.pending import Progress
from trio_relay.errors import InvalidArguments, NotSent, SourceNotFound, ToolNotFound
from trio_relay.relay.cluster import open_cluster
from trio_relay.relay.hub import Hub, open_hub


@asynccontextmanager
async def tab_with(port: int, tab_id: str, *tools: object, **hello: object) -> AsyncIterator[FakeTab]:
    async with open_tab(port) as tab:
        await tab.hello(tab_id, **hello)
        await tab.offer(*tools)
        yield tab


def catalogue(backend: ToolBackend) -> dict[str, bytes]:
    return {tool.name: tool.definition for tool in backend.tools()}


RICH: dict[str, Any] = {
    "name": "a.b/ü",
    "title": "T",
    "description": "Finds [things]. ",
    "inputSchema": {"type": "object", "properties": {"q": {"type": "string"}}},
    "outputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
    "_meta": {"x": 9007199254740993},
}


@pytest.mark.parametrize("title", ["A tab", "", "x" * 200, "[odd] \n • title ", None])
async def test_the_list_of_a_client_is_the_servers_byte_for_byte(hub: Hub, title: str | None) -> None:
    bare = {"name": "bare", "description": ""}
    async with tab_with(hub.port, "aa11", RICH, "search", bare, title=title), tab_with(hub.port, "b", "search"):
        await eventually(lambda: len(list(hub.tools())) == 4)
        async with open_remote(hub.port) as remote:
            assert catalogue(remote) == catalogue(hub)
            assert sorted(remote.listing()) == sorted(hub.listing())
            views = {tool.name: (tool.original_name, tool.source_ids) for tool in hub.tools()}
            assert {tool.name: (tool.original_name, tool.source_ids) for tool in remote.tools()} == views
            assert sorted(remote.sources(), key=str) == sorted(hub.sources(), key=str)
            assert remote.change() == hub.change()


async def test_two_sockets_of_one_tab_are_listed_as_the_server_lists_them(hub: Hub) -> None:
    async with tab_with(hub.port, "t", "a", title="Old"), tab_with(hub.port, "t", "a", "b", title="New"):
        await eventually(lambda: len(hub.sources()) == 2 and len(list(hub.tools())) == 2)
        async with open_remote(hub.port) as remote:
            assert catalogue(remote) == catalogue(hub)


async def test_changes_of_the_server_are_changes_of_the_client(hub: Hub) -> None:
    async with open_remote(hub.port) as remote:
        assert remote.sources() == []
        async with tab_with(hub.port, "t1", "a") as tab:
            await shown(remote, "a")
            before = remote.change()
            async with open_tab(hub.port) as silent:
                await silent.hello("t2")
                await eventually(lambda: len(remote.sources()) == 2)
                assert remote.change() == before, "a tab without tools is no change a client can see"
            await tab.offer("a", "b")
            await shown(remote, "a", "b")
            await tab.offer("a")
            await shown(remote, "a")
            assert remote.change() == before
        await shown(remote)
        assert remote.sources() == []


async def test_a_call_has_the_result_of_the_tab_as_it_was(hub: Hub, nursery: trio.Nursery) -> None:
    async with tab_with(hub.port, "t1", "a.b") as tab, open_remote(hub.port) as remote:
        await shown(remote, "a_b")
        results = [text_result("x"), {"content": [], "isError": True, "structuredContent": {"n": None}, "_meta": {}}]
        for wanted in results:
            result: list[Any] = []

            async def call(into: list[Any] = result) -> None:
                into.append(await remote.call("a_b", Raw(b'{"q":null}')))

            async with trio.open_nursery() as calls:
                calls.start_soon(call)
                invoke = await tab.expect("invoke")
                assert (invoke["toolName"], invoke["args"]) == ("a.b", {"q": None})
                await tab.answer(invoke, wanted)
            assert json.loads(bytes(result[0].json)) == wanted
            assert result[0].is_error is wanted.get("isError", False)
        assert len(remote.pending) == len(hub.pending) == 0


async def test_digits_are_the_same_on_every_hop(hub: Hub) -> None:
    """A29."""
    digits = b'{"id":9007199254740993,"n":[1.0,1e2,-0.0,18446744073709551617]}'
    async with tab_with(hub.port, "t1", "a") as tab, open_remote(hub.port) as remote:
        await shown(remote, "a")

        async def page() -> None:
            data = b""
            while b'"invoke"' not in data:
                data = await tab.socket.receive()
            assert b'"args":' + digits in data
            call_id = json.loads(data)["callId"].encode()
            answer = b'{"type":"result","callId":"%s","result":{"content":[],"structuredContent":%s}}'
            await tab.send(answer % (call_id, digits))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(page)
                result = await remote.call("a", Raw(digits))
        assert b'"structuredContent":' + digits in bytes(result.json)


async def test_progress_of_the_tab_reaches_the_caller_as_it_was_written(hub: Hub) -> None:
    heard: list[Progress] = []
    async with tab_with(hub.port, "t1", "slow") as tab, open_remote(hub.port) as remote:
        await shown(remote, "slow")

        async def page() -> None:
            call_id = (await tab.expect("invoke"))["callId"]
            await tab.send(b'{"type":"progress","callId":"%s","progress":1.0,"total":2e1}' % call_id.encode())
            await tab.send({"type": "progress", "callId": call_id, "progress": 2, "message": "half"})
            await tab.answer({"callId": call_id, "args": {}})

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(page)
                await remote.call("slow", EMPTY, on_progress=heard.append)
    assert heard == [Progress(b"1.0", b"2e1"), Progress(b"2", None, b'"half"')]


async def test_a_cancelled_caller_stops_the_tab(hub: Hub) -> None:
    async with tab_with(hub.port, "t1", "slow") as tab, open_remote(hub.port) as remote:
        await shown(remote, "slow")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calling, remote, "slow", EMPTY)
            invoke = await tab.expect("invoke")
            nursery.cancel_scope.cancel()
        cancel = await tab.expect("cancel")
        assert (cancel["callId"], cancel["reason"]) == (invoke["callId"], "cancelled")
        assert len(remote.pending) == len(hub.pending) == 0


async def test_a_thousand_cancelled_calls_leave_both_tables_empty(hub: Hub) -> None:
    """A26."""
    async with tab_with(hub.port, "t1", "slow") as tab, open_remote(hub.port) as remote:
        await shown(remote, "slow")
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(calling, remote, "slow", EMPTY)
            invoked = [(await tab.expect("invoke"))["callId"] for _ in range(1000)]
            nursery.cancel_scope.cancel()
        cancelled = [(await tab.expect("cancel"))["callId"] for _ in range(1000)]
        assert sorted(cancelled) == sorted(invoked)
        assert len(remote.pending) == len(hub.pending) == 0
        await tab.answer({"callId": invoked[0], "args": {}})  # too late
        await tab.offer("slow", "next")
        await shown(remote, "next", "slow")


async def test_fifty_parallel_calls_over_three_tabs_each_get_their_own_answer(hub: Hub) -> None:
    """A13."""
    chance = random.Random(13)
    async with (
        tab_with(hub.port, "t1", "echo") as one,
        tab_with(hub.port, "t2", "echo") as two,
        tab_with(hub.port, "t3", "echo") as three,
        open_remote(hub.port) as remote,
    ):
        await shown(remote, "echo_t1", "echo_t2", "echo_t3")
        answers: dict[int, str] = {}

        async def call(number: int) -> None:
            name = f"echo_t{number % 3 + 1}"
            answers[number] = await text(remote, name, Raw(b'{"nonce":%d}' % number))

        async def page(tab: FakeTab, tab_id: str, count: int) -> None:
            invokes = [await tab.expect("invoke") for _ in range(count)]
            chance.shuffle(invokes)
            for invoke in invokes:
                await tab.answer(invoke, text_result(f"{tab_id} {invoke['args']['nonce']}"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(page, one, "t1", 17)
            nursery.start_soon(page, two, "t2", 17)
            nursery.start_soon(page, three, "t3", 16)
            for number in range(50):
                nursery.start_soon(call, number)
        assert answers == {number: f"t{number % 3 + 1} {number}" for number in range(50)}


async def test_targets_reach_the_tab_they_name_and_no_other(hub: Hub, nursery: trio.Nursery) -> None:
    async with (
        tab_with(hub.port, "aa11", "search") as one,
        tab_with(hub.port, "bb22", "search") as two,
        tab_with(hub.port, "bb22", "search") as twin,
        open_remote(hub.port) as remote,
    ):
        await eventually(lambda: len(remote.sources()) == 3 and all(row.tool_count for row in remote.sources()))
        for tab, name in ((one, "one"), (two, "two"), (twin, "twin")):
            nursery.start_soon(tab.serve, lambda invoke, name=name: text_result(name))
        ids = [row.source_id for row in hub.sources()]
        by_id = {await text(remote, "search", target=Target(source_id=source_id)) for source_id in ids}
        assert by_id == {"one", "two", "twin"}
        assert await text(remote, "search", target=Target(tab_id="aa11")) == "one"
        assert await text(remote, "search_bb22", target=Target(source_id="aa11")) == "one"
        with pytest.raises(SourceNotFound):
            await remote.call("search", EMPTY, target=Target(tab_id="zz"))
        with pytest.raises(ToolNotFound):
            await remote.call("nothing", EMPTY, target=Target(tab_id="aa11"))
        nursery.cancel_scope.cancel()


async def test_what_cannot_be_sent_is_refused_here(hub: Hub) -> None:
    strict = {"name": "find", "inputSchema": {"type": "object", "required": ["q"]}}
    async with tab_with(hub.port, "t1", strict) as tab, open_remote(hub.port) as remote:
        await shown(remote, "find")
        with pytest.raises(ToolNotFound):
            await remote.call("nothing", EMPTY)
        with pytest.raises(InvalidArguments):
            await remote.call("find", EMPTY)
        assert not any(frame["type"] == "invoke" for frame in tab.seen)


async def test_refresh_reloads_the_tab_of_an_origin(hub: Hub) -> None:
    async with tab_with(hub.port, "t1", "a", url="https://b.example/") as tab, open_remote(hub.port) as remote:
        await shown(remote, "a")
        assert remote.refresh("https://b.example").tab_id == "t1"
        assert await tab.expect("reload") == {"type": "reload"}
        with pytest.raises(SourceNotFound):
            remote.refresh("https://c.example")
        assert remote.open_in_browser("https://b.example") is False


async def test_the_server_gives_up_before_the_client_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """C12, scaled: both have 0.2 s."""
    config = RelayConfig(port=0, invoke_timeout=0.2)
    async with (
        open_hub(config) as hub,
        tab_with(hub.port, "t1", "slow") as tab,
        open_remote(hub.port, config) as remote,
    ):
        await shown(remote, "slow")
        assert "the page did not answer within 0.2 s" in await text(remote, "slow")
        await tab.expect("invoke")
        assert (await tab.expect("cancel"))["reason"] == "timeout"


async def test_a_client_with_less_time_than_the_server_tells_it(hub: Hub) -> None:
    """C12: the inner deadline is the shorter one, and still the first."""
    async with (
        tab_with(hub.port, "t1", "slow") as tab,
        open_remote(hub.port, RelayConfig(invoke_timeout=0.2)) as remote,
    ):
        await shown(remote, "slow")
        assert "the page did not answer" in await text(remote, "slow")
        assert (await tab.expect("invoke"))["deadlineMs"] <= 200


async def test_a_result_the_client_cannot_take_costs_that_call_only() -> None:
    """DECISION 4: the client's limit is lower than the server's."""
    async with (
        open_hub(RelayConfig(port=0, max_payload=1_000_000)) as hub,
        tab_with(hub.port, "t1", "big") as tab,
        open_remote(hub.port, RelayConfig(max_payload=100_000)) as remote,
        trio.open_nursery() as nursery,
    ):
        await shown(remote, "big")
        sizes = iter([500_000, 10])
        nursery.start_soon(tab.serve, lambda invoke: text_result("x" * next(sizes)))
        assert "bytes" in await text(remote, "big")
        assert await text(remote, "big") == "x" * 10
        nursery.cancel_scope.cancel()


async def test_a_list_the_client_cannot_take_is_shortened_for_it() -> None:
    tools = [{"name": f"tool{number}", "description": "x" * 40_000} for number in range(3)]
    async with (
        open_hub(RelayConfig(port=0)) as hub,
        tab_with(hub.port, "t1", *tools),
        tab_with(hub.port, "t2", "small"),
    ):
        await eventually(lambda: len(list(hub.tools())) == 4)
        async with open_remote(hub.port, RelayConfig(max_payload=20_000)) as remote:
            await shown(remote, "small")


async def test_arguments_above_the_servers_limit_are_not_sent() -> None:
    """DECISION 4."""
    async with (
        open_hub(RelayConfig(port=0, max_payload=100_000)) as hub,
        tab_with(hub.port, "t1", "echo") as tab,
        open_remote(hub.port) as remote,
        trio.open_nursery() as nursery,
    ):
        await shown(remote, "echo")
        nursery.start_soon(tab.serve, lambda invoke: text_result(str(len(invoke["args"]["x"]))))
        with pytest.raises(NotSent) as caught:
            await remote.call("echo", Raw(b'{"x":"%s"}' % (b"x" * 170_000)))
        assert not caught.value.may_have_run
        assert await text(remote, "echo", Raw(b'{"x":"%s"}' % (b"x" * 160_000))) == "160000"
        nursery.cancel_scope.cancel()


async def test_a_name_that_was_listed_before_a_second_tab_came_still_reaches_the_first() -> None:
    """The bare name is retired by the server; a client of this relay may be in the middle of a task with it."""
    async with (
        open_hub(RelayConfig(port=0)) as hub,
        open_cluster(RelayConfig(port=hub.port, fixed_port=True)) as client,
        tab_with(hub.port, "aa11", "search") as one,
    ):
        with trio.fail_after(PATIENCE):
            while [tool.name for tool in client.tools()] != ["search"]:
                await client.wait_change(client.change())
        async with tab_with(hub.port, "bb22", "search"), trio.open_nursery() as nursery:
            with trio.fail_after(PATIENCE):
                while sorted(tool.name for tool in client.tools()) != ["search_aa11", "search_bb22"]:
                    await client.wait_change(client.change())
            nursery.start_soon(calling, client, "search", EMPTY)
            await one.answer(await one.expect("invoke"))
