"""Which ports are tried, and the file that remembers the last one."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from trio_relay.relay.ports import PortCache, candidates

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_the_cached_port_comes_first_then_the_range() -> None:
    assert candidates(None, None) == list(range(9333, 9349))
    assert candidates(None, 9340) == [9340, *(port for port in range(9333, 9349) if port != 9340)]
    assert candidates(None, 9340, last=9335)[:3] == [9335, 9340, 9333]
    assert candidates(9444, 9340) == [9444]


def entry(**changes: object) -> str:
    return json.dumps({"port": 9340, "host": "127.0.0.1", "updatedAt": NOW.isoformat()} | changes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (entry(), 9340),
        (entry(updatedAt=(NOW - timedelta(hours=23, minutes=59)).isoformat()), 9340),
        (entry(updatedAt="2026-11-30T11:00:00.000Z"), 9340),
        (entry(updatedAt=(NOW - timedelta(hours=24)).isoformat()), None),
        (entry(updatedAt=(NOW + timedelta(hours=1)).isoformat()), None),
        (entry(updatedAt="yesterday"), None),
        (entry(updatedAt="2026-11-30T11:00:00"), None),
        (entry(host="0.0.0.0"), None),
        (entry(port=9332), None),
        (entry(port=9349), None),
        (entry(port="9340"), None),
        (entry(port=True), None),
        ("[]", None),
        ("[" * 100_000, None),
        ("{", None),
        ("", None),
    ],
)
def test_the_cache_counts_for_a_day_for_its_host_within_the_range(
    tmp_path: Path, text: str, expected: int | None
) -> None:
    path = tmp_path / "relay-port.json"
    path.write_text(text)
    assert PortCache(path).read("127.0.0.1", NOW) == expected


def test_what_was_written_is_read_and_leaves_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / ".webmcp" / "relay-port.json"
    cache = PortCache(path)
    assert cache.read("127.0.0.1") is None
    cache.write("127.0.0.1", 9341)
    cache.write("127.0.0.1", 9342)
    assert cache.read("127.0.0.1") == 9342
    assert cache.read("localhost") is None
    assert [entry.name for entry in path.parent.iterdir()] == ["relay-port.json"]
    assert set(json.loads(path.read_text())) == {"port", "host", "updatedAt"}


@pytest.mark.skipif(sys.platform == "win32", reason="needs a path below a file")
def test_a_home_that_cannot_be_written_costs_only_the_memory(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    cache = PortCache(blocker / "relay-port.json")
    cache.write("127.0.0.1", 9341)
    assert cache.read("127.0.0.1") is None
    PortCache(None).write("127.0.0.1", 9341)
    assert PortCache(None).read("127.0.0.1") is None


@pytest.mark.skipif(sys.platform == "win32", reason="there is no lock")
async def test_starts_take_turns(tmp_path: Path, nursery: trio.Nursery) -> None:
    cache = PortCache(tmp_path / ".webmcp" / "relay-port.json")
    order: list[str] = []

    async def second() -> None:
        async with cache.turn():
            order.append("second")

    async with cache.turn():
        nursery.start_soon(second)
        await trio.sleep(0.1)
        order.append("first")
    with trio.fail_after(5):
        while len(order) < 2:  # noqa: ASYNC110  (the lock is looked at, too)
            await trio.sleep(0.01)
    assert order == ["first", "second"]


@pytest.mark.skipif(sys.platform == "win32", reason="there is no lock")
async def test_a_frozen_holder_of_the_turn_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_relay.relay.ports.TURN_S", 0.05)
    cache = PortCache(tmp_path / "relay-port.json")
    with trio.fail_after(5):
        async with cache.turn(), cache.turn():
            pass


async def test_without_a_home_nobody_waits(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    for cache in (PortCache(None), PortCache(blocker / "relay-port.json")):
        async with cache.turn(), cache.turn():
            pass
