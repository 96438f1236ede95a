"""Tests marked `chromium` need Chromium: else they are skipped, or fail where CI requires it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.browser.setting import PROGRAM, Setting, chromium_is_missing, open_setting


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("chromium") is None or not chromium_is_missing():
        return
    reason = f"no {PROGRAM} on the PATH: install it (Debian: apt-get install chromium)"
    if os.environ.get("TRIO_RELAY_CHROMIUM") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture
async def setting(tmp_path: Path) -> AsyncIterator[Setting]:
    """Chromium with WebMCP and the extension, a relay that it knows, and a web server."""
    async with open_setting(tmp_path) as made:
        yield made
