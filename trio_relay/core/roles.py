"""What a relay process can be, and how it gets from one to the other. One table; `relay/cluster.py` drives it.

solo ─start─▶ joining ─bound─▶ server
                 │ └──joined─▶ client ─lost─▶ promoting ─bound─▶ server
                 └──failed─▶ stopped              ▲ └──joined─▶ client
                                                  └─failed─┘ (again, later; at last exhausted ─▶ stopped)
"""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    SOLO = "solo"  # not started
    JOINING = "joining"  # looks for a relay to join, or for a port
    CLIENT = "client"  # another relay owns the browser
    PROMOTING = "promoting"  # that relay is gone; somebody must take over
    SERVER = "server"  # this process owns the port
    STOPPED = "stopped"


class Event(Enum):
    START = "start"
    BOUND = "bound"
    JOINED = "joined"
    LOST = "lost"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    STOP = "stop"


TRANSITIONS: dict[tuple[Role, Event], Role] = {
    (Role.SOLO, Event.START): Role.JOINING,
    (Role.JOINING, Event.BOUND): Role.SERVER,
    (Role.JOINING, Event.JOINED): Role.CLIENT,
    (Role.JOINING, Event.FAILED): Role.STOPPED,
    (Role.CLIENT, Event.LOST): Role.PROMOTING,
    (Role.PROMOTING, Event.BOUND): Role.SERVER,
    (Role.PROMOTING, Event.JOINED): Role.CLIENT,
    (Role.PROMOTING, Event.FAILED): Role.PROMOTING,
    (Role.PROMOTING, Event.EXHAUSTED): Role.STOPPED,
    **{(role, Event.STOP): Role.STOPPED for role in Role},
}


class IllegalStep(RuntimeError):
    """A step the table does not have. Nothing has changed."""


class Roles:
    """The role of this process; every change goes through `step`."""

    def __init__(self) -> None:
        self.role = Role.SOLO

    def __repr__(self) -> str:
        return f"<Roles: {self.role.value}>"

    def step(self, event: Event) -> Role:
        """Take a step of the table. Raises `IllegalStep` for any other."""
        after = TRANSITIONS.get((self.role, event))
        if after is None:
            raise IllegalStep(f"a relay that is {self.role.value} cannot have {event.value}")
        self.role = after
        return after


FIRST_DELAY_S = 0.5
GROWTH = 1.5
LONGEST_DELAY_S = 3.0
MAX_ATTEMPTS = 100
"""Waiting between attempts to take over or rejoin (numbers of the relay protocol); the first comes at once."""


def retry_delay(failed: int) -> float | None:
    """Seconds to wait after `failed` failed attempts; None when there have been enough."""
    if failed >= MAX_ATTEMPTS:
        return None
    if failed == 0:
        return 0.0
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * GROWTH ** min(failed - 1, 20))
