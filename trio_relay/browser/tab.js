/**
 * One shared tab: a socket to the relay on one side, a port to the page's script on the other, and the calls between them.
 *
 * The page may go and come (reload, navigation) while the socket stays; the socket may go and come while the page stays.
 */

import { siteOf } from "./settings.js";

/** How long a socket outlives its page, in ms: a reload brings the next one. */
const PAGE_RETURNS_WITHIN = 10_000;
/** Changes of title and address are told together, in ms. */
const RENAME_AFTER = 250;
/** A socket closed within `STABLE_AFTER` ms of its start was closed for what it said; after some of those it waits `QUICK_PAUSE` ms. */
const STABLE_AFTER = 5000;
const QUICK_LOSSES = 3;
const QUICK_PAUSE = 10_000;
/** Beyond it a timer of a browser fires at once, in ms. */
const LONGEST_TIMER = 2 ** 31 - 1;
/** Between two states of one page, in ms; what it registers meanwhile is told together. */
const NEXT_STATE_AFTER = 20;
const MAX_ICON_URL = 4096;
const MAX_PROGRESS_MESSAGE = 1000;
const FEATURES = ["open"];

const encoder = new TextEncoder();

/** Bytes of a frame; exact only where it could matter (a character is at most 3 bytes). */
function exceeds(text, limit) {
  return text.length > limit || (text.length * 3 > limit && encoder.encode(text).length > limit);
}

export class SharedTab {
  /**
   * @param {{tab: number, tabId: string}} ids Chrome's and the relay's
   * @param {import("./sharing.js").Sharing} sharing who is asked and told
   */
  constructor({ tab, tabId }, sharing) {
    Object.assign(this, { tab, tabId, sharing });
    /** Of the page that is shown; null between pages. @type {string|null} */
    this.origin = null;
    /** @type {WebSocket|null} */
    this.socket = null;
    this.accepted = false;
    this.openedAt = this.lostAt = this.quickLosses = 0;
    this.relay = null;
    /** What the relay said when it refused us. @type {string|null} */
    this.refusal = null;
    /** @type {chrome.runtime.Port|null} */
    this.page = null;
    /** The id that the page's script gave itself; null between pages. @type {string|null} */
    this.pageId = null;
    this.tools = [];
    /** What stands in the way of this tab's tools, in words; null if nothing does. */
    this.problem = null;
    /** callId → {toolName, timer} */
    this.calls = new Map();
    this.shown = null;
  }

  // ---- the page ----------------------------------------------------------------------------------------------------

  /** Open a port to the page that is in the tab now, if it still is the one with this id. */
  attachPage(pageId) {
    this.dropPage();
    const port = chrome.tabs.connect(this.tab, { name: pageId, frameId: 0 });
    this.page = port;
    this.pageId = pageId;
    port.onMessage.addListener((message) => this.page === port && void this.fromPage(message, port));
    port.onDisconnect.addListener(() => {
      void chrome.runtime.lastError;
      if (this.page === port) this.pageGone();
    });
  }

  async fromPage(message, port) {
    switch (message.type) {
      case "state":
        if (!(await this.sharing.allows(message.origin))) {
          if (this.page === port) this.close("This site is switched off in the extension.");
          return;
        }
        if (this.page !== port) return; // gone meanwhile
        this.origin = message.origin;
        this.tools = message.tools;
        await this.showTools();
        this.sharing.onChange();
        setTimeout(() => this.page === port && port.postMessage({ type: "state-done" }), NEXT_STATE_AFTER);
        break;
      case "result":
        this.answer(message.callId, message.result);
        break;
      case "too-large":
        this.refuse(message.callId, message.size);
        break;
      case "progress":
        this.progress(message);
        break;
    }
  }

  /** Another page took the place of this one before its port was seen to close. */
  dropPage() {
    const { page } = this;
    if (!page) return;
    this.pageGone();
    dismiss(page);
  }

