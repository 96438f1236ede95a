"""`trio-relay demo --browser` for real: what it shows, how it can be ended, and that nothing of it is left.

Every run has a temporary folder of its own, so that its processes can be told from others.
"""

from __future__ import annotations

import os
import pty
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio

from trio_relay.chromium.find import find_chromium
from trio_relay.config import RelayConfig
from trio_relay.core.backend import ToolBackend
from trio_relay.relay.cluster import open_cluster

pytestmark = pytest.mark.chromium
PATIENCE = 60
END = "The client left, and the relay with it."


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short one: the path of a socket in it may have 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="demo-"))
    yield folder
    shutil.rmtree(folder)


def processes_of(folder: Path) -> dict[int, str]:
    """Processes that name the folder, by id: those of the browser."""
    listed = subprocess.run(["ps", "-eo", "pid=,args=", "-ww"], capture_output=True, text=True, timeout=20, check=True)
    rows = (line.split(maxsplit=1) for line in listed.stdout.splitlines())
    return {int(pid): args for pid, args in rows if f"{folder}/trio-relay-chromium-" in args}


def kill_browser(folder: Path) -> None:
    """Its main process only, as a crash would."""
    others = (" --type=", "os.dup2", "crashpad")
    (main,) = (pid for pid, args in processes_of(folder).items() if not any(word in args for word in others))
    os.kill(main, signal.SIGKILL)


class Demo:
    def __init__(self, process: trio.Process, output: trio.abc.ReceiveStream) -> None:
        self.process = process
        self._output = output
        self.text = ""

    async def until(self, words: str) -> None:
        while words not in self.text:
            assert await self._more(), f"{words!r} not in {self.text!r}"

    async def end(self) -> int:
        """The exit code, everything read."""
        while await self._more():
            pass
        return await self.process.wait()

    async def _more(self) -> bool:
        data: bytes | bytearray = b""
        with suppress(trio.BrokenResourceError):  # Linux's way to say that a terminal has no other end any more
            data = await self._output.receive_some()
        self.text += data.decode().replace("\r\n", "\n")
        return data != b""


@asynccontextmanager
async def open_demo(folder: Path, *, window: bool = False) -> AsyncIterator[tuple[Demo, int]]:
    """A demo on a terminal, and the descriptor of its keyboard. With `window` it believes to have one."""
    environ = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    environ |= {"TMPDIR": str(folder)}
    option = "--browser"
    if window:
        found = find_chromium(sys.platform, os.environ)
        wrapper = folder / "windowless"
        wrapper.write_text(f'#!/bin/sh\nexec "{found}" "$@" --headless=new\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        environ |= {"DISPLAY": ":99"}
        option = f"--browser={wrapper}"
    ours, theirs = pty.openpty()
    with trio.fail_after(PATIENCE):
        process = await trio.lowlevel.open_process(
            [sys.executable, "-m", "trio_relay", "demo", option],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ,
            start_new_session=True,
        )
        os.close(theirs)
        async with trio.lowlevel.FdStream(ours) as stream:
            try:
                yield Demo(process, stream), ours
            finally:
                if process.returncode is None:
                    process.kill()
                    with trio.CancelScope(shield=True):
                        await process.wait()


def assert_nothing_left(folder: Path) -> None:
    assert processes_of(folder) == {}
    assert [path.name for path in folder.iterdir() if path.name != "windowless"] == []


async def test_it_shows_the_whole_way_through_a_browser(folder: Path, nursery: trio.Nursery) -> None:
    """Another relay is in the range meanwhile, as on the machine of a person who uses one: it gets no tab."""
    titles: list[str] = []

    async def watch(other: ToolBackend) -> None:
        while True:
            await other.wait_change(other.change())
            titles.extend(source.title or "" for source in other.sources())

    async with open_cluster(RelayConfig()) as other:
        nursery.start_soon(watch, other)
        async with open_demo(folder) as (demo, _):
            assert await demo.end() == 0, demo.text
        nursery.cancel_scope.cancel()
    assert "Tea shop" not in titles
    for words in (
        "MCP client -> stdio -> relay -> WebSocket -> extension -> page -> back",
        "there is no display, so it has no window",
        "id dfmjanjmbbmleoinmjfjkbplomkiniel",
        "Tea shop (http://127.0.0.1:",
        "webmcp_tool_call, add_to_cart, pack_order, search_products",
        "Green tea (1), Black tea (2), Rooibos tea (3)",
        "In the cart: 3 x Black tea; 17.70 euros",
        "refused, as it should be: ",
        "The order is packed. (progress: 1/3, 2/3, 3/3)",
        "the page says: cancelled by the client",
        END,
    ):
        assert words in " ".join(demo.text.split())
    assert "Press Enter" not in demo.text
    assert_nothing_left(folder)


async def test_with_a_window_it_stays_until_enter(folder: Path) -> None:
    async with open_demo(folder, window=True) as (demo, keyboard):
        await demo.until("Press Enter")
        assert "no window" not in demo.text
        assert len(processes_of(folder)) > 1
        os.write(keyboard, b"\n")
        assert await demo.end() == 0, demo.text
    assert END in demo.text
    assert_nothing_left(folder)


async def test_with_a_window_it_ends_when_the_browser_is_closed(folder: Path) -> None:
    async with open_demo(folder, window=True) as (demo, _):
        await demo.until("Press Enter")
        kill_browser(folder)
        assert await demo.end() == 0, demo.text
    assert END in demo.text
    assert_nothing_left(folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
async def test_a_signal_while_the_window_stays_ends_it_all(folder: Path, number: signal.Signals) -> None:
    async with open_demo(folder, window=True) as (demo, _):
        await demo.until("Press Enter")
        demo.process.send_signal(number)
        assert await demo.end() == 0, demo.text
    assert demo.text.endswith("Stopped; all that was started is gone.\n")
    assert_nothing_left(folder)


@pytest.mark.parametrize("after", ["started, with an empty profile", "told the port", "add_to"])
@pytest.mark.parametrize("how", ["interrupt", "kill the browser"])
async def test_ended_in_the_middle_it_leaves_nothing(folder: Path, how: str, after: str) -> None:
    async with open_demo(folder) as (demo, _):
        await demo.until(after)
        if how == "interrupt":
            demo.process.send_signal(signal.SIGINT)
        else:
            kill_browser(folder)
        assert await demo.end() == (0 if how == "interrupt" else 1), demo.text
    last = demo.text.splitlines()[-1]
    assert ("Stopped" if how == "interrupt" else "ended before the demo did") in last
    assert "Traceback" not in demo.text
    assert_nothing_left(folder)


async def test_nothing_is_written_into_the_home(folder: Path) -> None:
    """Beside its profile a browser keeps the settings of its crash reporter there, for one."""
    home = folder / "home"
    home.mkdir()
    done = await trio.run_process(
        [sys.executable, "-m", "trio_relay", "demo", "--browser"],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=os.environ | {"TMPDIR": str(folder), "HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr
    assert list(home.iterdir()) == []


async def test_a_program_that_is_no_browser_is_one_line(folder: Path) -> None:
    done = await trio.run_process(
        [sys.executable, "-m", "trio_relay", "demo", "--browser=true"],
        capture_stdout=True,
        capture_stderr=True,
        check=False,
        env=os.environ | {"TMPDIR": str(folder)},
    )
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert b"ended before the demo did" in done.stderr
    assert_nothing_left(folder)
