"""Where the npm programs of this folder are, and node to run them with. README.md says how to install them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NODE_MODULES = HERE / "node_modules"
PACKAGES = (
    "@mcp-b/global",
    "@mcp-b/webmcp-local-relay",
    "@mcp-b/webmcp-polyfill",
    "@modelcontextprotocol/client",
    "@modelcontextprotocol/inspector",
    "@modelcontextprotocol/sdk",
    "@modelcontextprotocol/server",
    "esbuild",
)
MIN_NODE = 22


def required() -> bool:
    """Whether a missing program is a failure (CI) instead of a reason to skip."""
    return os.environ.get("TRIO_RELAY_NPM") == "required"


def what_is_missing() -> str | None:
    """One line that says what to install; None when everything is there."""
    missing = [name for name in PACKAGES if not (NODE_MODULES / name / "package.json").is_file()]
    if missing:
        return f"npm packages are missing ({', '.join(missing)}): see tests/e2e/README.md"
    if not _bundlers():
        return "esbuild came without its program, an optional package of its own: see tests/e2e/README.md"
    if _find_node() is None:
        return f"no node >= {MIN_NODE} was found, neither as an npm package nor on the PATH: see tests/e2e/README.md"
    return None


def node() -> str:
    """The node to run them with: the npm package of it, whatever the system has, else the system's."""
    found = _find_node()
    assert found is not None
    return found


def bundle(source: Path) -> str:
    """A module and all it imports, from npm too, as one script for a browser."""
    command = [
        str(_bundlers()[0]),
        str(source),
        "--bundle",
        "--format=iife",
        "--platform=browser",
        "--log-level=warning",
    ]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def relay_command(port: int, *options: str) -> list[str]:
    """How a client starts a relay; its working directory must be `ROOT`."""
    return [sys.executable, "-m", "trio_relay", "--port", str(port), *options]


def _bundlers() -> list[Path]:
    # Not .bin/esbuild: that is a script for node, and a link may be refused.
    return sorted(NODE_MODULES.glob("@esbuild/*/bin/esbuild"))


def _find_node() -> str | None:
    # Not .bin/node: the packages put their program in place without an install script, a link may be refused.
    packaged = sorted(NODE_MODULES.glob("node-*/bin/node"))
    system = shutil.which("node")
    for candidate in [*map(str, packaged), *([system] if system else [])]:
        if _major(candidate) >= MIN_NODE:
            return candidate
    return None


def _major(program: str) -> int:
    try:
        shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
        return int(shown.strip().removeprefix("v").partition(".")[0])
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0
