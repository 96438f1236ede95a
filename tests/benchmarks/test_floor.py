"""The floor in this process, fed byte by byte where a block may end: it copies exactly what it should."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks import wire
from benchmarks.driver import Call, Reply
from benchmarks.floor import Floor, Tab
from benchmarks.subjects import free_port
from trio_relay.links.frames import FrameReader
from trio_relay.wire.codec import clean_text


class Desk:
    """A floor with one tab, whose other ends are here."""

    def __init__(self, *, whole: bool) -> None:
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        os.set_blocking(self._stdout, False)
        self._pipes = (stdin, self._stdin, self._stdout, stdout)
        self.floor = Floor(free_port(), whole=whole, stdin=stdin, stdout=stdout)
        self.page, theirs = socket.socketpair()
        self.page.setblocking(False)
        self.tab = Tab(self.floor, theirs)
        self.page.sendall(b"GET / HTTP/1.1\r\nSec-WebSocket-Key: abc\r\n\r\n")
        self.tab.readable()
        assert self.page.recv(1_000).startswith(b"HTTP/1.1 101 ")
        self.floor.offer(self.tab, [{"name": "it"}])
        self.reader = FrameReader(client=True, max_message=1_000_000, check_text=clean_text)

    def line(self, *pieces: bytes) -> list[bytes]:
        """Give the floor a line from stdin in pieces. Returns the messages that reach the page."""
        for piece in pieces:
            os.write(self._stdin, piece)
            self.floor.line()
        return [payload for _, payload in self.reader.feed(self.page.recv(100_000))]

    def frame(self, *pieces: bytes) -> bytes:
        """Give the floor a page's frames in pieces. Returns what it wrote to stdout."""
        for piece in pieces:
            self.page.sendall(piece)
            self.tab.readable()
        return os.read(self._stdout, 100_000)

    def close(self) -> None:
        self.floor.close()
        self.page.close()
        self.tab.socket.close()
        for fd in self._pipes:
            os.close(fd)


@pytest.fixture(params=[False, True], ids=["as it comes", "whole"])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    with closing(Desk(whole=request.param)) as desk:
        yield desk


def test_a_call_is_forwarded_wherever_its_line_is_cut(desk: Desk) -> None:
    line = b'{"jsonrpc":"2.0","id":17' + Call("it", b'{"a":{"b":"%s"}}' % (b"x" * 200)).tail
    wanted = b'{"type":"invoke","callId":"17","toolName":"it","args":{"a":{"b":"%s"}}}' % (b"x" * 200)
    for cut in range(1, len(line)):
        assert desk.line(line[:cut], line[cut:]) == [wanted]
    assert desk.line(line[:100], line[100:-3], line[-3:-2], line[-2:-1], line[-1:]) == [wanted]
    assert desk.line(line + line + line[:50], line[50:]) == [wanted] * 3


def test_a_result_is_forwarded_wherever_its_frame_is_cut(desk: Desk) -> None:
    result = b'{"content":[{"type":"text","text":"%s"}]}' % (b"x" * 200)
    frame = b"".join(Reply(result).frame(b"17"))
    wanted = b'{"jsonrpc":"2.0","id":17,"result":' + result + b"}\n"
    for cut in range(1, len(frame)):
        assert desk.frame(frame[:cut], frame[cut:]) == wanted
    assert desk.frame(frame[:90], frame[90:120], frame[120:]) == wanted
    for cut in range(91, len(frame)):
        assert desk.frame(frame[:90], frame[90:cut], frame[cut:]) == wanted
    assert desk.frame(frame + frame) == wanted * 2


def test_it_answers_what_a_session_begins_with(desk: Desk) -> None:
    tools = b'{"type":"tools/list","tools":[{"name":"other"}]}'
    desk.page.sendall(wire.header(len(tools)) + tools)
    desk.tab.readable()
    os.write(desk._stdin, b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
    desk.floor.line()
    os.write(desk._stdin, b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}\n')
    desk.floor.line()
    assert os.read(desk._stdout, 1_000) == (
        b'{"jsonrpc":"2.0","id":1,"result":{"tools": [{"name": "it"}, {"name": "other"}]}}\n'
    )
