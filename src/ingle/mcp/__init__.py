"""The MCP server: one table of tools, on stdio and over HTTP, for both versions of the protocol.

Only the command line and the HTTP server import this package. Only `server` and `stdio.transport` import the `mcp` SDK,
on first use, because that takes the better part of a second.
"""
