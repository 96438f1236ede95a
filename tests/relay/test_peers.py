"""The server half of the relay protocol, as a raw relay client sees it: lists, limits, ends."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest
import trio

from tests.helpers import client_frame, open_raw, open_tab, text_result
from tests.relay.ends import RawPeer, error_of, eventually, listed_tab, open_peer, settled, text_of
from trio_relay.config import RelayConfig
from trio_relay.errors import NotSent
from trio_relay.links.outbox import Outbox
from trio_relay.relay.hub import Hub, open_hub
from trio_relay.relay.peers import PeerClient
from trio_relay.wire.peer import ENVELOPE_BYTES, FEATURES


async def test_nothing_is_said_before_the_list_is_asked_for(hub: Hub) -> None:
    """No server-hello: the first frame of this protocol is the answer to the first question."""
    async with listed_tab(hub, "t1", "search"), open_peer(hub.port) as peer:
        await peer.send({"type": "relay/hello", "features": list(FEATURES)})
        assert error_of(await peer.call("nothing"))
        assert [frame["type"] for frame in peer.seen] == ["relay/result"]


async def test_the_list_has_tools_under_public_names_with_their_rows_and_owners(hub: Hub) -> None:
    async with listed_tab(hub, "aa11", "a.b", "search"), listed_tab(hub, "bb22", "search"), open_peer(hub.port) as peer:
        listed = await peer.list_tools()
        assert listed["features"] == list(FEATURES)
        assert json.loads(b"[" + b",".join(hub.listing()) + b"]") == listed["tools"]
        assert sorted(tool["name"] for tool in listed["tools"]) == ["a_b", "search_aa11", "search_bb22"]
        ids = {row["tabId"]: row["sourceId"] for row in listed["sources"]}
        assert listed["toolSourceMap"] == {
            "a_b": [ids["aa11"]],
            "search_aa11": [ids["aa11"]],
            "search_bb22": [ids["bb22"]],
        }
        assert listed["originalNames"] == {"a_b": "a.b", "search_aa11": "search", "search_bb22": "search"}
        assert listed["maxPayload"] == hub.config.max_payload + ENVELOPE_BYTES
        row = listed["sources"][0]
        assert set(row) == {
            "sourceId",
            "tabId",
            "origin",
            "url",
            "title",
            "connectedAt",
            "lastSeenAt",
            "toolCount",
        }
        assert None not in row.values()


async def test_the_same_list_follows_a_quarter_of_a_second_after_the_first_one(hub: Hub) -> None:
    """Reference clients lose what comes right behind the first list."""
    async with listed_tab(hub, "t1", "search"), open_peer(hub.port) as peer:
        first = await peer.list_tools()
        begun = trio.current_time()
        second = await peer.frame()
        assert trio.current_time() - begun > 0.2
        assert second == first | {"type": "relay/tools-changed"}


async def test_changes_are_pushed_coalesced_and_only_if_there_are_any(hub: Hub) -> None:
    async with open_peer(hub.port) as peer, open_tab(hub.port) as tab:
        await peer.list_tools()
        await peer.expect("relay/tools-changed")
        await tab.hello("t1")
        appeared = await peer.expect("relay/tools-changed")
        assert [row["toolCount"] for row in appeared["sources"]] == [0]
        # The frames of one burst are in the socket before the relay reads the first.
        for count in range(1, 11):
            await tab.offer(*(f"tool{number}" for number in range(count)))
        frame = await peer.pushed(lambda frame: len(frame["tools"]) == 10)
        pushes = len(peer.seen)
        assert pushes <= 6, "ten lists in one burst are not ten pushes"
        await tab.send({"type": "pong"})
        await tab.send({"type": "result", "callId": "nobody", "result": {}})
        assert error_of(await peer.call("nothing"))
        await tab.send({"type": "source/disconnected"})
        gone = await peer.expect("relay/tools-changed")
        assert len(peer.seen) == pushes + 2, "being seen is no change"
        assert (gone["tools"], gone["sources"], gone["toolSourceMap"]) == ([], [], {})
        assert frame["sources"][0]["toolCount"] == 10


async def test_a_list_that_is_asked_for_again_is_sent_again(hub: Hub) -> None:
    async with open_peer(hub.port) as peer:
        assert await peer.list_tools() == await peer.list_tools()


async def test_a_catalogue_beyond_the_limit_leaves_out_the_sources_seen_least_recently(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """DECISION 4."""
    monkeypatch.setattr("trio_relay.wire.peer.MAX_TOOLS_FRAME", 5_000)
    clock = iter(range(1_000, 100_000))
    monkeypatch.setattr(Hub, "now_ms", staticmethod(lambda: next(clock)))
    tools = [{"name": f"tool{number}", "description": "d" * 300} for number in range(3)]
    async with listed_tab(hub, "t1", *tools) as first, listed_tab(hub, "t2", *tools), listed_tab(hub, "t3", *tools):
        before = hub.sources()[0].last_seen_at
        await first.send({"type": "result", "callId": "x", "result": {}})
        await eventually(lambda: hub.sources()[0].last_seen_at > before)
        async with open_peer(hub.port) as peer:
            listed = await peer.list_tools()
            assert {row["tabId"] for row in listed["sources"]} == {"t1", "t3"}
            assert {tool["name"][-2:] for tool in listed["tools"]} == {"t1", "t3"}
            assert listed["toolSourceMap"].keys() == listed["originalNames"].keys()
            assert listed["toolSourceMap"].keys() == {tool["name"] for tool in listed["tools"]}
            assert len(json.dumps(listed, separators=(",", ":"))) <= 5_000
            (line,) = [record.getMessage() for record in caplog.records if "too large" in record.getMessage()]
            assert "1 of 3 sources" in line
            # A tool that is not listed can still be called.
            await peer.invoke("tool0_t2")
        assert len(hub.sources()) == 3


async def test_a_client_that_does_not_read_costs_only_itself(hub: Hub, nursery: trio.Nursery) -> None:
    async with listed_tab(hub, "t1", "big", "small") as tab, open_raw(hub.port) as deaf, open_peer(hub.port) as peer:
        nursery.start_soon(tab.serve, lambda call: text_result("x" * (5_000_000 if call["toolName"] == "big" else 1)))
        await deaf.upgrade("Sec-WebSocket-Protocol: webmcp-relay.v1")
        for number in range(16):
            frame = {"type": "relay/invoke", "callId": f"c{number}", "toolName": "big"}
            await deaf.send(client_frame(json.dumps(frame).encode()))
            if number % 4 == 0:
                with trio.fail_after(5):
                    assert text_of(await peer.call("small")) == "x"
        await eventually(lambda: len(hub.pending) == 0)
        assert text_of(await peer.call("small")) == "x"
        nursery.cancel_scope.cancel()


async def test_a_reload_for_a_tab_that_does_not_read_costs_the_client_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_raw(hub.port) as deaf, open_peer(hub.port) as peer:
        await deaf.upgrade("Origin: chrome-extension://a", "Sec-WebSocket-Protocol: webmcp.v1")
        for frame in ({"type": "hello", "tabId": "t1"}, {"type": "tools/list", "tools": [{"name": "a"}]}):
            await deaf.send(client_frame(json.dumps(frame).encode()))
        await settled(hub, "a")
        monkeypatch.setattr(Outbox, "put", _full)
        before = len(hub.sources())
        await peer.send({"type": "relay/reload", "sourceId": hub.sources()[0].source_id})
        await trio.testing.wait_all_tasks_blocked(0.05)
        monkeypatch.undo()
        assert len(await _tools(peer)) == 1
        assert len(hub.sources()) == before


def _full(self: Outbox, message: object, size: int = 0) -> None:
    raise NotSent("The tab is not reading.")


async def _tools(peer: RawPeer) -> list[Any]:
    tools: list[Any] = (await peer.list_tools())["tools"]
    return tools


@pytest.mark.parametrize(
    "junk",
    [
        b"",
        b"no json",
        b"[oops",
        b"null",
        b"[]",
        b"{}",
        b'{"type":"hello","tabId":"x"}',
        b'{"type":"tools/list","tools":[]}',
        b'{"type":"relay/invoke","callId":7,"toolName":"a"}',
        b'{"type":"relay/tools","tools":[]}',
        b'{"type":"relay/cancel"}',
        b"[" * 100_000,
    ],
)
async def test_frames_that_make_no_sense_are_ignored(hub: Hub, junk: bytes) -> None:
    async with open_peer(hub.port) as peer:
        await peer.send(junk)
        assert await _tools(peer) == []
        assert hub.sources() == []


@pytest.mark.parametrize("origin", ["chrome-extension://abcdefghijklmnop", "https://a.example", "null"])
async def test_a_web_page_that_tries_the_relay_protocol_is_refused_before_any_data(hub: Hub, origin: str) -> None:
    """B17."""
    async with open_peer(hub.port, origin=origin) as peer:
        closed = await peer.closed()
        assert (closed.code, peer.seen) == (1008, [])


async def test_an_invoke_on_a_browser_socket_is_ignored(hub: Hub) -> None:
    """B17."""
    async with listed_tab(hub, "t1", "a") as tab, open_tab(hub.port) as other:
        await other.hello("t2")
        await other.send({"type": "relay/list-tools"})
        await other.send({"type": "relay/invoke", "callId": "c", "toolName": "a"})
        await other.offer("b")
        await settled(hub, "a", "b")
        assert all(frame["type"] in ("server-hello", "hello/accepted") for frame in [*tab.seen, *other.seen])


async def test_a_client_that_vanishes_has_its_calls_cancelled(hub: Hub) -> None:
    async with listed_tab(hub, "t1", "slow") as tab:
        async with open_peer(hub.port) as peer:
            for number in range(3):
                await peer.invoke("slow", f"c{number}")
            invokes = [await tab.expect("invoke") for _ in range(3)]
            await trio.aclose_forcefully(peer.socket.metered)
        cancels = [await tab.expect("cancel") for _ in range(3)]
        assert {frame["callId"] for frame in cancels} == {frame["callId"] for frame in invokes}
        assert len(hub.pending) == 0


async def test_a_tab_that_goes_answers_the_calls_of_clients_at_once(hub: Hub) -> None:
    """A13's sibling: the client is never left without an answer."""
    async with open_peer(hub.port) as peer:
        async with listed_tab(hub, "t1", "slow") as tab:
            await peer.invoke("slow")
            await tab.expect("invoke")
        assert "may have run" in error_of((await peer.expect("relay/result"))["result"])


