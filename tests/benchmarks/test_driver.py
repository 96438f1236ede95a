"""The driver's tab by itself: it answers pings, and says what is wrong when the relay leaves it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from benchmarks import wire
from benchmarks.driver import Driver, Fault, Tab
from benchmarks.payloads import SMALL
from benchmarks.pump import Out, Part, Pump
from trio_relay.links.frames import FrameReader, close_payload, frame
from trio_relay.wire.codec import clean_text


class FakeRelay:
    """The relay's ends: a socket with one tab, and two pipes."""

    def __init__(self) -> None:
        self.pump = Pump()
        self._listener = socket.create_server(("127.0.0.1", 0))
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe()
        self._pipes = (their_stdin, stdin, stdout, their_stdout)
        self.stdout = their_stdout
        self.driver = Driver(self.pump, stdin, stdout, self._listener.getsockname()[1])
        self.tab: Tab = self.driver.open_tab("aa00", b"[]", {b"it": SMALL})
        self.reader = FrameReader(client=False, max_message=1_000_000, check_text=clean_text)
        self.socket, _ = self._listener.accept()
        self.socket.settimeout(5)
        self.driver.rest(0)
        assert self.socket.recv(10_000).startswith(b"GET / HTTP/1.1\r\n")

    def shake_hands(self) -> None:
        self.socket.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")
        hello, offer = self.frames(2)
        assert b'"tabId": "aa00"' in hello
        assert offer == b'{"type":"tools/list","tools":[]}'

    def frames(self, count: int) -> list[bytes]:
        """The next messages of the tab."""
        found: list[bytes] = []
        self.socket.setblocking(False)
        deadline = time.monotonic() + 5
        while len(found) < count:
            self.driver.rest(0.001)
            try:
                found += [payload for _, payload in self.reader.feed(self.socket.recv(100_000))]
            except BlockingIOError:
                assert time.monotonic() < deadline
        return found

    def close(self) -> None:
        self.driver.close()
        self.pump.close()
        self.socket.close()
        self._listener.close()
        for fd in self._pipes:
            os.close(fd)


@pytest.fixture
def relay() -> Iterator[FakeRelay]:
    with closing(FakeRelay()) as relay:
        yield relay


def test_both_kinds_of_pings_are_answered_while_anything_is_waited_for(relay: FakeRelay) -> None:
    relay.shake_hands()
    relay.socket.sendall(frame(1, b'{"type":"ping"}', client=False) + frame(wire.PING, b"abc", client=False))
    assert relay.frames(2) == [b'{"type":"pong"}', b"abc"]


def test_a_call_is_answered_with_the_tools_result(relay: FakeRelay) -> None:
    relay.shake_hands()
    relay.socket.sendall(frame(1, b'{"type":"invoke","callId":"c-1","toolName":"it","args":{}}', client=False))
    assert relay.frames(1) == [b'{"type":"result","callId":"c-1","result":%s}' % SMALL.result]


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (frame(8, close_payload(1001, "bye"), client=False), "bye"),
        (
            frame(1, b'{"type":"invoke","callId":"c-1","toolName":"other","args":{}}', client=False),
            "cannot be answered",
        ),
    ],
)
def test_what_a_tab_cannot_go_on_with_is_a_fault(relay: FakeRelay, sent: bytes, words: str) -> None:
    relay.shake_hands()
    relay.socket.sendall(sent)
    with pytest.raises(Fault, match=words):
        relay.driver.until(lambda: False, "anything", 5)


def test_a_refused_handshake_is_a_fault(relay: FakeRelay) -> None:
    relay.socket.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
    with pytest.raises(Fault, match="403"):
        relay.driver.until(lambda: False, "anything", 5)


def test_a_relay_without_an_answer_is_a_fault(relay: FakeRelay) -> None:
    with pytest.raises(Fault, match="an answer took longer than 0 s"):
        relay.driver.until(lambda: False, "an answer", 0.01)


def test_notifications_are_counted_and_stray_answers_are_a_fault(relay: FakeRelay) -> None:
    relay.shake_hands()
    os.write(relay.stdout, b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n')
    relay.driver.until(lambda: relay.driver.client.changes == 1, "the notification", 5)
    os.write(relay.stdout, b'{"jsonrpc":"2.0","id":5,"result":{}}\n')
    with pytest.raises(Fault, match="answers nothing"):
        relay.driver.until(lambda: False, "anything", 5)


def test_what_cannot_be_written_at_once_is_written_in_order() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    pump = Pump()
    got = bytearray()

    def put(parts: list[Part]) -> int:
        return os.writev(write, parts)

    def take() -> None:
        got.extend(os.read(read, 50_000))

    out = Out(pump, write, put, pytest.fail)  # type: ignore[arg-type]
    sent = [bytes([number % 256]) * size for number, size in enumerate([1, 300_000, 2, 70_000, *[3] * 600])]
    out.put(*sent)
    pump.watch(read, take)
    wanted = b"".join(sent)
    assert pump.run_until(lambda: len(got) >= len(wanted), 5)
    assert got == wanted
    pump.forget(read)
    pump.close()
    os.close(read)
    os.close(write)
