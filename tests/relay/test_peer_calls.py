"""Calls of a raw relay client: answered, targeted, bounded, cancelled."""

from __future__ import annotations

import pytest
import trio

from tests.helpers import text_result
from tests.relay.ends import error_of, eventually, listed_tab, open_peer, settled, text_of
from trio_relay.config import RelayConfig
from trio_relay.relay.hub import Hub, open_hub


@pytest.mark.parametrize(
    ("args", "reaches"),
    [("{}", {}), (None, {}), ("null", {}), ('{"a":null}', {"a": None})],
)
async def test_missing_and_null_arguments_are_an_empty_object(hub: Hub, args: str | None, reaches: object) -> None:
    """A27."""
    async with listed_tab(hub, "t1", "echo") as tab, open_peer(hub.port) as peer:
        member = "" if args is None else f',"args":{args}'
        await peer.send(f'{{"type":"relay/invoke","callId":"c","toolName":"echo"{member}}}'.encode())
        invoke = await tab.expect("invoke")
        assert (invoke["toolName"], invoke["args"]) == ("echo", reaches)
        await tab.answer(invoke, {"content": [], "isError": True, "_meta": {"x": 1}})
        answer = await peer.expect("relay/result")
        assert answer == {
            "type": "relay/result",
            "callId": "c",
            "result": {"content": [], "isError": True, "_meta": {"x": 1}},
        }


@pytest.mark.parametrize("args", [[], "text", 5, True, [{}]])
async def test_arguments_that_are_no_object_are_an_error_result(hub: Hub, args: object) -> None:
    """A27."""
    async with listed_tab(hub, "t1", "echo") as tab, open_peer(hub.port) as peer:
        assert "object" in error_of(await peer.call("echo", args=args))
        await tab.offer("other")
        await settled(hub, "other")
        assert not any(frame["type"] == "invoke" for frame in tab.seen)


async def test_what_cannot_be_called_is_answered_with_the_reason(hub: Hub) -> None:
    needs_q = {"name": "find", "inputSchema": {"type": "object", "required": ["q"]}}
    async with listed_tab(hub, "t1", needs_q), open_peer(hub.port) as peer:
        assert "nothing" in error_of(await peer.call("nothing"))
        assert "inputSchema" in error_of(await peer.call("find", args={}))
        assert "'zz'" in error_of(await peer.call("find", args={"q": 1}, requestTabId="zz"))
        assert "'zz'" in error_of(await peer.call("find", args={"q": 1}, sourceId="zz"))


async def test_a_target_decides_the_tab_and_understands_the_own_name_of_a_tool(hub: Hub, nursery: trio.Nursery) -> None:
    async with listed_tab(hub, "aa11", "search") as one, listed_tab(hub, "bb22", "search") as two:
        nursery.start_soon(one.serve, lambda invoke: text_result("one"))
        nursery.start_soon(two.serve, lambda invoke: text_result("two"))
        async with open_peer(hub.port) as peer:
            ids = {row["tabId"]: row["sourceId"] for row in (await peer.list_tools())["sources"]}
            for tab_id, answer in (("aa11", "one"), ("bb22", "two")):
                for target in ({"sourceId": ids[tab_id]}, {"requestTabId": tab_id}, {"sourceId": tab_id}):
                    assert text_of(await peer.call("search", **target)) == answer
                assert text_of(await peer.call(f"search_{tab_id}")) == answer
            both = {"sourceId": ids["aa11"], "requestTabId": "bb22"}
            assert error_of(await peer.call("search", **both))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("own", [60.0, None])
async def test_a_deadline_of_the_client_that_is_shorter_counts(own: float | None) -> None:
    async with (
        open_hub(RelayConfig(port=0, invoke_timeout=own)) as hub,
        listed_tab(hub, "t1", "slow") as tab,
        open_peer(hub.port) as peer,
    ):
        await peer.invoke("slow", deadlineMs=80)
        invoke = await tab.expect("invoke")
        assert 0 < invoke["deadlineMs"] <= 80
        answer = error_of((await peer.expect("relay/result"))["result"])
        assert "0.08 s" in answer
        assert (await tab.expect("cancel"))["reason"] == "timeout"
        assert len(hub.pending) == 0


@pytest.mark.parametrize("deadline", [60_000, 1e300])
async def test_a_longer_deadline_of_the_client_does_not(deadline: float) -> None:
    async with (
        open_hub(RelayConfig(port=0, invoke_timeout=0.08)) as hub,
        listed_tab(hub, "t1", "slow") as tab,
        open_peer(hub.port) as peer,
    ):
        await peer.invoke("slow", deadlineMs=deadline)
        assert (await tab.expect("invoke"))["deadlineMs"] <= 80
        assert "within 0.08 s" in error_of((await peer.expect("relay/result"))["result"])


