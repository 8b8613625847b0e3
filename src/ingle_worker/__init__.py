"""The guest: everything of ingle that ever enters a session's process.

Standard library only, CPython 3.10 and later, and never an import of `ingle`. It is loaded from a private
path into whatever interpreter the user names, so nothing has to be installed there.
"""
