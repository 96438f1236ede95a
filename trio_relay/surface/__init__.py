"""The MCP faces of a relay. Only this room and `extensions/` import the MCP SDK, and never at start-up."""
