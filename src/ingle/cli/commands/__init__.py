"""The commands of `ingle`, one module each."""
