"""The SDK's streams over a port: messages are JSON texts, and the bodies of tools stay bytes.

The SDK's session numbers requests, matches answers, negotiates and cancels. What it would do to tools is kept from it:
one bad definition would cost the whole list, an unknown content block the whole call, and models lose explicit nulls
and the digits of numbers. So a request that was given a `Slot` has its arguments put in as bytes here, its result is
taken out as bytes, and the SDK sees an empty result of the right shape.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import anyio
import mcp_types as types
import msgspec
import trio
from mcp.shared.message import SessionMessage
from msgspec import UNSET, Raw, Struct, UnsetType
from pydantic import ValidationError

from trio_relay.core.pending import read_progress
from trio_relay.core.port import Port, PortClosed
from trio_relay.core.results import error_result
from trio_relay.extensions.calls import Slot
from trio_relay.wire.codec import Malformed, Maybe, as_text, decode, decode_spliceable, encode

logger = logging.getLogger(__name__)

QUEUE = 64
"""Messages that wait for a provider that reads slowly. When they do, nothing more is read from it either."""

TOOLS_LIST = "tools/list"

_ID_BEFORE = re.compile(rb'\{"jsonrpc":"2\.0","id":([0-9]{1,18}),"result":')
_ID_BEHIND = re.compile(rb',"id":([0-9]{1,18})\}\Z')  # the last brace is the message's own, so this is its member

_slot: ContextVar[Slot | None] = ContextVar("trio_relay_slot", default=None)


class _Message(Struct, frozen=True):
    """A message of a provider, as far as it is looked at here."""

    id: Maybe = UNSET
    method: Maybe = UNSET
    params: Maybe = UNSET
    result: Maybe = UNSET
    error: Maybe = UNSET


class _Progress(Struct, frozen=True):
    progressToken: Maybe = UNSET
    progress: Maybe = UNSET
    total: Maybe = UNSET
    message: Maybe = UNSET


class _Page(Struct, frozen=True):
    nextCursor: Maybe = UNSET


_messages = msgspec.json.Decoder(_Message)
_progresses = msgspec.json.Decoder(_Progress)
_pages = msgspec.json.Decoder(_Page)
_members = msgspec.json.Decoder(dict[str, Raw])
_anything = msgspec.json.Decoder()


@contextmanager
def carrying(slot: Slot) -> Iterator[None]:
    """The next request that this task sends carries this slot."""
    token = _slot.set(slot)
    try:
        yield
    finally:
        _slot.reset(token)


@dataclass(frozen=True, slots=True)
class _Outgoing:
    message: bytes
    slot: Slot | None = None


class PortStreams:
    """Both streams of one SDK session over one port. `run` must be running; the port is not closed here.

    Attributes:
        closed: Set once the port has ended; `reason` then says why.
    """

    def __init__(self, port: Port) -> None:
        self._port = port
        self._queue, self._outgoing = trio.open_memory_channel[_Outgoing](QUEUE)
        self._slots: dict[int | str, tuple[str, Slot]] = {}
        self._drained = trio.Event()
        self.closed = trio.Event()
        self.reason = "the port is closed"

    async def run(self) -> None:
        """The writer. Returns when the port is closed."""
        try:
            with self._outgoing:
                async for item in self._outgoing:
                    if item.slot is not None:
                        if item.slot.given_up:
                            continue
                        item.slot.begun = True
                    try:
                        await self._port.send(item.message)
                    except PortClosed as error:
                        if item.slot is not None:
                            item.slot.begun = False  # so it never left
                        self._end(error.reason)
                        return
                    self._drained.set()
        finally:
            self._drained.set()

    def _end(self, reason: str) -> None:
        if not self.closed.is_set():
            self.reason = reason
            self.closed.set()

    # -- the SDK's write stream

    async def send(self, item: SessionMessage) -> None:
        message = item.message
        slot: Slot | None = None
        if isinstance(message, types.JSONRPCRequest) and (slot := _slot.get()) is not None:
            _slot.set(None)
            slot.request_id = message.id
            self._slots[message.id] = (message.method, slot)
        if slot is None or slot.args is None:
            data = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        else:
            body = message.model_dump(by_alias=True, exclude_unset=True)
            body["params"]["arguments"] = slot.args
            data = encode(body)
        try:
            await self._queue.send(_Outgoing(data, slot))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise anyio.BrokenResourceError from None
        finally:
            if slot is not None:
                slot.tell_queued()

    def forget(self, slot: Slot) -> None:
        """Nobody waits for the answer to this slot's request any more."""
        if slot.request_id is not None:
            self._slots.pop(slot.request_id, None)

    # -- the SDK's read stream

    def __aiter__(self) -> PortStreams:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        while True:
            await self._room()
            try:
                data = await self._port.receive()
            except PortClosed as error:
                self._end(error.reason)
                raise StopAsyncIteration from None
            message = self._read(data)
            if message is not None:
                return SessionMessage(message)

    async def receive(self) -> SessionMessage | Exception:
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _room(self) -> None:
        """Who asks for more than it reads, waits."""
        while self._queue.statistics().tasks_waiting_send and not self.closed.is_set():
            self._drained = trio.Event()
            await self._drained.wait()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> PortStreams:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    # -- what a provider says

    def _read(self, data: bytes) -> types.JSONRPCMessage | None:
        """The message as the SDK shall see it; None for what it shall not see."""
        try:
            message = decode_spliceable(_messages, data)
            body = self._for_sdk(message, data)
            return None if body is None else types.jsonrpc_message_adapter.validate_python(body, by_name=False)
        except Malformed as error:
            return self._too_deep(data) if error.too_deep else None
        except (UnicodeDecodeError, ValidationError, RecursionError) as error:
            logger.debug("%s: a message is no JSON-RPC: %s", self._port.extension_id, str(error)[:200])
            return None

    def _too_deep(self, data: bytes) -> types.JSONRPCMessage | None:
        """A result that nests too deeply to be read: what it answers stands before or behind it, as SDKs write it."""
        ends = _ID_BEFORE.match(data) or _ID_BEHIND.search(data, max(0, len(data) - 40))
        found = None if ends is None else self._slots.pop(int(ends[1]), None)
        if ends is None or found is None:
            return None
        method, slot = found
        slot.result = error_result("The answer of the provider nests too deeply to be read.").json
        return types.JSONRPCResponse(jsonrpc="2.0", id=int(ends[1]), result=_stand_in(method, slot.result))

    def _for_sdk(self, message: _Message, data: bytes) -> Any:
        if not isinstance(message.method, UnsetType):
            if as_text(message.method) == "notifications/progress" and self._progress(message.params):
                return None
        else:
            found = self._slots.pop(_request_id(message.id), None)
            if found is not None and not isinstance(message.result, UnsetType):
                method, slot = found
                slot.result = _without_stamp(bytes(message.result))
                return {"jsonrpc": "2.0", "id": _request_id(message.id), "result": _stand_in(method, slot.result)}
        return decode(_anything, data)

    def _progress(self, params: Maybe) -> bool:
        """Pass progress on. False if it is none of a request with a slot."""
        if isinstance(params, UnsetType):
            return False
        told = decode(_progresses, bytes(params))
        found = self._slots.get(_request_id(told.progressToken))
        if found is None:
            return False
        progress = read_progress(told.progress, told.total, told.message)
        on_progress = found[1].on_progress
        if progress is not None and on_progress is not None:
            try:
                on_progress(progress)
            except Exception:
                logger.exception("a progress callback failed")
        return True


