"""trio-relay: the local bridge between WebMCP tools of browser tabs and MCP clients.

For embedding in a trio program (docs/embedding.md): `open_relay`, `serve`, `RelayConfig`, and the errors.
"""

from trio_relay._version import __version__
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
