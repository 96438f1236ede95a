"""What waits to be written to one socket. Callers put whole messages in; only the writer task writes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import trio

from trio_relay.errors import NotSent
from trio_relay.links.metered import SEND_CHUNK
from trio_relay.links.socket import Socket

MAX_BACKLOG = 64 << 20
"""Bytes that may wait for one socket. A tab that takes nothing gets no more calls than this, so a frozen page
cannot fill our memory."""

ROOM = 1 << 20
"""Bytes that may wait before a sender that can wait is made to."""

CROWD_S = 0.0002
"""A small message this soon after another one waits for the writer task, which writes all that wait at once: a client
that makes a hundred calls in one read costs a tab's socket a few system calls. Calls one after the other are further
apart (a round trip through a page takes longer), and each is written at once."""

TICKET_BYTES = 300
"""What a waiting message costs beside its bytes, about; counted too, or half a million tiny ones would not be seen."""


class Ticket:
    """One message on its way. `sent` turns True when its writing begins; from then on it cannot be taken back."""

    __slots__ = ("build", "sent", "size")

    def __init__(self, build: Callable[[], bytes], size: int) -> None:
        self.build: Callable[[], bytes] | None = build
        self.size = size + TICKET_BYTES
        self.sent = False


class Outbox:
    """A queue of messages in order. `put` and `take_back` never wait; what needs no waiting is sent by `put`."""

    def __init__(self, socket: Socket, limit: int = MAX_BACKLOG) -> None:
        self._socket = socket
        self._limit = limit
        self._writing = False
        self._sent_at = 0.0
        self._queue: deque[Ticket] = deque()
        self._backlog = 0
        self._filled = trio.Event()
        self._emptied = trio.Event()
        self._lighter = trio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def backlog(self) -> int:
        """Bytes waiting, about."""
        return self._backlog

    def put(self, message: bytes | Callable[[], bytes], size: int = 0) -> Ticket:
        """Queue a message, or a function that makes it when its turn comes (`size` is then its size in bytes).

        Raises:
            NotSent: too much is waiting already.
        """
        ticket = Ticket(lambda: message, len(message)) if isinstance(message, bytes) else Ticket(message, size)
        if not self._queue and not self._writing and ticket.size < SEND_CHUNK and self._send_now(ticket):
            return ticket
        if self._queue and self._backlog + ticket.size > self._limit:
            raise NotSent(
                f"The tab is not reading: {self._backlog} bytes already wait for it. Reload the tab and try again."
            )
        self._queue.append(ticket)
        self._backlog += ticket.size
        self._filled.set()
        return ticket

    def _send_now(self, ticket: Ticket) -> bool:
        """Skip the queue and its task switch. The message is built once, whether it goes out now or later."""
        now = time.perf_counter()
        is_crowded, self._sent_at = now < self._sent_at + CROWD_S, now
        if is_crowded:
            return False
        assert ticket.build is not None
        message = ticket.build()
        if not self._socket.send_now(message):
            ticket.build = lambda: message
            return False
        ticket.sent, ticket.build = True, None
        if self._socket.needs_flush:
            self._writing = True
            self._filled.set()
        return True

    def take_back(self, ticket: Ticket) -> bool:
        """Forget a message that has not been sent. False if it is too late."""
        if ticket.sent:
            return False
        if ticket.build is not None:
            ticket.build = None
            self._lighten(ticket)
        return True

    async def room(self) -> None:
        """Return once less than `ROOM` waits, for senders that would rather wait than be refused."""
        await trio.lowlevel.checkpoint()
        while self._backlog >= ROOM:
            await self._lighter.wait()

    def _lighten(self, ticket: Ticket) -> None:
        self._backlog -= ticket.size
        if self._backlog < ROOM:
            self._lighter.set()
            self._lighter = trio.Event()

    async def flushed(self) -> None:
        """Return once everything that was put in has been written."""
        while self._queue or self._writing:
            self._emptied = trio.Event()
            await self._emptied.wait()

    async def run(self) -> None:
        """The writer task: writes what is put in, one whole message after the other.

        Raises:
            Closed: the socket is.
        """
        while True:
            if self._socket.needs_flush:
                self._writing = True
                await self._socket.flush()
            while self._queue:
                self._writing = True
                await self._write(self._next())
            self._writing = False
            self._emptied.set()
            self._filled = trio.Event()
            await self._filled.wait()

    def _next(self) -> list[Ticket]:
        """The next messages to write together: several small ones if the kernel takes them now, else a single one, as
        what waits longer can still be taken back, and is built when its turn comes."""
        batch: list[Ticket] = []
        size, limit = 0, SEND_CHUNK if len(self._queue) > 1 and self._socket.takes_now() else 0
        while self._queue and (not batch or size + self._queue[0].size <= limit):
            ticket = self._queue.popleft()
            if ticket.build is not None:
                batch.append(ticket)
                size += ticket.size
        return batch

    async def _write(self, batch: list[Ticket]) -> None:
        messages: list[bytes] = []
        for ticket in batch:
            assert ticket.build is not None
            ticket.sent = True
            messages.append(ticket.build())
            ticket.build = None
        try:
            await self._socket.send_together(messages)
        finally:
            for ticket in batch:
                self._lighten(ticket)