def _request_id(raw: Maybe) -> int | str:
    """An id as the SDK matches it: digits in a string are the number. Empty for what can be no id."""
    if isinstance(raw, UnsetType):
        return ""
    text = as_text(raw)
    digits = bytes(raw).decode() if text is None else text
    if digits.isascii() and digits.isdigit() and len(digits) < 19:
        return int(digits)
    return text or ""


def _without_stamp(result: bytes) -> bytes:
    """A result without the name of the server that made it: to the client of a relay, the relay is the server."""
    if types.SERVER_INFO_META_KEY.encode() not in result:
        return result
    try:
        members = decode(_members, result)
        meta = decode(_members, bytes(members["_meta"]))
        del meta[types.SERVER_INFO_META_KEY]
    except (Malformed, KeyError):
        return result  # the name stands elsewhere, or is written with escapes
    del members["_meta"]
    if meta:
        members["_meta"] = Raw(encode(meta))
    return encode(members)


def _stand_in(method: str, result: bytes) -> dict[str, Any]:
    """A result without a body that the SDK accepts in both eras."""
    if method != TOOLS_LIST:
        return {"content": [], "resultType": "complete"}
    page: dict[str, Any] = {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    try:
        cursor = as_text(decode(_pages, result).nextCursor)
    except Malformed:
        cursor = None
    return page if cursor is None else page | {"nextCursor": cursor}


def raw_tools(result: bytes) -> list[Raw]:
    """The definitions in a result of `tools/list`. Raises `Malformed` when there is no list of them."""
    return decode(_tools, result).tools


class _Tools(Struct, frozen=True):
    tools: list[Raw]


_tools = msgspec.json.Decoder(_Tools)
