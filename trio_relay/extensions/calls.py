"""One call of a provider's tool, from the moment it is made until its caller has an answer or has gone."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import trio
from msgspec import Raw

from trio_relay.core.pending import OnProgress
from trio_relay.core.results import CallResult, check_output, parse_result
from trio_relay.core.tooldef import ToolDef
from trio_relay.errors import NotSent, RelayError, SourceLost, TimedOut


class Slot:
    """What a request carries past the SDK, as bytes: see `transport.py`.

    Attributes:
        args: JSON text that takes the place of `params.arguments`.
        on_progress: Gets the progress of this request, in the order of the wire.
        begun: Whether sending has begun: from then on the provider may have acted.
        given_up: Whether nobody waits any more; a request that has not left by then stays here.
        result: JSON text of the answer's `result`.
        request_id: Of the request, once the SDK has given it one.
        queued: Called once, when the request is on its way to the port or will not be.
    """

    def __init__(self, args: Raw | None = None, on_progress: OnProgress | None = None) -> None:
        self.args = args
        self.on_progress = on_progress
        self.begun = False
        self.given_up = False
        self.result: bytes | None = None
        self.request_id: int | str | None = None
        self.queued: Callable[[], None] | None = None

    def tell_queued(self) -> None:
        tell, self.queued = self.queued, None
        if tell is not None:
            tell()


class ProviderCall:
    """A call that has been made, to be awaited once for its answer. Whoever stops waiting tells the provider to stop.

    Args:
        provider: Name of the provider, for messages.
        tool: What is called.
        limit: Seconds from now until it is given up; None for no limit. A reconnect takes its time out of it.
        ended: Called when it is over, however it ended.

    Attributes:
        renewed: Whether it has been taken back from a port that died before it left.
    """

    def __init__(
        self,
        provider: str,
        tool: ToolDef,
        args: Raw,
        limit: float | None,
        on_progress: OnProgress | None,
        ended: Callable[[ProviderCall], None],
    ) -> None:
        self.provider = provider
        self.tool = tool
        self.slot = Slot(args, on_progress)
        self.scope = trio.CancelScope()
        self.renewed = False
        self._limit = limit
        self._deadline = float("inf") if limit is None else trio.current_time() + limit
        self._ended = ended
        self._settled = trio.Event()
        self._outcome: CallResult | RelayError | None = None

    @property
    def is_settled(self) -> bool:
        return self._settled.is_set()

    def settle(self, outcome: CallResult | RelayError) -> None:
        """Hand the outcome to the caller; the first one counts."""
        if not self._settled.is_set():
            self._outcome = outcome
            self._settled.set()

    def renew(self) -> None:
        """It has not left and never will by the port it was given to: make it ready for another one."""
        self.slot.given_up = self.renewed = True
        self.slot = Slot(self.slot.args, self.slot.on_progress)
        self.scope = trio.CancelScope()

    def answered(self, result: bytes) -> None:
        """The provider has answered with this JSON text."""
        self.settle(check_output(parse_result(Raw(result)), self.tool.output_schema))

    def lost(self, reason: str) -> None:
        """The port is closed, or none could be opened. An answer that came just before counts."""
        if self.is_settled:
            return
        if self.slot.result is not None:
            self.answered(self.slot.result)
        elif self.slot.begun:
            self.settle(
                SourceLost(
                    f"The connection to the provider {self.provider} ended while the call was waiting ({reason}); the "
                    "tool may have run."
                )
            )
        else:
            self.settle(
                NotSent(f"The call was not sent, so the tool did not run: {reason} (provider {self.provider}).")
            )

    def __await__(self) -> Generator[Any, None, CallResult]:
        return self._wait().__await__()

    async def _wait(self) -> CallResult:
        try:
            with trio.CancelScope(deadline=self._deadline):
                await self._settled.wait()
        finally:
            self.slot.given_up = True
            self.slot.on_progress = None
            self.scope.cancel()
            self._ended(self)
        if self._outcome is None:
            raise self._timed_out()
        if isinstance(self._outcome, RelayError):
            raise self._outcome
        return self._outcome

    def _timed_out(self) -> RelayError:
        if self.slot.begun:
            return TimedOut(
                f"The provider {self.provider} did not answer within {self._limit:g} s and was told to stop; the tool "
                "may have run. Raise --invoke-timeout if it needs longer."
            )
        return NotSent(
            f"The provider {self.provider} took no call for {self._limit:g} s, so the call was not sent; try again."
        )
