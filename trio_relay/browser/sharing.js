/**
 * Which relay, which tabs: owns the set of shared tabs and the search for a relay. One relay at a time, the first found in the order
 * of its ports.
 */

import { findRelay } from "./finder.js";
import { loadSettings, RANGE, siteOf } from "./settings.js";
import { relayTabId } from "./tab-id.js";
import { SharedTab } from "./tab.js";

/** After a lost connection the same port is tried once, in ms, ± a share of it: relays hand over within half a second. */
const RETRY_AFTER = 500;
const RETRY_SPREAD = 0.15;
/** Then all ports, this long after the loss, in ms; and from then on at each alarm and wake-up. */
const RESCAN_AT = [10_000, 20_000, 30_000];
/** Pages that come while no relay is there do not each start a search: there is one for all of them after this pause, in ms. */
const SEARCH_PAUSE = 1000;

/** Whether a page that appeared was reached is looked at this long after, in ms, and so many times. */
const SURE_AFTER = 300;
const SURE_TIMES = 4;

export class Sharing {
  /**
   * @param {() => void} onChange called when what `status` says may have changed
   * @param {import("./ports.js").Tunnel} tunnel told which relay there is
   */
  constructor(onChange, tunnel) {
    this.onChange = onChange;
    this.tunnel = tunnel;
    /** Chrome's tab id → SharedTab @type {Map<number, SharedTab>} */
    this.tabs = new Map();
    /** @type {import("./finder.js").Relay|null} */
    this.relay = null;
    /** What the relay said when it refused us, or null. @type {string|null} */
    this.refusal = null;
    this.search = null;
    this.searchedAt = 0;
    this.retry = this.soon = null;
    this.rescans = [];
  }

  // ---- the relay ---------------------------------------------------------------------------------------------------

  /** Look for a relay, or see that ours is there, and share every tab that has WebMCP. Searches do not overlap. */
  look() {
    return this.#search(null);
  }

