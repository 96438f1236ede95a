"""Who may do what: every combination of switches, senders and tools, and what counts as a write."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from trio_relay.core.policy import (
    REASONS,
    RULES,
    PendingCaller,
    Policy,
    Refusal,
    Rule,
    Standing,
    Verdict,
    allow,
    decide,
    deny,
    is_write,
    standing_of,
    status_for,
)
from trio_relay.errors import ConfigError

FRIEND, STRANGER, FOE = "a" * 32, "b" * 32, "c" * 32
OPEN = Policy(enabled=True, writes=True, allowed=(FRIEND,), denied=(FOE,))


def expected(enabled: bool, writes: bool, review: bool, sender: str, write: bool) -> Verdict:
    """The rules once more, as a person would say them."""
    if not enabled:
        return Refusal.ENDPOINT_OFF
    if sender == FOE:
        return Refusal.NOT_ALLOWED
    if sender == STRANGER:
        return Refusal.NOT_APPROVED_YET
    if not write:
        return "run"
    if not writes:
        return Refusal.WRITES_OFF
    return "review" if review else "run"


@pytest.mark.parametrize("sender", [FRIEND, STRANGER, FOE])
def test_each_combination_has_its_verdict(sender: str) -> None:
    for enabled, writes, review, write in itertools.product([False, True], repeat=4):
        policy = Policy(enabled, writes, review, (FRIEND,), (FOE,))
        assert decide(policy, sender, write=write) == expected(enabled, writes, review, sender, write)


def test_by_default_nobody_may_do_anything() -> None:
    assert Policy() == Policy(enabled=False, writes=False, review=False, allowed=(), denied=())
    for sender, write in itertools.product([FRIEND, "", None], [False, True]):
        assert decide(Policy(), sender, write=write) is Refusal.ENDPOINT_OFF


def test_the_last_rule_fits_all_and_only_it_does() -> None:
    assert RULES[-1] == Rule("run")
    assert Rule("run") not in RULES[:-1]


def test_every_refusal_has_words() -> None:
    assert set(REASONS) == set(Refusal)


@pytest.mark.parametrize("sender", [FRIEND + "\n", FRIEND.upper(), "Lumo", "", None, 5, f"chrome-extension://{FRIEND}"])
def test_what_is_no_extension_id_is_denied(sender: object) -> None:
    assert standing_of(OPEN, sender) is Standing.DENIED
    assert decide(OPEN, sender, write=False) is Refusal.NOT_ALLOWED


def test_an_id_on_both_lists_is_denied() -> None:
    assert standing_of(Policy(allowed=(FRIEND,), denied=(FRIEND,)), FRIEND) is Standing.DENIED


def test_allowing_and_denying_take_an_id_off_the_other_list() -> None:
    policy = allow(allow(Policy(), FRIEND), FRIEND)
    assert (policy.allowed, policy.denied) == ((FRIEND,), ())
    policy = deny(policy, FRIEND)
    assert (policy.allowed, policy.denied) == ((), (FRIEND,))
    assert allow(policy, FRIEND).denied == ()


@pytest.mark.parametrize("bad", ["", "Lumo", FRIEND + "\n"])
def test_only_extension_ids_come_onto_a_list(bad: str) -> None:
    for step in (allow, deny):
        with pytest.raises(ConfigError):
            step(Policy(), bad)
    with pytest.raises(ValueError, match="is no extension id"):
        Policy(allowed=(bad,))
    with pytest.raises(msgspec.ValidationError, match="is no extension id"):
        msgspec.json.decode(msgspec.json.encode({"denied": [bad]}), type=Policy)
    with pytest.raises(ValueError, match="is no extension id"):
        PendingCaller(bad, "", "", "")


def test_a_misspelt_switch_is_refused_and_not_left_out() -> None:
    with pytest.raises(msgspec.ValidationError, match="reveiw"):
        msgspec.json.decode(b'{"enabled":true,"writes":true,"reveiw":true}', type=Policy)


@pytest.mark.parametrize(
    ("policy", "sender", "flags"),
    [
        (Policy(), STRANGER, (False, False, True, False)),
        (OPEN, FRIEND, (True, True, True, False)),
        (OPEN, STRANGER, (True, False, True, True)),
        (OPEN, FOE, (True, False, True, False)),
        (msgspec.structs.replace(OPEN, enabled=False), FRIEND, (False, True, True, False)),
    ],
)
def test_a_probe_is_told_where_its_sender_stands(
    policy: Policy, sender: str, flags: tuple[bool, bool, bool, bool]
) -> None:
    status = status_for(policy, sender)
    assert (status.enabled, status.authorized, status.ready, status.pending_approval) == flags
    assert status.reason is None


def test_a_reason_makes_a_provider_not_ready() -> None:
    status = status_for(OPEN, FRIEND, not_ready="No tab is connected.")
    assert (status.ready, status.reason, status.authorized) == (False, "No tab is connected.", True)


@pytest.mark.parametrize(
    ("tool", "write"),
    [
        (b'{"annotations":{"readOnlyHint":true}}', False),
        (b'{"annotations":{"readOnlyHint":true,"destructiveHint":true,"x":[]}}', False),
        (b'{"annotations":{"readOnlyHint":false}}', True),
        (b'{"annotations":{"readOnlyHint":"true"}}', True),
        (b'{"annotations":{"readOnlyHint":1}}', True),
        (b'{"annotations":{"readOnlyHint":null}}', True),
        (b'{"annotations":{"readonlyhint":true}}', True),
        (b'{"annotations":{}}', True),
        (b'{"annotations":null}', True),
        (b'{"annotations":[true]}', True),
        (b'{"readOnlyHint":true}', True),
        (b"{}", True),
        (b"null", True),
        (b"", True),
        (b"\xff", True),
    ],
)
def test_a_tool_is_a_write_unless_it_says_that_it_only_reads(tool: bytes, write: bool) -> None:
    assert is_write(tool) is write
