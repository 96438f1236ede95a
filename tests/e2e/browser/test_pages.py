"""Listing and calling the tools of a page: native WebMCP, and both polyfills with it and without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import npm
from tests.e2e.browser.setting import Setting, open_setting, text_of, wait_sources
from tests.e2e.browser.site import ECHO, GLOBAL, POLYFILL

pytestmark = pytest.mark.chromium

KINDS = """
document.modelContext.registerTool({
  name: "give",
  description: "Gives what it is asked for",
  inputSchema: {type: "object", properties: {what: {type: "string"}}},
  async execute({what}) {
    window.runs = (window.runs ?? 0) + 1;
    switch (what) {
      case "string": return "some words";
      case "number": return 42;
      case "object": return {a: 1, b: {c: null}};
      case "array": return [1, 2];
      case "null": return null;
      case "undefined": return undefined;
      case "result": return {content: [{type: "text", text: "in shape"}, {type: "text", text: "twice"}]};
      case "failed": return {content: [{type: "text", text: "my own words"}], isError: true};
      case "structured": return {content: [{type: "text", text: "s"}], structuredContent: {n: 7}};
      case "throw": throw new Error("the page's secret");
    }
  },
});
"""
WAYS = {
    "natively": (None, True),
    "through global": (GLOBAL, False),
    "through global over WebMCP": (GLOBAL, True),
    "through the polyfill": (POLYFILL, False),
    "through the polyfill over WebMCP": (POLYFILL, True),
}


@pytest.fixture(params=WAYS)
async def way(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if WAYS[name][0] is not None and (missing := npm.what_is_missing()):
        (pytest.fail if npm.required() else pytest.skip)(missing)
    return name


@asynccontextmanager
async def shown(way: str, script: str, home: Path) -> AsyncIterator[tuple[Setting, Any]]:
    """A page of this script, its runtime being had in one of the ways."""
    polyfill, webmcp = WAYS[way]
    async with open_setting(home, webmcp=webmcp) as setting:
        page = await setting.browser.open(setting.site.page(script, polyfill=polyfill))
        yield setting, page


async def test_a_tool_is_listed_with_all_it_has_and_called_once(way: str, tmp_path: Path) -> None:
    async with shown(way, ECHO, tmp_path) as (setting, page):
        await setting.relay.wait_tools("echo")
        (tool,) = [
            tool
            for tool in (await setting.relay.request("tools/list", {}))["result"]["tools"]
            if tool["name"] == "echo"
        ]
        assert tool["title"] == "Echo it"
        assert tool["description"].endswith("Says what it is told")
        assert tool["inputSchema"] == {"type": "object", "properties": {"q": {}}}
        assert tool["annotations"]["readOnlyHint"] is True
        result = await setting.relay.call("echo", {"q": "é漢", "nothing": None, "toString": "x"})
        assert result == {"content": [{"type": "text", "text": 'echo {"q":"é漢","nothing":null,"toString":"x"}'}]}
        assert await page.evaluate("window.runs") == 1


async def test_every_kind_of_result_becomes_a_proper_one(way: str, tmp_path: Path) -> None:
    async with shown(way, KINDS, tmp_path) as (setting, page):
        await setting.relay.wait_tools("give")
        got = {}
        for what in ("string", "number", "object", "array", "null", "undefined", "result", "failed", "structured"):
            got[what] = await setting.relay.call("give", {"what": what})
        thrown = await setting.relay.call("give", {"what": "throw"})
        runs = await page.evaluate("window.runs")
    assert runs == len(got) + 1
    texts = {"string": "some words", "number": "42", "array": "[1,2]", "null": "null", "undefined": "undefined"}
    for what, text in texts.items():
        assert got[what] == {"content": [{"type": "text", "text": text}]}
    value = {"a": 1, "b": {"c": None}}
    assert got["object"] == {
        "content": [{"type": "text", "text": '{"a":1,"b":{"c":null}}'}],
        "structuredContent": value,
    }
    assert [block["text"] for block in got["result"]["content"]] == ["in shape", "twice"]
    assert got["failed"] == {"content": [{"type": "text", "text": "my own words"}], "isError": True}
    assert got["structured"]["structuredContent"] == {"n": 7}
    assert thrown["isError"]
    assert text_of(thrown).startswith('The page\'s tool "give" failed: ')
    # Chromium keeps what a page throws to itself; a polyfill without it does not.
    assert ("the page's secret" in text_of(thrown)) == (not WAYS[way][1])


@pytest.mark.parametrize("way", ["through global", "through global over WebMCP"], indirect=True)
async def test_global_hands_out_an_output_schema_and_more_annotations(way: str, tmp_path: Path) -> None:
    script = """document.modelContext.registerTool({
      name: "count", title: "Count", description: "Counts", inputSchema: {type: "object"},
      outputSchema: {type: "object", properties: {n: {type: "number"}}, required: ["n"]},
      annotations: {readOnlyHint: true, idempotentHint: true},
      async execute() { return {content: [{type: "text", text: "3"}], structuredContent: {n: 3}}; },
    });"""
    async with shown(way, script, tmp_path) as (setting, _):
        await setting.relay.wait_tools("count")
        listed = (await setting.relay.request("tools/list", {}))["result"]["tools"]
        (tool,) = [tool for tool in listed if tool["name"] == "count"]
        assert tool["outputSchema"]["required"] == ["n"]
        assert tool["annotations"]["readOnlyHint"] is True
        assert tool["annotations"]["idempotentHint"] is True
        assert (await setting.relay.call("count"))["structuredContent"] == {"n": 3}


async def test_a_strict_content_security_policy_is_no_obstacle(setting: Setting) -> None:
    body = f'<!doctype html><title>Strict</title><script nonce="abc">{ECHO}</script>'
    policy = "default-src 'none'; script-src 'nonce-abc'; require-trusted-types-for 'script'; trusted-types 'none'"
    setting.site.put("/", body, Content_Security_Policy=policy)
    page = await setting.browser.open(setting.site.url())
    await setting.relay.wait_tools("echo")
    assert text_of(await setting.relay.call("echo", {"q": 1})) == 'echo {"q":1}'
    assert await page.evaluate("window.runs") == 1


async def test_tools_that_come_late_and_go_are_listed_and_gone(setting: Setting) -> None:
    page = await setting.show("", name="/late")
    (source,) = await wait_sources(setting.relay, lambda found: len(found) == 1)
    assert source["toolCount"] == 0, "a page with a runtime and no tools is a source"
    register = """((name) => {
      window.gone ??= {};
      window.gone[name] = new AbortController();
      return document.modelContext.registerTool(
        {name, description: "Late", inputSchema: {type: "object"}, async execute() { return name; }},
        {signal: window.gone[name].signal});
    })"""
    await page.evaluate(f"{register}('one')")
    await setting.relay.wait_tools("one")
    await page.evaluate(f"{register}('two')")
    await setting.relay.wait_tools("one", "two")
    assert text_of(await setting.relay.call("two")) == "two"
    await page.evaluate("window.gone.one.abort()")
    await setting.relay.wait_tools("two")
    await page.evaluate("window.gone.two.abort()")
    await setting.relay.wait_tools()
    assert len(await setting.sources()) == 1
