"""What is said first on a browser socket: our two greetings, the tab's hello, and who is refused with which reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.helpers import EXTENSION, FakeTab, client_frame, open_raw, open_tab
from tests.hubs import Attempt, in_step, listed, next_json, send_json, wait_listed
from trio_relay.config import RelayConfig
from trio_relay.links.source import Heartbeat
from trio_relay.relay.hub import Hub, open_hub

NAMED = RelayConfig(port=0, label="My label", workspace="/work", relay_id="relay-7")


async def greeting(tab: FakeTab) -> list[dict[str, Any]]:
    return [await tab.frame(), await tab.frame()]


async def test_two_greetings_come_first_and_at_once() -> None:
    """One for each service name in the field, the extension's first."""
    async with open_hub(NAMED) as hub, open_tab(hub.port) as tab:
        first, second = await greeting(tab)
        assert (first.pop("service"), second.pop("service")) == ("webmcp-extension-relay", "webmcp-local-relay")
        assert first == second
        assert first.pop("instanceId")
        assert first == {
            "type": "server-hello",
            "version": 1,
            "host": "127.0.0.1",
            "port": hub.port,
            "relayId": "relay-7",
            "label": "My label",
            "workspace": "/work",
            "maxPayload": 10_000_000,
        }


async def test_what_is_not_configured_is_absent_and_the_relay_id_is_the_instance_id(hub: Hub) -> None:
    async with open_tab(hub.port) as tab, open_tab(hub.port) as other:
        hello, _ = await greeting(tab)
        assert "label" not in hello
        assert "workspace" not in hello
        assert hello["relayId"] == hello["instanceId"]
        assert (await other.frame())["instanceId"] == hello["instanceId"]


async def test_a_page_that_may_not_register_tools_learns_no_names() -> None:
    async with open_hub(NAMED) as hub, open_tab(hub.port, origin="https://evil.example") as tab:
        for hello in await greeting(tab):
            assert "label" not in hello
            assert "workspace" not in hello
            assert "relay-7" not in json.dumps(hello)


@pytest.mark.parametrize("subprotocols", [(), ("webmcp.v1",), ("webmcp-discovery.v1", "webmcp.v1"), ("foo",)])
async def test_the_same_socket_goes_on_after_discovery(hub: Hub, subprotocols: tuple[str, ...]) -> None:
    async with open_tab(hub.port, subprotocols=subprotocols) as tab:
        await tab.hello()
        await tab.offer("f")
        await wait_listed(hub, "f")


# -- origins

CHROME, MOZ = ("chrome-extension://*",), ("moz-extension://*", "https://a.example")


@pytest.mark.parametrize(
    ("allowed", "header", "member", "accepted"),
    [
        (CHROME, EXTENSION, None, True),
        (CHROME, EXTENSION.upper(), None, True),
        (CHROME, EXTENSION, "https://evil.example", True),  # the header counts
        (CHROME, "https://evil.example", EXTENSION, False),
        (CHROME, None, EXTENSION, True),
        (CHROME, None, "https://a.example", False),
        (CHROME, None, None, False),
        (CHROME, None, 5, False),
        (CHROME, "null", None, False),
        (CHROME, "null", EXTENSION, False),
        (CHROME, "", EXTENSION, False),
        (CHROME, "chrome-extension", None, False),
        (CHROME, "chrome-extensions://x", None, False),
        (CHROME, "xchrome-extension://x", None, False),
        (MOZ, "moz-extension://1234", None, True),
        (MOZ, EXTENSION, None, False),
        (MOZ, "https://a.example", None, True),
        (MOZ, "https://a.example:8443", None, False),
        (MOZ, "https://a.example.evil", None, False),
        (MOZ, "http://a.example", None, False),
        (("null",), "null", None, True),
        (("null",), None, "null", True),
        (("null",), EXTENSION, None, False),
        (("*",), "https://any.example", None, True),
        (("*",), "null", None, True),
        (("*",), None, "x", True),
        (("*",), None, None, False),
        (("https://*",), "https://any.example", None, True),
        (("https://*",), "http://any.example", None, False),
    ],
)
async def test_the_origin_decides(allowed: tuple[str, ...], header: str | None, member: object, accepted: bool) -> None:
    config = RelayConfig(port=0, allowed_origins=allowed)
    async with open_hub(config) as hub, open_tab(hub.port, origin=header) as tab:
        hello: dict[str, object] = {"type": "hello", "tabId": "t1"}
        await tab.send(hello if member is None else hello | {"origin": member})
        if accepted:
            await tab.expect("hello/accepted")
            assert [source.tab_id for source in hub.sources()] == ["t1"]
        else:
            rejected = await tab.expect("hello/rejected")
            assert rejected["reason"] == "host-origin-not-allowed"
            assert "--widget-origin" in rejected["message"]
            assert (await tab.closed()).code == 1008
            assert hub.sources() == []


