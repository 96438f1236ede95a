"""What a relay may believe of the frames of its bridge, and the ids it picks itself."""

from __future__ import annotations

import re
from itertools import count

from msgspec import UnsetType

from trio_relay.core.extension_id import is_extension_id
from trio_relay.core.port import Unanswered
from trio_relay.core.probe import Finding, Silence, judge, unanswered
from trio_relay.wire import ports
from trio_relay.wire.codec import Malformed, raw_bytes

_OURS = re.compile(ports.RELAY_PREFIX + r"[0-9]{1,18}")
_THEIRS = re.compile(ports.BRIDGE_PREFIX + r"[0-9]{1,18}")


class TunnelIds:
    """Ids for probes and ports that a relay begins on one socket: r1, r2, …; none is used twice."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def next(self) -> str:
        return f"{ports.RELAY_PREFIX}{next(self._numbers)}"


def read_frame(data: bytes) -> ports.BridgeFrame:
    """A message of the bridge, with ids that can be what they should be.

    Raises:
        Malformed: as the codecs do; also for a sender that is no extension id, and for an id of the wrong side.
    """
    frame = ports.decode_bridge_frame(data)
    match frame:
        case ports.Asked(probeId=own, senderId=sender) | ports.Incoming(portId=own, senderId=sender):
            if not is_extension_id(sender):
                raise Malformed("senderId is no extension id", is_json=True)
            if _THEIRS.fullmatch(own) is None:
                raise Malformed("an id of the bridge is b and digits", is_json=True)
        case ports.ProbeResponse(probeId=own) | ports.Opened(portId=own) | ports.Refused(portId=own):
            if _OURS.fullmatch(own) is None:
                raise Malformed("this answers nothing that a relay has asked", is_json=True)
        case ports.Message(portId=own) | ports.Close(portId=own):
            if (_OURS.fullmatch(own) or _THEIRS.fullmatch(own)) is None:
                raise Malformed("a port id is r or b and digits", is_json=True)
        case _:
            pass
    return frame


def response_of(frame: ports.ProbeResponse) -> bytes:
    """What the extension answered, a JSON text. Raises `Unanswered` when it did not."""
    response = raw_bytes(frame.response)
    if response is not None:
        return response
    if isinstance(frame.error, UnsetType):
        raise Unanswered(Silence.FAILED, "the bridge told neither a response nor an error")
    try:
        error = ports.decode_probe_error(frame.error)
        kind = Silence(error.kind)
    except ValueError:  # `Malformed` is one, and so is a kind that is not known
        raise Unanswered(Silence.FAILED, "the bridge told an error that is not known") from None
    raise Unanswered(kind, error.message)


def finding_of(frame: ports.ProbeResponse, probe_id: str) -> Finding:
    """What an answered probe means. Never raises.

    Args:
        probe_id: Id inside the probe's own message (the frame's id belongs to the tunnel).
    """
    try:
        return judge(response_of(frame), probe_id)
    except Unanswered as silence:
        return unanswered(silence.kind, silence.message)
