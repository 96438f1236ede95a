"""The command line: every option and its bad values, what goes to which stream, and the exit codes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from tests.helpers import free_port, open_relay_process, open_tab
from trio_relay import __version__
from trio_relay.cli import build_parser, main, read_config
from trio_relay.config import DEFAULT_ORIGINS, OWN_EXTENSION, RelayConfig
from trio_relay.errors import ConfigError

LOGGING_LEVELS = ["debug", "info", "warning", "error"]


def config(*argv: str) -> RelayConfig:
    return read_config(build_parser().parse_args(argv))


def run(*argv: str, module: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trio_relay"] if module else [str(Path(sys.executable).parent / "trio-relay")]
    return subprocess.run([*command, *argv], input="", capture_output=True, text=True, timeout=30, check=False)


# -- values


def test_without_options_the_defaults_hold() -> None:
    assert config() == RelayConfig()
    assert config().invoke_timeout == 65
    assert config().max_payload == 10_000_000
    assert config().allowed_origins == DEFAULT_ORIGINS == ("chrome-extension://*",)
    assert (config().host, config().port) == ("127.0.0.1", 9333)


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--host", "0.0.0.0"], "host", "0.0.0.0"),
        (["-H", "::1"], "host", "::1"),
        (["--port", "1"], "port", 1),
        (["-p", "65535"], "port", 65_535),
        (["--port=9340"], "port", 9340),
        (["--widget-origin", "https://a.example"], "allowed_origins", ("https://a.example",)),
        (["--widget-origin", "*"], "allowed_origins", ("*",)),
        (["--widget-origin", "null,HTTPS://A.example/ , moz-extension://*,"], "allowed_origins",
         ("null", "https://a.example", "moz-extension://*")),
        (["--widget-origin", "https://a.example", "--widget-origin", "https://b.example,https://a.example"],
         "allowed_origins", ("https://a.example", "https://b.example", "https://a.example")),
        (["--allowed-origin", "https://a.example"], "allowed_origins", ("https://a.example",)),
        (["--ws-origin", "https://a.example"], "allowed_origins", ("https://a.example",)),
        (["--label", "My relay ✓"], "label", "My relay ✓"),
        (["--workspace", "w"], "workspace", "w"),
        (["--relay-id", "id-1"], "relay_id", "id-1"),
        (["--invoke-timeout", "1"], "invoke_timeout", 0.001),
        (["--invoke-timeout", "2147483647"], "invoke_timeout", 2_147_483.647),
        (["--invoke-timeout", "none"], "invoke_timeout", None),
        (["--max-payload", "1024"], "max_payload", 1024),
        (["--max-payload", "1073741824"], "max_payload", 1_073_741_824),
        (["--bridge-extension", "p" * 32, "--bridge-extension", "a" * 32, "--bridge-extension", "p" * 32],
         "bridge_extensions", (OWN_EXTENSION, "p" * 32, "a" * 32)),
    ],
)  # fmt: skip
def test_an_option_sets_its_value(argv: list[str], name: str, value: object) -> None:
    assert getattr(config(*argv), name) == value


BAD = [
    ("--port", value, "1 to 65535")
    for value in ("0", "65536", "-1", "", "x", "1.5", "9_333", " 9333", "９３３３", "1e3", "9" * 400)
]
BAD += [("--invoke-timeout", value, "1 to 2147483647") for value in ("0", "2147483648", "-5", "", "1.5", "never")]
BAD += [("--max-payload", value, "1024 to 1073741824") for value in ("1023", "1073741825", "10MB", "", "none")]
BAD += [
    (option, value, "origin")
    for option in ("--widget-origin", "--allowed-origin", "--ws-origin")
    for value in ("", ",", "a.example", "https://", "https://a.example/path", "https://a b", "*://*", "https://*.a")
]
BAD += [(option, value, "1 to 200") for option in ("--label", "--workspace", "--relay-id")
        for value in ("", "  ", "x" * 201, "a\nb", "\x1b[31m")]  # fmt: skip
BAD += [("--host", value, "") for value in ("", "a b", "a/b", "http://x", "a,b", "\n")]
BAD += [(option, value, "32 letters") for option in ("--bridge-extension", "--provider")
        for value in ("", "a" * 31, "a" * 33, "A" * 32, "a" * 32 + "\n", "q" * 32)]  # fmt: skip
BAD += [("--log-level", value, "debug, info, warning, error") for value in ("", "loud", "DEBUG", "10")]
BAD += [("--log-file", value, "") for value in ("/nonexistent/folder/file", "/")]


@pytest.mark.parametrize(("option", "value", "words"), BAD)
def test_a_bad_value_ends_it_with_one_line_that_names_option_and_range(
    capsys: pytest.CaptureFixture[str], option: str, value: str, words: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main([f"{option}={value}"])
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("trio-relay: ")
    assert option in err
    assert words in err
    assert len(err) < 400


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--no-such"], "--no-such"),
        (["--no-such\nsecond-line"], "--no-such"),
        (["nonsense"], "nonsense"),
        (["demo", "more"], "more"),
        (["--port"], "--port"),
        (["--po", "9333"], "--po"),
        (["--label"], "--label"),
        (["--version=3"], "--version"),
    ],
)
def test_a_command_line_that_cannot_be_read_ends_it_with_one_line(
    capsys: pytest.CaptureFixture[str], argv: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert words in err


def test_the_first_bad_value_is_named_when_there_are_several() -> None:
    with pytest.raises(ConfigError, match=r"--label.*") as error:
        config("--port", "0", "--label", "")
    assert "\n" not in str(error.value)


# -- what it prints


@pytest.mark.parametrize("module", [True, False])
def test_version_and_help_go_to_stdout(module: bool) -> None:
    """`python -m trio_relay` and `trio-relay` are one program."""
    version = run("--version", module=module)
    assert (version.returncode, version.stdout, version.stderr) == (0, f"trio-relay {__version__}\n", "")
    shown = run("--help", module=module)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("usage: trio-relay [options] | trio-relay COMMAND\n")


def test_help_names_every_option_and_fits_a_terminal() -> None:
    """On 24 x 80, with the prompt after it, nothing scrolls away or wraps."""
    text = build_parser().format_help()
    lines = text.splitlines()
    assert len(lines) <= 23, f"{len(lines)} lines"
    assert max(map(len, lines)) <= 80
    options = (
        "--host -H --port -p --widget-origin --label --workspace --relay-id "
        "--invoke-timeout --max-payload --bridge-extension --provider "
        "--serve-extensions --serve-namespace --log-level --log-file --version --help demo"
    )
    for option in options.split():
        assert option in text
    for default in ("127.0.0.1", "9333", "chrome-extension://*", "65000", "10000000", "info"):
        assert default in text


def test_a_process_with_a_bad_value_writes_nothing_to_stdout() -> None:
    bad = run("--port", "0")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "trio-relay: --port takes a whole number from 1 to 65535, not '0'\n"


# -- what it logs


async def test_warnings_at_the_start_and_what_browsers_are_told(tmp_path: Path) -> None:
    """Each alias is named once; the port, the host; label, workspace and relay id reach the browser; the log file."""
    log = tmp_path / "relay.log"
    log.write_text("earlier\n")
    options = (
        *("--allowed-origin", "https://a.example", "--allowed-origin", "https://b.example"),
        *("--ws-origin", "chrome-extension://*", "--host", "0.0.0.0", "--label", "L", "--workspace", "W"),
        *("--relay-id", "R", "--log-file", str(log), "--max-payload", "2048"),
    )
    async with open_relay_process(*options) as relay:
        await relay.initialize()
        async with open_tab(relay.port) as tab:
            hellos = [await tab.frame(), await tab.frame()]
            await tab.hello()
        for hello in hellos:
            assert (hello["label"], hello["workspace"], hello["relayId"]) == ("L", "W", "R")
            assert hello["maxPayload"] == 2048
        await relay.close_stdin()
        assert await relay.raw_line() == b""
        assert await relay.wait() == 0
        text = relay.stderr
    for alias in ("--allowed-origin", "--ws-origin"):
        assert text.count(f"{alias} is deprecated") == 1
    assert text.count("--widget-origin") == 2
    assert f"port {relay.port} is outside" in text
    assert "bound to 0.0.0.0" in text
    assert "leaving" in text
    kept = log.read_text()
    assert kept.startswith("earlier\n"), "the file is appended to"
    assert kept.removeprefix("earlier\n") == text


async def test_the_log_level_decides_how_much_is_said() -> None:
    said: dict[str, str] = {}
    for level in ("debug", "error"):
        async with open_relay_process("--log-level", level) as relay:
            await relay.initialize()
            await relay.close_stdin()
            assert await relay.raw_line() == b""
            assert await relay.wait() == 0
            if level == "debug":
                await relay.logged("no more requests")
        said[level] = relay.stderr
    assert said["error"] == ""
    assert " DEBUG " in said["debug"]
    assert " INFO " in said["debug"]


def test_a_port_inside_the_range_and_loopback_give_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    from trio_relay.cli import _warn_about

    args = build_parser().parse_args(["--port", "9348"])
    with caplog.at_level(logging.WARNING):
        _warn_about(args, read_config(args))
        assert caplog.records == []
        args = build_parser().parse_args(["--port", "9349"])
        _warn_about(args, read_config(args))
        assert len(caplog.records) == 1


async def test_an_address_that_cannot_be_bound_is_one_clear_line() -> None:
    async with open_relay_process("--host", "203.0.113.7", "--log-level", "error", wait=False) as relay:
        assert await relay.raw_line() == b""
        assert await relay.wait() == 1
        await relay.logged("\n")
    (line,) = relay.stderr.splitlines()
    assert "203.0.113.7" in line


# -- the demo


async def test_the_demo_shows_the_whole_way_and_leaves_nothing_behind() -> None:
    with trio.fail_after(40):
        done = await trio.run_process(
            [sys.executable, "-m", "trio_relay", "demo"], capture_stdout=True, capture_stderr=True, check=False
        )
    out = done.stdout.decode()
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    for words in (
        "MCP client -> stdio -> relay -> WebSocket -> page -> back",
        "is open for browsers",
        "webmcp_tool_call, search_products, add_to_cart, count_slowly",
        "Green tea, Black tea",
        "In the cart: Black tea",
        "refused, as it should be: ",
        "one, two, three (progress: 1/3, 2/3, 3/3)",
        "The client left, and the relay with it.",
    ):
        assert words in out
    port = int(out.partition("port ")[2].partition(" ")[0])
    with pytest.raises(OSError, match=r".*"):
        await trio.open_tcp_stream("127.0.0.1", port)


def test_the_demo_leaves_the_settings_of_the_person_alone(tmp_path: Path) -> None:
    settings = tmp_path / ".webmcp" / "trio-relay.toml"
    settings.parent.mkdir()
    settings.write_text("broken [")
    done = subprocess.run(
        [sys.executable, "-m", "trio_relay", "demo"],
        capture_output=True,
        env=os.environ | {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path)},
        timeout=40,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [settings]


def test_the_demo_takes_no_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["demo", "--port", "9444"])
    assert left.value.code == 2
    assert capsys.readouterr().err == "trio-relay: demo takes no options: it starts a relay of its own\n"


def test_the_demo_says_why_it_failed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from trio_relay.surface import demo

    async def refused(*_: object) -> None:
        raise OSError("no such program")

    monkeypatch.setattr(demo, "_demo", refused)
    assert demo.run_demo() == 1
    assert "no such program" in capsys.readouterr().err


def test_requests_on_a_closed_pipe_end_with_their_answers() -> None:
    """`echo … | trio-relay` as people try it first."""
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"})
    done = subprocess.run(
        [sys.executable, "-m", "trio_relay", "--port", str(free_port())],
        input=request,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"jsonrpc": "2.0", "id": 1, "result": {}}
