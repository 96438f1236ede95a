/**
 * Probes and ports of other extensions, carried to the relay and back: one socket per browser (`trio-relay-ports.v1`, docs/protocol.md).
 * Nothing is decided here: the relay asks through us, and judges what other extensions ask, by the id that the browser says they have.
 */

/** From the arrival of another extension's probe until it is forwarded, in ms: it waits 1,500 ms, and a worker may just be starting. */
const PROBE_WAIT = 1400;
/** For the relay to answer one that was forwarded, in ms; nobody waits that long. */
const PROBE_LIMIT = 10_000;
/** How long another extension's port waits for the tunnel, in ms, and with how many messages. */
const PORT_WAIT = 5000;
const PORT_BACKLOG = 64;
/** Bytes that may wait for the relay before a port that sends more is closed. */
const MAX_WAITING = 64 << 20;
/** A tunnel closed within `STABLE_AFTER` ms is a quick loss; after some of those in a row it is left to the next look. */
const STABLE_AFTER = 5000;
const QUICK_LOSSES = 3;
const VERSION = 1;

const encoder = new TextEncoder();

/** 32 letters from a to p, and nothing else. */
export const isExtensionId = (value) => typeof value === "string" && /^[a-p]{32}$/.test(value) && value.length === 32;

/** The id of an extension that is not this one. */
const isOther = (id) => isExtensionId(id) && id !== chrome.runtime.id;

/**
 * Another extension, by what the browser says of a sender. Web pages have no id. Scripts of an extension in web pages have its id, but
 * the page's origin: who approved the extension has not approved what a page may have broken into. Workers have no origin.
 */
