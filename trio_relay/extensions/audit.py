"""The audit log of the provider side: what was asked to be changed, by whom, and what came of it; never with which
values.

A write that is executed has two lines with one id: the intent, on the disk before the execution begins, and the
outcome. One that is never executed has a single line. Several processes may write to one log.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path

import msgspec

from trio_relay.core.policy import Refusal
from trio_relay.errors import NotSent, RelayError
from trio_relay.extensions.files import create_private, locked, write_all

MAX_BYTES = 10_000_000
"""Size at which a new file is begun."""
KEPT_FILES = 3
"""Earlier files that stay: audit.jsonl.1 (the newest) to audit.jsonl.3."""
MAX_VALUE_CHARS = 200
KEY_BYTES = 32


class Outcome(Enum):
    """How an execution ended, in our own words: what a tool says could hold an argument."""

    OK = "ok"
    TOOL_ERROR = "error"  # the tool says that it failed
    FAILED = "failed"  # no answer, or none that can be used; it may have run
    TIMED_OUT = "timed-out"  # it may have run
    CANCELLED = "cancelled"  # it may have run


class NotRecorded(NotSent):
    """The audit log could not be written, so the call was not executed."""


class OutcomeNotRecorded(RelayError):
    """The call has been executed, but the audit log does not say how it ended: its disk is full, or it is gone."""

    may_have_run = True


class AuditLine(msgspec.Struct, frozen=True):
    """One line.

    Attributes:
        time: ISO-8601, UTC, with milliseconds.
        id: The same in the intent and the outcome of one call.
        event: `intent`, `outcome`, or `refused` for a call that was never executed.
        tool: The public name that was called, as the caller wrote it, cut at 200 characters.
        sender: Extension id, as the browser supplied it.
        result: `started`, a value of `Outcome`, or a value of `Refusal`.
        target: sourceId of the tab that was meant; empty where none was found.
        digest: Keyed hash of the bytes of the arguments.
    """

    time: str
    id: str
    event: str
    tool: str
    sender: str
    result: str
    target: str
    digest: str


class AuditLog:
    """Appends lines. Every method that writes blocks until the line is on the disk: some milliseconds as a rule.

    Args:
        directory: `~/.webmcp/provider`.
        now: For tests.
    """

    def __init__(self, directory: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self.path = directory / "audit.jsonl"
        self._key_path = directory / "audit.key"
        self._lock_path = directory / "audit.lock"
        self._now = now
        self._key: bytes | None = None

    def __repr__(self) -> str:
        return f"<AuditLog: {self.path}>"

    def intent(self, tool: str, sender: str, target: str, arguments: bytes) -> OpenEntry:
        """Record that a write is about to be executed.

        Args:
            arguments: JSON text as it came; only its digest is kept.

        Returns:
            What the outcome is recorded with, exactly once.

        Raises:
            NotRecorded: the call must not be executed.
        """
        return OpenEntry(self, self._record("intent", tool, sender, target, arguments, "started"))

    def refused(self, tool: str, sender: str, target: str, arguments: bytes, why: Refusal) -> None:
        """Record a write that is not executed. Raises `NotRecorded`: it is not executed all the same."""
        self._record("refused", tool, sender, target, arguments, why.value)

    def _record(self, event: str, tool: str, sender: str, target: str, arguments: bytes, result: str) -> AuditLine:
        try:
            digest = "hmac-sha256:" + hmac.digest(self._read_key(), arguments, "sha256").hex()
            entry = secrets.token_hex(8)
            line = AuditLine(
                self._time(), entry, event, _capped(tool), _capped(sender), result, _capped(target), digest
            )
            self._append(line)
        except OSError as error:
            cause = f"{self.path.parent}: {error.strerror or error}"
            raise NotRecorded(f"The audit log cannot be written ({cause}), so the call was not executed.") from None
        return line

    def _time(self) -> str:
        return self._now().astimezone(UTC).isoformat(timespec="milliseconds")

    def _read_key(self) -> bytes:
        if self._key is None:
            if not self._key_path.exists():
                create_private(self._key_path, secrets.token_bytes(KEY_BYTES))
            key = self._key_path.read_bytes()
            if len(key) != KEY_BYTES:
                raise OSError(f"{self._key_path.name} does not hold {KEY_BYTES} bytes; remove it")
            self._key = key
        return self._key

    def _append(self, line: AuditLine) -> None:
        """Raises `OSError`."""
        data = _encode(line)
        with locked(self._lock_path):
            self._rotate(len(data))
            _append(self.path, data)

    def _rotate(self, coming: int) -> None:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            return
        if size + coming <= MAX_BYTES:
            return
        files = [self.path, *(_earlier(self.path, number) for number in range(1, KEPT_FILES + 1))]
        for older, newer in zip(reversed(files[1:]), reversed(files[:-1]), strict=True):
            if newer.exists():
                newer.replace(older)


class OpenEntry:
    """An execution whose outcome is not recorded yet."""

    def __init__(self, log: AuditLog, line: AuditLine) -> None:
        self._log = log
        self._line = line
        self._is_open = True

    def __repr__(self) -> str:
        return f"<OpenEntry: {self._line.id} {'open' if self._is_open else 'closed'}>"

    def outcome(self, result: Outcome) -> None:
        """Record how it ended; a second outcome is ignored. Raises `OutcomeNotRecorded`."""
        if not self._is_open:
            return
        self._is_open = False
        line = msgspec.structs.replace(self._line, time=self._log._time(), event="outcome", result=result.value)
        try:
            self._log._append(line)
        except OSError as error:
            raise OutcomeNotRecorded(
                f"The call was executed, but the audit log cannot say how it ended: {error.strerror or error}."
            ) from None


def read_audit(directory: Path, *, tail: int | None = None, caller: str | None = None) -> list[AuditLine]:
    """The last lines of the log, oldest first, over all its files.

    Lines that cannot be read (a torn one after a power cut, or edited by hand) are left out.

    Args:
        tail: How many lines at most; None for all.
        caller: Only lines with this sender.

    Raises:
        OSError: a file is there and cannot be read.
    """
    path = directory / "audit.jsonl"
    found: deque[AuditLine] = deque()
    for file in (path, *(_earlier(path, number) for number in range(1, KEPT_FILES + 1))):
        for line in _lines_backwards(file):
            if tail is not None and len(found) >= tail:
                return list(found)
            if caller is None or line.sender == caller:
                found.appendleft(line)
    return list(found)


def _lines_backwards(file: Path) -> Iterator[AuditLine]:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return
    for text in reversed(data.split(b"\n")):
        try:
            yield _lines.decode(text)
        except (ValueError, RecursionError):
            continue


_lines = msgspec.json.Decoder(AuditLine)


def _append(path: Path, data: bytes) -> None:
    """Append one line, in one write, and see it onto the disk; a part of it does not stay."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
    fd = os.open(path, flags, 0o600)
    try:
        if os.fstat(fd).st_mode & 0o077:
            path.chmod(0o600)
        end = os.fstat(fd).st_size
        if end and _last_byte(fd, end) != b"\n":
            data = b"\n" + data  # after a power cut: the torn line must not take this one with it
        try:
            write_all(fd, data)
            os.fsync(fd)
        except OSError:
            os.ftruncate(fd, end)  # whoever appends holds the lock, so nothing else is cut
            raise
    finally:
        os.close(fd)


def _last_byte(fd: int, end: int) -> bytes:
    os.lseek(fd, end - 1, os.SEEK_SET)
    return os.read(fd, 1)


def _encode(line: AuditLine) -> bytes:
    # ASCII only: control characters, line separators and marks that turn the direction of text are all escaped.
    return json.dumps(msgspec.structs.asdict(line), separators=(",", ":")).encode("ascii") + b"\n"


def _capped(text: str) -> str:
    """At most 200 characters; half of a surrogate pair, which readers of JSON refuse, becomes U+FFFD."""
    short = text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"
    return short.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _earlier(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
