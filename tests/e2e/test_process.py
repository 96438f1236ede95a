"""The process: lines through real pipes, how it begins and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

import pytest
import trio

from tests.e2e.setting import pipes, port_is_free, started
from tests.helpers import (
    EXTENSION,
    MODERN_META,
    LineClient,
    RelayProcess,
    client_frame,
    free_port,
    open_raw,
    open_relay_process,
    open_tab,
    text_result,
)
from tests.surface.setting import good_tab, response, still_fine, text_of
from tests.surface.test_lines import NO_REQUESTS

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="POSIX descriptors and signals")

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def request(number: int, method: str, params: object = None) -> bytes:
    body: dict[str, object] = {"jsonrpc": "2.0", "id": number, "method": method}
    return json.dumps(body if params is None else body | {"params": params}).encode() + b"\n"


# -- one process for tables of lines


async def test_a_process_survives_every_bad_line(relay: RelayProcess) -> None:
    """A04, A05, A07, A08, A10, A11 through real pipes, where a line is first tried as one immediate write."""
    async with good_tab(relay.port):
        await relay.wait_tools("good")
        for line, code in NO_REQUESTS:
            await relay.write(line)
            assert (await response(relay))["error"]["code"] == code
        await still_fine(relay)
    await relay.close_stdin()
    assert await relay.wait() == 0


async def test_long_lines_in_small_writes_and_a_line_above_the_limit(relay: RelayProcess) -> None:
    """A22: 4 KB at a time; above 20,000,000 bytes (twice --max-payload) one error, then in step at the next LF."""
    async with good_tab(relay.port) as tab:
        await relay.wait_tools("good")
        tab.seen.clear()
        for size in (65_535, 65_536, 70_000, 1_500_000, 9_900_000):
            head = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"good","arguments":{"a":"'
            line = head + b"x" * (size - len(head) - 4) + b'"}}}'
            assert len(line) == size
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_write_in_pieces, relay, line + b"\n", 4096)
                answer = await relay.answer_to(5)
            assert len(json.loads(text_of(answer["result"]))["a"]) == size - len(head) - 4
        too_long = b'{"jsonrpc":"2.0","id":6,"method":"ping","x":"' + b"x" * 20_000_000 + b'"}\n'
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write_in_pieces, relay, too_long, 65_536)
            answer = await response(relay)
        assert answer["id"] is None
        assert answer["error"]["code"] == -32600
        assert "20000000" in answer["error"]["message"]
        exact = b'{"jsonrpc":"2.0","id":7,"method":"ping"}'
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_write_in_pieces, relay, exact + b" " * (20_000_000 - len(exact)) + b"\n", 65_536)
            assert (await relay.answer_to(7))["result"] == {}
        await still_fine(relay)


async def _write_in_pieces(relay: RelayProcess, data: bytes, size: int) -> None:
    assert relay.process.stdin is not None
    for at in range(0, len(data), size):
        await relay.process.stdin.send_all(data[at : at + size])


# -- leaving


@pytest.mark.parametrize("how", ["EOF", "SIGTERM"])
async def test_calls_in_flight_finish_or_are_told_before_it_leaves(how: str) -> None:
    """WIRE 7: one call finishes while it leaves, one never does: both are answered, the tab sees 1001, exit 0."""
    async with open_relay_process() as relay:
        await relay.initialize()
        async with open_tab(relay.port) as tab:
            await tab.hello()
            await tab.offer("quick", "never")
            await relay.wait_tools("quick", "never")
            never = await relay.send_request("tools/call", {"name": "never", "arguments": {}})
            await tab.expect("invoke")
            quick = await relay.send_request("tools/call", {"name": "quick", "arguments": {}})
            invoke = await tab.expect("invoke")
            if how == "EOF":
                await relay.close_stdin()
            else:
                relay.process.send_signal(signal.SIGTERM)
                await relay.logged("leaving")
            await tab.answer(invoke, text_result("done"))
            assert text_of((await relay.answer_to(quick))["result"]) == "done"
            result = (await relay.answer_to(never))["result"]
            assert result["isError"] is True
            closed = await tab.closed()
            assert closed.code == 1001
            assert any(frame["type"] == "cancel" for frame in tab.seen)
        assert await relay.raw_line() == b""
        assert await relay.wait(5) == 0
        assert port_is_free(relay.port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_ends_an_idle_relay_at_once_whatever_a_tab_does(
    number: signal.Signals,
) -> None:
    """A18: stdin open and silent, a tab that never finishes its close handshake."""
    async with open_relay_process() as relay:
        await relay.initialize()
        async with open_tab(relay.port) as tab, open_raw(relay.port) as stuck:
            await tab.hello("t1")
            await stuck.upgrade("Sec-WebSocket-Protocol: webmcp.v1", f"Origin: {EXTENSION}")
            await stuck.send(client_frame(b'{"type":"hello","tabId":"stuck"}'))
            while (frame := await stuck.frame()) is not None and b"hello/accepted" not in frame[1]:
                pass
            relay.process.send_signal(number)
            assert await stuck.close_code() == 1001
            assert (await tab.closed()).code == 1001
            assert await relay.wait(2) == 0
        assert port_is_free(relay.port)
        assert f"received {number.name}" in relay.stderr


async def test_a_second_signal_ends_it_without_waiting_for_calls() -> None:
    async with open_relay_process() as relay:
        await relay.initialize()
        async with open_tab(relay.port) as tab:
            await tab.hello()
            await tab.offer("never")
            await relay.wait_tools("never")
            await relay.send_request("tools/call", {"name": "never", "arguments": {}})
            await tab.expect("invoke")
            relay.process.send_signal(signal.SIGTERM)
            await relay.logged("leaving")
            relay.process.send_signal(signal.SIGTERM)
            assert (await tab.closed()).code == 1001
        assert await relay.wait(5) == 0


async def test_a_probing_client_starts_it_twice_and_the_port_is_handed_over() -> None:
    """A TypeScript client asks a sibling once, then ends it: stdin closed and SIGTERM at once."""
    port = free_port()
    discover = request(1, "server/discover", {"_meta": MODERN_META})
    async with open_relay_process(port=port, wait=False) as probe:
        await probe.write(discover.rstrip())
        assert "result" in await probe.answer_to(1)
        await probe.close_stdin()
        probe.process.send_signal(signal.SIGTERM)
        assert await probe.wait(5) == 0
    async with open_relay_process(port=port) as relay:
        relay.modern = True
        assert "result" in await relay.request("tools/list", {})


async def test_a_signal_while_it_starts_is_no_crash() -> None:
    async with open_relay_process() as relay:  # it listens before the SDK is imported
        relay.process.send_signal(signal.SIGTERM)
        assert await relay.wait(5) == 0
        await relay.logged("leaving")


async def test_without_a_client_it_ends_and_frees_the_port() -> None:
    """A17: stdin from the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    try:
        async with started(stdin=null, stdout=null, listening=False) as relay:
            assert await relay.wait(5) == 0
    finally:
        os.close(null)


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "trio_relay", *sys.argv[1:]])
child.wait()
"""


async def test_a_relay_whose_parent_was_killed_ends_although_its_stdin_stays_open() -> None:
    """A17: another child of the dead client keeps our stdin open."""
    async with pipes() as both:
        command = [sys.executable, "-c", PARENT]
        async with started(stdin=both.stdin, stdout=both.stdout, command=command) as relay:
            await both.client.initialize()
            async with open_tab(relay.port) as tab:
                await tab.hello()
                relay.process.send_signal(signal.SIGKILL)
                both.close_stdout()
                assert (await tab.closed()).code == 1001
            # The end of its stdout is the end of the relay, which is no child of ours.
            while await both.client.raw_line(5):
                pass
            assert port_is_free(relay.port)


@pytest.mark.parametrize("kind", ["pipe", "socket"])
@pytest.mark.parametrize("client_speaks", [False, True])
async def test_a_relay_whose_stdout_nobody_reads_ends_while_tabs_keep_sending(kind: str, client_speaks: bool) -> None:
    """A17: only the reader of stdout is gone. Node gives its children sockets, others give pipes."""
    async with pipes() as both:
        if kind == "socket":
            ours, theirs = socket.socketpair()
            reader: trio.abc.ReceiveStream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
            stdout = theirs.fileno()
        else:
            reader, stdout = both.reader, both.stdout
        client = LineClient(both.writer, reader)
        async with started(stdin=both.stdin, stdout=stdout) as relay:
            both.close_stdout()
            if kind == "socket":
                theirs.close()
            await client.initialize()
            async with open_tab(relay.port) as tab, trio.open_nursery() as nursery:
                await tab.hello()
                await tab.offer("t")
                while (await client.message()).get("method") != "notifications/tools/list_changed":
                    pass
                await client.ping()  # nothing is left to read: a socket closed with unread bytes would say so
                nursery.start_soon(_chatter, relay.port, "other")
                await reader.aclose()
                if client_speaks:
                    for line in (b"{oops\n", request(2, "tools/list"), request(3, "ping"), b"[]\n"):
                        try:
                            await both.writer.send_all(line)
                        except trio.BrokenResourceError:
                            break
                        await trio.sleep(0.02)
                assert await relay.wait(5) == 0
                nursery.cancel_scope.cancel()


async def _chatter(port: int, tab_id: str) -> None:
    """A tab that keeps sending, with nothing in it that a client would be told of."""
    from trio_relay.links.socket import Closed

    try:
        async with open_tab(port) as tab:
            await tab.hello(tab_id)
            while True:
                await tab.send({"type": "pong"})
                await trio.sleep(0.05)
    except Closed:
        pass
