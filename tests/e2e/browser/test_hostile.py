"""Pages that mean harm: they cost themselves their tools, and nobody else anything."""

from __future__ import annotations

import pytest

from tests.e2e.browser.setting import Setting, text_of, until, wait_sources
from tests.e2e.browser.site import ECHO, HANG
from tests.e2e.browser.test_calls import begin
from trio_relay.chromium.devtools import Page

pytestmark = pytest.mark.chromium

GARBAGE = """(() => {
  const cyclic = {}; cyclic.self = cyclic;
  const details = [undefined, null, 7, "", "null", "[]", "{", "{}", cyclic, new Proxy({}, {get() { throw 1; }}),
    "[".repeat(20000), '{"type":"state"}', '{"type":"state","tools":7}', '{"type":"result"}', '{"type":"progress"}',
    '{"type":"call","callId":"x","toolName":"echo","args":{}}', '{"type":"cancel","callId":"x"}',
    '{"type":"result","callId":"forged","result":{"content":[]}}', '{"type":"progress","callId":{},"progress":"y"}'];
  for (const name of ["trio-relay:from-page", "trio-relay:to-page"]) {
    for (const detail of details) document.dispatchEvent(new CustomEvent(name, {detail}));
    document.dispatchEvent(new Event(name));
  }
})()"""

FORGE = """(() => {
  for (let n = 0; n < 50; n++) {
    for (const callId of [String(n), "c" + n, crypto.randomUUID(), "__proto__", "toString"]) {
      document.dispatchEvent(new CustomEvent("trio-relay:from-page",
        {detail: JSON.stringify({type: "result", callId, result: {content: [{type: "text", text: "forged"}]}})}));
    }
  }
})()"""

BAD_TOOLS = """
const cyclic = {name: "cyclic", description: "", inputSchema: {type: "object"}};
cyclic.inputSchema.self = cyclic.inputSchema;
const tools = [
  null, 7, "text",
  {name: "getter", get description() { throw new Error("no"); }},
  {get name() { throw new Error("no"); }},
  {name: "bigint", inputSchema: {type: "object", default: 10n}},
  {name: "json", inputSchema: {toJSON() { throw new Error("no"); }}},
  cyclic,
  {name: "good", description: "Good", inputSchema: {type: "object"}},
];
Object.defineProperty(document, "modelContext", {value: {
  async getTools() { return tools; },
  async executeTool(tool) { return "ran " + tool.name; },
}, configurable: true});
"""

HUGE = """
const huge = {name: "huge", description: "x".repeat(%d), inputSchema: {type: "object"}};
Object.defineProperty(document, "modelContext", {value: {
  async getTools() { return [huge]; },
  async executeTool() { return "huge"; },
}, configurable: true});
"""

PATCHES = {
    "JSON": "JSON.stringify = JSON.parse = () => { throw new Error('patched'); };",
    "toJSON": "Object.prototype.toJSON = () => 'patched'; Array.prototype.toJSON = () => 'patched';",
    "EventTarget": "EventTarget.prototype.dispatchEvent = EventTarget.prototype.addEventListener = () => { throw 1; };",
    "Promise": "Promise.prototype.then = () => { throw new Error('patched'); };",
    "Map": "Map.prototype.get = Map.prototype.set = () => { throw new Error('patched'); };",
    "setTimeout": "window.setTimeout = () => 0;",
    "throwing runtime": "Object.defineProperty(document, 'modelContext', {get() { throw new Error('no'); }});",
}


WAKE = """for (let n = 0; n < 100; n++) {
  document.dispatchEvent(new Event("prerenderingchange"));
  window.dispatchEvent(new PageTransitionEvent("pageshow", {persisted: true}));
}"""

COUNT = """(() => {
  globalThis.announced = 0;
  chrome.runtime.onMessage.addListener(({type}) => void (globalThis.announced += type === "page"));
})()"""

AS_SCRIPT_IN_PAGE = """(async () => {
  const [{id}] = await chrome.tabs.query({url: "http://*/*"});
  const func = () => new Promise((told) => {
    const heard = [];
    const port = chrome.runtime.connect({name: "popup"});
    port.onMessage.addListener((status) => heard.push(status));
    setTimeout(async () => {
      const settings = await chrome.storage.local.get().catch((error) => error.message);
      const change = await chrome.storage.local.set({enabled: false}).then(() => "done", () => "refused");
      told({heard, settings, change});
    }, 500);
  });
  return (await chrome.scripting.executeScript({target: {tabId: id}, func}))[0].result;
})()"""
"""In the worker: what a script of ours in a web page can do, and so can a page that has broken out of its world."""


async def honest_lives_on(setting: Setting, page: Page) -> None:
    """The honest tab, of another origin, has its tool and its call is run once."""
    runs = await page.evaluate("window.runs")
    (source,) = [source for source in await setting.sources() if "localhost" in source["url"]]
    assert source["toolCount"] > 0
    target = {"toolName": "echo", "sourceId": source["sourceId"], "args": {"q": "h"}}
    assert text_of(await setting.relay.call("webmcp_tool_call", target)) == 'echo {"q":"h"}'
    assert await page.evaluate("window.runs") == runs + 1


