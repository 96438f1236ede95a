"""Starts a Chromium or Chrome with a profile of its own, and ends it with everything it left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trio

from trio_relay.chromium.devtools import DevTools, DevToolsError, open_devtools

if sys.platform != "win32":
    import fcntl

FLAGS = (
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-unsafe-extension-debugging",  # for Extensions.loadUnpacked; Chrome no longer has --load-extension
    "--remote-debugging-pipe",
)
WEBMCP_FEATURES = "WebMCP,WebMCPTesting"
EXIT_S = 3.0
"""Seconds for the browser to end by itself before it is killed."""

REMOVALS, REMOVAL_PAUSE_S = 20, 0.05
"""How often it is tried to delete the folder, and the pause between."""

PUT_IN_PLACE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""A process in between, which makes the pipe ends the descriptors 3 and 4 that the browser uses. (A forked child of a
process with threads must not run Python, and shells differ on descriptors above 9.)"""

LOWEST_FD = 10
"""Our pipe ends are moved up here, so that putting them in place as 3 and 4 overwrites neither."""


@asynccontextmanager
async def open_chromium(
    program: str, *flags: str, headless: bool = False, webmcp: bool = True, profile: Path | None = None
) -> AsyncIterator[DevTools]:
    """A running browser, driven over a pipe (POSIX only).

    Args:
        flags: further switches.
        headless: without a window.
        webmcp: whether `document.modelContext` is on.
        profile: kept folder; without it a new one that is deleted at the end.

    Raises:
        DevToolsError: on Windows; at the first command, if the program cannot be started or ended at once.
    """
    if sys.platform == "win32":
        raise DevToolsError("starting a browser needs Linux or macOS")
    folder = tempfile.mkdtemp(prefix="trio-relay-chromium-")
    words = [program, *FLAGS, f"--user-data-dir={profile or Path(folder, 'profile')}", *flags]
    words.append(f"--{'enable' if webmcp else 'disable'}-features={WEBMCP_FEATURES}")
    if headless:
        words += ["--headless=new", "--disable-gpu"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--no-sandbox")  # Chromium refuses to run as root with it
    try:
        # What it writes beside its profile goes with the folder too: temporary files (a browser that is killed leaves
        # some), and on Linux the crash reporter's settings, which would be the ones of the person's own browser.
        places = {"TMPDIR": folder, "XDG_CONFIG_HOME": f"{folder}/config", "XDG_CACHE_HOME": f"{folder}/cache"}
        async with _piped([*words, "about:blank"], os.environ | places) as devtools:
            yield devtools
    finally:
        _remove(folder)


@asynccontextmanager
async def _piped(words: Sequence[str], environ: Mapping[str, str]) -> AsyncIterator[DevTools]:
    theirs_in, ours_out = _pipe()
    ours_in, theirs_out = _pipe()
    try:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-I", "-S", "-c", PUT_IN_PLACE, str(theirs_in), str(theirs_out), *words],
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=environ,
        )
    except BaseException:
        os.close(ours_in)
        os.close(ours_out)
        raise
    finally:
        os.close(theirs_in)
        os.close(theirs_out)
    async with trio.lowlevel.FdStream(ours_out) as send, trio.lowlevel.FdStream(ours_in) as receive:
        try:
            async with open_devtools(send, receive) as devtools:
                yield devtools
        finally:
            await _end(process)


async def _end(process: trio.Process) -> None:
    """Ask it to go, then kill its session: helpers outlive a main process that is killed alone."""
    with trio.CancelScope(shield=True):
        with suppress(ProcessLookupError):
            process.terminate()
        with trio.move_on_after(EXIT_S):
            await process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


def _remove(folder: str) -> None:
    """A helper that is just dying may write a file into it meanwhile: then it is tried again."""
    for _ in range(REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(REMOVAL_PAUSE_S)  # not trio's: it may be on the way out of a cancelled scope


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    try:
        read, write = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, LOWEST_FD) for end in ends)
    finally:
        for end in ends:
            os.close(end)
    return read, write
