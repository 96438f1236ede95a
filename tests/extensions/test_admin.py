"""`trio-relay providers` and `trio-relay provider …` as programs, and the running relay that they find: another
program, its port, and a browser that is played."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.extensions.playing import notes, open_browser
from tests.extensions.setting import eventually, probe_message
from tests.helpers import RelayProcess, open_relay_process, open_tab
from tests.hubs import offer
from trio_relay.core.backend import ProviderView
from trio_relay.extensions.service import ENTRY_FILE, Entry

NOTES, MAIL, HOST = "b" * 32, "c" * 32, "d" * 32


class Shell:
    """Runs the program's commands in a home of its own, as another process than the relay."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.directory = home / ".webmcp" / "provider"

    async def __call__(self, *words: str, code: int = 0, env: dict[str, str] | None = None) -> str:
        """The output of a command that must end with `code`; 2 means one line on stderr and nothing else."""
        with trio.fail_after(30):
            done = await trio.run_process(
                [sys.executable, "-m", "trio_relay", *words],
                capture_stdout=True,
                capture_stderr=True,
                check=False,
                env=os.environ | {"HOME": str(self.home)} | (env or {}),
            )
        out, errors = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, (out, errors)
        if code == 2:
            assert out == ""
            assert errors.startswith("trio-relay")
            assert errors.count("\n") == 1, errors
            return errors
        assert errors == "", errors
        return out

    async def rows(self) -> list[ProviderView]:
        return msgspec.json.decode(await self("providers", "--json"), type=list[ProviderView])

    @asynccontextmanager
    async def relay(self, *options: str, port: int | None = None) -> AsyncIterator[RelayProcess]:
        """A relay that commands can find by now (one that joins another, on `port`, is not found)."""
        file = self.directory / ENTRY_FILE
        before = file.read_bytes() if file.exists() else b""
        async with open_relay_process(*options, port=port, env={"HOME": str(self.home)}) as relay:
            relay.patience = 30.0  # several programs are started, and each imports the SDK
            if options and port is None:
                await eventually(lambda: file.exists() and file.read_bytes() != before)
            yield relay

    def entry(self, port: int, token: str = "t") -> None:
        """As a relay leaves it behind that was killed."""
        self.directory.mkdir(parents=True)
        (self.directory / ENTRY_FILE).write_bytes(msgspec.json.encode(Entry("127.0.0.1", port, token)))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# -- a relay that runs


async def test_the_rows_of_a_running_relay_are_shown_as_a_table_and_as_json(shell: Shell) -> None:
    async with (
        shell.relay("--provider", NOTES, "--provider", MAIL, "--provider", NOTES) as relay,
        open_browser(
            relay.port, {NOTES: notes() | {"service": {"namespace": "notes", "name": "N\x1b\n", "version": "1"}}}
        ),
    ):
        await relay.initialize()
        await relay.wait_tools("notes_read", "notes_write")
        connected, missing = await shell.rows()
        assert (connected.extension_id, connected.state, connected.tool_count) == (NOTES, "connected", 2)
        assert (missing.extension_id, missing.state) == (MAIL, "error")
        body = (await relay.call("webmcp_list_sources"))["structuredContent"]
        assert body["providers"] == json.loads(await shell("providers", "--json"))
        table = await shell("providers")
        assert [line.split()[0] for line in table.splitlines() if line[0] != " "] == ["EXTENSION", NOTES, MAIL]
        assert "\x1b" not in table
        assert "Extension not installed" in table
        assert (await relay.call("notes_write", {"n": 1}))["content"][0]["text"] == '{"n": 1}'
        # What else there is to ask needs --serve-extensions, and says so.
        status = await shell("provider", "status")
        assert "endpoint:  off" in status
        assert "--serve-extensions" in status.splitlines()[-1]
        for words in (("reviews",), ("review", "approve", "0a1b")):
            assert "--serve-extensions" in await shell("provider", *words, code=1)