@pytest.mark.parametrize(("extra", "accepted"), [(0, True), (1, False)])
async def test_a_client_may_send_the_payload_limit_and_an_envelope(extra: int, accepted: bool) -> None:
    async with open_hub(RelayConfig(port=0, max_payload=50_000)) as hub, open_peer(hub.port) as peer:
        head, tail = '{"type":"relay/invoke","callId":"c","toolName":"', '"}'
        name = "x" * (50_000 + ENVELOPE_BYTES + extra - len(head) - len(tail))
        await peer.send((head + name + tail).encode())
        if accepted:
            assert error_of((await peer.expect("relay/result"))["result"])
        else:
            assert (await peer.closed()).code == 1009


async def test_leaving_the_hub_closes_relay_clients_with_1001(nursery: trio.Nursery) -> None:
    hub, leave = await nursery.start(_hub_until)
    async with open_peer(hub.port) as one, open_peer(hub.port) as two:
        await one.list_tools()
        await two.list_tools()
        leave.set()
        assert [(await client.closed()).code for client in (one, two)] == [1001, 1001]


async def _hub_until(*, task_status: trio.TaskStatus[tuple[Hub, trio.Event]]) -> None:
    async with open_hub(RelayConfig(port=0)) as hub:
        leave = trio.Event()
        task_status.started((hub, leave))
        await leave.wait()


async def test_a_call_after_the_end_of_a_relay_client_is_not_made(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """The link is being closed by us: nobody is there who could pass the answer on."""
    async with listed_tab(hub, "t1", "f") as tab, open_raw(hub.port) as raw:
        await raw.upgrade("Sec-WebSocket-Protocol: webmcp-relay.v1")
        await raw.send_text('{"type":"relay/list-tools"}')
        await raw.frame()
        (client,) = [each for each in gc.get_objects() if isinstance(each, PeerClient) and each._hub is hub]
        client._socket.ended.set()  # as when it does not read
        assert await raw.close_code() is not None
        await raw.send_text('{"type":"relay/invoke","callId":"c1","toolName":"f"}')
        await raw.stream.aclose()
        await trio.sleep(0.1)
        assert len(hub.pending) == 0
        assert not [frame for frame in tab.seen if frame["type"] == "invoke"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