async def test_two_origin_headers_are_none_that_is_allowed(hub: Hub) -> None:
    async with open_raw(hub.port) as raw:
        await raw.upgrade(f"Origin: {EXTENSION}", "Origin: https://evil.example")
        await raw.send_text('{"type":"hello","tabId":"t1"}')
        assert (await next_json(raw, "hello/rejected"))["reason"] == "host-origin-not-allowed"


async def test_what_a_refused_page_sends_afterwards_counts_for_nothing(hub: Hub) -> None:
    """Not even a better hello in the same write."""
    frames: list[dict[str, Any]] = [
        {"type": "hello", "tabId": "t1", "origin": "https://evil.example"},
        {"type": "hello", "tabId": "t1", "origin": EXTENSION},
        {"type": "tools/list", "tools": [{"name": "f"}]},
    ]
    async with open_raw(hub.port) as raw:
        await raw.upgrade()
        await raw.send(b"".join(client_frame(json.dumps(frame).encode()) for frame in frames))
        await next_json(raw, "hello/rejected")
        after = await raw.frame()
        assert after is not None
        assert after[0] == 8
        assert hub.sources() == []
        assert listed(hub) == {}


# -- tab ids


@pytest.mark.parametrize(
    ("tab_id", "expected"),
    [
        ("41", "41"),
        (41, "41"),
        (-1, "-1"),
        (0, "0"),
        (41.0, "41"),
        (1e15, "1000000000000000"),
        (9007199254740993, "9007199254740993"),
        ("  ", "  "),
        ("a" * 256, "a" * 256),
        ("搜索😀", "搜索😀"),
        ("", None),
        ("a" * 257, None),
        (41.5, None),
        (True, None),
        (False, None),
        (None, None),
        ([], None),
        ({}, None),
        (10**300, None),
    ],
)
async def test_a_tab_id_is_a_string_or_a_whole_number(hub: Hub, tab_id: object, expected: str | None) -> None:
    """B15: nonsense is refused with a reason, never with silence."""
    async with open_tab(hub.port) as tab:
        await tab.send({"type": "hello", "tabId": tab_id})
        if expected is None:
            rejected = await tab.expect("hello/rejected")
            assert rejected["reason"] == "invalid-hello"
            assert "tabId" in rejected["message"]
            assert (await tab.closed()).code == 1008
            assert hub.sources() == []
        else:
            await tab.expect("hello/accepted")
            assert [source.tab_id for source in hub.sources()] == [expected]


@pytest.mark.parametrize("number", ["1e400", "-1e400", "9" * 5000, "1e99999999999", "[" * 400 + "]" * 400])
async def test_a_tab_id_that_no_program_can_hold_is_refused(hub: Hub, number: str) -> None:
    """B15."""
    async with open_tab(hub.port) as tab:
        await tab.send(b'{"type":"hello","tabId":%s}' % number.encode())
        assert (await tab.expect("hello/rejected"))["reason"] == "invalid-hello"


async def test_a_hello_without_a_tab_id_is_refused(hub: Hub) -> None:
    async with open_tab(hub.port) as tab:
        await tab.send({"type": "hello"})
        assert (await tab.expect("hello/rejected"))["reason"] == "invalid-hello"


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, (EXTENSION, None, None, None)),
        (dict.fromkeys(("origin", "url", "title", "iconUrl")), (EXTENSION, None, None, None)),
        (dict.fromkeys(("origin", "url", "title", "iconUrl"), ""), (EXTENSION, None, None, None)),
        (dict.fromkeys(("origin", "url", "title", "iconUrl"), 5), (EXTENSION, None, None, None)),
        (
            {"origin": "https://a.example", "url": "https://a.example/x", "title": "A", "iconUrl": "data:,x"},
            ("https://a.example", "https://a.example/x", "A", "data:,x"),
        ),
        (
            {"title": "t" * 1024, "url": "u" * 8192, "iconUrl": "i" * 4096},
            (EXTENSION, "u" * 8192, "t" * 1024, "i" * 4096),
        ),
        ({"title": "t" * 1025, "url": "u" * 8193, "iconUrl": "i" * 4097}, (EXTENSION, None, "t" * 1024, None)),
        ({"unknown": {"a": [None]}, "client": 5}, (EXTENSION, None, None, None)),
    ],
)
async def test_odd_optional_members_cost_only_themselves(
    hub: Hub, members: dict[str, object], expected: tuple[str | None, ...]
) -> None:
    """B15: null, empty, of another type, or too long."""
    async with open_tab(hub.port) as tab:
        await tab.send({"type": "hello", "tabId": "t1", **members})
        await tab.expect("hello/accepted")
        (source,) = hub.sources()
        assert (source.origin, source.url, source.title, source.icon_url) == expected


