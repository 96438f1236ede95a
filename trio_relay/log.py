"""Log lines to stderr and a file that can never hold up the relay: nobody may be reading them."""

from __future__ import annotations

import logging
import queue
import select
import sys
import threading
import time
from typing import TextIO

MAX_WAITING = 10_000
"""Lines that may wait for one slow stream; more are dropped, and counted."""

FORMAT = "%(asctime)s %(levelname)s %(message)s"


class PatientHandler(logging.Handler):
    """Writes from a daemon thread per stream, so that one nobody reads holds up no other; `emit` never waits.

    Each record becomes one line: a page's words in it cannot start another.
    """

    def __init__(self, streams: list[TextIO]) -> None:
        super().__init__()
        self._outlets = [_Outlet(stream) for stream in streams]

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        first, *rest = text.splitlines() or [""]
        line = "\n".join([_printable(first), *(f"  {_printable(more)}" for more in rest)]) + "\n"
        for outlet in self._outlets:
            outlet.put(line)

    def settle(self, seconds: float) -> None:
        """Give what was logged a little time to be written."""
        until = time.monotonic() + seconds
        while any(outlet.busy for outlet in self._outlets) and time.monotonic() < until:
            time.sleep(0.005)


class _Outlet:
    """One stream, its thread, and the lines that wait for it."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: queue.Queue[str] = queue.Queue(MAX_WAITING)
        self._dropped = 0
        threading.Thread(target=self._write, name="log", daemon=True).start()

    @property
    def busy(self) -> bool:
        return self._lines.unfinished_tasks > 0

    def put(self, line: str) -> None:
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while True:
            line = self._lines.get()
            if self._dropped:
                line += f"({self._dropped} log lines were dropped: nobody read them)\n"
                self._dropped = 0
            _write_patiently(self._stream, line)
            self._lines.task_done()


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _write_patiently(stream: TextIO, line: str) -> None:
    """Write to a stream whose descriptor may have become non-blocking (it can be one with stdout)."""
    data = line.encode(errors="backslashreplace")
    try:
        raw = stream.buffer
        raw = getattr(raw, "raw", raw)
        while data:
            sent = raw.write(data)
            if sent is None:
                select.select([], [stream.fileno()], [], 1.0)
            else:
                data = data[sent:]
    except (OSError, ValueError):
        pass  # closed: there is nobody to tell


def set_up_logging(level: str, path: str | None) -> PatientHandler:
    """Send all log records to stderr, and to `path` if given (appended).

    Raises:
        OSError: the file cannot be opened.
    """
    streams: list[TextIO] = [] if sys.stderr is None else [sys.stderr]
    if path is not None:
        streams.append(open(path, "a", encoding="utf-8", buffering=1))  # noqa: SIM115  # open until the process ends
    handler = PatientHandler(streams)
    handler.setFormatter(logging.Formatter(FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("trio_relay").setLevel(level.upper())
    # The SDK warns of requests a client may send at will; our answers say it already.
    logging.getLogger("mcp").setLevel(logging.ERROR if level != "debug" else logging.DEBUG)
    return handler
