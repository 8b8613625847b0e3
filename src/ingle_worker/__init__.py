"""The guest: all code of ingle that runs inside a session's process.

It uses the standard library only, supports CPython 3.10 and later, and never imports `ingle`. It is loaded from a
private path into the user's interpreter, so nothing has to be installed there.
"""