# -- again, and gone


async def test_tools_before_a_hello_are_ignored(hub: Hub) -> None:
    async with open_tab(hub.port) as tab:
        await tab.offer("f")
        await tab.hello()
        assert listed(hub) == {}
        await tab.offer("g")
        await wait_listed(hub, "g")


async def test_tools_follow_a_repeated_hello_to_the_new_tab_id(hub: Hub, nursery: trio.Nursery) -> None:
    """B18: calls by the new id and by another tab of the old id go where they say."""
    async with open_tab(hub.port) as moved, open_tab(hub.port) as other:
        await moved.hello("t1")
        await moved.offer("f")
        await in_step(moved)
        await moved.hello("t2")
        await other.hello("t1")
        await other.offer("f")
        tools = await wait_listed(hub, *(await two_names(hub)))
        nursery.start_soon(moved.serve, lambda invoke: {"content": [{"type": "text", "text": "moved"}]})
        nursery.start_soon(other.serve, lambda invoke: {"content": [{"type": "text", "text": "other"}]})
        for name, tool in tools.items():
            expected = "moved" if "[WebMCP t2" in tool["description"] else "other"
            assert await Attempt(nursery, hub, name).text() == expected
        assert {source.tab_id: source.tool_count for source in hub.sources()} == {"t1": 1, "t2": 1}
        nursery.cancel_scope.cancel()


async def two_names(hub: Hub) -> list[str]:
    with trio.fail_after(5):
        while len(listed(hub)) < 2:
            await hub.wait_change(hub.change())
    return list(listed(hub))


async def test_a_repeated_hello_keeps_the_source_and_its_start(hub: Hub) -> None:
    async with open_tab(hub.port) as tab:
        await tab.hello("t1")
        (before,) = hub.sources()
        await tab.hello("t1", title="Another title")
        (after,) = hub.sources()
        assert (after.source_id, after.connected_at) == (before.source_id, before.connected_at)
        assert after.title == "Another title"


async def test_a_page_whose_port_died_vanishes_and_comes_back_on_the_same_socket(
    hub: Hub, nursery: trio.Nursery
) -> None:
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer("f")
        await wait_listed(hub, "f")
        call = Attempt(nursery, hub, "f")
        await tab.expect("invoke")
        await tab.send({"type": "source/disconnected", "reason": "port died\nhard"})
        assert "port died" in str(await call.error())
        assert hub.sources() == []
        assert listed(hub) == {}
        await tab.offer("f")  # not before a hello
        await in_step(tab)
        assert listed(hub) == {}
        await tab.hello()
        await tab.offer("f")
        await wait_listed(hub, "f")
        again = Attempt(nursery, hub, "f", b'{"n":1}')
        await tab.answer(await tab.expect("invoke"))
        assert await again.text() == '{"n": 1}'


@pytest.mark.parametrize("reason", [None, 5, "", " ", "x" * 100_000, {}])
async def test_any_reason_for_that_is_fine(hub: Hub, reason: object) -> None:
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.send({"type": "source/disconnected", "reason": reason})
        await in_step(tab)
        assert hub.sources() == []
        await tab.hello()


async def test_a_hello_after_the_end_makes_no_tab() -> None:
    """While the closing handshake waits for its answer, the page is still heard."""
    async with open_hub(RelayConfig(port=0), Heartbeat(hello=0.2)) as hub, open_raw(hub.port) as raw:
        await raw.upgrade(f"Origin: {EXTENSION}", "Sec-WebSocket-Protocol: webmcp.v1")
        assert await raw.close_code() == 1008
        await send_json(raw, {"type": "hello", "tabId": "late"})
        await send_json(raw, {"type": "tools/list", "tools": [{"name": "f"}]})
        await raw.stream.aclose()
        await trio.sleep(0.2)
        assert hub.sources() == []
        assert list(hub.tools()) == []
