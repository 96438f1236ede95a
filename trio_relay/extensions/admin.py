"""How `trio-relay providers` and `trio-relay provider …` reach the running relay: through its own port, with a token
from a file that only the same person can read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from trio_relay.config import DEFAULT_MAX_PAYLOAD
from trio_relay.core.backend import ProviderView
from trio_relay.errors import NotSent
from trio_relay.extensions.gate import WaitingReview
from trio_relay.extensions.service import Entry, read_entry
from trio_relay.links.peer import NotJoined, join
from trio_relay.links.socket import Closed
from trio_relay.wire import peer
from trio_relay.wire.codec import Malformed, encode, raw_bytes

JOIN_S = 2.0
ANSWER_S = 5.0
"""Seconds the relay has to prove that it is one, and to answer."""

T = TypeVar("T")


class AdminLink:
    """A way to the relay that owns the browser; each question opens a connection of its own. Runs trio itself.

    Implements `commands.RelayLink`.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry

    def providers(self) -> list[ProviderView]:
        return self._ask("providers", None, list[ProviderView])

    def reviews(self) -> Sequence[WaitingReview]:
        return self._ask("reviews", None, list[WaitingReview])

    def decide_review(self, review_id: str, approve: bool) -> str:
        return self._ask("decide", {"reviewId": review_id, "approve": approve}, str)

    def _ask(self, ask: str, args: object, kind: type[T]) -> T:
        answer = trio.run(_ask, self._entry, ask, encode(args))
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            raise NotSent(f"The relay's answer cannot be read ({error}): is it of another version?") from None


def find_relay(directory: Path) -> AdminLink | None:
    """The running relay that does something with extensions; None if there is none.

    Args:
        directory: `~/.webmcp/provider`.
    """
    entry = read_entry(directory)
    if entry is None:
        return None
    link = AdminLink(entry)
    with suppress(NotSent):
        link.providers()
        return link
    return None


async def _ask(entry: Entry, ask: str, args: bytes) -> bytes:
    """Raises `NotSent`: there is no such relay any more, or it refuses."""
    gone = "The relay is gone: start your AI client, which starts trio-relay."
    try:
        async with join(entry.host, entry.port, max_payload=DEFAULT_MAX_PAYLOAD, patience=JOIN_S) as link:
            await link.socket.send(peer.admin_request("1", entry.token, ask, args))
            with trio.move_on_after(ANSWER_S):
                while True:
                    with suppress(Malformed):
                        frame = peer.decode_server_frame(await link.socket.receive())
                        if isinstance(frame, peer.AdminResult):
                            if frame.error is not None:
                                raise NotSent(frame.error)
                            return raw_bytes(frame.result) or b"null"
    except (NotJoined, Closed, OSError):
        raise NotSent(gone) from None
    raise NotSent(f"The relay did not answer within {ANSWER_S:g} s.")
