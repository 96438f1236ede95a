// Every sentence that trio_relay/browser/words.js can say. Run by test_words.py.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as words from "../../trio_relay/browser/words.js";

const ID = "abcdefghijklmnopabcdefghijklmnop";
const SITE = "https://shop.example";
const RELAY = { port: 9334, relayId: "r", instanceId: "i", maxPayload: 10_000_000 };
const NOTHING = { enabled: true, sitesOff: [], port: null, searching: false, relay: null, refusal: null, tabs: [] };
const TAB = { tab: 7, origin: SITE, problem: null, tools: 3, connected: true, calls: 0 };
const PAGE = { runtime: "document.modelContext", tools: 3 };

const relay = (status, permission = "granted") =>
  words.relayWords({ status: status && { ...NOTHING, ...status }, permission, id: ID });
const tab = ({ status = {}, ...known } = {}) =>
  words.tabWords({ status: status && { ...NOTHING, relay: RELAY, ...status }, site: SITE, page: PAGE, shared: undefined, ...known });

// ---- the relay

test("before the worker has said anything nothing is claimed", () => {
  assert.deepEqual(relay(null), { tone: "wait", title: "One moment…", lines: [] });
});

test("switched off is said before anything else", () => {
  assert.deepEqual(relay({ enabled: false, relay: RELAY, refusal: "no" }, "denied"), {
    tone: "off",
    title: "Sharing is switched off",
    lines: ["AI clients see none of your tabs. Switch it on at the top."],
  });
});

test("a connected relay is named by its port, label and workspace", () => {
  const bare = relay({ relay: RELAY, tabs: [TAB] });
  assert.deepEqual(bare, { tone: "good", title: "Connected to the relay on port 9334", lines: [] });
  const labelled = relay({ relay: { ...RELAY, label: "Desk" }, tabs: [TAB] });
  assert.deepEqual(labelled.lines, ["“Desk”"]);
  const both = relay({ relay: { ...RELAY, label: "Desk\n\u202e", workspace: "garden" }, tabs: [TAB] });
  assert.deepEqual(both.lines, ["“Desk”, workspace “garden”"]);
});

test("a relay without tabs is found, not connected", () => {
  const without = { tone: "good", title: "Found a relay on port 9334", lines: ["No tab is shared with it yet."] };
  assert.deepEqual(relay({ relay: RELAY }), without);
  assert.deepEqual(relay({ relay: RELAY, searching: true, tabs: [{ ...TAB, connected: false }] }, "prompt"), without);
});

test("a permission that was taken away is said even while the connection lasts", () => {
  const notice = relay({ relay: RELAY, tabs: [TAB] }, "denied");
  assert.equal(notice.tone, "good");
  assert.deepEqual(notice.lines, [
    "But Chrome's “Apps on device” is set to Block for this extension, so the next connection will fail.",
  ]);
  assert.deepEqual(notice.actions, [{ does: "site-settings", label: "Open Chrome's site settings" }]);
});

test("a refused origin names the exact option, even while looking again", () => {
  for (const refusal of ["origin 'chrome-extension://x' is not allowed; start the relay with …", "Host origin not allowed", ""]) {
    assert.deepEqual(relay({ relay: RELAY, refusal, searching: true }), {
      tone: "bad",
      title: "The relay on port 9334 refuses this extension",
      lines: [
        "It was started for other browser origins. Add this to its command (“args” in your AI client's settings), and restart it.",
        "If the command has a --widget-origin already, add the address to that, after a comma.",
      ],
      copy: `--widget-origin chrome-extension://${ID}`,
    });
  }
});

test("another refusal is shown in the relay's own words, on one line", () => {
  const notice = relay({ relay: RELAY, refusal: "tabId must be\na string" });
  assert.equal(notice.title, "The relay on port 9334 refuses this extension");
  assert.deepEqual(notice.lines, ["It says: tabId must be a string"]);
  assert.equal(notice.copy, undefined);
});

test("a denied permission names the setting, also while searching", () => {
  for (const searching of [true, false]) {
    assert.deepEqual(relay({ searching }, "denied"), {
      tone: "bad",
      title: "Chrome keeps this extension from the relay",
      lines: [
        "It may not reach programs on this computer. In Chrome's site settings for this extension, set “Apps on device” " +
          "(in older versions “Local network access”) to Allow.",
      ],
      actions: [{ does: "site-settings", label: "Open Chrome's site settings" }],
    });
  }
});

test("a search says where it looks", () => {
  assert.deepEqual(relay({ searching: true }), {
    tone: "wait",
    title: "Looking for a relay…",
    lines: ["On ports 9333 to 9348 of this computer."],
  });
  assert.deepEqual(relay({ searching: true, port: 9400 }).lines, ["On port 9400 of this computer."]);
});

test("no relay: what to do", () => {
  for (const permission of ["granted", null]) {
    assert.deepEqual(relay({}, permission), {
      tone: "bad",
      title: "No relay found",
      lines: [
        "Nothing answered on ports 9333 to 9348 of this computer.",
        "Start your AI client, which starts trio-relay; or run trio-relay in a terminal.",
      ],
    });
  }
});

