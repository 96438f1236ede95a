"""What the process does with its descriptors and surroundings: pipes, files, terminals, closed ones, environment."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import tty
from pathlib import Path

import pytest
import trio

from tests.e2e.setting import Pipes, pipes, started
from tests.helpers import (
    PATIENCE,
    LineClient,
    RelayProcess,
    free_port,
    open_relay_process,
    open_tab,
    text_result,
    wait_for_port,
)
from tests.surface.setting import good_tab, response, still_fine, text_of
from tests.surface.test_lines import NO_REQUESTS

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="POSIX descriptors and signals")

INITIALIZE = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}


def request(number: int, method: str, params: object = None) -> bytes:
    body: dict[str, object] = {"jsonrpc": "2.0", "id": number, "method": method}
    return json.dumps(body if params is None else body | {"params": params}).encode() + b"\n"


# -- descriptors


async def test_requests_from_a_file_are_all_answered_into_a_file(tmp_path: Path) -> None:
    """`trio-relay < requests > answers` loses no reply; nor does `cat requests | trio-relay`."""
    lines = [request(0, "initialize", INITIALIZE), b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n']
    for number in range(1, 301):
        kind = number % 4
        if kind == 0:
            lines.append(request(number, "ping"))
        elif kind == 1:
            lines.append(request(number, "tools/list", {}))
        else:
            task = {"task": {"ttl": 1}} if kind == 3 else {}
            lines.append(request(number, "tools/call", {"name": "webmcp_list_sources", **task}))
    data = b"".join(lines).rstrip()  # the last line has no LF
    (tmp_path / "requests").write_bytes(data)
    answers = tmp_path / "answers"
    with (tmp_path / "requests").open("rb") as stdin, answers.open("wb") as stdout:
        async with started(stdin=stdin.fileno(), stdout=stdout.fileno(), listening=False) as relay:
            assert await relay.wait() == 0
    got = [json.loads(line) for line in answers.read_bytes().splitlines()]
    assert sorted(message["id"] for message in got) == list(range(301))
    assert all("result" in message for message in got)
    async with pipes() as both, started(stdin=both.stdin, stdout=both.stdout, listening=False) as relay:
        both.close_stdout()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_and_close, both, data)
            ids = [(await both.client.message())["id"] for _ in range(301)]
            assert await both.client.raw_line() == b""
        assert sorted(ids) == list(range(301))
        assert await relay.wait() == 0


async def _send_and_close(both: Pipes, data: bytes) -> None:
    await both.writer.send_all(data)
    await both.writer.aclose()


async def test_pipes_are_handed_back_as_they_were() -> None:
    """The flags and the size of a pipe belong to all who share it."""
    async with pipes() as both:
        before = [_state(fd) for fd in (both.stdin, both.stdout)]
        async with started(stdin=both.stdin, stdout=both.stdout) as relay:
            await both.client.initialize()
            assert [os.get_blocking(fd) for fd in (both.stdin, both.stdout)] == [False, False]
            await both.writer.aclose()
            assert await relay.wait() == 0
        assert [_state(fd) for fd in (both.stdin, both.stdout)] == before


def _state(fd: int) -> tuple[bool, int]:
    size = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) if sys.platform == "linux" else 0
    return os.get_blocking(fd), size


async def test_it_serves_a_terminal_and_hands_it_back() -> None:
    """stdin, stdout and stderr of a shell are one open file: it must not stay non-blocking."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    stream = trio.lowlevel.FdStream(ours)
    client = LineClient(stream, stream)
    try:
        async with started(stdin=theirs, stdout=theirs) as relay:
            await client.initialize()
            await still_fine_without_tabs(client)
            relay.process.send_signal(signal.SIGINT)
            assert await relay.wait(5) == 0
        assert os.get_blocking(theirs)
    finally:
        os.close(theirs)
        await stream.aclose()


async def still_fine_without_tabs(client: LineClient) -> None:
    await client.ping()
    assert (await client.call("webmcp_list_sources"))["structuredContent"] == {"count": 0, "sources": []}


