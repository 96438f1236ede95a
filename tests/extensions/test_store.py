"""The provider's files: read anew when they change, never believed when damaged, never half written."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trio_relay.core.policy import Policy
from trio_relay.errors import ConfigError
from trio_relay.extensions import store as module
from trio_relay.extensions.store import MAX_PENDING, ProviderStore, ReviewRow, StoreProblem

FRIEND, STRANGER, FOE = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
def store(tmp_path: Path) -> ProviderStore:
    return ProviderStore(tmp_path / "provider")


def switched(store: ProviderStore, **switches: Any) -> Policy:
    return store.change(lambda policy: msgspec.structs.replace(policy, **switches))


def age(path: Path, seconds: float = 3_600.0) -> None:
    """Make a file look as if it had been changed long ago."""
    os.utime(path, (time.time() - seconds,) * 2)


def test_without_files_everything_is_off_and_nothing_is_created(store: ProviderStore) -> None:
    assert store.policy() == Policy()
    assert store.problem() is None
    assert (store.pending(), store.reviews()) == ((), ())
    assert not store.directory.exists()


def test_a_change_is_seen_by_other_stores_at_once(store: ProviderStore) -> None:
    other = ProviderStore(store.directory)
    assert other.policy() == Policy()
    for on in (True, False, True):
        switched(store, enabled=on)
        assert other.policy().enabled is on


def test_threads_that_ask_at_once_do_not_overwrite_what_the_others_have_read(
    store: ProviderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched(store, enabled=True)
    load, busy, overlaps = store._policy._load, threading.Lock(), []

    def slow_load() -> Policy | StoreProblem:
        if not busy.acquire(blocking=False):
            overlaps.append("two reads at once")
            return load()
        try:
            time.sleep(0.002)
            return load()
        finally:
            busy.release()

    monkeypatch.setattr(store._policy, "_load", slow_load)
    threads = [threading.Thread(target=store.policy) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == []


def test_files_are_private(store: ProviderStore) -> None:
    switched(store, enabled=True)
    store.ask(STRANGER)
    store.show_reviews((ReviewRow("1", FRIEND, "save", "now"),))
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in store.directory.iterdir()}
    assert modes == dict.fromkeys(["policy.json", "pending.json", "reviews.json", "lock"], 0o600)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"\xff\xfe",
        b'{"enabled":"yes"}',
        b'{"enabled":1}',
        b'{"enabled":true,"allowed":["Lumo"]}',
        b'{"enabled":true,"reveiw":true}',
        b'{"enabled":true}{"enabled":true}',
        b'{"enabled":true,"allowed":' + b"[" * 100_000,
        b" " * (1 << 20) + b'{"enabled":true}',
    ],
)
def test_a_damaged_policy_means_off_is_named_and_is_never_overwritten(store: ProviderStore, content: bytes) -> None:
    switched(store, enabled=True)
    path = store.directory / "policy.json"
    path.write_bytes(content)
    assert store.policy() == Policy()
    problem = store.problem()
    assert problem is not None
    assert str(path) in problem
    assert "damaged" in problem
    with pytest.raises(StoreProblem, match="damaged"):
        store.allow(FRIEND)
    assert path.read_bytes() == content
    path.write_bytes(b'{"enabled":true}')
    assert store.policy() == Policy(enabled=True)
    assert store.problem() is None


def test_a_policy_that_cannot_be_read_means_off(store: ProviderStore) -> None:
    (store.directory / "policy.json").mkdir(parents=True)
    assert store.policy() == Policy()
    problem = store.problem()
    assert problem is not None
    assert "cannot be read" in problem


def test_a_file_that_goes_away_means_off(store: ProviderStore) -> None:
    switched(store, enabled=True)
    assert store.policy().enabled
    (store.directory / "policy.json").unlink()
    assert store.policy() == Policy()


def test_a_file_that_has_not_changed_is_not_read_again(store: ProviderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    # The time of the inode's change cannot be set back, so the clock is set forward.
    switched(store, enabled=True)
    tomorrow = time.time_ns() + 86_400 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: tomorrow)
    assert store.policy().enabled
    reads: list[Path] = []

    def load(cached: module._Cached[Policy]) -> Policy:
        reads.append(cached.path)
        return Policy()

    monkeypatch.setattr(module._Cached, "_load", load)
    assert store.policy().enabled
    assert reads == []
    age(store.directory / "policy.json", 7_200.0)
    assert not store.policy().enabled
    assert reads == [store.directory / "policy.json"]


def test_a_file_that_has_just_changed_is_read_again_even_if_it_looks_the_same(
    store: ProviderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two changes of one size within a tick of the file system's clock, in an inode that is used again."""
    switched(store, allowed=(FRIEND,))
    now = time.time_ns()
    monkeypatch.setattr(module, "_signature", lambda path: (now, now, 1, 1, path.stat().st_size))
    assert store.policy().allowed == (FRIEND,)
    path = store.directory / "policy.json"
    path.write_bytes(path.read_bytes().replace(FRIEND.encode(), FOE.encode()))
    assert store.policy().allowed == (FOE,)


