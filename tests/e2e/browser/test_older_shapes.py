"""Pages with an older generation of WebMCP: text for schemas and input, other places and names. No tool runs twice."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.browser.setting import Setting, open_setting, text_of

pytestmark = pytest.mark.chromium

SCHEMA = '{"type":"object","properties":{"q":{"type":"string"}}}'
SHAPES = {
    "navigator.modelContext that takes text": "navigator",
    "document.modelContext that takes text": "document",
}
TEXT_ONLY = """
window.runs = 0;
Object.defineProperty(%s, "modelContext", {value: {
  async getTools() { return [{name: "echo", description: "Old", inputSchema: '%s'}]; },
  async executeTool(tool, input) {
    window.runs += 1;
    if (typeof input !== "string") throw new TypeError("input is " + typeof input);
    return "old " + tool.name + " " + input;
  },
}, configurable: true});
"""
TO_STRING = """
window.runs = 0;
Object.defineProperty(navigator, "modelContext", {value: {
  async getTools() { return [{name: "echo", description: "Old", inputSchema: {type: "object"}}]; },
  async executeTool(tool, input) {
    window.runs += 1;
    return "old " + tool.name + " " + JSON.stringify(JSON.parse(`${input}`));
  },
}, configurable: true});
"""
CALL_TOOL = """
window.runs = 0;
Object.defineProperty(navigator, "modelContext", {value: {
  listTools() { return {tools: [{name: "echo", description: "Old", inputSchema: {type: "object"}}]}; },
  async callTool({name, arguments: args}) {
    window.runs += 1;
    return {content: [{type: "text", text: "old " + name + " " + JSON.stringify(args)}]};
  },
}, configurable: true});
"""
TESTING = """
window.runs = 0;
Object.defineProperty(navigator, "modelContextTesting", {value: {
  listTools() { return [{name: "echo", description: "Old", inputSchema: '%s'}]; },
  async executeTool(name, json) {
    window.runs += 1;
    if (typeof name !== "string" || typeof json !== "string") throw new TypeError("not text");
    return "old " + name + " " + json;
  },
  registerToolsChangedCallback(callback) { window.changed = callback; },
}, configurable: true});
"""
SCRIPTS = {
    **{shape: TEXT_ONLY % (owner, SCHEMA) for shape, owner in SHAPES.items()},
    "navigator.modelContext that makes text of an object": TO_STRING,
    "navigator.modelContext with listTools and callTool": CALL_TOOL,
    "navigator.modelContextTesting": TESTING % SCHEMA,
}


@pytest.fixture
async def old(tmp_path: Path) -> AsyncIterator[Setting]:
    async with open_setting(tmp_path, webmcp=False) as made:
        yield made


@pytest.mark.parametrize("shape", SCRIPTS)
async def test_an_older_generation_is_listed_and_called_once(old: Setting, shape: str) -> None:
    page = await old.show(SCRIPTS[shape], "echo")
    (tool,) = [t for t in (await old.relay.request("tools/list", {}))["result"]["tools"] if t["name"] == "echo"]
    assert tool["inputSchema"]["type"] == "object"
    assert text_of(await old.relay.call("echo", {"q": "é"})) == 'old echo {"q":"é"}'
    assert await page.evaluate("window.runs") == 1


async def test_an_older_generation_that_fails_is_not_tried_another_way(old: Setting) -> None:
    script = TEXT_ONLY % ("navigator", SCHEMA) + "navigator.modelContext.executeTool = async () => {"
    page = await old.show(script + " window.runs += 1; throw new TypeError('not my shape'); };", "echo")
    result = await old.relay.call("echo", {"q": "x"})
    assert result["isError"]
    assert "not my shape" in text_of(result)
    assert await page.evaluate("window.runs") == 1


async def test_a_runtime_without_a_list_is_a_source_without_tools(old: Setting) -> None:
    await old.show("Object.defineProperty(navigator, 'modelContext', {value: {registerTool() {}}});")
    await old.relay.logged("connected")