@pytest.mark.parametrize(
    ("redirect", "code"),
    [(">&-", 1), ("<&-", 0), ("2>&-", 0)],
)
async def test_closed_descriptors_are_no_crash(redirect: str, code: int) -> None:
    """Without a stdout there is nobody to serve; a closed stdin is an end of file; without stderr it is silent."""
    async with pipes() as both:
        command = ["sh", "-c", f'exec "$0" -m trio_relay "$@" {redirect}', sys.executable]
        async with started(stdin=both.stdin, stdout=both.stdout, command=command, listening=False) as relay:
            both.close_stdout()
            if redirect == "2>&-":
                await both.client.initialize()
                await still_fine_without_tabs(both.client)
                await both.writer.aclose()
            assert await relay.wait() == code
            while line := await both.client.raw_line():
                json.loads(line)
        if code:
            last = relay.stderr.strip().splitlines()[-1]
            assert "MCP client" in last


async def test_a_stderr_nobody_reads_freezes_nothing() -> None:
    """Far more log lines than the pipe holds; calls go on, and it leaves in time."""
    async with pipes() as both:
        options = ("--log-level", "debug")
        async with started(*options, stdin=both.stdin, stdout=both.stdout, drain=False) as relay:
            client = both.client
            await client.initialize()
            async with good_tab(relay.port), open_tab(relay.port) as noisy:
                await client.wait_tools("good")
                await noisy.hello("noisy")
                for number in range(3_000):
                    await noisy.send({"type": "result", "callId": f"{number}-{'x' * 80}", "result": 1})
                for _ in range(20):
                    await still_fine(client)
                await noisy.offer("last")
                await client.wait_tools("good", "last")
            await both.writer.aclose()
            assert await relay.wait(5) == 0


async def test_a_large_reply_to_a_client_that_does_not_read_holds_nobody_up(relay: RelayProcess) -> None:
    """A19, quick: 5 MB wait in a full pipe; a new tab is accepted at once, and the bytes are complete afterwards."""
    text = "".join(f"{number:07}" for number in range(700_000))
    async with open_tab(relay.port) as tab:
        await tab.hello()
        await tab.offer("big")
        await relay.wait_tools("big")
        numbers = [await relay.send_request("tools/call", {"name": "big", "arguments": {}}) for _ in range(2)]
        for _ in numbers:
            await tab.answer(await tab.expect("invoke"), text_result(text))
        for number in range(5):
            async with open_tab(relay.port) as new:
                await new.hello(f"new-{number}")
        answers = [await response(relay), await response(relay)]
        assert sorted(answer["id"] for answer in answers) == numbers
        assert all(text_of(answer["result"]) == text for answer in answers)
        await relay.ping()


@pytest.mark.slow
async def test_a_client_that_reads_nothing_for_forty_seconds_loses_nothing(relay: RelayProcess) -> None:
    """A19: pings go on, no source is dropped."""
    text = "".join(f"{number:07}" for number in range(700_000))
    async with good_tab(relay.port) as good, open_tab(relay.port) as tab, trio.open_nursery() as nursery:
        await tab.hello()
        await tab.offer("big")
        await relay.wait_tools("big", "good")
        number = await relay.send_request("tools/call", {"name": "big", "arguments": {}})
        await tab.answer(await tab.expect("invoke"), text_result(text))
        good.seen.clear()
        nursery.start_soon(tab.serve)
        await trio.sleep(40)
        assert sum(frame["type"] == "ping" for frame in good.seen) >= 2
        async with open_tab(relay.port) as new:
            await new.hello("new")
        assert text_of((await relay.answer_to(number))["result"]) == text
        await relay.wait_tools("big", "good")
        await still_fine(relay)
        nursery.cancel_scope.cancel()


# -- surroundings


