"""A relay process on descriptors of the test's choice, and what is asked of it when it has ended."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing
from typing import Any

import trio

from tests.helpers import PATIENCE, LineClient, free_port, wait_for_port


class Relay:
    """A process and its port. What it wrote to stderr is in `stderr` once it has ended."""

    def __init__(self, process: trio.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.log = bytearray()

    @property
    def stderr(self) -> str:
        return self.log.decode(errors="replace")

    async def wait(self, patience: float = PATIENCE) -> int:
        with trio.fail_after(patience):
            code = await self.process.wait()
        assert port_is_free(self.port)
        return code


def port_is_free(port: int) -> bool:
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@asynccontextmanager
async def started(
    *options: str,
    stdin: int,
    stdout: int,
    port: int | None = None,
    drain: bool = True,
    listening: bool = True,
    env: Mapping[str, str] | None = None,
    command: list[str] | None = None,
    **more: Any,
) -> AsyncIterator[Relay]:
    """Start a relay with these descriptors (they stay the test's); its stderr is a pipe, read unless not `drain`."""
    port = port or free_port()
    read, write = os.pipe()
    process = await trio.lowlevel.open_process(
        [*(command or [sys.executable, "-m", "trio_relay"]), "--port", str(port), *options],
        stdin=stdin,
        stdout=stdout,
        stderr=write,
        env=env,
        **more,
    )
    os.close(write)
    relay = Relay(process, port)

    async def read_stderr() -> None:
        async with trio.lowlevel.FdStream(os.dup(read)) as stream:
            async for chunk in stream:
                relay.log += chunk

    try:
        async with trio.open_nursery() as nursery:
            if drain:
                nursery.start_soon(read_stderr)
            if listening:
                await wait_for_port(port)
            yield relay
            with trio.move_on_after(PATIENCE):
                if process.returncode is None:
                    process.send_signal(signal.SIGKILL)
                await process.wait()
            if not drain:
                nursery.start_soon(read_stderr)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        os.close(read)
        with trio.CancelScope(shield=True):
            await process.wait()
    assert "Traceback" not in relay.stderr, relay.stderr


class Pipes:
    """Two pipes; the relay's ends stay open in the test, so that it can look at them afterwards."""

    def __init__(self) -> None:
        self.stdin, self._write = os.pipe()
        self._read, self.stdout = os.pipe()
        self.writer = trio.lowlevel.FdStream(self._write)
        self.reader = trio.lowlevel.FdStream(self._read)
        self.client = LineClient(self.writer, self.reader)

    def close_stdout(self) -> None:
        """The relay's end, in the test only: otherwise its end would not be seen here."""
        if self.stdout >= 0:
            os.close(self.stdout)
            self.stdout = -1

    async def aclose(self) -> None:
        await self.writer.aclose()
        await self.reader.aclose()
        os.close(self.stdin)
        self.close_stdout()


@asynccontextmanager
async def pipes() -> AsyncIterator[Pipes]:
    made = Pipes()
    try:
        yield made
    finally:
        with trio.CancelScope(shield=True):
            await made.aclose()
