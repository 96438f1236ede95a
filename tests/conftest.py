"""Fixtures shared by all rooms."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from hypothesis import settings

from tests.helpers import LineClient, RelayProcess, open_relay_process
from trio_relay.config import RelayConfig
from trio_relay.relay.hub import Hub, open_hub

# The same examples in every run, and no verdict on a busy machine's speed.
settings.register_profile("trio-relay", derandomize=True, deadline=None)
settings.load_profile("trio-relay")


async def _hold_nursery(task_status: trio.TaskStatus[trio.Nursery]) -> None:
    async with trio.open_nursery() as nursery:
        task_status.started(nursery)
        await trio.sleep_forever()


@pytest.fixture
async def nursery() -> AsyncIterator[trio.Nursery]:
    """For background tasks of a test. Cancelling it ends them and nothing else.

    Replaces pytest-trio's own, whose cancelling silently ends the test too: what stood after it never ran.
    """
    async with trio.open_nursery() as outer:
        inner: trio.Nursery = await outer.start(_hold_nursery)
        yield inner
        outer.cancel_scope.cancel()


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    """A hub on a free port, in this process."""
    async with open_hub(RelayConfig(port=0)) as hub:
        yield hub


@pytest.fixture
async def relay() -> AsyncIterator[RelayProcess]:
    """A relay process with a client that has shaken hands (2025-11-25)."""
    async with open_relay_process() as relay:
        await relay.initialize()
        yield relay


@pytest.fixture
async def client(hub: Hub, nursery: trio.Nursery) -> LineClient:
    """A client of `hub` in this process: memory streams, the real session and the real SDK. Not initialised."""
    from trio.testing import memory_stream_pair

    from trio_relay.surface.lines import LineWriter
    from trio_relay.surface.server import SdkServer
    from trio_relay.surface.session import Session

    ours, theirs = memory_stream_pair()
    session = Session(hub, theirs, LineWriter(theirs), hub.config.max_payload)
    nursery.start_soon(session.run, SdkServer(session))
    return LineClient(ours.send_stream, ours.receive_stream)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests have measured (`record_property`)."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")