async def test_nothing_but_json_rpc_comes_out_in_a_developers_surroundings() -> None:
    """A24: every warning shown, development mode, HOME not there. `open_relay_process` looks for tracebacks."""
    env = {"PYTHONWARNINGS": "default", "HOME": "/nonexistent/home", "PYTHONASYNCIODEBUG": "1"}
    async with open_relay_process(env=env, python=("-X", "dev")) as relay:
        await relay.initialize()
        async with good_tab(relay.port):
            await relay.wait_tools("good")
            for line, _ in NO_REQUESTS[:12]:
                await relay.write(line)
                await response(relay)
            await still_fine(relay)
            await relay.call("webmcp_open_page", {"url": "https://a.example/"})
        await relay.close_stdin()
        while line := await relay.raw_line():
            json.loads(line)
        assert await relay.wait() == 0
        assert "Warning" not in relay.stderr, relay.stderr


async def test_a_missing_home_is_no_fault() -> None:
    """A24: HOME unset, as some clients start us."""
    env = {key: value for key, value in os.environ.items() if key in ("PATH", "LANG")}
    async with pipes() as both, started(stdin=both.stdin, stdout=both.stdout, env=env) as relay:
        await both.client.initialize()
        await still_fine_without_tabs(both.client)
        await both.writer.aclose()
        assert await relay.wait() == 0


async def test_a_port_that_is_taken_ends_it_with_one_clear_line() -> None:
    """A24: exit 1, nothing on stdout."""
    port = free_port()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_tcp, _say_nothing, port)
        await wait_for_port(port)
        async with open_relay_process("--log-level", "error", port=port, wait=False) as relay:
            assert await relay.raw_line() == b""
            assert await relay.wait() == 1
            await relay.logged("\n")
        (line,) = relay.stderr.splitlines()
        assert str(port) in line
        nursery.cancel_scope.cancel()


async def _say_nothing(stream: trio.SocketStream) -> None:
    await stream.receive_some()


async def test_what_a_library_prints_does_not_reach_the_client() -> None:
    """Descriptors 0 and 1 are not the client's while it serves: a print goes to stderr, a child reads nothing."""
    code = (
        "import logging, subprocess, sys, threading, time, os\n"
        "class Talk(logging.Filter):\n"
        "    def filter(self, record):\n"
        "        print('from print', flush=True)\n"
        "        os.write(1, b'from fd 1\\n')\n"
        "        subprocess.run(['sh', '-c', 'cat; echo from a child'])\n"
        "        logging.getLogger('trio_relay.relay.hub').removeFilter(self)\n"
        "        return True\n"
        "logging.getLogger('trio_relay.relay.hub').addFilter(Talk())\n"
        "from trio_relay.cli import main\n"
        "main()\n"
    )
    async with pipes() as both:
        command = [sys.executable, "-c", code]
        async with started(stdin=both.stdin, stdout=both.stdout, command=command) as relay:
            await both.client.initialize()
            await still_fine_without_tabs(both.client)
            await both.writer.aclose()
            both.close_stdout()
            while line := await both.client.raw_line():
                json.loads(line)
            assert await relay.wait() == 0
        for words in ("from print", "from fd 1", "from a child"):
            assert words in relay.stderr


async def test_a_tab_reset_in_the_middle_leaves_the_process_alone(relay: RelayProcess) -> None:
    async with good_tab(relay.port):
        await relay.wait_tools("good")
        for _ in range(20):
            sock = socket.create_connection(("127.0.0.1", relay.port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.send(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            sock.close()
        with trio.fail_after(PATIENCE):
            await still_fine(relay)


def test_a_pipe_too_full_to_be_made_small_again_is_handed_back_all_the_same() -> None:
    program = (
        "import os\n"
        "from trio_relay.surface.stdio import take_over_stdio\n"
        "before = os.fstat(1).st_ino\n"
        "with take_over_stdio() as (_, out):\n"
        "    os.set_blocking(out, False)\n"
        "    os.write(out, b'x' * 500_000)\n"
        "assert os.fstat(1).st_ino == before\n"
        "assert os.get_blocking(1)\n"
    )
    read, write = os.pipe()
    try:
        done = subprocess.run([sys.executable, "-c", program], stdout=write, check=False, timeout=PATIENCE)
    finally:
        os.close(read)
        os.close(write)
    assert done.returncode == 0
