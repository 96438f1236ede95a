"""Browsers that come and go, several of them, and the end of everything at any moment."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trio_relay.extensions.session  # noqa: F401  (imported here, as a clock that jumps does not wait for threads)
from tests.extensions.host_setting import (
    NOTES,
    OURS,
    Browser,
    Extension,
    args,
    connected,
    failed,
    ready,
    row_that,
    shown,
    tool,
)
from trio_relay.errors import NotSent, RelayError, ToolNotFound
from trio_relay.extensions.host import Providers


@pytest.fixture
def providers(nursery: trio.Nursery) -> Providers:
    providers = Providers([NOTES], client_id=OURS)
    nursery.start_soon(providers.run)
    return providers


async def test_tools_stay_while_a_browser_is_gone_for_a_moment(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    extension = Extension()
    browser = Browser(nursery, **{NOTES: extension})
    with providers.attach(browser):
        await connected(providers)
    seen = providers.change()
    await trio.sleep(4)
    assert providers.rows()[0].state == "connected"
    call = providers.call("notes_read", args(a=1))
    with providers.attach(browser):
        assert shown(await call)["content"][0]["text"] == '{"a": 1}'
        assert providers.change() == seen
    await trio.sleep(4.9)
    assert providers.names() == {"notes_write", "notes_read"}
    call = providers.call("notes_read", args())
    row = await failed(providers)
    assert (row.tool_count, list(providers.tools()), providers.listing()) == (0, [], [])
    with pytest.raises(NotSent, match="No browser with the trio-relay extension is connected"):
        await call
    with pytest.raises(ToolNotFound, match="cannot be used now: No browser"):
        providers.call("notes_read", args())
    assert providers.names() == {"notes_write", "notes_read"}, "no tab may take them meanwhile"


async def test_the_first_browser_that_has_a_provider_serves_it(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    here, there = Extension(), Extension(tool("write"))
    first, second, third = Browser(nursery), Browser(nursery, **{NOTES: here}), Browser(nursery, **{NOTES: there})
    with providers.attach(first):
        with providers.attach(second), providers.attach(third):
            assert (await connected(providers)).tool_count == 2
            assert (len(here.ports), len(there.ports)) == (1, 0)
            there_stays = providers.attach(third)
        assert (await failed(providers)).outcome == "Extension not installed, or no agent endpoint."
        with there_stays:
            assert (await connected(providers)).tool_count == 1


async def test_another_browser_takes_over_when_the_one_that_serves_goes(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    here, there = Extension(), Extension(tool("write"))
    with providers.attach(Browser(nursery)):
        serving = providers.attach(Browser(nursery, **{NOTES: here}))
        serving.__enter__()
        await connected(providers)
        with providers.attach(Browser(nursery, **{NOTES: there})):
            await trio.sleep(1)
            assert there.ports == []
            here.answers["write"] = _never
            call = providers.call("notes_write", args())
            await trio.testing.wait_all_tasks_blocked()
            serving.__exit__(None, None, None)
            with pytest.raises(RelayError, match="the browser that has it is gone") as lost:
                await call
            assert lost.value.may_have_run
            assert (await row_that(providers, lambda row: row.tool_count == 1)).state == "connected"


async def test_the_row_is_that_of_the_browser_that_has_it(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    extension = Extension()
    extension.probe = ready(enabled=False)
    with (
        providers.attach(Browser(nursery)),
        providers.attach(Browser(nursery, **{NOTES: extension})),
        providers.attach(Browser(nursery)),
    ):
        assert (await failed(providers)).outcome == "Agent access is turned off in the provider."


async def test_a_browser_that_comes_while_another_is_asked_opens_no_second_port(
    providers: Providers, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    here, there = Extension(), Extension()
    first = Browser(nursery, **{NOTES: here})
    first.slow = 1
    with providers.attach(first):
        await trio.sleep(0.5)
        with providers.attach(Browser(nursery, **{NOTES: there})):
            await connected(providers)
            await trio.sleep(200)
            assert (len(here.ports), len(there.ports)) == (1, 0)


async def test_leaving_closes_every_port_and_fails_every_call(autojump_clock: MockClock) -> None:
    extension, calls = Extension(), []
    extension.answers["read"] = _never
    async with trio.open_nursery() as outer:
        providers = Providers([NOTES], client_id=OURS)
        async with trio.open_nursery() as inner:
            inner.start_soon(providers.run)
            with providers.attach(Browser(outer, **{NOTES: extension})):
                await connected(providers)
                calls = [providers.call("notes_read", args()) for _ in range(3)]
                await trio.testing.wait_all_tasks_blocked()
                assert extension.pending == 3
                inner.cancel_scope.cancel()
        for call in calls:
            with pytest.raises(RelayError):
                await call
        with trio.fail_after(1):
            await trio.testing.wait_all_tasks_blocked()
        assert extension.pending == 0


@pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "modern"])
async def test_leaving_at_any_moment_leaves_nobody_waiting(legacy: bool, autojump_clock: MockClock) -> None:
    outcomes: set[str] = set()
    for ticks in range(0, 120, 3):
        extension = Extension(legacy=legacy)
        extension.answers["read"] = _never
        async with trio.open_nursery() as outer:
            providers = Providers([NOTES], client_id=OURS)
            calls: list[Any] = []
            async with trio.open_nursery() as inner:
                inner.start_soon(providers.run)
                with providers.attach(Browser(outer, **{NOTES: extension})):
                    for _ in range(ticks):
                        await trio.lowlevel.checkpoint()
                        if len(calls) < 5 and providers.names():
                            calls.append(providers.call("notes_read", args()))
                    inner.cancel_scope.cancel()
            with trio.fail_after(1):
                for call in calls:
                    with pytest.raises(RelayError) as error:
                        await call
                    outcomes.add(type(error.value).__name__)
                await trio.testing.wait_all_tasks_blocked()
            assert extension.pending == 0
            outer.cancel_scope.cancel()
    assert outcomes == {"NotSent", "SourceLost"}, "it was left before the calls and in the middle of them"


async def _never(arguments: dict[str, Any]) -> dict[str, Any]:
    await trio.sleep_forever()
    raise AssertionError("unreachable")
