"""trio-relay: the local bridge between WebMCP tools of browser tabs and MCP clients.

For embedding in a trio program (docs/embedding.md): `open_relay`, `serve`, `RelayConfig`, and the errors.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trio_relay._version import __version__

if TYPE_CHECKING:
    from trio_relay.config import RelayConfig
    from trio_relay.core.backend import SourceView
    from trio_relay.errors import (
        CallFailed,
        CannotListen,
        ConfigError,
        InvalidArguments,
        NotSent,
        PortTaken,
        RelayError,
        ResultRefused,
        SourceLost,
        SourceNotFound,
        TimedOut,
        ToolNotFound,
    )
    from trio_relay.relay.embed import Relay, RelayView, open_relay, serve

__all__ = [
    "CallFailed",
    "CannotListen",
    "ConfigError",
    "InvalidArguments",
    "NotSent",
    "PortTaken",
    "Relay",
    "RelayConfig",
    "RelayError",
    "RelayView",
    "ResultRefused",
    "SourceLost",
    "SourceNotFound",
    "SourceView",
    "TimedOut",
    "ToolNotFound",
    "__version__",
    "open_relay",
    "serve",
]

_HOMES = {
    "trio_relay.config": ("RelayConfig",),
    "trio_relay.core.backend": ("SourceView",),
    "trio_relay.relay.embed": ("Relay", "RelayView", "open_relay", "serve"),
}


def __getattr__(name: str) -> Any:
    """Import on first use: the program itself must be able to start, and to be stopped, before trio is there."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "trio_relay.errors")
    return getattr(import_module(home), name)
