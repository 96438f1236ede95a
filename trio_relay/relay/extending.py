"""What a relay that owns the browser does with other extensions there, if it does anything: the contract.

`extensions/service.py` implements it; an embedder may bring another one.
"""

from __future__ import annotations

from typing import Protocol

from trio_relay.core.backend import ToolBackend, ToolProviders
from trio_relay.links.tunnel import Tunnel


class Extending(Protocol):
    """Provider extensions whose tools stand beside those of tabs, and host extensions that are served."""

    @property
    def providers(self) -> ToolProviders: ...

    def owns(self, tabs: ToolBackend, host: str, port: int) -> None:
        """This process owns the browser now.

        Args:
            tabs: Its tools of tabs, without those of providers.
        """

    def owns_no_longer(self) -> None: ...

    async def serve(self, tunnel: Tunnel) -> None:
        """Everything that is done with one browser, from `tunnel.accept` on; see `links.tunnel.BridgeHandler`."""

    async def administer(self, token: str, ask: str, args: bytes) -> bytes:
        """Answer a command of a person (`trio-relay provider …`), as JSON text.

        Raises:
            RelayError: it is refused, or cannot be done.
        """
