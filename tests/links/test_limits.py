"""C10: the payload limit in bytes, over real sockets; who breaks it is told 1009, and nobody else notices."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import trio

from tests.helpers import RawSocket, client_frame, open_raw, open_tab
from tests.hubs import NO_MASK, Attempt, join, next_json, wait_listed
from trio_relay.config import RelayConfig
from trio_relay.errors import SourceLost
from trio_relay.relay.hub import Hub, open_hub

LIMIT = 10_000_000


@dataclass
class Scene:
    """A call that waits for a raw tab, and a good tab beside it."""

    hub: Hub
    raw: RawSocket
    call: Attempt
    call_id: str
    nursery: trio.Nursery

    def answer(self, size: int, text: str = "x") -> bytes:
        """A result frame's JSON, `size` bytes long and filled with `text`."""
        head = b'{"type":"result","callId":"%s","result":{"content":[{"type":"text","text":"' % self.call_id.encode()
        tail = b'"}]}}'
        room = size - len(head) - len(tail)
        unit = text.encode()
        return head + unit * (room // len(unit)) + b"x" * (room % len(unit)) + tail

    async def assert_refused(self) -> None:
        assert await self.raw.close_code() == 1009
        assert await self.raw.frame() is None  # and then the end, not a reset
        error = await self.call.error()
        assert isinstance(error, SourceLost)
        assert str(LIMIT) in str(error)
        assert "--max-payload" in str(error)
        await wait_listed(self.hub, "good")
        assert await Attempt(self.nursery, self.hub, "good", b'{"a":1}').text() == '{"a": 1}'


@pytest.fixture
async def scene(hub: Hub, nursery: trio.Nursery) -> AsyncIterator[Scene]:
    async with open_tab(hub.port) as good, open_raw(hub.port) as raw:
        await good.hello("good")
        await good.offer("good")
        nursery.start_soon(good.serve)
        await join(raw, "big", "big")
        await wait_listed(hub, "good", "big")
        call = Attempt(nursery, hub, "big")
        invoke = await next_json(raw, "invoke")
        yield Scene(hub, raw, call, invoke["callId"], nursery)
        nursery.cancel_scope.cancel()


async def test_ten_million_bytes_pass(scene: Scene) -> None:
    data = scene.answer(LIMIT)
    assert len(data) == LIMIT
    await scene.raw.send(client_frame(data, key=NO_MASK))
    assert await scene.call.text() == json.loads(data)["result"]["content"][0]["text"]


async def test_ten_million_masked_bytes_in_fragments_pass(scene: Scene) -> None:
    data = scene.answer(LIMIT)
    step = LIMIT // 100
    for start in range(0, LIMIT, step):
        opcode, last = (1 if start == 0 else 0), start + step >= LIMIT
        await scene.raw.send(client_frame(data[start : start + step], opcode, fin=last))
    assert await scene.call.text() == json.loads(data)["result"]["content"][0]["text"]


async def test_one_byte_more_does_not(scene: Scene) -> None:
    await scene.raw.send(client_frame(scene.answer(LIMIT + 1), key=NO_MASK))
    await scene.assert_refused()


async def test_bytes_count_and_not_characters(scene: Scene) -> None:
    """12 MB that are 4 million characters."""
    data = scene.answer(12_000_000, "搜")
    assert len(data.decode()) < 4_001_000
    await scene.raw.send(client_frame(data, key=NO_MASK))
    await scene.assert_refused()


async def test_fragments_count_together(scene: Scene) -> None:
    data = scene.answer(12_000_000, "搜")
    step = len(data) // 100
    parts = [data[start : start + step] for start in range(0, len(data), step)]
    await scene.raw.send(
        b"".join(
            client_frame(part, 1 if n == 0 else 0, fin=n == len(parts) - 1, key=NO_MASK) for n, part in enumerate(parts)
        )
    )
    await scene.assert_refused()


async def test_what_follows_in_the_same_write_changes_nothing(scene: Scene) -> None:
    pong = client_frame(b'{"type":"pong"}') + client_frame(b"", 10) + client_frame(b"ping", 9)
    await scene.raw.send(client_frame(scene.answer(LIMIT + 1), key=NO_MASK) + pong)
    await scene.assert_refused()


async def test_the_call_fails_before_the_message_has_arrived(scene: Scene) -> None:
    """The header says it all; a peer that stops after it is told as well."""
    await scene.raw.send(client_frame(b"x" * (LIMIT + 1), key=NO_MASK)[:1000])
    await scene.assert_refused()


async def test_the_other_calls_of_the_tab_fail_too_and_it_can_come_back(scene: Scene) -> None:
    other = Attempt(scene.nursery, scene.hub, "big")
    await next_json(scene.raw, "invoke")
    await scene.raw.send(client_frame(scene.answer(LIMIT + 1), key=NO_MASK))
    assert isinstance(await other.error(), SourceLost)
    await scene.assert_refused()
    async with open_tab(scene.hub.port) as back:
        await back.hello("big")
        await back.offer("big")
        scene.nursery.start_soon(back.serve)
        await wait_listed(scene.hub, "good", "big")
        assert await Attempt(scene.nursery, scene.hub, "big", b"{}").text() == "{}"


async def test_the_limit_is_the_configured_one_and_is_announced(nursery: trio.Nursery) -> None:
    async with open_hub(RelayConfig(port=0, max_payload=2000)) as hub, open_raw(hub.port) as raw:
        await join(raw, "t1", "f")
        await wait_listed(hub, "f")
        await raw.send(client_frame(b'{"type":"pong","x":"%s"}' % (b"x" * 1978)))
        await raw.send(client_frame(b"alive", 9))
        frame = await raw.frame()
        assert frame == (10, b"alive")
        await raw.send(client_frame(b'{"type":"pong","x":"%s"}' % (b"x" * 1979)))
        assert await raw.close_code() == 1009
