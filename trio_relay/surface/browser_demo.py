"""`trio-relay demo --browser`: the demo with a real Chromium or Chrome, the extension and a sample page.

The browser gets a profile of its own, in a temporary folder; the person's is not touched. Everything started here is
ended here, whatever the reason to leave: the last step, Ctrl-C, a signal, the window being closed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from typing import Any

import trio
from mcp import Client, MCPError

from trio_relay.chromium.devtools import DevTools, DevToolsError, Page
from trio_relay.chromium.find import find_chromium, how_to_get_one
from trio_relay.chromium.launch import open_chromium
from trio_relay.chromium.serve import serve_sample
from trio_relay.errors import innermost
from trio_relay.extension import FOLDER
from trio_relay.surface.demo_steps import (
    DemoFailed,
    Steps,
    open_relay,
    print_closing,
    print_failure,
    print_title,
    show_call,
    show_progress,
    show_tab,
)

DEMO_S = 60.0
"""Seconds after which the demo gives up; it takes about three."""

LOOK_S = 0.05
"""Between looks at something that sends no event: a worker that starts, a page that changes."""

GONE_S = 0.5
"""For the end of the browser to be noticed: its tab's end may be noticed before, which would be no explanation."""

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
TOOL_COUNT = 4
NO_WINDOW = "; there is no display, so it has no window"
NOT_HERE = "it needs Linux or macOS. Load the extension by hand: 'trio-relay extension' tells how"


def run_browser_demo(program: str = "") -> int:
    """Show the way of a call through a real browser.

    Args:
        program: path or name of the browser; the first one found if empty.

    Returns:
        The exit code: 0 after a normal end, Ctrl-C too, 1 if it failed, with a line on stderr.
    """
    problem = ""
    try:
        found = _program(program)
        with serve_sample() as url:
            if not trio.run(_until_signal, found, url):
                print_closing("Stopped; all that was started is gone.")
    except* trio.TooSlowError:
        problem = f"it did not finish within {DEMO_S:.0f} s"
    except* (OSError, DevToolsError, MCPError, DemoFailed) as group:
        # A browser that ends makes whatever is asked just then fail too: that would be no explanation.
        problem = str(innermost(group.subgroup(DemoFailed) or group))
    if problem:
        print_failure(problem)
    return 1 if problem else 0


def _program(program: str) -> str:
    if sys.platform == "win32":
        raise DemoFailed(NOT_HERE)
    if not program:
        found = find_chromium(sys.platform, os.environ)
        if found is None:
            raise DemoFailed(how_to_get_one(sys.platform))
        return found
    named = shutil.which(program)
    if named is None:
        raise DemoFailed(f"--browser takes a program, and {program!r} is none")
    return named


def _has_display() -> bool:
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


async def _until_signal(program: str, url: str) -> bool:
    """The demo, cancelled by the first signal. (A `KeyboardInterrupt` could come in the middle of cleaning up.)

    Returns:
        Whether it came to its end.
    """
    ended = False
    with trio.open_signal_receiver(*(getattr(signal, name) for name in SIGNALS)) as signals:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                async for _ in signals:
                    nursery.cancel_scope.cancel()

            nursery.start_soon(cancel)
            await _demo(program, url)
            ended = True
            nursery.cancel_scope.cancel()
    return ended


