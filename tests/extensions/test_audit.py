"""D03: the audit log. One JSON object a line, no argument values, and nothing passes unrecorded."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_relay.core.policy import Refusal
from trio_relay.extensions import audit
from trio_relay.extensions.audit import AuditLog, NotRecorded, Outcome, OutcomeNotRecorded, read_audit

CALLER, OTHER = "a" * 32, "b" * 32
TARGET = "3f0c8d52-0c1e-4a52-9a7e-2f6d3a1b7c90"
SECRET = "hunter2"
ARGUMENTS = b'{"script":"steal(\'hunter2\')"}'


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    return AuditLog(tmp_path / "provider", lambda: datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC))


def lines(log: AuditLog) -> list[dict[str, Any]]:
    """Every line, read strictly."""
    text = log.path.read_bytes()
    assert text.endswith(b"\n")
    return [json.loads(line) for line in text.decode("ascii")[:-1].split("\n")]


def test_an_executed_write_has_an_intent_and_an_outcome_with_one_id(log: AuditLog) -> None:
    entry = log.intent("save", CALLER, TARGET, ARGUMENTS)
    (intent,) = lines(log)
    entry.outcome(Outcome.OK)
    entry.outcome(Outcome.FAILED)
    first, second = lines(log)
    assert first == intent
    digest = first.pop("digest")
    assert re.fullmatch(r"hmac-sha256:[0-9a-f]{64}", digest)
    assert first == {
        "time": "2026-01-02T03:04:05.678+00:00",
        "id": second["id"],
        "event": "intent",
        "tool": "save",
        "sender": CALLER,
        "result": "started",
        "target": TARGET,
    }
    assert second == first | {"event": "outcome", "result": "ok", "digest": digest}


@pytest.mark.parametrize("why", list(Refusal))
def test_a_write_that_is_not_executed_has_one_line(log: AuditLog, why: Refusal) -> None:
    log.refused("save", CALLER, "", ARGUMENTS, why)
    (line,) = lines(log)
    assert (line["event"], line["result"], line["target"]) == ("refused", why.value, "")


def test_ids_differ_and_digests_tell_arguments_apart(log: AuditLog) -> None:
    for arguments in (b"{}", b"{}", b'{"a":1}'):
        log.intent("save", CALLER, TARGET, arguments)
    one, same, other = lines(log)
    assert len({one["id"], same["id"], other["id"]}) == 3
    assert one["digest"] == same["digest"] != other["digest"]


def test_a_digest_cannot_be_made_without_the_key(log: AuditLog, tmp_path: Path) -> None:
    other = AuditLog(tmp_path / "other")
    for one in (log, other):
        one.intent("save", CALLER, TARGET, b"{}")
    assert lines(log)[0]["digest"] != lines(other)[0]["digest"]
    again = AuditLog(log.path.parent)
    again.intent("save", CALLER, TARGET, b"{}")
    assert lines(log)[0]["digest"] == lines(log)[1]["digest"]


def test_no_value_of_an_argument_is_anywhere_in_the_files(log: AuditLog) -> None:
    big = b'{"password":"' + SECRET.encode() * 150_000 + b'"}'
    for arguments in (ARGUMENTS, big):
        log.intent("save", CALLER, TARGET, arguments).outcome(Outcome.TOOL_ERROR)
        log.refused("save", CALLER, TARGET, arguments, Refusal.WRITES_OFF)
    for path in log.path.parent.iterdir():
        assert SECRET.encode() not in path.read_bytes()
    assert log.path.stat().st_size < 3_000


ODD = [
    'a\n{"event":"outcome","result":"ok"}\r\n',
    "\x00\x07\x1b[2J\x7f\x85",
    "\u2028\u2029\u202e\ufeff",
    "\ud83d",
    "\udc00\ud800",
    "x\ud83d\ude00",
    "y" * 1_000_000,
    "😀" * 1_000_000,
    "\n" * 1_000_000,
    "",
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_odd_values_are_escaped_and_capped_on_one_line_each(log: AuditLog, odd: str) -> None:
    log.refused(odd, odd, odd, b"{}", Refusal.NOT_ALLOWED)
    log.intent(odd, odd, odd, b"{}").outcome(Outcome.OK)
    for line in lines(log):
        assert len(line["tool"]) <= audit.MAX_VALUE_CHARS
        line["tool"].encode()  # no half of a surrogate pair
    assert max(map(len, log.path.read_bytes().split(b"\n"))) < 10_000
    assert re.fullmatch(rb"[ -~\n]*", log.path.read_bytes())
    assert len(read_audit(log.path.parent)) == 3


def test_files_are_private(log: AuditLog) -> None:
    before = os.umask(0)
    try:
        log.intent("save", CALLER, TARGET, b"{}")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in log.path.parent.iterdir()}
    assert modes == dict.fromkeys(["audit.jsonl", "audit.key", "audit.lock"], 0o600)
    assert stat.S_IMODE(log.path.parent.stat().st_mode) == 0o700
    log.path.chmod(0o644)
    log.intent("save", CALLER, TARGET, b"{}")
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


REAL_WRITE = os.write


def full_disk(fd: int, data: bytes) -> int:
    raise OSError(28, "No space left on device")


def half_full_disk(fd: int, data: bytes) -> int:
    return REAL_WRITE(fd, data[:50])


def broken_sync(fd: int) -> None:
    raise OSError(5, "Input/output error")


@pytest.mark.parametrize(("name", "broken"), [("write", full_disk), ("write", half_full_disk), ("fsync", broken_sync)])
def test_an_intent_that_cannot_be_written_refuses_the_call_and_leaves_no_part_of_a_line(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch, name: str, broken: Any
) -> None:
    log.intent("first", CALLER, TARGET, b"{}")
    with monkeypatch.context() as patch:
        patch.setattr(os, name, broken)
        with pytest.raises(NotRecorded, match=r"cannot be written .* so the call was not executed") as caught:
            log.intent("second", CALLER, TARGET, b"{}")
        assert not caught.value.may_have_run
        with pytest.raises(NotRecorded):
            log.refused("second", CALLER, TARGET, b"{}", Refusal.WRITES_OFF)
    log.intent("third", CALLER, TARGET, b"{}")
    assert [line["tool"] for line in lines(log)] == ["first", "third"]


def test_an_outcome_that_cannot_be_written_is_reported_as_executed(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = log.intent("save", CALLER, TARGET, b"{}")
    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(OutcomeNotRecorded, match=r"was executed, but .* No space left on device") as caught:
        entry.outcome(Outcome.OK)
    assert caught.value.may_have_run


def test_the_first_line_on_a_full_disk_is_refused_for_want_of_a_key(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        with pytest.raises(NotRecorded, match="No space left"):
            log.intent("save", CALLER, TARGET, b"{}")
    assert list(log.path.parent.iterdir()) == []
    log.intent("save", CALLER, TARGET, b"{}")


def test_a_directory_that_cannot_be_made_refuses_the_call(tmp_path: Path) -> None:
    (tmp_path / "provider").write_bytes(b"a file")
    with pytest.raises(NotRecorded):
        AuditLog(tmp_path / "provider").intent("save", CALLER, TARGET, b"{}")


def test_a_log_that_is_no_file_refuses_the_call(log: AuditLog) -> None:
    log.path.mkdir(parents=True)
    with pytest.raises(NotRecorded):
        log.intent("save", CALLER, TARGET, b"{}")


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 33])
def test_a_damaged_key_refuses_the_call_and_says_so(log: AuditLog, key: bytes) -> None:
    log.path.parent.mkdir()
    (log.path.parent / "audit.key").write_bytes(key)
    with pytest.raises(NotRecorded, match=r"audit\.key does not hold 32 bytes; remove it"):
        log.intent("save", CALLER, TARGET, b"{}")


def test_a_line_torn_by_a_power_cut_costs_no_other(log: AuditLog) -> None:
    log.intent("first", CALLER, TARGET, b"{}")
    with log.path.open("ab") as file:
        file.write(b'{"time":"2026')
    log.intent("second", CALLER, TARGET, b"{}")
    with log.path.open("ab") as file:
        file.write(b'{"time":"2026')
    assert [line.tool for line in read_audit(log.path.parent)] == ["first", "second"]


def test_the_reader_leaves_out_what_is_no_line(log: AuditLog) -> None:
    log.intent("save", CALLER, TARGET, b"{}")
    with log.path.open("ab") as file:
        file.write(b'\nnull\n{}\n\xff\n{"time":5}\n' + b"[" * 100_000 + b"\n")
    assert [line.tool for line in read_audit(log.path.parent)] == ["save"]


def test_the_reader_gives_the_last_lines_of_one_caller_oldest_first(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_BYTES", 1_000)
    for number in range(8):
        log.intent(f"t{number}", (CALLER, OTHER)[number % 2], TARGET, b"{}")
    assert log.path.with_name("audit.jsonl.2").exists()

    def tools(tail: int | None = None, caller: str | None = None) -> list[str]:
        return [line.tool for line in read_audit(log.path.parent, tail=tail, caller=caller)]

    assert tools() == [f"t{number}" for number in range(8)]
    assert tools(3) == ["t5", "t6", "t7"]
    assert tools(3, OTHER) == ["t3", "t5", "t7"]
    assert tools(100, CALLER) == ["t0", "t2", "t4", "t6"]
    assert tools(0) == []
    assert tools(5, "c" * 32) == []


def test_without_a_log_there_is_nothing_to_read(tmp_path: Path) -> None:
    assert read_audit(tmp_path / "nowhere", tail=5) == []


def test_the_log_is_rotated_at_its_limit_and_three_earlier_files_stay(
    log: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert audit.MAX_BYTES == 10_000_000
    log.intent("t00", CALLER, TARGET, b"{}")
    size = log.path.stat().st_size
    monkeypatch.setattr(audit, "MAX_BYTES", 2 * size)
    for number in range(1, 12):
        log.intent(f"t{number:02}", CALLER, TARGET, b"{}")
    files = sorted(path.name for path in log.path.parent.glob("audit.jsonl*"))
    assert files == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"]
    for path in log.path.parent.glob("audit.jsonl*"):
        assert path.stat().st_size == 2 * size
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [line.tool for line in read_audit(log.path.parent)] == [f"t{number:02}" for number in range(4, 12)]


def test_two_processes_append_whole_lines_with_one_key_and_lose_none(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\nfrom trio_relay.extensions import audit\naudit.MAX_BYTES = 5_000\naudit.KEPT_FILES = 50\n"
        "log = audit.AuditLog(pathlib.Path(sys.argv[1]))\n"
        "for n in range(40): log.intent(f'{sys.argv[2]}{n}', 'a' * 32, '', b'{}').outcome(audit.Outcome.OK)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "p"), name], stderr=subprocess.PIPE)
        for name in "xyz"
    ]
    for child in children:
        _, errors = child.communicate(timeout=60)
        assert errors == b""
    found: list[dict[str, Any]] = []
    for path in (tmp_path / "p").glob("audit.jsonl*"):
        found += [json.loads(line) for line in path.read_bytes().splitlines()]
    assert len(found) == 3 * 40 * 2
    assert len({line["digest"] for line in found}) == 1
    assert {line["tool"] for line in found} == {f"{name}{n}" for name in "xyz" for n in range(40)}


@given(st.text(), st.text())
def test_any_text_comes_back_as_text(tool: str, sender: str) -> None:
    line = audit.AuditLine("t", "i", "intent", audit._capped(tool), audit._capped(sender), "started", "", "")
    data = audit._encode(line)
    assert data.count(b"\n") == 1
    assert audit._lines.decode(data) == line