async def open_honest(setting: Setting) -> Page:
    setting.site.page(ECHO, "/honest")
    page = await setting.browser.open(setting.site.url("/honest", "localhost"))
    await setting.relay.wait_tools("echo")
    return page


async def test_garbage_in_our_events_harms_nobody(setting: Setting) -> None:
    honest = await open_honest(setting)
    bad = await setting.browser.open(setting.site.page(HANG, "/bad"))
    await setting.relay.wait_tools("echo", "hang")
    await bad.evaluate(GARBAGE)
    await honest_lives_on(setting, honest)
    assert await honest.evaluate("window.runs") == 1


async def test_a_page_that_never_stops_changing_its_tools_is_heard_now_and_then(setting: Setting) -> None:
    """Each state costs the one worker that serves all tabs."""
    page = await setting.show(ECHO, "echo")
    await setting.browser.in_worker("""
        self.looks = 0;
        const get = chrome.tabs.get;
        chrome.tabs.get = (...about) => { self.looks++; return get(...about); };
    """)
    states = 3_000
    await page.evaluate(f"""(async () => {{
      for (let n = 1; n <= {states}; n++) {{
        const tools = [{{name: "t" + n, description: "", inputSchema: {{type: "object"}}}}];
        const detail = JSON.stringify({{type: "state", runtime: "document.modelContext", tools}});
        document.dispatchEvent(new CustomEvent("trio-relay:from-page", {{detail}}));
        if (n % 100 === 0) await new Promise((go) => setTimeout(go, 0));
      }}
    }})()""")
    await setting.relay.wait_tools(f"t{states}")
    assert await setting.browser.in_worker("self.looks") < states / 10


async def test_forged_results_answer_no_call_of_another_tab(setting: Setting) -> None:
    setting.site.page(HANG, "/honest")
    honest = await setting.browser.open(setting.site.url("/honest", "localhost"))
    await setting.relay.wait_tools("hang")
    bad = await setting.browser.open(setting.site.page(ECHO, "/bad"))
    await setting.relay.wait_tools("hang", "echo")
    request = await begin(setting, honest)
    await bad.evaluate(FORGE)
    # What the bad page sent has been handled when a call to it has come back.
    assert text_of(await setting.relay.call("echo", {"q": 1})) == 'echo {"q":1}'
    await honest.evaluate("window.finish('the true one')")
    assert text_of((await setting.relay.answer_to(request))["result"]) == "the true one"


async def test_definitions_that_throw_cost_only_themselves(setting: Setting) -> None:
    honest = await open_honest(setting)
    await setting.browser.open(setting.site.page(BAD_TOOLS, "/bad"))
    await setting.relay.wait_tools("echo", "good")
    assert text_of(await setting.relay.call("good")) == "ran good"
    await honest_lives_on(setting, honest)


@pytest.mark.parametrize("size", [3_000_000, 12_000_000, 70_000_000])
async def test_huge_definitions_cost_only_that_page_its_tools(setting: Setting, size: int) -> None:
    honest = await open_honest(setting)
    (before,) = await setting.sources()
    await setting.browser.open(setting.site.page(HUGE % size, "/bad"))
    await wait_sources(setting.relay, lambda found: len(found) >= 1)
    await honest_lives_on(setting, honest)
    assert await setting.relay.tool_names() == ["echo"]
    assert before["sourceId"] in [source["sourceId"] for source in await setting.sources()]


@pytest.mark.parametrize("what", PATCHES)
async def test_patched_built_ins_cost_only_that_page(setting: Setting, what: str) -> None:
    honest = await open_honest(setting)
    bad = await setting.browser.open(setting.site.page(HANG + PATCHES[what], "/bad"))
    await until(lambda: bad.evaluate("document.readyState === 'complete'"))
    await honest_lives_on(setting, honest)
    await bad.command("Page.navigate", url=setting.site.page(ECHO.replace('"echo"', '"healed"'), "/healed"))
    await setting.relay.wait_tools("echo", "healed")
    await honest_lives_on(setting, honest)


async def test_a_page_that_takes_our_scripts_away_costs_only_itself(setting: Setting) -> None:
    honest = await open_honest(setting)
    bad = await setting.browser.open(setting.site.page(HANG, "/bad"))
    await setting.relay.wait_tools("echo", "hang")
    await bad.evaluate("document.dispatchEvent(new CustomEvent('trio-relay:newer'))")
    await setting.relay.wait_tools("echo")
    await honest_lives_on(setting, honest)


async def test_a_page_that_plays_the_browser_does_not_wake_the_worker(setting: Setting) -> None:
    page = await setting.show(ECHO, "echo")
    await setting.browser.in_worker(COUNT)
    await page.evaluate(WAKE)
    assert text_of(await setting.relay.call("echo", {"q": 1})) == 'echo {"q":1}'
    assert await setting.browser.in_worker("globalThis.announced") == 0


async def test_a_page_that_broke_into_our_script_learns_and_changes_nothing_of_the_others(setting: Setting) -> None:
    await setting.show(ECHO, "echo")
    found = await setting.browser.in_worker(AS_SCRIPT_IN_PAGE)
    assert found["heard"] == []
    assert "not allowed" in found["settings"]
    assert found["change"] == "refused"
    assert await setting.browser.in_worker("chrome.storage.local.get('enabled').then(({enabled}) => enabled ?? true)")
