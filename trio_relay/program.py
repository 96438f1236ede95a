"""The stdio program: one relay, one MCP client, and the reasons to leave."""

from __future__ import annotations

import gc
import importlib
import logging
import os
import select
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from trio_relay.config import RelayConfig
from trio_relay.errors import RelayError, innermost
from trio_relay.relay.cluster import open_cluster
from trio_relay.relay.extending import Extending
from trio_relay.relay.ports import PortCache
from trio_relay.surface.lines import LineWriter
from trio_relay.surface.session import DRAIN_S, Session
from trio_relay.surface.stdio import open_stream, take_over_stdio

if TYPE_CHECKING:
    from trio_relay.extensions.service import ExtensionSettings

logger = logging.getLogger(__name__)

PARENT_CHECK_S = 2.0
"""Between looks at the parent process: a client that crashed leaves our stdin open in its other children."""

STDOUT_CHECK_S = 1.0
"""Between looks at whether anybody still reads stdout; writing would tell, but there may be nothing to write."""

QUIET_SWITCH_S = 0.001
"""Interpreter switch interval while the SDK is imported in a thread: a browser that connects meanwhile is answered
within a few milliseconds instead of waiting for the import."""


def run_program(
    config: RelayConfig,
    cache: PortCache,
    *,
    on_leaving: Callable[[], None],
    extensions: tuple[ExtensionSettings, Path] | None = None,
) -> int:
    """Serve the MCP client on stdin and stdout until it leaves.

    Args:
        cache: Where the last port is remembered.
        on_leaving: Called once when the reason to leave is there; from then on time is limited.
        extensions: What is done with other extensions, and the directory of its files; None for nothing.

    Returns:
        The exit code: 0.

    Raises:
        RelayError: the relay could not start.
    """
    _raise_file_limit()
    with ExitStack() as stack:
        try:
            stdin, stdout = stack.enter_context(take_over_stdio())
        except OSError as error:
            raise RelayError(f"stdout cannot be used ({error.strerror}): start me from an MCP client") from None
        try:
            trio.run(_serve, config, cache, stdin, stdout, on_leaving, extensions, strict_exception_groups=True)
        except* RelayError as group:
            raise innermost(group) from None
    return 0


class _Leaving:
    """The first reason to leave counts: requests are no longer read, and time is limited from then on."""

    def __init__(self, on_leaving: Callable[[], None]) -> None:
        self._on_leaving = on_leaving
        self._begun = False
        self.starting = trio.CancelScope()
        self.importing = trio.CancelScope()
        self.drained_by = float("inf")
        self.session: Session | None = None

    def begin(self, reason: str, *, at_once: bool = False) -> None:
        """Leave, after calls in flight have had their time; `at_once` when nobody waits for them any more."""
        if not self._begun:
            self._begun = True
            self.drained_by = trio.current_time() + DRAIN_S
            logger.info("leaving: %s", reason)
            self._on_leaving()
        if self.session is None:
            self.starting.cancel()
        else:
            self.importing.cancel()
            self.session.stop()
            if at_once:
                self.session.hang_up()


async def _serve(
    config: RelayConfig,
    cache: PortCache,
    stdin: int,
    stdout: int,
    on_leaving: Callable[[], None],
    extensions: tuple[ExtensionSettings, Path] | None,
) -> None:
    leaving = _Leaving(on_leaving)
    with leaving.starting:
        async with _open_extensions(config, extensions) as extending:
            await _serve_until_left(config, cache, stdin, stdout, leaving, extending)


@asynccontextmanager
async def _open_extensions(
    config: RelayConfig, extensions: tuple[ExtensionSettings, Path] | None
) -> AsyncIterator[Extending | None]:
    if extensions is None:
        yield None
        return
    from trio_relay.extensions.service import open_extensions
    from trio_relay.surface.management import DEFINITIONS, Tools

    async with open_extensions(*extensions, config, lambda backend: (Tools(backend), DEFINITIONS)) as opened:
        yield opened


async def _serve_until_left(
    config: RelayConfig, cache: PortCache, stdin: int, stdout: int, leaving: _Leaving, extending: Extending | None
) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(_watch_signals, leaving)
        nursery.start_soon(_watch_parent, leaving)
        nursery.start_soon(_watch_stdout, stdout, leaving)
        async with open_cluster(config, cache, extending=extending) as cluster:
            reader, out = open_stream(stdin), open_stream(stdout)
            # A descriptor that blocks must not be written to on this thread.
            writer = LineWriter(out, None if sys.platform == "win32" else stdout)
            leaving.session = session = Session(cluster, reader, writer, config.max_payload)
            server: Any = None
            with leaving.importing:
                server = await _import_sdk()
            if server is not None:
                # What is there now stays, and a collection that goes through the SDK's 90,000 objects takes 50 ms.
                gc.freeze()
                await session.run(server.SdkServer(session))
            leaving.begin("the client has closed our stdin")
            with trio.move_on_at(leaving.drained_by):
                await cluster.drain()
        await reader.aclose()
        await out.aclose()
        nursery.cancel_scope.cancel()


async def _import_sdk() -> Any:
    """Import the SDK's half of the surface in a thread: browsers can connect meanwhile."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(QUIET_SWITCH_S)
    try:
        return await trio.to_thread.run_sync(
            importlib.import_module, "trio_relay.surface.server", abandon_on_cancel=True
        )
    finally:
        sys.setswitchinterval(interval)


async def _watch_signals(leaving: _Leaving, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    wanted = [getattr(signal, name) for name in names if hasattr(signal, name)]
    with trio.open_signal_receiver(*wanted) as signals:
        task_status.started()
        seen = 0
        async for number in signals:
            seen += 1
            leaving.begin(f"received {signal.Signals(number).name}", at_once=seen > 1)


async def _watch_parent(leaving: _Leaving) -> None:
    if sys.platform == "win32":
        return  # a parent's id says nothing there
    parent = os.getppid()
    while parent != 1:
        await trio.sleep(PARENT_CHECK_S)
        if os.getppid() != parent:
            leaving.begin("the program that started us is gone", at_once=True)
            return


async def _watch_stdout(fd: int, leaving: _Leaving) -> None:
    """A pipe without a reader reports an error even to those who ask for nothing; a socket (as Node gives its
    children) and a terminal report a hang-up."""
    if sys.platform == "win32":
        return  # a write tells
    poll = select.poll()
    poll.register(fd, 0)
    while True:
        await trio.sleep(STDOUT_CHECK_S)
        if any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in poll.poll(0)):
            leaving.begin("nobody reads our stdout", at_once=True)
            return


def _raise_file_limit() -> None:
    """Allow as many sockets as the system lets us have; the usual soft limit of 1,024 is fewer than some have tabs."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
