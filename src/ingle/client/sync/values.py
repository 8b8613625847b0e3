# Generated from ../aio/values.py by tools/unasync.py: edit that file, and run the script.
"""Values of a session."""

from ingle.client.sync.attached import Attached


class Values(Attached):
    """Methods for values of variables."""
