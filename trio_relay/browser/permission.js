/** Local Network Access: whether Chrome lets this extension reach the relay, and the way to have the person asked. */

import { RANGE } from "./settings.js";

/** Newest name first. */
const NAMES = ["loopback-network", "local-network-access"];

/** Follow the permission. @param {(state: import("./words.js").Permission) => void} tell called now and at each change */
export async function watchPermission(tell) {
  for (const name of NAMES) {
    try {
      const status = await navigator.permissions.query({ name });
      status.addEventListener("change", () => tell(status.state));
      tell(status.state);
      return;
    } catch {
      // A Chrome that does not know this name.
    }
  }
  tell(null);
}

/** A request to this computer, at which Chrome asks the person if it has to. A page in a tab can cause that, a worker cannot. */
export async function makeChromeAsk(port) {
  const address = `http://127.0.0.1:${port ?? RANGE[0]}/`;
  // What answers, if anything, does not matter here.
  const request = { method: "HEAD", mode: "no-cors", cache: "no-store", credentials: "omit", redirect: "manual" };
  await fetch(address, request).catch(() => {});
}
