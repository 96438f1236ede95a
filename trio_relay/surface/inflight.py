"""The requests of a session that are not answered yet, and the progress they are owed."""

from __future__ import annotations

import logging
import re
from collections import deque

import msgspec
import trio

from trio_relay.core.pending import Progress
from trio_relay.surface.lines import LineWriter
from trio_relay.wire.mcp import progress_line

logger = logging.getLogger(__name__)

KEEP_ALIVE_S = 10.0
"""Between progress notifications of a call that waits: clients that reset their timeout on progress keep waiting."""

PROGRESS_GAP_S = 0.001
"""Between the last progress and the answer: the TypeScript clients lose progress that arrives in one read with it
(delivered in 296 of 300 runs after 0.1 ms, in 300 after 1 ms)."""

PROGRESS_READ_S = 0.25
"""How long the answer waits, beyond that gap, for a busy client to read the progress before it: with all cores busy,
a gap of 1 ms alone lost some in every third run."""

MAX_WAITING_PROGRESS = 10_000
"""Progress notifications of one call that may wait for a slow client; more are dropped."""

_INTEGER = re.compile(r"-?[0-9]{1,19}\Z")

Key = str | int


def request_key(request_id: bytes) -> Key | None:
    """How a request id (JSON text) is matched: "2", 2 and "02" are one id, as in the SDK. None if it is no id."""
    if request_id[:1] not in b'"-0123456789':
        return None
    try:
        value = msgspec.json.decode(request_id)
    except msgspec.DecodeError:  # a number beyond every range, such as 1e999 or 5,000 digits
        return None
    if isinstance(value, str):
        return int(value) if _INTEGER.match(value) else value
    return value if isinstance(value, int) else None


class Call:
    """One tools/call on the raw lane. `cancelled` is final: nothing is written for it afterwards."""

    def __init__(self, key: Key, token: bytes | None) -> None:
        self.key = key
        self.token = token
        self.scope = trio.CancelScope()
        self.cancelled = False
        self.answered = False
        self.page_progress: float | None = None
        self.last_progress = -1.0
        self.waiting: deque[Progress] = deque()
        self.told = trio.Event()

    @property
    def told_anything(self) -> bool:
        """Whether a progress notification was written or waits to be."""
        return self.last_progress >= 0 or len(self.waiting) > 0

    def is_wanted(self) -> bool:
        """Whether progress may still be told: no longer once the answer is in the writer's hands."""
        return not self.cancelled and not self.answered

    def may_be_answered(self) -> bool:
        return not self.cancelled

    def cancel(self) -> None:
        self.cancelled = True
        self.scope.cancel()


class InFlight:
    """The table of calls by id, and whatever else keeps a session from being idle."""

    def __init__(self) -> None:
        self._calls: dict[Key, list[Call]] = {}
        self._others: dict[Key, int] = {}
        self._count = 0
        self._idle = trio.Event()

    def __len__(self) -> int:
        return self._count

    def add(self, call: Call) -> None:
        self._count += 1
        self._calls.setdefault(call.key, []).append(call)

    def remove(self, call: Call) -> None:
        calls = self._calls[call.key]
        calls.remove(call)
        if not calls:
            del self._calls[call.key]
        self._settled()

    def cancel(self, key: Key) -> None:
        """Cancel the newest call with this id, if there is one; the SDK's requests are the SDK's to cancel."""
        if key in self._calls:
            self._calls[key][-1].cancel()
        self.remove_other(key)

    def calls(self) -> list[Call]:
        return [call for calls in self._calls.values() for call in calls]

    def add_other(self, key: Key) -> None:
        """A request went to the SDK."""
        self._count += 1
        self._others[key] = self._others.get(key, 0) + 1

    def remove_other(self, key: Key) -> None:
        """The SDK has answered, or never will because it was cancelled."""
        if key in self._others:
            self._others[key] -= 1
            if not self._others[key]:
                del self._others[key]
            self._settled()

    def _settled(self) -> None:
        self._count -= 1
        if not self._count:
            self._idle.set()

    async def wait_idle(self) -> None:
        while len(self):
            self._idle = trio.Event()
            await self._idle.wait()


class ProgressTeller:
    """Writes progress notifications: every one of a page, and one every `KEEP_ALIVE_S` while a page is silent."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self._alive: deque[tuple[float, Call]] = deque()
        self._started = trio.Event()
        self._outgoing: deque[Call] = deque()
        self._has_outgoing = trio.Event()

    def start(self, call: Call) -> None:
        """Keep this call's client waiting from now on."""
        if call.token is not None:
            self._alive.append((trio.current_time() + KEEP_ALIVE_S, call))
            self._started.set()

    def report(self, call: Call, progress: Progress) -> None:
        """A progress frame of the page; only increasing values are legal in MCP."""
        value = float(progress.progress)
        if call.token is None or (call.page_progress is not None and value <= call.page_progress):
            return
        if len(call.waiting) >= MAX_WAITING_PROGRESS:
            logger.debug("progress of a call is dropped: its client does not read")
            return
        call.page_progress = value
        call.waiting.append(progress)
        self._outgoing.append(call)
        self._has_outgoing.set()

    async def settle(self, call: Call) -> None:
        """Return once everything reported so far is written, and the answer may follow."""
        while call.waiting:
            call.told = trio.Event()
            await call.told.wait()
        left = call.last_progress + PROGRESS_GAP_S - trio.current_time()
        if call.last_progress >= 0 and left > 0:
            await trio.sleep(left)
        with trio.move_on_after(PROGRESS_READ_S):
            while self._writer.has_unread():  # noqa: ASYNC110  (the system does not tell, it has to be asked)
                await trio.sleep(PROGRESS_GAP_S)

    async def run_reports(self) -> None:
        while True:
            while not self._outgoing:
                self._has_outgoing = trio.Event()
                await self._has_outgoing.wait()
            call = self._outgoing.popleft()
            progress = call.waiting[0]
            await self._write(call, progress)
            call.waiting.popleft()
            call.told.set()

    async def run_keep_alive(self) -> None:
        count: dict[Call, int] = {}
        while True:
            while not self._alive:
                self._started = trio.Event()
                await self._started.wait()
            due, call = self._alive.popleft()
            # A call that ends meanwhile costs one early look, not a task of its own.
            await trio.sleep_until(due)
            if not call.is_wanted() or call.page_progress is not None:
                count.pop(call, None)
                continue
            count[call] = count.get(call, 0) + 1
            await self._write(call, Progress(b"%d" % count[call], None, b'"still waiting for the page"'))
            self._alive.append((due + KEEP_ALIVE_S, call))

    async def _write(self, call: Call, progress: Progress) -> None:
        if not call.is_wanted() or call.token is None:
            return
        line = progress_line(call.token, progress.progress, progress.total, progress.message)
        await self._writer.write(line, wanted=call.is_wanted)
        call.last_progress = trio.current_time()
