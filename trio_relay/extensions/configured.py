"""One configured provider: its row, its tools, and the one task that probes it and connects to it.

A closed port is not a lost service: the tools stay, and the next call connects again. What takes the tools away is a
probe or a handshake that fails, or a browser that stays away.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

import trio
from msgspec import Raw

from trio_relay._version import __version__
from trio_relay.core.pending import OnProgress
from trio_relay.core.port import Carrier, PortClosed, Unanswered
from trio_relay.core.probe import Finding, Result, Silence, State, judge, unanswered
from trio_relay.core.text import tidy
from trio_relay.core.tooldef import ToolDef
from trio_relay.extensions.calls import ProviderCall
from trio_relay.extensions.catalogue import Offered
from trio_relay.relay.changes import Bell
from trio_relay.wire import probe as wire

if TYPE_CHECKING:
    from trio_relay.extensions.session import Session

logger = logging.getLogger(__name__)

PROBE_S = wire.TIMEOUT_MS / 1000
PROBE_GRACE_S = 0.5
"""A carrier keeps the time of a probe itself, as the browser's words may be on the way; this much more is waited."""

OPEN_S = 10.0
"""Seconds a port has to open."""

REPROBE_S = 60.0
ASKED_S = 5.0
"""Seconds after which a provider in an error state is probed again by itself, and when its tools are asked for."""

GRACE_S = 5.0
"""Seconds that tools stay when the browser has gone: our own extension's worker comes back within one."""

WAITING = "Waiting for a browser with the trio-relay extension."
NO_BROWSER = "No browser with the trio-relay extension is connected."
CONNECTING = "Connecting to the provider."

_numbers = count(1)


@dataclass(frozen=True, eq=False)
class Browser:
    """A browser that is attached: what carries messages, and the id of our own extension in it."""

    carrier: Carrier
    client_id: str


class Home(Protocol):
    """What a provider needs of its host."""

    browsers: list[Browser]

    async def session_class(self) -> type[Session]: ...

    def changed(self) -> None: ...


