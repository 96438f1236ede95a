"""The command line: argv to settings, exit codes. The only reader of argv; no setting comes from the environment."""

from __future__ import annotations

import argparse
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trio_relay._version import __version__
from trio_relay.config import (
    DEFAULT_HOST,
    DEFAULT_INVOKE_TIMEOUT_MS,
    DEFAULT_MAX_PAYLOAD,
    DEFAULT_ORIGINS,
    DISCOVERY_PORTS,
    OWN_EXTENSION,
    RelayConfig,
    parse_invoke_timeout,
    parse_max_payload,
    parse_name,
    parse_origins,
    parse_port,
)
from trio_relay.core.extension_id import require_extension_id
from trio_relay.errors import ConfigError, RelayError
from trio_relay.log import PatientHandler, set_up_logging

if TYPE_CHECKING:
    from trio_relay.extensions.service import ExtensionSettings
    from trio_relay.relay.ports import PortCache

logger = logging.getLogger("trio_relay.cli")

LOG_LEVELS = ("debug", "info", "warning", "error")
LEAVE_S = 5.0
"""Seconds after the reason to leave at which the process ends whatever hangs."""

MAX_ERROR_CHARS = 300
"""Of the line that says what is wrong with a command line: enough for a bad value, not for a whole file."""

ORIGIN_ALIASES = ("--allowed-origin", "--ws-origin")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, exit code 2."""
        line = " ".join(message.split())
        self.exit(2, f"trio-relay: {line if len(line) <= MAX_ERROR_CHARS else line[:MAX_ERROR_CHARS] + '…'}\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="trio-relay",
        usage="trio-relay [options] | trio-relay COMMAND",
        description="MCP server on stdin and stdout for the WebMCP tools of open browser tabs.",
        epilog="Commands: demo, extension, providers, provider; each has its own --help.",
        allow_abbrev=False,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=26, width=80),
    )
    add = parser.add_argument
    add("command", nargs="?", help=argparse.SUPPRESS)
    add("--host", "-H", default=DEFAULT_HOST, help=f"address to bind for the browser (default: {DEFAULT_HOST})")
    add(
        "--port",
        "-p",
        metavar="PORT",
        help=f"the only port to use (default: one of {DISCOVERY_PORTS[0]} to {DISCOVERY_PORTS[-1]})",
    )
    add(
        "--widget-origin",
        action="append",
        metavar="LIST",
        help=f"origins offering tools (default: {','.join(DEFAULT_ORIGINS)})",
    )
    for alias in ORIGIN_ALIASES:
        add(alias, action="append", help=argparse.SUPPRESS)
    add("--label", metavar="NAME", help="name of this relay, shown by browsers")
    add("--workspace", metavar="NAME", help="name of your workspace, shown by browsers")
    add("--relay-id", metavar="ID", help="stable id of this relay, reported to browsers")
    add(
        "--invoke-timeout",
        metavar="MS",
        help=f"ms a tool may take, or 'none' (default: {DEFAULT_INVOKE_TIMEOUT_MS})",
    )
    add("--max-payload", metavar="BYTES", help=f"largest WebSocket message in bytes (default: {DEFAULT_MAX_PAYLOAD})")
    add(
        "--bridge-extension",
        action="append",
        metavar="ID",
        help="extension that may carry ports, besides our own",
    )
    add("--provider", action="append", metavar="ID", help="offer the tools of this provider extension too")
    add("--serve-extensions", action="store_true", help="serve our tools to host extensions that you allow")
    add("--serve-namespace", metavar="NAME", help="what hosts put before names (default: triorelay)")
    add("--log-level", default="info", metavar="LEVEL", help=f"{', '.join(LOG_LEVELS)} (default: info)")
    add("--log-file", metavar="FILE", help="append the log lines to FILE too, not only stderr")
    add("--version", action="version", version=f"trio-relay {__version__}")
    return parser


def read_config(args: argparse.Namespace) -> RelayConfig:
    """Settings from parsed arguments. Raises `ConfigError` for the first value that cannot be used."""
    origins: tuple[str, ...] = ()
    for option in ("--widget-origin", *ORIGIN_ALIASES):
        for text in getattr(args, option[2:].replace("-", "_")) or ():
            origins += parse_origins(option, text)
    values: dict[str, Any] = {
        name: parse_name("--" + name.replace("_", "-"), value)
        for name in ("label", "workspace", "relay_id")
        if (value := getattr(args, name)) is not None
    }
    host = parse_name("--host", args.host)
    if any(char.isspace() or char in "/,@" for char in host):
        raise ConfigError(f"--host takes an address or a host name, like {DEFAULT_HOST}, not {host!r}")
    if args.port is not None:
        values |= {"port": parse_port(args.port), "fixed_port": True}
    if args.invoke_timeout is not None:
        values["invoke_timeout"] = parse_invoke_timeout(args.invoke_timeout)
    if args.max_payload is not None:
        values["max_payload"] = parse_max_payload(args.max_payload)
    bridges = _read_ids("--bridge-extension", args.bridge_extension)
    values["bridge_extensions"] = tuple(dict.fromkeys((OWN_EXTENSION, *bridges)))
    return RelayConfig(host=host, allowed_origins=origins or DEFAULT_ORIGINS, **values)


def _read_ids(option: str, values: Sequence[str] | None) -> tuple[str, ...]:
    try:
        return tuple(map(require_extension_id, values or ()))
    except ConfigError as error:
        raise ConfigError(f"{option} takes the id of an extension: {error}") from None


def _read_extensions(args: argparse.Namespace) -> tuple[ExtensionSettings, Path] | None:
    """What is done with other extensions, and where its files are. Raises `ConfigError`."""
    home = _webmcp_folder()
    if home is None:
        if args.provider or args.serve_extensions:
            raise ConfigError("--provider and --serve-extensions need a home directory (HOME)")
        return None
    providers = _read_ids("--provider", args.provider)
    if os.path.exists(home / "trio-relay.toml"):
        from trio_relay.extensions.config_file import read_settings

        providers += read_settings(home / "trio-relay.toml").providers
    if args.serve_namespace is not None and not args.serve_extensions:
        raise ConfigError("--serve-namespace goes with --serve-extensions")
    if not providers and not args.serve_extensions:
        return None
    from trio_relay.extensions.provider import NAMESPACE
    from trio_relay.extensions.service import ExtensionSettings

    settings = ExtensionSettings(
        providers=tuple(dict.fromkeys(providers)),
        serve=args.serve_extensions,
        namespace=NAMESPACE if args.serve_namespace is None else args.serve_namespace,
    )
    settings.check()
    return settings, home / "provider"


def _warn_about(args: argparse.Namespace, config: RelayConfig) -> None:
    for alias in ORIGIN_ALIASES:
        if getattr(args, alias[2:].replace("-", "_")):
            logger.warning("%s is deprecated: use --widget-origin", alias)
    if config.port not in DISCOVERY_PORTS:
        first, last = DISCOVERY_PORTS[0], DISCOVERY_PORTS[-1]
        logger.warning(
            "port %d is outside %d to %d, where browser extensions look: tell yours the port", config.port, first, last
        )
    if not config.is_loopback:
        logger.warning(
            "bound to %s: every machine that reaches it can talk to your browser's tools; there is no password",
            config.host,
        )


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the program and leave it: 0 after a normal end, 1 when it could not start, 2 for bad arguments."""
    if argv is None:
        # Until the program listens for signals, an interrupt ends it without a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in COMMANDS:
        COMMANDS[words[0]](words[1:])
    parser = build_parser()
    args = parser.parse_args(words)
    if args.command is not None:
        # Not left to argparse: of "--prot 9333" it would complain about the number.
        known = args.command in COMMANDS
        parser.error(
            f"{args.command!r} comes first, before its options; it takes none of the relay's"
            if known
            else f"there is no command {args.command!r}, only {', '.join(map(repr, COMMANDS))}"
        )
    try:
        if args.log_level not in LOG_LEVELS:
            raise ConfigError(f"--log-level takes one of {', '.join(LOG_LEVELS)}, not {args.log_level!r}")
        config = read_config(args)
        extensions = _read_extensions(args)
        _require_stdout(parser, "start me from an MCP client")
        log = set_up_logging(args.log_level, args.log_file)
    except ConfigError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"--log-file takes a file that can be written, not {args.log_file!r} ({error.strerror})")
    _warn_about(args, config)
    from trio_relay.program import run_program

    try:
        code = run_program(config, _port_cache(), on_leaving=_limit_leaving, extensions=extensions)
    except RelayError as error:
        logger.error("%s", error)
        code = 1
    _leave(code, log)


