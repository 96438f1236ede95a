"""`trio-relay provider …`: what each command changes, what it says, and what it refuses."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from trio_relay.core.policy import Policy, Refusal
from trio_relay.errors import ConfigError
from trio_relay.extensions.audit import AuditLog
from trio_relay.extensions.commands import RelayLink, build_parser, run
from trio_relay.extensions.gate import WaitingReview
from trio_relay.extensions.store import ProviderStore

FRIEND, STRANGER = "a" * 32, "b" * 32


class Link:
    """A relay with one write that waits."""

    def __init__(self) -> None:
        self.rows = [
            WaitingReview(
                "0a1b", FRIEND, "save", "2026-01-02T03:04:05+00:00", '{"name":"Ada\x1b"}', "Shop (https://shop.example)"
            )
        ]
        self.decided: list[tuple[str, bool]] = []

    def reviews(self) -> list[WaitingReview]:
        return self.rows

    def decide_review(self, review_id: str, approve: bool) -> str:
        self.decided.append((review_id, approve))
        return f"{review_id} is decided."


class Shell:
    """Runs commands on the files of one home."""

    def __init__(self, directory: Path) -> None:
        self.store = ProviderStore(directory)
        self.audit = AuditLog(directory)
        self.link: RelayLink | None = None

    def __call__(self, *words: str, code: int = 0) -> str:
        out = io.StringIO()
        assert run(words, self.store, self.audit, self.link, out=out) == code
        return out.getvalue()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "provider")


def test_at_first_everything_is_off(shell: Shell) -> None:
    lines = dict(line.split(":", 1) for line in shell("status").splitlines())
    assert {name: value.strip() for name, value in lines.items()} == {
        "endpoint": "off",
        "writes": "off",
        "review": "off",
        "allowed": "nobody",
        "denied": "nobody",
        "pending": "0",
        "reviews": "no relay is running that serves extensions",
    }
    assert not shell.store.directory.exists(), "looking changes nothing"


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        (("enable",), Policy(enabled=True)),
        (("writes", "on"), Policy(writes=True)),
        (("review", "on"), Policy(review=True)),
        (("allow", FRIEND), Policy(allowed=(FRIEND,))),
        (("deny", FRIEND), Policy(denied=(FRIEND,))),
    ],
)
def test_each_switch_is_one_command(shell: Shell, words: tuple[str, ...], policy: Policy) -> None:
    assert shell(*words)
    assert shell.store.policy() == policy


@pytest.mark.parametrize("name", ["enabled", "writes", "review"])
def test_each_switch_goes_off_again(shell: Shell, name: str) -> None:
    on, off = (("enable",), ("disable",)) if name == "enabled" else ((name, "on"), (name, "off"))
    shell(*on)
    shell(*off)
    assert shell.store.policy() == Policy()


def test_who_has_asked_is_shown_and_approved(shell: Shell) -> None:
    assert shell("pending") == "Nobody waits for approval.\n"
    shell("enable")
    shell.store.ask(STRANGER, 'Lumo" \x1b[31m\nevil', "1.0")
    text = shell("pending")
    assert text.splitlines()[0].startswith(STRANGER)
    assert "\x1b" not in text
    assert len(text.splitlines()) == 2
    assert shell("approve", STRANGER) == f"{STRANGER} may call.\n"
    assert shell.store.policy().allowed == (STRANGER,)
    assert "already" in shell("approve", STRANGER)


def test_approving_somebody_who_has_not_asked_changes_nothing(shell: Shell) -> None:
    assert "has not asked" in shell("approve", FRIEND, code=1)
    assert shell.store.policy() == Policy()


@pytest.mark.parametrize("word", ["allow", "deny", "approve"])
@pytest.mark.parametrize("bad", ["", "x" * 32, "a" * 31, "a" * 33, "A" * 32, "*", "Lumo", f"{FRIEND}\n"])
def test_what_is_no_extension_id_is_refused(shell: Shell, word: str, bad: str) -> None:
    with pytest.raises(ConfigError, match="is no extension id"):
        shell(word, bad)
    assert shell.store.policy() == Policy()


def test_the_caller_of_the_audit_log_is_an_extension_id_too(shell: Shell) -> None:
    with pytest.raises(ConfigError, match="is no extension id"):
        shell("audit", "--caller", "Lumo")


def test_what_still_stands_in_the_way_is_said(shell: Shell) -> None:
    assert "Nobody is allowed yet" in shell("enable")
    shell("allow", FRIEND)
    assert "off altogether" in shell("review", "on")
    shell("disable")
    assert "the endpoint is off" in shell("allow", FRIEND)


def test_each_word_has_a_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, usage in (
        (["pending", "--help"], "usage: trio-relay provider pending [-h]\n"),
        (["writes", "--help"], "usage: trio-relay provider writes [-h] on|off\n"),
    ):
        with pytest.raises(SystemExit):
            build_parser().parse_args(argv)
        assert capsys.readouterr().out.startswith(usage)


def test_what_stands_in_the_way_is_said_when_something_is_turned_on(shell: Shell) -> None:
    assert "the endpoint is off" in shell("writes", "on")
    assert shell("writes", "off").count("\n") == 1


def test_reviews_are_those_of_the_running_relay(shell: Shell) -> None:
    assert "No relay is running" in shell("reviews")
    assert "No relay is running" in shell("review", "approve", "0a1b", code=1)
    shell.link = link = Link()
    text = shell("reviews")
    assert "in Shop (https://shop.example)" in text
    assert text.splitlines()[0].split("  ")[:4] == ["0a1b", "2026-01-02T03:04:05+00:00", FRIEND, "save"]
    assert "\x1b" not in text
    assert "reviews:   1" in shell("status")
    assert shell("review", "approve", "0a1b") == "0a1b is decided.\n"
    shell("review", "deny", "0a1b")
    assert link.decided == [("0a1b", True), ("0a1b", False)]
    link.rows = []
    assert shell("reviews") == "Nothing waits for a decision.\n"


def test_the_audit_log_is_shown_newest_last(shell: Shell) -> None:
    assert shell("audit") == "The audit log has no lines.\n"
    for tool, sender in (("one", FRIEND), ("two", STRANGER), ("three\x1b\u202e", FRIEND)):
        shell.audit.refused(tool, sender, "", b"{}", Refusal.WRITES_OFF)
    rows = [json.loads(line) for line in shell("audit").splitlines()]
    assert [row["tool"] for row in rows] == ["one", "two", "three\x1b\u202e"]
    assert shell("audit").isascii()
    assert [json.loads(line)["tool"] for line in shell("audit", "--tail", "1", "--caller", STRANGER).splitlines()] == [
        "two"
    ]
    assert shell("audit", "--caller", "c" * 32) == "The audit log has no lines of this caller.\n"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("allow",),
        ("writes",),
        ("writes", "maybe"),
        ("review",),
        ("review", "on", "0a1b"),
        ("review", "approve"),
        ("audit", "--tail", "0"),
        ("audit", "--tail", "-1"),
        ("audit", "--tai", "5"),
        ("enable", "now"),
    ],
)
def test_words_that_make_no_command_leave_with_code_2(
    shell: Shell, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        shell(*words)
    assert caught.value.code == 2
    assert capsys.readouterr().err


def test_a_damaged_policy_is_told_and_never_overwritten(shell: Shell) -> None:
    shell("enable")
    path = shell.store.directory / "policy.json"
    path.write_text('{"enabled": true, "reviw": true}')
    text = shell("status", code=1)
    assert "is damaged" in text
    assert "endpoint:  off" in text
    assert "is damaged" in shell("writes", "on", code=1)
    assert "reviw" in path.read_text()


@pytest.mark.parametrize("module", ["commands", "provider", "gate"])
def test_the_sdk_is_not_imported_for_commands_and_probes(module: str) -> None:
    names = "{'mcp', 'mcp_types', 'pydantic'}"
    code = f"import sys, trio_relay.extensions.{module}; print(sorted({names} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"
