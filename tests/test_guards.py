"""Guards against gross regressions that no clock is needed for: copies of a payload, writes, work per change.

How fast things are is for `benchmarks/`. What is counted here is the same on every machine.
"""

from __future__ import annotations

import json
import math
import os
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import memory_stream_pair

from tests.core.desk import Desk, defined
from tests.helpers import client_frame
from trio_relay.core.naming import Names
from trio_relay.core.registry import Registry
from trio_relay.core.results import parse_result
from trio_relay.links.frames import TEXT, FrameReader, frame
from trio_relay.links.metered import RECEIVE_BYTES, SEND_CHUNK
from trio_relay.surface.answers import Answers
from trio_relay.surface.lines import LineWriter, TooLong, read_lines
from trio_relay.surface.stdio import READ_BYTES
from trio_relay.wire import browser
from trio_relay.wire.codec import clean_text
from trio_relay.wire.mcp import PLAIN_CALL

SIZE = 9_900_000
KINDS = {
    "ascii": lambda: b'{"content":[{"type":"text","text":"' + b"x" * SIZE + b'"}]}',
    "not ascii": lambda: b'{"content":[{"type":"text","text":"' + "é漢".encode() * (SIZE // 5) + b'"}]}',
    "nested": lambda: b'{"content":[],"structuredContent":{"a":[' + b'{"b":[1,{"c":"d"}]},' * (SIZE // 20) + b"{}]}}",
    "image": lambda: b'{"content":[{"type":"image","mimeType":"image/png","data":"' + b"QUJD" * (SIZE // 4) + b'"}]}',
}
MASKS = {"zero mask": b"\0\0\0\0", "mask": b"\x11\x22\x33\x44"}


def peak_of(work: Callable[[], object]) -> int:
    """Bytes allocated at the most while `work` runs, beyond what there was."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class NoTools:
    """A backend of whose tools none is listed: what `Answers` needs to make the line of a call."""

    def listing(self) -> list[bytes]:
        return []


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_of_10_mb_is_held_twice(kind: str, mask: str) -> None:
    """Once as the message, once as the line; while the second is made there is nothing else of its size.

    Two checks take more for a moment: text that is not ASCII is decoded to be looked at (the interpreter guesses the
    width of a character twice), and the brackets of nested JSON are counted in copies of them.
    """
    sent = client_frame(b'{"type":"result","callId":"c","result":' + KINDS[kind]() + b"}", key=MASKS[mask])
    chunks = [sent[at : at + RECEIVE_BYTES] for at in range(0, len(sent), RECEIVE_BYTES)]
    answers = Answers(NoTools())  # type: ignore[arg-type]
    lines: list[int] = []

    def work() -> None:
        reader = FrameReader(client=False, max_message=10_000_000, check_text=clean_text)
        for chunk in chunks:
            for _, message in reader.feed(chunk):
                read = browser.decode_frame(message)
                assert isinstance(read, browser.Result | browser.PlainAnswer)
                lines.append(len(answers.call_line(b"1", parse_result(read.result), modern=True)))

    peak = peak_of(work)
    assert len(lines) == 1
    assert lines[0] > SIZE, "it was refused"
    assert peak < {"ascii": 2.1, "not ascii": 5.1, "nested": 3.4, "image": 2.1}[kind] * SIZE


async def test_arguments_of_10_mb_are_held_twice_at_the_most() -> None:
    """The line and the frame, as a part of the line is what is spliced in."""
    line = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","arguments":{"a":"%s"}}}\n'
    line = line % (b"x" * SIZE)
    chunks = iter([line[at : at + READ_BYTES] for at in range(0, len(line), READ_BYTES)])

    class Pipe:
        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            await trio.lowlevel.checkpoint()
            return next(chunks, b"")

    frames: list[int] = []
    tracemalloc.start()
    try:
        async for read in read_lines(Pipe(), 16 << 20):  # type: ignore[arg-type]
            assert not isinstance(read, TooLong)
            plain = PLAIN_CALL.decode(read)
            assert isinstance(plain.params.arguments, Raw)
            frames.append(len(frame(TEXT, browser.invoke("c", "t", plain.params.arguments, 65_000), client=False)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert frames[0] > SIZE
    assert peak < 3.1 * SIZE


@pytest.mark.parametrize("count", [1, 7, 500])
async def test_lines_that_wait_go_out_in_as_few_writes_as_their_size_allows(count: int, nursery: trio.Nursery) -> None:
    ours, theirs = memory_stream_pair()
    writes: list[int] = []
    send_all = ours.send_all

    class Counting:
        async def send_all(self, data: bytes | bytearray | memoryview) -> None:
            writes.append(len(data))
            await send_all(data)

    writer = LineWriter(Counting())  # type: ignore[arg-type]
    line = b'{"jsonrpc":"2.0","id":1,"result":{}}\n'
    for _ in range(count):
        nursery.start_soon(writer.write, line)
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(writer.run)
    received = b""
    with trio.fail_after(5):
        while len(received) < count * len(line):
            received += await theirs.receive_some()
    assert received == line * count
    assert len(writes) == 1
    nursery.cancel_scope.cancel()


def test_a_frame_of_10_mb_is_made_with_one_copy() -> None:
    payload = b"x" * SIZE
    assert peak_of(lambda: frame(TEXT, payload, client=False)) < 1.01 * SIZE
    assert math.ceil(SIZE / SEND_CHUNK) < 200, "and is written in so many pieces, each with one system call"


def counting(monkeypatch: pytest.MonkeyPatch, owner: type, *names: str) -> dict[str, int]:
    """Count the calls of methods."""
    counts = dict.fromkeys(names, 0)

    def counted(name: str) -> Callable[..., Any]:
        method = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return method(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(owner, name, counted(name))
    return counts


def test_one_tab_of_a_thousand_that_goes_and_comes_costs_what_one_tab_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 tabs × 20 tools of the same names: every one is disambiguated, and no other tab is touched."""
    desk = Desk()
    tools = [defined(f"tool{number}") for number in range(20)]
    for number in range(1_000):
        desk.join(f"s{number}", f"{number:04x}tab")
        desk.publish(f"s{number}", *tools)
    desk.registry.listing()
    names = counting(monkeypatch, Names, "_name", "_allocate", "_release")
    registry = counting(monkeypatch, Registry, "_refresh", "_define")
    desk.registry.remove("s500")
    assert len(desk.registry.listing()) == 999
    desk.join("s500", "01f4tab")
    desk.publish("s500", *tools)
    assert len(desk.registry.listing()) == 1_000
    assert registry == {"_refresh": 2, "_define": 20}
    assert names == {"_name": 20, "_allocate": 20, "_release": 20}


def test_tabs_join_with_the_same_work_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the second one, which makes the first one's names longer."""
    desk = Desk()
    names = counting(monkeypatch, Names, "_name", "_allocate")
    registry = counting(monkeypatch, Registry, "_refresh")
    for number in range(300):
        desk.join(f"s{number}", f"{number:04x}")
        desk.publish(f"s{number}", *[defined(f"tool{tool}") for tool in range(20)])
    assert names == {"_name": 300 * 20 + 20, "_allocate": 300 * 20 + 20}
    assert registry == {"_refresh": 2 * 300 + 1}


def test_a_list_is_answered_from_kept_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    for number in range(50):
        desk.join(f"s{number}", f"{number:04x}")
        desk.publish(f"s{number}", "a", "b")
    first = desk.registry.listing()
    registry = counting(monkeypatch, Registry, "_define")
    again = desk.registry.listing()
    assert all(one is other for one, other in zip(first, again, strict=True))
    assert registry == {"_define": 0}
    assert len(json.loads(b"[" + b",".join(again) + b"]")) == 100


def test_the_guard_counts_what_is_allocated() -> None:
    """Else the tests above could not fail."""
    assert peak_of(lambda: os.urandom(1_000_000)) > 1_000_000
