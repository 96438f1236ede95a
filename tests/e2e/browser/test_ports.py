"""Ports of extensions in a real browser: what the relay asks of other extensions, and what they ask of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.browser.fixture_extension import CONNECT, ECHO_WORKER, SEND, FixtureExtension, load_fixture
from tests.e2e.browser.setting import EXTENSION_ID, Browser, open_browser, until
from tests.e2e.browser.site import open_site
from tests.helpers import PATIENCE, free_port
from tests.links.bridge import Extends, Handler
from trio_relay.chromium.devtools import Page
from trio_relay.config import RelayConfig
from trio_relay.core.port import Port, PortClosed, Unanswered
from trio_relay.core.probe import Silence
from trio_relay.links.tunnel import OnPort, OnProbe, Tunnel
from trio_relay.relay.hub import open_hub

pytestmark = pytest.mark.chromium

NOBODY = "a" * 32


class Stage:
    """The browser with our extension and a fixture, a relay in this process, and the tunnel between them."""

    def __init__(self, browser: Browser, handler: Handler, port: int) -> None:
        self.browser = browser
        self.handler = handler
        self.port = port
        self.tunnel: Tunnel
        self.other: FixtureExtension


@asynccontextmanager
async def open_stage(
    folder: Path, on_probe: OnProbe | None = None, on_port: OnPort | None = None
) -> AsyncIterator[Stage]:
    handler, port = Handler(on_probe, on_port), free_port()
    async with open_hub(RelayConfig(port=port), extending=Extends(handler)), open_browser(port) as browser:
        stage = Stage(browser, handler, port)
        stage.tunnel = await handler.next()
        stage.other = await load_fixture(browser, folder / "other")
        yield stage


async def silence(tunnel: Tunnel, extension_id: str, message: object, timeout: float = PATIENCE) -> Silence:
    with pytest.raises(Unanswered) as caught, trio.fail_after(2 * PATIENCE):
        await tunnel.probe(extension_id, json.dumps(message).encode(), timeout)
    return caught.value.kind


async def received(port: Port) -> Any:
    with trio.fail_after(PATIENCE):
        return json.loads(await port.receive())


async def closed(port: Port) -> str:
    with pytest.raises(PortClosed) as caught, trio.fail_after(PATIENCE):
        await port.receive()
    return caught.value.reason


def call(function: str, *args: object) -> str:
    return f"({function})({', '.join(map(json.dumps, args))})"


# -- what the relay asks


async def test_a_tunnel_is_there_without_any_tab_and_probes_are_answered_or_not(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        tunnel, other = stage.tunnel, stage.other
        assert tunnel.extension_id == EXTENSION_ID
        deaf = await load_fixture(stage.browser, tmp_path / "deaf", "// listens to nothing")
        answer = json.loads(await tunnel.probe(other.id, b'{"n":[1,"\xc3\xa9"]}', PATIENCE))
        assert answer == {"echo": {"n": [1, "é"]}, "sender": EXTENSION_ID}
        assert await silence(tunnel, other.id, "ignore") is Silence.NO_RESPONSE
        assert await silence(tunnel, NOBODY, 1) is Silence.NOT_INSTALLED
        assert await silence(tunnel, deaf.id, 1) is Silence.NOT_INSTALLED
        assert await silence(tunnel, other.id, "never", 0.3) is Silence.TIMEOUT
        assert await silence(tunnel, EXTENSION_ID, 1) is Silence.FAILED  # ourselves: a loop


async def test_ports_carry_messages_both_ways_and_are_closed_by_either_end(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        other = stage.other
        first = await stage.tunnel.open_port(other.id, "lumo:mcp")
        second = await stage.tunnel.open_port(other.id, "another")
        for n in range(20):
            await first.send(json.dumps({"n": n, "text": "x" * n * 1000}).encode())
            await second.send(b"%d" % n)
        for n in range(20):
            assert await received(second) == {"echo": n, "sender": EXTENSION_ID, "name": "another"}
            assert (await received(first))["echo"] == {"n": n, "text": "x" * n * 1000}
        second.close()
        await first.send(b'"close"')
        await closed(first)


@pytest.mark.parametrize("there", [False, True])
async def test_a_port_to_nobody_is_refused_in_the_browsers_words(there: bool, tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        deaf = (await load_fixture(stage.browser, tmp_path / "deaf", "// listens to nothing")).id
        with pytest.raises(PortClosed, match="Receiving end does not exist"):  # at once, or with the first message
            await _first_message(stage.tunnel, deaf if there else NOBODY)
        with pytest.raises(PortClosed, match="not the id of another extension"):
            await stage.tunnel.open_port(EXTENSION_ID, "lumo:mcp")


async def _first_message(tunnel: Tunnel, extension_id: str) -> None:
    with trio.fail_after(PATIENCE):
        await (await tunnel.open_port(extension_id, "lumo:mcp")).receive()


async def test_a_provider_whose_worker_is_stopped_closes_its_port_and_wakes_for_the_next(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        for n in range(2):
            port = await stage.tunnel.open_port(stage.other.id, "lumo:mcp")
            await port.send(b"%d" % n)
            assert (await received(port))["echo"] == n
            await stage.other.kill_worker()
            await closed(port)


# -- relays that go and come


async def test_a_relay_that_comes_back_has_a_tunnel_again_and_knows_the_browser(tmp_path: Path) -> None:
    port = free_port()
    async with open_browser(port) as browser:
        names = []
        for _ in range(2):
            handler = Handler()
            async with open_hub(RelayConfig(port=port), extending=Extends(handler)):
                await browser.status(await browser.popup())  # looks at once, instead of at the next alarm
                names.append((await handler.next()).browser_id)
        assert len(set(names)) == 1


async def test_a_lost_tunnel_comes_back_by_itself(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        port = await stage.tunnel.open_port(stage.other.id, "lumo:mcp")
        await trio.aclose_forcefully(stage.tunnel._socket.metered)
        await closed(port)
        again = await stage.handler.next()
        assert again.browser_id == stage.tunnel.browser_id
        assert await again.probe(stage.other.id, b"1", PATIENCE)


async def test_the_switch_for_everything_closes_the_tunnel_and_opens_it_again(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        port = await stage.tunnel.open_port(stage.other.id, "lumo:mcp")
        await stage.browser.set(enabled=False)
        await closed(port)
        await stage.browser.set(enabled=True)
        assert await (await stage.handler.next()).probe(stage.other.id, b"1", PATIENCE)


async def test_a_relay_without_ports_is_never_asked() -> None:
    port = free_port()
    async with open_hub(RelayConfig(port=port)), open_browser(port) as browser:
        popup = await browser.popup()
        await until(lambda: _has_relay(browser, popup))
        assert (
            await browser.in_worker("chrome.storage.local.get('browserId').then((found) => Object.keys(found))") == []
        )


async def _has_relay(browser: Browser, popup: Page) -> bool:
    return (await browser.status(popup))["relay"] is not None


# -- what other extensions ask


async def answer_probe(sender: str, message: bytes) -> bytes:
    return json.dumps({"from": sender, "got": json.loads(message)}).encode()


async def echo_port(port: Port, name: str) -> None:
    await port.send(json.dumps({"from": port.extension_id, "name": name}).encode())
    while (message := await port.receive()) != b'"close"':
        await port.send(message)


async def test_another_extension_reaches_the_relay_under_the_id_that_the_browser_says(tmp_path: Path) -> None:
    async with open_stage(tmp_path, answer_probe, echo_port) as stage:
        page = await stage.other.page()
        said = await page.evaluate(call(SEND, {"client": {"id": NOBODY}}))
        assert said == {"from": stage.other.id, "got": {"client": {"id": NOBODY}}}
        await page.evaluate(call(CONNECT, "lumo:mcp", 1, {"two": 2}))
        heard = [{"from": stage.other.id, "name": "lumo:mcp"}, 1, {"two": 2}]
        await until(lambda: page.evaluate("heard.length === 3"))
        assert await page.evaluate("heard") == heard
        await page.evaluate("port.postMessage('close')")
        await until(lambda: page.evaluate("gone"))


async def test_a_worker_that_was_stopped_is_woken_and_takes_both_to_the_relay(tmp_path: Path) -> None:
    async with open_stage(tmp_path, answer_probe, echo_port) as stage:
        page = await stage.other.page()
        await page.evaluate(call(CONNECT, "lumo:mcp"))
        await stage.browser.kill_worker()
        await until(lambda: page.evaluate("gone"))
        assert (await page.evaluate(call(SEND, "wake up")))["got"] == "wake up"
        await stage.browser.kill_worker()
        await page.evaluate(call(CONNECT, "lumo:mcp", *range(50)))
        await until(lambda: page.evaluate("heard.length === 51"))
        assert await page.evaluate("heard.slice(1)") == list(range(50))


async def test_a_relay_that_is_lost_closes_the_ports_of_other_extensions(tmp_path: Path) -> None:
    async with open_stage(tmp_path, answer_probe, echo_port) as stage:
        page = await stage.other.page()
        await page.evaluate(call(CONNECT, "lumo:mcp"))
        await until(lambda: page.evaluate("heard.length === 1"))
        await trio.aclose_forcefully(stage.tunnel._socket.metered)
        await until(lambda: page.evaluate("gone"))


UNANSWERED = (
    "timeout",
    "undefined",
    "rejected: A listener indicated an asynchronous response by returning true, but the message channel closed "
    "before a response was received",
    "rejected: Could not establish connection. Receiving end does not exist.",
)
"""Chrome's ways to say it; which one depends on when it collects its garbage."""


