"""The DevTools protocol over a pipe: commands, answers, events. No port is opened that others could reach."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

MAX_READ = 1 << 20


class DevToolsError(Exception):
    """The browser refused a command, an expression threw, or the browser is gone."""


class Page:
    """One attached target: a tab, an extension's page or its service worker."""

    def __init__(self, devtools: DevTools, target: str, session: str) -> None:
        self._devtools = devtools
        self.target = target
        self._session = session

    async def command(self, method: str, **params: Any) -> dict[str, Any]:
        return await self._devtools.command(method, self._session, **params)

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, a promise awaited, as JSON. Raises `DevToolsError` if it throws."""
        answer = await self.command(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise DevToolsError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    async def close(self) -> None:
        """Close the tab."""
        await self._devtools.command("Target.closeTarget", targetId=self.target)


class DevTools:
    """A connection to one browser. Create it with `open_devtools`; any number of tasks may use it."""

    def __init__(self, send: trio.abc.SendStream) -> None:
        self._send = send
        self._sending = trio.Lock()
        self._next_id = 0
        self._waiting: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self.gone = trio.Event()
        """Set once the browser has ended, or closed the connection."""

    async def command(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """Send one command and return its result. Raises `DevToolsError` when the browser refuses it or is gone."""
        if self.gone.is_set():
            raise DevToolsError(f"{method}: the browser is gone")
        self._next_id += 1
        message: dict[str, Any] = {"id": self._next_id, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        answers_in, answers_out = trio.open_memory_channel[dict[str, Any]](1)
        self._waiting[message["id"]] = answers_in
        try:
            async with self._sending:
                await self._send.send_all(json.dumps(message).encode() + b"\0")
            answer = await answers_out.receive()
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel):
            raise DevToolsError(f"{method}: the browser is gone") from None
        finally:
            self._waiting.pop(message["id"], None)
        if "error" in answer:
            raise DevToolsError(f"{method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    async def targets(self, kind: str | None = None) -> list[dict[str, Any]]:
        """What can be attached to, `{targetId, type, title, url, …}` each; of one type (`service_worker`) if given."""
        found: list[dict[str, Any]] = (await self.command("Target.getTargets"))["targetInfos"]
        return [info for info in found if kind in (None, info["type"])]

    async def attach(self, target: str) -> Page:
        answer = await self.command("Target.attachToTarget", targetId=target, flatten=True)
        return Page(self, target, answer["sessionId"])

    async def open_page(self, url: str) -> Page:
        """A new tab; returns once it exists, not once it has loaded."""
        return await self.attach((await self.command("Target.createTarget", url=url))["targetId"])

    async def _pump(self, receive: trio.abc.ReceiveStream) -> None:
        buffer = bytearray()
        try:
            while data := await receive.receive_some(MAX_READ):
                searched = len(buffer)
                buffer += data
                while (end := buffer.find(b"\0", searched)) >= 0:
                    message = json.loads(buffer[:end])
                    del buffer[: end + 1]
                    searched = 0
                    waiting = self._waiting.get(message.get("id", -math.inf))
                    if waiting is not None:
                        waiting.send_nowait(message)
        finally:
            self.gone.set()
            for waiting in self._waiting.values():
                waiting.close()


@asynccontextmanager
async def open_devtools(send: trio.abc.SendStream, receive: trio.abc.ReceiveStream) -> AsyncIterator[DevTools]:
    """Talk DevTools over these streams (messages end in a zero byte) while the context is open."""
    devtools = DevTools(send)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(devtools._pump, receive)
        try:
            yield devtools
        finally:
            nursery.cancel_scope.cancel()
