"""Writes of hosts that wait for a person, through a whole relay: what is approved too late is never executed (D01)."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import trio

from tests.extensions.playing import Browser, Host, open_browser
from tests.extensions.setting import eventually
from tests.extensions.test_service import HOST, owner, switch, token_of
from tests.helpers import open_tab
from tests.hubs import offer
from trio_relay.extensions.audit import AuditLog
from trio_relay.extensions.gate import WaitingReview
from trio_relay.extensions.service import Extensions


async def a_write_that_waits(browser: Browser, extensions: Extensions, token: str) -> tuple[Host, int, WaitingReview]:
    host = await browser.host(HOST)
    await host.initialize()
    request_id = await host.ask("tools/call", name="search", arguments={"q": "secret"})

    while True:
        rows = await extensions.administer(token, "reviews", b"null")
        if rows != b"[]":
            (review,) = msgspec.json.decode(rows, type=list[WaitingReview])
            return host, request_id, review
        await trio.sleep(0.005)


@pytest.mark.parametrize("how", ["cancelled", "the port goes", "timed out"])
async def test_a_write_that_nobody_waits_for_is_never_executed_whatever_is_approved_later(
    tmp_path: Path, how: str
) -> None:
    """D01."""
    switch(tmp_path, HOST, writes=True, review=True)
    limit = 0.5 if how == "timed out" else 30.0
    async with (
        owner(tmp_path, invoke_timeout=limit) as (hub, extensions),
        open_browser(hub.port) as browser,
        open_tab(hub.port) as tab,
    ):
        await offer(tab, "t1", "search")
        token = token_of(tmp_path)
        with trio.fail_after(10):
            host, request_id, review = await a_write_that_waits(browser, extensions, token)
        assert (review.tool, review.sender_id) == ("search", HOST)
        assert "secret" in review.arguments
        if how == "cancelled":
            await host.cancel(request_id)
        elif how == "the port goes":
            await browser.bridge.send({"type": "port/close", "portId": host.port_id})
        else:
            assert (await host.answer(request_id))["result"]["isError"] is True
        log = AuditLog(tmp_path).path
        await eventually(lambda: log.exists() and log.read_text().count("\n") == 1)
        for _ in range(2):
            decision = json.dumps({"reviewId": review.review_id, "approve": True}).encode()
            answer = json.loads(await extensions.administer(token, "decide", decision))
            assert "never be executed" in answer
        line = json.loads(log.read_text())
        assert (line["event"], line["sender"], line["target"]) == ("refused", HOST, hub.sources()[0].source_id)
        assert line["result"] == ("review-timed-out" if how == "timed out" else "cancelled")
        assert "secret" not in log.read_text()
        assert [frame for frame in tab.seen if frame["type"] == "invoke"] == []


async def test_a_write_that_is_approved_is_executed_once_and_has_two_lines(tmp_path: Path) -> None:
    switch(tmp_path, HOST, writes=True, review=True)
    async with (
        owner(tmp_path) as (hub, extensions),
        open_browser(hub.port) as browser,
        open_tab(hub.port) as tab,
    ):
        await offer(tab, "t1", "search")
        token = token_of(tmp_path)
        with trio.fail_after(10):
            host, request_id, review = await a_write_that_waits(browser, extensions, token)
        decision = json.dumps({"reviewId": review.review_id, "approve": True}).encode()
        assert "is approved" in json.loads(await extensions.administer(token, "decide", decision))
        await tab.answer(await tab.expect("invoke"))
        assert "isError" not in (await host.answer(request_id))["result"]
        assert "is approved" not in json.loads(await extensions.administer(token, "decide", decision))
        lines = [json.loads(line) for line in AuditLog(tmp_path).path.read_text().splitlines()]
        assert [(line["event"], line["result"]) for line in lines] == [("intent", "started"), ("outcome", "ok")]
        assert lines[0]["id"] == lines[1]["id"]
