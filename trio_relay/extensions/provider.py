"""Our side as a provider: answers probes of host extensions, and serves MCP to those that are allowed.

What is served is the embedder's: a factory makes one SDK server for each port. Every call passes the gate
(`extensions/gate.py`), whatever that server does. Importing this module does not import the SDK: probes are answered
from the start, and the first port waits for the import.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import trio

from trio_relay.core.policy import REASONS, PendingCaller, Policy, Refusal, Standing, standing_of, status_for
from trio_relay.core.port import Port, PortClosed
from trio_relay.core.probe import Asked, answer, read_request
from trio_relay.extensions.audit import AuditLog
from trio_relay.extensions.gate import Facts, Gate, WaitingReview
from trio_relay.extensions.store import ProviderStore, StoreProblem
from trio_relay.wire.probe import Service

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

logger = logging.getLogger(__name__)

NAMESPACE = "triorelay"
"""What hosts put in front of our tools' names, unless `--serve-namespace` says otherwise."""

APPROVAL_S = 60.0
LOOK_S = 0.1
"""Seconds a port of an unknown caller is held while it waits for approval, and between looks at the policy."""

MAX_HELD_MESSAGES = 64
MAX_HELD_BYTES = 1 << 20
"""What a port may send before it is authorised."""

MAX_PORTS = 16
"""Open ports of one caller. A host needs one; each is a server of ours."""

MAX_KNOWN_NAMES = 100
"""Callers whose names for themselves are remembered."""

TOO_MUCH = "More messages than are kept came before the caller was authorised."
TOO_MANY_PORTS = f"This caller has {MAX_PORTS} ports open already."
NO_SESSION = "The provider could not serve this session; its log says why."
LEAVING = "The provider is leaving."


@dataclass(frozen=True, slots=True)
class Caller:
    """Whom a port belongs to.

    Attributes:
        extension_id: What the browser says.
        name, version: What it says of itself in its probe; for display only, empty if it sent none.
        policy: As it stood when the session began, for the server's instructions. Calls are judged anew, each.
    """

    extension_id: str
    name: str
    version: str
    policy: Policy


def everything_writes(name: str, arguments: dict[str, Any]) -> Facts:
    """What is known of tools whose server does not tell."""
    return Facts()


@dataclass(frozen=True, slots=True)
class Served:
    """What a factory makes for one port.

    Attributes:
        server: A server of its own for this port: it is given the gate, once.
        describe: Looks up a tool at the moment of a call, without waiting: name and arguments to what it is. A tool it
            does not know is a write.
        background: Runs as long as the port is served: for `list_changed`, which is announced if this is given.
    """

    server: Server[Any]
    describe: Callable[[str, dict[str, Any]], Facts] = everything_writes
    background: Callable[[], Awaitable[None]] | None = None


ServerFactory = Callable[[Caller], Served]


