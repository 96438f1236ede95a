"""Sharing one browser: join the relay that is there, or be it, and take over when it goes. A `ToolBackend`.

The only driver of `core/roles.py`. Delegates to a `Hub` (we own the port) or a `Remote` (another relay does);
between the two it shows what was there last.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import trio
from msgspec import Raw

from trio_relay.config import RelayConfig
from trio_relay.core.backend import Change, ProviderView, SourceView, Target, ToolBackend, ToolView
from trio_relay.core.pending import OnProgress
from trio_relay.core.registry import Registry
from trio_relay.core.results import CallResult
from trio_relay.core.roles import Event, Role, Roles, retry_delay
from trio_relay.errors import NotSent, PortTaken
from trio_relay.links.listener import bind, is_free
from trio_relay.links.peer import NotJoined, PeerLink, join
from trio_relay.links.socket import single_errors
from trio_relay.links.source import Heartbeat
from trio_relay.relay.changes import Bell, Followed
from trio_relay.relay.extending import Extending
from trio_relay.relay.hub import GRACE_S, Hub, serve_hub
from trio_relay.relay.ports import PortCache, candidates
from trio_relay.relay.remote import Remote

logger = logging.getLogger(__name__)

SILENT_S = 1.0
CACHED_SILENT_S = 3.0
"""Seconds a port that accepts but says nothing is given before it is skipped; more if a relay was there lately."""

FRESH_S = 5.0
"""Seconds for a port that was free a moment ago and is taken now: that is a relay which is just starting."""

START_ATTEMPTS = 20
START_PAUSE_S = 0.1
"""How often and how soon a start looks again when a relay went, or came and went, while it looked: clients that probe
start this program twice and kill the first one."""

REFUSES_SLOWLY = sys.platform == "win32"
"""Windows tries a closed port for two seconds before it says so; whether it can be bound is known at once."""

JITTER_S = 0.05
"""Clients of a lost server try at once, but not in the same microsecond."""


class Cluster:
    """See the module. Create it with `open_cluster`.

    Attributes:
        roles: What this process is now.
    """

    def __init__(
        self,
        config: RelayConfig,
        cache: PortCache,
        heartbeat: Heartbeat | None = None,
        extending: Extending | None = None,
    ) -> None:
        self.config = config
        self.roles = Roles()
        self._cache = cache
        self._heartbeat = heartbeat
        self._extending = extending
        self._backend: Hub | Remote | None = None
        self._between = Followed(Registry())  # what is shown while there is no backend
        self._grace_until = 0.0
        self._last_port: int | None = None
        self._switched = Bell()

    def __repr__(self) -> str:
        return f"<Cluster {self.roles.role.value}: {self._backend!r}>"

    # -- roles

    async def run(self, timers: trio.Nursery, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Be client or server, whichever is needed, until cancelled.

        Args:
            timers: Where the end of a grace time is waited for.

        Raises:
            PortTaken: at the start, when there is neither a relay to join nor a port to bind.
        """
        self.roles.step(Event.START)
        started, failed = False, 0
        while True:
            async with AsyncExitStack() as stack:
                hub: Hub | None = None
                async with self._cache.turn(takeover=started):
                    found = await self._attach_or_bind(stack)
                    if isinstance(found, list):
                        kept = self._between if trio.current_time() < self._grace_until else None
                        hub = await stack.enter_async_context(
                            serve_hub(found, self.config, self._heartbeat, kept, self._grace_until, self._extending)
                        )
                if isinstance(found, Problems):
                    if not started:
                        if found.changing and failed < START_ATTEMPTS:
                            failed += 1
                            await trio.sleep(START_PAUSE_S)
                            continue
                        self.roles.step(Event.FAILED)
                        raise PortTaken(found.summary())
                elif isinstance(found, PeerLink):
                    remote = Remote(self.config, found)
                    self._become(Event.JOINED, remote, found.port)
                    if not started:
                        started = True
                        task_status.started()
                    await self._follow(remote, timers)
                    failed = 0
                    await trio.sleep(random.random() * JITTER_S)
                    continue
                elif hub is not None:
                    self._become(Event.BOUND, hub, hub.port)
                    if not started:
                        task_status.started()
                    await trio.sleep_forever()
            failed += 1
            delay = retry_delay(failed)
            if delay is None:
                self._give_up()
                await trio.sleep_forever()
            else:
                self.roles.step(Event.FAILED)
                logger.debug("attempt %d to take over failed; the next in %.1f s", failed, delay)
                await trio.sleep(delay)

    def _become(self, event: Event, backend: Hub | Remote, port: int) -> None:
        self.roles.step(event)
        self._backend = backend
        self._last_port = port
        self._cache.write(self.config.host, port)
        if event is Event.JOINED:
            logger.info("joined the relay on port %d: it owns the browser's connections", port)
            if self._extending is not None:
                logger.info("--provider and --serve-extensions are the business of that relay while it lives")
        self._switched.ring()

    async def _follow(self, remote: Remote, timers: trio.Nursery) -> None:
        """Be a client until the server is lost; then show its last list for the grace time."""
        try:
            closed = await remote.run()
        finally:
            self._between, self._backend = Followed(remote.registry, remote.providers), None
            self._grace_until = trio.current_time() + GRACE_S
        self.roles.step(Event.LOST)
        logger.info("the relay server is gone (%s); taking over", closed)
        self._switched.ring()
        timers.start_soon(self._end_grace, self._grace_until)

    async def _end_grace(self, until: float) -> None:
        """Forget the lost server's tools when their time is over; a new server has taken them over before."""
        await trio.sleep_until(until)
        if self._backend is None and until == self._grace_until:
            self._between = Followed(Registry())
            self._switched.ring()

    def _give_up(self) -> None:
        self.roles.step(Event.EXHAUSTED)
        logger.error("no port and no relay could be had; page tools are off until this relay is started again")
        self._between = Followed(Registry())
        self._switched.ring()

    # -- attach or bind

    async def _attach_or_bind(self, stack: AsyncExitStack) -> PeerLink | list[trio.SocketListener] | Problems:
        """Join a live relay anywhere in the range, else bind the first port that can be had."""
        config = self.config
        if config.port == 0:
            return await bind(config.host, 0)
        cached = self._cache.read(config.host)
        ports = candidates(config.port if config.fixed_port else None, cached, self._last_port, first=config.port)
        verdicts = await self._probe(ports, cached)
        for port in ports:
            if verdicts[port] is None and (link := await self._join(stack, port, FRESH_S)) is not None:
                return link
        problems = Problems(ports)
        for port in ports:
            verdict = verdicts[port]
            if verdict is None:
                problems.add(port, "its relay has just gone")
                problems.changing = True
                return problems
            if not verdict.free:
                problems.add(port, str(verdict))
                if verdict.silent and self._was_our_servers(port):
                    return problems
                continue
            try:
                return await bind(config.host, port)
            except PortTaken as taken:
                if (link := await self._join(stack, port, FRESH_S)) is not None:
                    return link
                problems.add(port, str(taken))
                problems.changing = True
                if self._was_our_servers(port):
                    return problems
        return problems

    def _was_our_servers(self, port: int) -> bool:
        """Our server may be frozen: its port is waited for, as a second server beside it would split the browser."""
        return self.roles.role is Role.PROMOTING and port == self._last_port

    async def _probe(self, ports: list[int], cached: int | None) -> dict[int, NotJoined | None]:
        """Look at all ports at once. None stands for a live relay."""
        verdicts: dict[int, NotJoined | None] = {}

        async def look(port: int) -> None:
            patience = CACHED_SILENT_S if port == cached else SILENT_S
            if REFUSES_SLOWLY and is_free(self.config.host, port):
                verdicts[port] = NotJoined("nobody listens", free=True)
                return
            try:
                async with self._link_to(port, patience):
                    verdicts[port] = None
            except NotJoined as verdict:
                verdicts[port] = verdict

        async with trio.open_nursery() as nursery:
            for port in ports:
                nursery.start_soon(look, port)
        return verdicts

    async def _join(self, stack: AsyncExitStack, port: int, patience: float) -> PeerLink | None:
        try:
            return await stack.enter_async_context(self._link_to(port, patience))
        except NotJoined as verdict:
            logger.debug("port %d could not be joined: %s", port, verdict)
            return None

    def _link_to(self, port: int, patience: float) -> AbstractAsyncContextManager[PeerLink]:
        return join(self.config.host, port, max_payload=self.config.max_payload, patience=patience)

    # -- ToolBackend

    @property
    def _shown(self) -> Followed:
        return self._between if self._backend is None else self._backend

    def sources(self) -> list[SourceView]:
        return self._shown.sources()

    def tools(self) -> Iterator[ToolView]:
        return self._shown.tools()

    def listing(self) -> list[bytes]:
        return self._shown.listing()

    def provider_rows(self) -> list[ProviderView]:
        return self._shown.provider_rows()

    def asked(self) -> None:
        self._shown.asked()

    def change(self) -> Change:
        return self._shown.change()

    async def wait_change(self, seen: Change) -> Change:
        while (now := self.change()) == seen:
            async with trio.open_nursery() as nursery:
                if self._backend is not None:
                    nursery.start_soon(self._cancel_after_change, self._backend, seen, nursery.cancel_scope)
                await self._switched.wait()
                nursery.cancel_scope.cancel()
        return now

    @staticmethod
    async def _cancel_after_change(backend: ToolBackend, seen: Change, scope: trio.CancelScope) -> None:
        await backend.wait_change(seen)
        scope.cancel()

    def call(
        self, name: str, args: Raw, *, target: Target | None = None, on_progress: OnProgress | None = None
    ) -> Awaitable[CallResult]:
        if self._backend is None:
            return self._call_later(name, args, target, on_progress)
        return self._backend.call(name, args, target=target, on_progress=on_progress)

    async def _call_later(
        self, name: str, args: Raw, target: Target | None, on_progress: OnProgress | None
    ) -> CallResult:
        """A call between two servers waits for the next one, as long as the lost one's tools are listed."""
        with trio.move_on_at(self._grace_until):
            while self._backend is None and self.roles.role is Role.PROMOTING:
                await self._switched.wait()
        return await self._owner().call(name, args, target=target, on_progress=on_progress)

    def _owner(self) -> Hub | Remote:
        if self._backend is None:
            raise NotSent(
                "The relay that owned the browser is gone and none has taken over yet; try again in a moment."
            )
        return self._backend

    def refresh(self, origin: str) -> SourceView:
        return self._owner().refresh(origin)

    def open_in_browser(self, url: str) -> bool:
        return self._backend is not None and self._backend.open_in_browser(url)

    def info(self) -> dict[str, Any]:
        if self._backend is not None:
            return self._backend.info()
        return {"mode": self.roles.role.value, "host": self.config.host, "port": self._last_port or self.config.port}

    async def drain(self) -> None:
        """Let calls of other relays finish before we leave, for at most two seconds."""
        if isinstance(self._backend, Hub):
            await self._backend.drain()


