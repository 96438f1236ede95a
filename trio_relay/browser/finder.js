/** Finds a relay: which of the ports answers the discovery subprotocol, the first one in order. */

/** Upstream's relays call themselves by the second name; both speak this protocol. */
const SERVICES = ["webmcp-extension-relay", "webmcp-local-relay"];
/** From the opened socket to the relay's hello, in ms. */
export const HELLO_TIMEOUT = 1200;
/** For a port to answer anything at all, in ms; loopback takes one. */
const KNOCK_TIMEOUT = 1200;
/** For a WebSocket to open, in ms. Long, because Chrome makes a browser that had failures wait. */
const OPEN_TIMEOUT = 6000;
/** Of relays that do not say. */
const DEFAULT_MAX_PAYLOAD = 10_000_000;

/**
 * @typedef {{port: number, relayId: string, instanceId: string, label?: string, workspace?: string, maxPayload: number, ports: boolean}} Relay
 */

/**
 * All ports at once.
 * @param {number[]} ports in the order of preference
 * @returns {Promise<Relay|null>}
 */
export async function findRelay(ports) {
  const probes = ports.map(probe);
  for (const found of probes) {
    const relay = await found;
    if (relay) return relay;
  }
  return null;
}

/**
 * A plain request first, the WebSocket only where something answers. Chrome delays each new WebSocket of a process by 1 to 5 s after
 * a dozen have failed, which one look at sixteen closed ports does; requests are free.
 */
async function probe(port) {
  return (await knock(port)) ? discover(port) : null;
}

async function knock(port) {
  try {
    await fetch(`http://127.0.0.1:${port}/`, {
      method: "HEAD",
      mode: "no-cors",
      cache: "no-store",
      credentials: "omit",
      redirect: "manual",
      signal: AbortSignal.timeout(KNOCK_TIMEOUT),
    });
    return true;
  } catch {
    return false;
  }
}

function discover(port) {
  return new Promise((resolve) => {
    const socket = new WebSocket(`ws://127.0.0.1:${port}/`, ["webmcp-discovery.v1", "webmcp.v1"]);
    let timer = setTimeout(() => settle(null), OPEN_TIMEOUT);
    function settle(relay) {
      clearTimeout(timer);
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close(1000);
      resolve(relay);
    }
    socket.onopen = () => {
      clearTimeout(timer);
      timer = setTimeout(() => settle(null), HELLO_TIMEOUT);
    };
    socket.onclose = () => settle(null);
    socket.onmessage = ({ data }) => {
      const relay = readHello(data, port);
      if (relay) settle(relay);
    };
  });
}

/** What answers on a port need not be a relay, so only texts are taken for texts: the popup shows them, and must not fail at them. */
const asText = (value) => (typeof value === "string" ? value : undefined);

/** @returns {Relay|null} null for anything that is no `server-hello` of a relay. */
export function readHello(data, port) {
  let hello;
  try {
    hello = JSON.parse(data);
  } catch {
    return null;
  }
  if (hello?.type !== "server-hello" || !SERVICES.includes(hello.service) || hello.version !== 1) return null;
  const [relayId, instanceId, label, workspace] = [hello.relayId, hello.instanceId, hello.label, hello.workspace].map(asText);
  if (instanceId === undefined) return null; // relays are told apart by it
  const maxPayload = Number.isSafeInteger(hello.maxPayload) && hello.maxPayload > 0 ? hello.maxPayload : DEFAULT_MAX_PAYLOAD;
  return { port, relayId, instanceId, label, workspace, maxPayload, ports: hello.ports === true };
}
