"""Client mode against relay servers written by hand: plain ones, odd ones, silent ones."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from tests.relay.ends import EMPTY, calling, open_remote, plain_tools, serve_by_hand, shown, text
from trio_relay.config import RelayConfig
from trio_relay.core.backend import Target
from trio_relay.errors import NotSent, SourceLost, TimedOut
from trio_relay.links.peer import NotJoined, join
from trio_relay.relay.remote import Remote


async def test_a_plain_old_server_is_used_without_our_additions() -> None:
    async with serve_by_hand(tools=plain_tools("a")) as server, open_remote(server.port) as remote:
        assert remote.info()["mode"] == "client"
        (row,) = remote.sources()
        assert (row.source_id, row.tab_id) == ("s-a", "t-a")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calling, remote, "a", EMPTY)
            invoke = await server.frame("relay/invoke")
            assert invoke.keys() == {"type", "callId", "toolName", "args"}
            await server.answer(invoke, "x")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calling, remote, "a", EMPTY)
            await server.frame("relay/invoke")
            nursery.cancel_scope.cancel()
        with pytest.raises(NotSent):
            remote.refresh("https://a.example")
        await server.send(plain_tools("a", "b") | {"type": "relay/tools-changed"})
        await shown(remote, "a", "b")
        assert server.frames() == [], "no relay/cancel, no relay/reload"


async def test_a_server_that_says_only_tools_is_enough() -> None:
    only = {"type": "relay/tools", "tools": [{"name": "a"}]}
    async with serve_by_hand(tools=only) as server, open_remote(server.port) as remote:
        assert [tool.name for tool in remote.tools()] == ["a"]
        assert remote.sources() == []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(calling, remote, "a", EMPTY)
            await server.answer(await server.frame("relay/invoke"), "x")


@pytest.mark.parametrize("service", ["webmcp-extension-relay", "webmcp-local-relay"])
async def test_a_greeting_of_either_service_may_come_first(service: str) -> None:
    greet = [{"type": "server-hello", "service": service, "version": 1, "host": "127.0.0.1"}]
    async with serve_by_hand(greet=greet, tools=plain_tools("a")) as server, open_remote(server.port) as remote:
        assert [tool.name for tool in remote.tools()] == ["a"]


@pytest.mark.parametrize(
    ("greet", "came"),
    [
        ({"type": "server-hello", "service": "another", "version": 1}, "service 'another'"),
        ({"type": "server-hello", "service": "webmcp-local-relay", "version": 2}, "version 2"),
        ({"type": "welcome"}, "welcome"),
    ],
)
async def test_whoever_greets_otherwise_is_not_joined(greet: dict[str, Any], came: str) -> None:
    """B23."""
    async with serve_by_hand(greet=[greet], tools=plain_tools("a")) as server:
        with pytest.raises(NotJoined, match=came) as caught, trio.fail_after(2):
            async with join("127.0.0.1", server.port, max_payload=1_000_000, patience=1):
                pass
        assert "expected a WebMCP relay" in str(caught.value)
        assert not caught.value.free
        assert not caught.value.silent


async def test_a_target_a_plain_server_cannot_be_told_is_refused_unless_it_is_the_only_one() -> None:
    tools = plain_tools("a", "b")
    tools["toolSourceMap"]["b"] = ["s-b", "s-a"]
    async with serve_by_hand(tools=tools) as server, open_remote(server.port) as remote:
        for target in (Target(source_id="s-a"), Target(tab_id="t-a"), Target(source_id="t-a")):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(text, remote, "a", EMPTY, target)
                invoke = await server.frame("relay/invoke")
                assert invoke.keys() == {"type", "callId", "toolName", "args"}
                await server.answer(invoke, "x")
        for target in (Target(source_id="s-b"), Target(tab_id="t-a")):
            with pytest.raises(NotSent, match="which tab"):
                await remote.call("b", EMPTY, target=target)
        assert server.frames() == []


async def test_a_server_that_never_answers_is_given_up_later_than_it_would_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C12: the outer deadline is the inner one and some more."""
    monkeypatch.setattr("trio_relay.relay.remote.LATER_S", 0.3)
    tools = plain_tools("a", features=["cancel", "targeted-invoke"])
    async with (
        serve_by_hand(tools=tools) as server,
        open_remote(server.port, RelayConfig(invoke_timeout=0.1)) as remote,
    ):
        begun = trio.current_time()
        with pytest.raises(TimedOut) as caught, trio.fail_after(5):
            await remote.call("a", EMPTY)
        assert trio.current_time() - begun >= 0.4
        assert caught.value.may_have_run
        invoke = await server.frame("relay/invoke")
        assert 0 < invoke["deadlineMs"] <= 100
        assert (await server.frame("relay/cancel"))["callId"] == invoke["callId"]
        await server.answer(invoke, "too late")
        assert len(remote.pending) == 0


