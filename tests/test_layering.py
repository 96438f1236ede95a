"""The house: which room may import what, what a quick start must not import, and how long a module may be."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import trio_relay

ROOT = Path(trio_relay.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py"))

FLOORS = {
    **dict.fromkeys(("errors", "_version"), 0),
    "config": 1,
    "log": 1,
    "extension": 1,
    "wire": 2,
    "core": 3,
    "links": 4,
    "chromium": 4,
    "relay": 5,
    **dict.fromkeys(("surface", "extensions"), 6),
    "program": 7,
    "cli": 8,
    "__main__": 9,
    "__init__": 9,
}
"""A module imports from its own room and from floors below it. `__init__` is what embedders see: it may import all."""

ONLY_IN = {
    "mcp": ("surface", "extensions"),
    "mcp_types": ("surface", "extensions"),
    "pydantic": ("surface", "extensions"),
    "trio_websocket": ("links",),
    "wsproto": ("links",),
    "jsonschema_rs": ("core/schema.py",),
}
PURE_ROOMS = ("core", "wire", "errors", "config")
NOT_IN_PURE_ROOMS = ("trio", "logging", "anyio", "asyncio", "threading", "socket", "subprocess")
MAX_LINES = 400


def room_of(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0].removesuffix(".py")


def imports_of(path: Path) -> Iterator[str]:
    """Every module a file imports, wherever in it, as a dotted name."""
    package = ("trio_relay", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            if module == "trio_relay":
                for alias in node.names:
                    yield f"{module}.{alias.name}"
            else:
                yield module


def show(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_room_is_on_a_floor() -> None:
    assert {room_of(path) for path in MODULES} - FLOORS.keys() == set()
    assert len(MODULES) > 25


@pytest.mark.parametrize("path", MODULES, ids=show)
def test_a_module_imports_only_from_its_own_room_and_from_below(path: Path) -> None:
    own = room_of(path)
    for name in imports_of(path):
        if name.split(".")[0] != "trio_relay":
            continue
        other = name.split(".")[1] if "." in name else "__init__"
        assert other in FLOORS, f"{show(path)} imports {name}"
        assert other == own or FLOORS[other] < FLOORS[own], f"{show(path)} imports {name} from above"


@pytest.mark.parametrize("path", MODULES, ids=show)
def test_libraries_stay_in_the_rooms_that_own_them(path: Path) -> None:
    for name in imports_of(path):
        top = name.split(".")[0]
        owners = ONLY_IN.get(top)
        assert owners is None or room_of(path) in owners or show(path) in owners, f"{show(path)} imports {name}"
        assert room_of(path) not in PURE_ROOMS or top not in NOT_IN_PURE_ROOMS, f"{show(path)} imports {name}"


def test_the_libraries_are_really_used_where_they_may_be() -> None:
    """Else the test above would hold nothing."""
    used = {(name.split(".")[0], room_of(path)) for path in MODULES for name in imports_of(path)}
    assert {("mcp", "surface"), ("trio_websocket", "links"), ("jsonschema_rs", "core"), ("trio", "relay")} <= used


@pytest.mark.parametrize(
    "module",
    [
        "trio_relay.program",
        "trio_relay.cli",
        "trio_relay.relay.hub",
        "trio_relay.extensions.host",
        "trio_relay.extensions.service",
        "trio_relay.extensions.commands",
    ],
)
def test_a_quick_start_does_not_import_the_sdk(module: str) -> None:
    """The SDK takes half a second to import; tabs are served meanwhile."""
    code = f"import sys, {module}; print(sorted({{'mcp', 'mcp_types', 'pydantic'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("path", MODULES, ids=show)
def test_no_module_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MAX_LINES


@pytest.mark.parametrize(
    "path", [path for path in MODULES if path.name not in ("__main__.py", "_version.py")], ids=show
)
def test_every_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))
