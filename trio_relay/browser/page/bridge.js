/**
 * Runs in the extension's own world of every http(s) page: carries messages between `agent.js` (in the page's world, not trusted)
 * and the service worker, over a port that the worker opens. It knows nothing of relays. The page can see its events but cannot reach
 * the extension except through the shapes checked here.
 *
 * To the worker, once     {type: "page", page, runtime, tools: n}: this page has WebMCP; open a port if you want its tools
 * Over the port, up       {type: "state", origin, runtime, tools} | {type: "result", callId, result} | {type: "progress", callId, …}
 *                         | {type: "too-large", callId, size}
 * Over the port, down     {type: "call", callId, toolName, args, limit} | {type: "cancel", callId, reason}
 *                         | {type: "state-done"}: the next state, if there is one
 *                         | {type: "farewell"}: the worker closes the port on purpose; do not wake it
 * The port's name is the id of the page it is meant for, `page` above: another page may have come meanwhile.
 */
(() => {
  "use strict";

  const UP = "trio-relay:from-page";
  const DOWN = "trio-relay:to-page";
  /** After the worker went (it was put to sleep or killed), how long until it is woken, in ms: time for a reload to take the page. */
  const WAKE_AFTER = 300;

  /** Not randomUUID: plain http pages have none. */
  const page = crypto.getRandomValues(new Uint32Array(4)).join("-");
  const retired = new AbortController();
  const { signal } = retired;
  let port = null;
  let state = { type: "state", origin: location.origin, runtime: null, tools: [] };
  /** Whether the worker is busy with a state of ours, and whether there is a newer one. */
  let inWork = false;
  let newer = false;
  let announced = false;
  /** callId → largest size of its result that can be sent, in bytes. */
  const limits = new Map();

  const toPage = (message) => document.dispatchEvent(new CustomEvent(DOWN, { detail: JSON.stringify(message) }));

  /** Say that this page has WebMCP. Silent while it is only prerendered: it is not a tab yet. */
  function announce() {
    if (signal.aborted || state.runtime === null || document.prerendering) return;
    announced = true;
    let sent;
    try {
      sent = chrome.runtime.sendMessage({ type: "page", ...summary() });
    } catch {
      retire(); // the extension was reloaded or removed; a new one has its own script here
      return;
    }
    // The worker may be starting, or the extension just going: a page that still matters is asked for its port anyway.
    sent.catch(() => {});
  }

  const summary = () => ({ page, runtime: state.runtime, tools: state.tools.length });

  function retire() {
    retired.abort();
    port?.disconnect();
  }

  function fromPage(text) {
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return; // some script of the page using our event's name
    }
    switch (message?.type) {
      case "state":
        if (!Array.isArray(message.tools)) return;
        state = { ...state, runtime: message.runtime == null ? null : String(message.runtime), tools: message.tools };
        showState();
        if (!announced) announce();
        break;
      case "result":
        answer(String(message.callId), message.result, text.length);
        break;
      case "progress":
        if (limits.has(message.callId)) port?.postMessage(message);
        break;
    }
  }

  /**
   * One state at a time, and of those that come meanwhile the last: the worker says when it is done with one. A page that never stops
   * changing its tools would keep it from all other tabs.
   */
  function showState() {
    if (!port || inWork) {
      newer = true;
      return;
    }
    inWork = true;
    newer = false;
    port.postMessage(state);
  }

  /** A result whose characters are already more than the bytes allowed is not carried any further. */
  function answer(callId, result, size) {
    const limit = limits.get(callId);
    if (limit === undefined || !port) return; // not a call of ours, or answered already
    limits.delete(callId);
    if (size <= limit + 1000) {
      try {
        port.postMessage({ type: "result", callId, result });
        return;
      } catch {
        // Chrome carries messages of up to 64 MiB.
      }
    }
    port.postMessage({ type: "too-large", callId, size });
  }

  function adopt(opened) {
    port?.disconnect();
    port = opened;
    inWork = newer = false;
    limits.clear();
    let farewell = false;
    opened.onMessage.addListener((message) => {
      if (message.type === "farewell") {
        farewell = true;
        return;
      }
      if (message.type === "state-done") {
        inWork = false;
        if (newer) showState();
        return;
      }
      if (message.type === "call") limits.set(message.callId, message.limit);
      else if (message.type === "cancel") limits.delete(message.callId);
      toPage(message);
    });
    opened.onDisconnect.addListener(() => {
      void chrome.runtime?.lastError;
      if (port !== opened) return;
      port = null;
      for (const callId of limits.keys()) toPage({ type: "cancel", callId, reason: "the relay is gone" });
      limits.clear();
      // The worker closes its ports with a farewell when it wants none; otherwise it died, and has calls to take.
      if (!signal.aborted && !farewell) setTimeout(announce, WAKE_AFTER);
    });
    showState();
  }

  chrome.runtime.onConnect.addListener((opened) => {
    if (signal.aborted || opened.sender?.id !== chrome.runtime.id) return;
    if (opened.name === page) adopt(opened);
    else opened.disconnect();
  });
  chrome.runtime.onMessage.addListener((message, sender, respond) => {
    if (!signal.aborted && sender.id === chrome.runtime.id && message?.type === "state?") respond(summary());
  });
  // A bfcached page lost its port when it was put away, and is a page of this tab again. Only the browser's own events count: each
  // announcement wakes the worker, which may then look for a relay.
  window.addEventListener("pageshow", ({ isTrusted, persisted }) => isTrusted && persisted && announce(), { signal });
  document.addEventListener("prerenderingchange", ({ isTrusted }) => isTrusted && announce(), { signal });
  document.addEventListener(UP, ({ detail }) => fromPage(detail), { signal });

  // Of two scripts of ours in one page (the extension was reloaded) the older one goes.
  document.dispatchEvent(new CustomEvent("trio-relay:newer"));
  document.addEventListener("trio-relay:newer", retire, { signal, once: true });
  toPage({ type: "report" });
})();