async def test_a_lost_link_fails_every_pending_call_at_once() -> None:
    """B26."""
    async with serve_by_hand(tools=plain_tools("a")) as server, open_remote(server.port) as remote:
        failed: list[SourceLost] = []

        async def call() -> None:
            with pytest.raises(SourceLost) as caught:
                await remote.call("a", EMPTY)
            failed.append(caught.value)

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(call)
                for _ in range(5):
                    await server.frame("relay/invoke")
                await server.vanish()
        assert all(error.may_have_run and "may have run" in str(error) for error in failed)
        assert len(failed) == 5
        assert len(remote.pending) == 0
        with pytest.raises(NotSent):
            await remote.call("a", EMPTY)


async def test_a_server_gone_silent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_relay.links.peer.PING_S", 0.05)
    monkeypatch.setattr("trio_relay.links.peer.SILENT_S", 0.3)
    async with (
        _frozen_server() as port,
        join("127.0.0.1", port, max_payload=1_000_000, patience=2) as link,
        trio.open_nursery() as nursery,
    ):
        remote = Remote(RelayConfig(), link)
        with trio.fail_after(5):
            nursery.start_soon(_fails, remote)
            closed = await remote.run()
        assert "no sign of life" in closed.reason
        assert closed.ours


async def _fails(remote: Remote) -> None:
    with pytest.raises(SourceLost):
        await remote.call("a", EMPTY)


@asynccontextmanager
async def _frozen_server() -> AsyncIterator[int]:
    """A relay that answers the first question, and then neither reads nor writes: not even pongs."""
    from trio_relay.links.socket import handshake

    async def handle(stream: trio.SocketStream) -> None:
        async with handshake(stream, max_message=1_000_000) as (socket, request):
            await request.accept(subprotocol="webmcp-relay.v1")
            await socket.receive()
            await socket.send(json.dumps(plain_tools("a")).encode())
            socket.stop()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, handle, 0, host="127.0.0.1")
        (listener,) = await nursery.start(serve)
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_a_server_that_answers_pings_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trio_relay.links.peer.PING_S", 0.02)
    monkeypatch.setattr("trio_relay.links.peer.SILENT_S", 0.2)
    async with serve_by_hand(tools=plain_tools("a")) as server, open_remote(server.port) as remote:
        with trio.move_on_after(0.6):
            await remote.wait_change(remote.change())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(text, remote, "a")
            await server.answer(await server.frame("relay/invoke"), "x")


@pytest.mark.parametrize(
    "junk", ["", "null", "{}", '{"type":"relay/tools"}', '{"type":"relay/result"}', '{"type":"future"}', "[" * 5000]
)
async def test_frames_of_the_server_that_make_no_sense_are_ignored(junk: str) -> None:
    async with serve_by_hand(tools=plain_tools("a")) as server, open_remote(server.port) as remote:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(text, remote, "a")
            invoke = await server.frame("relay/invoke")
            await server.send(junk)
            await server.send({"type": "relay/result", "callId": "another", "result": {}})
            await server.send({"type": "relay/progress", "callId": "another", "progress": 1})
            await server.answer(invoke, "x")
        assert [tool.name for tool in remote.tools()] == ["a"]


async def test_a_tool_of_the_server_that_cannot_be_used_costs_only_itself() -> None:
    tools = plain_tools("a")
    tools["tools"] += [{"name": 5}, {"nothing": 1}, {"name": "b", "inputSchema": 7}, "text"]
    async with serve_by_hand(tools=tools) as server, open_remote(server.port) as remote:
        assert "a" in [tool.name for tool in remote.tools()]


async def test_an_answer_that_is_no_result_becomes_an_error_result() -> None:
    async with serve_by_hand(tools=plain_tools("a")) as server, open_remote(server.port) as remote:
        for result in (5, None, {"content": "x"}):
            async with trio.open_nursery() as nursery:

                async def call() -> None:
                    assert (await remote.call("a", EMPTY)).is_error

                nursery.start_soon(call)
                invoke = await server.frame("relay/invoke")
                await server.send({"type": "relay/result", "callId": invoke["callId"], "result": result})


@pytest.mark.parametrize("value", [None, "x", {}, [1], True])
async def test_odd_progress_of_a_server_costs_that_frame_only(value: object) -> None:
    heard: list[float] = []
    async with serve_by_hand(tools=plain_tools("a")) as server, open_remote(server.port) as remote:

        async def call() -> None:
            await remote.call("a", EMPTY, on_progress=lambda progress: heard.append(float(progress.progress)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            invoke = await server.frame("relay/invoke")
            told = {"type": "relay/progress", "callId": invoke["callId"]}
            await server.send(told | {"progress": value})
            await server.send(told | {"progress": 2, "total": "y", "message": 5})
            await server.answer(invoke, "x")
    assert heard == [2.0]


async def test_a_row_that_comes_twice_is_one_row() -> None:
    tools = plain_tools("a")
    tools["sources"] *= 2
    async with serve_by_hand(tools=tools) as server, open_remote(server.port) as remote:
        assert len(remote.sources()) == 1
        assert [tool.name for tool in remote.tools()] == ["a"]
