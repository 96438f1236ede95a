"""Commands of a person as frames between relays: answered with a result or an error, or not at all."""

from __future__ import annotations

import pytest

from tests.relay.ends import open_peer, open_remote, serve_by_hand, shown
from tests.relay.providing import Extending, FakeProviders, admin
from tests.relay.test_remote_providers import provided
from trio_relay.config import RelayConfig
from trio_relay.relay.hub import open_hub


async def test_a_command_is_answered_by_who_does_something_with_extensions() -> None:
    extending = Extending(FakeProviders())
    async with open_hub(RelayConfig(port=0), extending=extending) as hub, open_peer(hub.port) as peer:
        answer = await admin(peer, ask="providers", args={"a": [1]})
        assert answer == {"type": "relay/admin-result", "requestId": "1", "result": {"all": "right"}}
        answer = await admin(peer, token="wrong", requestId="é")
        assert answer == {"type": "relay/admin-result", "requestId": "é", "error": "not you"}
        assert extending.asked == [("right", "providers", b'{"a": [1]}'), ("wrong", "x", b"null")]


async def test_a_command_to_a_relay_that_does_nothing_with_extensions_says_how_to_start_it() -> None:
    async with open_hub(RelayConfig(port=0)) as hub, open_peer(hub.port) as peer:
        answer = await admin(peer)
        assert "--serve-extensions" in str(answer["error"])
        assert "result" not in answer


@pytest.mark.parametrize("members", [{"token": 7}, {"ask": None}, {"requestId": None}], ids=str)
async def test_a_command_that_cannot_be_read_is_not_answered_and_costs_nothing(members: dict[str, object]) -> None:
    extending = Extending(FakeProviders())
    async with open_hub(RelayConfig(port=0), extending=extending) as hub, open_peer(hub.port) as peer:
        await peer.send({"type": "relay/admin", "requestId": "1", "token": "right", "ask": "x"} | members)
        assert (await admin(peer, requestId="2"))["requestId"] == "2"
        assert len(extending.asked) == 1


async def test_a_client_drops_answers_to_commands_it_never_gave() -> None:
    async with serve_by_hand(tools=provided("notes_read")) as server, open_remote(server.port) as remote:
        await server.send({"type": "relay/admin-result", "requestId": "1", "result": {}})
        await server.send(provided(type="relay/tools-changed"))
        await shown(remote, "page")
