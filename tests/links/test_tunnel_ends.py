"""How a tunnel ends: the socket is lost, silent, or not read; the handler returns or raises; the relay leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
import trio.testing

from tests.helpers import PATIENCE, RawSocket, open_raw
from tests.hubs import next_json, send_json
from tests.links.bridge import OTHER, OWN_ORIGIN, PORTS, Extends, Handler, Link, Outcome, open_bridge, open_link
from trio_relay.config import RelayConfig
from trio_relay.core.port import Port, PortClosed
from trio_relay.core.probe import Silence
from trio_relay.links.source import Heartbeat
from trio_relay.links.tunnel import Tunnel
from trio_relay.relay.hub import open_hub

PROBE = b"{}"


class Waiting:
    """Everything that can wait on a tunnel."""

    def __init__(self, link: Link, port: Port) -> None:
        self.tunnel = link.tunnel
        self.probe = Outcome(link.nursery, lambda: link.tunnel.probe(OTHER, PROBE, 60))
        self.opening = Outcome(link.nursery, lambda: link.tunnel.open_port(OTHER, "p"))
        self.receiving = Outcome(link.nursery, port.receive)
        self.handler = link.handler

    async def all_end(self, words: str) -> None:
        """Everybody is told at once, and so is who comes later."""
        assert words in (await self.probe.unanswered()).message
        assert (await self.probe.unanswered()).kind is Silence.FAILED
        for waiting in (self.opening, self.receiving):
            assert words in await waiting.closed()
        with trio.fail_after(PATIENCE):
            await self.handler.left.wait()
        assert self.tunnel._ports == {}
        with pytest.raises(PortClosed, match="lost"):
            await self.tunnel.open_port(OTHER, "p")


async def both_sent(link: Link) -> Waiting:
    """A probe, an opening and a receive that wait; the bridge has seen the first two."""
    port, _ = await link.open()
    waiting = Waiting(link, port)
    assert {(await link.bridge.frame())["type"] for _ in range(2)} == {"probe", "port/open"}
    return waiting


async def test_when_the_bridge_closes_everybody_is_told() -> None:
    async with open_link() as link:
        waiting = await both_sent(link)
        await link.bridge.socket.close(1000, "bye")
        await waiting.all_end("1000")


async def test_when_the_connection_breaks_everybody_is_told() -> None:
    async with open_link() as link:
        waiting = await both_sent(link)
        await trio.aclose_forcefully(link.bridge.socket.metered)
        await waiting.all_end("1006")


async def test_when_the_bridge_breaks_the_protocol_everybody_is_told() -> None:
    async with open_link(max_payload=2000) as link:
        waiting = await both_sent(link)
        await link.bridge.send(b" " * 100_000)
        assert (await link.bridge.closed()).code == 1009
        await waiting.all_end("1009")


async def test_a_silent_bridge_is_lost_after_a_ping() -> None:
    async with open_link(heartbeat=Heartbeat(interval=0.1, limit=0.4)) as link:
        waiting = await both_sent(link)
        closed = await link.bridge.closed()  # it reads, and answers nothing
        assert closed.code == 1001
        assert {"type": "ping"} in link.bridge.seen
        await waiting.all_end("no sign of life")


async def test_a_bridge_that_answers_pings_stays() -> None:
    async with open_link(heartbeat=Heartbeat(interval=0.02, limit=5)) as link:
        for _ in range(10):
            assert (await link.bridge.frame())["type"] == "ping"
            await link.bridge.send({"type": "pong"})
        opening = Outcome(link.nursery, lambda: link.tunnel.open_port(OTHER, "p"))
        await link.bridge.expect("port/open")
        await link.bridge.send({"type": "port/opened", "portId": "r1"})
        await opening.value()


async def test_handlers_of_ports_end_with_the_socket() -> None:
    ended: list[str] = []
    all_ended = trio.Event()

    async def on_port(port: Port, name: str) -> None:
        try:
            await port.receive()
        finally:
            ended.append(name)
            if len(ended) == 20:
                all_ended.set()

    async with open_link(on_port=on_port) as link:
        for number in range(20):
            frame = {"type": "port/open", "portId": f"b{number}", "senderId": OTHER, "name": str(number)}
            await link.bridge.send(frame)
        await link.bridge.in_step()
        await trio.aclose_forcefully(link.bridge.socket.metered)
        with trio.fail_after(PATIENCE):
            await all_ended.wait()


async def test_when_the_relay_leaves_the_bridge_is_told_and_may_come_back_elsewhere() -> None:
    handler = Handler()
    stop = trio.CancelScope()
    async with trio.open_nursery() as nursery:

        async def relay(task_status: trio.TaskStatus[int]) -> None:
            with stop:
                async with open_hub(RelayConfig(port=0), extending=Extends(handler)) as hub:
                    task_status.started(hub.port)
                    await trio.sleep_forever()

        port = await nursery.start(relay)
        async with open_bridge(port) as bridge:
            await bridge.greet()
            tunnel = await handler.next()
            asked = Outcome(nursery, lambda: tunnel.probe(OTHER, PROBE, 60))
            await bridge.expect("probe")
            stop.cancel()
            assert (await bridge.closed()).code == 1001
            assert (await asked.unanswered()).kind is Silence.FAILED


async def test_a_handler_that_returns_closes_its_tunnel() -> None:
    async def handler(tunnel: Tunnel) -> None:
        tunnel.accept()

    async with open_hub(RelayConfig(port=0), extending=Extends(handler)) as hub, open_bridge(hub.port) as bridge:
        assert (await bridge.greet())["type"] == "hello/accepted"
        assert (await bridge.closed()).code == 1001


async def test_a_handler_that_raises_costs_its_tunnel_only(caplog: pytest.LogCaptureFixture) -> None:
    fine = Handler()

    async def handler(tunnel: Tunnel) -> None:
        if tunnel.browser_id == "bad":
            raise RuntimeError("a fault of the test")
        await fine(tunnel)

    async with (
        open_hub(RelayConfig(port=0), extending=Extends(handler)) as hub,
        open_bridge(hub.port) as bad,
        open_bridge(hub.port) as good,
    ):
        assert (await good.greet())["type"] == "hello/accepted"
        await bad.send({"type": "hello", "browserId": "bad", "version": 1})
        assert (await bad.closed()).ours is False
        await good.in_step()
    assert "a fault of the test" in caplog.text


async def test_two_browsers_have_tunnels_of_their_own() -> None:
    async with open_link() as link, open_bridge(link.hub.port) as second:
        port, _ = await link.open()
        await second.greet(browserId="second")
        other = await link.handler.next()
        assert other.browser_id == "second"
        await second.socket.close(1000)
        assert "lost" in await Outcome(link.nursery, lambda: other.open_port(OTHER, "p")).closed()
        await port.send(b"1")
        assert (await link.bridge.frame())["message"] == 1


async def test_senders_wait_while_the_bridge_takes_nothing_and_end_with_their_port() -> None:
    handler = Handler()
    async with (
        open_hub(RelayConfig(port=0), extending=Extends(handler)) as hub,
        open_raw(hub.port) as raw,
        trio.open_nursery() as nursery,
    ):
        await raw.upgrade(f"Origin: {OWN_ORIGIN}", f"Sec-WebSocket-Protocol: {PORTS}")
        await send_json(raw, {"type": "hello", "browserId": "x", "version": 1})
        tunnel = await handler.next()
        ports = []
        for number in (1, 2):
            opening = Outcome(nursery, lambda: tunnel.open_port(OTHER, "p"))
            await next_json(raw, "port/open")
            await send_json(raw, {"type": "port/opened", "portId": f"r{number}"})
            ports.append(await opening.value())
        first, second = ports
        sent = 0

        async def fill() -> None:
            nonlocal sent
            while True:
                await first.send(b'"%s"' % (b"x" * 1_000_000))
                sent += 1

        filling = Outcome(nursery, fill)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert not filling.done.is_set()
        assert tunnel._outbox.backlog < 3_000_000
        stuck = Outcome(nursery, lambda: second.send(b"1"))
        await trio.testing.wait_all_tasks_blocked()
        second.close()
        await stuck.closed()
        filling.scope.cancel()
        await filling.value()
        first.close()
        whole = 0
        while (frame := await next_message(raw))["portId"] != "r1" or frame["type"] != "port/close":
            whole += frame["type"] == "port/message"
        assert whole == sent  # none that was given up, and none twice


async def next_message(raw: RawSocket) -> dict[str, Any]:
    frame = await raw.frame()
    assert frame is not None
    message: dict[str, Any] = json.loads(frame[1])
    return message
