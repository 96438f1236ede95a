"""Official TypeScript clients, v1 and v2 in each of its modes, drive a real relay process.

What these clients cannot read they drop, and the call hangs; so most of this is about what a page may return.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e import npm
from tests.helpers import FakeTab, free_port, open_tab

pytestmark = pytest.mark.npm

PATIENCE = 30.0
CLIENTS = ["v1-legacy", "v2-legacy", "v2-auto", "v2-modern"]
LIMIT = 10 * 1024 * 1024 - 64 * 1024  # bytes of a line
each_client = pytest.mark.parametrize("kind", CLIENTS)


class NodeClient:
    """`client.mjs`, and what it says. Create it with `open_client`."""

    def __init__(self, process: trio.Process, port: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._stdout = process.stdout
        self._ids = itertools.count(1)
        self._answers: dict[int, dict[str, Any]] = {}
        self._news = trio.Event()
        self.events: list[dict[str, Any]] = []
        self.port = port

    async def run(self) -> None:
        """Read what the client says until it ends."""
        buffer = bytearray()
        async for chunk in self._stdout:
            *lines, rest = bytes(chunk).split(b"\n")
            for line in lines:
                self._heard(json.loads(bytes(buffer) + line))
                buffer.clear()
            buffer += rest

    def _heard(self, message: dict[str, Any]) -> None:
        if "event" in message:
            self.events.append(message)
        else:
            self._answers[message["id"]] = message
        self._news.set()
        self._news = trio.Event()

    async def event(self, kind: str, count: int = 1) -> dict[str, Any]:
        """The count-th event of this kind."""
        with trio.fail_after(PATIENCE):
            while len(found := [event for event in self.events if event["event"] == kind]) < count:
                await self._news.wait()
        return found[count - 1]

    def progress(self) -> list[dict[str, Any]]:
        hidden = ("event", "id")
        return [
            {key: value for key, value in event.items() if key not in hidden}
            for event in self.events
            if event["event"] == "progress"
        ]

    def errors(self) -> list[str]:
        """What the client complained about without a call it belongs to."""
        return [event["message"] for event in self.events if event["event"] == "error"]

    async def send(self, **command: Any) -> int:
        number = next(self._ids)
        await self._stdin.send_all(json.dumps({"id": number, **command}).encode() + b"\n")
        return number

    async def answer(self, number: int) -> dict[str, Any]:
        """What a command came to: `{"id", "result"}` or `{"id", "error"}`."""
        with trio.fail_after(PATIENCE):
            while number not in self._answers:
                await self._news.wait()
        return self._answers.pop(number)

    async def call(self, name: str, arguments: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
        """Call a tool, which must give a result."""
        answer = await self.answer(await self.send(op="call", name=name, arguments=arguments or {}, **options))
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def tools(self) -> dict[str, dict[str, Any]]:
        """The listed page tools by name."""
        answer = await self.answer(await self.send(op="list"))
        return {tool["name"]: tool for tool in answer["result"]["tools"] if not tool["name"].startswith("webmcp_")}


@asynccontextmanager
async def open_client(kind: str, *options: str) -> AsyncIterator[NodeClient]:
    """Start a client that starts a relay; returns when they have shaken hands."""
    port = free_port()
    sdk, _, era = kind.partition("-")
    command = [npm.node(), str(npm.HERE / "client.mjs"), sdk, era, *npm.relay_command(port, *options)]
    process = await trio.lowlevel.open_process(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"RELAY_CWD": str(npm.ROOT)}
    )
    client = NodeClient(process, port)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.run)
            await client.event("ready")
            yield client
            assert process.stdin is not None
            await process.stdin.aclose()
            with trio.fail_after(PATIENCE):
                await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
    assert process.returncode == 0


@asynccontextmanager
async def open_pair(
    kind: str, *tools: object, options: tuple[str, ...] = ()
) -> AsyncIterator[tuple[NodeClient, FakeTab]]:
    """A client and a tab with these tools, which the client has seen announced."""
    async with open_client(kind, *options) as client:
        await client.tools()  # its `initialized`, or its subscription, has been read when this is answered
        async with open_tab(client.port) as tab:
            await tab.hello()
            await tab.offer(*tools)
            await client.event("list_changed")
            yield client, tab


@each_client
async def test_tools_are_listed_called_and_refused(kind: str, nursery: trio.Nursery) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    def reply(invoke: dict[str, Any]) -> object:
        text = f"got {invoke['args']['a']}"
        return {"content": [{"type": "text", "text": text}], "isError": invoke["args"]["a"] < 0}

    async with open_pair(kind, {"name": "take", "inputSchema": schema, "x-vendor": [1]}) as (client, tab):
        nursery.start_soon(tab.serve, reply)
        assert (await client.tools())["take"]["inputSchema"] == schema
        good = await client.call("take", {"a": 1})
        assert (good["content"], good["isError"]) == ([{"type": "text", "text": "got 1"}], False)
        assert (await client.call("take", {"a": -1}))["isError"] is True
        refused = await client.call("take", {"a": "one"})
        assert refused["isError"] is True
        assert "at a:" in refused["content"][0]["text"]
        assert (await client.call("nowhere"))["isError"] is True
        assert [frame["args"] for frame in tab.seen if frame["type"] == "invoke"] == [{"a": 1}, {"a": -1}]
        assert client.errors() == []


@each_client
async def test_fifty_parallel_calls_each_get_their_own_answer(kind: str) -> None:
    """A13: answered in another order than asked."""
    async with open_pair(kind, "echo") as (client, tab):
        numbers = [await client.send(op="call", name="echo", arguments={"nonce": n}) for n in range(50)]
        invokes = [await tab.expect("invoke") for _ in range(50)]
        for invoke in sorted(invokes, key=lambda invoke: (invoke["args"]["nonce"] * 37) % 50):
            await tab.answer(invoke)
        for nonce, number in enumerate(numbers):
            answer = await client.answer(number)
            assert json.loads(answer["result"]["content"][0]["text"]) == {"nonce": nonce}
        assert client.errors() == []


@each_client
async def test_every_progress_of_a_page_arrives_before_the_answer(kind: str) -> None:
    """The last one comes right before the result, where these clients lose it without a pause between the two."""
    sent: list[dict[str, Any]] = [{"progress": n, "total": 40, "message": f"step {n}"} for n in range(1, 40)]
    sent.append({"progress": 40.5})
    async with open_pair(kind, "slow") as (client, tab):
        number = await client.send(op="call", name="slow", arguments={}, progress=True)
        invoke = await tab.expect("invoke")
        for progress in sent:
            await tab.send({"type": "progress", "callId": invoke["callId"], **progress})
        await tab.answer(invoke)
        assert (await client.answer(number))["result"]["content"][0]["text"] == "{}"
        assert client.progress() == sent
        assert client.errors() == []


@each_client
async def test_a_timeout_of_the_client_cancels_the_call_in_the_page(kind: str) -> None:
    async with open_pair(kind, "slow") as (client, tab):
        number = await client.send(op="call", name="slow", arguments={}, timeout=200)
        invoke = await tab.expect("invoke")
        cancel = await tab.expect("cancel")
        assert cancel["callId"] == invoke["callId"]
        assert "error" in await client.answer(number)
        await tab.answer(invoke)  # too late: nobody may hear of it
        number = await client.send(op="call", name="slow", arguments={"again": True})
        await tab.answer(await tab.expect("invoke"))
        assert (await client.answer(number))["result"]["content"][0]["text"] == '{"again": true}'
        assert client.errors() == []


@each_client
async def test_the_client_hears_that_the_list_has_changed(kind: str) -> None:
    async with open_pair(kind, "one") as (client, tab):
        assert list(await client.tools()) == ["one"]
        await tab.offer("one", "two", kind="tools/changed")
        await client.event("list_changed", 2)
        assert sorted(await client.tools()) == ["one", "two"]
        await tab.send({"type": "source/disconnected"})
        await client.event("list_changed", 3)
        assert await client.tools() == {}


OUTPUT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@each_client
async def test_structured_content_is_held_to_the_output_schema(kind: str, nursery: trio.Nursery) -> None:
    results: dict[str, object] = {
        "good": {"content": [], "structuredContent": {"n": 1}},
        "alone": {"structuredContent": {"n": 2}},
        "wrong": {"content": [], "structuredContent": {"n": "x"}},
        "missing": {"content": [{"type": "text", "text": "1"}]},
        "null": {"content": [], "structuredContent": None},
        "array": {"content": [], "structuredContent": [1]},
        "failed": {"content": [{"type": "text", "text": "no"}], "isError": True},
    }
    tool = {"name": "count", "inputSchema": {"type": "object"}, "outputSchema": OUTPUT}
    async with open_pair(kind, tool) as (client, tab):
        nursery.start_soon(tab.serve, lambda invoke: results[invoke["args"]["which"]])
        assert (await client.tools())["count"]["outputSchema"] == OUTPUT
        for which in results:
            result = await client.call("count", {"which": which})
            if which in ("good", "alone"):
                assert result["structuredContent"] == results[which]["structuredContent"]  # type: ignore[index]
                assert result.get("isError") is not True
            else:
                assert result["isError"] is True, which
                assert len(result["content"]) > 0, which
        assert client.errors() == []


def odd_results() -> Iterator[tuple[str, str, list[dict[str, Any]]]]:
    """(name, JSON text of a result's content, the content a client must see)."""
    text = {"type": "text", "text": "after"}
    unknown = {"type": "hologram", "beam": [1, None]}
    as_text = {"type": "text", "text": json.dumps(unknown, separators=(",", ":"))}
    yield "unknown block", json.dumps([unknown, text], separators=(",", ":")), [as_text, text]
    image = {"type": "image", "data": "%%%", "mimeType": "image/png"}
    as_text = {"type": "text", "text": json.dumps(image, separators=(",", ":"))}
    yield "bad base64", json.dumps([image, text], separators=(",", ":")), [as_text, text]
    image = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    yield "good image", json.dumps([image]), [image]
    ends = {"type": "text", "text": "a\u2028b\u2029c\u0085d"}
    yield "line separators", json.dumps([ends], ensure_ascii=False), [ends]
    yield "half an emoji", '[{"type":"text","text":"x\\ud83d y"}]', [{"type": "text", "text": "x\ufffd y"}]
    pretty = {"type": "text", "text": "a\nb\tc\u0000\u001b"}
    yield "pretty", json.dumps([pretty], indent=2).replace("\n", "\r\n"), [pretty]


@each_client
async def test_odd_results_arrive_and_none_hangs(kind: str) -> None:
    """A02, C01, C02, C07, and content of the kinds of C04."""
    async with open_pair(kind, "odd") as (client, tab):

        async def get(result: str) -> dict[str, Any]:
            number = await client.send(op="call", name="odd", arguments={})
            call_id = (await tab.expect("invoke"))["callId"]
            await tab.send(f'{{"type":"result","callId":"{call_id}","result":{result}}}'.encode())
            answer = await client.answer(number)
            assert "result" in answer, (result, answer)
            value: dict[str, Any] = answer["result"]
            return value

        for name, content, expected in odd_results():
            result = await get(f'{{"content":{content}}}')
            assert result["content"] == expected, name
            assert result.get("isError") is not True, name
        for unusable in ("null", '"hi"', "42", "[]", "{}", '{"content":"hi"}', '{"content":[null]}'):
            assert (await get(unusable))["isError"] is True, unusable
        for odd_meta in ('"x"', "null", "[1]"):
            assert (await get(f'{{"content":[],"_meta":{odd_meta}}}'))["content"] == [], odd_meta
        kept = await get('{"content":[],"_meta":{"a.example/k":[1]},"x-vendor":{"deep":null}}')
        assert kept["_meta"]["a.example/k"] == [1]
        assert kept["x-vendor"] == {"deep": None}
        assert client.errors() == []


@each_client
async def test_a_result_is_as_large_as_a_client_can_read_or_it_is_an_error(kind: str) -> None:
    """C10 and the line limit: above 10 MiB in its buffer this client would end the session."""
    async with open_pair(kind, "big", options=("--max-payload", "20000000")) as (client, tab):

        async def get(text: str) -> dict[str, Any]:
            # A second call's answer right behind the big one: its bytes count for the client's buffer too.
            number = await client.send(op="call", name="big", arguments={})
            invoke = await tab.expect("invoke")
            other = await client.send(op="call", name="big", arguments={"other": True})
            small = await tab.expect("invoke")
            await tab.answer(invoke, {"content": [{"type": "text", "text": text}]})
            await tab.answer(small)
            answer = await client.answer(number)
            assert "result" in answer, answer
            assert (await client.answer(other))["result"]["content"][0]["text"] == '{"other": true}'
            value: dict[str, Any] = answer["result"]
            return value

        for text in ("x" * 9_900_000, "é" * 4_950_000, "y" * (LIMIT - 400)):
            assert (await get(text))["content"][0]["text"] == text
        for text in ("z" * LIMIT, "\u2028" * 1_800_000):  # the second grows on its way: six bytes each
            result = await get(text)
            assert result["isError"] is True
            assert str(LIMIT) in result["content"][0]["text"]
        assert (await get("still here"))["content"][0]["text"] == "still here"
        assert client.errors() == []


@pytest.mark.parametrize("kind", ["v2-auto", "v2-modern"])
async def test_a_client_that_probes_starts_the_relay_twice_on_one_port(kind: str, tmp_path: Path) -> None:
    """The first relay is killed after one `server/discover`; the second must get its port."""
    log = tmp_path / "relay.log"
    for _ in range(3):
        log.unlink(missing_ok=True)
        async with open_pair(kind, "echo", options=("--log-file", str(log))) as (client, _tab):
            assert list(await client.tools()) == ["echo"]
            lines = log.read_text().splitlines()
            assert sum(f"port {client.port}" in line and "listening" in line for line in lines) == 2, lines
            assert client.errors() == []
