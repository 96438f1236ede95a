/**
 * What the popup and the options page say, made from plain data. Nothing here asks Chrome for anything or touches a document, so
 * that node can test every sentence.
 *
 * Most functions give a `Notice`, which `notice.js` puts on the page.
 * @typedef {"good"|"wait"|"off"|"bad"} Tone
 * @typedef {{does: string, label: string}} Action a button; what `does` stands for is up to the page
 * @typedef {{tone: Tone, title: string, lines: string[], copy?: string, actions?: Action[]}} Notice `copy` is a text to copy
 *
 * @typedef {Awaited<ReturnType<import("./sharing.js").Sharing["status"]>>} Status
 * @typedef {"granted"|"denied"|"prompt"|null} Permission for Local Network Access; null where Chrome knows no such thing
 */

import { RANGE } from "./settings.js";

/** Chrome's page with the switch for its own WebMCP. */
export const FLAG_PAGE = "chrome://flags/#enable-webmcp-testing";
/** The name of `runtime` that agent.js gives to a WebMCP it can neither list nor call. */
const UNREADABLE = "modelContext without getTools";
/** Longer titles are cut by the style sheet; this only keeps a page from filling our memory. */
const MAX_TITLE = 200;

const SETTINGS_ACTION = { does: "site-settings", label: "Open Chrome's site settings" };
const ASK_ACTION = { does: "ask", label: "Let Chrome ask me" };
const FLAG_ACTION = { does: "flag", label: "Open that page of Chrome" };

// ---- small things --------------------------------------------------------------------------------------------------

/** @param {number|null} port or null for the range */
export const portsWords = (port) => (port === null ? `ports ${RANGE[0]} to ${RANGE.at(-1)}` : `port ${port}`);

export const toolCount = (n) => (n === 0 ? "no tools" : n === 1 ? "1 tool" : `${n} tools`);

/** The option that lets just this extension register tools. */
export const pinOption = (id) => `--widget-origin chrome-extension://${id}`;

/** Chrome's page with this extension's permissions. */
export const siteSettingsPage = (id) => `chrome://settings/content/siteDetails?site=chrome-extension://${id}`;

/**
 * A text that a page chose, on one line and unable to turn around the text next to it.
 * @param {string|undefined} text
 */
export function oneLine(text) {
  const clean = (text ?? "")
    .replace(/[\p{Bidi_Control}\u200b\u2060\ufeff\u00ad]/gu, "")
    .replace(/[\p{Cc}\p{Z}\p{Cs}]+/gu, " ")
    .trim();
  const characters = [...clean.slice(0, 2 * MAX_TITLE + 2)]; // a character may be two code units
  return characters.length > MAX_TITLE ? `${characters.slice(0, MAX_TITLE).join("")}…` : clean;
}

/** The part of an origin or address that people read: `shop.example`, `127.0.0.1:8000`. */
export const hostOf = (url) => (URL.canParse(url ?? "") ? new URL(url).host : "");

/** A heading for a page: its title, else its host. @param {{title?: string, url?: string}|null} about */
export const titleOf = (about) => oneLine(about?.title) || hostOf(about?.url) || "Untitled tab";

// ---- the relay -----------------------------------------------------------------------------------------------------

/**
 * Is there a relay, and if not, what to do.
 * @param {{status: Status|null, permission: Permission, id: string}} known `id` is this extension's; no status yet: null
 * @returns {Notice}
 */
export function relayWords({ status, permission, id }) {
  if (status === null) return { tone: "wait", title: "One moment…", lines: [] };
  if (!status.enabled) {
    const line = "AI clients see none of your tabs. Switch it on at the top.";
    return { tone: "off", title: "Sharing is switched off", lines: [line] };
  }
  if (status.relay && status.refusal !== null) return refusedWords(status, id);
  if (status.relay) return connectedWords(status, permission);
  if (permission === "denied") return deniedWords();
  if (status.searching) {
    return { tone: "wait", title: "Looking for a relay…", lines: [`On ${portsWords(status.port)} of this computer.`] };
  }
  return notFoundWords(status, permission);
}

