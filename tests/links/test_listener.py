"""The port: who may open a WebSocket, under which name, and what happens to those who speak something else."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio

from tests.helpers import EXTENSION, PATIENCE, RawSocket, client_frame, open_raw, open_tab
from tests.hubs import next_json
from trio_relay.config import RelayConfig
from trio_relay.errors import CannotListen, PortTaken
from trio_relay.links import socket as socket_module
from trio_relay.links.listener import bind, host_allowed, is_free, port_of
from trio_relay.relay.hub import Hub, open_hub


@pytest.fixture
async def raw(hub: Hub) -> AsyncIterator[RawSocket]:
    async with open_raw(hub.port) as raw:
        yield raw


async def until_closed(raw: RawSocket) -> bytes:
    """All bytes until the relay closes the connection."""
    received = b""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                data = await raw.stream.receive_some(65_536)
            except trio.BrokenResourceError:
                return received
            if not data:
                return received
            received += data


def assert_quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing a stranger sends is an error of ours."""
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def assert_serves(hub: Hub) -> None:
    async with open_tab(hub.port) as tab:
        await tab.hello()


# -- HTTP

GOOD = {
    "Host": "127.0.0.1",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
}


def request(line: str = "GET / HTTP/1.1", **changes: str | None) -> bytes:
    headers = GOOD | {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [line, *(f"{name}: {value}" for name, value in headers.items() if value is not None), "", ""]
    return "\r\n".join(lines).encode()


STRANGERS: dict[str, tuple[bytes, bytes]] = {
    "a browser's visit": (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"400"),
    "POST": (request("POST / HTTP/1.1"), b"400"),
    "POST with a body": (request("POST / HTTP/1.1", Content_Length="5") + b"hello", b"400"),
    "HTTP/1.0": (b"GET / HTTP/1.0\r\n\r\n", b"400"),
    "no Upgrade": (request(Upgrade=None), b"400"),
    "another Upgrade": (request(Upgrade="h2c"), b"400"),
    "no Connection": (request(Connection=None), b"400"),
    "no key": (request(Sec_WebSocket_Key=None), b"400"),
    "no version": (request(Sec_WebSocket_Version=None), b"400"),
    "version 8": (request(Sec_WebSocket_Version="8"), b"426"),
    "no Host": (request(Host=None), b"400"),
    "a Host that is no text": (request().replace(b"Host: 127.0.0.1", b"Host: \xff\xfe"), b"400"),
    "a subprotocol that is no text": (
        request(Sec_WebSocket_Protocol="x").replace(b"Protocol: x", b"Protocol: \xff"),
        b"400",
    ),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500) + b"\r\n\r\n", b"400"),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", b"400"),
    "garbage": (b"\xff\x00\xfe" * 100 + b"\r\n\r\n", b"400"),
    "header without a colon": (b"GET / HTTP/1.1\r\nHost: x\r\noops\r\n\r\n", b"400"),
    "huge header": (request(Cookie="x" * 200_000), b"400"),
    "endless line": (b"x" * 300_000, b"400"),
    "100,000 headers": (request(Cookie="a" + "\r\nA: b" * 100_000), b"400"),
}


@pytest.mark.parametrize("name", STRANGERS)
async def test_who_speaks_something_else_is_told_so_and_dropped(
    name: str, hub: Hub, raw: RawSocket, caplog: pytest.LogCaptureFixture
) -> None:
    data, status = STRANGERS[name]
    with suppress(trio.BrokenResourceError):  # of the long ones not all is read
        await raw.send(data)
    answer = await until_closed(raw)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 " + status)
    if len(data) < 10_000:  # who sends more may see a reset instead
        assert answer
    await assert_serves(hub)
    assert_quiet(caplog)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", request()[:-2]])
