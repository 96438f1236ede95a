"""A tunnel over a real WebSocket, from the relay's side: probes and ports in both directions, and their limits."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.helpers import PATIENCE
from tests.links.bridge import OTHER, Link, Outcome, open_link
from trio_relay.core.port import Port, PortClosed
from trio_relay.core.probe import Silence
from trio_relay.links import tunnel as tunnel_module
from trio_relay.links.tunnel_port import MAX_BYTES, MAX_MESSAGES

PROBE = b'{"channel":"lumo:probe"}'


async def echo(port: Port, name: str) -> None:
    """Sends back what it gets, after its name."""
    await port.send(json.dumps(name).encode())
    while True:
        await port.send(await port.receive())


async def opened(link: Link, number: int, name: str = "lumo:mcp") -> None:
    """An extension connects."""
    await link.bridge.send({"type": "port/open", "portId": f"b{number}", "senderId": OTHER, "name": name})
    assert await link.bridge.frame() == {"type": "port/opened", "portId": f"b{number}"}


# -- probes of the relay


async def test_a_probe_reaches_the_bridge_and_its_response_comes_back_byte_for_byte() -> None:
    async with open_link() as link:
        asked = Outcome(link.nursery, lambda: link.tunnel.probe(OTHER, b'{"n": 1.50}', 1.5))
        assert await link.bridge.frame() == {
            "type": "probe",
            "probeId": "r1",
            "extensionId": OTHER,
            "message": {"n": 1.5},
            "timeoutMs": 1500,
        }
        await link.bridge.send(b'{"type":"probe/response","probeId":"r1","response":{"ok": true,"n":1.50}}')
        assert await asked.value() == b'{"ok": true,"n":1.50}'


@pytest.mark.parametrize("kind", [silence.value for silence in Silence])
async def test_a_probe_that_the_browser_could_not_get_answered_says_why(kind: str) -> None:
    async with open_link() as link:
        asked = Outcome(link.nursery, lambda: link.tunnel.probe(OTHER, PROBE, 5))
        await link.bridge.expect("probe")
        error = {"kind": kind, "message": "its own words"}
        await link.bridge.send({"type": "probe/response", "probeId": "r1", "error": error})
        silence = await asked.unanswered()
        assert (silence.kind.value, silence.message) == (kind, "its own words")


async def test_a_null_response_is_a_response() -> None:
    async with open_link() as link:
        asked = Outcome(link.nursery, lambda: link.tunnel.probe(OTHER, PROBE, 5))
        await link.bridge.expect("probe")
        await link.bridge.send({"type": "probe/response", "probeId": "r1", "response": None})
        assert await asked.value() == b"null"


async def test_a_probe_times_out_by_itself_and_a_late_answer_is_ignored() -> None:
    async with open_link() as link:
        asked = Outcome(link.nursery, lambda: link.tunnel.probe(OTHER, PROBE, 0.05))
        assert (await asked.unanswered()).kind is Silence.TIMEOUT
        await link.bridge.send({"type": "probe/response", "probeId": "r1", "response": 1})
        again = Outcome(link.nursery, lambda: link.tunnel.probe(OTHER, PROBE, 5))
        await link.bridge.send({"type": "probe/response", "probeId": "r2", "response": 2})
        assert await again.value() == b"2"


async def test_a_cancelled_probe_leaves_nothing_behind() -> None:
    async with open_link() as link:
        asked = Outcome(link.nursery, lambda: link.tunnel.probe(OTHER, PROBE, 5))
        await link.bridge.expect("probe")
        asked.scope.cancel()
        await asked.value()
        assert link.tunnel._asked == {}
        await link.bridge.send({"type": "probe/response", "probeId": "r1", "response": 1})
        await link.open()


@pytest.mark.parametrize("bad", ["", OTHER + "\n", OTHER.upper(), "x" * 32])
async def test_what_is_no_extension_id_is_never_sent(bad: str) -> None:
    async with open_link() as link:
        asked = Outcome(link.nursery, lambda: link.tunnel.probe(bad, PROBE, 5))
        assert (await asked.unanswered()).kind is Silence.FAILED
        assert "no extension id" in await Outcome(link.nursery, lambda: link.tunnel.open_port(bad, "p")).closed()
        assert (await link.open())[1] == "r1"  # the first frame of all


async def test_too_large_a_probe_fails_alone() -> None:
    async with open_link(max_payload=2000) as link:
        asked = Outcome(link.nursery, lambda: link.tunnel.probe(OTHER, b'"%s"' % (b"x" * 2000), 5))
        assert "too large" in (await asked.unanswered()).message
        await link.open()


# -- ports of the relay


async def test_messages_go_both_ways_in_order_until_the_other_end_closes() -> None:
    async with open_link() as link:
        port, port_id = await link.open()
        assert port.extension_id == OTHER
        await port.send(b'{"a": 1}')
        await port.send(b"[2]")
        assert [(await link.bridge.frame())["message"] for _ in range(2)] == [{"a": 1}, [2]]
        for n in range(50):
            await link.say(port_id, n)
        await link.bridge.send({"type": "port/close", "portId": port_id, "error": "its own words"})
        await link.bridge.in_step()
        assert [await port.receive() for _ in range(50)] == [b"%d" % n for n in range(50)]
        for use in (port.receive, lambda: port.send(b"1")):
            assert await Outcome(link.nursery, use).closed() == "its own words"


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        ({"type": "port/refused", "reason": "nobody there"}, "nobody there"),
        ({"type": "port/refused"}, "not there"),
        ({"type": "port/refused", "reason": 7}, "not there"),
        ({"type": "port/close", "error": "half \ud83d"}, "half \ufffd"),
    ],
)
async def test_a_port_that_is_refused_is_no_port(frame: dict[str, Any], words: str) -> None:
    async with open_link() as link:
        opening = Outcome(link.nursery, lambda: link.tunnel.open_port(OTHER, "p"))
        asked = await link.bridge.expect("port/open")
        assert asked == {"type": "port/open", "portId": "r1", "extensionId": OTHER, "name": "p"}
        await link.bridge.send(json.dumps(frame | {"portId": "r1"}).encode())
        assert words in await opening.closed()


async def test_a_port_refused_after_it_was_opened_is_closed() -> None:
    """Browsers say late that nobody is there."""
    async with open_link() as link:
        port, port_id = await link.open()
        waiting = Outcome(link.nursery, port.receive)
        await link.bridge.send({"type": "port/refused", "portId": port_id, "reason": "nobody there"})
        assert await waiting.closed() == "nobody there"


async def test_a_port_that_nobody_opens_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_module, "OPEN_S", 0.05)
    async with open_link() as link:
        assert "did not open" in await Outcome(link.nursery, lambda: link.tunnel.open_port(OTHER, "p")).closed()
        await link.bridge.expect("port/open")
        assert (await link.bridge.frame())["type"] == "port/close"


async def test_a_port_whose_opener_was_cancelled_is_closed() -> None:
    async with open_link() as link:
        opening = Outcome(link.nursery, lambda: link.tunnel.open_port(OTHER, "p"))
        await link.bridge.expect("port/open")
        opening.scope.cancel()
        assert await link.bridge.frame() == {"type": "port/close", "portId": "r1"}
        await link.bridge.send({"type": "port/opened", "portId": "r1"})
        await link.say("r1", "late")
        assert (await link.open())[1] == "r2"
        assert list(link.tunnel._ports) == ["r2"]


async def test_a_cancelled_receive_loses_nothing() -> None:
    async with open_link() as link:
        port, port_id = await link.open()
        waiting = Outcome(link.nursery, port.receive)
        await link.bridge.in_step()
        waiting.scope.cancel()
        await waiting.value()
        await link.say(port_id, "kept")
        assert await Outcome(link.nursery, port.receive).value() == b'"kept"'


async def test_closing_wakes_the_reader_drops_what_waits_and_is_said_once() -> None:
    async with open_link() as link:
        port, port_id = await link.open()
        waiting = Outcome(link.nursery, port.receive)
        await link.bridge.in_step()
        port.close("a fault")
        port.close()
        assert await waiting.closed() == "a fault"
        assert await link.bridge.frame() == {"type": "port/close", "portId": port_id, "error": "a fault"}
        await link.say(port_id, "late")
        second, _ = await link.open()  # the next frame: nothing more was said of the first
        second.close()
        assert "error" not in await link.bridge.expect("port/close")


async def test_a_message_over_the_limit_costs_its_port_only() -> None:
    async with open_link(max_payload=2000) as link:
        (ours, ours_id), (theirs, theirs_id), (bystander, bystander_id) = [await link.open() for _ in range(3)]
        assert "larger" in await Outcome(link.nursery, lambda: ours.send(b'"%s"' % (b"x" * 2000))).closed()
        assert (await link.bridge.expect("port/close"))["portId"] == ours_id
        await link.say(theirs_id, "x" * 2000)
        assert (await link.bridge.expect("port/close"))["portId"] == theirs_id
        assert "limit" in await Outcome(link.nursery, theirs.receive).closed()
        await link.say(bystander_id, "x" * 1900)
        assert len(await bystander.receive()) == 1902


@pytest.mark.parametrize("message", [b"[" * 5000 + b"]" * 5000, b"{", b"nul"])
async def test_a_message_that_cannot_be_read_costs_its_port_only(message: bytes) -> None:
    async with open_link() as link:
        (port, port_id), (bystander, bystander_id) = [await link.open() for _ in range(2)]
        await link.bridge.send(b'{"type":"port/message","portId":"%s","message":%s}' % (port_id.encode(), message))
        assert (await link.bridge.frame())["portId"] == port_id
        assert "cannot be passed on" in await Outcome(link.nursery, port.receive).closed()
        await link.say(bystander_id, 1)
        assert await bystander.receive() == b"1"


async def test_frames_for_ports_that_are_not_there_and_unknown_ones_are_ignored() -> None:
    async with open_link() as link:
        for frame in (
            {"type": "port/message", "portId": "r99", "message": 1},
            {"type": "port/message", "portId": "b99", "message": 1},
            {"type": "port/close", "portId": "r99"},
            {"type": "port/refused", "portId": "r99"},
            {"type": "port/opened", "portId": "r99"},
            {"type": "probe/response", "probeId": "r99"},
            {"type": "pong"},
            {"type": "news"},
            {"type": "port/open", "portId": "b1", "senderId": "nobody", "name": "p"},
        ):
            await link.bridge.send(frame)
        await link.open()


# -- bounded queues


@pytest.mark.parametrize("size", [1, 100_000])
async def test_a_port_that_nobody_reads_is_closed_and_the_others_go_on(size: int) -> None:
    async with open_link() as link:
        (lazy, lazy_id), (busy, busy_id) = [await link.open() for _ in range(2)]
        for _ in range(min(MAX_MESSAGES, MAX_BYTES // size) + 1):
            await link.say(lazy_id, "x" * size)
            if size > 1:
                await link.say(busy_id, 1)
                assert await busy.receive() == b"1"
        closed = await link.bridge.expect("port/close")
        assert (closed["portId"], "not taken" in closed["error"]) == (lazy_id, True)
        assert "not taken" in await Outcome(link.nursery, lazy.receive).closed()
        await link.say(busy_id, 2)
        assert await busy.receive() == b"2"


async def test_a_full_queue_is_no_fault_while_it_is_read() -> None:
    async with open_link() as link:
        port, port_id = await link.open()
        reader = Outcome(link.nursery, lambda: take(port, 3 * MAX_MESSAGES))
        for n in range(3 * MAX_MESSAGES):
            await link.say(port_id, n)
        assert await reader.value() == [b"%d" % n for n in range(3 * MAX_MESSAGES)]


async def take(port: Port, count: int) -> list[bytes]:
    return [await port.receive() for _ in range(count)]


# -- what extensions begin


async def test_a_probe_of_an_extension_is_answered_with_its_sender_known() -> None:
    async def on_probe(sender: str, message: bytes) -> bytes:
        return json.dumps([sender, json.loads(message)]).encode()

    async with open_link(on_probe) as link:
        await link.bridge.send({"type": "probe", "probeId": "b1", "senderId": OTHER, "message": {"q": 1}})
        answer = await link.bridge.frame()
        assert answer == {"type": "probe/response", "probeId": "b1", "response": [OTHER, {"q": 1}]}


async def test_an_answer_that_raises_or_is_too_large_costs_that_probe_only(caplog: pytest.LogCaptureFixture) -> None:
    async def on_probe(sender: str, message: bytes) -> bytes:
        if message == b'"raise"':
            raise RuntimeError("a fault of the test")
        return message if message == b"1" else b'"%s"' % (b"x" * 2000)

    async with open_link(on_probe, max_payload=2000) as link:
        for number, message in enumerate(["raise", "large"]):
            await link.bridge.send({"type": "probe", "probeId": f"b{number}", "senderId": OTHER, "message": message})
            assert (await link.bridge.frame())["error"]["kind"] == "failed"
        assert "a fault of the test" in caplog.text
        await link.bridge.send({"type": "probe", "probeId": "b9", "senderId": OTHER, "message": 1})
        assert (await link.bridge.frame())["response"] == 1


async def test_a_slow_answer_holds_up_nobody() -> None:
    go = trio.Event()

    async def on_probe(sender: str, message: bytes) -> bytes:
        if message == b'"slow"':
            await go.wait()
        return message

    async with open_link(on_probe) as link:
        for number, message in enumerate(["slow", "quick"]):
            await link.bridge.send({"type": "probe", "probeId": f"b{number}", "senderId": OTHER, "message": message})
        assert (await link.bridge.frame())["response"] == "quick"
        go.set()
        assert (await link.bridge.frame())["response"] == "slow"


async def test_a_hundred_ports_at_once_each_have_their_own_echo() -> None:
    async with open_link(on_port=echo) as link:
        for number in range(100):
            await link.bridge.send(
                {"type": "port/open", "portId": f"b{number}", "senderId": OTHER, "name": f"name {number}"}
            )
            await link.say(f"b{number}", number)
        heard: dict[str, list[Any]] = {}
        with trio.fail_after(PATIENCE):
            while sum(map(len, heard.values())) < 300:
                frame = await link.bridge.frame()
                heard.setdefault(frame["portId"], []).append(frame.get("message", frame["type"]))
        assert heard == {f"b{n}": ["port/opened", f"name {n}", n] for n in range(100)}


async def test_a_port_is_closed_when_its_handler_returns() -> None:
    async def on_port(port: Port, name: str) -> None:
        await port.receive()

    async with open_link(on_port=on_port) as link:
        await opened(link, 1)
        await link.say("b1", "go")
        assert await link.bridge.frame() == {"type": "port/close", "portId": "b1"}


async def test_a_handler_that_raises_costs_its_port_only(caplog: pytest.LogCaptureFixture) -> None:
    async def on_port(port: Port, name: str) -> None:
        if name == "bad":
            raise RuntimeError("a fault of the test")
        await echo(port, name)

    async with open_link(on_port=on_port) as link:
        await opened(link, 1, "good")
        assert (await link.bridge.frame())["message"] == "good"
        await opened(link, 2, "bad")
        assert "error" in await link.bridge.expect("port/close")
        await link.say("b1", "still here")
        assert (await link.bridge.frame())["message"] == "still here"
    assert "a fault of the test" in caplog.text


async def test_a_handler_that_finds_its_port_closed_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    ended = trio.Event()

    async def on_port(port: Port, name: str) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(port.receive)
                nursery.start_soon(port.receive)
        finally:
            ended.set()

    async with open_link(on_port=on_port) as link:
        await opened(link, 1)
        await link.bridge.send({"type": "port/close", "portId": "b1"})
        with trio.fail_after(PATIENCE):
            await ended.wait()
        await link.open()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_without_callbacks_extensions_are_refused() -> None:
    async with open_link() as link:
        await link.bridge.send({"type": "port/open", "portId": "b1", "senderId": OTHER, "name": "p"})
        assert (await link.bridge.frame())["type"] == "port/refused"
        await link.bridge.send({"type": "probe", "probeId": "b1", "senderId": OTHER, "message": 1})
        assert (await link.bridge.frame())["error"]["kind"] == "failed"


async def test_more_ports_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnel_module, "MAX_PORTS", 2)

    async def on_port(port: Port, name: str) -> None:
        with pytest.raises(PortClosed):
            await port.receive()

    async with open_link(on_port=on_port) as link:
        await link.open()  # the relay's own do not count
        await opened(link, 1)
        await opened(link, 2)
        await link.bridge.send({"type": "port/open", "portId": "b3", "senderId": OTHER, "name": "p"})
        assert (await link.bridge.frame())["type"] == "port/refused"
        await link.bridge.send({"type": "port/close", "portId": "b1"})
        await opened(link, 4)


async def test_a_port_id_that_is_used_twice_is_nobodys() -> None:
    async with open_link(on_port=echo) as link:
        await opened(link, 1)
        await link.bridge.send({"type": "port/open", "portId": "b1", "senderId": "a" * 32, "name": "p"})
        while (frame := await link.bridge.frame())["type"] != "port/close":
            assert frame["message"] == "lumo:mcp"
        assert "error" in frame