class Problems:
    """Why no port could be had, port by port. Each is logged once, saying what was expected and what came.

    Attributes:
        changing: Whether a relay came or went meanwhile, so that another look may find something else.
    """

    def __init__(self, ports: list[int]) -> None:
        self.changing = False
        self._ports = ports
        self._found: list[tuple[int, str]] = []

    def add(self, port: int, what: str) -> None:
        logger.info("port %d is skipped: %s", port, what)
        self._found.append((port, what))

    def summary(self) -> str:
        if len(self._found) == 1:
            port, what = self._found[0]
            return f"port {port} cannot be used: {what}. Stop that program, or choose another port with --port"
        return (
            f"none of the ports {self._ports[0]} to {max(self._ports)} can be used (the first: {self._found[0][1]}). "
            "Stop one of the programs there, or choose another port with --port"
        )


@asynccontextmanager
async def open_cluster(
    config: RelayConfig,
    cache: PortCache | None = None,
    heartbeat: Heartbeat | None = None,
    extending: Extending | None = None,
) -> AsyncIterator[Cluster]:
    """Join or be the relay of this machine's browser until the block is left.

    Args:
        cache: Where the last port is remembered; nowhere by default.
        extending: See `serve_hub`; only a relay that owns the browser uses it.

    Raises:
        PortTaken: on entry.
    """
    cluster = Cluster(config, cache or PortCache(None), heartbeat, extending)
    with single_errors():
        async with trio.open_nursery() as nursery:
            await nursery.start(cluster.run, nursery)
            try:
                yield cluster
            finally:
                cluster.roles.step(Event.STOP)
                nursery.cancel_scope.cancel()
