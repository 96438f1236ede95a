"""Probes, authorisation and sessions of host extensions, with the official client in both protocol eras."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.extensions.setting import (
    ERAS,
    HOST,
    OTHER,
    PATIENCE,
    Desk,
    client_on,
    eventually,
    probe_message,
    refused,
    text_of,
)
from trio_relay.core.policy import REASONS, Refusal
from trio_relay.core.port import PortClosed
from trio_relay.extensions import provider as module
from trio_relay.extensions.provider import MAX_HELD_BYTES, MAX_HELD_MESSAGES, MAX_PORTS, TOO_MANY_PORTS, TOO_MUCH
from trio_relay.links.memory_port import port_pair

PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path / "provider")
    desk.switch(enabled=True, writes=True)
    return desk


@pytest.fixture
def open_desk(desk: Desk) -> Desk:
    desk.store.allow(HOST)
    return desk


async def asked(desk: Desk, sender: str = HOST, message: bytes | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(await desk.provider.probe(sender, message or probe_message()))
    return answer


async def closed(desk: Desk, caller: str = HOST) -> str:
    """Why a port is closed."""
    with trio.fail_after(PATIENCE):
        async with desk.port(caller) as port:
            with pytest.raises(PortClosed) as caught:
                await port.receive()
    return caught.value.reason


# -- probes


async def test_a_probe_is_answered_ok_whatever_the_policy_says(desk: Desk) -> None:
    desk.switch(enabled=False)
    off = await asked(desk)
    assert (off["ok"], off["status"]["enabled"], off["status"]["pendingApproval"]) == (True, False, False)
    assert desk.provider.pending() == ()
    desk.switch(enabled=True)
    unknown = await asked(desk)
    assert unknown == {
        "ok": True,
        "service": {"namespace": "triorelay", "name": "trio-relay", "version": "1"},
        "status": {"enabled": True, "authorized": False, "ready": True, "pendingApproval": True},
    }
    desk.store.deny(HOST)
    denied = await asked(desk)
    assert (denied["ok"], denied["status"]["authorized"], denied["status"]["pendingApproval"]) == (True, False, False)
    desk.store.allow(HOST)
    assert (await asked(desk))["status"]["authorized"] is True


@pytest.mark.parametrize(
    "message", [b"[]", b"{}", b"nonsense", probe_message().replace(b'"version": 1', b'"version": 2')]
)
async def test_only_a_protocol_failure_is_not_ok_and_it_asks_for_nothing(desk: Desk, message: bytes) -> None:
    answer = await asked(desk, message=message)
    assert answer["ok"] is False
    assert answer["error"]
    assert desk.provider.pending() == ()


async def test_a_sender_that_is_no_extension_id_is_never_noted(desk: Desk) -> None:
    status = (await asked(desk, "https://evil.example/"))["status"]
    assert (status["authorized"], status["pendingApproval"]) == (False, False)
    assert desk.provider.pending() == ()


async def test_the_name_in_a_probe_is_display_only_and_made_harmless(desk: Desk) -> None:
    desk.store.allow(HOST)
    hostile = f"{HOST}\n\x1b[31mLumo\u202e" + "x" * 1_000
    status = (await asked(desk, OTHER, probe_message(hostile)))["status"]
    assert status["authorized"] is False
    (caller,) = desk.provider.pending()
    assert caller.extension_id == OTHER
    assert caller.name.isprintable()
    assert len(caller.name) <= 100


async def test_a_caller_that_cannot_be_noted_is_not_told_that_it_waits(desk: Desk) -> None:
    (desk.store.directory / "pending.json").write_text("damaged")
    answer = await asked(desk)
    assert (answer["ok"], answer["status"]["pendingApproval"]) == (True, False)


async def test_a_provider_that_is_not_ready_says_why(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.provider._not_ready = lambda: "No tab is open."
    status = (await asked(desk))["status"]
    assert (status["ready"], status["reason"]) == (False, "No tab is open.")


# -- who gets a session


async def test_a_port_is_refused_with_the_reason(desk: Desk) -> None:
    desk.store.deny(HOST)
    assert await closed(desk) == REASONS[Refusal.NOT_ALLOWED]
    desk.switch(enabled=False)
    assert await closed(desk) == REASONS[Refusal.ENDPOINT_OFF]
    desk.switch(enabled=True)
    assert await closed(desk, "no extension") == REASONS[Refusal.NOT_ALLOWED]
    assert desk.page.callers == []


async def test_a_damaged_policy_lets_nobody_in(open_desk: Desk) -> None:
    (open_desk.store.directory / "policy.json").write_text("{")
    assert await closed(open_desk) == REASONS[Refusal.ENDPOINT_OFF]


async def test_an_unknown_caller_is_refused_when_nobody_decides(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "APPROVAL_S", 0.05)
    assert await closed(desk) == REASONS[Refusal.NOT_APPROVED_YET]
    assert [caller.extension_id for caller in desk.provider.pending()] == [HOST]


@pytest.mark.parametrize("era", ERAS)
async def test_approved_while_its_port_is_held_a_caller_is_served_on_it_at_once(desk: Desk, era: str) -> None:
    await asked(desk)

    async def approve() -> None:
        await eventually(lambda: desk.provider._ports[HOST] == 1)
        await trio.to_thread.run_sync(desk.store.allow, HOST)

    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery, desk.port() as port:
            nursery.start_soon(approve)
            async with client_on(port, era) as client:
                assert text_of(await client.call_tool("save", {})) == "save done"
    (caller,) = desk.page.callers
    assert (caller.extension_id, caller.name, caller.version) == (HOST, "Lumo", "1.0.19")
    assert desk.provider.pending() == ()


async def test_messages_before_authorisation_are_held_in_order(desk: Desk) -> None:
    async with desk.port() as port:
        for number in range(MAX_HELD_MESSAGES):
            await port.send(PING.replace(b"1,", b"%d," % (number + 1)))
        await eventually(lambda: bool(desk.provider.pending()))
        await trio.to_thread.run_sync(desk.store.allow, HOST)
        with trio.fail_after(PATIENCE):
            answers = [json.loads(await port.receive())["id"] for _ in range(MAX_HELD_MESSAGES)]
    assert sorted(answers) == list(range(1, MAX_HELD_MESSAGES + 1))


@pytest.mark.parametrize("messages", [[PING] * (MAX_HELD_MESSAGES + 1), [b" " * (MAX_HELD_BYTES + 1)]])
async def test_no_more_than_that_is_held(desk: Desk, messages: list[bytes]) -> None:
    async with desk.port() as port:
        with trio.fail_after(PATIENCE):
            for message in messages:
                await port.send(message)
            with pytest.raises(PortClosed, match=TOO_MUCH):
                await port.receive()


async def test_a_port_that_closes_while_it_waits_ends_its_serving(desk: Desk) -> None:
    ours, theirs = port_pair("p" * 32, HOST)
    theirs.close()
    with trio.fail_after(PATIENCE):
        await desk.provider.serve(ours)
    assert desk.page.callers == []


async def test_a_caller_may_have_so_many_ports_and_no_more(open_desk: Desk) -> None:
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:

            async def hold(task_status: trio.TaskStatus[None]) -> None:
                async with open_desk.client() as client:
                    await client.list_tools()
                    task_status.started()
                    await trio.sleep_forever()

            for _ in range(MAX_PORTS):
                await nursery.start(hold)
            assert await closed(open_desk) == TOO_MANY_PORTS
            open_desk.store.allow(OTHER)
            async with open_desk.client(caller=OTHER) as client:
                assert len((await client.list_tools()).tools) == 5
            nursery.cancel_scope.cancel()
    assert "0 ports" in repr(open_desk.provider)


async def test_a_factory_that_fails_closes_the_port_and_nothing_else(open_desk: Desk) -> None:
    def broken(caller: object) -> Any:
        raise RuntimeError("secret detail")

    whole, open_desk.provider._factory = open_desk.provider._factory, broken
    reason = await closed(open_desk)
    assert "secret" not in reason
    open_desk.provider._factory = whole
    async with open_desk.client() as client:
        await client.list_tools()


async def test_a_factory_that_gives_one_server_twice_is_refused(open_desk: Desk) -> None:
    served = open_desk.page.factory(None)  # type: ignore[arg-type]
    open_desk.provider._factory = lambda caller: served
    async with open_desk.client() as client:
        await client.list_tools()
        assert await closed(open_desk) == module.NO_SESSION


# -- open sessions


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("change", ["off", "denied"])
async def test_switched_off_or_denied_an_open_session_is_refused_at_once_and_its_port_stays(
    open_desk: Desk, era: str, change: str
) -> None:
    with trio.fail_after(PATIENCE):
        async with open_desk.client(era) as client:
            assert text_of(await client.call_tool("look", {})) == "look done"
            if change == "off":
                open_desk.switch(enabled=False)
            else:
                open_desk.store.deny(HOST)
            why = REASONS[Refusal.ENDPOINT_OFF if change == "off" else Refusal.NOT_ALLOWED]
            assert await refused(client, "look") == why
            assert await refused(client, "save") == why
            with pytest.raises(Exception, match=why):
                await client.list_tools()
            open_desk.switch(enabled=True)
            open_desk.store.allow(HOST)
            assert text_of(await client.call_tool("look", {})) == "look done"
    assert open_desk.page.executed == ["look", "look"]
    assert open_desk.lines() == [("refused", "save", "endpoint-off" if change == "off" else "not-allowed")]


async def test_two_callers_are_kept_apart(open_desk: Desk) -> None:
    open_desk.store.allow(OTHER)
    with trio.fail_after(PATIENCE):
        async with open_desk.client() as one, open_desk.client(caller=OTHER) as two:
            open_desk.store.deny(OTHER)
            assert await refused(two, "look") == REASONS[Refusal.NOT_ALLOWED]
            assert text_of(await one.call_tool("save", {})) == "save done"
    assert [caller.extension_id for caller in open_desk.page.callers] == [HOST, OTHER]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{",
        b"null",
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"save"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":[]}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":5}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"save","arguments":[]}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call"}',
        b"[" * 100_000,
    ],
)
async def test_nonsense_executes_nothing_and_the_session_goes_on(open_desk: Desk, line: bytes) -> None:
    with trio.fail_after(PATIENCE):
        async with open_desk.port() as port:
            await port.send(line)
            await port.send(b'{"jsonrpc":"2.0","id":"p","method":"ping"}')
            while json.loads(await port.receive()).get("id") != "p":
                pass
    assert open_desk.page.executed == []
    assert open_desk.lines() == []


async def test_half_a_surrogate_pair_in_arguments_costs_nothing(open_desk: Desk) -> None:
    params = b'{"name":"save","arguments":{"a":"\\ud83d"},"_meta":{%s}}'
    call = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":' + params + b"}"
    meta = (
        b'"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
        b'"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},'
        b'"io.modelcontextprotocol/clientCapabilities":{}'
    )
    with trio.fail_after(PATIENCE):
        async with open_desk.port() as port:
            await port.send(call % meta)
            answer = json.loads(await port.receive())
    assert answer["result"]["content"][0]["text"] == "save done"
    assert [event for event, *_ in open_desk.lines()] == ["intent", "outcome"]


@pytest.mark.parametrize("era", ERAS)
async def test_an_answer_that_the_port_cannot_carry_is_an_error_and_the_session_goes_on(
    open_desk: Desk, era: str
) -> None:
    open_desk.provider._max_message = 100_000
    with trio.fail_after(PATIENCE):
        async with open_desk.client(era) as client:
            await client.list_tools()
            open_desk.page.padding = "x" * 100_000
            assert "at most 100000 can be sent" in await refused(client, "look")
            with pytest.raises(Exception, match="at most 100000 can be sent"):
                await client.list_tools()
            open_desk.page.padding = ""
            assert text_of(await client.call_tool("look", {})) == "look done"
