"""What the extension takes for a relay: finder.test.mjs, run by node."""

from __future__ import annotations

import subprocess

import pytest

from tests.e2e import npm


@pytest.mark.npm
def test_only_the_hello_of_a_relay_is_taken_for_one() -> None:
    command = [npm.node(), "--test", "tests/e2e/finder.test.mjs"]
    done = subprocess.run(command, cwd=npm.ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
