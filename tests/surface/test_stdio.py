"""Byte lines: reading in linear time and back in step after a line that is too long, writing whole and in order."""

from __future__ import annotations

import itertools
import os
import random
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from trio_relay.surface.lines import MAX_QUEUED, LineWriter, TooLong, read_lines
from trio_relay.surface.stdio import ByteStream, PipeStream, ThreadStream

PATIENCE = 10


class Chunks:
    """A stream that yields given chunks and counts how often it is asked."""

    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks
        self.reads = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        await trio.lowlevel.checkpoint()
        self.reads += 1
        return self.chunks.pop(0) if self.chunks else b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        raise trio.BrokenResourceError

    async def aclose(self) -> None: ...


async def lines_of(stream: ByteStream, limit: int) -> list[bytes | None]:
    """All lines; None stands for one that was too long."""
    return [None if isinstance(line, TooLong) else line async for line in read_lines(stream, limit)]


@given(data=st.binary(max_size=60).map(lambda b: b.replace(b"\x01", b"\n")), cuts=st.lists(st.integers(0, 60)))
def test_lines_are_the_same_however_the_bytes_are_cut(data: bytes, cuts: list[int]) -> None:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[a:b] for a, b in itertools.pairwise(edges)]
    expected = data.split(b"\n")
    if not expected[-1]:
        expected.pop()
    limit = 10
    got = trio.run(lines_of, Chunks(chunks), limit)
    assert got == [line if len(line) <= limit else None for line in expected]


@pytest.mark.parametrize("size", [65_535, 65_536, 70_000, 1_500_000, 9_900_000])
async def test_long_lines_written_in_small_pieces_arrive_whole(size: int) -> None:
    """A22: 4 KB at a time; each byte is looked at once and copied once."""
    line = random.Random(size).randbytes(size).replace(b"\n", b"x")
    data = line + b"\nnext\n"
    stream = Chunks([data[at : at + 4096] for at in range(0, len(data), 4096)])
    assert await lines_of(stream, 16 << 20) == [line, b"next"]


async def test_a_line_at_the_limit_passes_and_one_byte_more_is_too_long() -> None:
    """A22: above the cap one error, then in step again at the next LF."""
    for size, expected in ((100, b"x" * 100), (101, None), (100_000, None)):
        data = b"x" * size + b"\nnext\n" + b"y" * size
        for step in (1 << 20, 64, 7):
            stream = Chunks([data[at : at + step] for at in range(0, len(data), step)])
            last = b"y" * size if size == 100 else None
            assert await lines_of(stream, 100) == [expected, b"next", last]


async def test_a_line_that_is_too_long_is_not_kept_in_memory() -> None:
    import tracemalloc

    piece = b"x" * 65_536
    stream = Chunks([piece] * 1_000 + [b"\nnext\n"])  # 65 MB
    tracemalloc.start()
    try:
        assert await lines_of(stream, 1 << 20) == [None, b"next"]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


async def test_a_broken_stdin_is_the_end_of_file() -> None:
    class Broken(Chunks):
        async def receive_some(self, max_bytes: int | None = None) -> bytes:
            data = await super().receive_some()
            if not data:
                raise OSError("gone")
            return data

    assert await lines_of(Broken([b"a\nb"]), 100) == [b"a", b"b"]


# -- writing