def test_of_two_processes_that_change_the_policy_neither_loses_a_change(store: ProviderStore) -> None:
    code = (
        "import sys, pathlib\nfrom trio_relay.extensions.store import ProviderStore\n"
        "store = ProviderStore(pathlib.Path(sys.argv[1]))\n"
        "for letter in sys.argv[2]: store.allow(letter * 32)"
    )
    letters = ("abcdefgh", "ijklmnop")
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(store.directory), part], stderr=subprocess.PIPE)
        for part in letters
    ]
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert errors == b""
    assert sorted(store.policy().allowed) == [letter * 32 for letter in "".join(letters)]


def test_an_unknown_caller_waits_until_somebody_decides(store: ProviderStore) -> None:
    switched(store, enabled=True)
    assert store.ask(STRANGER, "Lumo\n\x1b[31m", "1" * 1_000)
    assert store.ask(STRANGER, "Another name")
    (caller,) = store.pending()
    assert (caller.extension_id, caller.name, len(caller.version)) == (STRANGER, "Lumo  [31m", 100)
    assert store.allow(STRANGER).allowed == (STRANGER,)
    assert store.pending() == ()
    assert not store.ask(STRANGER)


def test_a_caller_who_was_denied_does_not_ask_again(store: ProviderStore) -> None:
    switched(store, enabled=True)
    store.ask(FOE)
    assert store.deny(FOE).denied == (FOE,)
    assert not store.ask(FOE)
    assert store.pending() == ()


@pytest.mark.parametrize("sender", ["", "Lumo", STRANGER + "\n"])
def test_what_is_no_extension_id_neither_asks_nor_is_allowed(store: ProviderStore, sender: str) -> None:
    switched(store, enabled=True)
    assert not store.ask(sender)
    for step in (store.allow, store.deny):
        with pytest.raises(ConfigError):
            step(sender)
    assert store.policy() == Policy(enabled=True)


def test_while_the_endpoint_is_off_nobody_is_noted(store: ProviderStore) -> None:
    assert not store.ask(STRANGER)
    assert not store.directory.exists()


def test_a_caller_who_asks_again_writes_nothing(store: ProviderStore) -> None:
    switched(store, enabled=True)
    store.ask(STRANGER)
    before = (store.directory / "pending.json").stat()
    store.ask(STRANGER)
    after = (store.directory / "pending.json").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_the_oldest_of_too_many_pending_callers_gives_way(store: ProviderStore) -> None:
    switched(store, enabled=True)
    ids = [f"{'abcdefghijklmnop'[n % 16]}{'abcdefghijklmnop'[n // 16]}".ljust(32, "a") for n in range(MAX_PENDING + 1)]
    for extension_id in ids:
        store.ask(extension_id)
    assert [caller.extension_id for caller in store.pending()] == ids[1:]


def test_a_damaged_list_of_pending_callers_does_not_undo_a_decision(store: ProviderStore) -> None:
    switched(store, enabled=True)
    (store.directory / "pending.json").write_bytes(b"{")
    with pytest.raises(StoreProblem, match=r"pending\.json is damaged"):
        store.ask(STRANGER)
    assert store.allow(STRANGER).allowed == (STRANGER,)


def test_reviews_are_shown_without_arguments(store: ProviderStore) -> None:
    rows = (ReviewRow("1", FRIEND, "save", "2026-01-01T00:00:00+00:00"),)
    store.show_reviews(rows)
    assert ProviderStore(store.directory).reviews() == rows
    (written,) = json.loads((store.directory / "reviews.json").read_bytes())
    assert written.keys() == {"review_id", "sender_id", "tool", "since"}


def test_on_a_full_disk_a_change_fails_with_words_and_the_old_policy_stays(
    store: ProviderStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    switched(store, enabled=True)

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreProblem, match="cannot be written: No space left on device"):
        store.allow(FRIEND)
    assert store.policy() == Policy(enabled=True)
