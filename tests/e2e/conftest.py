"""Tests marked `npm` need the programs of package.json: else they are skipped, or fail where CI requires them."""

from __future__ import annotations

import pytest

from tests.e2e import npm

_missing: list[str | None] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("npm") is None:
        return
    if not _missing:
        _missing.append(npm.what_is_missing())
    if _missing[0] is not None:
        if npm.required():
            pytest.fail(_missing[0], pytrace=False)
        pytest.skip(_missing[0])
