"""Where a Chromium or Chrome is on this machine: the usual places of each system, nothing is started."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath, PureWindowsPath

LINUX_NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "google-chrome-beta",
    "google-chrome-unstable",
)
MAC_NAMES = ("Chromium", "Google Chrome", "Google Chrome Beta", "Google Chrome Dev", "Google Chrome Canary")
WINDOWS_FOLDERS = ("Chromium", r"Google\Chrome", r"Google\Chrome Beta", r"Google\Chrome Dev", r"Google\Chrome SxS")
WINDOWS_ROOTS = ("ProgramFiles", "ProgramFiles(x86)", "LocalAppData")


def candidates(platform: str, environ: Mapping[str, str]) -> list[str]:
    """Absolute paths where a browser may be, the preferred one first.

    Args:
        platform: as in `sys.platform`; whatever is neither `darwin` nor `win32` is searched like Linux.
        environ: `PATH`, `HOME` or Windows' folders are read from it.
    """
    if platform == "darwin":
        roots = ["/Applications"] + [f"{home}/Applications" for home in _absolute(environ.get("HOME", ""))]
        return [f"{root}/{name}.app/Contents/MacOS/{name}" for name in MAC_NAMES for root in roots]
    if platform == "win32":
        upper = {name.upper(): value for name, value in environ.items()}
        folders = [folder for name in WINDOWS_ROOTS if (folder := upper.get(name.upper()))]
        return [
            str(PureWindowsPath(root, folder, "Application", "chrome.exe"))
            for folder in WINDOWS_FOLDERS
            for root in folders
        ]
    on_path = [folder for part in environ.get("PATH", "").split(":") for folder in _absolute(part)]
    return [str(PurePosixPath(folder, name)) for name in LINUX_NAMES for folder in on_path]


def find_chromium(
    platform: str, environ: Mapping[str, str], is_program: Callable[[str], bool] | None = None
) -> str | None:
    """The first of `candidates` that is a program, or None."""
    is_program = is_program or _is_program
    return next((path for path in candidates(platform, environ) if is_program(path)), None)


def how_to_get_one(platform: str) -> str:
    """One sentence or two for a person whose browser was not found: what was looked for, and how to install it."""
    if platform == "darwin":
        where, how = f"{', '.join(MAC_NAMES)} in /Applications and ~/Applications", "'brew install --cask chromium'"
    elif platform == "win32":
        where, how = "Chromium and Chrome in the program folders", "https://www.google.com/chrome"
    else:
        where, how = f"{', '.join(LINUX_NAMES)} on PATH", "'apt-get install chromium' on Debian"
    return f"no browser found, looked for {where}. Install one ({how}), or name yours: --browser=PROGRAM"


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _absolute(folder: str) -> list[str]:
    """An entry of PATH that is empty or relative means the current folder, whatever that is: not searched."""
    return [folder.rstrip("/") or "/"] if folder.startswith("/") else []
