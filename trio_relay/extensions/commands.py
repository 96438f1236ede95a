"""`trio-relay provider …`: how a person allows, looks and decides. Changes are in files, and hold for a running relay
at once; reviews are the running relay's own and are reached through a link.

Texts that callers wrote (their names, the names of tools) are shown on one line, without control characters.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TextIO

import msgspec

from trio_relay.core.extension_id import require_extension_id
from trio_relay.core.policy import PendingCaller, Policy, Standing, standing_of
from trio_relay.core.text import tidy
from trio_relay.errors import ConfigError, RelayError
from trio_relay.extensions.admin import find_relay
from trio_relay.extensions.audit import AuditLog, read_audit
from trio_relay.extensions.gate import WaitingReview
from trio_relay.extensions.store import ProviderStore
from trio_relay.extensions.table import format_providers
from trio_relay.wire.codec import encode

DEFAULT_TAIL = 50
MAX_SHOWN = 100
MAX_SHOWN_ARGUMENTS = 300

PROG = "trio-relay provider"
USAGE = f"""{PROG} status | enable | disable
       {PROG} pending | approve ID | allow ID | deny ID
       {PROG} writes on|off | review on|off
       {PROG} reviews | review approve|deny ID
       {PROG} audit [--tail N] [--caller ID]"""


class RelayLink(Protocol):
    """A way to the relay that serves host extensions."""

    def reviews(self) -> Sequence[WaitingReview]: ...

    def decide_review(self, review_id: str, approve: bool) -> str:
        """Returns what came of it, in words."""


def build_parser(parser: argparse.ArgumentParser | None = None) -> argparse.ArgumentParser:
    """The words after `trio-relay provider`.

    Args:
        parser: To add them to; its `error` says how mistakes are told. None for one of argparse's own.
    """
    if parser is None:
        parser = argparse.ArgumentParser(prog=PROG, usage=USAGE, allow_abbrev=False)
    kind = type(parser)
    words = parser.add_subparsers(dest="word", required=True, metavar="COMMAND", parser_class=kind, prog=PROG)
    add = partial(words.add_parser, allow_abbrev=False)
    add("status", help="the switches, and who may call")
    add("enable", help="let extensions call that are allowed")
    add("disable", help="turn the endpoint off: every call is refused at once")
    for word, text in (
        ("allow", "let an extension call"),
        ("deny", "turn an extension down, now and later"),
        ("approve", "let an extension call that has asked"),
    ):
        add(word, help=text).add_argument("id", metavar="ID", help="extension id: 32 letters from a to p")
    add("pending", help="extensions that have asked and wait for approval")
    writes = add("writes", help="on|off: whether tools may be called that change something")
    writes.add_argument("to", choices=("on", "off"), metavar="on|off")
    review = add("review", help="on|off: whether each write waits for you; approve|deny ID: decide about one")
    review.add_argument("to", choices=("on", "off", "approve", "deny"), metavar="on|off|approve|deny")
    review.add_argument("review_id", nargs="?", metavar="ID")
    add("reviews", help="writes that wait for a decision")
    audit = add("audit", help="what was asked to be changed, by whom, and what came of it")
    audit.add_argument(
        "--tail", type=_count, default=DEFAULT_TAIL, metavar="N", help=f"lines (default: {DEFAULT_TAIL})"
    )
    audit.add_argument("--caller", metavar="ID", help="only lines of this extension")
    return parser


def run(
    argv: Sequence[str],
    store: ProviderStore,
    audit: AuditLog,
    link: RelayLink | None,
    *,
    out: TextIO | None = None,
    parser: argparse.ArgumentParser | None = None,
) -> int:
    """Run one command.

    Args:
        argv: The words after `provider`.
        link: To the running relay; None if none runs.
        out: Where answers go; None for stdout.

    Returns:
        The exit code: 0; or 1 when it could not be done, and then the answer says why. Words that make no command
        leave as argparse does.

    Raises:
        ConfigError: something is no extension id.
    """
    parser = build_parser(parser)
    args = parser.parse_args(argv)
    if args.word == "review" and (args.review_id is None) != (args.to in ("on", "off")):
        parser.error("review takes on or off, or approve ID, or deny ID")
    say = _Sayer(out or sys.stdout)
    try:
        return _Commands(store, audit, link, say).run(args)
    except ConfigError:
        raise
    except RelayError as error:
        say(str(error))
    except OSError as error:
        say(f"{error.filename or 'a file'} cannot be read: {error.strerror or error}")
    return 1


def run_in(directory: Path, argv: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """`run` with the files in a directory and the relay that is found there. Raises `ConfigError` for a bad id."""
    word, other = [*argv, "", ""][:2]
    asks_relay = word in ("status", "reviews") or (word == "review" and other not in ("on", "off"))
    link = find_relay(directory) if asks_relay else None
    return run(argv, ProviderStore(directory), AuditLog(directory), link, parser=parser)


def show_providers(directory: Path | None, *, as_json: bool, out: TextIO | None = None) -> int:
    """`trio-relay providers`. Returns the exit code: 1 if no relay runs that has any."""
    link = None if directory is None else find_relay(directory)
    say = _Sayer(out or sys.stdout)
    if link is None:
        say("[]" if as_json else "No relay is running that was started with --provider.")
        return 1
    rows = link.providers()
    say(encode(rows).decode() if as_json else format_providers(rows))
    return 0


class _Sayer:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, line: str) -> None:
        self._out.write(line + "\n")


class _Commands:
    def __init__(
        self, store: ProviderStore, audit: AuditLog, link: RelayLink | None, say: Callable[[str], None]
    ) -> None:
        self._store = store
        self._audit = audit
        self._link = link
        self._say = say

    def run(self, args: argparse.Namespace) -> int:
        match args.word:
            case "status":
                return self._status()
            case "enable" | "disable":
                return self._switch("enabled", args.word == "enable")
            case "writes":
                return self._switch("writes", args.to == "on")
            case "review":
                if args.to in ("on", "off"):
                    return self._switch("review", args.to == "on")
                return self._decide(args.review_id, args.to == "approve")
            case "allow" | "deny" | "approve":
                return self._let(args.word, require_extension_id(args.id))
            case "pending":
                return self._pending()
            case "reviews":
                return self._reviews()
            case _:
                caller = None if args.caller is None else require_extension_id(args.caller)
                return self._show_audit(args.tail, caller)

    def _status(self) -> int:
        problem = self._store.problem()
        if problem is not None:
            self._say(problem)
            self._say("Until then everything is off and nobody is allowed.")
        policy = self._store.policy()
        self._say(f"endpoint:  {_on(policy.enabled)}")
        self._say(f"writes:    {_on(policy.writes)}")
        self._say(f"review:    {_on(policy.review)}")
        self._say(f"allowed:   {', '.join(policy.allowed) or 'nobody'}")
        self._say(f"denied:    {', '.join(policy.denied) or 'nobody'}")
        self._say(f"pending:   {len(self._store.pending())}")
        self._say(f"reviews:   {self._waiting()}")
        return 0 if problem is None else 1

    def _waiting(self) -> str:
        if self._link is None:
            return "no relay is running that serves extensions"
        try:
            return str(len(self._link.reviews()))
        except RelayError as error:
            return str(error)

    def _switch(self, name: str, on: bool) -> int:
        policy = self._store.change(lambda policy: msgspec.structs.replace(policy, **{name: on}))
        self._say(_TEXTS[name, on])
        for hint in _hints(policy) if on else ():
            self._say(hint)
        return 0

    def _let(self, word: str, extension_id: str) -> int:
        if word == "approve" and all(caller.extension_id != extension_id for caller in self._store.pending()):
            if standing_of(self._store.policy(), extension_id) is Standing.ALLOWED:
                self._say(f"{extension_id} is allowed already.")
                return 0
            self._say(f"{extension_id} has not asked. To let it call all the same: trio-relay provider allow ID")
            return 1
        if word == "deny":
            self._store.deny(extension_id)
            self._say(f"{extension_id} is turned down. Its calls are refused from now on.")
            return 0
        policy = self._store.allow(extension_id)
        self._say(f"{extension_id} may call.")
        if not policy.enabled:
            self._say("But the endpoint is off: trio-relay provider enable")
        return 0

    def _pending(self) -> int:
        callers = self._store.pending()
        for caller in callers:
            self._say(_pending_line(caller))
        self._say("To decide: trio-relay provider approve ID, or deny ID" if callers else "Nobody waits for approval.")
        return 0

    def _reviews(self) -> int:
        if self._link is None:
            self._say("No relay is running that serves extensions, so nothing waits for a decision.")
            return 0
        rows = self._link.reviews()
        for row in rows:
            self._say(
                f"{tidy(row.review_id, MAX_SHOWN)}  {tidy(row.since, MAX_SHOWN)}  {tidy(row.sender_id, MAX_SHOWN)}  "
                f"{tidy(row.tool, MAX_SHOWN)}  {tidy(row.arguments, MAX_SHOWN_ARGUMENTS)}"
                + (f"  in {tidy(row.where, MAX_SHOWN_ARGUMENTS)}" if row.where else "")
            )
        self._say(
            "To decide: trio-relay provider review approve ID, or deny ID" if rows else "Nothing waits for a decision."
        )
        return 0

    def _decide(self, review_id: str, approve: bool) -> int:
        if self._link is None:
            self._say("No relay is running that serves extensions, so nothing waits for a decision.")
            return 1
        self._say(tidy(self._link.decide_review(review_id, approve), 500))
        return 0

    def _show_audit(self, tail: int, caller: str | None) -> int:
        lines = read_audit(self._audit.path.parent, tail=tail, caller=caller)
        for line in lines:
            self._say(json.dumps(msgspec.structs.asdict(line)))
        if not lines:
            self._say("The audit log has no lines" + (" of this caller." if caller is not None else "."))
        return 0


_TEXTS = {
    ("enabled", True): "The endpoint is on: extensions that are allowed may call.",
    ("enabled", False): "The endpoint is off: every call is refused from now on.",
    ("writes", True): "Tools that change something may be called.",
    ("writes", False): "Tools that change something are refused from now on.",
    ("review", True): "Each call that changes something waits for you: trio-relay provider reviews",
    ("review", False): "Calls that change something no longer wait for you. Those that wait already still do.",
}


def _hints(policy: Policy) -> list[str]:
    """What still stands in the way of a call."""
    if not policy.enabled:
        return ["But the endpoint is off: trio-relay provider enable"]
    if not policy.allowed:
        return ["Nobody is allowed yet: trio-relay provider pending, then approve ID"]
    if policy.review and not policy.writes:
        return ["Tools that change something are off altogether: trio-relay provider writes on"]
    return []


def _pending_line(caller: PendingCaller) -> str:
    name = json.dumps(tidy(caller.name, MAX_SHOWN), ensure_ascii=False)
    version = tidy(caller.version, MAX_SHOWN)
    return f"{caller.extension_id}  {tidy(caller.since, MAX_SHOWN)}  calls itself {name} {version}".rstrip()


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or not 1 <= len(text) <= 7 or int(text) == 0:
        raise argparse.ArgumentTypeError("takes a number of lines, 1 or more")
    return int(text)