async def test_who_never_finishes_the_request_is_dropped(
    sent: bytes, hub: Hub, raw: RawSocket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket_module, "HANDSHAKE_S", 0.05)
    if sent:
        await raw.send(sent)
    async with open_raw(hub.port) as other:  # accepted under the shorter limit for certain
        await other.send(sent or b"G")
        await until_closed(other)
    await assert_serves(hub)
    assert_quiet(caplog)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", request()[:-2]])
async def test_who_hangs_up_before_the_end_of_the_request_is_forgotten(
    sent: bytes, hub: Hub, raw: RawSocket, caplog: pytest.LogCaptureFixture
) -> None:
    if sent:
        await raw.send(sent)
    await raw.stream.send_eof()
    await until_closed(raw)
    await assert_serves(hub)
    assert_quiet(caplog)


async def test_a_request_in_single_bytes_is_served(raw: RawSocket) -> None:
    for byte in request(Origin=EXTENSION, Sec_WebSocket_Protocol="webmcp.v1"):
        await raw.send(bytes([byte]))
    assert "101" in await raw.upgrade_answer()
    assert await next_json(raw, "server-hello")


async def test_frames_in_the_same_packet_as_the_request_are_read(raw: RawSocket) -> None:
    """A program need not wait for our answer before it says hello."""
    await raw.send(request(Origin=EXTENSION) + client_frame(b'{"type":"hello","tabId":"t1"}'))
    assert "101" in await raw.upgrade_answer()
    await next_json(raw, "hello/accepted")


async def test_the_path_does_not_matter(raw: RawSocket) -> None:
    await raw.send(request("GET /some/where?x=1 HTTP/1.1", Origin=EXTENSION))
    assert "101" in await raw.upgrade_answer()


# -- subprotocols

BROWSER, DISCOVERY, RELAY = "webmcp.v1", "webmcp-discovery.v1", "webmcp-relay.v1"


@pytest.mark.parametrize(
    ("lines", "echoed"),
    [
        ([], None),
        (["foo"], None),
        (["foo, bar"], None),
        ([BROWSER], BROWSER),
        ([DISCOVERY], DISCOVERY),
        ([RELAY], RELAY),
        ([f"foo, {BROWSER}"], BROWSER),
        ([f"foo,{BROWSER}"], BROWSER),
        ([f"{DISCOVERY}, {BROWSER}"], DISCOVERY),
        ([f"{BROWSER}, {DISCOVERY}"], BROWSER),
        ([f"{RELAY}, {BROWSER}"], RELAY),
        ([f"{BROWSER}, {RELAY}"], BROWSER),
        (["foo", BROWSER], BROWSER),
        ([BROWSER, "foo"], BROWSER),
        ([RELAY, BROWSER], RELAY),
        ([BROWSER, RELAY], BROWSER),
        ([BROWSER, BROWSER], BROWSER),
        ([BROWSER.upper()], None),
        ([f"{BROWSER}x"], None),
        ([""], None),
        ([","], None),
    ],
)
async def test_one_offered_subprotocol_is_echoed_or_none(raw: RawSocket, lines: list[str], echoed: str | None) -> None:
    """E07: the first match in the client's order; the role follows the echoed value."""
    head = await raw.upgrade(*(f"Sec-WebSocket-Protocol: {line}" for line in lines))
    assert head.startswith("HTTP/1.1 101 ")
    answered = [line.partition(":")[2].strip() for line in head.splitlines() if "protocol:" in line.lower()]
    assert answered == ([] if echoed is None else [echoed])
    if echoed == RELAY:
        # A relay is not greeted; it asks.
        await raw.send(client_frame(b'{"type":"relay/list-tools"}'))
    first = await raw.frame()
    assert first is not None
    assert (b'"relay/tools"' if echoed == RELAY else b'"server-hello"') in first[1]