  pageGone() {
    this.page = this.pageId = this.origin = this.shown = null;
    this.tools = [];
    this.failCalls("The page went away (navigation or reload) while the tool ran; the tool may have done its work.");
    this.send({ type: "source/disconnected", reason: "the page went away" });
    clearTimeout(this.leaving);
    this.leaving = setTimeout(() => this.page ?? this.close(), PAGE_RETURNS_WITHIN);
    this.sharing.onChange();
  }

  // ---- the relay ---------------------------------------------------------------------------------------------------

  /** Whether to open a socket now: there is none, and the relay does not keep closing it. */
  mayConnect() {
    return this.socket === null && (this.quickLosses < QUICK_LOSSES || Date.now() - this.lostAt >= QUICK_PAUSE);
  }

  /** Open the socket. @param {import("./finder.js").Relay} relay */
  connect(relay) {
    const socket = new WebSocket(`ws://127.0.0.1:${relay.port}/`, ["webmcp.v1"]);
    Object.assign(this, { socket, relay, accepted: false, openedAt: Date.now(), shown: null });
    socket.onopen = () => void this.showTools();
    socket.onmessage = ({ data }) => this.socket === socket && this.fromRelay(data);
    socket.onclose = ({ code }) => {
      if (this.socket !== socket) return;
      this.socket = this.shown = null;
      this.lostAt = Date.now();
      this.quickLosses = this.lostAt - this.openedAt < STABLE_AFTER ? this.quickLosses + 1 : 0;
      this.dropCalls();
      this.sharing.lost(this, { refused: code === 1008 ? (this.refusal ?? "") : null });
    };
  }

  fromRelay(data) {
    const frame = JSON.parse(data);
    switch (frame.type) {
      case "ping":
        this.send({ type: "pong" });
        break;
      case "hello/accepted":
        this.accepted = true;
        this.sharing.accepted();
        break;
      case "hello/rejected":
        this.refusal = typeof frame.message === "string" ? frame.message : "";
        break;
      case "invoke":
        this.call(frame);
        break;
      case "cancel":
        this.cancel(frame.callId, frame.reason);
        break;
      case "reload":
        if (this.page) void chrome.tabs.reload(this.tab).catch(() => {}); // between pages it may be another site's already
        break;
      case "open":
        openPage(frame.url);
        break;
    }
  }

  /** Say who this tab is and what it offers, if there is a page and something is new. */
  async showTools() {
    if (this.socket?.readyState !== WebSocket.OPEN || !this.page) return;
    const about = await chrome.tabs.get(this.tab).catch(() => null);
    // Between pages the address is the next one's already.
    if (!this.page || this.origin === null || siteOf(about?.url) !== this.origin) return;
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    const hello = JSON.stringify({
      type: "hello",
      tabId: this.tabId,
      origin: this.origin,
      url: about.url,
      title: about.title,
      ...(about.favIconUrl && about.favIconUrl.length <= MAX_ICON_URL ? { iconUrl: about.favIconUrl } : {}),
      client: { name: "trio-relay", version: chrome.runtime.getManifest().version, features: FEATURES },
    });
    const tools = this.toolsFrame();
    if (this.shown?.hello !== hello) this.socket.send(hello);
    if (this.shown?.tools !== tools) this.socket.send(tools);
    this.shown = { hello, tools };
  }

  toolsFrame() {
    const frame = JSON.stringify({ type: "tools/list", tools: this.tools });
    const tooLarge = exceeds(frame, this.relay.maxPayload);
    this.problem = tooLarge ? `The tools of this page are larger than the relay takes (${this.relay.maxPayload} bytes).` : null;
    return tooLarge ? JSON.stringify({ type: "tools/list", tools: [] }) : frame;
  }

  /** The title, the address or the icon changed. */
  rename() {
    clearTimeout(this.renaming);
    this.renaming = setTimeout(() => void this.showTools(), RENAME_AFTER);
  }

