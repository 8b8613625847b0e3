"""The MCP door: one table of tools, on stdio and over HTTP, in both eras of the protocol.

Nothing in here is imported by another room but the command line and the HTTP server, and the `mcp` SDK is imported by
`server` and `pipe` only, late: it takes the better part of a second.
"""