@pytest.mark.parametrize("there", [False, True])
async def test_without_a_relay_that_serves_them_others_get_no_answer(
    there: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "trio_relay.links.tunnel")
    async with open_stage(tmp_path) as stage:
        if not there:
            await stage.browser.set(enabled=False)
            with trio.fail_after(PATIENCE):
                await stage.handler.left.wait()
        page = await stage.other.page()
        assert await page.evaluate(call(SEND, 1)) in UNANSWERED
        await page.evaluate(call(CONNECT, "lumo:mcp", 1))
        await until(lambda: page.evaluate("gone"))
        assert await page.evaluate("heard") == []
    assert "is refused" not in caplog.text  # they do not even reach the relay


async def test_more_messages_than_are_kept_for_a_relay_close_the_port(tmp_path: Path) -> None:
    async with open_stage(tmp_path, answer_probe, echo_port) as stage:
        page = await stage.other.page()
        await stage.browser.kill_worker()
        await page.evaluate(call(CONNECT, "lumo:mcp", *range(65)))
        await until(lambda: page.evaluate("gone"))
        assert await page.evaluate("heard") == []


async def test_a_web_page_reaches_nobody(tmp_path: Path) -> None:
    async with open_site() as site, open_stage(tmp_path, answer_probe, echo_port) as stage:
        page = await stage.browser.open(site.page(""))
        assert await page.evaluate("typeof globalThis.chrome?.runtime?.sendMessage") == "undefined"
        assert await page.evaluate("typeof globalThis.chrome?.runtime?.connect") == "undefined"


