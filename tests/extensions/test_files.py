"""Private files: their modes, all or nothing, and the lock."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from trio_relay.extensions import files
from trio_relay.extensions.files import create_private, locked, make_private_directory, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_its_owner_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_private(tmp_path / "new" / "file", b"x")
        create_private(tmp_path / "new" / "key", b"y")
        with locked(tmp_path / "new" / "lock"):
            pass
    finally:
        os.umask(before)
    assert mode(tmp_path / "new") == 0o700
    assert [mode(path) for path in sorted((tmp_path / "new").iterdir())] == [0o600] * 3


def test_a_directory_that_is_open_to_others_is_closed_and_its_parent_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    directory = tmp_path / "provider"
    directory.mkdir()
    directory.chmod(0o777)
    make_private_directory(directory)
    assert (mode(directory), mode(tmp_path)) == (0o700, 0o755)


def test_a_file_open_to_others_is_replaced_by_a_private_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o666)
    write_private(path, b"new")
    assert (path.read_bytes(), mode(path)) == (b"new", 0o600)


def full_disk(fd: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


def half_full_disk(fd: int, data: bytes) -> int:
    return REAL_WRITE(fd, data[: len(data) // 2])


REAL_WRITE = os.write


@pytest.mark.parametrize("write", [full_disk, half_full_disk])
def test_on_a_full_disk_the_old_content_stays_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object
) -> None:
    write_private(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "write", write)
    for attempt in (write_private, create_private):
        with pytest.raises(OSError, match=r"No space|only a part"):
            attempt(tmp_path / "file", b"newer content")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_the_first_who_creates_a_file_wins(tmp_path: Path) -> None:
    create_private(tmp_path / "key", b"first")
    create_private(tmp_path / "key", b"second")
    assert (tmp_path / "key").read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [tmp_path / "key"]


@pytest.mark.skipif(sys.platform == "win32", reason="locks of one process do not exclude it there")
def test_a_lock_that_is_held_for_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "PATIENCE_S", 0.02)
    with (
        locked(tmp_path / "lock"),
        pytest.raises(TimeoutError, match="another process holds lock"),
        locked(tmp_path / "lock"),
    ):
        pass
    with locked(tmp_path / "lock"):
        pass


def test_a_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib\nfrom trio_relay.extensions.files import locked\n"
        "with locked(pathlib.Path(sys.argv[1])): os._exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], timeout=30, check=False)
    assert done.returncode == 3
    with locked(tmp_path / "lock"):
        pass
