/**
 * The service worker: Chrome's events, handed to `Sharing`. Chrome stops a worker that has had nothing to do for 30 s and starts it at
 * the next event, so nothing is kept here that could not be found again; while a relay is connected its pings keep the worker alive.
 */

import { Tunnel } from "./ports.js";
import { askPage, Sharing } from "./sharing.js";

const ALARM = "look for a relay";
const ALARM_MINUTES = 2;

/** Open popups, which are told of every change. @type {Set<chrome.runtime.Port>} */
const popups = new Set();
let telling = null;

const tunnel = new Tunnel({ lost: () => sharing.tryAgain(), look: () => sharing.lookIfLost() });

/** Several changes in a moment are told once. */
const sharing = new Sharing(() => {
  if (popups.size > 0) telling ??= setTimeout(tell, 50);
}, tunnel);

async function tell() {
  telling = null;
  const status = await sharing.status();
  for (const popup of popups) popup.postMessage(status);
}

chrome.runtime.onMessage.addListener((message, sender) => {
  if (sender.id !== chrome.runtime.id || message?.type !== "page") return;
  if (sender.tab?.id !== undefined && sender.frameId === 0) void sharing.pageAppeared(sender.tab.id, message.page);
});

chrome.runtime.onConnect.addListener((port) => {
  // By its origin: scripts in web pages have our id too, and a page may have broken into the process they share with it.
  if (port.name !== "popup" || port.sender?.origin !== location.origin) return;
  popups.add(port);
  port.onDisconnect.addListener(() => popups.delete(port));
  port.onMessage.addListener(({ type }) => type === "look" && void sharing.look());
  void tell();
  void sharing.look();
});

// Other extensions. Web pages cannot (no `matches` in the manifest).
chrome.runtime.onMessageExternal.addListener((message, sender, answer) => tunnel.asked(message, sender, answer));
chrome.runtime.onConnectExternal.addListener((port) => void tunnel.connected(port));

chrome.tabs.onRemoved.addListener((tab) => sharing.closeTab(tab));
chrome.tabs.onReplaced.addListener((added, removed) => {
  sharing.closeTab(removed);
  void sharing.ask(added);
});
chrome.tabs.onUpdated.addListener((tab, { title, url, favIconUrl }) => {
  if (title !== undefined || url !== undefined || favIconUrl !== undefined) sharing.tabs.get(tab)?.rename();
});
chrome.storage.local.onChanged.addListener((changed) => {
  if (Object.keys(changed).some((name) => name !== "salt" && name !== "browserId")) void sharing.settingsChanged(changed);
});
chrome.alarms.onAlarm.addListener(({ name }) => name === ALARM && void sharing.look());
chrome.runtime.onStartup.addListener(() => {}); // only so that the worker starts with the browser

/** Chrome runs no scripts in pages that were open before the extension was; `session` storage is empty just then. */
async function reachOpenPages() {
  const { reached } = await chrome.storage.session.get("reached");
  if (reached) return;
  await chrome.storage.session.set({ reached: true });
  // Side by side, and nobody waits: a frozen tab, or one with a dialog, takes a script much later.
  for (const { id } of await chrome.tabs.query({ url: ["http://*/*", "https://*/*"] })) void reachPage(id);
}

async function reachPage(tabId) {
  if (await askPage(tabId)) return;
  const target = { tabId };
  // Some pages refuse scripts (the web store, a policy): they stay as they are.
  await chrome.scripting.executeScript({ target, files: ["page/agent.js"], world: "MAIN", injectImmediately: true }).catch(() => {});
  await chrome.scripting.executeScript({ target, files: ["page/bridge.js"], injectImmediately: true }).catch(() => {});
}

async function start() {
  // The settings are none of the business of scripts in web pages, ours among them.
  await chrome.storage.local.setAccessLevel({ accessLevel: "TRUSTED_CONTEXTS" });
  if (!(await chrome.alarms.get(ALARM))) await chrome.alarms.create(ALARM, { periodInMinutes: ALARM_MINUTES });
  await reachOpenPages();
  await sharing.look();
}

void start();
