/** What the person chose, in `chrome.storage.local`. Everything is read anew when it is needed: workers do not live long. */

/** The ports where relays are looked for. */
export const RANGE = Array.from({ length: 16 }, (_, i) => 9333 + i);

const DEFAULTS = { enabled: true, sitesOff: [], port: null, salt: null };

/** @returns {Promise<{enabled: boolean, sitesOff: string[], port: number|null, salt: number}>} */
export async function loadSettings() {
  const settings = await chrome.storage.local.get(DEFAULTS);
  if (settings.salt === null) settings.salt = await navigator.locks.request("salt", makeSalt);
  return settings;
}

/** Once per browser, though the worker and its pages may ask at the same time. */
async function makeSalt() {
  let { salt } = await chrome.storage.local.get(DEFAULTS);
  if (salt === null) {
    salt = crypto.getRandomValues(new Uint32Array(1))[0];
    await chrome.storage.local.set({ salt });
  }
  return salt;
}

/** The switch for everything. */
export const setEnabled = (enabled) => chrome.storage.local.set({ enabled });

/** The switch of one site, by origin. */
export async function setSite(origin, on) {
  const { sitesOff } = await chrome.storage.local.get(DEFAULTS);
  const others = sitesOff.filter((site) => site !== origin);
  await chrome.storage.local.set({ sitesOff: on ? others : [...others, origin] });
}

/** The only port to look at, or null for the range. */
export const setPort = (port) => chrome.storage.local.set({ port });

/** Origin of a page that can be shared (http or https), else null. */
export function siteOf(url) {
  const match = /^https?:/.test(url ?? "") ? new URL(url) : null;
  return match ? match.origin : null;
}
