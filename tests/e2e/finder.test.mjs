// What the extension takes for a relay. Run by test_finder.py.
import assert from "node:assert/strict";
import { test } from "node:test";

import { readHello } from "../../trio_relay/browser/finder.js";
import { relayWords } from "../../trio_relay/browser/words.js";

const HELLO = { type: "server-hello", service: "webmcp-extension-relay", version: 1, relayId: "r", instanceId: "i" };
const STATUS = { enabled: true, sitesOff: [], port: null, searching: false, refusal: null, tabs: [] };
const read = (members) => readHello(JSON.stringify({ ...HELLO, ...members }), 9333);

test("a relay's hello is read", () => {
  const relay = { port: 9333, relayId: "r", instanceId: "i", label: "Desk", workspace: undefined, maxPayload: 1024, ports: true };
  assert.deepEqual(read({ label: "Desk", maxPayload: 1024, ports: true }), relay);
  assert.deepEqual(read({}), { ...relay, label: undefined, maxPayload: 10_000_000, ports: false });
});

test("what is no hello of a relay is none", () => {
  for (const text of ["", "{", "null", "7", "[]", '"server-hello"', "{}"]) assert.equal(readHello(text, 9333), null);
  for (const wrong of [{ type: "hello" }, { service: "other" }, { version: 2 }]) assert.equal(read(wrong), null);
});

test("without an instance it is none: switching off would not be told from staying", () => {
  for (const instanceId of [undefined, null, 7, {}, ["i"]]) assert.equal(read({ instanceId }), null);
});

test("a hello whose texts are something else does not keep the popup from showing its switches", () => {
  for (const wrong of [7, true, {}, ["x"], null]) {
    const relay = read({ label: wrong, workspace: wrong, relayId: wrong, maxPayload: wrong, ports: wrong });
    assert.equal(relayWords({ status: { ...STATUS, relay }, permission: null, id: "x" }).title, "Found a relay on port 9333");
  }
});
