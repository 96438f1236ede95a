"""Attach-or-bind over a range of ports, and life beside strangers. Taking over is in `test_promotion.py`."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.relay.ends import (
    eventually,
    is_free,
    plain_tools,
    serve_by_hand,
    silent_listener,
    talker,
    use_range,
)
from trio_relay.config import RelayConfig
from trio_relay.core.roles import Role
from trio_relay.errors import PortTaken
from trio_relay.links.peer import NotJoined, PeerLink
from trio_relay.relay.cluster import Cluster, open_cluster
from trio_relay.relay.hub import open_hub
from trio_relay.relay.ports import PortCache


def within(ports: range) -> RelayConfig:
    return RelayConfig(port=ports[0])


def place(cluster: Cluster) -> tuple[str, int]:
    info = cluster.info()
    return info["mode"], info["port"]


def role(cluster: Cluster) -> Role:
    return cluster.roles.role


def remembered(path: Path) -> int:
    port: int = json.loads(path.read_text())["port"]
    return port


async def test_on_a_quiet_range_the_first_port_is_bound_and_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = use_range(monkeypatch, 4)
    path = tmp_path / "relay-port.json"
    async with open_cluster(within(ports), PortCache(path)) as cluster:
        assert place(cluster) == ("server", ports[0])
        assert role(cluster) is Role.SERVER
        assert remembered(path) == ports[0]
        assert json.loads(path.read_text())["host"] == "127.0.0.1"
    assert role(cluster) is Role.STOPPED


async def test_a_live_relay_anywhere_in_the_range_is_joined_although_lower_ports_are_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = use_range(monkeypatch, 6)
    path = tmp_path / "relay-port.json"
    async with open_hub(RelayConfig(port=ports[4])), open_cluster(within(ports), PortCache(path)) as cluster:
        assert place(cluster) == ("client", ports[4])
        assert remembered(path) == ports[4]
        assert is_free(ports[0])


async def test_a_port_remembered_is_the_first_to_be_bound(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ports = use_range(monkeypatch, 4)
    cache = PortCache(tmp_path / "relay-port.json")
    cache.write("127.0.0.1", ports[2])
    async with open_cluster(within(ports), cache) as cluster:
        assert place(cluster) == ("server", ports[2])


async def test_a_live_relay_wins_over_a_remembered_port_that_is_free(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ports = use_range(monkeypatch, 4)
    cache = PortCache(tmp_path / "relay-port.json")
    cache.write("127.0.0.1", ports[2])
    async with open_hub(RelayConfig(port=ports[0])), open_cluster(within(ports), cache) as cluster:
        assert place(cluster) == ("client", ports[0])


async def test_the_search_begins_at_the_configured_port(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = use_range(monkeypatch, 4)
    async with open_cluster(RelayConfig(port=ports[3])) as cluster:
        assert place(cluster) == ("server", ports[3])


async def test_a_plain_relay_of_another_make_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = use_range(monkeypatch, 4)
    greet = [{"type": "server-hello", "service": "webmcp-local-relay", "version": 1}]
    async with (
        serve_by_hand(port=ports[1], greet=greet, tools=plain_tools("a")),
        open_cluster(within(ports)) as cluster,
    ):
        assert place(cluster) == ("client", ports[1])
        assert [tool.name for tool in cluster.tools()] == ["a"]


async def test_a_fixed_port_is_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = use_range(monkeypatch, 4)
    fixed = RelayConfig(port=ports[2], fixed_port=True)
    async with open_hub(RelayConfig(port=ports[0])), open_cluster(fixed) as server, open_cluster(fixed) as client:
        assert place(server) == ("server", ports[2])
        assert place(client) == ("client", ports[2])


async def test_several_started_at_once_end_with_one_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """B24, in one process."""
    ports = use_range(monkeypatch, 4)
    clusters: list[Cluster] = []

    async def start(done: trio.Event) -> None:
        async with open_cluster(within(ports)) as cluster:
            clusters.append(cluster)
            await done.wait()

    with trio.fail_after(15):
        async with trio.open_nursery() as nursery:
            done = trio.Event()
            for _ in range(8):
                nursery.start_soon(start, done)
            await eventually(lambda: len(clusters) == 8)
            assert sorted(map(place, clusters)) == [("client", ports[0])] * 7 + [("server", ports[0])]
            done.set()


@asynccontextmanager
async def a_silent_listener(port: int) -> AsyncIterator[None]:
    with silent_listener(port):
        yield


def an_http_server(port: int) -> Any:
    return talker(port, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


def another_protocol(port: int) -> Any:
    return talker(port, b"SSH-2.0-OpenSSH_9.6\r\n")


def a_greeting_in_paragraphs(port: int) -> Any:
    return talker(port, b"220 mail.example ready\r\n\r\n")


def a_flood(port: int) -> Any:
    return talker(port, b"x" * 40_000)


def headers_that_are_no_text(port: int) -> Any:
    return talker(port, b"HTTP/1.1 101 Fine\r\nUpgrade: \xff\xfe\r\nSec-WebSocket-Protocol: \xff\r\n\r\n")


def one_that_hangs_up(port: int) -> Any:
    return talker(port, b"")


def another_service(port: int) -> Any:
    return serve_by_hand(port=port, greet=[{"type": "server-hello", "service": "vite-hmr", "version": 1}])


@asynccontextmanager
async def one_that_never_closes(port: int) -> AsyncIterator[None]:
    """A WebSocket server of another service that reads nothing, so our close frame stays unanswered."""

    async def handle(stream: trio.SocketStream) -> None:
        head = (await stream.receive_some()).decode()
        key = next(line[19:] for line in head.split("\r\n") if line.lower().startswith("sec-websocket-key: "))
        accept = b64encode(sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()
        lines = ("HTTP/1.1 101 Fine", "Upgrade: websocket", "Connection: Upgrade", f"Sec-WebSocket-Accept: {accept}")
        await stream.send_all("\r\n".join((*lines, "", "")).encode() + b"\x81\x07garbage")
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        await nursery.start(partial(trio.serve_tcp, handle, port, host="127.0.0.1"))
        yield
        nursery.cancel_scope.cancel()


def an_unknown_version(port: int) -> Any:
    greet = [{"type": "server-hello", "service": "webmcp-local-relay", "version": 2}]
    return serve_by_hand(port=port, greet=greet, tools=plain_tools("a"))


def a_greeting_and_no_more(port: int) -> Any:
    return serve_by_hand(port=port, greet=[{"type": "server-hello", "service": "webmcp-local-relay", "version": 1}])


STRANGERS: dict[Callable[[int], Any], str] = {
    a_silent_listener: "it said nothing",
    an_http_server: "refused the WebSocket handshake",
    another_service: "'vite-hmr'",
    an_unknown_version: "version 2",
    one_that_never_closes: "it sent 'garbage'",
    another_protocol: "handshake",
    a_greeting_in_paragraphs: "handshake",
    a_flood: "handshake",
    headers_that_are_no_text: "handshake",
    one_that_hangs_up: "handshake",
    a_greeting_and_no_more: "it said nothing",
}


async def test_strangers_are_skipped_with_a_line_each_and_the_next_port_is_bound(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """B23."""
    caplog.set_level(logging.INFO, "trio_relay")
    ports = use_range(monkeypatch, len(STRANGERS) + 2)
    async with AsyncExitStack() as strangers:
        for port, stranger in zip(ports, STRANGERS, strict=False):
            await strangers.enter_async_context(stranger(port))
        begun = trio.current_time()
        cluster = await strangers.enter_async_context(open_cluster(within(ports)))
        assert trio.current_time() - begun < 4, "all of them are looked at together"
        assert place(cluster) == ("server", ports[len(STRANGERS)])
        lines = [record.getMessage() for record in caplog.records if "is skipped" in record.getMessage()]
        assert len(lines) == len(STRANGERS)
        for port, line, came in zip(ports, lines, STRANGERS.values(), strict=False):
            assert line.startswith(f"port {port} is skipped: expected a WebMCP relay, but "), line
            assert came in line
            assert "\n" not in line


async def test_a_silent_port_that_was_remembered_is_given_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DECISION 2."""
    monkeypatch.setattr("trio_relay.relay.cluster.SILENT_S", 0.05)
    monkeypatch.setattr("trio_relay.relay.cluster.CACHED_SILENT_S", 0.4)
    ports = use_range(monkeypatch, 3)
    cache = PortCache(tmp_path / "relay-port.json")
    cache.write("127.0.0.1", ports[1])
    with silent_listener(ports[1]):
        begun = trio.current_time()
        async with open_cluster(within(ports), cache) as cluster:
            assert trio.current_time() - begun >= 0.4
            assert place(cluster) == ("server", ports[0])


