"""Writes of a host extension: the switch, the limit, reviews, and what the audit log says of them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.browser.serving_setting import ProviderStage, open_provider_stage
from tests.e2e.browser.setting import text_of
from tests.e2e.browser.site import ECHO
from trio_relay.chromium.devtools import Page

pytestmark = [pytest.mark.chromium, pytest.mark.npm]

ADD = """
window.added = [];
document.modelContext.registerTool({
  name: "add",
  description: "Adds something",
  inputSchema: {type: "object"},
  async execute({item}) {
    if (item === "stone") return {content: [{type: "text", text: "no " + item}], isError: true};
    window.added.push(item);
    return "added " + item;
  },
});
"""
WRITES_OFF = "Tools that change something are turned off in this provider."


@asynccontextmanager
async def open_writing(
    folder: Path, *options: str, writes: bool = True, review: bool = False
) -> AsyncIterator[tuple[ProviderStage, Page]]:
    """A host that is allowed and connected, and a page with a tool that reads and one that writes."""
    async with open_provider_stage(folder, *options) as stage:
        stage.allow(writes=writes, review=review)
        page = await stage.show(ECHO + ADD, "echo", "add")
        assert "result" in await stage.connect()
        yield stage, page


def events(lines: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(line["tool"], line["event"], line["result"]) for line in lines]


async def test_writes_are_off_until_they_are_turned_on_and_each_is_in_the_audit_log_without_its_values(
    tmp_path: Path,
) -> None:
    async with open_writing(tmp_path, writes=False) as (stage, page):
        host = stage.host
        refused = await host.call("add", item="secret one")
        assert (refused["isError"], text_of(refused)) == (True, WRITES_OFF)
        through = {"toolName": "add", "args": {"item": "secret two"}}
        assert text_of(await host.call("webmcp_tool_call", **through)) == WRITES_OFF
        assert text_of(await host.call("echo", q="secret three")) == 'echo {"q":"secret three"}'
        assert await page.evaluate("window.added") == []
        await stage.provider("writes", "on")
        assert text_of(await host.call("add", item="secret four")) == "added secret four"
        assert text_of(await host.call("webmcp_tool_call", **through)) == "added secret two"
        failed = await host.call("add", item="stone")
        assert (failed["isError"], text_of(failed)) == (True, "no stone")
        assert await page.evaluate("window.added") == ["secret four", "secret two"]

        lines = stage.audit()
        assert events(lines) == [
            ("add", "refused", "writes-off"),
            ("webmcp_tool_call", "refused", "writes-off"),
            ("add", "intent", "started"),
            ("add", "outcome", "ok"),
            ("webmcp_tool_call", "intent", "started"),
            ("webmcp_tool_call", "outcome", "ok"),
            ("add", "intent", "started"),
            ("add", "outcome", "error"),
        ]
        (source,) = await stage.sources()
        assert {line["sender"] for line in lines} == {host.id}
        assert {line["target"] for line in lines} == {source["sourceId"]}
        assert all(re.fullmatch("hmac-sha256:[0-9a-f]{64}", line["digest"]) for line in lines)
        assert len({line["digest"] for line in lines}) == 4
        assert lines[1]["digest"] == lines[4]["digest"]  # the same arguments
        files = [path for path in (tmp_path / ".webmcp" / "provider").iterdir() if path.is_file()]
        assert not any(word in path.read_bytes() for path in files for word in (b"secret", b"stone"))
        assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
        shown = (await stage.provider("audit", "--tail", "2", "--caller", host.id)).splitlines()
        assert len(shown) == 2
        assert "error" in shown[1]


async def test_the_31st_write_in_a_row_is_told_when_to_try_again_and_reads_go_on(tmp_path: Path) -> None:
    async with open_writing(tmp_path) as (stage, page):
        for number in range(30):
            assert text_of(await stage.host.call("add", item=number)) == f"added {number}"
        refused = await stage.host.call("add", item=30)
        assert refused["isError"]
        assert re.search(r"This one was not executed\. Try again in [1-9][0-9]? seconds?\.", text_of(refused))
        assert await page.evaluate("window.added") == list(range(30))
        assert text_of(await stage.host.call("echo", q=1)) == 'echo {"q":1}'
        assert events(stage.audit())[-2:] == [("add", "outcome", "ok"), ("add", "refused", "rate-limited")]


async def test_with_review_on_only_what_was_approved_while_it_waited_is_executed(tmp_path: Path) -> None:
    async with open_writing(tmp_path, review=True) as (stage, page):
        host = stage.host
        for item, word, heard in (
            ("yes", "approve", "added yes"),
            ("no", "deny", "The call was turned down in a review. It was not executed."),
        ):
            await host.run("callTool", "add", {"item": item}, item)
            review = await stage.review()
            assert f'{{"item":"{item}"}}' in await stage.provider("reviews")
            assert await host.run("outcome", item) is None
            assert await page.evaluate("window.added") == ["yes"][: item == "no"]
            await stage.provider("review", word, review)
            assert text_of((await host.outcome(item))["result"]) == heard

        await host.run("callTool", "add", {"item": "switched"}, "switched")
        review = await stage.review()
        await stage.provider("writes", "off")
        await stage.provider("review", "approve", review)
        assert text_of((await host.outcome("switched"))["result"]) == WRITES_OFF
        await stage.provider("writes", "on")

        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "aborted": partial(host.run, "abort", "aborted"),
            "closed": partial(host.run, "close"),
            "stopped": stage.browser.kill_worker,
        }
        for number, (item, leave) in enumerate(ways.items(), 1):
            await host.run("callTool", "add", {"item": item}, item)
            review = await stage.review()
            await leave()
            assert "error" in await host.outcome(item)
            await stage.audited("cancelled", number)
            said = await stage.provider("review", "approve", review)
            assert "was cancelled by its caller and will never be executed" in said
            if item != "aborted":
                assert "result" in await stage.connect()
        await stage.relay.wait_tools("echo", "add")
        assert text_of(await stage.relay.call("echo", {"q": 1})) == 'echo {"q":1}'  # the page is in step
        assert await page.evaluate("window.added") == ["yes"]
        assert events(stage.audit()) == [
            ("add", "intent", "started"),
            ("add", "outcome", "ok"),
            ("add", "refused", "review-denied"),
            ("add", "refused", "writes-off"),
            *[("add", "refused", "cancelled")] * 3,
        ]


async def test_a_review_that_nobody_decides_in_time_is_never_executed(tmp_path: Path) -> None:
    async with open_writing(tmp_path, "--invoke-timeout", "3000", review=True) as (stage, page):
        await stage.host.run("callTool", "add", {"item": 1}, "slow")
        review = await stage.review()
        result = (await stage.host.outcome("slow"))["result"]
        assert result["isError"]
        assert text_of(result) == "Nobody decided about the call in time. It was not executed and will not be."
        assert "will never be executed" in await stage.provider("review", "approve", review)
        assert text_of(await stage.relay.call("echo", {"q": 1})) == 'echo {"q":1}'  # the page is in step
        assert await page.evaluate("window.added") == []
        assert events(stage.audit()) == [("add", "refused", "review-timed-out")]