function connectedWords({ relay, tabs }, permission) {
  const connected = tabs.some((tab) => tab.connected);
  const names = [];
  if (relay.label) names.push(`“${oneLine(relay.label)}”`);
  if (relay.workspace) names.push(`workspace “${oneLine(relay.workspace)}”`);
  const lines = names.length > 0 ? [names.join(", ")] : [];
  if (!connected) lines.push("No tab is shared with it yet.");
  if (permission === "denied") {
    lines.push("But Chrome's “Apps on device” is set to Block for this extension, so the next connection will fail.");
  }
  return {
    tone: "good",
    title: `${connected ? "Connected to the" : "Found a"} relay on port ${relay.port}`,
    lines,
    ...(permission === "denied" ? { actions: [SETTINGS_ACTION] } : {}),
  };
}

function refusedWords({ relay, refusal }, id) {
  const title = `The relay on port ${relay.port} refuses this extension`;
  if (refusal !== "" && !/origin/i.test(refusal)) return { tone: "bad", title, lines: [`It says: ${oneLine(refusal)}`] };
  return {
    tone: "bad",
    title,
    lines: [
      "It was started for other browser origins. Add this to its command (“args” in your AI client's settings), and restart it.",
      "If the command has a --widget-origin already, add the address to that, after a comma.",
    ],
    copy: pinOption(id),
  };
}

function deniedWords() {
  return {
    tone: "bad",
    title: "Chrome keeps this extension from the relay",
    lines: [
      "It may not reach programs on this computer. In Chrome's site settings for this extension, set “Apps on device” " +
        "(in older versions “Local network access”) to Allow.",
    ],
    actions: [SETTINGS_ACTION],
  };
}

function notFoundWords({ port }, permission) {
  const lines = [
    `Nothing answered on ${portsWords(port)} of this computer.`,
    "Start your AI client, which starts trio-relay; or run trio-relay in a terminal.",
  ];
  if (port !== null) lines.push(`The port was set in the settings: start the relay with --port ${port}, or empty the field there.`);
  if (permission !== "prompt") return { tone: "bad", title: "No relay found", lines };
  lines.push("If one is running: Chrome may first have to ask you whether this extension may reach apps on this device.");
  return { tone: "bad", title: "No relay found", lines, actions: [ASK_ACTION] };
}

// ---- the current tab -----------------------------------------------------------------------------------------------

/**
 * Is the tab in front shared, and if not, why.
 * @param {{status: Status|null, site: string|null, page: {runtime: string|null, tools: number}|null|undefined,
 *   shared: Status["tabs"][number]|undefined}} known `site` is its origin, null for no web page; `page` what our script in it
 *   says, null where there is none, undefined as long as it has not answered; `shared` its item in `status.tabs`
 * @returns {Notice}
 */
export function tabWords({ status, site, page, shared }) {
  const notice = (tone, title, line, more = {}) => ({ tone, title, lines: line ? [line] : [], ...more });
  if (status === null) return notice("wait", "One moment…");
  if (site === null) {
    const line = "Chrome lets no extension run here: only web pages (http and https) have tools.";
    return notice("off", "This tab cannot be shared", line);
  }
  if (status.sitesOff.includes(site)) return notice("off", "This site is switched off", "AI clients do not see its tools.");
  if (page === undefined) return notice("wait", "One moment…", "The page has not answered yet.");
  if (page === null) {
    return notice(
      "off",
      "This page cannot be reached",
      "Chrome lets no extension run in the Web Store, in its error pages, or where your company forbids it. Else reload the page.",
    );
  }
  if (page.runtime === null) {
    return notice(
      "off",
      "No WebMCP in this tab",
      `The site offers none, or Chrome's is off: enable ${FLAG_PAGE}, restart Chrome, and come back.`,
      { actions: [FLAG_ACTION] },
    );
  }
  if (page.runtime === UNREADABLE) {
    return notice("bad", "This page's WebMCP cannot be used", "It does not say which tools there are. A newer Chrome does.");
  }
  if (shared?.problem) return notice("bad", "The tools of this page are not shared", oneLine(shared.problem));
  const tools = shared?.tools ?? page.tools;
  const has = tools === 0 ? "The page has WebMCP, but no tools yet." : `The page has ${toolCount(tools)}.`;
  if (!status.enabled) return notice("off", "Not shared", `${has} Sharing is switched off.`);
  if (shared?.connected) return sharedWords(tools, shared.calls);
  if (!status.relay) return notice("wait", "Not shared yet", `${has} It will be shared as soon as a relay is found.`);
  if (status.refusal !== null) return notice("bad", "Not shared", `${has} The relay refuses this extension.`);
  return notice("wait", "Connecting this tab…", has);
}

