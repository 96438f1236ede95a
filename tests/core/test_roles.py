"""The roles of a relay: the table, its illegal steps, and the waiting between attempts."""

from __future__ import annotations

import itertools

import pytest

from trio_relay.core.roles import TRANSITIONS, Event, IllegalStep, Role, Roles, retry_delay

LEGAL = [
    ("solo", "start", "joining"),
    ("joining", "bound", "server"),
    ("joining", "joined", "client"),
    ("joining", "failed", "stopped"),
    ("client", "lost", "promoting"),
    ("promoting", "bound", "server"),
    ("promoting", "joined", "client"),
    ("promoting", "failed", "promoting"),
    ("promoting", "exhausted", "stopped"),
    *((role.value, "stop", "stopped") for role in Role),
]


def test_the_table_has_these_steps_and_no_others() -> None:
    assert {(a.value, e.value, b.value) for (a, e), b in TRANSITIONS.items()} == set(LEGAL)


@pytest.mark.parametrize(("role", "event"), list(itertools.product(Role, Event)))
def test_an_illegal_step_raises_and_changes_nothing(role: Role, event: Event) -> None:
    roles = Roles()
    roles.role = role
    if (role, event) in TRANSITIONS:
        assert roles.step(event) is roles.role is TRANSITIONS[role, event]
    else:
        with pytest.raises(IllegalStep, match=f"{role.value}.*{event.value}"):
            roles.step(event)
        assert roles.role is role


def test_attempts_come_at_once_then_after_half_a_second_growing_to_three() -> None:
    delays = [retry_delay(failed) for failed in range(8)]
    assert delays == [0.0, 0.5, 0.75, 1.125, 1.6875, 2.53125, 3.0, 3.0]


def test_a_hundred_attempts_are_enough() -> None:
    assert retry_delay(99) == 3.0
    assert retry_delay(100) is None