async def test_when_strangers_have_every_port_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """B24."""
    monkeypatch.setattr("trio_relay.relay.cluster.SILENT_S", 0.1)
    ports = use_range(monkeypatch, 3)
    async with AsyncExitStack() as strangers:
        for port in ports:
            strangers.enter_context(silent_listener(port))
        with pytest.raises(PortTaken) as caught:
            async with open_cluster(within(ports)):
                pass
    line = str(caught.value)
    assert "\n" not in line
    assert f"{ports[0]} to {ports[2]}" in line
    assert "--port" in line
    assert "it said nothing" in line


@pytest.mark.parametrize("stranger", [a_silent_listener, an_http_server, another_service, an_unknown_version])
async def test_a_fixed_port_a_stranger_has_is_an_error_and_no_other_is_tried(
    monkeypatch: pytest.MonkeyPatch, stranger: Callable[[int], Any]
) -> None:
    monkeypatch.setattr("trio_relay.relay.cluster.SILENT_S", 0.1)
    ports = use_range(monkeypatch, 2)
    async with stranger(ports[1]):
        with pytest.raises(PortTaken) as caught:
            async with open_cluster(RelayConfig(port=ports[1], fixed_port=True)):
                pass
        assert str(ports[1]) in str(caught.value)
        assert STRANGERS[stranger] in str(caught.value)
        assert "--port" in str(caught.value)
        assert is_free(ports[0])


