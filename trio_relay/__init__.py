"""trio-relay: the local bridge between WebMCP tools of browser tabs and MCP clients."""

from trio_relay._version import __version__
from trio_relay.config import RelayConfig
from trio_relay.errors import RelayError

__all__ = ["RelayConfig", "RelayError", "__version__"]
