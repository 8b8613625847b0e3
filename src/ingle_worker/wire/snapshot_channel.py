"""The channel of a save or a load: a socket of its own, so that large data does not block the wire.

To save, the guest offers hashes of a batch of chunks, the host answers which it needs, and the guest sends those. The
summary comes last. To load, the host sends all chunks in the order of the summary; both sides know the sizes. To
compare, the guest sends parts of the list of its variables, each with its identity and perhaps its hash, an empty part,
and then hashes by their place in the list. A frame is a kind, a length and the bytes.
"""

import struct

PREFIX = struct.Struct(">BI")
OFFER, NEEDED, CHUNK, SUMMARY, FINGERPRINTS = 1, 2, 3, 4, 5

ENTRY = struct.Struct(">32sI")
"""One offered chunk: SHA-256 and size."""

DIGEST_BYTES = 32
MAX_CHUNK = 4 * 1024 * 1024
MAX_OFFERED = 4096
"""Maximum number of chunks in one offer."""

MAX_CHUNKS = 400_000
"""Maximum number of chunks in one save. A stream of 64 GiB in its usual chunks has 262,144."""

MAX_SUMMARY = 32 * 1024 * 1024
MAX_FINGERPRINTS = 4 * 1024 * 1024
"""Maximum bytes of one frame of fingerprints."""
