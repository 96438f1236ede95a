"""One session: the SDK's server over a port, with the gate in front of its tools.

The gate is a middleware, the innermost one: it sees every request as the handler would, after whatever the server's
own middlewares made of it, and it holds for handlers that are registered later. A factory cannot forget it.

Importing this module takes half a second (it pulls in the SDK): `provider.py` does it in a thread.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from functools import partial
from typing import Any

import anyio
import mcp_types as types
import trio
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions
from mcp.shared.message import SessionMessage
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from trio_relay.core.policy import REASONS, Refusal, decide
from trio_relay.core.port import Port, PortClosed
from trio_relay.errors import RelayError
from trio_relay.extensions.gate import Asked, Gate
from trio_relay.extensions.provider import Served
from trio_relay.wire.codec import mend_surrogates
from trio_relay.wire.mcp import SERVER_INFO_KEY

logger = logging.getLogger(__name__)

ALWAYS_ANSWERED = frozenset({"initialize", "ping", "server/discover", "subscriptions/listen"})
"""Requests that show nothing a caller that has lost its authorisation may not see."""


async def serve_session(
    port: Port, held: deque[bytes], served: Served, gate: Gate, max_message: int | None = None
) -> None:
    """Serve a port until it closes.

    Args:
        held: Messages that came before; they are served first.
        max_message: Bytes the port takes in one message; a longer answer is replaced by an error. None for no limit.

    Raises:
        ValueError: the server has been served already: each port needs its own.
    """
    server = served.server
    if any(isinstance(middleware, _Gated) for middleware in server.middleware):
        raise ValueError("a server factory makes a new server for each port")
    server.middleware.append(_Gated(gate, port.extension_id, served))
    stream = PortStream(port, held, max_message)
    options = server.create_initialization_options(NotificationOptions(tools_changed=served.background is not None))
    async with trio.open_nursery() as nursery:
        if served.background is not None:
            nursery.start_soon(served.background)
        await server.run(stream, stream, options)
        nursery.cancel_scope.cancel()


class _Gated:
    """Stands between the SDK and the handlers of one session."""

    def __init__(self, gate: Gate, sender: str, served: Served) -> None:
        self._gate = gate
        self._sender = sender
        self._served = served

    async def __call__(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        if ctx.request_id is None:  # a notification
            return await call_next(ctx)
        if ctx.method == "tools/call":
            return await self._call(ctx, call_next)
        if ctx.method not in ALWAYS_ANSWERED:
            verdict = decide(await self._gate.policy(), self._sender, write=False)
            if isinstance(verdict, Refusal):
                raise MCPError(code=types.INVALID_REQUEST, message=REASONS[verdict])
        return await call_next(ctx)

    async def _call(self, ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
        params = ctx.params or {}
        name, arguments = params.get("name"), params.get("arguments")
        arguments = {} if arguments is None else arguments
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise MCPError(code=types.INVALID_PARAMS, message="Invalid request parameters", data="")
        asked = Asked(
            self._sender,
            name,
            json.dumps(arguments, separators=(",", ":")).encode(),
            partial(self._served.describe, name, arguments),
        )
        try:
            return await self._gate.call(asked, partial(call_next, ctx), _says_error)
        except RelayError as error:
            return self._error_result(ctx, str(error))

    def _error_result(self, ctx: ServerRequestContext[Any, Any], text: str) -> dict[str, Any]:
        """A business failure, as a result: the model reads the reason instead of losing its turn."""
        result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "isError": True}
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            # The SDK adds these to the results of handlers only.
            result |= {"resultType": "complete", "_meta": {SERVER_INFO_KEY: self._served.server.server_info_stamp}}
        return result


def _says_error(result: HandlerResult) -> bool:
    return isinstance(result, dict) and result.get("isError") is True


def _encoded(message: types.JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()


def _too_long(message: types.JSONRPCMessage, size: int, limit: int) -> types.JSONRPCMessage:
    """What is said instead of an answer that the port cannot carry."""
    text = f"The answer has {size} bytes; at most {limit} can be sent. Ask for less, or in parts."
    if isinstance(message, types.JSONRPCResponse) and "content" in message.result:
        kept = {key: message.result[key] for key in ("resultType",) if key in message.result}
        result = {"content": [{"type": "text", "text": text}], "isError": True, **kept}
        return types.JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result)
    if isinstance(message, types.JSONRPCResponse):
        error = types.ErrorData(code=types.INTERNAL_ERROR, message=text)
        return types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
    return message  # notifications and requests are short; if not, the port will say so


class PortStream:
    """A port as both streams of the SDK."""

    def __init__(self, port: Port, held: deque[bytes], max_message: int | None = None) -> None:
        self._port = port
        self._held = held
        self._max_message = max_message
        self._sending = trio.Lock()

    def __aiter__(self) -> PortStream:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage | Exception:
        while True:
            # The SDK starts a task per message; they begin in order only if each gets its turn.
            await trio.lowlevel.checkpoint()
            try:
                data = self._held.popleft() if self._held else await self._port.receive()
            except PortClosed:
                raise anyio.EndOfStream from None
            for text in (data, mend_surrogates(data)):
                try:
                    message = types.jsonrpc_message_adapter.validate_json(text, by_name=False)
                except ValidationError:
                    continue
                return SessionMessage(message)
            logger.debug("%s sent what is no message of MCP", self._port.extension_id)

    async def send(self, item: SessionMessage) -> None:
        # Serialised here, so that a result that cannot be costs its own request only.
        text = _encoded(item.message)
        if self._max_message is not None and len(text) > self._max_message:
            text = _encoded(_too_long(item.message, len(text), self._max_message))
        try:
            async with self._sending:
                await self._port.send(text)
        except PortClosed:
            raise anyio.BrokenResourceError from None

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    async def __aenter__(self) -> PortStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
