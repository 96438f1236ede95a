"""The probe (`lumo:probe`, version 1): one question and one answer between two extensions.

Members that come from others are kept as `Raw` and judged one by one (`core/probe.py`), so that one odd member never
makes the rest unreadable. docs/protocol.md, "Ports of extensions", says how probes reach us.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from trio_relay.wire.codec import Malformed, Maybe, decode, encode

CHANNEL = "lumo:probe"
PORT_NAME = "lumo:mcp"
VERSION = 1
TIMEOUT_MS = 1_500
"""Numbers and names of the protocol: none of them may be changed."""

_Part = TypeVar("_Part")


class Client(Struct, frozen=True):
    """Who asks. For display only: what counts is the sender id that the browser supplies."""

    id: str
    name: str
    version: str


class Request(Struct, frozen=True):
    """A probe of ours."""

    id: str
    client: Client
    channel: str = CHANNEL
    version: int = VERSION


class Service(Struct, frozen=True):
    """Who answers. The name is for display only."""

    namespace: str
    name: str
    version: str


class Status(Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """What a provider says of itself.

    Attributes:
        reason: Why it is not ready; absent when it is.
    """

    enabled: bool
    authorized: bool
    ready: bool
    # No default: omit_defaults would leave out a member that the contract shows.
    pending_approval: bool
    reason: str | None = None


class Response(Struct, frozen=True):
    """An answer of ours. `ok` stays true when policy says no: then the status tells which switch it is."""

    ok: bool
    service: Service
    status: Status


class Failure(Struct, frozen=True):
    """An answer of ours to something that is no probe of this version."""

    error: str
    ok: bool = False


class SomeRequest(Struct, frozen=True):
    """A probe of somebody else, nothing of it judged."""

    channel: Maybe = UNSET
    version: Maybe = UNSET
    id: Maybe = UNSET
    client: Maybe = UNSET


class SomeClient(Struct, frozen=True):
    name: Maybe = UNSET
    version: Maybe = UNSET


class SomeResponse(Struct, frozen=True):
    """An answer of somebody else, nothing of it judged."""

    ok: Maybe = UNSET
    version: Maybe = UNSET
    id: Maybe = UNSET
    service: Maybe = UNSET
    status: Maybe = UNSET
    error: Maybe = UNSET
    message: Maybe = UNSET


class SomeService(Struct, frozen=True):
    namespace: Maybe = UNSET
    name: Maybe = UNSET
    version: Maybe = UNSET


class SomeStatus(Struct, frozen=True, rename="camel"):
    enabled: Maybe = UNSET
    authorized: Maybe = UNSET
    ready: Maybe = UNSET
    pending_approval: Maybe = UNSET
    reason: Maybe = UNSET
    message: Maybe = UNSET


class SomeError(Struct, frozen=True):
    message: Maybe = UNSET


_requests = msgspec.json.Decoder(SomeRequest)
_clients = msgspec.json.Decoder(SomeClient)
_responses = msgspec.json.Decoder(SomeResponse)
_services = msgspec.json.Decoder(SomeService)
_statuses = msgspec.json.Decoder(SomeStatus)
_errors = msgspec.json.Decoder(SomeError)


def request(probe_id: str, client: Client) -> bytes:
    """The message of a probe: what `chrome.runtime.sendMessage` gets."""
    return encode(Request(probe_id, client))


def decode_request(data: bytes) -> SomeRequest:
    """A message that somebody sent us. Raises `Malformed` when it is no JSON object."""
    return decode(_requests, data)


def decode_response(data: bytes) -> SomeResponse:
    """What a provider answered. Raises `Malformed` when it is no JSON object."""
    return decode(_responses, data)


def client_of(member: Maybe) -> SomeClient:
    """`client` of a request; an anonymous one when it is absent or no object."""
    return _part(_clients, member) or SomeClient()


def service_of(member: Maybe) -> SomeService | None:
    """`service` of a response; None when it is absent or no object."""
    return _part(_services, member)


def status_of(member: Maybe) -> SomeStatus | None:
    """`status` of a response; None when it is absent or no object."""
    return _part(_statuses, member)


def error_of(member: Maybe) -> SomeError | None:
    """`error` of a response where it is an object with a message of its own; else None."""
    return _part(_errors, member)


def as_flag(member: Maybe) -> bool | None:
    """True or false as written; None for anything else."""
    return None if isinstance(member, UnsetType) else {b"true": True, b"false": False}.get(bytes(member))


def _part(decoder: msgspec.json.Decoder[_Part], member: Maybe) -> _Part | None:
    if isinstance(member, UnsetType):
        return None
    try:
        return decode(decoder, bytes(member))
    except Malformed:
        return None
