"""One call all the way, in both eras, through a real process and in memory."""

from __future__ import annotations

import pytest
import trio

from tests.helpers import LineClient, RelayProcess, open_tab
from trio_relay.relay.hub import Hub


async def test_a_real_process_relays_a_call(relay: RelayProcess, nursery: trio.Nursery) -> None:
    async with open_tab(relay.port) as tab:
        await tab.hello()
        await tab.offer("echo")
        nursery.start_soon(tab.serve)
        await relay.wait_tools("echo")
        assert (await relay.call("echo", {"a": 1}))["content"] == [{"type": "text", "text": '{"a": 1}'}]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("modern", [False, True])
async def test_a_session_in_memory_relays_a_call(
    client: LineClient, hub: Hub, nursery: trio.Nursery, modern: bool
) -> None:
    client.modern = modern
    if not modern:
        await client.initialize()
    async with open_tab(hub.port) as tab:
        await tab.hello()
        await tab.offer("echo")
        nursery.start_soon(tab.serve)
        await client.wait_tools("echo")
        result = await client.call("echo", {"a": 1})
        assert result["content"] == [{"type": "text", "text": '{"a": 1}'}]
        assert ("resultType" in result) is modern
        nursery.cancel_scope.cancel()