const isOtherSender = (sender) => isOther(sender?.id) && [undefined, `chrome-extension://${sender.id}`].includes(sender.origin);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Tunnel {
  /** @param {{lost: () => void, look: () => Promise<void>}} search told when the relay is gone; asked to find one */
  constructor(search) {
    this.search = search;
    /** @type {WebSocket|null} */
    this.socket = null;
    /** The relay it goes to, or the last one that refused us. */
    this.relay = this.refusedBy = null;
    this.accepted = this.serves = false;
    this.maxPayload = 0;
    this.openedAt = this.quickLosses = this.nextId = 0;
    /** Settled when the socket was accepted or lost. @type {PromiseWithResolvers<void>} */
    this.settled = Promise.withResolvers();
    /** portId → {port: chrome.runtime.Port, heard: whether a message came} */
    this.ports = new Map();
    /** probeId → function that takes the relay's answer, `undefined` for none. Others are then left without one: Chrome would make null of it. */
    this.answers = new Map();
  }

  // ---- the socket --------------------------------------------------------------------------------------------------

  /** Go to this relay, if it carries ports and we are not there yet. @param {import("./finder.js").Relay|null} relay */
  use(relay) {
    if (this.socket && this.relay.instanceId === relay?.instanceId) return;
    this.#drop();
    if (!relay?.ports || this.refusedBy === relay.instanceId) return;
    const socket = new WebSocket(`ws://127.0.0.1:${relay.port}/`, ["trio-relay-ports.v1"]);
    Object.assign(this, { socket, relay, openedAt: Date.now() });
    socket.onopen = () => void this.#greet(socket);
    socket.onmessage = ({ data }) => this.socket === socket && this.#receive(JSON.parse(data));
    socket.onclose = ({ code }) => {
      if (this.socket !== socket) return;
      this.#drop();
      this.quickLosses = Date.now() - this.openedAt < STABLE_AFTER ? this.quickLosses + 1 : 0;
      if (code === 1008) this.refusedBy = relay.instanceId;
      else if (this.quickLosses < QUICK_LOSSES) this.search.lost();
    };
  }

  async #greet(socket) {
    const hello = {
      type: "hello",
      browserId: await browserId(),
      version: VERSION,
      client: { name: "trio-relay", version: chrome.runtime.getManifest().version },
    };
    if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(hello));
  }

  /** The socket is gone, and with it everything on it. */
  #drop() {
    const { socket, settled } = this;
    Object.assign(this, { socket: null, accepted: false, serves: false, settled: Promise.withResolvers() });
    if (socket?.readyState <= WebSocket.OPEN) socket.close(1000);
    for (const { port } of this.ports.values()) port.disconnect();
    this.ports.clear();
    for (const answer of [...this.answers.values()]) answer(undefined);
    settled.resolve();
  }

  #receive(frame) {
    switch (frame.type) {
      case "ping":
        this.#send({ type: "pong" });
        break;
      case "hello/accepted":
        Object.assign(this, { accepted: true, serves: frame.serves, maxPayload: frame.maxPayload });
        this.settled.resolve();
        break;
      case "probe":
        void this.#ask(frame);
        break;
      case "probe/response":
        this.answers.get(frame.probeId)?.(frame.response);
        break;
      case "port/open":
        this.#open(frame);
        break;
      case "port/message":
        this.#post(frame);
        break;
      case "port/refused":
      case "port/close":
        this.ports.get(frame.portId)?.port.disconnect();
        this.ports.delete(frame.portId);
        break;
    }
  }

  #send(frame) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(frame));
  }

  /** Send a frame with a message of another extension in it. @returns {string|null} what is wrong with it, in words */
  #forward(frame) {
    if (this.socket?.readyState !== WebSocket.OPEN) return "the relay is gone";
    let text;
    try {
      text = JSON.stringify(frame);
    } catch (error) {
      return `a message that is no JSON (${error.message})`;
    }
    if (text.length * 3 > this.maxPayload && encoder.encode(text).length > this.maxPayload) {
      return `a message is larger than the relay takes (${this.maxPayload} bytes)`;
    }
    if (this.socket.bufferedAmount > MAX_WAITING) return "the relay does not take what was sent before";
    this.socket.send(text);
    return null;
  }

  /** Whether there is a relay that answers other extensions; a worker that was just woken looks for it first, `ms` at most. */
  async #serving(ms) {
    if (!this.accepted) {
      const found = this.search.look().then(() => this.socket && this.settled.promise);
      await Promise.race([sleep(ms), found]);
    }
    return this.accepted && this.serves;
  }

  // ---- what the relay asks -----------------------------------------------------------------------------------------

  async #ask({ probeId, extensionId, message, timeoutMs }) {
    const { socket } = this;
    const answer = await Promise.race([sendMessage(extensionId, message), sleep(timeoutMs).then(() => silence("timeout", timeoutMs))]);
    if (this.socket !== socket) return; // ids of another socket
    const problem = this.#forward({ type: "probe/response", probeId, ...answer });
    if (problem) this.#send({ type: "probe/response", probeId, error: { kind: "failed", message: problem } });
  }

  #open({ portId, extensionId, name }) {
    const refuse = (reason) => this.#send({ type: "port/refused", portId, reason });
    if (!isOther(extensionId)) return refuse("not the id of another extension");
    try {
      this.#carry(portId, chrome.runtime.connect(extensionId, { name }));
    } catch (error) {
      return refuse(error.message);
    }
    // Browsers do not say when a port is open, only when there will be none.
    this.#send({ type: "port/opened", portId });
  }

  #post({ portId, message }) {
    try {
      this.ports.get(portId)?.port.postMessage(message);
    } catch (error) {
      this.#close(portId, error.message);
    }
  }

  // ---- ports -------------------------------------------------------------------------------------------------------

  /** From now on what comes from a port goes to the relay. */
  #carry(portId, port) {
    const entry = { port, heard: false };
    this.ports.set(portId, entry);
    port.onMessage.addListener((message) => this.#heard(portId, entry, message));
    port.onDisconnect.addListener(() => {
      const error = chrome.runtime.lastError?.message;
      if (this.ports.get(portId) !== entry) return;
      this.ports.delete(portId);
      if (error !== undefined && !entry.heard) this.#send({ type: "port/refused", portId, reason: error });
      else this.#send({ type: "port/close", portId, ...(error === undefined ? {} : { error }) });
    });
    return entry;
  }

  #heard(portId, entry, message) {
    if (this.ports.get(portId) !== entry) return;
    entry.heard = true;
    const problem = this.#forward({ type: "port/message", portId, message: message ?? null });
    if (problem) this.#close(portId, problem);
  }

  #close(portId, error) {
    this.ports.get(portId)?.port.disconnect();
    if (this.ports.delete(portId)) this.#send({ type: "port/close", portId, error });
  }

  // ---- what other extensions ask -----------------------------------------------------------------------------------

  /** A message of another extension. Listener of `onMessageExternal`: returns true if it will be answered, perhaps later. */
  asked(message, sender, answer) {
    if (!isOtherSender(sender) || (this.accepted && !this.serves)) return undefined;
    void this.#probed(message, sender.id, answer);
    return true;
  }

  async #probed(message, senderId, answer) {
    if (!(await this.#serving(PROBE_WAIT))) return;
    const probeId = this.#newId();
    const settle = (response) => {
      clearTimeout(timer);
      this.answers.delete(probeId);
      if (response !== undefined) answer(response);
    };
    const timer = setTimeout(settle, PROBE_LIMIT);
    this.answers.set(probeId, settle);
    if (this.#forward({ type: "probe", probeId, senderId, message: message ?? null })) settle();
  }

  /** Another extension has connected. What it sends while there is no tunnel is kept for it, within limits. */
  async connected(port) {
    if (!isOtherSender(port.sender)) return port.disconnect();
    const senderId = port.sender.id;
    let backlog = [];
    let gone = false;
    const keep = (message) => {
      if (backlog.length < PORT_BACKLOG) backlog.push(message);
      else {
        gone = true;
        port.disconnect();
      }
    };
    const leave = () => (gone = true);
    port.onMessage.addListener(keep);
    port.onDisconnect.addListener(leave);
    const serving = await this.#serving(PORT_WAIT);
    port.onMessage.removeListener(keep);
    port.onDisconnect.removeListener(leave);
    if (gone) return;
    if (!serving) return port.disconnect();
    const portId = this.#newId();
    const problem = this.#forward({ type: "port/open", portId, senderId, name: port.name });
    if (problem) return port.disconnect();
    const entry = this.#carry(portId, port);
    for (const message of backlog) this.#heard(portId, entry, message);
  }

  #newId() {
    this.nextId += 1;
    return `b${this.nextId}`;
  }
}

/** @returns {Promise<{response: any}|{error: {kind: string, message: string}}>} */
async function sendMessage(extensionId, message) {
  if (!isOther(extensionId)) return { error: { kind: "failed", message: "not the id of another extension" } };
  let response;
  try {
    response = await chrome.runtime.sendMessage(extensionId, message);
  } catch (error) {
    return { error: { kind: kindOf(error.message), message: error.message } };
  }
  return response === undefined ? silence("no-response") : { response };
}

/** Chrome's own words are all there is to tell these apart. */
function kindOf(words) {
  if (words.includes("Receiving end does not exist")) return "not-installed";
  return words.includes("closed before a response") ? "no-response" : "failed";
}

function silence(kind, ms) {
  const message = kind === "timeout" ? `There was no answer within ${ms} ms.` : "The extension has no answer to this message.";
  return { error: { kind, message } };
}

/** A random name of this browser profile. */
async function browserId() {
  return navigator.locks.request("browserId", async () => {
    let { browserId: id } = await chrome.storage.local.get("browserId");
    if (typeof id !== "string") {
      id = crypto.randomUUID();
      await chrome.storage.local.set({ browserId: id });
    }
    return id;
  });
}