  send(message) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(message));
  }

  // ---- calls -------------------------------------------------------------------------------------------------------

  call({ callId, toolName, args, deadlineMs }) {
    const timeout = () => this.cancel(callId, "timeout");
    const timer = deadlineMs === undefined ? null : setTimeout(timeout, Math.min(deadlineMs, LONGEST_TIMER));
    this.calls.set(callId, { toolName, timer });
    if (!this.page) {
      this.fail(callId, "The tab shows no page with tools at the moment; the tool was not run.");
      return;
    }
    this.page.postMessage({ type: "call", callId, toolName, args, limit: this.relay.maxPayload });
  }

  /** What counts, from a page that may say anything. */
  progress({ callId, progress, total, message }) {
    if (!this.calls.has(callId) || typeof progress !== "number") return;
    const frame = { type: "progress", callId, progress };
    if (typeof total === "number") frame.total = total;
    if (typeof message === "string") frame.message = message.slice(0, MAX_PROGRESS_MESSAGE);
    this.send(frame);
  }

  /** Nobody waits any more: tell the page, answer nothing. */
  cancel(callId, reason) {
    if (this.forget(callId)) this.page?.postMessage({ type: "cancel", callId, reason });
  }

  answer(callId, result) {
    const call = this.forget(callId);
    if (!call) return;
    const frame = JSON.stringify({ type: "result", callId, result });
    if (exceeds(frame, this.relay.maxPayload)) this.sendTooLarge(callId, call.toolName, encoder.encode(frame).length);
    else this.socket?.send(frame);
  }

  refuse(callId, size) {
    const call = this.forget(callId);
    if (call) this.sendTooLarge(callId, call.toolName, size);
  }

  sendTooLarge(callId, toolName, size) {
    const text =
      `The result of "${toolName}" has ${size} bytes or more; the relay takes ${this.relay.maxPayload}. ` +
      "Ask the page for less, or raise --max-payload.";
    this.send({ type: "result", callId, result: failure(text) });
  }

  fail(callId, text) {
    if (this.forget(callId)) this.send({ type: "result", callId, result: failure(text) });
  }

  failCalls(text) {
    for (const callId of [...this.calls.keys()]) this.fail(callId, text);
  }

  /** The relay is gone, and with it everyone who waits. */
  dropCalls() {
    for (const callId of [...this.calls.keys()]) this.cancel(callId, "the relay is gone");
  }

  forget(callId) {
    const call = this.calls.get(callId);
    if (call) clearTimeout(call.timer);
    this.calls.delete(callId);
    return call;
  }

  // ---- the end -----------------------------------------------------------------------------------------------------

  /** Leave the relay, and be ready for another one; the page stays. */
  disconnect() {
    this.dropCalls();
    this.socket?.close(1000);
    this.socket = this.shown = null;
  }

  /** Plain data, for the popup. */
  status() {
    const { tab, origin, problem, accepted } = this;
    return { tab, origin, problem, tools: this.tools.length, connected: accepted && this.socket !== null, calls: this.calls.size };
  }

  /** Take the tab's tools away. @param {string|null} reason what to tell those who wait for a call */
  close(reason = null) {
    if (reason) this.failCalls(reason);
    this.dropCalls();
    clearTimeout(this.renaming);
    clearTimeout(this.leaving);
    const { page, socket } = this;
    this.page = this.pageId = this.socket = null;
    if (page) dismiss(page);
    socket?.close(1000);
    this.sharing.closed(this);
  }
}

const failure = (text) => ({ content: [{ type: "text", text }], isError: true });

/** Close a port so that the page does not take it for our death. */
function dismiss(port) {
  try {
    port.postMessage({ type: "farewell" });
  } catch {
    // It went first.
  }
  port.disconnect();
}

function openPage(text) {
  const url = URL.canParse(text) ? new URL(text) : null;
  if (url?.protocol === "http:" || url?.protocol === "https:") void chrome.tabs.create({ url: url.href });
}
