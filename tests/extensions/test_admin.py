"""`trio-relay providers` and `trio-relay provider …` as programs, and the running relay that they find: another
program, its port, and a browser that is played."""

from __future__ import annotations

import json
import os
import signal
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
from tests.helpers import RelayProcess, free_port, open_relay_process, open_tab
from tests.hubs import offer
from tests.relay.ends import plain_tools, serve_by_hand, silent_listener, talker
from trio_relay.cli import main
from trio_relay.config import OWN_EXTENSION
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


# -- no relay, or something else in its place


async def test_without_a_relay_the_switches_work_and_the_rest_says_so(shell: Shell) -> None:
    assert (await shell("provider", "status")).splitlines()[-1] == "reviews:   no relay is running"
    await shell("provider", "enable")
    await shell("provider", "allow", HOST)
    assert "No relay is running" in await shell("provider", "reviews")
    assert "No relay is running" in await shell("provider", "review", "deny", "0a1b", code=1)
    assert "No relay is running" in await shell("providers", code=1)
    assert await shell("providers", "--json", code=1) == "[]\n"
    assert "endpoint:  on" in await shell("provider", "status")


async def test_a_relay_without_anything_to_do_with_extensions_is_not_found(shell: Shell) -> None:
    async with shell.relay():
        assert "No relay is running" in await shell("providers", code=1)
        assert not shell.directory.exists()


async def test_the_entry_of_a_relay_that_was_killed_is_no_relay(shell: Shell) -> None:
    async with shell.relay("--serve-extensions") as relay:
        relay.process.send_signal(signal.SIGKILL)
        await relay.wait()
        assert (shell.directory / ENTRY_FILE).exists()
        assert "No relay is running" in await shell("providers", code=1)
        assert "no relay is running" in await shell("provider", "status")
    async with shell.relay("--provider", NOTES) as relay:  # the next one writes its own
        assert len(await shell.rows()) == 1
        relay.process.send_signal(signal.SIGTERM)
        assert await relay.wait() == 0
    assert not (shell.directory / ENTRY_FILE).exists()


@pytest.mark.parametrize("what", ["silent", "talks", "http", "hangs up"])
async def test_another_program_in_the_place_of_a_relay_is_no_relay(shell: Shell, what: str) -> None:
    port = free_port()
    shell.entry(port)
    if what == "silent":
        with silent_listener(port):
            assert "No relay is running" in await shell("providers", code=1)
        return
    answer = {"talks": b"220 welcome\r\n", "http": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "hangs up": b""}
    async with talker(port, answer[what]):
        assert "No relay is running" in await shell("providers", code=1)
        assert "no relay is running" in await shell("provider", "status")


async def test_a_relay_of_another_home_in_that_place_is_not_asked_again(shell: Shell, tmp_path: Path) -> None:
    other = Shell(tmp_path / "other")
    async with other.relay("--provider", NOTES) as relay:
        shell.entry(relay.port)
        assert "No relay is running" in await shell("providers", code=1)
        assert len(await other.rows()) == 1


async def test_a_relay_server_that_answers_nonsense_is_no_relay(shell: Shell) -> None:
    async with serve_by_hand(tools=plain_tools("a")) as server, trio.open_nursery() as nursery:
        shell.entry(server.port)

        async def answer() -> None:
            while True:
                frame = await server.frame("relay/admin")
                await server.send("no json at all")
                await server.send({"type": "relay/admin-result", "requestId": frame["requestId"], "result": {"x": 1}})

        nursery.start_soon(answer)
        assert "No relay is running" in await shell("providers", code=1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'{"host":"127.0.0.1","port":99999999,"token":"t"}'])
async def test_an_entry_that_is_damaged_is_no_relay(shell: Shell, content: bytes) -> None:
    shell.directory.mkdir(parents=True)
    (shell.directory / ENTRY_FILE).write_bytes(content)
    assert "No relay is running" in await shell("providers", code=1)


# -- words that cannot be used


