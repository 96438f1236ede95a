/** The `tabId` that relays and their users see: 8 hex digits, made from Chrome's tab id and a salt of this browser. */

/** Odd, so that multiplying by it modulo 2^16 gives every 16-bit number once; spreads neighbours over all four digits. */
const SPREAD = 0x9e37;

/**
 * Tabs of one browser differ in the first four digits (unless their numbers are 65,536 apart, and then in the others), since relays
 * make tool names of those: `search_ed93`. The salt keeps two browsers on one relay apart. Being a function, it needs no memory: the
 * id is the same after a reload, a move to another window, and a restart of the worker.
 *
 * @param {number} tab Chrome's id of the tab
 * @param {number} salt 32 bits
 */
export function relayTabId(tab, salt) {
  const first = Math.imul(tab & 0xffff, SPREAD) & 0xffff;
  const mixed = ((first << 16) | ((tab >>> 16) & 0xffff)) ^ salt;
  return (mixed >>> 0).toString(16).padStart(8, "0");
}