async def test_each_switch_takes_effect_on_the_running_relay_at_once(shell: Shell) -> None:
    async with (
        shell.relay("--serve-extensions", "--serve-namespace", "mine") as relay,
        open_browser(relay.port) as browser,
        open_tab(relay.port) as tab,
        trio.open_nursery() as nursery,
    ):
        await relay.initialize()
        await offer(tab, "t1", "search", {"name": "look", "annotations": {"readOnlyHint": True}})
        nursery.start_soon(tab.serve)

        async def status_of_probe() -> dict[str, Any]:
            response = (await browser.probe(HOST, json.loads(probe_message())))["response"]
            assert response["service"]["namespace"] == "mine"
            return dict(response["status"])

        assert (await status_of_probe())["enabled"] is False
        assert "endpoint is on" in await shell("provider", "enable")
        assert await status_of_probe() == {
            "enabled": True,
            "authorized": False,
            "ready": True,
            "pendingApproval": True,
        }
        pending = await shell("provider", "pending")
        assert pending.startswith(HOST)
        assert '"Lumo" 1.0.19' in pending
        await shell("provider", "approve", HOST)
        assert (await status_of_probe())["authorized"] is True
        assert "Nobody waits" in await shell("provider", "pending")

        host = await browser.host(HOST)
        await host.initialize()
        assert "isError" not in await host.call("look")
        assert (await host.call("search"))["isError"] is True
        await shell("provider", "writes", "on")
        assert "isError" not in await host.call("search")

        await shell("provider", "review", "on")
        request = await host.ask("tools/call", name="search", arguments={"q": "secret"})
        while HOST not in (reviews := await shell("provider", "reviews")):
            pass
        review_id = reviews.split()[0]
        assert "secret" in reviews
        assert (await shell("provider", "status")).splitlines()[-1] == "reviews:   1"
        assert "is approved" in await shell("provider", "review", "approve", review_id)
        assert "isError" not in (await host.answer(request))["result"]
        assert "Nothing waits" in await shell("provider", "reviews")

        await shell("provider", "deny", HOST)
        assert (await host.call("look"))["isError"] is True
        await shell("provider", "allow", HOST)
        assert "isError" not in await host.call("look")
        await shell("provider", "disable")
        assert (await host.call("look"))["isError"] is True

        lines = [json.loads(line) for line in (await shell("provider", "audit")).splitlines()]
        assert [line["event"] for line in lines] == ["refused", "intent", "outcome", "intent", "outcome"]
        assert "secret" not in json.dumps(lines)
        assert len((await shell("provider", "audit", "--tail", "2", "--caller", HOST)).splitlines()) == 2
        assert "no lines" in await shell("provider", "audit", "--caller", NOTES)
        await relay.ping()
        for line in relay.lines:  # nothing but JSON-RPC has come
            assert json.loads(line)["jsonrpc"] == "2.0"
        nursery.cancel_scope.cancel()


async def test_a_write_that_was_cancelled_is_not_executed_when_the_command_approves_it(shell: Shell) -> None:
    """D01, with the program's own commands."""
    for words in (("enable",), ("allow", HOST), ("writes", "on"), ("review", "on")):
        await shell("provider", *words)
    async with (
        shell.relay("--serve-extensions") as relay,
        open_browser(relay.port) as browser,
        open_tab(relay.port) as tab,
    ):
        await offer(tab, "t1", "search")
        host = await browser.host(HOST)
        await host.initialize()
        request = await host.ask("tools/call", name="search", arguments={"q": "secret"})
        while HOST not in (reviews := await shell("provider", "reviews")):
            pass
        await host.cancel(request)
        log = shell.directory / "audit.jsonl"
        await eventually(lambda: log.exists() and log.read_text().endswith("\n"))
        for _ in range(2):
            answer = await shell("provider", "review", "approve", reviews.split()[0])
            assert "will never be executed" in answer
        (line,) = map(json.loads, (await shell("provider", "audit")).splitlines())
        assert (line["event"], line["tool"], line["sender"]) == ("refused", "search", HOST)
        await tab.socket.ping()
        assert [frame for frame in tab.seen if frame["type"] == "invoke"] == []


async def test_providers_of_the_settings_file_are_used_after_those_of_the_command_line(shell: Shell) -> None:
    (shell.home / ".webmcp").mkdir()
    (shell.home / ".webmcp" / "trio-relay.toml").write_text(f'[providers]\nmail = "{MAIL}"\nnotes = "{NOTES}"\n')
    async with shell.relay("--provider", NOTES):
        assert [row.extension_id for row in await shell.rows()] == [NOTES, MAIL]


async def test_a_relay_that_joined_another_one_shows_its_providers_and_leaves_the_entry_alone(shell: Shell) -> None:
    async with shell.relay("--provider", NOTES) as first, open_browser(first.port, {NOTES: notes()}):
        entry = (shell.directory / ENTRY_FILE).read_bytes()
        async with shell.relay("--provider", MAIL, "--serve-extensions", port=first.port) as second:
            await second.initialize()
            await second.wait_tools("notes_read", "notes_write")
            await second.logged("the business of that relay")
            assert (shell.directory / ENTRY_FILE).read_bytes() == entry
            await second.close_stdin()
            assert await second.wait() == 0
        assert [row.extension_id for row in await shell.rows()] == [NOTES]