@pytest.mark.parametrize("deadline", [0, -5])
async def test_a_deadline_that_is_over_is_answered_at_once(hub: Hub, deadline: int) -> None:
    async with listed_tab(hub, "t1", "slow"), open_peer(hub.port) as peer:
        assert error_of(await peer.call("slow", deadlineMs=deadline))
        assert len(hub.pending) == 0


async def test_a_cancelled_call_is_cancelled_in_the_tab_and_never_answered(hub: Hub) -> None:
    async with listed_tab(hub, "t1", "slow") as tab, open_peer(hub.port) as peer:
        await peer.invoke("slow", "c1")
        invoke = await tab.expect("invoke")
        await peer.send({"type": "relay/cancel", "callId": "c1"})
        assert await tab.expect("cancel") == {"type": "cancel", "callId": invoke["callId"], "reason": "cancelled"}
        await tab.answer(invoke, text_result("too late"))
        await peer.send({"type": "relay/cancel", "callId": "c1"})
        await peer.send({"type": "relay/cancel", "callId": "never"})
        assert error_of(await peer.call("nothing", "c2"))
        assert [frame["callId"] for frame in peer.seen if frame["type"] == "relay/result"] == ["c2"]
        assert len(hub.pending) == 0


async def test_a_cancel_right_behind_its_invoke_is_not_lost(hub: Hub) -> None:
    async with listed_tab(hub, "t1", "slow") as tab, open_peer(hub.port) as peer:
        for number in range(20):
            await peer.invoke("slow", f"c{number}")
            await peer.send({"type": "relay/cancel", "callId": f"c{number}"})
        assert error_of(await peer.call("nothing", "last"))
        await eventually(lambda: len(hub.pending) == 0)
        await tab.send({"type": "source/disconnected"})
        await settled(hub)
        assert [frame["callId"] for frame in peer.seen if frame["type"] == "relay/result"] == ["last"]


@pytest.mark.parametrize("wanted", [True, False])
async def test_progress_goes_to_clients_that_asked_for_it(hub: Hub, wanted: bool) -> None:
    async with listed_tab(hub, "t1", "slow") as tab, open_peer(hub.port) as peer:
        await peer.send({"type": "relay/hello", "features": ["progress"] if wanted else []})
        await peer.invoke("slow", "c7")
        invoke = await tab.expect("invoke")
        await tab.send({"type": "progress", "callId": invoke["callId"], "progress": 1, "total": 2, "message": "half"})
        await tab.send(b'{"type":"progress","callId":"%s","progress":1.50}' % invoke["callId"].encode())
        await tab.answer(invoke, text_result("done"))
        if wanted:
            progress = {"type": "relay/progress", "callId": "c7"}
            assert await peer.expect("relay/progress") == progress | {"progress": 1, "total": 2, "message": "half"}
            assert await peer.expect("relay/progress") == progress | {"progress": 1.5}
        assert text_of((await peer.expect("relay/result"))["result"]) == "done"


async def test_a_reload_reaches_the_tab_that_is_meant(hub: Hub) -> None:
    async with listed_tab(hub, "t1", "a") as one, listed_tab(hub, "t2", "b") as two, open_peer(hub.port) as peer:
        ids = {row["tabId"]: row["sourceId"] for row in (await peer.list_tools())["sources"]}
        await peer.send({"type": "relay/reload", "sourceId": "gone"})
        await peer.send({"type": "relay/reload", "sourceId": ids["t2"]})
        assert await two.expect("reload") == {"type": "reload"}
        await peer.invoke("a")
        assert (await one.expect("invoke"))["toolName"] == "a"


async def test_a_result_that_outgrows_the_limit_by_its_envelope_leaves_the_link_open() -> None:
    """DECISION 4: a long callId makes the frame too large although the tab's message was not."""
    async with (
        open_hub(RelayConfig(port=0, max_payload=100_000)) as hub,
        listed_tab(hub, "t1", "big") as tab,
        open_peer(hub.port) as peer,
    ):
        await peer.invoke("big", "c" * 70_000)
        invoke = await tab.expect("invoke")
        await tab.answer(invoke, text_result("x" * 99_000))
        answer = await peer.expect("relay/result")
        assert answer["callId"] == "c" * 70_000
        assert "165536" in error_of(answer["result"])
        await peer.invoke("big", "c")
        await tab.answer(await tab.expect("invoke"), text_result("x" * 99_000))
        assert len(text_of((await peer.expect("relay/result"))["result"])) == 99_000