async def _demo(program: str, url: str) -> None:
    steps = Steps()
    window = _has_display()
    stays = window and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    print_title("MCP client -> stdio -> relay -> WebSocket -> extension -> page -> back")
    with trio.fail_after(DEMO_S) as limit:
        async with open_relay(steps) as (client, port):
            async with open_chromium(program, headless=not window) as browser:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_watch, browser, program)
                    try:
                        await _load_extension(browser, steps, f"{program}{'' if window else NO_WINDOW}", port)
                        page = await _open_page(browser, url)
                        await _tools_arrive(client)
                        steps.done("The sample page opened, and the extension offered its tools.", url)
                        await _use(client, page, steps)
                    except Exception:
                        await trio.sleep(GONE_S)
                        raise
                    nursery.cancel_scope.cancel()
                if stays:
                    limit.deadline = float("inf")
                    print_closing("Look at the page. Press Enter here, or close the browser, to end the demo.")
                    await _enter_or_closed(browser)
                    steps = Steps()
            steps.done("The browser is closed, and its profile deleted.")
        steps.done("The client left, and the relay with it.")
    print_closing("To have this in your own browser: 'trio-relay extension' tells how to load the extension.")


async def _watch(browser: DevTools, program: str) -> None:
    await browser.gone.wait()
    raise DemoFailed(f"{program} ended before the demo did")


async def _enter_or_closed(browser: DevTools) -> None:
    async with trio.open_nursery() as nursery:

        async def closed() -> None:
            await browser.gone.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(closed)
        # A thread: not every system can wait for a terminal. Left behind in its read, it ends with the process.
        await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        nursery.cancel_scope.cancel()


async def _load_extension(browser: DevTools, steps: Steps, how: str, port: int) -> None:
    product = (await browser.command("Browser.getVersion"))["product"]
    steps.done(f"{product} started, with an empty profile.", how)
    extension = (await browser.command("Extensions.loadUnpacked", path=str(FOLDER)))["id"]
    worker = await browser.attach(await _target(browser, "service_worker", f"chrome-extension://{extension}/"))
    # A worker that is only just starting has no `chrome` yet.
    await _until(worker, f"globalThis.chrome?.storage?.local.set({{port: {port}}}).then(() => true)")
    steps.done("The extension is loaded, and told the port.", f"id {extension}")


async def _open_page(browser: DevTools, url: str) -> Page:
    """The sample page, in the tab that the browser opened by itself."""
    page = await browser.attach(await _target(browser, "page", "about:blank"))
    await page.command("Page.navigate", url=url)
    await _until(page, f"location.href === {json.dumps(url)}")
    if not await page.evaluate("'modelContext' in document"):
        raise DemoFailed("this browser has no WebMCP (document.modelContext): it needs a newer one")
    return page


async def _target(browser: DevTools, kind: str, url: str) -> str:
    """Id of the first target of this type whose URL begins so, once there is one."""
    while True:
        for info in await browser.targets(kind):
            if info["url"].startswith(url):
                target: str = info["targetId"]
                return target
        await trio.sleep(LOOK_S)


async def _tools_arrive(client: Client) -> None:
    while True:
        listed = await client.call_tool("webmcp_list_sources", {})
        if any(source["toolCount"] == TOOL_COUNT for source in (listed.structured_content or {})["sources"]):
            return
        await trio.sleep(LOOK_S)


async def _use(client: Client, page: Page, steps: Steps) -> None:
    await show_tab(client, steps)
    await show_call(client, steps, "search_products", {"query": "tea"})
    await show_call(client, steps, "add_to_cart", {"id": 2, "quantity": 3})
    await show_call(client, steps, "add_to_cart", {"id": "2"}, refused=True)
    await show_progress(client, steps, "pack_order")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(client.call_tool, "wait_for_courier", {})
        await _page_says(page, "running")
        nursery.cancel_scope.cancel()
    said = await _page_says(page, "cancelled")
    steps.done("wait_for_courier {}", f"given up by the client; the page says: {said}")


async def _page_says(page: Page, word: str) -> str:
    """What the newest line of the page's list of calls says, once it holds the word."""
    newest = "document.querySelector('#log li span').textContent"
    return str(await _until(page, f"{newest}.includes('{word}') && {newest}"))


async def _until(page: Page, expression: str) -> Any:
    """The value of the expression, once it is a true one."""
    while True:
        if value := await page.evaluate(expression):
            return value
        await trio.sleep(LOOK_S)
