"""`ingle mcp`: the MCP server on standard input and output."""