  #search(only) {
    this.search ??= this.#look(only).finally(() => {
      this.search = null;
      this.searchedAt = Date.now();
      this.onChange();
    });
    return this.search;
  }

  async #look(only) {
    const { enabled, port } = await loadSettings();
    if (!enabled) return;
    if (!this.#connected()) {
      this.onChange();
      this.#use(await findRelay(only ?? (port === null ? await this.#order() : [port])));
    }
    this.tunnel.use(this.relay);
    if (this.relay) await this.#shareAll();
    else this.#rescanLater();
  }

  #lookNow() {
    this.soon = null;
    if (!this.#connected()) void this.look();
  }

  #connected() {
    if (this.relay === null) return false;
    return this.tunnel.accepted || [...this.tabs.values()].some((tab) => tab.accepted && tab.socket);
  }

  /** The range, with the port of last time in front. */
  async #order() {
    const { lastPort } = await chrome.storage.session.get("lastPort");
    return RANGE.includes(lastPort) ? [lastPort, ...RANGE.filter((port) => port !== lastPort)] : RANGE;
  }

  #use(relay) {
    if (this.relay && this.relay.instanceId !== relay?.instanceId) for (const tab of this.tabs.values()) tab.disconnect();
    if (this.relay?.instanceId !== relay?.instanceId) this.refusal = null;
    if (relay || this.relay) this.#forgetRescans();
    this.relay = relay;
    if (relay) void chrome.storage.session.set({ lastPort: relay.port });
  }

  #forgetRescans() {
    for (const timer of this.rescans) clearTimeout(timer);
    this.rescans = [];
  }

  /** Once after a loss (or a start without a relay): what was set, or is over already, is not set again. */
  #rescanLater() {
    if (this.rescans.length > 0) return;
    this.rescans = RESCAN_AT.map((at) => setTimeout(() => void this.look(), at));
  }

  /** A tab's socket is gone. Mostly it was the relay: all of them come within a moment. */
  lost(tab, { refused }) {
    if (refused !== null) {
      this.refusal = refused;
      tab.close();
    } else {
      this.tryAgain();
    }
    this.onChange();
  }

  /** Look at the same port again in a moment. */
  tryAgain() {
    const spread = 1 + RETRY_SPREAD * (2 * Math.random() - 1);
    this.retry ??= setTimeout(() => void this.#again(), RETRY_AFTER * spread);
  }

  /** Whether the relay is still there, or the next one on its port; a search that runs already may end with the old one. */
  async #again() {
    this.retry = null;
    await this.search;
    if (this.relay) await this.#search([this.relay.port]);
  }

  // ---- the tabs ----------------------------------------------------------------------------------------------------

  /** Ask every tab whether it has WebMCP, and share those that do. A frozen tab, or one with a dialog, may answer much later. */
  async #shareAll() {
    for (const { id } of await chrome.tabs.query({ url: ["http://*/*", "https://*/*"] })) {
      void this.ask(id);
    }
  }

  /** Share a tab if it has WebMCP. */
  async ask(tab) {
    const state = await askPage(tab);
    if (state?.runtime) await this.share(tab, state.page);
  }

  /** The relay took a tab. */
  accepted() {
    this.refusal = null;
    this.onChange();
  }

  /** Share the page of one tab, if its site may be and there is a relay. */
  async share(tab, page) {
    const { enabled, sitesOff, salt } = await loadSettings();
    const site = siteOf((await chrome.tabs.get(tab).catch(() => null))?.url);
    if (!enabled || site === null || sitesOff.includes(site)) {
      this.tabs.get(tab)?.close();
      return;
    }
    if (!this.relay) return;
    let shared = this.tabs.get(tab);
    if (!shared) {
      shared = new SharedTab({ tab, tabId: relayTabId(tab, salt) }, this);
      this.tabs.set(tab, shared);
    }
    if (shared.pageId !== page) shared.attachPage(page);
    if (shared.mayConnect()) shared.connect(this.relay);
    else if (!shared.socket) this.#rescanLater();
    this.onChange();
  }

  /** A page says that it has WebMCP: it is new in its tab, or lost its port. */
  async pageAppeared(tab, page) {
    const shared = this.tabs.get(tab);
    if (shared && shared.pageId !== page) shared.dropPage(); // it may be attached already, by a look just now
    if (!this.#connected()) {
      const pause = this.search ? SEARCH_PAUSE : this.searchedAt + SEARCH_PAUSE - Date.now();
      if (pause <= 0) await this.look();
      else this.soon ??= setTimeout(() => this.#lookNow(), pause);
    }
    await this.share(tab, page);
    this.#makeSure(tab, page, SURE_TIMES);
  }

  /** A page can speak up before Chrome has made it the page of its tab; then it was not reached, and is asked again. */
  #makeSure(tab, page, times) {
    if (times === 0) return;
    setTimeout(async () => {
      if (!this.relay || this.tabs.get(tab)?.pageId === page) return;
      await this.ask(tab);
      this.#makeSure(tab, page, times - 1);
    }, SURE_AFTER);
  }

  /** Whether pages of this origin may be shared. Asked again by each page, in case the tab went elsewhere meanwhile. */
  async allows(origin) {
    const { enabled, sitesOff } = await loadSettings();
    return enabled && siteOf(origin) !== null && !sitesOff.includes(origin);
  }

  /** Look, unless that was done a moment ago. */
  async lookIfLost() {
    if (this.search || (!this.#connected() && Date.now() - this.searchedAt > SEARCH_PAUSE)) await this.look();
  }

  /** The person changed a setting. */
  async settingsChanged(changed) {
    const off = changed.enabled?.newValue === false;
    if (off) this.tunnel.use(null);
    for (const tab of [...this.tabs.values()]) {
      if (!(await this.allows(tab.origin))) tab.close("This site was just switched off in the extension.");
    }
    await this.search; // one that may have begun with the old settings
    if (off) this.tunnel.use(null);
    if ("port" in changed) this.#use(null);
    await this.look();
    this.onChange();
  }

  closeTab(tab) {
    this.tabs.get(tab)?.close("The tab was closed while the tool ran; the tool may have done its work.");
  }

  /** A tab's end: nothing of it is kept. */
  closed(tab) {
    if (this.tabs.get(tab.tab) === tab) this.tabs.delete(tab.tab);
    this.onChange();
  }

  /** What the popup shows. Plain data. */
  async status() {
    const { enabled, sitesOff, port } = await loadSettings();
    return {
      enabled,
      sitesOff,
      port,
      searching: this.search !== null && !this.#connected(),
      relay: this.relay,
      refusal: this.refusal,
      tabs: [...this.tabs.values()].map((tab) => tab.status()),
    };
  }
}

/** @returns {Promise<{page: string, runtime: string|null, tools: number}|null>} null where no script of ours is */
export async function askPage(tab) {
  return chrome.tabs.sendMessage(tab, { type: "state?" }, { frameId: 0 }).catch(() => null);
}
