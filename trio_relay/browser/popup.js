/**
 * The popup: what is shared with whom, and what is wrong if something is. The words are made in words.js; this file asks Chrome
 * and the worker, and fills the page.
 *
 * `popup.html?tab=ID`, opened as a page of its own, takes that tab for the one in front. Only tests and screenshots need it.
 */

import { element, showNotice } from "./notice.js";
import { watchPermission } from "./permission.js";
import { setEnabled, setSite, siteOf } from "./settings.js";
import { askPage } from "./sharing.js";
import { FLAG_PAGE, listWords, relayWords, rowWords, siteSettingsPage, siteSwitchWords, tabWords } from "./words.js";

/** The number of tools of a page without a relay is told by nobody: it is asked for, every so many ms while the popup is open. */
const ASK_PAGE_EVERY = 1500;
/** The worker may be stopped under an open popup, in ms until it is woken. */
const RECONNECT_AFTER = 300;
/** A page with an open dialog answers only when that is closed: the rest is shown without it after this, in ms. */
const PAGE_ANSWERS_WITHIN = 700;

const id = chrome.runtime.id;
const at = (name) => document.getElementById(name);

/** What is known; `render` shows it. `status` comes from the worker, `front` and `page` are the tab in front and its page. */
const known = { status: null, permission: null, front: null, site: null, page: undefined, rows: [] };

// ---- asking --------------------------------------------------------------------------------------------------------

let worker = null;

function connect() {
  worker = chrome.runtime.connect({ name: "popup" });
  worker.onMessage.addListener((status) => {
    known.status = status;
    void refresh();
  });
  worker.onDisconnect.addListener(() => setTimeout(connect, RECONNECT_AFTER));
}

async function frontTab() {
  const named = new URLSearchParams(location.search).get("tab");
  if (named !== null) return chrome.tabs.get(Number(named)).catch(() => null);
  const [tab] = await chrome.tabs.query({ active: true, currentWindow: true });
  return tab ?? null;
}

let refreshes = 0;

/** Ask for everything that Chrome and the page know, and show it. Of two at a time the later one counts. */
async function refresh() {
  const turn = ++refreshes;
  const front = await frontTab();
  const site = siteOf(front?.url);
  const late = new Promise((resolve) => setTimeout(resolve, PAGE_ANSWERS_WITHIN));
  const page = site === null ? null : await Promise.race([askPage(front.id), late]);
  const tabs = (known.status?.tabs ?? []).toSorted((one, other) => one.tab - other.tab);
  const rows = await Promise.all(tabs.map(async (tab) => ({ tab, about: await chrome.tabs.get(tab.tab).catch(() => null) })));
  if (turn !== refreshes) return;
  Object.assign(known, { front, site, page, rows });
  render();
}

// ---- showing -------------------------------------------------------------------------------------------------------

function render() {
  const { status, permission, front, site, page } = known;
  const shared = status?.tabs.find(({ tab }) => tab === front?.id);
  showNotice(at("relay"), relayWords({ status, permission, id }), act);
  showNotice(at("tab"), tabWords({ status, site, page, shared }), act);
  at("enabled").disabled = status === null;
  at("enabled").checked = status?.enabled ?? false;
  at("look").disabled = !status?.enabled; // not while it searches: the button would lose the focus
  at("site-row").hidden = site === null || status === null;
  at("site-label").textContent = siteSwitchWords(site);
  at("site").checked = !status?.sitesOff.includes(site);
  renderList();
}

function renderList() {
  const { heading, empty } = listWords(known.status);
  at("list-heading").textContent = heading;
  at("list-empty").textContent = empty ?? "";
  at("list-empty").hidden = empty === null;
  const rows = known.rows.map(({ tab, about }) => ({ ...rowWords(tab, about), id: tab.tab, window: about?.windowId }));
  const text = JSON.stringify(rows);
  if (at("list").dataset.shows === text) return;
  const focused = document.activeElement?.dataset.tab;
  at("list").dataset.shows = text;
  at("list").replaceChildren(...rows.map(makeRow));
  if (focused) at("list").querySelector(`[data-tab="${focused}"]`)?.focus();
}

function makeRow({ id, window, title, detail, label }) {
  const button = element(
    "button",
    { type: "button", "aria-label": label, title, "data-tab": id },
    element("span", { class: "tab-title", dir: "auto" }, title),
    element("span", { class: "tab-detail" }, detail),
  );
  button.addEventListener("click", () => void goTo(id, window));
  return element("li", {}, button);
}

// ---- doing ---------------------------------------------------------------------------------------------------------

async function goTo(tab, window) {
  await chrome.tabs.update(tab, { active: true }).catch(() => {});
  if (window !== undefined) await chrome.windows.update(window, { focused: true }).catch(() => {});
}

function act(does) {
  const pages = { "site-settings": siteSettingsPage(id), ask: chrome.runtime.getURL("options.html#ask"), flag: FLAG_PAGE };
  void chrome.tabs.create({ url: pages[does] });
}

at("enabled").addEventListener("change", ({ target }) => void setEnabled(target.checked));
at("site").addEventListener("change", ({ target }) => known.site && void setSite(known.site, target.checked));
at("look").addEventListener("click", () => worker.postMessage({ type: "look" }));

render();
connect();
void watchPermission((state) => {
  known.permission = state;
  render();
});
setInterval(() => void refresh(), ASK_PAGE_EVERY);