FROM_A_PAGE = """(async () => {
  const [{id}] = await chrome.tabs.query({url: "http://*/*"});
  const func = (ours) => new Promise((told) => {
    const seen = {gone: false, answer: null};
    chrome.runtime.connect(ours, {name: "p"}).onDisconnect.addListener(() => (seen.gone = true));
    const settle = (answer, ms = 300) => setTimeout(() => told({...seen, answer}), ms);
    chrome.runtime.sendMessage(ours, "hello").then((answer) => settle(answer ?? null), () => settle("rejected"));
    settle("none", 3000);
  });
  return (await chrome.scripting.executeScript({target: {tabId: id}, func, args: [%r]}))[0].result;
})()"""
"""In the worker of a fixture: probe our extension, and connect, in a script of the fixture in a web page."""


async def test_a_script_of_another_extension_in_a_web_page_does_not_speak_for_it(tmp_path: Path) -> None:
    async with open_site() as site, open_stage(tmp_path, answer_probe, echo_port) as stage:
        await stage.browser.open(site.page(""))
        other = await load_fixture(stage.browser, tmp_path / "scripts", ECHO_WORKER, "scripting")
        worker = await other.worker()
        await until(lambda: worker.evaluate("globalThis.chrome?.scripting !== undefined"))
        found = await worker.evaluate(FROM_A_PAGE % EXTENSION_ID)
        assert found["gone"]
        assert found["answer"] in (None, "none", "rejected")
        for own in (worker, await other.page()):
            assert (await own.evaluate(call(SEND, "hello")))["from"] == other.id
