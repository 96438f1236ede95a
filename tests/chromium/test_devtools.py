"""DevTools over memory streams: answers and errors reach who asked, and nobody waits for a browser that is gone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from trio_relay.chromium.devtools import DevTools, DevToolsError, Page, open_devtools

PATIENCE = 5


class Browser:
    """The other end: reads commands, writes answers."""

    def __init__(self, stream: trio.StapledStream[Any, Any]) -> None:
        self.stream = stream
        self._buffer = b""

    async def command(self) -> dict[str, Any]:
        with trio.fail_after(PATIENCE):
            while b"\0" not in self._buffer:
                self._buffer += await self.stream.receive_some()
        line, _, self._buffer = self._buffer.partition(b"\0")
        command: dict[str, Any] = json.loads(line)
        return command

    async def say(self, *messages: dict[str, Any]) -> None:
        await self.stream.send_all(b"".join(json.dumps(message).encode() + b"\0" for message in messages))


@asynccontextmanager
async def open_pair() -> AsyncIterator[tuple[DevTools, Browser]]:
    ours, theirs = memory_stream_pair()
    with trio.fail_after(PATIENCE):
        async with open_devtools(ours, ours) as devtools:
            yield devtools, Browser(theirs)


class Asked:
    """A command in the background: what became of it."""

    def __init__(self, nursery: trio.Nursery, devtools: DevTools | Page, method: str, **params: Any) -> None:
        self.done = trio.Event()
        self.result: Any = None
        self.error = ""
        self.scope = trio.CancelScope()
        nursery.start_soon(self._ask, devtools, method, params)

    async def _ask(self, devtools: DevTools | Page, method: str, params: dict[str, Any]) -> None:
        try:
            with self.scope:
                self.result = await devtools.command(method, **params)
        except DevToolsError as error:
            self.error = str(error)
        finally:
            self.done.set()


async def test_answers_reach_who_asked_in_any_order_and_in_any_pieces(nursery: trio.Nursery) -> None:
    async with open_pair() as (devtools, browser):
        first = Asked(nursery, devtools, "A.first", a=1)
        one = await browser.command()
        second = Asked(nursery, devtools, "A.second")
        two = await browser.command()
        assert (one["method"], one["params"], two["method"], two["params"]) == ("A.first", {"a": 1}, "A.second", {})
        assert "sessionId" not in one
        event = {"method": "Some.event", "params": {}}
        stranger = {"id": 999, "result": {}}
        answers = (
            {"id": two["id"], "result": {"text": "zwei ✓"}},
            event,
            stranger,
            {"id": one["id"], "result": {"b": 1}},
        )
        for byte in b"".join(json.dumps(answer, ensure_ascii=False).encode() + b"\0" for answer in answers):
            await browser.stream.send_all(bytes([byte]))
        await first.done.wait()
        await second.done.wait()
        assert (first.result, second.result) == ({"b": 1}, {"text": "zwei ✓"})


async def test_a_refused_command_names_itself_and_the_reason(nursery: trio.Nursery) -> None:
    async with open_pair() as (devtools, browser):
        asked = Asked(nursery, devtools, "A.first")
        command = await browser.command()
        await browser.say({"id": command["id"], "error": {"code": -32601, "message": "'A.first' wasn't found"}})
        await asked.done.wait()
        assert asked.error == "A.first: 'A.first' wasn't found"


async def test_a_browser_that_goes_ends_every_wait_and_refuses_what_comes_after(nursery: trio.Nursery) -> None:
    async with open_pair() as (devtools, browser):
        asked = [Asked(nursery, devtools, f"A.{name}") for name in "abc"]
        for _ in asked:
            await browser.command()
        assert not devtools.gone.is_set()
        await browser.stream.aclose()
        for one in asked:
            await one.done.wait()
        assert sorted(one.error for one in asked) == [f"A.{name}: the browser is gone" for name in "abc"]
        await devtools.gone.wait()
        with pytest.raises(DevToolsError, match=r"A\.late: the browser is gone"):
            await devtools.command("A.late")


async def test_an_answer_to_a_cancelled_command_disturbs_nobody(nursery: trio.Nursery) -> None:
    async with open_pair() as (devtools, browser):
        given_up = Asked(nursery, devtools, "A.first")
        command = await browser.command()
        given_up.scope.cancel()
        await given_up.done.wait()
        asked = Asked(nursery, devtools, "A.second")
        other = await browser.command()
        assert other["id"] != command["id"]
        await browser.say({"id": command["id"], "result": {"old": 1}}, {"id": other["id"], "result": {"new": 1}})
        await asked.done.wait()
        assert (given_up.result, asked.result) == (None, {"new": 1})


async def test_leaving_the_context_ends_the_reading() -> None:
    async with open_pair() as (devtools, browser):
        pass
    with pytest.raises(DevToolsError, match="the browser is gone"):
        await devtools.command("A.late")
    await browser.stream.send_all(b"\0")  # nobody reads it; nothing waits either


@pytest.mark.parametrize(
    ("answer", "value", "error"),
    [
        ({"result": {"type": "number", "value": 3}}, 3, ""),
        ({"result": {"type": "undefined"}}, None, ""),
        (
            {"result": {}, "exceptionDetails": {"text": "Uncaught", "exception": {"description": "Error: no"}}},
            0,
            "Error: no",
        ),
        (
            {"result": {}, "exceptionDetails": {"text": "Uncaught (in promise)", "exception": {"value": 1}}},
            0,
            "in promise",
        ),
        ({"result": {}, "exceptionDetails": {"text": "Uncaught"}}, 0, "Uncaught"),
    ],
)
async def test_an_expression_has_its_value_or_what_it_threw(
    nursery: trio.Nursery, answer: dict[str, Any], value: object, error: str
) -> None:
    async with open_pair() as (devtools, browser):

        async def serve() -> None:
            command = await browser.command()
            assert command["method"] == "Target.attachToTarget"
            await browser.say({"id": command["id"], "result": {"sessionId": "s1"}})
            command = await browser.command()
            assert (command["method"], command["sessionId"]) == ("Runtime.evaluate", "s1")
            await browser.say({"id": command["id"], "sessionId": "s1", "result": answer})

        nursery.start_soon(serve)
        page = await devtools.attach("t1")
        if error:
            with pytest.raises(DevToolsError, match=error):
                await page.evaluate("1 + 2")
        else:
            assert await page.evaluate("1 + 2") == value


async def test_targets_are_chosen_by_type(nursery: trio.Nursery) -> None:
    infos = [{"type": "page", "targetId": "1"}, {"type": "service_worker", "targetId": "2"}]
    async with open_pair() as (devtools, browser):

        async def serve() -> None:
            for _ in range(2):
                await browser.say({"id": (await browser.command())["id"], "result": {"targetInfos": infos}})

        nursery.start_soon(serve)
        assert await devtools.targets() == infos
        assert await devtools.targets("service_worker") == infos[1:]