class Provider:
    """See the module. `run` must be running; everything else returns at once.

    Attributes:
        service: How it described itself last.
        offered: Its tools as last listed; they stay known while it cannot be used.
    """

    def __init__(self, extension_id: str, home: Home) -> None:
        self.extension_id = extension_id
        self.state = State.CONNECTING
        self.outcome = WAITING
        self.service: wire.Service | None = None
        self.offered = Offered()
        self._home = home
        self._session: Session | None = None
        self._browser: Browser | None = None  # the one that serves it
        self._legacy = False
        self._waiting: list[ProviderCall] = []
        self._bell = Bell()
        self._check_wanted = False
        self._checked_at = self._lonely_since = -float("inf")

    @property
    def name(self) -> str:
        return self.extension_id if self.service is None else self.service.name

    # -- what happens to it

    def browser_came(self) -> None:
        self._want_check()  # which does nothing where it is connected

    def browser_went(self, browser: Browser) -> None:
        if not self._home.browsers:
            self._lonely_since = trio.current_time()
        if self._browser is browser:
            self._browser = None
            if self._session is not None:
                self._session.close("the browser that has it is gone")
        if self._home.browsers and self._browser is None:
            self._want_check()
        self._bell.ring()

    def asked(self) -> None:
        if self.state is State.ERROR and trio.current_time() - self._checked_at >= ASKED_S:
            self._want_check()

    def call(self, tool: ToolDef, args: Raw, limit: float | None, on_progress: OnProgress | None) -> ProviderCall:
        """Call a tool. It leaves at once where a session is there, else as soon as there is one."""
        call = ProviderCall(self.name, tool, args, limit, on_progress, self._call_ended)
        if self._session is not None and self._session.problem is None:
            self._session.submit([call])
        else:
            self._waiting.append(call)
            self._bell.ring()
        return call

    def _call_ended(self, call: ProviderCall) -> None:
        if call in self._waiting:
            self._waiting.remove(call)
        if self._session is not None:
            self._session.withdraw(call)

    def _want_check(self) -> None:
        self._check_wanted = True
        self._bell.ring()

    # -- the one task that probes and connects

    async def run(self) -> None:
        self._lonely_since = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._until_needed()
                    if self._check_wanted or not await self._reconnect(nursery):
                        self._check_wanted = False
                        await self._check(nursery)
        finally:
            self._fail_waiting("the relay is shutting down")

    async def _until_needed(self) -> None:
        """Return when there is something to do. Also ends the patience for a browser that stays away."""
        while True:
            with trio.move_on_at(self._next_time()) as scope:
                while not self._is_needed() and scope.deadline == self._next_time():
                    await self._bell.wait()
            if self._is_needed():
                return
            if scope.cancelled_caught:
                if self._home.browsers:
                    self._check_wanted = True
                    return
                self._show(State.ERROR, NO_BROWSER)

    def _is_needed(self) -> bool:
        if not self._home.browsers:
            return False
        if self.state is State.CONNECTED and self._browser is not None:
            self._check_wanted = False  # it was wanted while there was nothing yet
        return self._check_wanted or (bool(self._waiting) and self._session is None)

    def _next_time(self) -> float:
        if self._home.browsers:
            return self._checked_at + REPROBE_S if self.state is State.ERROR else float("inf")
        return float("inf") if self.state is State.ERROR else self._lonely_since + GRACE_S

    async def _reconnect(self, nursery: trio.Nursery) -> bool:
        """Open a new port where the last one was. False if that is not possible."""
        browser = self._browser
        if self.state is not State.CONNECTED or browser is None:
            return False
        problem = await self._connect(nursery, browser, first=False)
        if problem is not None:
            logger.info("%s: cannot connect again: %s", self.name, problem)
        return problem is None

    async def _check(self, nursery: trio.Nursery) -> None:
        """Probe it in one browser after the other, and connect in the first that has it."""
        shown: tuple[Result, str] | None = None
        for browser in list(self._home.browsers):
            finding = await self._probe(browser)
            self.service = finding.service or self.service
            result, outcome = finding.result, finding.outcome
            if browser not in self._home.browsers:
                continue
            if result is Result.CONNECTED:
                if self.state is State.CONNECTING:
                    self._show(State.CONNECTING, CONNECTING)
                problem = await self._connect(nursery, browser, first=True)
                if problem is None:
                    self._checked_at = trio.current_time()
                    return
                outcome = f"No MCP session: {problem}."
            logger.debug("%s: %s %s", self.extension_id, outcome, finding.detail)
            if shown is None or shown[0] is Result.REJECTED:
                shown = (result, outcome)
        self._checked_at = trio.current_time()
        if shown is not None and self._home.browsers:
            self._browser = None
            self._show(State.ERROR, shown[1])

    async def _probe(self, browser: Browser) -> Finding:
        probe_id = f"probe-{next(_numbers)}"
        message = wire.request(probe_id, wire.Client(browser.client_id, "trio-relay", __version__))
        try:
            with trio.move_on_after(PROBE_S + PROBE_GRACE_S):
                return judge(await browser.carrier.probe(self.extension_id, message, PROBE_S), probe_id)
        except Unanswered as error:
            return unanswered(error.kind, error.message)
        except Exception as error:
            logger.exception("%s: the probe failed", self.extension_id)
            return unanswered(Silence.FAILED, str(error))
        return unanswered(Silence.TIMEOUT)

    async def _connect(self, nursery: trio.Nursery, browser: Browser, *, first: bool) -> str | None:
        """Open a port and a session on it. Returns what went wrong, in words.

        Args:
            first: Whether the tools must be listed before anything else; else the ones that are known will do.
        """
        session_class = await self._home.session_class()
        try:
            with trio.move_on_after(OPEN_S) as scope:
                port = await browser.carrier.open_port(self.extension_id, wire.PORT_NAME)
        except PortClosed as error:
            return tidy(error.reason, 200)
        except Exception as error:
            logger.exception("%s: the port could not be opened", self.extension_id)
            return tidy(str(error), 200)
        if scope.cancelled_caught:
            return f"its port did not open within {OPEN_S:g} s"
        found: list[Offered] = []

        def take(offered: Offered) -> None:
            if self._session is session:
                self._take_tools(offered)
            else:
                found.append(offered)

        session = session_class(port, legacy=self._legacy, on_tools=take, on_unsent=self._take_back)
        nursery.start_soon(self._serve, session)
        await (session.listed if first else session.ready).wait()
        problem = session.problem or (session.list_problem if first else None)
        if problem is None and browser not in self._home.browsers:
            problem = "the browser that has it is gone"
        if problem is not None:
            self._legacy = False
            session.close(problem)
            return tidy(problem, 500)
        self._legacy = session.legacy
        self._session, self._browser = session, browser
        waiting, self._waiting = self._waiting, []
        session.submit(waiting)
        self.state = State.CONNECTED
        for offered in found:
            self.offered = offered
        self._home.changed()
        return None

    async def _serve(self, session: Session) -> None:
        await session.run()
        logger.debug("%s: the port is closed: %s", self.name, session.problem)
        if self._session is session:
            self._session = None
            self._bell.ring()

    def _take_back(self, call: ProviderCall, reason: str) -> None:
        """A call did not leave before its port died: it gets one more, as ports die whenever a worker is stopped."""
        if call.renewed:
            call.lost(reason)
        else:
            call.renew()
            self._waiting.append(call)

    def _take_tools(self, offered: Offered) -> None:
        self.offered = offered
        self._home.changed()

    def _show(self, state: State, outcome: str) -> None:
        if state is State.ERROR:
            self._fail_waiting(outcome.rstrip("."))
        self.state, self.outcome = state, outcome
        self._home.changed()

    def _fail_waiting(self, reason: str) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call.lost(reason)
