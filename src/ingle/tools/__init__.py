"""Tools that sessions may call: MCP servers and functions of clients."""
