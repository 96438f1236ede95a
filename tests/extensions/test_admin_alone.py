"""Commands about extensions where there is no relay, something else in its place, or words that cannot be used."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import trio

from tests.extensions.playing import open_browser
from tests.extensions.setting import probe_message
from tests.extensions.test_admin import HOST, NOTES, Shell
from tests.helpers import free_port, open_relay_process
from tests.relay.ends import plain_tools, serve_by_hand, silent_listener, talker
from trio_relay.cli import main
from trio_relay.config import OWN_EXTENSION
from trio_relay.extensions.service import ENTRY_FILE

# -- no relay, or something else in its place


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


async def test_without_a_relay_the_switches_work_and_the_rest_says_so(shell: Shell) -> None:
    assert "\nreviews:   no relay is running that serves extensions\n" in await shell("provider", "status")
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
