"""The channel of a save or a load: a socket of its own, so that a gigabyte stands in nobody's way on the wire.

Saving, the guest offers the hashes of a batch of chunks; the host answers which of them it needs; the guest sends
those, in order, and at the end its summary. Loading, the host sends the bytes of all chunks in the order of the summary
and nothing else: both sides know the sizes. Frames here: a kind, a length, the bytes.
"""

import struct

PREFIX = struct.Struct(">BI")
OFFER, NEEDED, CHUNK, SUMMARY = 1, 2, 3, 4

ENTRY = struct.Struct(">32sI")
"""One offered chunk: its SHA-256 and its size."""

MAX_CHUNK = 4 * 1024 * 1024
MAX_OFFERED = 4096
"""Chunks in one offer."""

MAX_SUMMARY = 64 * 1024 * 1024