class Provider:
    """The provider side of the extension protocol. Its methods are for one trio run.

    Args:
        store: Policy and pending callers.
        service: What probes are told about us.
        server_factory: Called for each port that is authorised.
        timeout: Seconds a write waits for a review at most: the invoke timeout. None for no limit.
        not_ready: Why nothing can be served at the moment; None when it can.
        max_message: Bytes that ports take in one message; a longer answer becomes an error. None for no limit.
        clock: Of the write limit and the reviews: monotonic, in seconds; None for trio's.
    """

    def __init__(
        self,
        store: ProviderStore,
        audit: AuditLog,
        service: Service,
        server_factory: ServerFactory,
        *,
        timeout: float | None,
        not_ready: Callable[[], str | None] = lambda: None,
        max_message: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._store = store
        self._service = service
        self._factory = server_factory
        self._not_ready = not_ready
        self._max_message = max_message
        self._gate = Gate(store, audit, timeout=timeout, clock=clock)
        self._names: dict[str, Asked] = {}
        self._ports: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<Provider {self._service.namespace}: {self._ports.total()} ports, {self._gate!r}>"

    # -- the probe

    async def probe(self, sender_id: str, message: bytes) -> bytes:
        """Answer a message of another extension; both are JSON texts. Never raises for what the message holds.

        An unknown caller becomes a pending one, under the name it gives itself.

        Args:
            sender_id: What the browser says, the only thing that counts.
        """
        asked = read_request(message)
        pending = False
        if isinstance(asked, Asked):
            self._remember(sender_id, asked)
            pending = await self._ask(sender_id)
        status = status_for(await self._gate.policy(), sender_id, not_ready=self._not_ready())
        if status.pending_approval and not pending:
            # Nobody can approve what could not be noted.
            status = msgspec.structs.replace(status, pending_approval=False)
        return answer(asked, self._service, status)

    def _remember(self, sender_id: str, asked: Asked) -> None:
        self._names.pop(sender_id, None)
        self._names[sender_id] = asked
        if len(self._names) > MAX_KNOWN_NAMES:
            del self._names[next(iter(self._names))]

    async def _ask(self, sender_id: str) -> bool:
        """Note an unknown caller for approval. Returns whether it waits for one now."""
        name = self._names.get(sender_id, Asked("", ""))
        try:
            return await trio.to_thread.run_sync(self._store.ask, sender_id, name.name, name.version)
        except StoreProblem as problem:
            logger.warning("a caller cannot be noted for approval: %s", problem)
            return False

    # -- ports

    async def serve(self, port: Port) -> None:
        """Serve a port until it closes. Closes it, with the reason, if its caller may not have one.

        The port of an unknown caller is held for a while: approved meanwhile, it is served at once.
        """
        caller = port.extension_id
        if self._ports[caller] >= MAX_PORTS:
            port.close(TOO_MANY_PORTS)
            return
        self._ports[caller] += 1
        error: str | None = LEAVING
        try:
            error = await self._serve(port)
        except Exception:
            logger.exception("a session of %s has failed", caller)
            error = NO_SESSION
        finally:
            self._ports[caller] -= 1
            if not self._ports[caller]:
                del self._ports[caller]
            port.close(error)

    async def _serve(self, port: Port) -> str | None:
        """Returns the error to close the port with."""
        held = _Held(port)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.hold, nursery.cancel_scope)
            problem = await self._authorise(port.extension_id)
            serving = await trio.to_thread.run_sync(_import_serving) if problem is None else None
            nursery.cancel_scope.cancel()
        if held.problem is not None or held.is_closed:
            return held.problem
        if serving is None:
            return problem
        name = self._names.get(port.extension_id, Asked("", ""))
        policy = await self._gate.policy()
        served = self._factory(Caller(port.extension_id, name.name, name.version, policy))
        await serving.serve_session(port, held.messages, served, self._gate, self._max_message)
        return None

    async def _authorise(self, caller: str) -> str | None:
        """Wait until it is settled whether a caller may have a session. Returns None, or why it may not."""
        noted = False
        with trio.move_on_after(APPROVAL_S):
            while True:
                policy = await self._gate.policy()
                standing = standing_of(policy, caller)
                if not policy.enabled:
                    return REASONS[Refusal.ENDPOINT_OFF]
                if standing is not Standing.UNKNOWN:
                    return None if standing is Standing.ALLOWED else REASONS[Refusal.NOT_ALLOWED]
                noted = noted or await self._ask(caller)
                await trio.sleep(LOOK_S)
        return REASONS[Refusal.NOT_APPROVED_YET]

    # -- what commands ask

    def reviews(self) -> list[WaitingReview]:
        """The writes that wait for a decision, oldest first."""
        return self._gate.reviews()

    def decide_review(self, review_id: str, approve: bool) -> str:
        """Approve or turn down a write that waits. Returns what came of it, in words."""
        return self._gate.decide(review_id, approve=approve)

    def pending(self) -> tuple[PendingCaller, ...]:
        """Who waits for approval, oldest first. Reads a file. Raises `StoreProblem`."""
        return self._store.pending()

    def end_reviews(self) -> None:
        """The relay leaves, or is no longer the one that decides: nothing that waits will be executed."""
        self._gate.end_reviews()


class _Held:
    """The messages of a port that come before it is authorised."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._bytes = 0
        self.messages: deque[bytes] = deque()
        self.problem: str | None = None
        self.is_closed = False

    async def hold(self, scope: trio.CancelScope) -> None:
        """Take messages until cancelled; cancels `scope` itself when there is nothing more to wait for."""
        try:
            while True:
                message = await self._port.receive()
                self.messages.append(message)
                self._bytes += len(message)
                if len(self.messages) > MAX_HELD_MESSAGES or self._bytes > MAX_HELD_BYTES:
                    self.problem = TOO_MUCH
                    break
        except PortClosed:
            self.is_closed = True
        scope.cancel()


def _import_serving() -> Any:
    from trio_relay.extensions import serving

    return serving
