"""The lines the raw lane writes: the cap on their length, pages of a long list, and the stamp of the modern era."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import Raw

from tests.backends import WithoutProviders
from tests.helpers import LineClient, open_tab
from tests.surface.setting import published
from trio_relay.core.backend import Change, SourceView, Target, ToolView
from trio_relay.core.pending import OnProgress
from trio_relay.core.results import CallResult, parse_result
from trio_relay.relay.hub import Hub
from trio_relay.surface.answers import MAX_LINE, PAGE_BYTES, Answers
from trio_relay.wire.browser import PlainAnswer, Result, decode_frame
from trio_relay.wire.codec import Malformed, Maybe
from trio_relay.wire.mcp import SERVER_INFO_KEY, PlainResult


class Catalogue(WithoutProviders):
    """A backend of which only the listing matters."""

    def __init__(self, *listings: bytes) -> None:
        self.listings = list(listings)

    def listing(self) -> list[bytes]:
        return self.listings

    def sources(self) -> list[SourceView]:
        return []

    def tools(self) -> Iterator[ToolView]:
        return iter(())

    def change(self) -> Change:
        return Change(0, 0)

    async def wait_change(self, seen: Change) -> Change:
        raise NotImplementedError

    async def call(
        self, name: str, args: Raw, *, target: Target | None = None, on_progress: OnProgress | None = None
    ) -> CallResult:
        raise NotImplementedError

    def refresh(self, origin: str) -> SourceView:
        raise NotImplementedError

    def open_in_browser(self, url: str) -> bool:
        return False

    def info(self) -> dict[str, Any]:
        return {"mode": "server"}


def answers(*listings: bytes) -> Answers:
    made = Answers(Catalogue(*listings))
    made.stamp = b'{"name":"relay","version":"1"}'
    return made


@pytest.mark.parametrize("modern", [False, True])
def test_the_longest_line_goes_out_and_one_byte_more_is_an_error_result(modern: bool) -> None:
    """10 MiB - 64 KiB, LF included: above it the TypeScript client ends the session."""
    assert MAX_LINE == 10_485_760 - 65_536

    def line(size: int) -> bytes:
        body = b'{"content":[{"type":"text","text":"%s"}]}' % (b"x" * size)
        return answers().call_line(b"7", parse_result(Raw(body)), modern=modern)

    room = MAX_LINE - len(line(0))
    fits = line(room)
    assert len(fits) == MAX_LINE
    assert "isError" not in json.loads(fits)["result"]
    refused = json.loads(line(room + 1))
    assert refused["id"] == 7
    assert refused["result"]["isError"] is True
    assert str(MAX_LINE) in refused["result"]["content"][0]["text"]
    assert ("resultType" in refused["result"]) is modern


@pytest.mark.parametrize("modern", [False, True])
def test_an_integer_that_the_python_client_cannot_read_is_an_error_result(modern: bool) -> None:
    """It drops such a line without a word, and the call hangs to its timeout."""

    def line(digits: int) -> bytes:
        result = parse_result(Raw(b'{"content":[],"x":%s}' % (b"9" * digits)))
        return answers().call_line(b"7", result, modern=modern)

    assert json.loads(line(4300))["result"]["x"] == int("9" * 4300)
    refused = json.loads(line(4301))["result"]
    assert refused["isError"] is True
    assert "integer of more than 4300 digits" in refused["content"][0]["text"]


@pytest.mark.parametrize(
    ("meta", "expected"),
    [
        (None, {"name": "relay", "version": "1"}),
        ({"a": None}, {"name": "relay", "version": "1"}),
        ({SERVER_INFO_KEY: None, "a": 1}, {"name": "relay", "version": "1"}),
        ({SERVER_INFO_KEY: {"name": "page"}}, {"name": "page"}),
    ],
)
def test_a_modern_result_is_stamped_unless_it_is_stamped_already(meta: Any, expected: Any) -> None:
    body: dict[str, Any] = {"content": [], "x": None}
    if meta is not None:
        body["_meta"] = meta
    result = parse_result(Raw(json.dumps(body).encode()))
    modern = json.loads(answers().call_line(b'"a"', result, modern=True))["result"]
    assert modern["resultType"] == "complete"
    assert modern["_meta"][SERVER_INFO_KEY] == expected
    others = {key: value for key, value in modern["_meta"].items() if key != SERVER_INFO_KEY}
    assert others == {key: value for key, value in (meta or {}).items() if key != SERVER_INFO_KEY}
    assert modern["x"] is None
    legacy = json.loads(answers().call_line(b'"a"', result, modern=False))["result"]
    assert legacy == body


def tab_listing(number: int, size: int) -> bytes:
    return b'{"name":"t%d","description":"%s","inputSchema":{"type":"object"}}' % (number, b"x" * size)


def test_a_list_up_to_four_mebibytes_is_one_page() -> None:
    made = answers(*(tab_listing(number, 900_000) for number in range(4)))
    page = made.page(None)
    assert page is not None
    assert page.next_cursor is None
    assert len(json.loads(b"[" + page.tools + b"]")) == 4 + 4


def test_a_longer_list_comes_in_pages_that_hold_each_tool_once() -> None:
    made = answers(*(tab_listing(number, 1_900_000) for number in range(7)))
    names: list[str] = []
    cursor: str | None = None
    pages = 0
    while True:
        page = made.page(cursor)
        assert page is not None
        assert len(page.tools) <= PAGE_BYTES
        for modern in (False, True):
            result = json.loads(made.list_line(b"1", page, modern=modern))["result"]
            assert result.get("nextCursor") == page.next_cursor
            assert ("ttlMs" in result) is modern
        names += [tool["name"] for tool in result["tools"]]
        pages += 1
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    assert pages > 1
    assert [name for name in names if not name.startswith("webmcp_")] == [f"t{number}" for number in range(7)]


def test_a_list_that_changes_between_pages_is_finished_as_it_was_begun() -> None:
    made = answers(*(tab_listing(number, 1_900_000) for number in range(4)))
    first = made.page(None)
    assert first is not None
    made._backend.listings.clear()  # type: ignore[attr-defined]
    second = made.page(first.next_cursor)
    assert second is not None
    assert b'"name":"t3"' in second.tools or second.next_cursor is not None


@pytest.mark.parametrize(
    "cursor", ["", "x", "1", "1.", ".1", "1.x", "1.99", "0.0", "1.-1", "1.\u0661", "9.0", "1.1.1", "1." + "1" * 5000]
)
def test_a_cursor_of_no_list_is_refused(cursor: str) -> None:
    made = answers(*(tab_listing(number, 1_900_000) for number in range(4)))
    assert made.page(None) is not None
    page = made.page(cursor)
    assert page is None or cursor == "1.\u0661"


def test_a_cursor_of_an_earlier_list_is_refused() -> None:
    made = answers(*(tab_listing(number, 1_900_000) for number in range(4)))
    first = made.page(None)
    assert first is not None
    assert made.page(None) is not None
    assert made.page(first.next_cursor) is None


@pytest.mark.parametrize("modern", [False, True])
async def test_a_client_walks_the_pages_of_three_heavy_tabs(client: LineClient, hub: Hub, modern: bool) -> None:
    client.modern = modern
    if not modern:
        await client.initialize()
    text = "x" * 1_900_000
    async with open_tab(hub.port) as a, open_tab(hub.port) as b, open_tab(hub.port) as c:
        for number, tab in enumerate((a, b, c)):
            await tab.hello(str(number))
            await tab.offer({"name": f"t{number}", "description": text})
        await published(hub, 3)
        names: list[str] = []
        params: dict[str, Any] = {}
        while True:
            result = (await client.request("tools/list", params))["result"]
            names += [tool["name"] for tool in result["tools"]]
            if "nextCursor" not in result:
                break
            params = {"cursor": result["nextCursor"]}
        assert sorted(names)[:3] == ["t0", "t1", "t2"]
        assert len(names) == 7
        assert params, "there was more than one page"
        stale = await client.request("tools/list", {"cursor": "0.1"})
        assert stale["error"]["code"] == -32602
        await client.ping()


@pytest.mark.parametrize(
    "body",
    [
        b'{"content":[{"type":"text","text":"x","more":%s}]}',
        b'{"content":[],"_meta":{"\\u0061":%s}}',
        b'{"content":[],"_meta":{"a":%s}}',
    ],
)
def test_nesting_that_could_just_be_read_costs_no_more_than_the_result(body: bytes) -> None:
    """A result is judged in another task than its frame was read in, where the interpreter may have less room left."""

    def judge(frames: int, raw: Maybe | PlainResult) -> bytes:
        if frames:
            return judge(frames - 1, raw)
        return answers().call_line(b"1", parse_result(raw), modern=True)

    for depth in range(800, 1000):
        for frames in (0, 20):
            frame = b'{"type":"result","callId":"c","result":' + body % (b"[" * depth + b"]" * depth) + b"}"
            try:
                read = decode_frame(frame)
            except Malformed:
                continue
            assert isinstance(read, Result | PlainAnswer)
            assert json.loads(judge(frames, read.result))["result"]["isError"] is True
