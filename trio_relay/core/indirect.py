"""The arguments of `webmcp_tool_call`, read in one place: who judges such a call and who makes it must agree."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from trio_relay.core.backend import Target
from trio_relay.core.results import first_byte
from trio_relay.errors import InvalidArguments


class _Args(Struct):
    toolName: str
    args: Raw | UnsetType = UNSET
    sourceId: str | int | None = None
    requestTabId: str | int | None = None


class IndirectCall(Struct, frozen=True):
    """A tool to be called by name.

    Attributes:
        args: JSON text of an object.
    """

    tool: str
    args: Raw
    target: Target


_args = msgspec.json.Decoder(_Args)


def read_indirect_call(args: Raw) -> IndirectCall:
    """Which call the arguments of `webmcp_tool_call` mean. Raises `InvalidArguments`."""
    try:
        read = _args.decode(args)
    except msgspec.ValidationError as error:
        raise InvalidArguments(f"The arguments do not match the tool's inputSchema: {error}") from None
    target = Target(
        None if read.sourceId is None else str(read.sourceId),
        None if read.requestTabId is None else str(read.requestTabId),
    )
    inner = Raw(b"{}") if isinstance(read.args, UnsetType) else read.args
    if first_byte(inner) != b"{":  # above 1 MiB nothing was checked against the schema
        raise InvalidArguments("The arguments of webmcp_tool_call do not match its inputSchema at args")
    return IndirectCall(read.toolName, inner, target)
