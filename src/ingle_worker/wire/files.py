"""Requests for files: how the host talks to a session's file agent. One request per connection.

host  -> agent   length, JSON: verb, root, fixed, path
agent -> host    length, JSON: `errno`, or what was found
read:            the host sends start and count, the agent sends that many bytes; again until the host closes
write:           the host sends chunks, each with its length; an empty one puts the file in its place
"""

import struct

LENGTH = struct.Struct(">I")
RANGE = struct.Struct(">QQ")
MAX_REQUEST_BYTES = 1 << 20
MAX_CHUNK_BYTES = 1 << 20
SEND_BYTES = 256 * 1024
MAX_LISTED = 10_000
"""Entries of a folder that are listed; the answer says when there are more."""

NOT_REGULAR = "not_regular"
"""The reason beside `errno` for a path that names a pipe, a device or a socket."""