test("no relay on the port that was set: that it was set", () => {
  assert.deepEqual(relay({ port: 9400 }).lines, [
    "Nothing answered on port 9400 of this computer.",
    "Start your AI client, which starts trio-relay; or run trio-relay in a terminal.",
    "The port was set in the settings: start the relay with --port 9400, or empty the field there.",
  ]);
});

test("no relay and an undecided permission: a button that makes Chrome ask", () => {
  const notice = relay({}, "prompt");
  assert.equal(notice.lines.at(-1), "If one is running: Chrome may first have to ask you whether this extension may reach apps on this device.");
  assert.deepEqual(notice.actions, [{ does: "ask", label: "Let Chrome ask me" }]);
});

// ---- the tab in front

test("a tab whose page has not answered has no state", () => {
  assert.deepEqual(tab({ status: null }), { tone: "wait", title: "One moment…", lines: [] });
  assert.deepEqual(tab({ page: undefined }), { tone: "wait", title: "One moment…", lines: ["The page has not answered yet."] });
});

test("pages where no extension may run say so", () => {
  assert.deepEqual(tab({ site: null, page: null }), {
    tone: "off",
    title: "This tab cannot be shared",
    lines: ["Chrome lets no extension run here: only web pages (http and https) have tools."],
  });
  assert.deepEqual(tab({ page: null }), {
    tone: "off",
    title: "This page cannot be reached",
    lines: ["Chrome lets no extension run in the Web Store, in its error pages, or where your company forbids it. Else reload the page."],
  });
});

test("a site that is switched off says only that", () => {
  assert.deepEqual(tab({ status: { sitesOff: [SITE] }, page: null }), {
    tone: "off",
    title: "This site is switched off",
    lines: ["AI clients do not see its tools."],
  });
});

test("without WebMCP the flag is named", () => {
  assert.deepEqual(tab({ page: { runtime: null, tools: 0 } }), {
    tone: "off",
    title: "No WebMCP in this tab",
    lines: ["The site offers none, or Chrome's is off: enable chrome://flags/#enable-webmcp-testing, restart Chrome, and come back."],
    actions: [{ does: "flag", label: "Open that page of Chrome" }],
  });
  assert.equal(words.FLAG_PAGE, "chrome://flags/#enable-webmcp-testing");
});

test("a WebMCP that lists no tools is told apart", () => {
  const agent = readFileSync(new URL("../../trio_relay/browser/page/agent.js", import.meta.url), "utf8");
  assert.ok(agent.includes('name: "modelContext without getTools"'));
  assert.deepEqual(tab({ page: { runtime: "modelContext without getTools", tools: 0 } }), {
    tone: "bad",
    title: "This page's WebMCP cannot be used",
    lines: ["It does not say which tools there are. A newer Chrome does."],
  });
});

test("the problem of a tab is shown", () => {
  assert.deepEqual(tab({ shared: { ...TAB, problem: "Too large." } }), {
    tone: "bad",
    title: "The tools of this page are not shared",
    lines: ["Too large."],
  });
});

test("shared tabs say how many tools there are, and what runs", () => {
  const shared = (more) => tab({ shared: { ...TAB, ...more } });
  assert.deepEqual(shared({}), { tone: "good", title: "Shared with 3 tools", lines: [] });
  assert.deepEqual(shared({ tools: 1, calls: 1 }), { tone: "good", title: "Shared with 1 tool", lines: ["One is running now."] });
  assert.deepEqual(shared({ calls: 2 }).lines, ["2 calls are running now."]);
  assert.deepEqual(shared({ tools: 0 }), {
    tone: "good",
    title: "Shared, without tools",
    lines: ["The page has WebMCP, but has offered no tools yet. They will be shared as they come."],
  });
});

test("a page with tools that is not shared says why", () => {
  const said = (status, more = {}) => {
    const { tone, title, lines } = tab({ status, ...more });
    return [tone, title, ...lines];
  };
  assert.deepEqual(said({ enabled: false }), ["off", "Not shared", "The page has 3 tools. Sharing is switched off."]);
  assert.deepEqual(said({ relay: null }), ["wait", "Not shared yet", "The page has 3 tools. It will be shared as soon as a relay is found."]);
  assert.deepEqual(said({ refusal: "no" }), ["bad", "Not shared", "The page has 3 tools. The relay refuses this extension."]);
  assert.deepEqual(said({}), ["wait", "Connecting this tab…", "The page has 3 tools."]);
  const none = said({}, { page: { ...PAGE, tools: 0 }, shared: { ...TAB, tools: 0, connected: false } });
  assert.deepEqual(none, ["wait", "Connecting this tab…", "The page has WebMCP, but no tools yet."]);
});

test("the switch for a site names it", () => {
  assert.equal(words.siteSwitchWords("https://shop.example:8443"), "Share shop.example:8443");
  assert.equal(words.siteSwitchWords(null), "Share this site");
});

