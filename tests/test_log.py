"""Log lines that hold nothing up, not even each other."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from tests.helpers import PATIENCE
from trio_relay.log import PatientHandler


def test_a_log_file_goes_on_while_nobody_reads_stderr(tmp_path: Path) -> None:
    read, write = os.pipe()
    path = tmp_path / "log"
    with os.fdopen(write, "w") as stderr, path.open("w", buffering=1) as file:
        handler = PatientHandler([stderr, file])
        for number in range(2000):  # more than a pipe holds
            handler.emit(logging.LogRecord("x", logging.INFO, "", 0, f"{number} {'x' * 100}", None, None))
        until = time.monotonic() + PATIENCE
        while path.read_bytes().count(b"\n") < 2000 and time.monotonic() < until:
            time.sleep(0.01)
        assert path.read_bytes().count(b"\n") == 2000
        os.close(read)  # the thread that writes to the pipe can end its write
        handler.settle(PATIENCE)
