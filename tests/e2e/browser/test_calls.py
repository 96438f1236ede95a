"""What happens to a call on its way: cancel, deadline, progress, and sizes at the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.browser.setting import Setting, open_setting, text_of, until
from tests.e2e.browser.site import ECHO, HANG
from tests.helpers import PATIENCE
from trio_relay.chromium.devtools import Page

pytestmark = pytest.mark.chromium

SIZES = """
document.modelContext.registerTool({
  name: "big",
  description: "As large as it is told",
  inputSchema: {type: "object"},
  async execute({n, text}) { return text === undefined ? "x".repeat(n) : String(text.length); },
});
document.modelContext.registerTool({
  name: "odd",
  description: "Text that is no easy text",
  inputSchema: {type: "object"},
  async execute({text}) { return {content: [{type: "text", text: "é漢😀\\ud800|" + text}]}; },
});
"""
PROGRESS = """
document.modelContext.registerTool({
  name: "slow",
  description: "Says how far it is",
  inputSchema: {type: "object"},
  async execute() {
    const say = (detail) => document.dispatchEvent(new CustomEvent("toolprogress", {detail}));
    say({name: "other", progress: 9});
    say({name: "slow", progress: "much"});
    say({name: "slow", progress: 1, total: 2, message: "half of it"});
    say({name: "slow", progress: 2, total: 2});
    return "done";
  },
});
"""


async def begin(setting: Setting, page: Page, tool: str = "hang", **params: Any) -> int:
    """Start a call that hangs, and return once the page runs it."""
    runs = await page.evaluate("window.started ?? 0")
    request = await setting.relay.send_request("tools/call", {"name": tool, "arguments": {}, **params})
    await until(lambda: page.evaluate(f"window.started === {runs + 1}"))
    return request


async def test_the_page_sees_a_cancel_as_an_abort(setting: Setting) -> None:
    page = await setting.show(HANG, "hang")
    request = await begin(setting, page)
    await setting.relay.write(
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": request, "reason": "enough"}}
    )
    await until(lambda: page.evaluate("window.aborted.length === 1"))
    request = await begin(setting, page)
    await page.evaluate("window.finish('at last')")
    assert text_of((await setting.relay.answer_to(request))["result"]) == "at last"


async def test_the_deadline_is_seen_by_the_page_and_answered_by_the_relay(tmp_path: Path) -> None:
    async with open_setting(tmp_path, "--invoke-timeout", "500") as setting:
        page = await setting.show(HANG, "hang")
        result = await setting.relay.call("hang")
        assert result["isError"]
        await until(lambda: page.evaluate("window.aborted.length === 1"))


async def test_the_progress_of_a_page_reaches_the_client(setting: Setting) -> None:
    await setting.show(PROGRESS, "slow")
    request = await setting.relay.send_request("tools/call", {"name": "slow", "_meta": {"progressToken": "p1"}})
    seen = []
    with trio.fail_after(PATIENCE):
        while (message := await setting.relay.message()).get("id") != request:
            if message["method"] == "notifications/progress":
                seen.append(message["params"])
    assert text_of(message["result"]) == "done"
    assert seen == [
        {"progressToken": "p1", "progress": 1, "total": 2, "message": "half of it"},
        {"progressToken": "p1", "progress": 2, "total": 2},
    ]


async def test_nine_megabytes_pass_in_both_directions(setting: Setting) -> None:
    await setting.show(SIZES, "big", "odd")
    assert len(text_of(await setting.relay.call("big", {"n": 9_000_000}))) == 9_000_000
    assert text_of(await setting.relay.call("big", {"text": "y" * 9_000_000})) == "9000000"
    assert text_of(await setting.relay.call("big", {"text": "é" * 4_500_000})) == "4500000"


async def test_text_outside_ascii_and_lone_surrogates_pass(setting: Setting) -> None:
    await setting.show(SIZES, "big", "odd")
    said = text_of(await setting.relay.call("odd", {"text": "ü\u2028😀\0"}))
    head, _, tail = said.partition("|")
    assert head == "é漢😀\ufffd", "half a character is none"
    assert tail == "ü\u2028😀\0"


@pytest.mark.parametrize("characters", [12_000_000, 9_999_990])
async def test_a_result_too_large_is_refused_alone(setting: Setting, characters: int) -> None:
    page = await setting.show(SIZES + HANG, "big", "odd", "hang")
    (before,) = await setting.sources()
    hanging = await begin(setting, page)
    result = await setting.relay.call("big", {"n": characters})
    assert result["isError"]
    assert "--max-payload" in text_of(result)
    await page.evaluate("window.finish('lived on')")
    assert text_of((await setting.relay.answer_to(hanging))["result"]) == "lived on"
    (after,) = await setting.sources()
    assert after["sourceId"] == before["sourceId"], "the socket is the same"


async def test_calls_of_one_tab_run_side_by_side(setting: Setting) -> None:
    page = await setting.show(ECHO + HANG, "echo", "hang")
    hanging = await begin(setting, page)
    numbers = [
        await setting.relay.send_request("tools/call", {"name": "echo", "arguments": {"q": n}}) for n in range(20)
    ]
    answers: dict[int, str] = {}
    with trio.fail_after(PATIENCE):
        while len(answers) < len(numbers):
            message = await setting.relay.message()
            if "id" in message:
                answers[message["id"]] = text_of(message["result"])
    assert [answers[number] for number in numbers] == [f'echo {{"q":{n}}}' for n in range(20)]
    await page.evaluate("window.finish('last')")
    assert text_of((await setting.relay.answer_to(hanging))["result"]) == "last"
