"""The sentences of the extension's popup and options page: words.test.mjs, run by node, which must see every line."""

from __future__ import annotations

import subprocess

import pytest

from tests.e2e import npm

WORDS = "trio_relay/browser/words.js"


@pytest.mark.npm
def test_every_sentence_of_the_popup_is_the_one_that_fits_its_state() -> None:
    full = [f"--test-coverage-{what}=100" for what in ("lines", "branches", "functions")]
    command = [npm.node(), "--test", "--experimental-test-coverage", f"--test-coverage-include={WORDS}", *full]
    done = subprocess.run(
        [*command, "tests/e2e/words.test.mjs"], cwd=npm.ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{WORDS.rpartition('/')[2]} " in done.stdout  # else nothing was measured