async def test_an_error_in_the_block_comes_out_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = use_range(monkeypatch, 1)
    with pytest.raises(LookupError, match="mine"):
        async with open_cluster(within(ports)):
            raise LookupError("mine")


def waiting_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_leaving_as_server_leaves_no_task_and_frees_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = use_range(monkeypatch, 1)
    before = waiting_tasks()
    async with open_cluster(within(ports)) as cluster:
        assert role(cluster) is Role.SERVER
        assert not is_free(ports[0])
    assert role(cluster) is Role.STOPPED
    assert waiting_tasks() == before
    assert is_free(ports[0])


async def test_leaving_as_client_leaves_no_task_and_closes_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = use_range(monkeypatch, 1)
    async with serve_by_hand(port=ports[0], tools=plain_tools("a")) as server:
        before = waiting_tasks()
        async with open_cluster(within(ports)) as cluster:
            assert role(cluster) is Role.CLIENT
        assert role(cluster) is Role.STOPPED
        await eventually(lambda: waiting_tasks() == before)
        with pytest.raises(Exception, match="1000"):
            await server.send({})


async def test_leaving_while_promoting_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = use_range(monkeypatch, 1)
    before = waiting_tasks()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(serve_by_hand(port=ports[0], tools=plain_tools("a")))
        async with open_cluster(within(ports)) as cluster:
            monkeypatch.setattr("trio_relay.relay.cluster.bind", _no_port)
            monkeypatch.setattr("trio_relay.relay.cluster.join", _no_relay)
            await server.vanish()
            await eventually(lambda: role(cluster) is Role.PROMOTING)
        assert role(cluster) is Role.STOPPED
    await eventually(lambda: waiting_tasks() == before)


async def test_leaving_while_joining_leaves_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = use_range(monkeypatch, 2)
    before = waiting_tasks()
    with silent_listener(ports[0]), silent_listener(ports[1]):
        with trio.move_on_after(0.1):
            async with open_cluster(within(ports)):
                raise AssertionError("nobody answers")
        assert waiting_tasks() == before


async def _no_port(host: str, port: int) -> Any:
    raise PortTaken("taken")


def _no_relay(*_: object, **__: object) -> AbstractAsyncContextManager[PeerLink]:
    raise NotJoined("nobody listens", free=True)


async def test_where_closed_ports_refuse_slowly_a_free_one_is_known_without_connecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio_relay.relay.cluster.REFUSES_SLOWLY", True)
    ports = use_range(monkeypatch, 3)
    async with open_cluster(within(ports)) as first, open_cluster(within(ports)) as second:
        assert (role(first), role(second)) == (Role.SERVER, Role.CLIENT)


async def test_a_server_that_says_only_tools_gives_no_row_of_its_own() -> None:
    """What stands for an unknown source inside is no tab for a client."""
    only = {"type": "relay/tools", "tools": [{"name": "a"}]}
    async with (
        serve_by_hand(tools=only) as server,
        open_cluster(RelayConfig(port=server.port, fixed_port=True)) as cluster,
    ):
        assert [tool.name for tool in cluster.tools()] == ["a"]
        assert cluster.sources() == []


async def test_a_relay_that_goes_while_a_start_looks_at_it_is_no_reason_to_fail(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    """A client that probes starts the program twice and kills the first one."""
    ports = use_range(monkeypatch, 1)
    first = trio.CancelScope()
    gone = trio.Event()

    async def short_lived(task_status: trio.TaskStatus[None]) -> None:
        with first:
            async with open_cluster(RelayConfig(port=ports[0], fixed_port=True)):
                task_status.started()
                await trio.sleep_forever()
        gone.set()

    await nursery.start(short_lived)
    probe = Cluster._probe

    async def probe_then_lose(self: Cluster, candidates: list[int], cached: int | None) -> Any:
        verdicts = await probe(self, candidates, cached)
        first.cancel()
        await gone.wait()
        return verdicts

    monkeypatch.setattr(Cluster, "_probe", probe_then_lose)
    with trio.fail_after(10):
        async with open_cluster(RelayConfig(port=ports[0], fixed_port=True)) as second:
            assert role(second) is Role.SERVER
