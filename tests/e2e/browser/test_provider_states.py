"""Every row of the table of states, as the user of the relay reads it about an extension in a real browser."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.e2e.browser.provider_setting import PUBLIC, SERVICE, STATUS, TOOLS, answer, open_host_stage, row_of
from tests.e2e.browser.setting import EXTENSION_ID, open_browser, open_relay
from tests.helpers import PATIENCE, free_port
from trio_relay._version import __version__

pytestmark = [pytest.mark.chromium, pytest.mark.npm]

INCOMPLETE = "Probe response is incomplete."
OFF = "Agent access is turned off in the provider."
PENDING = "Waiting for your approval in the provider."
NOT_ALLOWED = "The caller is not on the allowlist."
CONNECTED = f"Connected: {len(TOOLS)} tools."

# No two neighbours have one outcome, so a row that was not looked at anew is seen.
ERRORS: tuple[tuple[object, str], ...] = (
    (answer(enabled=False), OFF),
    (answer(authorized=False, pendingApproval=True), PENDING),
    (answer(authorized=False), NOT_ALLOWED),
    (answer(ready=False, reason="The shelf is being painted."), "The shelf is being painted."),
    ({"ok": False, "error": "Only probe version 1 is spoken here."}, "Only probe version 1 is spoken here."),
    ({"ok": True, "status": STATUS}, INCOMPLETE),
    (answer(enabled=False, authorized=False, ready=False), OFF),
    ({"ok": True, "service": SERVICE}, INCOMPLETE),
    (answer(authorized=False, pendingApproval=False), NOT_ALLOWED),
    ("yes", INCOMPLETE),
    ({"ok": False}, "The provider reports a protocol error and does not say which."),
    ([answer()], INCOMPLETE),
    (answer() | {"version": 2}, "The response has another version than 1: 2."),
    (None, INCOMPLETE),
    (answer() | {"id": "other"}, 'The response answers another probe: "other".'),
    (answer(enabled="true"), INCOMPLETE),
)


async def test_each_answer_to_a_probe_is_its_row_and_a_good_one_brings_the_tools(tmp_path: Path) -> None:
    async with open_host_stage(tmp_path, answer=ERRORS[0][0]) as stage:
        row = await stage.row(ERRORS[0][1])
        assert row == {
            "extensionId": stage.provider.id,
            "namespace": "notes",
            "name": "Notes",
            "version": "1.2.3",
            "state": "error",
            "outcome": OFF,
            "toolCount": 0,
            "refused": [],
        }
        for said, outcome in ERRORS[1:]:
            await stage.probe_again(said)
            row = await stage.row(outcome)
            assert (row["state"], row["toolCount"]) == ("error", 0), said
        assert await stage.relay.tool_names() == []
        assert await stage.provider.handshakes() == []
        await stage.probe_again(answer())
        row = await stage.row(CONNECTED)
        assert (row["state"], row["toolCount"], row["refused"]) == ("connected", len(TOOLS), [])
        assert await stage.relay.tool_names() == list(PUBLIC)
        await _the_probe_is_the_contracts(await stage.provider.probes())


async def _the_probe_is_the_contracts(probes: list[dict[str, Any]]) -> None:
    for seen in probes:
        probe = seen["probe"]
        assert seen["sender"] == EXTENSION_ID
        assert sorted(probe) == ["channel", "client", "id", "version"]
        assert (probe["channel"], probe["version"]) == ("lumo:probe", 1)
        assert probe["client"] == {"id": EXTENSION_ID, "name": "trio-relay", "version": __version__}
    assert len({seen["probe"]["id"] for seen in probes}) == len(probes) >= len(ERRORS) + 1


async def test_a_provider_that_never_answers_is_told_after_1500_ms_and_is_asked_again_with_the_tools(
    tmp_path: Path,
) -> None:
    async with open_host_stage(tmp_path, answer="never") as stage:
        row = await stage.row("There was no answer within 1500 ms.")
        assert row["state"] == "error"
        await stage.provider.set(answer=answer())
        await stage.relay.wait_tools(*PUBLIC)  # asked for, again and again
        assert (await stage.row())["outcome"] == CONNECTED


async def test_an_extension_that_is_not_there_is_told_and_the_command_prints_the_same(tmp_path: Path) -> None:
    port, nobody = free_port(), "a" * 32
    async with open_relay(tmp_path, "--provider", nobody, port=port) as relay, open_browser(port):
        row = await row_of(relay, "Extension not installed, or no agent endpoint.")
        assert (row["extensionId"], row["state"]) == (nobody, "error")
        shown = await providers_command(tmp_path)
        assert nobody in shown
        assert row["outcome"] in shown
        assert json.loads(await providers_command(tmp_path, "--json")) == [row]


async def providers_command(home: Path, *options: str) -> str:
    """`trio-relay providers`; returns what it prints."""
    command = [sys.executable, "-m", "trio_relay", "providers", *options]
    with trio.fail_after(PATIENCE):
        done = await trio.run_process(command, capture_stdout=True, env=os.environ | {"HOME": str(home)})
    return done.stdout.decode()
