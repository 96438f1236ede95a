"""MCP over ports with the SDK at both ends, in both eras: calls, progress, cancelling, ports that drop, lists that
change."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

import trio_relay.extensions.session  # noqa: F401  (imported here, as a clock that jumps does not wait for threads)
from tests.extensions.setting import (
    MAIL,
    NOTES,
    OURS,
    Browser,
    Extension,
    args,
    connected,
    failed,
    row_that,
    shown,
    text,
    tool,
    until,
)
from trio_relay.core.pending import Progress
from trio_relay.errors import CallFailed, InvalidArguments, NotSent, SourceLost, TimedOut, ToolNotFound
from trio_relay.extensions.host import Providers
from trio_relay.links.memory_port import QUEUE

pytestmark = pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "modern"])


@pytest.fixture
def extension(legacy: bool) -> Extension:
    return Extension(legacy=legacy)


@pytest.fixture
async def providers(nursery: trio.Nursery, extension: Extension) -> Providers:
    """Connected to `extension` (as MAIL's neighbour that is not there)."""
    providers = Providers([NOTES], client_id=OURS, invoke_timeout=30)
    nursery.start_soon(providers.run)

    async def hold(task_status: trio.TaskStatus[None]) -> None:
        with providers.attach(Browser(nursery, **{NOTES: extension})):
            task_status.started()
            await trio.sleep_forever()

    await nursery.start(hold)
    await connected(providers)
    return providers


class Gate:
    """A tool that answers when it is let."""

    def __init__(self) -> None:
        self.opened = trio.Event()
        self.seen: list[dict[str, Any]] = []

    async def __call__(self, arguments: dict[str, Any]) -> dict[str, Any]:
        self.seen.append(arguments)
        await self.opened.wait()
        return text(json.dumps(arguments))


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
    extension.raw_result = raw
    extension.raw_result = raw if '"content"' in raw else None
    if extension.raw_result is None:
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


async def test_a_closed_port_costs_no_tool_and_the_next_call_shakes_hands_anew(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    seen, rows = providers.change(), providers.rows_seen
    for times in (2, 3):
        extension.ports[-1].close()
        await trio.sleep(120)
        assert extension.handshakes == times - 1, "nothing is opened before it is needed"
        assert [view.name for view in providers.tools()] == ["notes_write", "notes_read"]
        assert shown(await providers.call("notes_read", args(n=times)))["content"][0]["text"] == f'{{"n": {times}}}'
        assert (extension.handshakes, len(extension.ports)) == (times, times)
        assert extension.count("initialize") == (times if extension.legacy else 0)
    assert (providers.change(), providers.rows_seen) == (seen, rows)


async def test_a_provider_that_is_silent_about_the_modern_era_is_asked_once(
    legacy: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The SDK waits 10 s for an answer to `server/discover`, and then begins with `initialize`."""
    extension = Extension(legacy=True)
    extension.deaf = {"server/discover"}
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    begun = trio.current_time()
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        await connected(providers)
        assert trio.current_time() - begun == pytest.approx(10)
        extension.ports[-1].close()
        begun = trio.current_time()
        await providers.call("notes_read", args())
        assert trio.current_time() == begun
        assert (extension.count("server/discover"), extension.count("initialize")) == (1, 2)


async def test_an_embedder_whose_progress_callback_fails_costs_itself_nothing(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    def fail(progress: Progress) -> None:
        raise RuntimeError("a bug of the embedder")

    assert not (await providers.call("notes_read", args(progress=3), on_progress=fail)).is_error
    assert len(extension.ports) == 1


async def test_a_list_that_fails_costs_the_first_connection_and_no_later_one(
    legacy: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    extension = Extension(legacy=legacy)
    extension.deaf = {"tools/list"}
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        row = await failed(providers)
        assert row.outcome == "No MCP session: its tools could not be listed: no answer within 10 s."
        extension.deaf = set()
        await connected(providers)
        extension.deaf = {"tools/list"}
        extension.ports[-1].close()
        await wait_all_tasks_blocked()
        assert not (await providers.call("notes_read", args())).is_error
        await trio.sleep(60)
        assert providers.rows()[0].tool_count == 2
        assert not (await providers.call("notes_read", args())).is_error


async def test_concurrent_calls_share_one_reconnect(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.ports[-1].close()
    await wait_all_tasks_blocked()
    calls = [providers.call("notes_read", args(n=n)) for n in range(20)]
    results = [shown(await call)["content"][0]["text"] for call in calls]
    assert results == [json.dumps({"n": n}) for n in range(20)]
    assert (extension.handshakes, len(extension.ports)) == (2, 2)
    sent = [message["params"]["arguments"]["n"] for message in extension.heard if message.get("method") == "tools/call"]
    assert sent == list(range(20))


async def test_a_call_given_up_before_the_reconnect_is_never_sent(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.ports[-1].close()
    await wait_all_tasks_blocked()
    extension.deaf = {"initialize", "server/discover"}
    begun = trio.current_time()
    with pytest.raises(NotSent, match="took no call for 5 s"):
        await providers.call("notes_read", args(), limit=5)
    assert trio.current_time() - begun == pytest.approx(5)
    extension.deaf = set()
    await trio.sleep(200)
    assert extension.count("tools/call") == 0


async def test_a_reconnect_that_fails_looks_at_the_state_again(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.ports[-1].close()
    await wait_all_tasks_blocked()
    extension.refusal = "off"
    extension.probe = {"ok": False, "error": "Updating."}
    with pytest.raises(NotSent, match="Updating"):
        await providers.call("notes_read", args())
    row = await failed(providers)
    assert (row.outcome, row.tool_count, row.name) == ("Updating.", 0, "Notes")


async def test_a_change_of_tools_is_followed(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    seen = providers.change()
    await extension.change_tools(tool("write"), tool("erase"))
    with trio.fail_after(10):
        await providers.wait_change(seen)
    assert [view.name for view in providers.tools()] == ["notes_write", "notes_erase"]
    assert providers.rows()[0].tool_count == 2


async def test_changes_without_end_are_listed_once_a_second(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    before = extension.count("tools/list")
    for number in range(1000):
        await extension.change_tools(tool(f"t{number}"))
        await trio.sleep(0.01)
    await row_that(providers, lambda row: row.tool_count == 1)
    await until(lambda: [view.name for view in providers.tools()] == ["notes_t999"])
    assert 5 <= extension.count("tools/list") - before <= 13


async def test_every_page_of_a_list_is_read(legacy: bool, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    extension = Extension(*(tool(f"t{number}") for number in range(10)), legacy=legacy)
    extension.pages = 3
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        assert (await connected(providers)).tool_count == 10
        assert extension.count("tools/list") == 4


async def test_one_bad_tool_of_ten_costs_one(legacy: bool, nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    tools: list[object] = [tool(f"t{number}") for number in range(10)]
    tools[4] = {"name": "t4", "inputSchema": {"type": "string"}}
    extension = Extension(*tools, legacy=legacy)
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        row = await connected(providers)
        assert (row.tool_count, row.outcome) == (9, "Connected: 9 tools, 1 refused.")
        (refused,) = row.refused
        assert (refused.tool, refused.reason) == ("t4", "its inputSchema does not describe an object")
        assert not (await providers.call("notes_t5", args())).is_error


async def test_a_port_that_drops_fails_its_calls_at_once_and_no_others(
    legacy: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    both = {NOTES: Extension(legacy=legacy), MAIL: Extension(namespace="mail", legacy=legacy)}
    gates = {own: Gate() for own in both}
    providers = Providers(both, client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **both)):
        await connected(providers, 0)
        await connected(providers, 1)
        for own, extension in both.items():
            extension.answers["read"] = gates[own]
        calls = {
            own: [providers.call(f"{namespace}_read", args(own=namespace, n=n)) for n in range(3)]
            for own, namespace in ((NOTES, "notes"), (MAIL, "mail"))
        }
        await wait_all_tasks_blocked()
        begun = trio.current_time()
        both[NOTES].ports[-1].close("the worker was stopped")
        for call in calls[NOTES]:
            with pytest.raises(SourceLost, match=r"the worker was stopped.*may have run") as lost:
                await call
            assert lost.value.may_have_run
        gates[MAIL].opened.set()
        for n, call in enumerate(calls[MAIL]):
            assert shown(await call)["content"][0]["text"] == json.dumps({"own": "mail", "n": n})
        again = [providers.call("mail_read", args(own="mail", n=n)) for n in range(3)]
        gates[MAIL].opened = trio.Event()
        await wait_all_tasks_blocked()
        both[MAIL].ports[-1].close()
        for call in again:
            with pytest.raises(SourceLost):
                await call
        assert trio.current_time() == begun
        assert all(entry["own"] == "mail" for entry in gates[MAIL].seen)
        assert all(entry["own"] == "notes" for entry in gates[NOTES].seen)


async def test_calls_that_had_not_left_a_dead_port_go_over_the_next_one_and_run_once(
    legacy: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """The provider reads nothing, so some calls are in its port (they may have run), and others wait behind it."""
    extension = Extension(legacy=legacy)
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        await connected(providers)
        extension.reading = trio.Event()
        await providers.call("notes_read", args(n=-1))  # the one it was waiting for
        calls = [providers.call("notes_read", args(n=n)) for n in range(300)]
        await wait_all_tasks_blocked()
        extension.reading.set()
        extension.ports[-1].close()
        outcomes: list[object] = []
        for call in calls:
            try:
                outcomes.append(json.loads(shown(await call)["content"][0]["text"])["n"])
            except SourceLost:
                outcomes.append(None)
        lost = outcomes.count(None)
        assert lost == QUEUE, "as many as fit into the port"
        assert outcomes == [None] * lost + list(range(lost, 300))
        heard = [
            message["params"]["arguments"]["n"] for message in extension.heard if message.get("method") == "tools/call"
        ]
        assert sorted(set(heard)) == sorted(heard)
        assert heard[-(300 - lost) :] == list(range(lost, 300)), "in the order of the calls"


async def test_a_call_given_up_behind_a_full_port_is_never_sent(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.reading = trio.Event()
    await providers.call("notes_read", args(n=-1))  # the one it was waiting for
    calls = [providers.call("notes_read", args(n=n), limit=5) for n in range(200)]
    kinds: list[type] = []
    for call in calls:
        with pytest.raises((TimedOut, NotSent)) as error:
            await call
        kinds.append(type(error.value))
    assert kinds == [TimedOut] * (QUEUE + 1) + [NotSent] * (200 - QUEUE - 1)
    extension.reading.set()
    assert not (await providers.call("notes_read", args(n=200))).is_error
    sent = [message["params"]["arguments"]["n"] for message in extension.heard if message.get("method") == "tools/call"]
    assert sent == [-1, *range(QUEUE + 1), 200]


async def test_a_call_gets_two_ports_and_no_more(
    legacy: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    extension = Extension(legacy=legacy)
    browser = Browser(nursery, **{NOTES: extension})
    browser.brittle = True
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(browser):
        await connected(providers)
        with pytest.raises(NotSent, match="it broke"):
            await providers.call("notes_read", args())
        assert (len(extension.ports), extension.count("tools/call")) == (2, 0)


async def test_a_change_before_changes_are_told_is_not_missed(
    legacy: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    extension = Extension(legacy=legacy)
    extension.listening = trio.Event()
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        assert (await connected(providers)).tool_count == 2
        await extension.change_tools(tool("only"))
        await trio.sleep(10)
        extension.listening.set()
        await row_that(providers, lambda row: row.tool_count == 1)


async def test_an_answer_just_before_the_end_of_a_port_counts(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.answers["read"] = Gate()
    for _ in range(20):  # which of the two is noticed first is up to chance
        call = providers.call("notes_read", args())
        await until(lambda: extension.pending == 1)
        *_, request = [message for message in extension.heard if message.get("method") == "tools/call"]
        port = extension.ports[-1]
        await port.send(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[]}}' % request["id"])
        port.close()
        assert shown(await call) == {"content": []}
        await until(lambda: extension.pending == 0)


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


async def test_a_call_that_no_port_takes_has_not_run(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.ports[-1].close()
    call = providers.call("notes_read", args())  # the host has not even noticed
    extension.refusal = "no listener"
    with pytest.raises(NotSent, match="did not run: No MCP session: no listener"):
        await call


async def test_a_provider_that_floods_costs_no_other_call(
    providers: Providers, extension: Extension, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Nonsense, requests, answers to nothing and endless notifications, without a pause."""
    lines = [
        b"not json",
        b"[]",
        b"5",
        b'{"jsonrpc":"2.0","id":77777,"result":{}}',
        b'{"jsonrpc":"2.0","id":null,"result":{"content":[]}}',
        b'{"jsonrpc":"2.0","id":"x","method":"ping"}',
        b'{"jsonrpc":"2.0","id":12345678901234567890123,"method":"sampling/createMessage","params":{}}',
        b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}',
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":[]}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"x"}}',
        b'{"a":' * 5000 + b"1" + b"}" * 5000,
        b'{"jsonrpc":"2.0","method":"\xff"}',
    ]

    for _ in range(200):
        for line in lines:
            await extension.ports[-1].send(line)
    assert not (await providers.call("notes_read", args())).is_error
    assert extension.handshakes == 1


async def test_a_provider_that_asks_and_reads_nothing_is_not_read_either(
    legacy: bool, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    extension = Extension(legacy=legacy)
    providers = Providers([NOTES], client_id=OURS, invoke_timeout=5)
    nursery.start_soon(providers.run)
    with providers.attach(Browser(nursery, **{NOTES: extension})):
        await connected(providers)
        extension.reading = trio.Event()
        await providers.call("notes_read", args())  # the one it was waiting for
        sent = 0
        with trio.move_on_after(10):
            while True:
                await extension.ports[-1].send(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}' % sent)
                sent += 1
        assert sent < 1000
        with pytest.raises(NotSent, match="took no call for 5 s"):
            await providers.call("notes_read", args())
