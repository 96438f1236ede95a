"""The content security policy of the extension: its own parts can reach this computer and nothing else."""

from __future__ import annotations

import pytest

from tests.e2e.browser.setting import Setting

pytestmark = pytest.mark.chromium

REACH = """(async () => {
  const violated = [];
  globalThis.addEventListener("securitypolicyviolation", ({blockedURI}) => violated.push(blockedURI));
  await fetch("http://127.0.0.1:%(port)d/", {method: "HEAD", mode: "no-cors"}).catch(() => {});
  const before = violated.length;
  await fetch("http://localhost:%(port)d/", {method: "HEAD", mode: "no-cors"}).catch(() => {});
  try { new WebSocket("ws://localhost:%(port)d/"); } catch {}
  await new Promise((resolve) => setTimeout(resolve, 100));
  return [before, violated.map((uri) => new URL(uri).hostname)];
})()"""


@pytest.mark.parametrize("where", ["worker", "page"])
async def test_the_extension_can_reach_nothing_but_this_computer(setting: Setting, where: str) -> None:
    reach = REACH % {"port": setting.relay.port}
    if where == "worker":
        found = await setting.browser.in_worker(reach)
    else:
        found = await (await setting.browser.popup()).evaluate(reach)
    assert found == [0, ["localhost", "localhost"]]