class Gate:
    """A byte stream that takes bytes only while its gate is open."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.data = bytearray()
        self.broken = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        raise NotImplementedError

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        self.data += data[: len(data) // 2]
        await self.open.wait()
        if self.broken:
            raise trio.BrokenResourceError
        self.data += data[len(data) // 2 :]

    async def aclose(self) -> None: ...


async def test_lines_go_out_whole_and_in_order_whoever_is_cancelled(nursery: trio.Nursery) -> None:
    gate = Gate()
    writer = LineWriter(gate)
    nursery.start_soon(writer.run)
    scopes = [trio.CancelScope() for _ in range(50)]

    async def write(number: int) -> None:
        with scopes[number]:
            await writer.write(b"%d" % number * 100 + b"\n")

    for number in range(50):
        nursery.start_soon(write, number)
        await trio.testing.wait_all_tasks_blocked()
    for scope in scopes[::2]:
        scope.cancel()
    gate.open.set()
    await writer.write(b"last\n")
    assert bytes(gate.data) == b"".join(b"%d" % n * 100 + b"\n" for n in range(50)) + b"last\n"
    nursery.cancel_scope.cancel()


async def test_a_line_nobody_wants_any_more_is_dropped_before_it_is_written(nursery: trio.Nursery) -> None:
    gate = Gate()
    writer = LineWriter(gate)
    nursery.start_soon(writer.run)
    wanted = True
    outcome: list[bool] = []

    async def write(line: bytes) -> None:
        outcome.append(await writer.write(line, wanted=lambda: wanted))

    nursery.start_soon(write, b"first\n")
    await trio.testing.wait_all_tasks_blocked()
    nursery.start_soon(write, b"second\n")
    await trio.testing.wait_all_tasks_blocked()
    wanted = False
    gate.open.set()
    await writer.write(b"third\n")
    await trio.testing.wait_all_tasks_blocked()
    assert bytes(gate.data) == b"first\nthird\n"
    assert sorted(outcome) == [False, True]
    assert await writer.write(b"fourth\n", wanted=lambda: False) is False
    nursery.cancel_scope.cancel()


async def test_a_reader_that_goes_away_fails_all_who_write(nursery: trio.Nursery) -> None:
    gate = Gate()
    writer = LineWriter(gate)
    nursery.start_soon(writer.run)
    failed: list[int] = []

    async def write(number: int) -> None:
        with pytest.raises(trio.BrokenResourceError):
            await writer.write(b"x" * 40_000 + b"\n")
        failed.append(number)

    async with trio.open_nursery() as writers:
        for number in range(5):
            writers.start_soon(write, number)
        await trio.testing.wait_all_tasks_blocked()
        gate.broken = True
        gate.open.set()
    assert sorted(failed) == list(range(5))
    with pytest.raises(trio.BrokenResourceError):
        await writer.write(b"late\n")
    with trio.fail_after(PATIENCE):
        await writer.wait_room()


async def test_a_client_that_reads_nothing_stops_the_reading_of_requests_at_the_limit(nursery: trio.Nursery) -> None:
    """A19: answers wait in memory up to a bound; then no more requests are read, and nothing is lost."""
    gate = Gate()
    writer = LineWriter(gate)
    nursery.start_soon(writer.run)
    line = b"x" * ((MAX_QUEUED >> 2) - 1) + b"\n"
    for _ in range(4):
        nursery.start_soon(writer.write, line)
        await trio.testing.wait_all_tasks_blocked()
    with trio.fail_after(PATIENCE):
        await writer.wait_room()
    nursery.start_soon(writer.write, b"one more\n")
    await trio.testing.wait_all_tasks_blocked()
    waited = trio.Event()

    async def wait_room() -> None:
        await writer.wait_room()
        waited.set()

    nursery.start_soon(wait_room)
    await trio.testing.wait_all_tasks_blocked()
    assert not waited.is_set()
    gate.open.set()
    with trio.fail_after(PATIENCE):
        await waited.wait()
        await writer.write(b"end\n")
    assert bytes(gate.data) == line * 4 + b"one more\nend\n"
    nursery.cancel_scope.cancel()


@pytest.fixture
def pipe() -> tuple[int, int]:
    """The two ends of a pipe; the tests close them."""
    return os.pipe()


async def test_writing_at_once_and_writing_later_keep_the_order(pipe: tuple[int, int], nursery: trio.Nursery) -> None:
    """The immediate write of a line can end in its middle: what is left goes first."""
    read, write = pipe
    reader, stream = PipeStream(read), PipeStream(write)
    writer = LineWriter(stream, write)
    nursery.start_soon(writer.run)
    lines = [b"%d" % number * random.Random(number).randrange(1, 40_000) + b"\n" for number in range(100)]

    async def send(line: bytes) -> None:
        await writer.write(line)

    for line in lines:
        nursery.start_soon(send, line)
        await trio.testing.wait_all_tasks_blocked()  # the order in which they were begun
    received = bytearray()
    with trio.fail_after(PATIENCE):
        while len(received) < sum(map(len, lines)):
            received += await reader.receive_some(10_000)
    assert bytes(received) == b"".join(lines)
    await trio.testing.wait_all_tasks_blocked()  # the last writer has heard that its line is out
    await reader.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await writer.write(b"x\n")
    await stream.aclose()
    nursery.cancel_scope.cancel()


# -- descriptors that only threads can wait for (Windows)


async def test_a_thread_stream_reads_writes_and_can_be_cancelled(pipe: tuple[int, int]) -> None:
    read, write = pipe
    reader, writer = ThreadStream(read), ThreadStream(write)
    data = random.Random(1).randbytes(1_000_000)
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.send_all, data)
        with trio.fail_after(PATIENCE):
            while len(received) < len(data):
                received += await reader.receive_some(50_000)
    assert bytes(received) == data
    with trio.move_on_after(0) as scope:
        await reader.receive_some(10)
    assert scope.cancelled_caught
    await writer.aclose()  # the abandoned thread sees the end of file
    await trio.to_thread.run_sync(lambda: None)
    await reader.aclose()


async def test_a_thread_stream_without_a_reader_is_broken(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.close(read)
    writer = ThreadStream(write)
    with pytest.raises(trio.BrokenResourceError):
        await writer.send_all(b"x" * 100_000)
    await writer.aclose()


async def test_lines_through_thread_streams_are_the_same(pipe: tuple[int, int]) -> None:
    read, write = pipe
    stream, reader = ThreadStream(write), ThreadStream(read)
    writer = LineWriter(stream)
    got: list[bytes | None] = []

    async def read_all() -> None:
        got.extend(await lines_of(reader, 1 << 20))

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read_all)
            async with trio.open_nursery() as writing:
                writing.start_soon(writer.run)
                for number in range(20):
                    await writer.write(b"%d" % number * 5_000 + b"\n")
                writing.cancel_scope.cancel()
            await stream.aclose()
    assert got == [b"%d" % number * 5_000 for number in range(20)]
    await reader.aclose()


async def test_a_cancelled_session_of_threads_does_not_hold_its_lines_up(autojump_clock: MockClock) -> None:
    """Nothing of the writer waits for time."""
    gate = Gate()
    gate.open.set()
    writer = LineWriter(gate)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        start = trio.current_time()
        for _ in range(100):
            await writer.write(b"x\n")
        assert trio.current_time() == start
        nursery.cancel_scope.cancel()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes are read by threads there")
async def test_a_stdin_that_always_has_more_stops_nobody_else(tmp_path: Path, nursery: trio.Nursery) -> None:
    """A file never makes its reader wait."""
    path = tmp_path / "requests"
    path.write_bytes((b"x" * 100 + b"\n") * 500_000)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    nursery.start_soon(others)
    await trio.lowlevel.checkpoint()
    before = turns
    stream = PipeStream(os.open(path, os.O_RDONLY))
    count = 0
    async for _ in read_lines(stream, 1000):
        count += 1
    await stream.aclose()
    assert count == 500_000
    assert turns - before > 3
