"""What the system says of a process, and of itself. Memory and CPU need Linux's /proc; elsewhere they are left out."""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
HAS_PROC = (PROC / "self" / "status").exists()


def tree(pid: int) -> list[int]:
    """A process and all its descendants: a command given with --peer may be a wrapper."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, … Empty when the process is gone."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def cpu_seconds(pid: int) -> float:
    """CPU time of a process tree so far, in the system's ticks (10 ms)."""
    ticks = 0
    for each in tree(pid):
        fields = _stat(each)
        if fields:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, what: str) -> float:
    """`VmRSS` or `VmHWM` (the peak) of a process tree, in MB of 1,000,000 bytes."""
    kib = 0
    for each in tree(pid):
        for line in _lines(PROC / str(each) / "status"):
            if line.startswith(what + ":"):
                kib += int(line.split()[1])
    return kib * 1024 / 1e6


def _lines(path: Path) -> Iterator[str]:
    try:
        yield from path.read_text().splitlines()
    except OSError:
        return


def own_cpu() -> float:
    """CPU time of this process, the driver, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def allow_many_files() -> None:
    """A thousand tabs need a thousand descriptors, here and in the relay, which inherits the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8_192 if hard == resource.RLIM_INFINITY else min(hard, 8_192)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def describe() -> dict[str, object]:
    """The machine, as far as a reader of the results needs it."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines(PROC / "cpuinfo") if line.startswith("model name")), ""
    )
    cpus = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": model,
        "cpus": cpus,
        "python": platform.python_version(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }
