"""Lists of tools that have pages, change, fail or never end, and providers that flood, in both eras."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import trio_relay.extensions.session  # noqa: F401  (imported here, as a clock that jumps does not wait for threads)
from tests.extensions.host_setting import (
    NOTES,
    OURS,
    Browser,
    Extension,
    args,
    connected,
    failed,
    row_that,
    tool,
    until,
)
from trio_relay.errors import NotSent
from trio_relay.extensions.host import Providers

pytestmark = pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "modern"])


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
