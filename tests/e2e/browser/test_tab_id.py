"""The ids of tabs, as the extension makes them, without a browser."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.e2e import npm
from tests.e2e.browser.setting import EXTENSION

pytestmark = pytest.mark.npm

SCRIPT = """
import { readFileSync } from "node:fs";
const source = readFileSync(process.argv[1], "utf8");
const { relayTabId } = await import("data:text/javascript," + encodeURIComponent(source));
const seen = [];
for (let n = 0; n < 200; n++) {
  const salt = (n * 2654435761 + 12345) >>> 0;
  const first = 289384344 + n * 7919;
  const ids = Array.from({ length: 10000 }, (_, i) => relayTabId(first + i, salt));
  seen.push({
    heads: new Set(ids.map((id) => id.slice(0, 4))).size,
    odd: ids.filter((id) => !/^[0-9a-f]{8}$/.test(id)).length,
    again: relayTabId(first, salt) === ids[0],
    salted: relayTabId(first, salt ^ 0x10001) !== ids[0],
  });
}
console.log(JSON.stringify(seen));
"""


def test_neighbouring_tabs_differ_in_their_first_four_digits_whatever_the_salt() -> None:
    words = [npm.node(), "--input-type=module", "-e", SCRIPT, str(EXTENSION / "tab-id.js")]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    assert json.loads(shown) == [{"heads": 10_000, "odd": 0, "again": True, "salted": True}] * 200