# -- who may connect


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        *((host, True) for host in ("127.0.0.1", "127.0.0.1:9333", "localhost", "LOCALHOST:9333", "[::1]", "[::1]:1")),
        *((host, True) for host in ("127.0.0.2", "127.255.255.254:80")),
        *((host, False) for host in ("evil.example", "evil.example:9333", "127.0.0.1.evil.example", "localhost.evil")),
        *((host, False) for host in ("10.0.0.1", "127.0.0", "127.0.0.1.1", "127.0.0.256", "[::2]", "0.0.0.0", "")),
        *((host, False) for host in ("evil.example#127.0.0.1", "127.0.0.1evil", "xlocalhost")),
    ],
)
async def test_a_foreign_host_is_refused_before_any_data(raw: RawSocket, host: str, allowed: bool) -> None:
    """B17: a web page whose own name resolves to this machine (DNS rebinding) gets 403."""
    head = await raw.upgrade(f"Origin: {EXTENSION}", host=host)
    if allowed:
        assert head.startswith("HTTP/1.1 101 ")
    else:
        assert head.startswith(("HTTP/1.1 403 ", "HTTP/1.1 400 "))
        assert b"server-hello" not in await until_closed(raw)


def test_the_configured_host_is_allowed() -> None:
    assert host_allowed("relay.internal:9333", "Relay.internal")
    assert not host_allowed("other.internal:9333", "relay.internal")


@pytest.mark.parametrize("origin", [EXTENSION, "https://evil.example", "null", ""])
async def test_the_relay_protocol_is_not_for_web_pages(raw: RawSocket, origin: str) -> None:
    """B17: any Origin at all shows a browser."""
    await raw.upgrade(f"Origin: {origin}", f"Sec-WebSocket-Protocol: {RELAY}")
    frame = await raw.frame()
    assert frame is not None
    assert frame[0] == 8
    assert frame[1][:2] == (1008).to_bytes(2, "big")


# -- binding


async def test_a_taken_port_is_one_clear_line() -> None:
    """B24, the part of one port."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"^port {port} on 127.0.0.1 is used by another program.*--port$") as caught:
            async with open_hub(RelayConfig(port=port)):
                pytest.fail("bound")
        assert "\n" not in str(caught.value)


async def test_two_hubs_cannot_have_one_port(hub: Hub) -> None:
    with pytest.raises(PortTaken):
        async with open_hub(RelayConfig(port=hub.port)):
            pytest.fail("bound")
    await assert_serves(hub)


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
async def test_an_address_that_is_not_ours_is_one_clear_line(host: str) -> None:
    with pytest.raises(CannotListen, match=rf"^cannot listen on {host} port 0: .+$") as caught:
        async with open_hub(RelayConfig(host=host, port=0)):
            pytest.fail("bound")
    assert "\n" not in str(caught.value)


async def test_the_port_is_free_again_after_the_hub() -> None:
    async with open_hub(RelayConfig(port=0)) as first:
        port = first.port
        async with open_tab(port) as tab:
            await tab.hello()
    async with open_hub(RelayConfig(port=port)) as second:
        assert second.port == port
        await assert_serves(second)


async def test_localhost_with_port_0_is_one_port() -> None:
    async with open_hub(RelayConfig(host="localhost", port=0)) as hub, open_tab(hub.port) as tab:
        await tab.hello()
        assert tab.seen[0]["port"] == hub.port
        assert tab.seen[0]["host"] == "localhost"


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_ipv6_loopback_is_served() -> None:
    async with open_hub(RelayConfig(host="::1", port=0)) as hub:
        stream = await trio.open_tcp_stream("::1", hub.port)
        async with stream:
            raw = RawSocket(stream)
            assert "101" in await raw.upgrade(f"Origin: {EXTENSION}", host=f"[::1]:{hub.port}")
            assert (await next_json(raw, "server-hello"))["host"] == "::1"


async def test_whether_a_port_is_free_is_told_without_keeping_it() -> None:
    (listener,) = await bind("127.0.0.1", 0)
    port = port_of([listener])
    assert not is_free("127.0.0.1", port)
    await listener.aclose()
    assert is_free("127.0.0.1", port)
    assert is_free("127.0.0.1", port)
