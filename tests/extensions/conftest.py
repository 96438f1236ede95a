"""A provider that is connected, for the tests of one session; they say which era it speaks."""

from __future__ import annotations

import pytest
import trio

import trio_relay.extensions.session  # noqa: F401  (imported here, as a clock that jumps does not wait for threads)
from tests.extensions.host_setting import (
    NOTES,
    OURS,
    Browser,
    Extension,
    connected,
)
from trio_relay.extensions.host import Providers


@pytest.fixture
def extension(legacy: bool) -> Extension:
    return Extension(legacy=legacy)


@pytest.fixture
async def providers(nursery: trio.Nursery, extension: Extension) -> Providers:
    """Connected to `extension`."""
    providers = Providers([NOTES], client_id=OURS, invoke_timeout=30)
    nursery.start_soon(providers.run)

    async def hold(task_status: trio.TaskStatus[None]) -> None:
        with providers.attach(Browser(nursery, **{NOTES: extension})):
            task_status.started()
            await trio.sleep_forever()

    await nursery.start(hold)
    await connected(providers)
    return providers
