"""What the provider side remembers, in files under `~/.webmcp/provider/`: the policy, who asked, what waits.

The files are the truth: each question looks at them, so a change by a command, another relay or an editor holds at
once. A file that cannot be read never means "allowed", and never ends a program.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from trio_relay.core import policy as rules
from trio_relay.core.policy import PendingCaller, Policy, Standing, standing_of
from trio_relay.core.text import tidy
from trio_relay.errors import RelayError
from trio_relay.extensions.files import locked, write_private
from trio_relay.wire.codec import encode

MAX_FILE_BYTES = 1 << 20
MAX_PENDING = 100
"""Callers that may wait for approval; the oldest gives way. Each is an extension somebody has installed."""
MAX_NAME_CHARS = 100

SETTLED_S = 2.0
"""A file that was changed less than this before it was read is read again: two changes within one tick of a file
system's clock can look the same from outside."""


class StoreProblem(RelayError):
    """A file cannot be read, or does not hold what it should. The message names it and says what to do."""


class ReviewRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A review as other processes see it; without the arguments of the call."""

    review_id: str
    sender_id: str
    tool: str
    since: str


_File = TypeVar("_File")


class _Cached(Generic[_File]):
    """One file: read when its signature (inode, size, times) has changed, else as it was."""

    def __init__(self, path: Path, kind: type[_File], default: _File) -> None:
        self.path = path
        self._decoder = msgspec.json.Decoder(kind)
        self._default = default
        self._signature: tuple[int, ...] | None = None
        self._known: _File | StoreProblem = default
        # Calls ask from several threads: one that has read the old file must not overwrite what another read since.
        self._reading = threading.Lock()

    def read(self) -> _File:
        """The content; the default where there is no file. Raises `StoreProblem`."""
        with self._reading:
            known = self._look()
        if isinstance(known, StoreProblem):
            raise known
        return known

    def _look(self) -> _File | StoreProblem:
        try:
            signature = _signature(self.path)
            if signature is None or signature != self._signature:
                self._known = self._load()
                self._signature = signature if signature is not None and _is_settled(signature) else None
        except FileNotFoundError:
            self._signature, self._known = None, self._default
        except OSError as error:
            self._signature, self._known = None, StoreProblem(f"{self.path} cannot be read: {error.strerror or error}")
        return self._known

    def _load(self) -> _File | StoreProblem:
        with self.path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        try:
            if len(data) > MAX_FILE_BYTES:
                raise ValueError(f"longer than {MAX_FILE_BYTES} bytes")
            return self._decoder.decode(data)
        except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            return StoreProblem(f"{self.path} is damaged ({error}). Mend it or remove it.")


def _signature(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev, stat.st_size


def _is_settled(signature: tuple[int, ...]) -> bool:
    newest = max(signature[:2])
    return newest + int(SETTLED_S * 1e9) < time.time_ns()


class ProviderStore:
    """The files of the provider side.

    Args:
        directory: `~/.webmcp/provider`; created, with mode 0700, at the first write.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._policy = _Cached(directory / "policy.json", Policy, Policy())
        self._pending = _Cached(directory / "pending.json", tuple[PendingCaller, ...], ())
        self._reviews = _Cached(directory / "reviews.json", tuple[ReviewRow, ...], ())

    def __repr__(self) -> str:
        return f"<ProviderStore: {self.directory}>"

    def policy(self) -> Policy:
        """The policy of this moment. One that cannot be read has everything off; `problem` says why."""
        try:
            return self._policy.read()
        except StoreProblem:
            return Policy()

    def problem(self) -> str | None:
        """What is wrong with the policy file; None when nothing is."""
        try:
            self._policy.read()
        except StoreProblem as problem:
            return str(problem)
        return None

    def change(self, step: Callable[[Policy], Policy]) -> Policy:
        """Change the policy: no change of another process in between is lost. Returns the new one.

        Raises:
            StoreProblem: the file is damaged (it is never overwritten), or cannot be written.
        """
        with self._writing(self._policy.path):
            before = self._policy.read()
            after = step(before)
            if after != before:
                write_private(self._policy.path, encode(after) + b"\n")
        return after

    def allow(self, extension_id: str) -> Policy:
        """Put a caller on the allow-list. Raises `ConfigError` for what is no extension id, and `StoreProblem`."""
        after = self.change(lambda policy: rules.allow(policy, extension_id))
        self._drop_pending(extension_id)
        return after

    def deny(self, extension_id: str) -> Policy:
        """Turn a caller down, now and later. Raises `ConfigError` for what is no extension id, and `StoreProblem`."""
        after = self.change(lambda policy: rules.deny(policy, extension_id))
        self._drop_pending(extension_id)
        return after

    def pending(self) -> tuple[PendingCaller, ...]:
        """Who waits for approval, oldest first. Raises `StoreProblem`."""
        policy = self.policy()
        return tuple(
            caller for caller in self._pending.read() if standing_of(policy, caller.extension_id) is Standing.UNKNOWN
        )

    def ask(self, extension_id: str, name: str = "", version: str = "") -> bool:
        """Note that a caller has asked. Nothing is noted of one that is known, or while the endpoint is off.

        Returns:
            Whether the caller is among the pending ones now.

        Raises:
            StoreProblem: a file is damaged or cannot be written.
        """
        policy = self.policy()
        if not policy.enabled or standing_of(policy, extension_id) is not Standing.UNKNOWN:
            return False
        if any(caller.extension_id == extension_id for caller in self.pending()):
            return True
        now = datetime.now(UTC).isoformat(timespec="seconds")
        caller = PendingCaller(extension_id, tidy(name, MAX_NAME_CHARS), tidy(version, MAX_NAME_CHARS), now)
        with self._writing(self._pending.path):
            others = [other for other in self._pending.read() if other.extension_id != extension_id]
            write_private(self._pending.path, encode([*others[-(MAX_PENDING - 1) :], caller]) + b"\n")
        return True

    def reviews(self) -> tuple[ReviewRow, ...]:
        """What waited for a decision when the relay last said so. Raises `StoreProblem`."""
        return self._reviews.read()

    def show_reviews(self, rows: tuple[ReviewRow, ...]) -> None:
        """Tell other processes what waits. Only the relay that decides may call this. Raises `StoreProblem`."""
        with self._writing(self._reviews.path):
            write_private(self._reviews.path, encode(rows) + b"\n")

    def _drop_pending(self, extension_id: str) -> None:
        # The decision is made and written: a damaged list of those who wait may not make it look as if it were not.
        with suppress(StoreProblem), self._writing(self._pending.path):
            before = self._pending.read()
            after = tuple(caller for caller in before if caller.extension_id != extension_id)
            if after != before:
                write_private(self._pending.path, encode(after) + b"\n")

    @contextmanager
    def _writing(self, path: Path) -> Iterator[None]:
        try:
            with locked(self.directory / "lock"):
                yield
        except OSError as error:
            raise StoreProblem(f"{path} cannot be written: {error.strerror or error}") from None