@pytest.mark.parametrize(
    "words",
    [
        ("provider",),
        ("provider", "nothing"),
        ("provider", "allow"),
        ("provider", "allow", "A" * 32),
        ("provider", "deny", "q" * 32),
        ("provider", "approve", "a" * 33),
        ("provider", "audit", "--caller", "é"),
        ("provider", "audit", "--tail", "0"),
        ("provider", "writes", "maybe"),
        ("provider", "review", "approve"),
        ("providers", "--jsn"),
        ("--provider", "short"),
        ("--provider", ""),
        ("--provider", "a" * 32 + "\n"),
        ("--serve-namespace", "mine"),
        ("--serve-extensions", "--serve-namespace", "browser"),
        ("--serve-extensions", "--serve-namespace", "x" * 17),
        ("--serve-extensions", "--serve-namespace", ""),
    ],
    ids=" ".join,
)
async def test_what_cannot_be_used_is_one_line_and_exit_code_2(shell: Shell, words: tuple[str, ...]) -> None:
    await shell(*words, code=2)
    assert list(shell.home.iterdir()) == []


@pytest.mark.parametrize("text", ["providers = 7", "[providers]\nnotes = 7", "[else]", "\x00", '[providers]\nn = "é"'])
async def test_a_settings_file_that_cannot_be_used_is_one_line_that_names_it(shell: Shell, text: str) -> None:
    (shell.home / ".webmcp").mkdir()
    (shell.home / ".webmcp" / "trio-relay.toml").write_text(text)
    assert "trio-relay.toml" in await shell(code=2)


async def test_a_settings_file_that_is_a_folder_is_one_line_that_names_it(shell: Shell) -> None:
    (shell.home / ".webmcp" / "trio-relay.toml").mkdir(parents=True)
    assert "trio-relay.toml" in await shell(code=2)


async def test_a_home_that_cannot_be_looked_into_is_no_reason_not_to_start(shell: Shell) -> None:
    async with open_relay_process(env={"HOME": "/" + "x" * 5_000}) as relay:
        await relay.initialize()
        assert await relay.tool_names() == []


async def test_the_name_of_a_caller_is_shown_on_any_terminal(shell: Shell) -> None:
    await shell("provider", "enable")
    async with shell.relay("--serve-extensions") as relay, open_browser(relay.port) as browser:
        message = json.loads(probe_message())
        message["client"]["name"] = "Ümläut 日本"
        await browser.probe(HOST, message)
        assert HOST in await shell("provider", "pending", env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})


async def test_a_reader_that_goes_away_is_no_traceback(shell: Shell) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        done = await trio.run_process(
            [sys.executable, "-m", "trio_relay", "provider", "status"],
            stdout=write,
            capture_stderr=True,
            check=False,
            env=os.environ | {"HOME": str(shell.home)},
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


async def test_our_own_extension_can_be_a_provider_like_any_other(shell: Shell) -> None:
    """Ids are judged by their shape only; what a browser makes of it is its business."""
    async with shell.relay("--provider", OWN_EXTENSION):
        assert (await shell.rows())[0].extension_id == OWN_EXTENSION


# -- no home


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["provider", "status"], 2, "home directory"),
        (["providers"], 1, "No relay is running"),
        (["--provider", NOTES], 2, "home directory"),
        (["--serve-extensions"], 2, "home directory"),
    ],
    ids=str,
)
def test_without_a_home_there_is_nothing_to_find_and_nowhere_to_keep_a_policy(
    words: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == code
    shown = capsys.readouterr()
    assert said in shown.out + shown.err
    assert (shown.out + shown.err).count("\n") == 1


async def test_without_the_variable_the_home_of_the_account_counts(shell: Shell) -> None:
    code = "import os; os.environ.pop('HOME'); from trio_relay.cli import _webmcp_folder; print(_webmcp_folder())"
    done = await trio.run_process([sys.executable, "-c", code], capture_stdout=True)
    assert done.stdout.decode().strip().endswith(".webmcp")
