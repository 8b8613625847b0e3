"""Messages between the host and a session's file agent. One request per connection.

host  -> agent   length, JSON: verb, root, fixed, path
agent -> host    length, JSON: `errno`, or the result
read:            the host sends start and count, the agent sends that many bytes; again until the host closes
write:           the host sends chunks, each with its length; an empty one completes the file
pack:            the agent sends chunks of a tar stream in the same way; an empty one ends it
unpack:          the host sends chunks of a tar stream; the agent replies after the last one, or when it fails
tree:            requests about the whole folder follow; see `trees`
"""

import struct

LENGTH = struct.Struct(">I")
RANGE = struct.Struct(">QQ")
MAX_REQUEST_BYTES = 1 << 20
MAX_CHUNK_BYTES = 1 << 20
SEND_BYTES = 256 * 1024
MAX_LISTED = 10_000
"""Maximum number of listed entries. The reply says if there are more."""

MALFORMED = "malformed"
"""The reason beside `errno` for an archive that is refused; `detail` says what is wrong with it."""

NOT_REGULAR = "not_regular"
"""The reason beside `errno` for a path that names a pipe, a device or a socket."""
