"""`TextFrames`: wsproto's handshake with our framing, where the first frames come right behind the HTTP head."""

from __future__ import annotations

import pytest
from wsproto import ConnectionType
from wsproto.connection import ConnectionState
from wsproto.events import AcceptConnection, BytesMessage, CloseConnection, Ping, RejectConnection, Request

from tests.helpers import client_frame
from trio_relay.links.frames import PING, TEXT, frame, read_close
from trio_relay.links.text_frames import TextFrames

REQUEST = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


class End:
    """One side: what it got, in order."""

    def __init__(self, kind: ConnectionType, limit: int = 1000) -> None:
        self.log: list[object] = []
        self.frames = TextFrames(
            kind, max_message=limit, on_message=self.log.append, on_close=lambda: self.log.append("closed")
        )

    def feed(self, data: bytes) -> None:
        self.frames.receive_data(data)
        self.turn()

    def turn(self) -> None:
        for event in self.frames.events():
            self.log.append(event.payload if isinstance(event, Ping) else type(event).__name__)


def server_open(limit: int = 1000) -> End:
    end = End(ConnectionType.SERVER, limit)
    end.feed(REQUEST)
    end.frames.send(AcceptConnection())
    end.log.clear()
    return end


def step_feed(end: End, data: bytes, step: int) -> None:
    for start in range(0, len(data), step):
        end.feed(data[start : start + step])


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50, 10_000])
def test_frames_right_behind_the_request_reach_a_server(step: int) -> None:
    end = End(ConnectionType.SERVER)
    cut = len(REQUEST) - step  # the head in steps, and the frames in one read with its last bytes
    step_feed(end, REQUEST[: max(0, cut)], step)
    end.feed(REQUEST[max(0, cut) :] + client_frame(b"one") + client_frame(b"p", PING) + client_frame(b"two"))
    assert end.log == ["Request"]
    end.frames.send(AcceptConnection())
    end.turn()
    assert end.log == ["Request", b"one", b"p", b"two"]


@pytest.mark.parametrize("step", [1, 2, 3, 7, 50, 10_000])
def test_frames_right_behind_the_answer_reach_a_client(step: int) -> None:
    client, server = End(ConnectionType.CLIENT), End(ConnectionType.SERVER)
    server.feed(client.frames.send(Request(host="x", target="/")))
    answer = server.frames.send(AcceptConnection())
    frames = frame(TEXT, b"one", client=False) + frame(PING, b"p", client=False) + frame(TEXT, b"two", client=False)
    step_feed(client, answer + frames, step)
    assert client.log == ["AcceptConnection", b"one", b"p", b"two"]
    assert client.frames.state is ConnectionState.OPEN


@pytest.mark.parametrize("step", [1, 5, 10_000])
def test_a_refusal_with_a_body_reaches_a_client(step: int) -> None:
    client = End(ConnectionType.CLIENT)
    client.frames.send(Request(host="x", target="/"))
    step_feed(client, b"HTTP/1.1 403 Forbidden\r\nContent-Length: 4\r\n\r\nNo!\n", step)
    assert client.log[0] == RejectConnection.__name__
    assert client.frames.state is not ConnectionState.OPEN


def test_a_message_before_a_broken_frame_is_delivered_before_the_end() -> None:
    end = server_open()
    end.feed(client_frame(b"one") + client_frame(b"x", 2) + client_frame(b"never"))
    assert end.log == [b"one", "closed", "CloseConnection"]
    assert end.frames.fault is not None
    assert end.frames.fault.code == 1003


def test_a_peer_that_closes_is_answered_with_its_own_code() -> None:
    end = server_open()
    end.frames.receive_data(client_frame(b"one") + client_frame(b"\x0f\xa0bye", 8) + client_frame(b"never"))
    (event,) = [event for event in end.frames.events() if isinstance(event, CloseConnection)]
    answer = end.frames.send(event.response())
    assert read_close(answer[2:]) == (4000, "bye")
    assert end.log == [b"one", "closed"]
    assert end.frames.peer_close == (4000, "bye")
    assert end.frames.state is ConnectionState.CLOSED


def test_a_close_without_a_code_is_answered_without_one() -> None:
    end = server_open()
    end.frames.receive_data(client_frame(b"", 8))
    (event,) = end.frames.events()
    assert isinstance(event, CloseConnection)
    assert end.frames.send(event.response()) == b"\x88\x00"


def test_messages_still_count_while_our_close_waits_for_an_answer() -> None:
    end = server_open()
    end.frames.send(CloseConnection(code=1000))
    end.feed(client_frame(b"late") + client_frame(b"\x03\xe8", 8))
    assert end.log == [b"late", "closed", "CloseConnection"]
    assert end.frames.state is ConnectionState.CLOSED


def test_nothing_is_read_after_the_end() -> None:
    end = server_open()
    end.feed(client_frame(b"\x03\xe8", 8))
    before = list(end.log)
    end.feed(client_frame(b"more"))
    assert end.log == before


def test_bytes_go_out_as_text() -> None:
    assert server_open().frames.send(BytesMessage(data=b"{}")) == b"\x81\x02{}"
