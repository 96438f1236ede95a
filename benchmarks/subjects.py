"""The relays that are measured, and how one is started. All are processes, spoken to in the same way."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.driver import Driver, Fault
from benchmarks.pump import Pump

ROOT = Path(__file__).parent.parent
OURS, NPM, FLOOR, FLOOR_WHOLE = "trio-relay", "npm", "floor", "floor-whole"
FLOORS = (FLOOR, FLOOR_WHOLE)


@dataclass(frozen=True)
class Subject:
    """A relay.

    Attributes:
        name: In tables and results.
        shown: Its command as the results show it, without paths of this machine.
        command: With `{port}` where the port goes.
    """

    name: str
    shown: str
    command: tuple[str, ...]

    def at(self, port: int) -> list[str]:
        return [word.replace("{port}", str(port)) for word in self.command]

    @property
    def is_floor(self) -> bool:
        return self.name in FLOORS


def ours() -> Subject:
    return Subject(OURS, "python -m trio_relay", (sys.executable, "-m", "trio_relay", "--port", "{port}"))


def floors() -> list[Subject]:
    command = (sys.executable, "-m", "benchmarks.floor", "{port}")
    shown = "python -m benchmarks.floor"
    return [Subject(FLOOR, shown, command), Subject(FLOOR_WHOLE, f"{shown} --whole", (*command, "--whole"))]


def npm() -> Subject | str:
    """The npm relay, or one line that says what is missing."""
    from tests.e2e import npm as programs

    missing = programs.what_is_missing()
    if missing is not None:
        return missing
    script = str(programs.HERE / "relay.mjs")
    shown = "@mcp-b/webmcp-local-relay 2.2.0: node tests/e2e/relay.mjs"
    return Subject(NPM, shown, (programs.node(), script, "{port}"))


def other(command: str, taken: Sequence[str]) -> Subject:
    """A relay given with --peer, named after its program.

    Raises:
        ValueError: the command has no `{port}`.
    """
    words = tuple(shlex.split(command))
    if not any("{port}" in word for word in words):
        raise ValueError(f"--peer {command!r} does not say where the port goes: write {{port}}")
    name = base = Path(words[0]).name
    number = 2
    while name in taken:
        name, number = f"{base}-{number}", number + 1
    return Subject(name, " ".join((base, *words[1:])), words)


class Running:
    """A relay process that is under way, and its driver.

    Attributes:
        began: `time.perf_counter()` just before the process was started.
    """

    def __init__(self, process: subprocess.Popen[bytes], driver: Driver, began: float) -> None:
        self.process = process
        self.driver = driver
        self.began = began

    @property
    def pid(self) -> int:
        return self.process.pid


@contextmanager
def started(subject: Subject, pump: Pump, port: int | None = None) -> Iterator[Running]:
    """Start a relay: on a port of its own, or on that of another one of its kind, which it then joins.

    The process has just been started when this yields: neither its port nor its pipes have been waited for.
    What it writes to stderr goes to a file, as a client that keeps a log would have it.
    """
    with tempfile.TemporaryDirectory(prefix="benchmarks-") as home, open(Path(home) / "stderr", "w+b") as log:
        port = port or free_port()
        began = time.perf_counter()
        process = subprocess.Popen(
            subject.at(port),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            cwd=ROOT,
            env=os.environ | {"HOME": home},
        )
        assert process.stdin is not None
        assert process.stdout is not None
        driver = Driver(pump, process.stdin.fileno(), process.stdout.fileno(), port)
        try:
            yield Running(process, driver, began)
        except Fault as fault:
            log.seek(0)
            said = log.read().decode(errors="replace").strip().splitlines()[-1:]
            raise Fault(f"{fault}" + (f" (it said: {said[0][:200]})" if said else "")) from None
        finally:
            driver.close()
            process.kill()
            process.stdin.close()
            process.stdout.close()
            process.wait()


def wait_for_port(running: Running, patience: float = 30.0) -> None:
    """Return once the relay's port is open. Raises `Fault` if it is not in time."""
    deadline = time.perf_counter() + patience
    while not port_is_open(running.driver.port):
        running.driver.rest(0.002)
        if time.perf_counter() > deadline:
            raise Fault(f"its port took longer than {patience:.0f} s")


def port_is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
