"""Ports that close: what becomes of calls, and how the host connects again, in both eras."""

from __future__ import annotations

import json

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

import trio_relay.extensions.session  # noqa: F401  (imported here, as a clock that jumps does not wait for threads)
from tests.extensions.host_setting import (
    MAIL,
    NOTES,
    OURS,
    Browser,
    Extension,
    Gate,
    args,
    connected,
    failed,
    shown,
    until,
)
from trio_relay.errors import NotSent, SourceLost, TimedOut
from trio_relay.extensions.host import Providers
from trio_relay.links.memory_port import QUEUE

pytestmark = pytest.mark.parametrize("legacy", [True, False], ids=["legacy", "modern"])


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


async def test_a_call_that_no_port_takes_has_not_run(
    providers: Providers, extension: Extension, autojump_clock: MockClock
) -> None:
    extension.ports[-1].close()
    call = providers.call("notes_read", args())  # the host has not even noticed
    extension.refusal = "no listener"
    with pytest.raises(NotSent, match="did not run: No MCP session: no listener"):
        await call