// ---- the list, and titles, which pages write

test("the list counts its tabs, and says how tabs come there", () => {
  const empty = { heading: "Shared tabs", empty: "None. Tabs whose pages have WebMCP come here once a relay takes them." };
  assert.deepEqual(words.listWords(null), empty);
  assert.deepEqual(words.listWords(NOTHING), empty);
  assert.deepEqual(words.listWords({ ...NOTHING, tabs: [TAB, TAB] }), { heading: "Shared tabs (2)", empty: null });
});

test("a row has a title, a host and a state", () => {
  const about = { title: "Garden shop", url: `${SITE}/x` };
  assert.deepEqual(words.rowWords(TAB, about), {
    title: "Garden shop",
    detail: "shop.example · 3 tools",
    label: "Go to the tab Garden shop, shop.example · 3 tools",
  });
  assert.equal(words.rowWords({ ...TAB, tools: 0 }, about).detail, "shop.example · no tools");
  assert.equal(words.rowWords({ ...TAB, connected: false }, about).detail, "shop.example · connecting…");
  assert.equal(words.rowWords({ ...TAB, problem: "x" }, about).detail, "shop.example · not shared: too large");
  assert.equal(words.rowWords({ ...TAB, origin: null, connected: false }, about).detail, "shop.example · connecting…"); // between pages
  const gone = words.rowWords({ ...TAB, origin: null }, null);
  assert.deepEqual([gone.title, gone.detail], ["Untitled tab", "3 tools"]);
});

test("a title stays on its line and turns nothing around", () => {
  const title = (text) => words.titleOf({ title: text, url: `${SITE}/` });
  assert.equal(title("  a\n\tb\u2028c\u0000 "), "a b c");
  assert.equal(title("\u202egnp.exe\u2066\u200f"), "gnp.exe");
  for (const empty of ["", "  ", "\u200b\u202e", undefined]) assert.equal(title(empty), "shop.example");
  assert.equal(words.titleOf({ title: "", url: "no address" }), "Untitled tab");
  assert.equal(title("👩‍👩‍👧 family"), "👩‍👩‍👧 family");
  assert.equal(title("x".repeat(200)), "x".repeat(200));
  assert.equal(title("😀".repeat(100_000)), `${"😀".repeat(200)}…`);
});

// ---- the options page

test("ports are whole numbers from 1 to 65535, or none", () => {
  for (const text of ["", "   "]) assert.deepEqual(words.readPort(text), { port: null });
  for (const [text, port] of [["1", 1], [" 9400 ", 9400], ["65535", 65535], ["00080", 80]]) assert.deepEqual(words.readPort(text), { port });
  for (const text of ["0", "65536", "99999", "-1", "1.5", "1e3", "0x50", "9333-9348", "port", "٩٣٣٣", "123456"]) {
    assert.deepEqual(words.readPort(text), {
      problem: `“${text}” is no port. A port is a whole number from 1 to 65535; leave the field empty to look at 9333 to 9348.`,
    });
  }
  assert.match(words.readPort("9".repeat(40)).problem, /^“9{20}…” is no port\. /);
});

test("what was saved is said, and how to start a relay for it", () => {
  assert.equal(words.savedWords(null), "Saved. The extension looks at ports 9333 to 9348.");
  assert.equal(words.savedWords(9340), "Saved. The extension looks at port 9340.");
  assert.equal(words.savedWords(9400), "Saved. The extension looks at port 9400. Start the relay with --port 9400.");
});

test("the permission is explained in each of its states", () => {
  const settings = { does: "site-settings", label: "Open Chrome's site settings" };
  assert.deepEqual(words.permissionWords("granted"), {
    tone: "good",
    title: "Allowed",
    lines: ["Chrome lets this extension reach apps on this device."],
  });
  const denied = words.permissionWords("denied");
  assert.deepEqual([denied.tone, denied.title, denied.actions], ["bad", "Blocked", [settings]]);
  assert.match(denied.lines[0], /set “Apps on device” .* to Allow\.$/);
  assert.deepEqual(words.permissionWords("prompt"), {
    tone: "wait",
    title: "Not asked yet",
    lines: ["Some versions of Chrome want you to allow it first. If a running relay is not found, let Chrome ask, and choose Allow."],
    actions: [{ does: "ask", label: "Let Chrome ask me" }, settings],
  });
  assert.deepEqual(words.permissionWords(null), { tone: "good", title: "Nothing to allow", lines: ["This version of Chrome does not ask."] });
});

test("the sites that are off are introduced", () => {
  assert.equal(words.sitesOffWords(0), "None. The switch for a site is in the popup, while a tab of it is in front.");
  assert.equal(words.sitesOffWords(1), "AI clients do not see the tools of these sites.");
});

test("Chrome's page for this extension is the exact one", () => {
  assert.equal(words.siteSettingsPage(ID), `chrome://settings/content/siteDetails?site=chrome-extension://${ID}`);
});