def _demo(words: Sequence[str]) -> NoReturn:
    parser = _command_parser("demo", "[--browser[=PROGRAM]]", "Shows the way of a call from an MCP client to a page.")
    parser.add_argument(
        "--browser",
        nargs="?",
        const="",
        metavar="PROGRAM",
        help="in Chromium or Chrome, with a new profile and a sample page (default: the first one found)",
    )
    args, others = parser.parse_known_args(words)
    if others:
        relay = build_parser().parse_args(others)
        if relay.command is not None:
            parser.error(f"demo takes no {relay.command!r}")
        parser.error("demo takes no options: it starts a relay of its own")
    _require_stdout(parser, "start me in a terminal")
    log = set_up_logging("info", None)
    if args.browser is not None:
        from trio_relay.surface.browser_demo import run_browser_demo

        _leave(run_browser_demo(args.browser), log)
    from trio_relay.surface.demo import run_demo

    _leave(run_demo(), log)


def _extension(words: Sequence[str]) -> NoReturn:
    parser = _command_parser(
        "extension", "[--export DIR | --id]", "Tells where the browser extension is and how to load it."
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--export", metavar="DIR", help="copy it to DIR, which is created, and load it from there")
    only.add_argument("--id", action="store_true", help="print its id and nothing else")
    args = parser.parse_args(words)
    _require_stdout(parser, "start me in a terminal")
    from trio_relay.extension import run_extension

    try:
        run_extension(args.export, only_id=args.id)
        sys.stdout.flush()
    except OSError:  # nobody reads it
        os._exit(1)
    except ConfigError as error:
        parser.error(str(error))
    except RelayError as error:
        parser.exit(1, f"trio-relay: {error}\n")
    parser.exit(0)


def _providers(words: Sequence[str]) -> NoReturn:
    parser = _command_parser("providers", "[--json]", "Shows the provider extensions of the running relay.")
    parser.add_argument("--json", action="store_true", help="all there is to know, as JSON")
    args = parser.parse_args(words)
    _require_stdout(parser, "start me in a terminal")
    from trio_relay.extensions.commands import show_providers

    folder = _webmcp_folder()
    try:
        _answer(parser, lambda: show_providers(None if folder is None else folder / "provider", as_json=args.json))
    except RelayError as error:
        parser.exit(1, f"trio-relay: {error}\n")


def _provider(words: Sequence[str]) -> NoReturn:
    from trio_relay.extensions import commands

    parser = _command_parser(
        "provider",
        commands.USAGE.removeprefix(f"{commands.PROG} "),
        "Who may call the tools that --serve-extensions serves, and what they did.",
    )
    _require_stdout(parser, "start me in a terminal")
    folder = _webmcp_folder()
    if folder is None:
        parser.error("there is no home directory (HOME), where the policy is kept")
    try:
        _answer(parser, lambda: commands.run_in(folder / "provider", words, parser))
    except ConfigError as error:
        parser.error(str(error))


def _answer(parser: argparse.ArgumentParser, run: Callable[[], int]) -> NoReturn:
    """Leave with the exit code of a command that writes to stdout."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of strangers, on any terminal
    try:
        code = run()
        sys.stdout.flush()
    except OSError:  # nobody reads it
        os._exit(1)
    parser.exit(code)


COMMANDS: dict[str, Callable[[Sequence[str]], NoReturn]] = {
    "demo": _demo,
    "extension": _extension,
    "providers": _providers,
    "provider": _provider,
}
"""The first word of a command line, and what takes the others. Without one of them it is the relay's."""


def _command_parser(command: str, usage: str, description: str) -> argparse.ArgumentParser:
    return _Parser(
        prog=f"trio-relay {command}",
        usage=f"trio-relay {command} {usage}",
        description=description,
        allow_abbrev=False,
        formatter_class=partial(argparse.HelpFormatter, max_help_position=26, width=80),
    )


def _require_stdout(parser: argparse.ArgumentParser, cure: str) -> None:
    """Closed, a file that is opened later would become descriptor 1."""
    if sys.stdout is None:
        parser.exit(1, f"trio-relay: stdout is closed: {cure}\n")


def _port_cache() -> PortCache:
    """The file in the home directory, or none where there is no home."""
    from trio_relay.relay.ports import PortCache

    folder = _webmcp_folder()
    return PortCache(None if folder is None else folder / "relay-port.json")


def _webmcp_folder() -> Path | None:
    """Where this and other relay programs keep their files; None where there is no home."""
    try:
        return Path.home() / ".webmcp"
    except RuntimeError:
        return None


def _limit_leaving() -> None:
    """From now on the process has `LEAVE_S`, whatever hangs: a thread in a read, a library's exit hook."""
    timer = threading.Timer(LEAVE_S - 0.5, os._exit, (0,))
    timer.daemon = True
    timer.start()


def _leave(code: int, log: PatientHandler) -> NoReturn:
    """End at once. Threads may still be in a read that never returns; the interpreter would wait for them."""
    log.settle(0.5)
    if sys.stdout is not None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
    os._exit(code)