function sharedWords(tools, calls) {
  const lines = [];
  if (tools === 0) lines.push("The page has WebMCP, but has offered no tools yet. They will be shared as they come.");
  if (calls > 0) lines.push(calls === 1 ? "One is running now." : `${calls} calls are running now.`);
  return { tone: "good", title: tools === 0 ? "Shared, without tools" : `Shared with ${toolCount(tools)}`, lines };
}

/** The label of the switch for one site. @param {string|null} site */
export const siteSwitchWords = (site) => (site === null ? "Share this site" : `Share ${hostOf(site)}`);

// ---- the list of shared tabs ---------------------------------------------------------------------------------------

/** @param {Status|null} status */
export function listWords(status) {
  const n = status?.tabs.length ?? 0;
  return {
    heading: n === 0 ? "Shared tabs" : `Shared tabs (${n})`,
    empty: n === 0 ? "None. Tabs whose pages have WebMCP come here once a relay takes them." : null,
  };
}

/**
 * One shared tab.
 * @param {Status["tabs"][number]} tab
 * @param {{title?: string, url?: string}|null} about what Chrome knows of it; null if it just went away
 */
export function rowWords(tab, about) {
  const title = titleOf(about);
  const host = hostOf(tab.origin ?? about?.url);
  const state = tab.problem ? "not shared: too large" : tab.connected ? toolCount(tab.tools) : "connecting…";
  const detail = host ? `${host} · ${state}` : state;
  return { title, detail, label: `Go to the tab ${title}, ${detail}` };
}

// ---- the options page ----------------------------------------------------------------------------------------------

/**
 * What a person typed as the port.
 * @returns {{port: number|null}|{problem: string}} null for an empty field: the range
 */
export function readPort(text) {
  const typed = text.trim();
  if (typed === "") return { port: null };
  if (/^[0-9]{1,5}$/.test(typed) && Number(typed) >= 1 && Number(typed) <= 65535) return { port: Number(typed) };
  const shown = oneLine(typed);
  const cut = shown.length > 20 ? `${shown.slice(0, 20)}…` : shown;
  const range = `${RANGE[0]} to ${RANGE.at(-1)}`;
  return { problem: `“${cut}” is no port. A port is a whole number from 1 to 65535; leave the field empty to look at ${range}.` };
}

/** After the port was stored. @param {number|null} port */
export function savedWords(port) {
  const told = port === null || RANGE.includes(port) ? "" : ` Start the relay with --port ${port}.`;
  return `Saved. The extension looks at ${portsWords(port)}.${told}`;
}

/**
 * Whether Chrome lets this extension reach programs on this computer.
 * @param {Permission} permission
 * @returns {Notice}
 */
export function permissionWords(permission) {
  switch (permission) {
    case "granted":
      return { tone: "good", title: "Allowed", lines: ["Chrome lets this extension reach apps on this device."] };
    case "denied":
      return { ...deniedWords(), title: "Blocked" };
    case "prompt":
      return {
        tone: "wait",
        title: "Not asked yet",
        lines: ["Some versions of Chrome want you to allow it first. If a running relay is not found, let Chrome ask, and choose Allow."],
        actions: [ASK_ACTION, SETTINGS_ACTION],
      };
    default:
      return { tone: "good", title: "Nothing to allow", lines: ["This version of Chrome does not ask."] };
  }
}

/** The list of sites that are switched off. @param {number} n how many */
export function sitesOffWords(n) {
  if (n > 0) return "AI clients do not see the tools of these sites.";
  return "None. The switch for a site is in the popup, while a tab of it is in front.";
}
