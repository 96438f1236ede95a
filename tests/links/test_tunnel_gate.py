"""Who may carry ports of extensions: origins, the hello, relays that do nothing with ports, and who is told of them."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.helpers import EXTENSION, RawSocket, open_raw, open_tab
from tests.links.bridge import OWN_ORIGIN, PORTS, Extends, Handler, open_bridge, open_link
from trio_relay.config import OWN_EXTENSION, RelayConfig
from trio_relay.extension import extension_id
from trio_relay.links.source import Heartbeat
from trio_relay.links.tunnel import Tunnel
from trio_relay.relay.hub import Hub, open_hub


async def assert_refused(raw: RawSocket) -> None:
    """The first frame is the close frame: no data was sent or read."""
    frame = await raw.frame()
    assert frame is not None
    assert frame[0] == 8
    assert int.from_bytes(frame[1][:2]) == 1008


def test_the_own_id_is_the_one_that_browsers_make_of_the_manifests_key() -> None:
    assert extension_id() == OWN_EXTENSION
    assert RelayConfig().bridge_extensions == (OWN_EXTENSION,)


@pytest.mark.parametrize(
    "origin",
    [
        None,
        EXTENSION,
        "null",
        "https://evil.example",
        f"https://{OWN_EXTENSION}",
        f"moz-extension://{OWN_EXTENSION}",
        OWN_ORIGIN + "/",
        OWN_ORIGIN.upper(),
        OWN_ORIGIN + ".evil.example",
    ],
)
async def test_without_the_origin_of_our_extension_nobody_carries_ports(
    origin: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    handler = Handler()
    config = RelayConfig(port=0, allowed_origins=("*",))
    async with open_hub(config, extending=Extends(handler)) as hub, open_raw(hub.port) as raw:
        await raw.upgrade(*([] if origin is None else [f"Origin: {origin}"]), f"Sec-WebSocket-Protocol: {PORTS}")
        await raw.send_text('{"type":"hello","browserId":"x","version":1}')
        await assert_refused(raw)
    assert "tried to carry ports of extensions" in caplog.text


async def test_two_origins_are_none() -> None:
    async with open_hub(RelayConfig(port=0), extending=Extends(Handler())) as hub, open_raw(hub.port) as raw:
        await raw.upgrade(*[f"Origin: {OWN_ORIGIN}"] * 2, f"Sec-WebSocket-Protocol: {PORTS}")
        await assert_refused(raw)


async def test_another_extension_can_be_allowed_and_its_id_is_the_tunnels() -> None:
    handler, other = Handler(), EXTENSION.removeprefix("chrome-extension://")
    config = RelayConfig(port=0, bridge_extensions=(OWN_EXTENSION, other))
    async with open_hub(config, extending=Extends(handler)) as hub, open_bridge(hub.port, EXTENSION) as bridge:
        assert await bridge.greet() == {"type": "hello/accepted", "maxPayload": 10_000_000, "serves": False}
        tunnel = await handler.next()
        assert (tunnel.extension_id, tunnel.browser_id) == (other, "profile")


async def test_a_relay_that_does_nothing_with_ports_says_so(hub: Hub) -> None:
    async with open_bridge(hub.port) as bridge:
        answer = await bridge.greet()
        assert (answer["type"], answer["reason"]) == ("hello/rejected", "not-serving")
        assert (await bridge.closed()).code == 1008


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        ({"type": "hello", "browserId": "x", "version": 2}, "version"),
        ({"type": "hello", "browserId": "x"}, "invalid-hello"),
        ({"type": "hello", "browserId": "", "version": 1}, "invalid-hello"),
        ({"type": "hello", "browserId": "x" * 257, "version": 1}, "invalid-hello"),
        ({"type": "hello", "browserId": 7, "version": 1}, "invalid-hello"),
        ({"type": "port/close", "portId": "b1"}, "invalid-hello"),
        ([], "invalid-hello"),
        (b"hello", "invalid-hello"),
    ],
)
async def test_a_first_frame_that_is_no_hello_is_rejected(first: Any, reason: str) -> None:
    async with open_hub(RelayConfig(port=0), extending=Extends(Handler())) as hub, open_bridge(hub.port) as bridge:
        await bridge.send(first)
        answer = await bridge.frame()
        assert (answer["type"], answer["reason"]) == ("hello/rejected", reason)
        assert answer["message"]
        assert (await bridge.closed()).code == 1008


async def test_what_comes_before_the_handler_has_accepted_is_ignored(nursery: trio.Nursery) -> None:
    go, ports = trio.Event(), trio.open_memory_channel[str](5)

    async def handler(tunnel: Tunnel) -> None:
        await go.wait()

        async def on_port(port: object, name: str) -> None:
            ports[0].send_nowait(name)

        tunnel.accept(None, on_port)
        await trio.sleep_forever()

    async with open_hub(RelayConfig(port=0), extending=Extends(handler)) as hub, open_bridge(hub.port) as bridge:
        await bridge.send({"type": "hello", "browserId": "x", "version": 1})
        await bridge.send({"type": "port/open", "portId": "b1", "senderId": "a" * 32, "name": "early"})
        await bridge.in_step()
        go.set()
        assert (await bridge.frame())["serves"] is True
        await bridge.send({"type": "port/open", "portId": "b2", "senderId": "a" * 32, "name": "late"})
        assert (await bridge.frame())["portId"] == "b2"
        assert await ports[1].receive() == "late"


async def test_a_second_hello_changes_nothing() -> None:
    async with open_link() as link:
        await link.bridge.send({"type": "hello", "browserId": "another", "version": 1})
        await link.open()
        assert link.tunnel.browser_id == "profile"


async def test_a_bridge_without_a_hello_is_closed() -> None:
    heartbeat = Heartbeat(hello=0.1)
    async with open_hub(RelayConfig(port=0), heartbeat, Extends(Handler())) as hub, open_bridge(hub.port) as bridge:
        closed = await bridge.closed()
        assert (closed.code, "hello" in closed.reason) == (1008, True)


@pytest.mark.parametrize(
    ("handled", "origin", "told"),
    [(True, OWN_ORIGIN, True), (True, EXTENSION, False), (False, OWN_ORIGIN, False)],
)
async def test_only_our_extension_is_told_that_there_are_ports_in_the_first_hello(
    handled: bool, origin: str, told: bool
) -> None:
    async with (
        open_hub(RelayConfig(port=0), extending=Extends(Handler()) if handled else None) as hub,
        open_tab(hub.port, origin=origin) as tab,
    ):
        assert [(await tab.frame()).get("ports", False) for _ in range(2)] == [told, False]
