"""Calls of tools of providers, with the SDK at both ends and in both eras: bytes, progress, limits, cancelling."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

import trio_relay.extensions.session  # noqa: F401  (imported here, as a clock that jumps does not wait for threads)
from tests.extensions.host_setting import (
    Extension,
    Gate,
    args,
    row_that,
    shown,
    text,
    tool,
    until,
)
from trio_relay.core.pending import Progress
from trio_relay.errors import CallFailed, InvalidArguments, TimedOut, ToolNotFound
from trio_relay.extensions.host import Providers

pytestmark = pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "modern"])


async def test_a_call_has_its_answer(providers: Providers, extension: Extension, autojump_clock: MockClock) -> None:
    result = await providers.call("notes_read", args(a=1))
    assert shown(result) == text('{"a": 1}'), "and no trace of the SDK's stamp"
    (call,) = [message for message in extension.heard if message.get("method") == "tools/call"]
    assert (call["params"]["name"], call["params"]["arguments"]) == ("read", {"a": 1})
    assert extension.handshakes == 1
    assert extension.count("initialize") == (1 if extension.legacy else 0)


async def test_calls_leave_in_the_order_they_are_made(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    calls = [providers.call("notes_read", args(n=n)) for n in range(100)]
    await wait_all_tasks_blocked()
    sent = [message["params"]["arguments"]["n"] for message in extension.heard if message.get("method") == "tools/call"]
    assert sent == list(range(100)), "sent at once, before anybody waits for the answer"
    for n, call in enumerate(calls):
        assert shown(await call)["content"][0]["text"] == json.dumps({"n": n})


async def test_arguments_and_results_keep_their_bytes(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    given = b'{"big":123456789012345678901234567890,"none":null,"real":1.10,"deep":{"none":null},"text":"\xe2\x80\xa8"}'
    extension.raw_result = (
        '{"content":[{"type":"text","text":"x"}],"structuredContent":'
        '{"big":123456789012345678901234567890,"none":null,"real":1.10},"own":{"none":null}}'
    )
    result = await providers.call("notes_read", Raw(given))
    assert result.structured == Raw(b'{"big":123456789012345678901234567890,"none":null,"real":1.10}')
    assert b'"own":{"none":null}' in result.json
    (call,) = [message for message in extension.heard if message.get("method") == "tools/call"]
    assert json.dumps(call["params"]["arguments"]) == json.dumps(json.loads(given))
    assert any(given in line for line in extension.lines)


@pytest.mark.parametrize(
    ("raw", "words", "is_error"),
    [
        ('{"content":[{"type":"hologram","x":1}]}', "hologram", False),
        ('{"content":[{"type":"text","text":"cut \\ud83d"}]}', "cut \ufffd", False),
        ('{"structuredContent":{"a":1}}', '{"a":1}', False),
        ('{"content":5}', "is no MCP tool result", True),
        ('{"resultType":"input_required"}', "input_required", True),
        ("{}", "has no content", True),
        ('{"content":[],"_meta":null,"isError":null}', None, False),
    ],
)
async def test_an_odd_result_is_brought_into_shape(
    raw: str, words: str | None, is_error: bool, providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.answers["read"] = _answer_with(extension, raw)
    result = await providers.call("notes_read", args())
    assert result.is_error is is_error
    assert words is None or words in shown(result)["content"][0]["text"]


def _answer_with(extension: Extension, raw: str) -> Any:
    async def answer(arguments: dict[str, Any]) -> dict[str, Any]:
        extension.raw_result = raw
        return text("replaced on the way")

    return answer


async def test_an_output_schema_is_checked(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    await extension.change_tools(tool("count", outputSchema=schema))
    await row_that(providers, lambda row: row.tool_count == 1)
    extension.raw_result = '{"content":[],"structuredContent":{"n":"five"}}'
    result = await providers.call("notes_count", args())
    assert result.is_error
    extension.raw_result = '{"content":[],"structuredContent":{"n":5}}'
    assert not (await providers.call("notes_count", args())).is_error
    assert extension.count("tools/list") == 2, "and never listed again for that"


async def test_arguments_are_checked_before_anything_is_sent(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    await extension.change_tools(tool("add", inputSchema={"type": "object", "required": ["a"]}))
    await row_that(providers, lambda row: row.tool_count == 1)
    with pytest.raises(InvalidArguments):
        providers.call("notes_add", args(b=1))
    with pytest.raises(ToolNotFound, match="No provider extension offers a tool 'notes_read'"):
        providers.call("notes_read", args())
    assert extension.count("tools/call") == 0


async def test_an_error_of_the_protocol_is_an_error_that_may_have_run(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    async def refuse(arguments: dict[str, Any]) -> dict[str, Any]:
        from mcp import MCPError

        raise MCPError(-32602, "no such note")

    extension.answers["read"] = refuse
    with pytest.raises(CallFailed, match=r"no such note \(code -32602\)") as failure:
        await providers.call("notes_read", args())
    assert failure.value.may_have_run
    assert shown(await providers.call("notes_write", args()))["content"], "the session goes on"


async def test_progress_is_passed_on_in_order_with_its_digits(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    told: list[Progress] = []
    await providers.call("notes_read", args(progress=50), on_progress=told.append)
    assert [float(progress.progress) for progress in told] == list(range(1, 51))
    assert told[0].message == b'"step 1"'
    quiet = await providers.call("notes_read", args(progress=2))
    assert not quiet.is_error
    *_, last = [message for message in extension.heard if message.get("method") == "tools/call"]
    assert "progressToken" not in last["params"].get("_meta", {})


async def test_progress_keeps_its_digits_and_stays_with_its_call(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    gate = extension.answers["read"] = Gate()
    one: list[Progress] = []
    two: list[Progress] = []
    first = providers.call("notes_read", args(), on_progress=one.append)
    second = providers.call("notes_read", args(), on_progress=two.append)
    await wait_all_tasks_blocked()
    ids = [message["id"] for message in extension.heard if message.get("method") == "tools/call"]
    for token, value in ((ids[0], "1.50"), (ids[1], "7"), (999, "3"), (ids[0], '"x"'), (ids[0], "2e0")):
        params = f'{{"progressToken":{token},"progress":{value},"total":10.0,"message":5}}'
        line = f'{{"jsonrpc":"2.0","method":"notifications/progress","params":{params}}}'
        await extension.ports[0].send(line.encode())
    await wait_all_tasks_blocked()
    gate.opened.set()
    await first
    await second
    assert one == [Progress(b"1.50", b"10.0"), Progress(b"2e0", b"10.0")]
    assert two == [Progress(b"7", b"10.0")]


async def test_whoever_stops_waiting_tells_the_provider(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    gate = extension.answers["read"] = Gate()
    with trio.move_on_after(1) as scope:
        await providers.call("notes_read", args())
    assert scope.cancelled_caught
    await until(lambda: extension.cancelled == 1)
    (cancel,) = [message for message in extension.heard if message.get("method") == "notifications/cancelled"]
    (call,) = [message for message in extension.heard if message.get("method") == "tools/call"]
    assert cancel["params"]["requestId"] == call["id"]
    gate.opened.set()
    assert not (await providers.call("notes_read", args())).is_error


@pytest.mark.parametrize(("limit", "seconds"), [(None, 30), (3, 3), (100, 30)])
async def test_a_call_has_a_time_limit(
    limit: float | None, seconds: float, providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.answers["read"] = Gate()
    begun = trio.current_time()
    with pytest.raises(TimedOut, match=f"within {seconds} s"):
        await providers.call("notes_read", args(), limit=limit)
    assert trio.current_time() - begun == pytest.approx(seconds)
    await until(lambda: extension.cancelled == 1)


async def test_an_embedder_whose_progress_callback_fails_costs_itself_nothing(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    def fail(progress: Progress) -> None:
        raise RuntimeError("a bug of the embedder")

    assert not (await providers.call("notes_read", args(progress=3), on_progress=fail)).is_error
    assert len(extension.ports) == 1


@pytest.mark.parametrize("shape", ['{"jsonrpc":"2.0","id":%d,"result":%s}', '{"result":%s,"jsonrpc":"2.0","id":%d}'])
async def test_an_answer_that_nests_too_deeply_is_an_error_at_once(
    shape: str, providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.answers["read"] = Gate()
    call = providers.call("notes_read", args())
    await wait_all_tasks_blocked()
    *_, request = [message for message in extension.heard if message.get("method") == "tools/call"]
    deep = '{"a":' * 5000 + "1" + "}" * 5000
    line = shape.replace("%d", str(request["id"])).replace("%s", deep)
    await extension.ports[-1].send(line.encode())
    result = await call
    assert result.is_error
    assert "nests too deeply" in shown(result)["content"][0]["text"]
