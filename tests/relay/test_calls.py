"""A call through the hub to a tab and back: every way it can end, and what the tab sees of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from msgspec import Raw

from tests.helpers import PATIENCE, FakeTab, open_tab
from tests.hubs import Attempt, begun, in_step, offer, result_frame
from trio_relay.config import RelayConfig
from trio_relay.core.pending import Progress
from trio_relay.errors import InvalidArguments, ResultRefused
from trio_relay.relay.hub import Hub, open_hub


@pytest.fixture
async def tab(hub: Hub) -> Any:
    """A tab `t1` with the tool `f`."""
    async with open_tab(hub.port) as tab:
        await offer(tab)
        yield tab


async def test_the_invoke_frame_holds_the_pages_name_the_arguments_as_they_were_and_the_time_left(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery
) -> None:
    args = b'{"id":9007199254740993,"z":-0.0,"e":1e2,"n":null}'
    Attempt(nursery, hub, "f", args)
    await tab.socket.ping()
    raw = await tab.socket.receive()
    while b'"invoke"' not in raw:
        raw = await tab.socket.receive()
    frame = json.loads(raw)
    assert set(frame) == {"type", "callId", "toolName", "args", "deadlineMs"}
    assert frame["toolName"] == "f"
    assert b'"args":' + args + b"," in raw
    assert 64_000 < frame["deadlineMs"] <= 65_000
    await tab.answer(frame, {"content": []})


async def test_without_a_time_limit_there_is_no_deadline(nursery: trio.Nursery) -> None:
    async with open_hub(RelayConfig(port=0, invoke_timeout=None)) as hub, open_tab(hub.port) as tab:
        await offer(tab)
        call, invoke = await begun(tab, hub, nursery)
        assert "deadlineMs" not in invoke
        await tab.answer(invoke, {"content": []})
        assert await call.result() == {"content": []}


async def test_calls_answered_in_any_order_get_their_own_results(hub: Hub, tab: FakeTab, nursery: trio.Nursery) -> None:
    calls = [Attempt(nursery, hub, "f", b'{"n":%d}' % n) for n in range(50)]
    invokes = [await tab.expect("invoke") for _ in calls]
    assert len({invoke["callId"] for invoke in invokes}) == 50
    for invoke in sorted(invokes, key=lambda invoke: (invoke["args"]["n"] * 37) % 50):
        await tab.answer(invoke)
    assert [await call.text() for call in calls] == [json.dumps({"n": n}) for n in range(50)]
    assert len(hub.pending) == 0


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" + "0" * 400])
async def test_a_number_no_page_can_hold_is_never_sent(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery, number: str
) -> None:
    call = Attempt(nursery, hub, "f", b'{"x":[%s]}' % number.encode())
    error = await call.error()
    assert isinstance(error, InvalidArguments)
    assert not error.may_have_run
    await in_step(tab)
    assert "invoke" not in {frame["type"] for frame in tab.seen}


# -- answers


async def test_only_the_tab_that_was_asked_can_answer(hub: Hub, tab: FakeTab, nursery: trio.Nursery) -> None:
    async with open_tab(hub.port) as other:
        await offer(other, "t2", "g")
        call, invoke = await begun(tab, hub, nursery)
        await other.send(result_frame(invoke["callId"], "forged"))
        await other.send({"type": "progress", "callId": invoke["callId"], "progress": 1})
        await in_step(other)
        assert not call.done.is_set()
        await tab.answer(invoke)
        assert await call.text() == "{}"


async def test_the_first_answer_counts_and_later_ones_are_ignored(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery
) -> None:
    call, invoke = await begun(tab, hub, nursery)
    for text in ("first", "second", "third"):
        await tab.send(result_frame(invoke["callId"], text))
    await in_step(tab)
    assert await call.text() == "first"
    again, invoke = await begun(tab, hub, nursery)
    await tab.answer(invoke)
    assert await again.text() == "{}"


@pytest.mark.parametrize("call_id", [None, 5, "", "nobody's", [], "x" * 100_000])
async def test_an_answer_to_nothing_is_ignored(hub: Hub, tab: FakeTab, nursery: trio.Nursery, call_id: object) -> None:
    call, invoke = await begun(tab, hub, nursery)
    await tab.send({"type": "result", "callId": call_id, "result": {"content": []}})
    await tab.send({"type": "result", "result": {"content": []}})
    await in_step(tab)
    assert not call.done.is_set()
    await tab.answer(invoke)
    assert await call.text() == "{}"


@pytest.mark.parametrize("result", ["null", '"hi"', "42", "[]", "{}", '{"content":"hi"}', '{"content":[null]}', "true"])
async def test_an_answer_that_is_no_result_becomes_an_error_result(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery, result: str
) -> None:
    """C04."""
    call, invoke = await begun(tab, hub, nursery)
    await tab.send(b'{"type":"result","callId":"%s","result":%s}' % (invoke["callId"].encode(), result.encode()))
    answer = await call.result()
    assert answer["isError"] is True
    assert result in answer["content"][0]["text"]


async def test_an_answer_without_a_result_becomes_an_error_result(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery
) -> None:
    """C04: the key is missing."""
    call, invoke = await begun(tab, hub, nursery)
    await tab.send({"type": "result", "callId": invoke["callId"]})
    assert (await call.result())["isError"] is True


@pytest.mark.parametrize(
    "broken",
    [
        b'"result":{"content":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}}",
        b'"result":{"content":[}}',
        b'"result":NaN}',
        b'"result":{"content":[]}',
        b'"result":"a\x00b"}',
    ],
)
async def test_an_answer_that_cannot_be_read_fails_its_call_at_once(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery, broken: bytes
) -> None:
    call, invoke = await begun(tab, hub, nursery)
    other, other_invoke = await begun(tab, hub, nursery)
    await tab.send(b'{"type":"result","callId":"%s",%s' % (invoke["callId"].encode(), broken))
    error = await call.error()
    assert isinstance(error, ResultRefused)
    assert error.may_have_run
    assert not other.done.is_set()
    await tab.answer(other_invoke)
    assert await other.text() == "{}"


async def test_the_call_id_of_an_unreadable_answer_may_come_last(hub: Hub, tab: FakeTab, nursery: trio.Nursery) -> None:
    call, invoke = await begun(tab, hub, nursery)
    deep = b"[" * 100_000 + b"]" * 100_000
    await tab.send(b'{"type":"result","result":%s,"callId":"%s"}' % (deep, invoke["callId"].encode()))
    assert isinstance(await call.error(), ResultRefused)


async def test_half_an_emoji_in_an_answer_is_mended(hub: Hub, tab: FakeTab, nursery: trio.Nursery) -> None:
    """C01."""
    call, invoke = await begun(tab, hub, nursery)
    result = b'{"content":[{"type":"text","text":"x\\ud83d y"}],"_meta":{"k\\udc00":"\\ud83d\\ude00"}}'
    await tab.send(b'{"type":"result","callId":"%s","result":%s}' % (invoke["callId"].encode(), result))
    assert await call.result() == {
        "content": [{"type": "text", "text": "x\ufffd y"}],
        "_meta": {"k\ufffd": "😀"},
    }


async def test_progress_frames_reach_the_caller_in_order_and_odd_ones_are_ignored(
    hub: Hub, tab: FakeTab, nursery: trio.Nursery
) -> None:
    heard: list[Progress] = []
    done = trio.Event()

    async def call() -> None:
        await hub.call("f", Raw(b"{}"), on_progress=heard.append)
        done.set()

    nursery.start_soon(call)
    invoke = await tab.expect("invoke")
    call_id = invoke["callId"]
    for members in (
        {"progress": 1, "total": 2.5, "message": "half\n"},
        {"progress": "2"},
        {"progress": None},
        {},
        {"progress": -3, "total": None, "message": 5},
        {"progress": 4, "callId": None},
    ):
        await tab.send({"type": "progress", "callId": call_id, **members})
    await tab.answer(invoke)
    await tab.send({"type": "progress", "callId": call_id, "progress": 9})  # too late
    with trio.fail_after(PATIENCE):
        await done.wait()
    await in_step(tab)
    assert heard == [Progress(b"1", b"2.5", b'"half\\n"'), Progress(b"-3")]
